//! Programs that a benchmark starts, measures and ends.

use std::fs;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use quell_model::{CORES_MAX, CoreSet, Nanos};
use rustix::process::{Pid, Signal, kill_process};

use super::{Group, Policy, pin, set_nice, set_policy};
use quell_terminal::Stop;

/// How often the threads of a program are listed again until the list no longer changes.
const PASSES_MAX: usize = 10;

/// A program that ends with its owner: when this value is dropped, and when the benchmark dies.
pub struct Program {
    name: String,
    child: Child,
}

/// What the kernel accounted to a program.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Time on cores.
    pub cpu: Nanos,
    /// Times that a thread went to sleep, and so woke.
    pub sleeps: u64,
}

impl Program {
    /// Starts a program without input and output, in a process group of its own: Ctrl-C is for the
    /// benchmark, which ends its programs in the right order.
    ///
    /// # Errors
    /// When it cannot be started; names the program.
    pub fn start(name: &str, command: &mut Command) -> Result<Program> {
        command.process_group(0);
        Program::spawn(name, command)
    }

    /// Starts a program without input in a group, and in a session of its own.
    ///
    /// # Errors
    /// When it cannot be started; names the program.
    pub fn start_in(name: &str, command: &mut Command, group: &Group) -> Result<Program> {
        group.enclose(command)?;
        Program::spawn(name, command)
    }

    fn spawn(name: &str, command: &mut Command) -> Result<Program> {
        command.stdin(Stdio::null());
        die_with_parent(command);
        let child = command.spawn().with_context(|| {
            format!("start {name} ({})", command.get_program().to_string_lossy())
        })?;
        Ok(Program { name: name.to_owned(), child })
    }

    /// Its process number.
    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    /// Its name in messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Fails with its exit status if it is over.
    ///
    /// # Errors
    /// When it is over.
    pub fn check(&mut self) -> Result<()> {
        match self.child.try_wait()? {
            Some(status) => bail!("{} ended early ({status})", self.name),
            None => Ok(()),
        }
    }

    /// Waits until it is over by itself.
    ///
    /// # Errors
    /// When it fails, is not over in time (it is killed then), or a stop was asked for.
    pub fn finish(mut self, patience: Duration, stop: &Stop) -> Result<()> {
        let until = Instant::now() + patience;
        loop {
            match self.child.try_wait()? {
                Some(status) if status.success() => return Ok(()),
                Some(status) => bail!("{} failed ({status})", self.name),
                None if Instant::now() > until => bail!("{} does not end", self.name),
                None => stop.sleep(Duration::from_millis(5))?,
            }
        }
    }

    /// Its threads now.
    ///
    /// # Errors
    /// When it is gone.
    pub fn threads(&self) -> Result<Vec<i32>> {
        threads_of(self.pid()).with_context(|| format!("list the threads of {}", self.name))
    }

    /// Puts each of its threads on `cores`.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn pin(&self, cores: &CoreSet) -> Result<()> {
        self.each_thread(|tid| pin(tid, cores))
            .with_context(|| format!("pin {} to {cores}", self.name))
    }

    /// Gives each of its threads a policy and a nice value.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn set_policy(&self, policy: Policy, nice: i32) -> Result<()> {
        self.each_thread(|tid| {
            set_policy(tid, policy)?;
            set_nice(tid, nice)
        })
        .with_context(|| format!("set {} to {policy:?}, nice {nice}", self.name))
    }

    /// Applies `set` to each thread until no new one shows up: one pass over /proc can miss a thread
    /// that is born meanwhile and inherits the old value.
    fn each_thread(&self, mut set: impl FnMut(i32) -> io::Result<()>) -> Result<()> {
        let mut known: Vec<i32> = Vec::new();
        for _ in 0..PASSES_MAX {
            let new: Vec<i32> =
                self.threads()?.into_iter().filter(|tid| !known.contains(tid)).collect();
            if new.is_empty() {
                return Ok(());
            }
            for &tid in &new {
                match set(tid) {
                    Err(gone) if gone.raw_os_error() == Some(libc::ESRCH) => {}
                    other => other?,
                }
            }
            known.extend(new);
        }
        bail!("{} creates threads faster than they can be set", self.name)
    }

    /// What it has used so far. Threads that ended since are missing, so it is meant for programs
    /// whose threads live as long as they.
    ///
    /// # Errors
    /// When it is gone.
    pub fn usage(&self) -> Result<Usage> {
        usage_of(self.pid()).with_context(|| format!("read what {} has used", self.name))
    }

    /// Stops it where it is, to keep it out of the way for a while.
    ///
    /// # Errors
    /// When it is gone.
    pub fn pause(&self) -> Result<()> {
        self.signal(Signal::STOP)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// When it is gone.
    pub fn go_on(&self) -> Result<()> {
        self.signal(Signal::CONT)
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(self.pid()).context("a process number is never 0")?;
        kill_process(pid, signal).with_context(|| format!("signal {}", self.name))
    }

    /// Asks it to end and waits for that, for `patience` at most, then kills it. How it ended; `None` if it had to be
    /// killed.
    ///
    /// # Errors
    /// When waiting fails.
    pub fn end(mut self, signal: Signal, patience: Duration) -> Result<Option<ExitStatus>> {
        self.ask_to_end(signal, patience)
    }

    /// The same, where it is killed later, when dropped.
    ///
    /// # Errors
    /// When waiting fails.
    pub fn ask_to_end(&mut self, signal: Signal, patience: Duration) -> Result<Option<ExitStatus>> {
        if self.child.try_wait()?.is_none() {
            let _ = self.signal(signal);
        }
        let until = Instant::now() + patience;
        while Instant::now() < until {
            if let Some(status) = self.child.try_wait()? {
                return Ok(Some(status));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(None)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // A killed child that was never waited for keeps its number, so this cannot hit another one.
        let _ = self.child.kill();
        // To die it needs a core, and on its own a real-time thread may be before it for ever.
        let _ = self.pin(&CoreSet::from_words(&[u64::MAX; CORES_MAX / 64]));
        let _ = self.child.wait();
    }
}

/// What the threads of a process have used so far.
pub(super) fn usage_of(pid: i32) -> Result<Usage> {
    let mut sum = Usage::default();
    for tid in threads_of(pid)? {
        let base = format!("/proc/{pid}/task/{tid}");
        let Ok(schedstat) = fs::read_to_string(format!("{base}/schedstat")) else { continue };
        let ran = schedstat.split(' ').next().and_then(|ns| ns.parse().ok());
        sum.cpu += Nanos(ran.with_context(|| format!("{base}/schedstat is malformed"))?);
        let status = fs::read_to_string(format!("{base}/status")).unwrap_or_default();
        sum.sleeps += status
            .lines()
            .find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"))
            .and_then(|count| count.trim().parse::<u64>().ok())
            .unwrap_or_default();
    }
    Ok(sum)
}

/// The threads of a process.
pub(super) fn threads_of(pid: i32) -> io::Result<Vec<i32>> {
    let directory = fs::read_dir(format!("/proc/{pid}/task"))?;
    Ok(directory.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// SIGTERM when the benchmark dies: the daemon restores the host on it, and others just end.
#[allow(unsafe_code)]
fn die_with_parent(command: &mut Command) {
    // SAFETY: between fork and exec only an async-signal-safe system call is made.
    unsafe {
        command.pre_exec(|| {
            rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
            Ok(())
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sleeper() -> Program {
        Program::start("sleep", Command::new("sleep").arg("60")).unwrap()
    }

    #[test]
    fn a_program_dies_with_its_owner() {
        let program = sleeper();
        let pid = program.pid();
        drop(program);
        assert!(threads_of(pid).is_err());
    }

    #[test]
    fn a_missing_program_is_named() {
        let error =
            Program::start("antagonist", &mut Command::new("/there/is/none")).err().unwrap();
        assert!(format!("{error:#}").contains("start antagonist (/there/is/none)"), "{error:#}");
    }

    #[test]
    fn policies_reach_every_thread_and_the_usage_is_read() {
        let program = sleeper();
        program.set_policy(Policy::Idle, 19).unwrap();
        assert_eq!(super::super::policy(program.pid()).unwrap().0, libc::SCHED_IDLE);
        assert_eq!(super::super::nice(program.pid()).unwrap(), 19);
        program.usage().unwrap();
    }

    #[test]
    fn a_program_that_fails_or_does_not_end_is_told() {
        let (stop, patience) = (Stop::default(), Duration::from_secs(10));
        let start = |name| Program::start(name, &mut Command::new(name)).unwrap();
        start("true").finish(patience, &stop).unwrap();
        let failed = start("false").finish(patience, &stop).unwrap_err();
        assert!(failed.to_string().contains("false failed"), "{failed}");
        let late = sleeper().finish(Duration::ZERO, &stop).unwrap_err();
        assert!(late.to_string().contains("does not end"), "{late}");
    }

    #[test]
    fn an_early_end_is_told() {
        let mut program = Program::start("true", &mut Command::new("true")).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        let error = loop {
            match program.check() {
                Err(error) => break error,
                Ok(()) => assert!(Instant::now() < until, "it does not end"),
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert!(error.to_string().contains("true ended early"));
    }
}
