//! When the tail of a service is normal again after an overload: pure.

use quell_model::Nanos;
use quell_report::stats;

use crate::stops::Request;

/// Requests are judged in windows of this length, by their due times.
pub const WINDOW: Nanos = Nanos::from_millis(50);
/// So many windows in a row have to be normal.
pub const WINDOWS: usize = 4;
/// The quantile of each window. A window holds some ten requests, so this is nearly their maximum.
const TAIL: f64 = 0.99;
/// The level of normal windows: this quantile of the windows before the overload, times [`SLACK`]. The median would not
/// do: half of all normal windows lie above it, and their maxima spread widely.
const NORMAL: f64 = 0.95;
const SLACK: f64 = 1.5;

/// The time from the end of an overload until the tail is normal again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recovery {
    /// After this time.
    After(Nanos),
    /// Not within this time, which is all that was observed.
    NotWithin(Nanos),
}

impl Recovery {
    /// The time; at least so long where it was not observed.
    pub fn time(self) -> Nanos {
        match self {
            Recovery::After(time) | Recovery::NotWithin(time) => time,
        }
    }
}

/// Judges requests due from `overload_end` until `end` by those due from `start` until `overload_start`. A window without
/// requests is normal. `None` where no request was due before the overload: there is no normal then.
pub fn recovery(
    requests: &[Request],
    [start, overload_start, overload_end, end]: [Nanos; 4],
) -> Option<Recovery> {
    let mut before: Vec<Nanos> =
        windows(requests, start, overload_start).into_iter().flatten().collect();
    before.sort_unstable();
    let limit = stats::quantile(&before, NORMAL)?.0 as f64 * SLACK;
    let is_normal = |tail: &Option<Nanos>| tail.is_none_or(|tail| tail.0 as f64 <= limit);
    let after: Vec<bool> = windows(requests, overload_end, end).iter().map(is_normal).collect();
    let first = after.windows(WINDOWS).position(|row| row.iter().all(|normal| *normal));
    Some(match first {
        Some(at) => Recovery::After(Nanos(WINDOW.0 * at as u64)),
        None => Recovery::NotWithin(end - overload_end),
    })
}

/// The tail of each whole window.
fn windows(requests: &[Request], from: Nanos, to: Nanos) -> Vec<Option<Nanos>> {
    let mut latencies = vec![Vec::new(); ((to - from).0 / WINDOW.0) as usize];
    for request in requests.iter().filter(|request| request.due >= from) {
        let at = ((request.due - from).0 / WINDOW.0) as usize;
        if let Some(window) = latencies.get_mut(at) {
            window.push(request.done - request.due);
        }
    }
    let tail = |window: &mut Vec<Nanos>| {
        window.sort_unstable();
        stats::quantile(window, TAIL)
    };
    latencies.iter_mut().map(tail).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: [Nanos; 4] =
        [Nanos::ZERO, Nanos::from_secs(1), Nanos::from_secs(2), Nanos::from_secs(4)];

    /// A request each millisecond, its latency in microseconds by its millisecond.
    fn series(latency_us: impl Fn(u64) -> u64) -> Vec<Request> {
        let request = |ms: u64| {
            let due = Nanos::from_millis(ms);
            Request { due, done: due + Nanos::from_micros(latency_us(ms)) }
        };
        (0..4_000).map(request).collect()
    }

    #[test]
    fn backlog_that_clears_recovers_when_it_has_cleared() {
        let requests = series(|ms| if (1_000..2_700).contains(&ms) { 90_000 } else { 500 });
        assert_eq!(recovery(&requests, AT), Some(Recovery::After(Nanos::from_millis(700))));
    }

    #[test]
    fn no_backlog_recovers_at_once() {
        assert_eq!(recovery(&series(|_| 500), AT), Some(Recovery::After(Nanos::ZERO)));
    }

    #[test]
    fn backlog_that_stays_is_not_recovered() {
        let requests = series(|ms| if ms >= 1_000 { 90_000 } else { 500 });
        let all = Recovery::NotWithin(Nanos::from_secs(2));
        assert_eq!(recovery(&requests, AT), Some(all));
        assert_eq!(all.time(), Nanos::from_secs(2));
    }

    #[test]
    fn short_calm_between_late_windows_does_not_count() {
        // Calm from 2,100 to 2,250 ms: three windows.
        let late = |ms: u64| (1_000..2_500).contains(&ms) && !(2_100..2_250).contains(&ms);
        let requests = series(|ms| if late(ms) { 90_000 } else { 500 });
        assert_eq!(recovery(&requests, AT), Some(Recovery::After(Nanos::from_millis(500))));
    }

    #[test]
    fn rare_slow_windows_before_raise_the_level() {
        // One window in ten is slow before, and all are after.
        let requests = series(|ms| if ms >= 2_000 || ms % 500 == 0 { 1_400 } else { 500 });
        assert_eq!(recovery(&requests, AT), Some(Recovery::After(Nanos::ZERO)));
    }

    #[test]
    fn without_requests_before_there_is_no_normal() {
        let mut requests = series(|_| 500);
        requests.retain(|request| request.due >= AT[1]);
        assert_eq!(recovery(&requests, AT), None);
    }
}
