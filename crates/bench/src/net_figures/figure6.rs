//! Figures 6 and 8: how one program's data scales over copying threads and channels, its tails beside streams, and what a core
//! carries. The paper's numbers are not known: shapes only.

use super::arms::{Arm, CLIENT_CORE, Figure, STREAM};
use super::link::{Link, USUAL};

const LONG: Link = Link { mtu: 9_000, ..USUAL };
const PLAIN: Link = Link { has_offloads: false, ..USUAL };

/// Copies: those of one thread, and of threads beside it.
pub const FIGURE_6A: Figure = Figure {
    name: "figure-6a",
    title: "Figures 6a, 6b and 8b: writes of 10 MB by one thread over one channel; paper: one thread fills 100 Gbit/s",
    metrics: STREAM,
    base: "tcp",
    arms: &[
        Arm::new("tcp", "tcp", "writes-10m", LONG),
        Arm::new("quell, copies inline", "quell", "writes-10m", LONG),
        Arm::new("quell, copy workers", "quell-workers", "writes-10m", LONG),
        Arm::new("quell, placed channels", "quell-placed", "writes-10m", LONG),
    ],
    is_watched: false,
};

/// Channels.
pub const FIGURE_6C: Figure = Figure {
    name: "figure-6c",
    title: "Figures 6c and 8c: one socket of 4 KB messages over 1 to 4 channels, no offloads; paper: almost linear",
    metrics: STREAM,
    base: "quell, 1 channel",
    arms: &[
        Arm::new("tcp", "tcp", "writes-4k", PLAIN),
        Arm::new("quell, 1 channel", "quell", "writes-4k", PLAIN),
        Arm::new("quell, 2 channels", "quell-2", "writes-4k", PLAIN),
        Arm::new("quell, 3 channels", "quell-3", "writes-4k", PLAIN),
        Arm::new("quell, 4 channels", "quell-4", "writes-4k", PLAIN),
    ],
    is_watched: false,
};

/// Isolation.
pub const FIGURE_6D: Figure = Figure {
    name: "figure-6d",
    title: "Figures 6d and 8d: eight streams with and without round trips beside them; paper: tails of microseconds",
    metrics: &["gbit_per_s", "gbit_per_s_per_core", "p999_us"],
    base: "tcp, streams alone",
    arms: &[
        Arm::new("tcp, streams alone", "tcp", "eight-streams", LONG),
        Arm::new("tcp", "tcp", "watched-beside-8", LONG),
        Arm::new("quell, streams alone", "quell", "eight-streams", LONG),
        Arm::new("quell", "quell", "watched-beside-8", LONG),
    ],
    is_watched: false,
};

/// Overhead on one core.
pub const FIGURE_8A: Figure = Figure {
    name: "figure-8a",
    title: "Figure 8a: one long flow, both ends on one core",
    metrics: STREAM,
    base: "tcp",
    arms: &[
        Arm::new("tcp", "tcp", "stream-copying", LONG).on(CLIENT_CORE, CLIENT_CORE),
        Arm::new("quell", "quell", "stream-copying", LONG).on(CLIENT_CORE, CLIENT_CORE),
    ],
    is_watched: false,
};
