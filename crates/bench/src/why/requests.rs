//! Requests of the load generator, charged with what was recorded meanwhile.

use std::fmt::Write as _;

use quell_load::LoadReport;
use quell_model::{CoreId, Nanos};
use quell_trace::why::{Bound, Evidence, Gap, Inquiry, Report};

/// What can be asked about a run's requests: gaps in the generator's own loop count.
pub fn inquire(load: &LoadReport, evidence: Evidence) -> Inquiry {
    let core = load.spec.core.unwrap_or(CoreId(0));
    let own = load.stalls.windows.iter().map(|stall| Gap {
        core,
        from: stall.start_ns,
        to: stall.end_ns,
        switched: stall.switched,
    });
    Inquiry::new(evidence.timeline, Vec::new(), own.collect())
}

/// Charges the slow requests of the measured window; lists the slowest.
pub fn report(load: &LoadReport, evidence: Evidence, bound: Bound, listed: usize) -> Report {
    let lost = evidence.lost;
    Report::of_requests(&inquire(load, evidence), requests(load).collect(), bound, listed, lost)
}

/// The measured requests, one a line, as `quell why --requests` reads them.
pub fn csv(load: &LoadReport) -> String {
    let mut text = String::from("sent,answered\n");
    for (sent, answered) in requests(load) {
        let _ = writeln!(text, "{},{}", sent.0, answered.0);
    }
    text
}

/// Intended send time and reply of each.
fn requests(load: &LoadReport) -> impl Iterator<Item = (Nanos, Nanos)> {
    load.samples.iter().map(|one| (one.sent_ns, one.sent_ns + one.latency_ns))
}
