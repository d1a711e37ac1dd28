//! What can be known to fail before anything is changed.

use quell_control::config::{Source, TaskConfig};
use quell_linux::observe::procs;

use crate::launch::find_program;

/// Checks the sources of tasks that are to start.
///
/// # Errors
/// A sentence that names the file, the task and the remedy.
pub fn preflight(tasks: &[&TaskConfig], file: &str) -> Result<(), String> {
    for task in tasks {
        if let Err(what) = source(&task.source) {
            return Err(format!("{file}: task `{}`: {what}", task.name));
        }
    }
    Ok(())
}

fn source(source: &Source) -> Result<(), String> {
    match source {
        Source::Command(launch) => {
            let program = &launch.command[0];
            find_program(program, launch.cwd.as_deref()).map(|_| ()).ok_or_else(|| {
                format!("there is no program `{program}`; give its path or install it")
            })
        }
        Source::Pid(pid) => adoptable(*pid),
        // These may match nothing yet: processes that start later are adopted then.
        Source::Match(_) => Ok(()),
        Source::Cgroup(path) => procs::of_cgroup(path).map(|_| ()).map_err(|err| {
            format!("cgroup {path}: {err}; `cat /proc/PID/cgroup` shows the path of a process")
        }),
    }
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
