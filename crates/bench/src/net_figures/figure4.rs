//! Figure 4: one latency connection beside eight streams, and why its tail is long.

use super::arms::{Arm, Figure};
use super::link::{Link, Qdisc, USUAL};

/// Long frames, as in the paper.
const LONG: Link = Link { mtu: 9_000, ..USUAL };
const BANDS: Link = Link { qdisc: Qdisc::PfifoFast, ..LONG };
const SLOW: Link = Link { qdisc: Qdisc::SlowPfifoFast, ..USUAL };

const METRICS: &[&str] = &[
    "p999_us",
    "p99_us",
    "p50_us",
    "gbit_per_s",
    "tail_us",
    "run_queue_share",
    "softirq_share",
    "hypervisor_share",
    "rest_share",
    "qdisc_us",
    "host_softirq_share",
    "host_steal_share",
];

const fn isolated(name: &'static str, system: &'static str, link: Link) -> Arm {
    Arm::new(name, system, "watched-alone", link)
}

const fn beside(name: &'static str, system: &'static str, link: Link) -> Arm {
    Arm::new(name, system, "watched-beside-8", link)
}

/// See the module.
pub const FIGURE_4: Figure = Figure {
    name: "figure-4",
    title: "Figure 4: round trips of 4 KB beside eight streams; paper: p99.9 37 × isolated",
    metrics: METRICS,
    base: "tcp, isolated",
    arms: &[
        isolated("tcp, isolated", "tcp", LONG),
        beside("tcp", "tcp", LONG).paper("37 ×"),
        beside("tcp, L nice -20", "tcp-latency-nice", LONG).paper("no help"),
        beside("tcp, L nice -20 and SO_PRIORITY", "tcp-priority", BANDS).paper("no help"),
        beside("tcp, T nice 19", "tcp-bulk-nice", LONG),
        beside("tcp, L slices of 0.1 ms", "tcp-slice", LONG),
        beside("tcp, L SCHED_FIFO", "tcp-fifo", LONG),
        isolated("quell, isolated", "quell", LONG),
        beside("quell", "quell", LONG),
    ],
    is_watched: true,
};

/// The same over a link of 1 Gbit/s, where packets do wait in the queueing discipline.
pub const FIGURE_4_SLOW: Figure = Figure {
    name: "figure-4-slow",
    title: "Figure 4 over a link of 1 Gbit/s (pfifo_fast below TBF)",
    metrics: METRICS,
    base: "tcp, isolated",
    arms: &[
        isolated("tcp, isolated", "tcp", SLOW),
        beside("tcp", "tcp", SLOW),
        beside("tcp, L nice -20 and SO_PRIORITY", "tcp-priority", SLOW),
        isolated("quell, isolated", "quell", SLOW),
        beside("quell", "quell", SLOW),
    ],
    is_watched: true,
};
