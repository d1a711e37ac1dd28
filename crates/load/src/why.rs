//! Why requests were slow: a run's slow requests, charged with what a recorder saw meanwhile.

use quell_model::{CoreId, Transitions};
use quell_trace::why::{Bound, Gap, Inquiry, Report, Timeline};

use crate::report::LoadReport;

/// What was recorded during a run.
#[derive(Debug)]
pub struct Evidence {
    /// Who had each core, and what the service's threads did.
    pub timeline: Timeline,
    /// When cores were seen not to run at all.
    pub standstills: Vec<Gap>,
    /// Transitions that were lost.
    pub lost: u64,
}

impl From<Transitions> for Evidence {
    fn from(seen: Transitions) -> Evidence {
        let timeline = Timeline::new(seen.list, &seen.processes, seen.from, seen.to);
        Evidence { timeline, standstills: Vec::new(), lost: seen.lost }
    }
}

impl LoadReport {
    /// What can be asked about the run's requests.
    pub fn inquire(&self, evidence: Evidence) -> Inquiry {
        let core = self.spec.core.unwrap_or(CoreId(0));
        let own = self.stalls.windows.iter().map(|stall| Gap {
            core,
            from: stall.start_ns,
            to: stall.end_ns,
            switched: stall.switched,
        });
        Inquiry::new(evidence.timeline, evidence.standstills, own.collect())
    }

    /// Charges the slow requests of the measured window; lists the slowest.
    pub fn why(&self, evidence: Evidence, bound: Bound, listed: usize) -> Report {
        let lost = evidence.lost;
        let inquiry = self.inquire(evidence);
        let requests = self.samples.iter();
        let requests = requests.map(|one| (one.sent_ns, one.sent_ns + one.latency_ns)).collect();
        Report::of_requests(&inquiry, requests, bound, listed, lost)
    }
}
