//! Which processes belong to a task.

use quell_control::config::Source;
use quell_observe::procs;

use crate::lane::request;

/// The processes that a source names now. Kernel threads, pid 1, Quell itself and its parents are
/// never among them.
pub fn processes(source: &Source) -> Vec<i32> {
    let found = match source {
        Source::Command(_) => Vec::new(),
        Source::Pid(pid) | Source::Registered(pid) => vec![*pid],
        Source::Match(name) => procs::by_name(name).unwrap_or_default(),
        Source::Cgroup(path) => procs::of_cgroup(path).unwrap_or_default(),
        Source::Lane(lane) => request::processes(lane),
    };
    let ours = procs::self_and_ancestors();
    found
        .into_iter()
        .filter(|pid| *pid > 1 && !ours.contains(pid) && !procs::is_kernel_thread(*pid))
        .collect()
}

/// What starting from a source would do, in words.
pub fn in_words(source: &Source) -> String {
    match source {
        Source::Command(launch) => format!("launch `{}`", launch.command.join(" ")),
        Source::Pid(pid) => format!("adopt process {pid}"),
        Source::Registered(pid) => format!("registered by process {pid}"),
        Source::Match(name) => format!("adopt every process named `{name}`"),
        Source::Cgroup(path) => format!("adopt every process of cgroup {path}"),
        Source::Lane(lane) => {
            format!("have {} members share a core by slices", lane.member.len())
        }
    }
}
