//! The cases, their systems, and the goals.

use serde::Deserialize;

/// Bits of bytes in nanoseconds are gigabits per second.
const BITS: f64 = 8.0;
/// Bytes of a MiB.
const MIB: f64 = 1_048_576.0;

/// A ratio of our first system to a rival that has to be reached.
#[derive(Clone, Copy, Debug)]
pub struct Goal {
    /// Of the case.
    pub metric: &'static str,
    /// The rival; `None`: the figure itself is promised.
    pub against: Option<&'static str>,
    /// What is promised.
    pub floor: f64,
    /// What is hoped for.
    pub stretch: f64,
    /// Less is better.
    pub at_most: bool,
}

/// Where the two ends of a case are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In two namespaces, with a link that is as fast as the processors.
    Apart,
    /// The same, with a link of 1 Gbit/s that queues up to 3 MB.
    Bottleneck,
    /// On one host.
    Together,
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Its name.
    pub name: &'static str,
    /// Ours: the first has to reach the goals.
    pub own: &'static [&'static str],
    /// Those it is compared with.
    pub rivals: &'static [&'static str],
    /// Where its ends are.
    pub place: Place,
    /// Metrics of its report.
    pub metrics: &'static [&'static str],
    /// See [`Goal`].
    pub goals: &'static [Goal],
}

/// Copying streams that keep nothing to be sent again, those that do, and those over as many channels as are of use.
const WITHOUT_RECOVERY: &[&str] = &["quell-no-recovery", "quell", "quell-counted"];
/// Channels whose threads send and receive themselves, and by io_uring.
const URING: &[&str] = &["quell", "quell-uring"];
/// TCP whose writes are gathered as those of virtual sockets are, and by io_uring.
const BUFFERED: &[&str] = &["tcp", "tcp-buffered", "tcp-uring"];
/// TCP over one path, and one connection over two.
const MULTIPATH: &[&str] = &["tcp", "mptcp"];
/// Other programs that carry many streams over one connection: QUIC, and frames over TCP.
pub const MULTIPLEXERS: &[&str] = &["quinn", "yamux"];
/// Those and io_uring beside TCP, beside [`BUFFERED`], and beside [`MULTIPATH`]; those alone beside the last.
const MULTIPLEXED: &[&str] = &["tcp", "tcp-uring", "quinn", "yamux"];
const MULTIPLEXED_BUFFERED: &[&str] = &["tcp", "tcp-buffered", "tcp-uring", "quinn", "yamux"];
const MULTIPLEXED_STREAM: &[&str] = &["tcp", "mptcp", "tcp-uring", "quinn", "yamux"];
const MULTIPLEXED_MULTIPATH: &[&str] = &["tcp", "mptcp", "quinn", "yamux"];
const LATENCY: &[&str] = &["p50_us", "p99_us", "p999_us", "cpu_us_per_op"];
const STREAM: &[&str] = &["gbit_per_s", "gbit_per_s_per_core"];
const BESIDE: &[&str] = &["p50_us", "p99_us", "p999_us", "gbit_per_s", "gbit_per_s_per_core"];
const MESSAGES: &[&str] = &["ops_per_s", "gbit_per_s_per_core"];

const fn at_most(metric: &'static str, against: &'static str, floor: f64, stretch: f64) -> Goal {
    Goal { metric, against: Some(against), floor, stretch, at_most: true }
}

const fn at_least(metric: &'static str, against: &'static str, floor: f64, stretch: f64) -> Goal {
    Goal { metric, against: Some(against), floor, stretch, at_most: false }
}

const fn itself(metric: &'static str, floor: f64, stretch: f64) -> Goal {
    Goal { metric, against: None, floor, stretch, at_most: false }
}

const fn between(
    name: &'static str,
    metrics: &'static [&'static str],
    goals: &'static [Goal],
) -> Case {
    let (own, rivals): (&[&str], &[&str]) = (&["quell"], &["tcp"]);
    Case { name, own, rivals, place: Place::Apart, metrics, goals }
}

const fn on_one_host(
    name: &'static str,
    metrics: &'static [&'static str],
    goals: &'static [Goal],
) -> Case {
    let rivals: &[&str] = &["tcp", "unix", "tcp-sockmap"];
    let own: &[&str] = &["quell-shm"];
    Case { name, own, rivals, place: Place::Together, metrics, goals }
}

/// All cases. Their goals are those of the published targets for such a machine, written down beforehand.
pub const CASES: &[Case] = &[
    Case {
        own: URING,
        rivals: MULTIPLEXED,
        ..between(
            "pingpong-alone",
            LATENCY,
            &[at_most("p50_us", "tcp", 1.25, 1.1), at_most("p999_us", "tcp", 1.5, 1.2)],
        )
    },
    Case {
        own: URING,
        rivals: BUFFERED,
        ..between("writes-4k", STREAM, &[at_least("gbit_per_s", "tcp", 2.0, 3.5)])
    },
    Case {
        own: URING,
        rivals: MULTIPLEXED_BUFFERED,
        ..between("messages-64b", MESSAGES, &[at_least("ops_per_s", "tcp", 3.0, 8.0)])
    },
    Case {
        own: &["quell-no-recovery", "quell", "quell-counted", "quell-workers", "quell-uring"],
        rivals: MULTIPLEXED_STREAM,
        ..between("stream-copying", STREAM, &[at_least("gbit_per_s", "tcp", 0.85, 1.0)])
    },
    Case {
        own: &["quell-2", "quell", "quell-placed"],
        rivals: MULTIPATH,
        ..between("stream-zero-copy", STREAM, &[at_least("gbit_per_s", "tcp", 1.2, 1.5)])
    },
    Case {
        own: WITHOUT_RECOVERY,
        rivals: MULTIPLEXED_MULTIPATH,
        ..between("eight-streams", STREAM, &[at_least("gbit_per_s", "tcp", 0.45, 0.6)])
    },
    between("latency-alone", LATENCY, &[]),
    Case {
        rivals: &["tcp", "tcp-nice", "tcp-slice"],
        ..between(
            "bulk-beside-latency",
            BESIDE,
            &[at_most("p999_us", "tcp", 0.2, 0.05), at_least("gbit_per_s", "tcp", 0.3, 0.6)],
        )
    },
    Case {
        place: Place::Bottleneck,
        own: &["quell", "quell-unpaced", "quell-uring"],
        rivals: &["tcp", "tcp-nice", "tcp-slice"],
        ..between(
            "bottleneck",
            BESIDE,
            &[at_most("p999_us", "tcp", 0.33, 0.12), itself("gbit_per_s", 0.85, 0.85)],
        )
    },
    Case {
        place: Place::Bottleneck,
        own: &["quell-udp"],
        rivals: &["tcp", "tcp-nice", "tcp-slice"],
        ..between(
            "bottleneck-udp",
            BESIDE,
            &[at_most("p999_us", "tcp", 0.33, 0.12), itself("gbit_per_s", 0.85, 0.85)],
        )
    },
    between("stalled-reader", &["part", "gbit_per_s"], &[itself("part", 0.9, 0.98)]),
    Case {
        own: &["quell-placed", "quell-2"],
        rivals: &["quell", "tcp"],
        ..between("two-channels", STREAM, &[at_least("gbit_per_s", "quell", 1.3, 1.7)])
    },
    Case {
        own: &["quell-early", "quell"],
        rivals: &["tcp", "tcp-fast-open"],
        ..between(
            "connect-request",
            &["ops_per_s", "p50_us"],
            &[at_least("ops_per_s", "tcp", 1.3, 1.8)],
        )
    },
    on_one_host(
        "same-host-rtt",
        LATENCY,
        &[at_most("p50_us", "tcp", 0.7, 0.5), at_most("p50_us", "unix", 0.9, 0.65)],
    ),
    Case {
        own: &["uthreads-shm"],
        rivals: &["uthreads-tcp"],
        ..on_one_host("uthread-echo", LATENCY, &[at_most("p50_us", "uthreads-tcp", 0.5, 0.2)])
    },
    on_one_host(
        "same-host-bulk",
        STREAM,
        &[at_least("gbit_per_s", "tcp", 1.4, 1.9), at_least("gbit_per_s", "unix", 1.1, 1.5)],
    ),
    on_one_host(
        "same-host-4k",
        STREAM,
        &[at_least("gbit_per_s", "tcp", 3.0, 5.0), at_least("gbit_per_s", "unix", 2.0, 3.5)],
    ),
];

impl Case {
    /// All systems, ours first.
    pub fn systems(&self) -> impl Iterator<Item = &'static str> {
        self.own.iter().chain(self.rivals).copied()
    }

    /// The systems in the order of a round: each begins as often as the others.
    pub fn order(&self, round: usize) -> Vec<&'static str> {
        let mut systems: Vec<&str> = self.systems().collect();
        let first = round % systems.len();
        systems.rotate_left(first);
        systems
    }
}

/// What the client of a case answers.
#[derive(Debug, Deserialize)]
pub struct Measured {
    bytes: u64,
    ops: u64,
    ns: u64,
    client_cpu_ns: u64,
    server_cpu_ns: u64,
    samples: Vec<u64>,
    part: Option<f64>,
    copied_share: Option<f64>,
    server_peak_bytes: Option<u64>,
    /// The slowest requests, where they are watched.
    #[serde(default)]
    pub slowest: Vec<SlowRequest>,
}

/// What a slow request waited for.
#[derive(Clone, Copy, Debug, Deserialize)]
pub struct SlowRequest {
    /// When it was sent, by the monotonic clock.
    pub at_ns: u64,
    /// Until its answer was read.
    pub ns: u64,
    /// The client's thread was runnable and did not run.
    pub client_wait_ns: u64,
    /// The same, of the server's thread.
    pub server_wait_ns: u64,
    /// Deferred network processing (`ksoftirqd`) was runnable and did not run, on any core.
    pub softirq_wait_ns: u64,
}

impl Measured {
    /// Reads an answer.
    ///
    /// # Errors
    /// When it is none, or counts nothing.
    pub fn parse(text: &str) -> anyhow::Result<Measured> {
        let mut measured: Measured = serde_json::from_str(text.trim())?;
        anyhow::ensure!(measured.ops > 0 && measured.ns > 0, "nothing was counted");
        measured.samples.sort_unstable();
        Ok(measured)
    }

    /// A metric of it; `NaN` where it has none.
    pub fn value(&self, metric: &str) -> f64 {
        let quantile = |q| {
            quell_report::stats::quantile(&self.samples, q).map_or(f64::NAN, |ns| ns as f64 / 1e3)
        };
        let cpu = (self.client_cpu_ns + self.server_cpu_ns) as f64;
        match metric {
            "p50_us" => quantile(0.5),
            "p99_us" => quantile(0.99),
            "p999_us" => quantile(0.999),
            "gbit_per_s" => self.bytes as f64 * BITS / self.ns as f64,
            "gbit_per_s_per_core" => self.bytes as f64 * BITS / cpu,
            "ops_per_s" => self.ops as f64 * 1e9 / self.ns as f64,
            "copied_share" => self.copied_share.unwrap_or(f64::NAN),
            "server_peak_mib" => self.server_peak_bytes.map_or(f64::NAN, |it| it as f64 / MIB),
            "part" => self.part.unwrap_or(f64::NAN),
            "cpu_us_per_op" => cpu / 1e3 / self.ops as f64,
            _ => f64::NAN,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metrics_follow_from_the_counts() {
        let text = r#"{"bytes":1000,"ops":4,"ns":2000,"client_cpu_ns":1000,"server_cpu_ns":3000,
            "samples":[4000,1000,3000,2000]}"#;
        let measured = Measured::parse(text).expect("an answer");
        assert_eq!(measured.value("gbit_per_s"), 4.0);
        assert_eq!(measured.value("gbit_per_s_per_core"), 2.0);
        assert_eq!(measured.value("ops_per_s"), 2e6);
        assert_eq!(measured.value("cpu_us_per_op"), 1.0);
        assert_eq!(measured.value("p999_us"), 4.0);
        assert!(measured.value("nothing").is_nan());
        assert!(Measured::parse(&text.replace("\"ops\":4", "\"ops\":0")).is_err());
    }

    #[test]
    fn each_system_begins_as_often_as_the_others() {
        let case = CASES.iter().find(|case| case.name == "latency-alone").expect("a case");
        assert_eq!(case.order(0), ["quell", "tcp"]);
        assert_eq!(case.order(1), ["tcp", "quell"]);
    }
}
