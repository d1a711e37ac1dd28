//! Settings of the calling thread and process.
//!
//! They end with the thread, so they do not go through the executor.

use std::io;
use std::process::Command;

use quell_model::{CORES_MAX, CoreSet};
use rustix::mm::{MlockAllFlags, mlockall};

use crate::child;
use crate::sched::calls::{set_own_affinity, set_own_attr};
use crate::sched::{self, Policy, SchedAttr};
use crate::thread::Tid;

/// The calling thread, to the scheduler's system calls.
const SELF: Tid = Tid(0);

/// Puts the calling thread on a rung, with all cores open to it.
///
/// # Errors
/// Those of `sched_setattr(2)`: a cgroup may forbid real-time priority.
pub fn rise_to(rung: SchedAttr) -> io::Result<()> {
    // A parent's affinity is inherited; no single core may keep this thread from running.
    let _ = set_own_affinity(&CoreSet::from_words(&[u64::MAX; CORES_MAX / 64]));
    set_own_attr(&rung)
}

/// Has a child killed by the kernel when the thread that spawns it ends: it never outlives us.
pub fn end_with_this_thread(child: &mut Command) {
    child::end_with_this_thread(child);
}

/// Keeps the calling thread, and the threads it makes from now on, to these cores.
///
/// # Errors
/// When none of them is online or allowed.
pub fn keep_to(cores: &CoreSet) -> io::Result<()> {
    set_own_affinity(cores)
}

/// Gives the calling thread the scheduler's place: these cores and this rung.
///
/// # Errors
/// When the host refuses real-time priority.
pub fn place_scheduler(cores: &CoreSet, rung: &SchedAttr) -> io::Result<()> {
    keep_to(cores)?;
    set_own_attr(rung)
}

/// How the calling thread is scheduled.
///
/// # Errors
/// Those of `sched_getattr(2)`.
pub fn attr() -> io::Result<SchedAttr> {
    sched::attr(SELF)
}

/// Gives the calling thread another rung; its cores stay.
///
/// # Errors
/// Those of `sched_setattr(2)`: a cgroup may forbid real-time priority.
pub fn set_attr(attr: &SchedAttr) -> io::Result<()> {
    set_own_attr(attr)
}

/// Has the calling thread go before other ordinary threads: whoever records what they do must keep up with them all.
/// Programs that it starts begin at nice 0, as it did; where the caller chose a policy or a nice value, that stays.
///
/// # Errors
/// Without the right to it (CAP_SYS_NICE).
pub fn go_before_others() -> io::Result<()> {
    let chosen = sched::attr(SELF)?;
    if chosen.policy != Policy::Other || chosen.nice != 0 {
        return Ok(());
    }
    set_own_attr(&SchedAttr { nice: -20, reset_on_fork: true, ..SchedAttr::OTHER })
}

/// Locks the memory of this process as far as it is in use, now and later: a scheduler that waits for a page
/// cannot do anything about it. Only asked for; refused without CAP_IPC_LOCK.
pub fn lock_memory() {
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    if let Err(err) = mlockall(all) {
        tracing::warn!("memory is not locked ({err}): a page fault can delay a tick");
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn who_goes_before_others_starts_programs_that_do_not() {
        std::thread::spawn(|| {
            super::go_before_others().unwrap();
            let own = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            let nice =
                own.rsplit_once(')').unwrap().1.split_whitespace().nth(16).unwrap().to_owned();
            assert_eq!(nice, "-20");
            let child = std::process::Command::new("nice").output().unwrap();
            assert_eq!(String::from_utf8(child.stdout).unwrap(), "0\n");
        })
        .join()
        .unwrap();
    }
}
