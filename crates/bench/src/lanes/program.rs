//! What is put on lanes: `quell lane-member spin FILE NANOSECONDS THREADS`, a busy loop, and `quell lane-member serve RING WAITS`, a
//! server.
//!
//! The loop's threads spin at once and note nothing until they are on a lane, which they see by their own policy, or until
//! `FILE.begin` exists. From then on each counts turns of its loop and notes stretches and gaps, for the time given,
//! and then sleeps; the last one writes FILE.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use quell_load::now;
use quell_model::Nanos;
use serde::{Deserialize, Serialize};

use super::server::{Waits, serve};
use crate::host;
use quell_terminal::Stop;

/// A gap that is longer than this is one between two turns: reading the clock takes some 30 ns.
const GAP: Nanos = Nanos::from_micros(2);
/// Turns of the loop between two looks whether to begin.
const LOOK_EVERY: u32 = 1_000;
/// Stretches that are noted at most; memory for them is touched before.
const NOTES_MAX: usize = 2_000_000;

const USAGE: &str =
    "usage: spin FILE NANOSECONDS THREADS | serve RING polling|epoll (run by `quell bench lanes`)";

/// What a thread noted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noted {
    /// The stretches for which it had the core, in ns, but for the first and the last.
    pub turns: Vec<u32>,
    /// The gaps between stretches, in ns.
    pub between: Vec<u32>,
    /// Turns of its loop.
    pub units: u64,
    /// How long it was at it, in ns.
    pub ns: u64,
}

/// How a loop is told what to do.
#[derive(Clone, Debug)]
pub struct Loop {
    file: PathBuf,
    time: Nanos,
    threads: usize,
}

impl Loop {
    /// From the arguments of the program.
    ///
    /// # Errors
    /// When they are not a file, a time and a number.
    pub fn from_args(args: &[OsString]) -> Result<Loop> {
        let [file, time, threads] = args else { bail!("{USAGE}") };
        let number = |text: &OsString| text.to_str().and_then(|text| text.parse::<u64>().ok());
        let time = Nanos(number(time).context("no time")?);
        let threads = number(threads).filter(|count| (1..=64).contains(count));
        Ok(Loop {
            file: file.into(),
            time,
            threads: threads.context("no number of threads")? as usize,
        })
    }

    /// Spins, notes, and writes the file.
    fn run(&self) -> Result<()> {
        // One thread is the process's own, so that a process is one thread.
        let others: Vec<_> = (1..self.threads)
            .map(|_| {
                let own = self.clone();
                std::thread::spawn(move || own.spin())
            })
            .collect();
        let mut all = vec![self.spin()];
        for other in others {
            all.push(other.join().map_err(|_| anyhow::anyhow!("a loop panicked"))?);
        }
        let draft = self.file.with_extension("tmp");
        fs::write(&draft, serde_json::to_vec(&all)?)?;
        Ok(fs::rename(&draft, &self.file)?)
    }

    fn spin(&self) -> Noted {
        let mut noted = Noted::default();
        // Written once, so that no page fault comes in between.
        noted.turns.resize(NOTES_MAX, 1);
        noted.turns.clear();
        noted.between.resize(NOTES_MAX, 1);
        noted.between.clear();
        let _ = fs::write(told(&self.file, &format!("spins-{}", host::this_thread())), "");
        let begin = told(&self.file, "begin");
        while !self.may_begin(&begin) {
            (0..LOOK_EVERY).for_each(|_| std::hint::spin_loop());
        }
        let start = now();
        let end = Nanos(start.0.saturating_add(self.time.0));
        let (mut last, mut first) = (start, start);
        while last < end {
            let at = now();
            noted.units += 1;
            if at.since(last) > GAP && noted.turns.len() < NOTES_MAX {
                noted.turns.push(last.since(first).0.min(u64::from(u32::MAX)) as u32);
                noted.between.push(at.since(last).0.min(u64::from(u32::MAX)) as u32);
                first = at;
            }
            last = at;
        }
        noted.ns = last.since(start).0;
        noted
    }

    fn may_begin(&self, begin: &Path) -> bool {
        // A lane's threads carry the reset on fork, which shows in the policy's number.
        let plain = |policy: i32| policy & !libc::SCHED_RESET_ON_FORK;
        let realtime = |policy| matches!(plain(policy), libc::SCHED_FIFO | libc::SCHED_RR);
        host::policy(0).is_ok_and(|(policy, _)| realtime(policy)) || begin.exists()
    }
}

/// The program's whole life.
pub fn main(args: &[OsString]) -> ExitCode {
    let done = match args.split_first() {
        Some((mode, rest)) if mode == "spin" => Loop::from_args(rest).and_then(|one| one.run()),
        Some((mode, [ring, waits])) if mode == "serve" => {
            let waits = waits.to_str().context(USAGE);
            waits.and_then(Waits::from_name).and_then(|waits| serve(Path::new(ring), waits))
        }
        _ => Err(anyhow::anyhow!(USAGE)),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn told(file: &Path, what: &str) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".");
    name.push(what);
    name.into()
}

/// The threads of a program that spin, once there are as many as it has threads.
pub(super) fn spinning(file: &Path, pid: i32, stop: &Stop, patience: Duration) -> Result<Vec<i32>> {
    let until = Instant::now() + patience;
    loop {
        let tids: Vec<i32> = quell_observe::procs::threads(pid)
            .context("a loop is gone")?
            .iter()
            .map(|thread| thread.tid.0)
            .collect();
        if !tids.is_empty() && tids.iter().all(|tid| told(file, &format!("spins-{tid}")).exists()) {
            return Ok(tids);
        }
        anyhow::ensure!(Instant::now() < until, "the loops do not start");
        stop.sleep(Duration::from_millis(5))?;
    }
}

/// Has a program that is on no lane begin.
pub(super) fn begin(file: &Path) -> Result<()> {
    Ok(fs::write(told(file, "begin"), "")?)
}

/// Whether a program has written what it noted.
pub(super) fn is_done(file: &Path) -> bool {
    file.exists()
}

/// What a program noted.
pub(super) fn read(file: &Path) -> Result<Vec<Noted>> {
    serde_json::from_slice(&fs::read(file)?).context("what a loop noted does not read")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loop_notes_its_units_for_the_time_it_was_given() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("noted");
        begin(&file).unwrap();
        let args = [file.as_os_str().to_owned(), "20000000".into(), "2".into()];
        Loop::from_args(&args).unwrap().run().unwrap();
        let noted = read(&file).unwrap();
        assert_eq!(noted.len(), 2);
        for noted in noted {
            assert!(noted.units > 0 && noted.ns >= 20_000_000);
            assert_eq!(noted.turns.len(), noted.between.len());
        }
    }

    #[test]
    fn other_arguments_are_refused() {
        for args in [&["f"][..], &["f", "x", "1"], &["f", "1", "0"], &["f", "1", "65"]] {
            let args: Vec<OsString> = args.iter().map(OsString::from).collect();
            assert!(Loop::from_args(&args).is_err());
        }
    }
}
