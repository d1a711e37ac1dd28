//! Figure 3: one socket whose messages have 4 KB.

use super::arms::{Arm, CLIENT_CORE, Figure, STREAM};
use super::link::{Link, USUAL};

/// Without offloads, as in the paper.
const PLAIN: Link = Link { has_offloads: false, ..USUAL };
const LARGE: Link = Link { has_large_buffers: true, ..PLAIN };

const fn subflows(count: usize) -> Link {
    Link { subflows: count, ..LARGE }
}

const fn arm(name: &'static str, system: &'static str, link: Link) -> Arm {
    Arm::new(name, system, "writes-4k", link).on(CLIENT_CORE, CLIENT_CORE)
}

/// See the module.
pub const FIGURE_3: Figure = Figure {
    name: "figure-3",
    title: "Figure 3: one socket of 4 KB messages, no offloads, both ends on one core",
    metrics: STREAM,
    base: "tcp",
    arms: &[
        arm("tcp", "tcp", PLAIN).paper("9.88"),
        arm("tcp, gathered writes", "tcp-buffered", PLAIN),
        arm("tcp, io_uring", "tcp-uring-inline", PLAIN).paper("no gain"),
        arm("tcp, io_uring workers", "tcp-uring-workers", PLAIN).paper("no gain"),
        arm("tcp, MSG_ZEROCOPY", "tcp-zerocopy", PLAIN),
        arm("tcp, large buffers", "tcp", LARGE),
        arm("mptcp, 2 subflows", "mptcp", subflows(2)).paper("no gain"),
        arm("mptcp, 4 subflows", "mptcp", subflows(4)).paper("no gain"),
        arm("mptcp, 8 subflows", "mptcp", subflows(8)).paper("no gain"),
        arm("quell", "quell", PLAIN),
        arm("quell, channels over io_uring", "quell-uring", PLAIN),
    ],
    is_watched: false,
};
