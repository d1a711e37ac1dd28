//! What the hypervisor did to a measurement, by one rule for every system: pure.
//!
//! A virtual core that its hypervisor does not run delays every request on it, and no scheduler inside can help. A timer
//! interrupts each core all the time, the client's and the service's, in every system: it comes in user code, system
//! calls and softirqs alike, so one that comes [`STOP_MIN`] late shows a stop, whichever thread had the core. One that finds the
//! core idle shows none, for a halted core takes its time to wake for a timer; nor do times in which requests were answered
//! ([`confirmed`]). What a scheduler does (a throttled SCHED_DEADLINE
//! thread, a core that a thread of Quell keeps) delays no interrupt.
//!
//! Requests are left out from a stop until the service's queue is empty, but for no longer than the stop explains: a service
//! that waits 200 ms for its core does not owe that to a stop of 0.5 ms meanwhile. Figures with all requests stand beside.

use quell_model::{CoreId, Nanos};
use serde::{Deserialize, Serialize};

/// Interrupts later than this show a stop.
pub const STOP_MIN: Nanos = Nanos::from_micros(500);

/// The backlog of a stop clears within so many times its length: nine at a load of 90 %.
const BACKLOG_MAX: u64 = 9;

/// A time in which a core was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoreStop {
    /// Which core.
    pub core: CoreId,
    /// The last interrupt before.
    pub start: Nanos,
    /// The first one after.
    pub end: Nanos,
}

/// A request by its times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// When it should have been sent.
    pub due: Nanos,
    /// When its answer was complete.
    pub done: Nanos,
}

/// The largest share of the requests that stops may leave out.
const EXCLUDED_MAX: f64 = 0.1;

/// Latencies of a measurement, ascending.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Latencies {
    /// Of every request.
    pub raw: Vec<Nanos>,
    /// Of those that no stop met.
    pub filtered: Vec<Nanos>,
}

/// Times that do not count: ascending and disjoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Windows(Vec<(Nanos, Nanos)>);

impl Windows {
    /// From each stop until the first moment after it at which no request waits for its answer, or its backlog must have
    /// cleared.
    pub fn of(stops: &[CoreStop], requests: &[Request]) -> Windows {
        let busy = merged(requests.iter().map(|request| (request.due, request.done)).collect());
        let window = |stop: &CoreStop| {
            let at = busy.partition_point(|(_, end)| *end < stop.end);
            let empty = busy.get(at).filter(|(start, _)| *start <= stop.end);
            let cleared = stop.end + Nanos((stop.end - stop.start).0.saturating_mul(BACKLOG_MAX));
            (stop.start, empty.map_or(stop.end, |(_, end)| (*end).min(cleared)))
        };
        Windows(merged(stops.iter().map(window).collect()))
    }

    /// Whether at least half of a request's wait lies within them.
    pub fn explain(&self, request: &Request) -> bool {
        let first = self.0.partition_point(|(_, end)| *end < request.due);
        let met = self.0[first..].iter().take_while(|(start, _)| *start <= request.done);
        let within =
            |&(start, end): &(Nanos, Nanos)| end.min(request.done) - start.max(request.due);
        let covered: Option<Nanos> = met.map(within).reduce(|sum, part| sum + part);
        covered.is_some_and(|covered| covered.0.saturating_mul(2) >= (request.done - request.due).0)
    }

    /// The latencies with and without requests whose wait they explain.
    pub fn sort(&self, requests: &[Request]) -> Latencies {
        let latency = |request: &Request| request.done - request.due;
        let mut raw: Vec<Nanos> = requests.iter().map(latency).collect();
        let counted = requests.iter().filter(|request| !self.explain(request));
        let mut filtered: Vec<Nanos> = counted.map(latency).collect();
        raw.sort_unstable();
        filtered.sort_unstable();
        Latencies { raw, filtered }
    }
}

impl Latencies {
    /// Share of the requests that were left out.
    pub fn excluded_share(&self) -> f64 {
        (self.raw.len() - self.filtered.len()) as f64 / self.raw.len().max(1) as f64
    }

    /// Those that count. Stops leave out a few requests in a hundred where the queue empties soon after. Where it is more
    /// than [`EXCLUDED_MAX`] the queue does not empty, which is the doing of the system: all count.
    pub fn counted(&self) -> &[Nanos] {
        if self.excluded_share() > EXCLUDED_MAX { &self.raw } else { &self.filtered }
    }
}

/// What of these stops a request waited in without a sign of life: parts of at least [`STOP_MIN`] from when one was due,
/// between the answers. An answer shows that the client's core and the service's ran. A halted core's timer may come
/// milliseconds late, and finds the thread that a request woke rather than an idle core: all was well then.
pub fn confirmed(stops: &[CoreStop], requests: &[Request]) -> Vec<CoreStop> {
    let mut by_end: Vec<Request> = requests.to_vec();
    by_end.sort_unstable_by_key(|request| request.done);
    // The earliest of those that are not answered before the one at this place.
    let mut waits_since: Vec<Nanos> = by_end.iter().map(|request| request.due).collect();
    for at in (1..waits_since.len()).rev() {
        waits_since[at - 1] = waits_since[at - 1].min(waits_since[at]);
    }
    let mut parts = Vec::new();
    for stop in stops {
        let first = by_end.partition_point(|request| request.done <= stop.start);
        let mut from = stop.start;
        for (request, waits_since) in by_end[first..].iter().zip(&waits_since[first..]) {
            let (start, end) = (from.max(*waits_since), request.done.min(stop.end));
            if end.0 >= start.0.saturating_add(STOP_MIN.0) {
                parts.push(CoreStop { start, end, ..*stop });
            }
            if request.done >= stop.end {
                break;
            }
            from = request.done;
        }
    }
    parts
}

/// The share of the time from `start` to `end` in which at least one core was stopped.
pub fn stopped_share(stops: &[CoreStop], start: Nanos, end: Nanos) -> f64 {
    let spans = merged(stops.iter().map(|stop| (stop.start, stop.end)).collect());
    let within = spans.iter().map(|&(from, to)| to.min(end) - from.max(start));
    let stopped = within.fold(Nanos::ZERO, |sum, time| sum + time);
    stopped.0 as f64 / (end - start).0.max(1) as f64
}

/// Spans that touch become one.
fn merged(mut spans: Vec<(Nanos, Nanos)>) -> Vec<(Nanos, Nanos)> {
    spans.sort_unstable();
    let mut merged: Vec<(Nanos, Nanos)> = Vec::new();
    for (start, end) in spans {
        match merged.last_mut() {
            Some(last) if start <= last.1 => last.1 = last.1.max(end),
            _ => merged.push((start, end)),
        }
    }
    merged
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn us(micros: u64) -> Nanos {
        Nanos::from_micros(micros)
    }

    fn stop(start: u64, end: u64) -> CoreStop {
        CoreStop { core: CoreId(1), start: us(start), end: us(end) }
    }

    fn request(due: u64, done: u64) -> Request {
        Request { due: us(due), done: us(done) }
    }

    #[test]
    fn a_stop_lasts_until_the_queue_is_empty() {
        // A backlog until 3,300 us; then all is as before.
        let requests = [
            request(100, 120),
            request(1_500, 3_050),
            request(2_500, 3_100),
            request(3_090, 3_300),
            request(3_400, 3_420),
        ];
        let windows = Windows::of(&[stop(1_000, 3_000)], &requests);
        let latencies = windows.sort(&requests);
        assert_eq!(latencies.raw.len(), 5);
        assert_eq!(latencies.filtered, [us(20), us(20)]);
        assert!((latencies.excluded_share() - 0.6).abs() < 1e-9);
    }

    #[test]
    fn where_the_queue_never_empties_all_requests_count() {
        let requests = |wait: u64| -> Vec<Request> {
            let latency = |due: u64| if due < 10_000 { 20 } else { wait };
            (0..1_000).map(|n| n * 100).map(|due| request(due, due + latency(due))).collect()
        };
        let counted = |wait: u64| {
            let requests = requests(wait);
            let stops: Vec<CoreStop> = (0..5).map(|n| stop(n * 10_000, n * 10_000 + 600)).collect();
            let latencies = Windows::of(&stops, &requests).sort(&requests);
            (latencies.counted().len(), latencies.counted().last().copied())
        };
        // Seven requests meet each stop; the others are alone.
        assert_eq!(counted(20), (965, Some(us(20))));
        // From the second stop on there is always one that waits.
        assert_eq!(counted(5_000), (1_000, Some(us(5_000))));
    }

    #[test]
    fn a_stop_without_requests_costs_none() {
        let requests = [request(100, 120), request(3_400, 3_420)];
        let windows = Windows::of(&[stop(1_000, 3_000)], &requests);
        assert_eq!(windows.sort(&requests).excluded_share(), 0.0);
    }

    #[test]
    fn a_request_that_waited_as_the_stop_began_does_not_count() {
        let requests = [request(900, 3_010)];
        assert!(Windows::of(&[stop(1_000, 3_000)], &requests).explain(&requests[0]));
    }

    #[test]
    fn a_short_stop_does_not_excuse_a_long_wait() {
        // A service that does not get its core for 200 ms; within that time one core stops for 0.5 ms.
        let requests: Vec<Request> = (0..200).map(|n| request(n * 1_000, 200_000)).collect();
        let latencies = Windows::of(&[stop(100_000, 100_500)], &requests).sort(&requests);
        let left_out = latencies.raw.len() - latencies.filtered.len();
        assert_eq!((left_out, latencies.filtered.last()), (0, Some(&us(200_000))));
    }

    #[test]
    fn what_is_answered_meanwhile_shows_that_the_core_ran() {
        // A halted core whose timer came late: two requests were served at once.
        let served = [request(1_200, 1_230), request(2_500, 2_540)];
        assert_eq!(confirmed(&[stop(1_000, 3_000)], &served), []);
        // It ran until 1,230 us; then a request waited for the end of the stop.
        let waited = [request(1_200, 1_230), request(1_400, 3_050), request(2_900, 3_060)];
        assert_eq!(confirmed(&[stop(1_000, 3_000)], &waited), [stop(1_400, 3_000)]);
        // Outstanding as the stop began.
        let before = [request(900, 3_010)];
        assert_eq!(confirmed(&[stop(1_000, 3_000)], &before), [stop(1_000, 3_000)]);
        assert_eq!(confirmed(&[stop(1_000, 3_000)], &[]), []);
    }

    #[test]
    fn cores_that_stop_together_count_once() {
        let stops = [stop(1_000, 3_000), CoreStop { core: CoreId(0), ..stop(2_000, 4_000) }];
        assert_eq!(stopped_share(&stops, us(0), us(10_000)), 0.3);
        assert_eq!(stopped_share(&stops, us(3_500), us(4_500)), 0.5);
        assert_eq!(stopped_share(&[], us(0), us(1)), 0.0);
    }

    proptest! {
        /// Parts lie within their stops, are long enough, and no request is answered within one.
        #[test]
        fn no_request_is_answered_within_a_confirmed_stop(
            stops in proptest::collection::vec((0u64..9_000, 500u64..3_000), 0..5),
            requests in proptest::collection::vec((0u64..9_000, 1u64..2_000), 0..60),
        ) {
            let stops: Vec<CoreStop> =
                stops.into_iter().map(|(at, length)| stop(at, at + length)).collect();
            let requests: Vec<Request> =
                requests.into_iter().map(|(at, length)| request(at, at + length)).collect();
            for part in confirmed(&stops, &requests) {
                prop_assert!(stops.iter().any(|stop| stop.start <= part.start && part.end <= stop.end));
                prop_assert!(part.end - part.start >= STOP_MIN);
                let within = |one: &Request| part.start < one.done && one.done < part.end;
                prop_assert!(!requests.iter().any(within));
            }
        }

        /// Whatever stops there are: who waits within one alone is left out, and who is left out waited in one's busy period, no
        /// longer than its stops explain.
        #[test]
        fn what_is_left_out_is_what_stops_explain(
            stops in proptest::collection::vec((0u64..5_000, 1u64..400), 0..8),
            requests in proptest::collection::vec((0u64..6_000, 1u64..300), 0..60),
        ) {
            let stops: Vec<CoreStop> =
                stops.into_iter().map(|(at, length)| stop(at, at + length)).collect();
            let requests: Vec<Request> =
                requests.into_iter().map(|(at, length)| request(at, at + length)).collect();
            let windows = Windows::of(&stops, &requests);
            let length = |stop: &CoreStop| (stop.end - stop.start).0;
            let busy = |at: Nanos| requests.iter().any(|one| one.due <= at && at <= one.done);
            for one in &requests {
                let within = stops.iter().any(|stop| stop.start <= one.due && one.done <= stop.end);
                // The queue was never empty between the stop and the request.
                let behind = |stop: &&CoreStop| {
                    stop.start <= one.done
                        && (stop.end.0..=one.due.0).step_by(500).all(|at| busy(Nanos(at)))
                };
                let met: u64 = stops.iter().filter(behind).map(length).sum();
                prop_assert!(windows.explain(one) || !within);
                prop_assert!(!windows.explain(one) || (one.done - one.due).0 <= 2 * (1 + BACKLOG_MAX) * met);
            }
        }
    }
}
