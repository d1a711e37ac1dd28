//! Figure 2: one long flow.

use super::arms::{Arm, CLIENT_CORE, Figure, SERVER_CORE};
use super::link::{Link, Receiver, USUAL};

/// Long frames, as in the paper.
const LONG: Link = Link { mtu: 9_000, ..USUAL };
const LARGE: Link = Link { has_large_buffers: true, ..LONG };

const fn subflows(count: usize) -> Link {
    Link { subflows: count, ..LARGE }
}

const fn received_on(receiver: Receiver) -> Link {
    Link { receiver, ..LONG }
}

const fn arm(name: &'static str, system: &'static str, link: Link) -> Arm {
    Arm::new(name, system, "stream-copying", link).on(SERVER_CORE, CLIENT_CORE)
}

/// See the module.
pub const FIGURE_2: Figure = Figure {
    name: "figure-2",
    title: "Figure 2: one long flow, a core for each end",
    metrics: &["gbit_per_s", "gbit_per_s_per_core", "copied_share"],
    base: "tcp, 9000 B frames",
    arms: &[
        arm("tcp, no offloads", "tcp", Link { has_offloads: false, ..USUAL }),
        arm("tcp, TSO and GRO", "tcp", USUAL),
        arm("tcp, 9000 B frames", "tcp", LONG),
        arm("tcp, RPS to the reader's core", "tcp", received_on(Receiver::Reader)),
        arm("tcp, RPS to another core", "tcp", received_on(Receiver::Other)).paper("60 (best)"),
        arm("tcp, io_uring", "tcp-uring-inline", LONG).paper("below 60"),
        arm("tcp, io_uring workers", "tcp-uring-workers", LONG).paper("below 60"),
        arm("tcp, MSG_ZEROCOPY", "tcp-zerocopy", LONG),
        arm("tcp, large buffers", "tcp", LARGE),
        arm("mptcp, 2 subflows", "mptcp", subflows(2)).paper("below TCP"),
        arm("mptcp, 4 subflows", "mptcp", subflows(4)).paper("below 2 subflows"),
        arm("mptcp, 8 subflows", "mptcp", subflows(8)).paper("below 4 subflows"),
        arm("quell", "quell", LONG),
        arm("quell, channels over io_uring", "quell-uring", LONG),
        Arm { case: "stream-zero-copy", ..arm("quell, zero copy", "quell", LONG) },
        Arm { case: "stream-zero-copy", ..arm("quell, zero copy, 2 channels", "quell-2", LONG) },
    ],
    is_watched: false,
};
