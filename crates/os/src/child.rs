//! What a child does between fork and exec.

use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Signal, set_parent_process_death_signal};

/// Has the kernel kill the child once the thread that spawned it is gone.
pub(crate) fn end_with_this_thread(command: &mut Command) {
    // SAFETY: the closure makes one system call and allocates nothing, not even for its error, so that it may
    // run in the child of a process with threads.
    unsafe {
        command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
    }
}
