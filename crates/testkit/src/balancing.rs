//! A host whose balancer is off, and one on which a core is left alone: by cpusets (cgroup v1).

use std::fs;
use std::io;
use std::path::Path;

use quell_model::{CoreId, CoreSet};

use super::{HostLock, Undo, kernel};

const ROOT: &str = "/sys/fs/cgroup/cpuset";
const FLAG: &str = "/sys/fs/cgroup/cpuset/cpuset.sched_load_balance";
const ASIDE: &str = "/sys/fs/cgroup/cpuset/quell-test-aside";

/// While it lives, the root cpuset's `sched_load_balance` may be off; then it is on.
pub struct Balanced {
    _undo: Undo,
}

impl Balanced {
    /// `None` where there is no such flag, or where somebody turned it off already.
    ///
    /// # Errors
    /// When the process that puts it back cannot be started.
    pub fn after(_: &HostLock) -> io::Result<Option<Balanced>> {
        if !Path::new(FLAG).exists() || fs::read_to_string(FLAG)?.trim() != "1" {
            return Ok(None);
        }
        Ok(Some(Balanced { _undo: Undo::with(&format!("echo 1 >{FLAG}"))? }))
    }
}

impl Drop for Balanced {
    fn drop(&mut self) {
        // Should the other process be gone.
        let _ = fs::write(FLAG, "1");
    }
}

/// While it lives, the root cpuset's `sched_load_balance` is off: no core has a scheduling domain.
pub struct Unbalanced {
    _after: Balanced,
}

impl Unbalanced {
    /// Turns the balancer off; `None` as of [`Balanced::after`].
    ///
    /// # Errors
    /// As [`Balanced::after`], and when the flag cannot be written.
    pub fn begin(lock: &HostLock) -> io::Result<Option<Unbalanced>> {
        let Some(after) = Balanced::after(lock)? else { return Ok(None) };
        fs::write(FLAG, "0")?;
        Ok(Some(Unbalanced { _after: after }))
    }
}

/// While it lives, no program that ran before may use a core, but for this one: whatever else the host does, what a
/// test starts has it to itself.
///
/// The others wait in a cpuset without the core, which those that they start inherit, and which gives each thread
/// its own affinity back.
pub struct Quiet {
    _undo: Undo,
}

impl Quiet {
    /// Takes the other programs off the core; `None` where there are no cpusets for it, no other core, or a kernel
    /// before Linux 6.2, which forgets the affinity that a thread had asked for.
    ///
    /// # Errors
    /// When the cpuset cannot be made.
    pub fn on(core: CoreId, _: &HostLock) -> io::Result<Option<Quiet>> {
        let read = |file: &str| fs::read_to_string(format!("{ROOT}/{file}"));
        if !Path::new(FLAG).exists() || kernel() < (6, 2) {
            return Ok(None);
        }
        let all: CoreSet =
            read("cpuset.effective_cpus")?.trim().parse().map_err(io::Error::other)?;
        let others = all.difference(&CoreSet::of(core));
        if others.is_empty() {
            return Ok(None);
        }
        let undo = Undo::with(&format!(
            "for i in $(seq 100); do \
                [ -d {ASIDE} ] || exit; \
                while read -r pid; do echo $pid >{ROOT}/cgroup.procs; done <{ASIDE}/cgroup.procs; \
                rmdir {ASIDE} && exit; sleep 0.05; \
            done"
        ))?;
        fs::create_dir(ASIDE)?;
        let write = |file: &str, text: &str| fs::write(format!("{ASIDE}/{file}"), text);
        write("cpuset.sched_load_balance", "0")?;
        write("cpuset.cpus", &others.to_string())?;
        write("cpuset.mems", read("cpuset.effective_mems")?.trim())?;
        let own = std::process::id().to_string();
        for pid in read("cgroup.procs")?.lines().filter(|pid| *pid != own) {
            // Kernel threads have no program, and stay. Whoever is gone by now needs not go.
            if fs::read_link(format!("/proc/{pid}/exe")).is_ok() {
                let _ = write("cgroup.procs", pid);
            }
        }
        Ok(Some(Quiet { _undo: undo }))
    }
}
