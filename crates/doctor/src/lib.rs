//! What this host can do, and how to enable the rest.
//!
//! [`examine`] tries rather than asks wherever it can: a child process requests real-time scheduling,
//! a BPF program is loaded and attached, a counter is opened. Each check is one small function from
//! the host's files, or from what was tried, to a [`Finding`], so that tests run it on made-up hosts.
//!
//! Nothing stays changed. Without root it says what could not be tried.

mod cgroups;
mod cores;
mod finding;
mod host;
mod interrupts;
pub(crate) mod probe;
mod rights;
mod scheduling;
mod signals;
mod table;
#[cfg(test)]
mod tests;
mod timing;

use std::path::PathBuf;
use std::time::Duration;

pub use finding::{Evidence, Finding, Status, Topic};
pub use quell_model::CoreSet;
pub use table::Table;

use host::Host;
use quell_act::{Ladder, try_fifo};
use quell_observe::memory::{Sources, Wanted};

/// What to examine.
#[derive(Clone, Debug)]
pub struct Options {
    /// A cgroup directory in which real-time scheduling is tried as well.
    pub cgroup: Option<PathBuf>,
    /// The cores that Quell is to manage; all but the lowest-numbered physical core by default.
    pub managed: Option<CoreSet>,
    /// For how long to look for stalls by spinning on one core.
    pub spin: Duration,
    /// The daemon's run directory, whether or not it exists.
    pub run_dir: PathBuf,
}

/// Examines this host; takes about as long as [`Options::spin`]. Findings come by topic, and each id
/// comes once.
pub fn examine(options: &Options) -> Vec<Finding> {
    let host = Host::at("/");
    let managed = options.managed.unwrap_or_else(|| cores::default_managed(&host));
    let mut findings = vec![scheduling::realtime_here(&host, &try_fifo(None))];
    if let Some(cgroup) = &options.cgroup {
        let tried = try_fifo(Some(&cgroup.join("cgroup.procs")));
        findings.push(scheduling::realtime_there(&host, cgroup, &tried));
    }
    findings.extend(by_files(&host, &managed));
    findings.push(rights::run_directory(&host, &options.run_dir));
    findings.extend([
        scheduling::ladder(&Ladder::for_this_host()),
        signals::bpf(&probe::attach_observer()),
        signals::thread_identity(&probe::open_thread_pidfd()),
        signals::counters(&host, &probe::open_cycle_counter()),
        signals::memory(&Sources::find(&Wanted::Any, &managed)),
        timing::timers(timing::measure_overshoot().as_ref()),
        timing::stalls(&timing::spin(&host, options.spin)),
    ]);
    findings.sort_by_key(|finding| finding.topic);
    findings
}

/// The checks that only read files.
fn by_files(host: &Host, managed: &CoreSet) -> Vec<Finding> {
    let mut findings = vec![
        scheduling::throttling(host),
        scheduling::preemption(host),
        cores::managed(host, managed),
        cores::siblings(host),
        cores::nodes(host),
        signals::btf(host),
        signals::tracefs(host),
        signals::resctrl(host),
        signals::sched_ext(host),
        signals::modules(host),
        interrupts::softirq(host, managed),
        interrupts::threads(host),
        interrupts::placement(host, managed),
        cgroups::layout(host),
        cgroups::freezer(host),
        cgroups::cpuset(host),
        rights::locked_memory(host),
        timing::hypervisor(host),
        timing::clock(host),
        timing::frequency(host),
        timing::idle(host),
    ];
    findings.extend(rights::capabilities(host));
    findings
}
