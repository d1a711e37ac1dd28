//! The slow ones by cause: shares, and the list behind them.

use std::collections::BTreeMap;
use std::fmt;

use quell_model::Nanos;
use serde::Serialize;

use super::{Blame, Cause, Inquiry};

/// Which windows count as slow.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// Those that took at least so long.
    AtLeast(Nanos),
    /// The slowest share of all (0 to 1), one at least.
    Slowest(f64),
}

/// A cause's part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Share {
    /// The cause, with the name of who was in the way.
    pub cause: String,
    /// The kind of cause: `behind`, `kernel section`, `softirq`, ...
    pub kind: &'static str,
    /// Slow windows of which it is the main cause.
    pub slow: usize,
    /// Their share of all slow windows (0 to 1).
    pub share: f64,
    /// Its share of the time of all slow windows (0 to 1), whether or not it was the main cause.
    pub time_share: f64,
}

/// A slow window.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Slow {
    /// Its begin.
    pub from_ns: u64,
    /// How long it took, in microseconds.
    pub took_us: f64,
    /// The main cause.
    pub cause: String,
    /// The causes' parts in microseconds, longest first.
    pub parts_us: Vec<(String, f64)>,
}

/// Why the slow ones were slow.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// `requests` or `wake-ups`.
    pub of: &'static str,
    /// How many there were in the time that was asked about.
    pub all: u64,
    /// Requests beyond that time, of which nothing can be said.
    pub outside: u64,
    /// Begin of the trace, or of recording, on CLOCK_MONOTONIC: the text counts seconds from it.
    pub origin_ns: u64,
    /// How many of them were slow.
    pub slow: usize,
    /// What counts as slow, in microseconds.
    pub bound_us: f64,
    /// Main causes, the most frequent first.
    pub shares: Vec<Share>,
    /// The slowest, slowest first.
    pub slowest: Vec<Slow>,
    /// Events that were lost: time around them is `unknown`.
    pub lost: u64,
}

impl Report {
    /// Charges the slow ones of some requests, given by intended send time and reply.
    pub fn of_requests(
        inquiry: &Inquiry,
        mut requests: Vec<(Nanos, Nanos)>,
        bound: Bound,
        listed: usize,
        lost: u64,
    ) -> Report {
        let given = requests.len() as u64;
        let (from, to) = inquiry.recorded();
        requests.retain(|(intended, done)| *intended >= from && *done <= to);
        let all = requests.len() as u64;
        requests.sort_by_key(|(intended, done)| std::cmp::Reverse(done.since(*intended)));
        let least = match bound {
            Bound::AtLeast(least) => least,
            Bound::Slowest(share) => {
                let many = (requests.len() as f64 * share).ceil().max(1.0) as usize;
                let last = requests.get(many.min(requests.len()).saturating_sub(1));
                last.map_or(Nanos::ZERO, |(intended, done)| done.since(*intended))
            }
        };
        let slow = requests.iter().take_while(|(intended, done)| done.since(*intended) >= least);
        let charged =
            slow.map(|&(intended, done)| (intended, done, inquiry.request(intended, done)));
        let charged = charged.collect();
        let report = Report::new("requests", all, from, least, charged, listed, lost);
        Report { outside: given - all, ..report }
    }

    /// Charges the slow wake-ups among all waits of the service's threads.
    pub fn of_wake_ups(inquiry: &Inquiry, bound: Nanos, listed: usize, lost: u64) -> Report {
        let all = inquiry.wait_count() as u64;
        let mut slow = inquiry.waits(bound);
        slow.sort_by_key(|(from, to, _)| std::cmp::Reverse(to.since(*from)));
        Report::new("wake-ups", all, inquiry.recorded().0, bound, slow, listed, lost)
    }

    fn new(
        of: &'static str,
        all: u64,
        origin: Nanos,
        bound: Nanos,
        slow: Vec<(Nanos, Nanos, Blame)>,
        listed: usize,
        lost: u64,
    ) -> Report {
        let mut sums: BTreeMap<Cause, (usize, Nanos)> = BTreeMap::new();
        let mut total = Nanos::ZERO;
        for (_, _, blame) in &slow {
            total += blame.total();
            sums.entry(blame.main()).or_default().0 += 1;
            for (cause, time) in blame.causes() {
                sums.entry(cause).or_default().1 += time;
            }
        }
        let mut sums: Vec<_> = sums.into_iter().collect();
        sums.sort_by_key(|(cause, sum)| (std::cmp::Reverse(*sum), *cause));
        let share = |(cause, (count, time)): (Cause, (usize, Nanos))| Share {
            cause: cause.to_string(),
            kind: cause.kind(),
            slow: count,
            share: count as f64 / slow.len().max(1) as f64,
            time_share: time.0 as f64 / total.0.max(1) as f64,
        };
        let one = |(from, to, blame): &(Nanos, Nanos, Blame)| Slow {
            from_ns: from.0,
            took_us: us(to.since(*from)),
            cause: blame.main().to_string(),
            parts_us: blame
                .causes()
                .into_iter()
                .map(|(cause, time)| (cause.to_string(), us(time)))
                .collect(),
        };
        Report {
            of,
            all,
            outside: 0,
            origin_ns: origin.0,
            slow: slow.len(),
            bound_us: us(bound),
            shares: sums.into_iter().map(share).collect(),
            slowest: slow.iter().take(listed).map(one).collect(),
            lost,
        }
    }

    /// The share of slow windows whose main cause is of this kind (0 to 1).
    pub fn share_of(&self, kind: &str) -> f64 {
        let of_kind = self.shares.iter().filter(|share| share.kind == kind);
        // The sum of nothing is -0.
        of_kind.map(|share| share.share).sum::<f64>() + 0.0
    }
}

fn us(time: Nanos) -> f64 {
    time.0 as f64 / 1e3
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { of, all, slow, bound_us, .. } = self;
        writeln!(f, "{slow} of {all} {of} took {bound_us:.0} us or more; their main causes:")?;
        let width = self.shares.iter().map(|share| share.cause.len()).max().unwrap_or(0);
        for share in self.shares.iter().filter(|share| share.slow > 0 || share.time_share > 0.01) {
            writeln!(
                f,
                "  {:<width$}  {:>6}  {:>5.1} %  {:>5.1} % of their time",
                share.cause,
                share.slow,
                share.share * 100.0,
                share.time_share * 100.0
            )?;
        }
        if !self.slowest.is_empty() {
            writeln!(f, "the slowest:")?;
        }
        for slow in &self.slowest {
            let parts: Vec<String> =
                slow.parts_us.iter().map(|(cause, us)| format!("{cause} {us:.0} us")).collect();
            let at = slow.from_ns.saturating_sub(self.origin_ns) as f64 / 1e9;
            writeln!(f, "  {:>9.0} us  at {at:.6} s  {}", slow.took_us, parts.join(", "))?;
        }
        if self.outside > 0 {
            writeln!(f, "{} more {of} lie outside of the time that was asked about", self.outside)?;
        }
        if self.lost > 0 {
            writeln!(f, "{} events were lost: what happened then is unknown", self.lost)?;
        }
        Ok(())
    }
}
