//! What the slowest requests of figure 4 waited for.
//!
//! Each column is measured in its own way, so that they may overlap:
//!
//! - run queue: time that the thread of the client and that of the server were runnable and did not run (`schedstat`);
//! - softirq: time that a `ksoftirqd`, to which network processing is deferred, was runnable and did not run, on any core;
//! - hypervisor: time in which the timer of a core came late by more than a millisecond, on any core;
//! - rest: what none of them explains: work on the way, queues in the network, softirqs on other threads' time.

use quell_model::Nanos;

use crate::host::Standstill;
use crate::net::SlowRequest;

/// Times of the slowest requests, and the part of them that each cause had.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tail {
    /// The mean time of one.
    pub us: f64,
    /// See the module; 0 to 1 each.
    pub run_queue_share: f64,
    /// See the module.
    pub softirq_share: f64,
    /// See the module; `NaN` where no timer could be had.
    pub hypervisor_share: f64,
    /// See the module.
    pub rest_share: f64,
}

impl Tail {
    /// Of the slowest requests of a run and the stops of its cores.
    pub fn of(slowest: &[SlowRequest], stops: Option<&[Standstill]>) -> Option<Tail> {
        let total: u64 = slowest.iter().map(|it| it.ns).sum();
        if total == 0 {
            return None;
        }
        let mut sums = [0; 4];
        for request in slowest {
            let run_queue = (request.client_wait_ns + request.server_wait_ns).min(request.ns);
            let softirq = request.softirq_wait_ns.min(request.ns);
            let hypervisor = stops.map_or(0, |stops| stopped(request, stops));
            let rest = request.ns.saturating_sub(run_queue + softirq + hypervisor);
            for (sum, ns) in sums.iter_mut().zip([run_queue, softirq, hypervisor, rest]) {
                *sum += ns;
            }
        }
        let [run_queue_share, softirq_share, hypervisor_share, rest_share] =
            sums.map(|sum| sum as f64 / total as f64);
        let hypervisor_share = stops.map_or(f64::NAN, |_| hypervisor_share);
        let us = total as f64 / slowest.len() as f64 / 1e3;
        Some(Tail { us, run_queue_share, softirq_share, hypervisor_share, rest_share })
    }
}

/// How long a core stood still while a request was on its way: the longest of one stop.
fn stopped(request: &SlowRequest, stops: &[Standstill]) -> u64 {
    let (from, to) = (Nanos(request.at_ns), Nanos(request.at_ns + request.ns));
    let overlap = |stop: &Standstill| stop.to.min(to).0.saturating_sub(stop.from.max(from).0);
    stops.iter().filter(|stop| !stop.idle).map(overlap).max().unwrap_or(0)
}

/// Processor time of the host so far, in ticks of `/proc/stat`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostTicks {
    all: u64,
    softirq: u64,
    steal: u64,
}

impl HostTicks {
    /// Reads the first line of `/proc/stat`.
    pub fn parse(stat: &str) -> Option<HostTicks> {
        let line = stat.lines().next()?.strip_prefix("cpu ")?;
        // user, nice, system, idle, iowait, irq, softirq, steal; guest times are within the first two.
        let ticks: Option<Vec<u64>> =
            line.split_whitespace().take(8).map(|word| word.parse().ok()).collect();
        let ticks = ticks.filter(|ticks| ticks.len() == 8)?;
        Some(HostTicks { all: ticks.iter().sum(), softirq: ticks[6], steal: ticks[7] })
    }

    /// The parts of the host's time since then that softirqs had, and that the hypervisor took.
    pub fn shares_since(&self, then: &HostTicks) -> [f64; 2] {
        let all = self.all.saturating_sub(then.all) as f64;
        [self.softirq.saturating_sub(then.softirq), self.steal.saturating_sub(then.steal)]
            .map(|ticks| if all > 0.0 { ticks as f64 / all } else { f64::NAN })
    }
}

/// Bytes that wait in the queueing disciplines of a device, from `tc -s -j qdisc show`.
pub fn backlog_bytes(json: &str) -> Option<u64> {
    let all: Vec<serde_json::Value> = serde_json::from_str(json).ok()?;
    // A parent counts what its child holds.
    all.iter().map(|qdisc| qdisc.get("backlog").and_then(serde_json::Value::as_u64)).max()?
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(at_ns: u64, ns: u64, waits: [u64; 3]) -> SlowRequest {
        let [client_wait_ns, server_wait_ns, softirq_wait_ns] = waits;
        SlowRequest { at_ns, ns, client_wait_ns, server_wait_ns, softirq_wait_ns }
    }

    fn stop(from: u64, to: u64) -> Standstill {
        Standstill { from: Nanos(from), to: Nanos(to), idle: false }
    }

    #[test]
    fn tail_is_split_by_what_was_waited_for() {
        let slow =
            [request(1_000, 6_000, [1_000, 2_000, 500]), request(20_000, 4_000, [0, 0, 500])];
        let tail = Tail::of(&slow, Some(&[stop(21_000, 30_000)])).expect("a tail");
        assert_eq!(tail.us, 5.0);
        assert_eq!(tail.run_queue_share, 0.3);
        assert_eq!(tail.softirq_share, 0.1);
        assert_eq!(tail.hypervisor_share, 0.3);
        // 2,500 of the first, 500 of the second.
        assert_eq!(tail.rest_share, 0.3);
    }

    #[test]
    fn cause_counts_for_no_more_than_the_request_took() {
        let tail = Tail::of(&[request(0, 100, [900, 900, 900])], None).expect("a tail");
        assert_eq!((tail.run_queue_share, tail.softirq_share, tail.rest_share), (1.0, 1.0, 0.0));
        assert!(tail.hypervisor_share.is_nan());
        assert_eq!(Tail::of(&[], None), None);
    }

    #[test]
    fn core_that_wakes_from_idle_is_no_stop() {
        let idle = Standstill { idle: true, ..stop(0, 50) };
        assert_eq!(stopped(&request(0, 100, [0; 3]), &[idle, stop(90, 120)]), 10);
    }

    #[test]
    fn host_ticks_are_shares_of_all_time() {
        let then = HostTicks::parse("cpu  100 0 100 100 0 0 50 10 0 0\ncpu0 1\n").expect("ticks");
        let now = HostTicks::parse("cpu  150 0 120 100 0 0 70 20 7 0\n").expect("ticks");
        assert_eq!(now.shares_since(&then), [0.2, 0.1]);
        assert_eq!(HostTicks::parse("cpu  1 2 3\n"), None);
        assert_eq!(HostTicks::parse("intr 1 2\n"), None);
    }

    #[test]
    fn backlog_of_a_parent_and_its_child_counts_once() {
        // Of tc of iproute2 6.1, shortened.
        let json = r#"[{"kind":"tbf","handle":"1:","root":true,"options":{"rate":125000000},"bytes":9124,"packets":7,
            "drops":0,"overlimits":3,"requeues":0,"backlog":45120,"qlen":3},
            {"kind":"pfifo_fast","handle":"10:","parent":"1:1","bytes":9124,"backlog":45120,"qlen":3}]"#;
        assert_eq!(backlog_bytes(json), Some(45_120));
        assert_eq!(backlog_bytes("[]"), None);
        assert_eq!(backlog_bytes("error"), None);
    }
}
