//! The crash tests' stand-in for a daemon: changes everything that the executor can change, all the time.
//!
//! `quell-rig run RUN_DIR SEED PID...` changes threads of the sessions of the processes PID, settings and
//! cgroups until SIGTERM, then gives everything back. `quell-rig guardian` is its guardian, `quell-rig release
//! RUN_DIR` restores what it left.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use quell_act::{
    ActError, Applied, Executor, Journal, Ladder, Mode, Setting, SwitchHandle, recover_stale,
};
use quell_daemon::guardian::{self, Guardians};
use quell_model::{CoreSet, Rung};
use quell_os::clock;
use quell_os::sched::SchedAttr;
use quell_os::{ThreadRef, Tid};

fn main() -> Result<ExitCode> {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    match args.first().and_then(|verb| verb.to_str()) {
        Some("guardian") => return Ok(guardian::main(&args[1..])),
        Some("release") if args.len() == 2 => match recover_stale(Path::new(&args[1]))? {
            Some(report) => println!("{report}"),
            None => println!("nothing to restore"),
        },
        Some("run") if args.len() > 3 => {
            let seed = args[2].to_str().and_then(|seed| seed.parse().ok()).context("SEED")?;
            let roots: Vec<i32> =
                args[3..].iter().filter_map(|pid| pid.to_str()?.parse().ok()).collect();
            run(Path::new(&args[1]), seed, &roots)?;
        }
        _ => bail!("usage: quell-rig run RUN_DIR SEED PID... | guardian | release RUN_DIR"),
    }
    Ok(ExitCode::SUCCESS)
}

/// xorshift64*: which change comes next.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % sides
    }
}

fn run(run_dir: &Path, seed: u64, roots: &[i32]) -> Result<()> {
    recover_stale(run_dir)?;
    let mut executor = Executor::open(Journal::create(run_dir)?, Mode::Live)?;
    let stop = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(libc::SIGTERM, Arc::clone(&stop))?;
    let mut guardians = Guardians::spawn(executor.journal(), executor.gate())?;
    let mut rig = Rig {
        dice: Dice(seed | 1),
        ladder: Ladder::for_this_host()?,
        cores: executor.possible_cores(),
        sessions: roots.iter().filter_map(|root| session(*root)).collect(),
        known: HashSet::new(),
        handles: Vec::new(),
        groups: [
            PathBuf::from(format!("/sys/fs/cgroup/freezer/quell-crash-{}", roots[0])),
            PathBuf::from(format!("/sys/fs/cgroup/unified/quell-crash-{}", roots[0])),
        ],
    };
    println!("ready");
    // Relaxed: the flag stands alone.
    while !stop.load(Ordering::Relaxed) {
        guardians.tick(clock::now());
        rig.discover(&mut executor);
        for _ in 0..20 {
            rig.change(&mut executor)?;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    let report = executor.close()?;
    println!("{report}");
    guardians.dismiss();
    if !report.is_complete() {
        bail!("not everything was given back: {report}");
    }
    Ok(())
}

struct Rig {
    dice: Dice,
    ladder: Ladder,
    cores: CoreSet,
    sessions: Vec<i32>,
    known: HashSet<ThreadRef>,
    handles: Vec<SwitchHandle>,
    groups: [PathBuf; 2],
}

impl Rig {
    /// Learns of new threads of the victims and forgets old ones.
    fn discover(&mut self, executor: &mut Executor) {
        let mut now = HashSet::new();
        for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else {
                continue;
            };
            if session(pid).is_some_and(|session| self.sessions.contains(&session)) {
                now.extend(ThreadRef::all_of(Tid(pid)).unwrap_or_default());
            }
        }
        self.known.difference(&now).for_each(|thread| executor.forget(thread));
        self.known = now;
    }

    /// Makes one change. Victims exit at any time, and others of them change themselves; nothing else may fail.
    fn change(&mut self, executor: &mut Executor) -> Result<()> {
        let at = self.dice.roll(self.known.len().max(1));
        let Some(thread) = self.known.iter().nth(at).copied() else { return Ok(()) };
        let changed = match self.dice.roll(40) {
            0..10 => executor.set_affinity(&thread, &self.some_cores()),
            10..13 => self.lend(executor, &thread),
            13..17 => self.switch(),
            17..26 => executor.set_sched(&thread, self.some_rung(&thread)),
            26..30 => Ok(self.undo(executor, &thread)),
            30..34 => self.change_setting(executor),
            _ => self.change_group(executor, &thread),
        };
        match changed {
            Ok(_) | Err(ActError::Gone(_) | ActError::Unguarded | ActError::Raced { .. }) => Ok(()),
            // As for a lane: nobody else sets the policy of what is lent, and a restore takes the handle back.
            Err(ActError::Lent(_) | ActError::Revoked(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Lends a thread, as to the scheduler of a lane.
    fn lend(&mut self, executor: &mut Executor, thread: &ThreadRef) -> Result<Applied, ActError> {
        if burns(thread) {
            return Ok(Applied::AlreadySo);
        }
        let rung = |rung| self.ladder.attr(rung).unwrap_or(SchedAttr::IDLE);
        let handle = executor.lend(thread, [rung(Rung::FifoLow), rung(Rung::Dispatcher)])?;
        self.handles.push(handle);
        Ok(Applied::Changed)
    }

    /// Switches one of the threads that are lent, as the scheduler of a lane does.
    fn switch(&mut self) -> Result<Applied, ActError> {
        let at = self.dice.roll(self.handles.len().max(1));
        let Some(handle) = self.handles.get_mut(at) else { return Ok(Applied::AlreadySo) };
        let switched = handle.switch_to(1 - handle.shown());
        if matches!(switched, Err(ActError::Gone(_) | ActError::Revoked(_))) {
            self.handles.swap_remove(at);
        }
        switched
    }

    fn undo(&mut self, executor: &mut Executor, thread: &ThreadRef) -> Applied {
        executor.undo_thread(thread);
        Applied::Changed
    }

    fn some_cores(&mut self) -> CoreSet {
        let at = self.dice.roll(self.cores.len() + 1);
        self.cores.iter().nth(at).map_or(self.cores, CoreSet::of)
    }

    /// Victims whose name says that they burn cycles never get above anybody.
    fn some_rung(&mut self, thread: &ThreadRef) -> SchedAttr {
        let rungs = [Rung::SchedIdle, Rung::FifoLow, Rung::LcOverflow, Rung::Lc];
        let at = if burns(thread) { 0 } else { self.dice.roll(rungs.len()) };
        self.ladder.attr(rungs[at]).unwrap_or(SchedAttr::IDLE)
    }

    fn change_setting(&mut self, executor: &mut Executor) -> Result<Applied, ActError> {
        let (name, values) = match self.dice.roll(2) {
            0 => ("kernel.sched_rt_runtime_us", ["960000", "970000"]),
            _ => ("kernel.sched_rr_timeslice_ms", ["40", "60"]),
        };
        executor.write_setting(&Setting::Sysctl(name.into()), values[self.dice.roll(2)])
    }

    fn change_group(
        &mut self,
        executor: &mut Executor,
        thread: &ThreadRef,
    ) -> Result<Applied, ActError> {
        let group = self.groups[self.dice.roll(self.groups.len())].clone();
        if !group.parent().is_some_and(Path::exists) {
            return Ok(Applied::AlreadySo);
        }
        if !group.exists() {
            return executor.create_cgroup(&group);
        }
        match self.dice.roll(3) {
            0 => executor.join_cgroup(&group, thread.tgid),
            roll => executor.freeze(&group, roll == 1),
        }
    }
}

/// Whether the name of a thread's process says that it burns cycles.
fn burns(thread: &ThreadRef) -> bool {
    std::fs::read_to_string(format!("/proc/{}/comm", thread.tgid))
        .is_ok_and(|name| name.starts_with("stress-ng"))
}

/// The session of a process. `rustix::process::getsid` does not take kernel threads, whose session is 0.
fn session(pid: i32) -> Option<i32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.split(' ').nth(3)?.parse().ok()
}
