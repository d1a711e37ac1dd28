//! Why requests were slow: a run's slow requests, charged with what a recorder saw meanwhile.

use quell_model::CoreId;
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

impl LoadReport {
    /// Charges the slow requests of the measured window; lists the slowest.
    pub fn why(&self, evidence: Evidence, bound: Bound, listed: usize) -> Report {
        let core = self.spec.core.unwrap_or(CoreId(0));
        let own = self.stalls.windows.iter().map(|stall| Gap {
            core,
            from: stall.start_ns,
            to: stall.end_ns,
            switched: stall.switched,
        });
        let inquiry = Inquiry::new(evidence.timeline, evidence.standstills, own.collect());
        let requests = self.samples.iter();
        let requests = requests.map(|one| (one.sent_ns, one.sent_ns + one.latency_ns)).collect();
        Report::of_requests(&inquiry, requests, bound, listed, evidence.lost)
    }
}
