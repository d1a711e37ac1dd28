//! The one rule by which hypervisor stalls are taken out of latencies.
//!
//! A virtual core that its hypervisor does not run delays every request on it, and no scheduler
//! inside can help. The rule is blind to latency and to the system under test:
//!
//! 1. A gap counts as a stall only if it lasted at least [`GAP_MIN`] and
//!    * the core's steal clock advanced by that much between two context switches, or
//!    * a timer interrupt on the core came that late: interrupts come in user code, system calls and
//!      softirqs alike, so the core itself stood still; or
//!    * on the client's core, the polling loop stood still because threads had the core that have
//!      nothing to do with what is measured.
//! 2. A gap while a thread of Quell ran on that core is Quell's, and stays: on the client's core one
//!    of which Quell's threads had more than a tenth. So does one of which the client's softirq thread
//!    had more than a tenth: packets are part of what is measured.
//! 3. A stall leaves a backlog. At half of the peak load it drains in the time that the stall lasted
//!    (arrivals λ, service 2λ), so a window is the gap and once its length again ([`DRAIN`]).
//! 4. A request that overlaps a window, from its intended send time to its answer, is removed, in
//!    every system alike.
//! 5. A measurement of whose time windows cover more than [`COVERED_MAX`], or of whose requests more
//!    than [`REMOVED_MAX`] are removed, is made again. A case is invalid if that does not help, or if
//!    the covered shares of two systems differ by more than [`SPREAD_MAX`].
//! 6. Where requests wait for longer than stalls are apart, removal would take out what is measured:
//!    if far more of the requests than of the time are affected ([`WAITING`]), nothing is removed.
//!
//! Latencies without removal stand beside, with `_raw` at the end of the metric's name.

use quell_model::Nanos;
use serde::{Deserialize, Serialize};

/// Shorter gaps are within what an undisturbed core shows.
pub const GAP_MIN: Nanos = Nanos::from_micros(100);
/// Part of the gap's length by which its window outlasts it.
pub const DRAIN: f64 = 1.0;
/// Share of the time that windows may cover. Two virtual cores that stand still for 1 % of the time
/// each, when both are busy, make 4 % with the drain.
pub const COVERED_MAX: f64 = 0.05;
/// Share of the requests that may be removed.
pub const REMOVED_MAX: f64 = 0.05;
/// Where the affected share of the requests is this many times the covered share of the time, and
/// above [`REMOVED_MAX`], requests wait. Where the service keeps up the two are about the same.
pub const WAITING: f64 = 4.0;
/// Ratio of covered shares between two systems above which a case is invalid.
pub const SPREAD_MAX: f64 = 2.0;
/// Shares below this count as equal: the ratio of two handfuls of requests says nothing.
const SHARE_FLOOR: f64 = 0.002;

/// What a gap was seen by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Evidence {
    /// The steal clock of the core advanced this much between two context switches.
    StealClock {
        /// Time that the hypervisor took, by the guest's account.
        stolen: Nanos,
    },
    /// A timer interrupt came late.
    LateInterrupt {
        /// How late.
        late: Nanos,
    },
    /// The client's polling loop did not turn.
    SpinnerGap {
        /// Who had its core meanwhile.
        by: Holder,
    },
}

impl Evidence {
    /// For how long the core stood still, of a gap of this length.
    fn standstill(&self, gap: Nanos) -> Nanos {
        match *self {
            Evidence::StealClock { stolen: time } | Evidence::LateInterrupt { late: time } => time,
            Evidence::SpinnerGap { by: Holder::Foreign } => gap,
            Evidence::SpinnerGap { by: Holder::Nobody | Holder::Involved } => Nanos::ZERO,
        }
    }
}

/// Who had the client's core while its loop stood still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// No other thread. Interrupts and softirqs show as this, so it proves nothing by itself.
    Nobody,
    /// Threads that have nothing to do with what is measured.
    Foreign,
    /// Threads that have: the softirq thread.
    Involved,
}

/// A time in which a core did not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// When it began.
    pub start: Nanos,
    /// When it was over.
    pub end: Nanos,
    /// What it was seen by.
    pub evidence: Evidence,
    /// Whether a thread of Quell ran on that core at that time.
    pub quell_ran: bool,
}

impl Gap {
    /// Whether the gap counts as a hypervisor stall (steps 1 and 2 of the rule).
    pub fn is_stall(&self) -> bool {
        self.standstill() >= GAP_MIN && !self.quell_ran
    }

    fn standstill(&self) -> Nanos {
        self.evidence.standstill(self.end - self.start)
    }
}

/// A request by the times that the rule looks at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// When it should have been sent.
    pub intended: Nanos,
    /// When its answer was complete.
    pub done: Nanos,
}

impl Request {
    /// The latency from the intended send time.
    pub fn latency(&self) -> Nanos {
        self.done - self.intended
    }
}

/// Times in which requests do not count: ascending and disjoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Windows(Vec<(Nanos, Nanos)>);

impl Windows {
    /// The windows of the gaps that count as stalls (step 3 of the rule).
    pub fn of(gaps: &[Gap]) -> Windows {
        let mut spans: Vec<(Nanos, Nanos)> = gaps
            .iter()
            .filter(|gap| gap.is_stall())
            .map(|gap| {
                let drain = gap.standstill().0 as f64 * DRAIN;
                (gap.start, gap.end + Nanos(drain as u64))
            })
            .collect();
        spans.sort_unstable();
        let mut merged: Vec<(Nanos, Nanos)> = Vec::with_capacity(spans.len());
        for (start, end) in spans {
            match merged.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => merged.push((start, end)),
            }
        }
        Windows(merged)
    }

    /// Whether a request overlaps a window (step 4 of the rule).
    pub fn cover(&self, request: &Request) -> bool {
        let at = self.0.partition_point(|(_, end)| *end < request.intended);
        self.0.get(at).is_some_and(|(start, _)| *start <= request.done)
    }

    /// How many windows there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether no stall was seen.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The share of the time from `start` to `end` that the windows cover.
    pub fn covered(&self, start: Nanos, end: Nanos) -> f64 {
        let within = |&(from, to): &(Nanos, Nanos)| to.min(end) - from.max(start);
        let covered = self.0.iter().map(within).fold(Nanos::ZERO, |sum, time| sum + time);
        covered.0 as f64 / (end - start).0.max(1) as f64
    }
}

/// Latencies of a run, ascending, with and without the rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filtered {
    /// Every request.
    pub raw: Vec<Nanos>,
    /// Requests that overlap no window.
    pub kept: Vec<Nanos>,
}

impl Filtered {
    /// Applies the rule to the requests of a measurement (steps 4 and 6). `covered` is the share of
    /// the time that the windows cover.
    pub fn of(requests: &[Request], windows: &Windows, covered: f64) -> Filtered {
        let mut raw: Vec<Nanos> = requests.iter().map(Request::latency).collect();
        let kept = requests.iter().filter(|request| !windows.cover(request));
        let mut kept: Vec<Nanos> = kept.map(Request::latency).collect();
        raw.sort_unstable();
        kept.sort_unstable();
        let removed = (raw.len() - kept.len()) as f64 / raw.len().max(1) as f64;
        if removed > REMOVED_MAX && removed > covered * WAITING {
            kept.clone_from(&raw);
        }
        Filtered { raw, kept }
    }

    /// Share of the requests that was removed.
    pub fn removed_requests_share(&self) -> f64 {
        match self.raw.len() {
            0 => 0.0,
            all => (all - self.kept.len()) as f64 / all as f64,
        }
    }
}

/// Why a case is invalid by step 5 of the rule; `None` if it is valid. `covered` holds the share of
/// the time of each system that windows cover.
pub fn invalid(covered: &[(&str, f64)]) -> Option<String> {
    if let Some((system, share)) = covered.iter().find(|(_, share)| *share > COVERED_MAX) {
        return Some(format!(
            "hypervisor stalls cover {:.2} % of the time of {system} (at most {:.0} % may be)",
            share * 100.0,
            COVERED_MAX * 100.0
        ));
    }
    let least = covered.iter().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let most = covered.iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    let ratio = most.1.max(SHARE_FLOOR) / least.1.max(SHARE_FLOOR);
    (ratio > SPREAD_MAX).then(|| {
        format!(
            "hypervisor stalls cover {:.2} % of the time of {} but {:.2} % of that of {} \
             (at most {SPREAD_MAX} times as much may be)",
            most.1 * 100.0,
            most.0,
            least.1 * 100.0,
            least.0
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn us(micros: u64) -> Nanos {
        Nanos::from_micros(micros)
    }

    fn spinner(start: u64, end: u64) -> Gap {
        let evidence = Evidence::SpinnerGap { by: Holder::Foreign };
        Gap { start: us(start), end: us(end), evidence, quell_ran: false }
    }

    fn request(intended: u64, done: u64) -> Request {
        Request { intended: us(intended), done: us(done) }
    }

    #[test]
    fn a_request_that_overlaps_a_stall_is_removed() {
        // The gap from 1,000 to 1,200 us covers until 1,400 us with its backlog.
        let windows = Windows::of(&[spinner(1_000, 1_200)]);
        assert!(windows.cover(&request(900, 1_000)), "ends as the stall begins");
        assert!(windows.cover(&request(1_100, 1_250)), "sent during the stall");
        assert!(windows.cover(&request(1_390, 1_450)), "waits behind the backlog");
        assert!(windows.cover(&request(900, 2_000)), "spans it");
        assert!(!windows.cover(&request(900, 999)), "over before");
        assert!(!windows.cover(&request(1_401, 5_000)), "sent after, however slow");
    }

    #[test]
    fn a_gap_while_quell_ran_stays() {
        let gap = Gap { quell_ran: true, ..spinner(1_000, 9_000) };
        assert!(!gap.is_stall());
        assert!(Windows::of(&[gap]).is_empty());
    }

    #[test]
    fn a_gap_by_what_is_measured_stays_and_one_by_foreign_threads_does_not() {
        let by = |by| Gap { evidence: Evidence::SpinnerGap { by }, ..spinner(1_000, 9_000) };
        assert!(!by(Holder::Involved).is_stall());
        assert!(!by(Holder::Nobody).is_stall(), "it may be an interrupt");
        assert!(by(Holder::Foreign).is_stall());
        assert!(!Gap { quell_ran: true, ..by(Holder::Foreign) }.is_stall());
    }

    #[test]
    fn only_what_the_steal_clock_shows_counts_on_a_managed_core() {
        let gap = |stolen| Gap {
            evidence: Evidence::StealClock { stolen: us(stolen) },
            ..spinner(1_000, 5_000)
        };
        assert!(!gap(99).is_stall(), "a long time between two events is no stall by itself");
        assert!(gap(100).is_stall());
    }

    #[test]
    fn an_interrupt_counts_by_how_late_it_is() {
        let gap = |late| Gap {
            evidence: Evidence::LateInterrupt { late: us(late) },
            ..spinner(1_000, 1_200 + late)
        };
        assert!(!gap(99).is_stall());
        let windows = Windows::of(&[gap(300)]);
        assert!(windows.cover(&request(1_799, 1_900)), "1,500 us and 300 us of backlog");
        assert!(!windows.cover(&request(1_801, 1_900)));
    }

    #[test]
    fn where_requests_wait_longer_than_stalls_are_apart_nothing_is_removed() {
        let windows = Windows::of(&[spinner(10_000, 10_200)]);
        let covered = windows.covered(us(0), us(30_000));
        let waiting: Vec<Request> =
            (0..100).map(|at| request(at * 300, at * 300 + 5_000)).collect();
        assert_eq!(Filtered::of(&waiting, &windows, covered).kept.len(), 100);
        let quick: Vec<Request> = (0..100).map(|at| request(at * 300, at * 300 + 20)).collect();
        let filtered = Filtered::of(&quick, &windows, covered);
        assert_eq!(filtered.kept.len(), 99, "the one sent at 10,200 us");
        assert_eq!(filtered.removed_requests_share(), 0.01);
    }

    #[test]
    fn short_gaps_stay() {
        assert!(!spinner(1_000, 1_099).is_stall());
        assert!(spinner(1_000, 1_100).is_stall());
    }

    #[test]
    fn overlapping_windows_become_one() {
        let windows = Windows::of(&[spinner(2_000, 2_300), spinner(1_000, 2_100)]);
        assert_eq!(windows.len(), 1);
        // From 1,000 us to 3,200 us.
        assert_eq!(windows.covered(us(0), us(4_400)), 0.5);
        assert_eq!(windows.covered(us(3_000), us(3_400)), 0.5);
    }

    #[test]
    fn a_case_is_invalid_when_stalls_cover_too_much_or_too_unequal_a_share() {
        assert_eq!(invalid(&[("quell", 0.010), ("alone-idle-poll", 0.009)]), None);
        assert!(
            invalid(&[("quell", 0.051), ("alone-idle-poll", 0.05)])
                .is_some_and(|why| why.contains("quell"))
        );
        assert!(invalid(&[("quell", 0.018), ("alone-idle-poll", 0.006)]).is_some());
        assert_eq!(
            invalid(&[("quell", 0.003), ("alone-idle-poll", 0.0)]),
            None,
            "too few to compare"
        );
        assert_eq!(invalid(&[]), None);
    }

    proptest! {
        #[test]
        fn covering_agrees_with_looking_at_every_gap(
            gaps in proptest::collection::vec((0u64..5_000, 100u64..500), 0..20),
            requests in proptest::collection::vec((0u64..6_000, 0u64..800), 0..50),
        ) {
            let gaps: Vec<Gap> = gaps.into_iter().map(|(at, length)| spinner(at, at + length)).collect();
            let windows = Windows::of(&gaps);
            for (intended, latency) in requests {
                let request = request(intended, intended + latency);
                let slow = gaps.iter().any(|gap| {
                    let end = gap.end + (gap.end - gap.start);
                    gap.start <= request.done && request.intended <= end
                });
                prop_assert_eq!(windows.cover(&request), slow);
            }
        }
    }
}
