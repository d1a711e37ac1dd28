//! What can be known to fail before anything is changed.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use quell_act::backend::{Layout, check_rt};
use quell_control::config::{
    BackEndKind, HostConfig, LatencySource, ObserverKind, Source, TaskConfig,
};
use quell_model::Class;
use quell_observe::procs;

use super::sources;

use crate::lane::LaneRequest;
use crate::launch::find_program;

/// Checks the sources of tasks that are to start. `throttled`: RT throttling is not switched off before they do, so that
/// real-time budgets of cgroups count.
///
/// # Errors
/// A sentence that names the file, the task and the remedy.
pub fn preflight(
    tasks: &[&TaskConfig],
    host: &HostConfig,
    layout: &Layout,
    throttled: bool,
    file: &str,
) -> Result<(), String> {
    for task in tasks {
        source(&task.source)
            .and_then(|()| lane(task, host))
            .and_then(|()| latency(task))
            .and_then(|()| if throttled { realtime(task, host, layout) } else { Ok(()) })
            .map_err(|what| format!("{file}: task `{}`: {what}", task.name))?;
    }
    Ok(())
}

/// Tries real-time priority in those cgroups of an LC task's processes that have a budget of it.
fn realtime(task: &TaskConfig, host: &HostConfig, layout: &Layout) -> Result<(), String> {
    let wanted = task.class == Class::LatencyCritical && host.back_end == BackEndKind::Elevation;
    let Some(cpu) = layout.cpu.as_ref().filter(|_| wanted) else { return Ok(()) };
    // A process that ended meanwhile needs no priority.
    let group_of = |pid| Layout::group_of(Path::new("/"), cpu, "cpu", pid).ok();
    let groups: BTreeSet<PathBuf> =
        sources::processes(&task.source).into_iter().filter_map(group_of).collect();
    let budgeted = groups.iter().filter(|group| group.join("cpu.rt_runtime_us").exists());
    budgeted.into_iter().try_for_each(|group| check_rt(group).map_err(|err| err.to_string()))
}

fn source(source: &Source) -> Result<(), String> {
    match source {
        Source::Command(launch) => program(&launch.command, launch.cwd.as_deref()),
        Source::Pid(pid) | Source::Registered(pid) => adoptable(*pid),
        Source::Lane(lane) => {
            LaneRequest::check(lane).map(|_| ()).map_err(|err| format!("{err:#}"))
        }
        // These may match nothing yet: processes that start later are adopted then.
        Source::Match(_) => Ok(()),
        Source::Cgroup(path) => procs::of_cgroup(path).map(|_| ()).map_err(|err| {
            format!("cgroup {path}: {err}; `cat /proc/PID/cgroup` shows the path of a process")
        }),
    }
}

/// What a lane takes of the whole host.
fn lane(task: &TaskConfig, host: &HostConfig) -> Result<(), String> {
    match (&task.source, host.observer, host.back_end) {
        (Source::Lane(_), ObserverKind::Proc, _) => {
            Err("a lane sees who sleeps with BPF: observer = \"auto\" or \"bpf\"".to_owned())
        }
        (Source::Lane(_), _, BackEndKind::Cpuset) => {
            Err("members of a lane are switched by priority: backend = \"elevation\"".to_owned())
        }
        _ => Ok(()),
    }
}

fn latency(task: &TaskConfig) -> Result<(), String> {
    match task.latency.as_ref().map(|latency| &latency.source) {
        Some(LatencySource::Command(command)) => {
            program(command, None).map_err(|what| format!("its latency: {what}"))
        }
        _ => Ok(()),
    }
}

fn program(command: &[String], cwd: Option<&Path>) -> Result<(), String> {
    let program = command.first().map_or("", String::as_str);
    find_program(program, cwd)
        .map(|_| ())
        .ok_or_else(|| format!("there is no program `{program}`; give its path or install it"))
}

fn adoptable(pid: i32) -> Result<(), String> {
    if procs::self_and_ancestors().contains(&pid) {
        return Err(format!(
            "process {pid} is Quell itself or a parent of it, and those are never tasks"
        ));
    }
    if !procs::exists(pid) {
        return Err(format!("there is no process {pid}; it may have ended"));
    }
    if procs::is_kernel_thread(pid) {
        return Err(format!("process {pid} is a kernel thread, and those are never tasks"));
    }
    Ok(())
}
