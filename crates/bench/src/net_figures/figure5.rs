//! Figure 5: a stream that is never read shares a channel with two that are.

use super::arms::{Arm, Figure};
use super::link::USUAL;

const fn arm(name: &'static str, system: &'static str) -> Arm {
    Arm::new(name, system, "stalled-reader", USUAL)
}

/// See the module.
pub const FIGURE_5: Figure = Figure {
    name: "figure-5",
    title: "Figure 5: two streams beside one that is never read, over one channel",
    metrics: &["part", "gbit_per_s", "server_peak_mib"],
    base: "quell, credit",
    arms: &[
        arm("quell, no relief", "quell-no-relief").paper("0: stops"),
        arm("quell, stop and resume", "quell-stop-resume").paper("near 1"),
        arm("quell, credit", "quell"),
        arm("tcp, own connections", "tcp"),
    ],
    is_watched: false,
};
