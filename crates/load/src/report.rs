//! What a run found out.

use quell_model::Nanos;
use serde::{Deserialize, Serialize};

use crate::latency::{Latency, Recorder};
use crate::spec::LoadSpec;
use crate::stall::Stalls;
use crate::timeline::TimePoint;

/// What held the throughput back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LimitedBy {
    /// The generator could not send on time: the latencies contain its own delay, and a lower
    /// throughput is not the server's.
    Generator,
    /// The server answered less than was offered, or stopped reading.
    Server,
    /// Neither: what was offered was answered.
    None,
}

/// Counts of requests that were due in a window.
///
/// `scheduled = sent + unsent` and `sent = answered + errors + unanswered`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Due in the window.
    pub scheduled: u64,
    /// Wholly handed to the kernel.
    pub sent: u64,
    /// Answered before the run ended, misses included.
    pub answered: u64,
    /// Of those answered: found nothing.
    pub misses: u64,
    /// Refused by the server, or lost with their connection.
    pub errors: u64,
    /// Sent, but without a reply when the run ended.
    pub unanswered: u64,
    /// Never wholly sent: the server did not read, the connections were lost, or the generator had no
    /// time before the run ended.
    pub unsent: u64,
    /// Sent more than 5 us after they were due, or not before the run ended, because the generator
    /// was late.
    pub late: u64,
    /// Due on a connection that the server had not drained: late because of the server.
    pub blocked: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, other: &Totals) {
        self.scheduled += other.scheduled;
        self.sent += other.sent;
        self.answered += other.answered;
        self.misses += other.misses;
        self.errors += other.errors;
        self.unanswered += other.unanswered;
        self.unsent += other.unsent;
        self.late += other.late;
        self.blocked += other.blocked;
    }
}

/// One step of the load, or the whole measured window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepReport {
    /// Its start.
    pub start_ns: Nanos,
    /// Its end.
    pub end_ns: Nanos,
    /// Rate that was asked for: the mean over bursts, traces, and steps for the whole window.
    pub target_rps: f64,
    /// Requests due in it, a second.
    pub offered_rps: f64,
    /// Replies that came within it, a second.
    pub achieved_rps: f64,
    /// Counts.
    pub totals: Totals,
    /// From the intended send time to the reply. A request without a reply counts with its age at the
    /// end of the run, a lower bound: losing requests cannot improve the tail.
    pub latency: Latency,
    /// The same of all but the long requests, where the workload has such (`bimodal`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub short: Option<Latency>,
    /// From the intended send time to the write, where the generator was the cause.
    pub lateness: Latency,
    /// From the intended send time to the reply's arrival by the kernel's stamp, where it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<Latency>,
}

/// The generator itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GeneratorReport {
    /// Share of its time (0 to 1) spent sending and receiving; the rest it waited.
    pub busy_share: f64,
    /// Share of the time that it did not sleep (0 to 1) in which it had a core: the rest went to others.
    pub running_share: f64,
    /// Share of its turns of the loop that sent something, and sent it late (0 to 1).
    pub late_iterations_share: f64,
    /// Requests in one write, on average.
    pub requests_per_write: f64,
    /// CPU time it used.
    pub cpu_ns: Nanos,
    /// Share of its time (0 to 1) that it slept.
    #[serde(default)]
    pub slept_share: f64,
    /// What 99 % of its wake-ups took, if it may sleep.
    #[serde(default)]
    pub wake_up_p99_ns: Nanos,
}

/// One request: when it was due, and how long its reply took from then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Intended send time.
    pub sent_ns: Nanos,
    /// Until the reply, or until the end of the run if none came.
    pub latency_ns: Nanos,
}

/// The result of a run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LoadReport {
    /// What was asked for.
    pub spec: LoadSpec,
    /// The whole measured window.
    pub overall: StepReport,
    /// Each step.
    pub steps: Vec<StepReport>,
    /// The measured window in short intervals, made of `samples`.
    pub timeline: Vec<TimePoint>,
    /// What held the throughput back.
    pub limited_by: LimitedBy,
    /// Why, in one sentence.
    pub limited_because: String,
    /// The generator's own load.
    pub generator: GeneratorReport,
    /// Gaps in the generator's loop.
    pub stalls: Stalls,
    /// Connections that broke.
    pub connections_lost: usize,
    /// Times that the server ended a connection and another one took its place.
    pub connections_reopened: u64,
    /// Why the run ended before its time, if it did.
    pub ended_early: Option<String>,
    /// Requests of the window that found no room in `samples`.
    pub samples_missing: u64,
    /// The requests of the measured window in the order of their replies; not serialised.
    #[serde(skip)]
    pub samples: Vec<Sample>,
    /// The latencies behind `overall.latency`; not serialised.
    #[serde(skip)]
    pub recorder: Recorder,
}

/// More than this share of late requests means that the generator is the limit.
const LATE_SHARE_MAX: f64 = 0.5;
/// Less than this share of the offered rate means that somebody is the limit.
const ACHIEVED_SHARE_MIN: f64 = 0.99;

/// Who was the limit, and why.
pub(crate) fn verdict(overall: &StepReport, generator: &GeneratorReport) -> (LimitedBy, String) {
    let totals = &overall.totals;
    if totals.scheduled == 0 {
        return (LimitedBy::None, "nothing was offered".into());
    }
    let late = totals.late as f64 / totals.scheduled as f64;
    let achieved = overall.achieved_rps / overall.offered_rps;
    let (limited_by, what) = if late > LATE_SHARE_MAX {
        let what = format!("{:.0} % of the requests were sent late", late * 100.0);
        (LimitedBy::Generator, what)
    } else if achieved < ACHIEVED_SHARE_MIN {
        let what = format!("{:.1} % of the offered rate was answered", achieved * 100.0);
        (LimitedBy::Server, what)
    } else {
        (LimitedBy::None, "the offered rate was answered".into())
    };
    let busy = generator.busy_share * 100.0;
    let running = generator.running_share * 100.0;
    let reason = format!(
        "{what}; the generator had a core {running:.0} % and was busy {busy:.0} % of the time"
    );
    (limited_by, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(totals: Totals, achieved_rps: f64) -> StepReport {
        StepReport {
            start_ns: Nanos(0),
            end_ns: Nanos::from_secs(1),
            target_rps: 1_000.0,
            offered_rps: 1_000.0,
            achieved_rps,
            totals,
            latency: Latency::default(),
            short: None,
            lateness: Latency::default(),
            received: None,
        }
    }

    fn judged(late: u64, achieved_rps: f64) -> LimitedBy {
        let totals = Totals { scheduled: 1_000, late, ..Totals::default() };
        verdict(&part(totals, achieved_rps), &GeneratorReport::default()).0
    }

    #[test]
    fn the_verdict_names_who_was_short() {
        assert_eq!(judged(100, 999.0), LimitedBy::None);
        assert_eq!(judged(100, 900.0), LimitedBy::Server);
        assert_eq!(judged(600, 999.0), LimitedBy::Generator);
        assert_eq!(judged(600, 900.0), LimitedBy::Generator, "its delay comes first");
        let nothing = part(Totals::default(), 0.0);
        assert_eq!(verdict(&nothing, &GeneratorReport::default()).0, LimitedBy::None);
    }
}
