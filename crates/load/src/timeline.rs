//! Rates and latencies over the time of a run.

use quell_model::Nanos;
use serde::{Deserialize, Serialize};

use crate::latency::{Latency, Recorder};
use crate::report::Sample;

/// Most points of a timeline.
const POINTS_MAX: u64 = 120;
/// Shorter intervals hold too few requests for a tail.
const INTERVAL_MIN: Nanos = Nanos::from_millis(10);

/// An interval of a run. All figures are of the measured window's requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimePoint {
    /// Its start.
    pub start_ns: Nanos,
    /// Its end.
    pub end_ns: Nanos,
    /// Requests due in it, a second.
    pub offered_rps: f64,
    /// Replies that came in it, a second.
    pub served_rps: f64,
    /// Latencies of the requests due in it; all zero where there were none (`count`).
    pub latency: Latency,
}

/// The points of a window, evenly spaced but for the last.
///
/// A sample that ends at `deadline` or later had no reply.
pub(crate) fn timeline(
    samples: &[Sample],
    (start, end): (Nanos, Nanos),
    deadline: Nanos,
) -> Vec<TimePoint> {
    let interval = interval(end.since(start));
    let count = end.since(start).0.div_ceil(interval.0) as usize;
    let mut due: Vec<Vec<Nanos>> = vec![Vec::new(); count];
    let mut served = vec![0u64; count];
    let index = |at: Nanos| (at.since(start).0 / interval.0) as usize;
    for sample in samples {
        if let Some(due) = due.get_mut(index(sample.sent_ns)) {
            due.push(sample.latency_ns);
        }
        let replied = sample.sent_ns + sample.latency_ns;
        if replied < deadline.min(end) {
            served[index(replied)] += 1;
        }
    }
    let mut recorder = Recorder::new();
    let points = due.iter().zip(&served).enumerate().map(|(at, (due, served))| {
        let start_ns = start + Nanos(interval.0 * at as u64);
        let end_ns = end.min(start_ns + interval);
        let seconds = end_ns.since(start_ns).0 as f64 / 1e9;
        recorder.clear();
        due.iter().for_each(|&latency| recorder.record(latency));
        TimePoint {
            start_ns,
            end_ns,
            offered_rps: due.len() as f64 / seconds,
            served_rps: *served as f64 / seconds,
            latency: recorder.summary(),
        }
    });
    points.collect()
}

/// A round time (1, 2 or 5 of a decimal unit) that gives a window no more than [`POINTS_MAX`] points.
fn interval(window: Nanos) -> Nanos {
    let shortest = window.0.div_ceil(POINTS_MAX);
    let mut decade = INTERVAL_MIN.0;
    loop {
        let round = [1, 2, 5].map(|part| part * decade).into_iter().find(|&ns| ns >= shortest);
        match round {
            Some(ns) => return Nanos(ns),
            None => decade *= 10,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_round_and_not_too_many() {
        let of = |ms| interval(Nanos::from_millis(ms)).0 / 1_000_000;
        let windows = [0, 100, 1_200, 1_201, 5_000, 10_000, 60_000, 3_600_000];
        assert_eq!(windows.map(of), [10, 10, 10, 20, 50, 100, 500, 50_000]);
    }

    #[test]
    fn requests_count_where_they_are_due_and_replies_where_they_come() {
        let ms = Nanos::from_millis;
        let start = Nanos::from_secs(9);
        let sample = |due, latency| Sample { sent_ns: start + ms(due), latency_ns: ms(latency) };
        // Window of 25 ms, given up at 40 ms: a late reply, one after the window, and one that never came.
        let samples = [sample(0, 1), sample(1, 2), sample(9, 12), sample(11, 19), sample(24, 16)];
        let points = timeline(&samples, (start, start + ms(25)), start + ms(40));
        let shape: Vec<(u64, u64, f64, f64)> = points
            .iter()
            .map(|p| (p.end_ns.since(p.start_ns).0, p.latency.count, p.offered_rps, p.served_rps))
            .collect();
        assert_eq!(
            shape,
            [
                (10_000_000, 3, 300.0, 200.0),
                (10_000_000, 1, 100.0, 0.0),
                (5_000_000, 1, 200.0, 200.0)
            ]
        );
        assert!((points[0].latency.max_us / 12_000.0 - 1.0).abs() < 0.01);
        assert!((points[0].latency.p50_us / 2_000.0 - 1.0).abs() < 0.01);
    }

    #[test]
    fn a_run_that_ended_at_once_has_no_points() {
        assert!(timeline(&[], (Nanos(5), Nanos(5)), Nanos(5)).is_empty());
    }
}
