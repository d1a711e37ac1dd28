//! What a user would do without lanes: the kernel's own ways to share a core in short slices.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context as _, Result};
use quell_model::{CoreId, CoreSet, Nanos};
use quell_testkit::Undo;

use crate::host::{Policy, pin, set_deadline, set_policy, set_slice};

/// The shortest period that the kernel lets a SCHED_DEADLINE thread have (`sched_deadline_period_min_us`).
const PERIOD: Nanos = Nanos::from_micros(100);
/// What of a period may be promised: 95 % by default, of which the fair server has 5 %.
const PROMISED: f64 = 0.89;
/// The shortest slice of the fair class.
const SLICE: Nanos = Nanos::from_micros(100);

const TIMESLICE: &str = "/proc/sys/kernel/sched_rr_timeslice_ms";
const THROTTLE: &str = "/proc/sys/kernel/sched_rt_runtime_us";
const CPUSETS: &str = "/sys/fs/cgroup/cpuset";
const CPUSET: &str = "/sys/fs/cgroup/cpuset/quell-bench-deadline";

/// A way of the kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// Nothing at all.
    Default,
    /// SCHED_RR with the shortest slice that the host has: a tick.
    RoundRobin,
    /// The fair class with its shortest slice.
    Slice,
    /// SCHED_DEADLINE with its shortest period, on a core of its own scheduling domain.
    Deadline,
}

impl Peer {
    /// All of them.
    pub const ALL: [Peer; 4] = [Peer::Default, Peer::RoundRobin, Peer::Slice, Peer::Deadline];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Default => "linux-default",
            Peer::RoundRobin => "sched-rr",
            Peer::Slice => "eevdf-slice",
            Peer::Deadline => "sched-deadline",
        }
    }

    /// Prepares the host for it, for as long as the value lives.
    ///
    /// # Errors
    /// Why this host cannot do that.
    pub fn arrange(self, core: CoreId) -> Result<Arranged> {
        let undo = match self {
            Peer::Default | Peer::Slice => None,
            Peer::RoundRobin => Some(shortest_timeslice()?),
            Peer::Deadline => Some(own_domain(core)?),
        };
        Ok(Arranged { peer: self, core, _undo: undo })
    }
}

/// A host that is prepared for a peer; put back with the value, or by another process if this one dies.
pub struct Arranged {
    peer: Peer,
    core: CoreId,
    _undo: Option<Undo>,
}

impl Arranged {
    /// Has threads share the core, each with its share of it.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn put(&self, threads: &[(i32, f64)]) -> Result<()> {
        for (tid, share) in threads {
            self.put_one(*tid, *share)
                .with_context(|| format!("{} for thread {tid}", self.peer.name()))?;
        }
        Ok(())
    }

    fn put_one(&self, tid: i32, share: f64) -> io::Result<()> {
        let core = CoreSet::of(self.core);
        match self.peer {
            Peer::Default => pin(tid, &core),
            Peer::RoundRobin => {
                pin(tid, &core)?;
                set_policy(tid, Policy::Rr(1))
            }
            Peer::Slice => {
                pin(tid, &core)?;
                set_slice(tid, SLICE)
            }
            Peer::Deadline => {
                fs::write(format!("{CPUSET}/tasks"), tid.to_string())?;
                let budget = PERIOD.0 as f64 * PROMISED * share;
                set_deadline(tid, Nanos(budget as u64), PERIOD)
            }
        }
    }
}

/// Real-time threads may keep a core for as long as they like, until the value is dropped. By default all of them are stopped
/// for 50 ms of each second (kernels with real-time groups, and those before 6.12), and 5 % of all requests would see that.
/// Ordinary threads have the fair server. `None`: it is so already, or this host has no such setting.
///
/// # Errors
/// When it cannot be set.
pub fn unthrottled() -> Result<Option<Undo>> {
    let Ok(before) = fs::read_to_string(THROTTLE) else { return Ok(None) };
    if before.trim() == "-1" {
        return Ok(None);
    }
    let undo = Undo::with(&format!("echo {} >{THROTTLE}", before.trim()))?;
    fs::write(THROTTLE, "-1").context(THROTTLE)?;
    Ok(Some(undo))
}

/// A value below a tick is taken for the shortest that there is.
fn shortest_timeslice() -> Result<Undo> {
    let before = fs::read_to_string(TIMESLICE).context(TIMESLICE)?;
    let undo = Undo::with(&format!("echo {} >{TIMESLICE}", before.trim()))?;
    fs::write(TIMESLICE, "1").context(TIMESLICE)?;
    Ok(undo)
}

/// A scheduling domain of one core: elsewhere SCHED_DEADLINE threads may not be pinned.
fn own_domain(core: CoreId) -> Result<Undo> {
    let balance = format!("{CPUSETS}/cpuset.sched_load_balance");
    anyhow::ensure!(
        Path::new(&balance).exists(),
        "SCHED_DEADLINE threads may be pinned only in a scheduling domain of their own, which takes cgroup v1 cpusets here"
    );
    let read = |file: &str| fs::read_to_string(format!("{CPUSETS}/{file}")).context(CPUSETS);
    let before = read("cpuset.sched_load_balance")?;
    let undo = Undo::with(&format!(
        "for i in $(seq 100); do \
            [ -d {CPUSET} ] || break; \
            while read -r tid; do echo $tid >{CPUSETS}/tasks; done <{CPUSET}/tasks; \
            rmdir {CPUSET} && break; sleep 0.05; \
        done; echo {} >{balance}",
        before.trim()
    ))?;
    fs::create_dir(CPUSET).context(CPUSET)?;
    let write = |path: &str, text: &str| {
        fs::write(path, text).with_context(|| format!("write {} to {path}", text.trim()))
    };
    write(&format!("{CPUSET}/cpuset.mems"), &read("cpuset.effective_mems")?)?;
    write(&format!("{CPUSET}/cpuset.cpus"), &core.to_string())?;
    write(&balance, "0")?;
    Ok(undo)
}

#[cfg(test)]
mod tests {
    use quell_testkit::{host_lock, skipped};

    use super::*;
    use crate::host::{policy, this_thread};

    #[test]
    fn each_peer_takes_effect_and_leaves_the_host_as_it_was() {
        let _lock = host_lock().unwrap();
        let read = |file: &str| fs::read_to_string(file).unwrap_or_default();
        let balance = format!("{CPUSETS}/cpuset.sched_load_balance");
        for (peer, number) in
            Peer::ALL.into_iter().zip([0, libc::SCHED_RR, 0, libc::SCHED_DEADLINE])
        {
            let before = (read(TIMESLICE), read(&balance));
            let arranged = match peer.arrange(CoreId(0)) {
                Ok(arranged) => arranged,
                Err(why) => {
                    skipped(format!("{}: {why:#}", peer.name()));
                    continue;
                }
            };
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    arranged.put(&[(this_thread(), 0.5)]).unwrap();
                    let (found, _) = policy(0).unwrap();
                    assert_eq!(found & !libc::SCHED_RESET_ON_FORK, number, "{}", peer.name());
                });
            });
            drop(arranged);
            assert_eq!((read(TIMESLICE), read(&balance)), before, "{}", peer.name());
            assert!(!Path::new(CPUSET).exists());
        }
    }
}
