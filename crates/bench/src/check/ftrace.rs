//! An instance of ftrace (Documentation/trace/ftrace.rst, "Instances") that records the scheduler's tracepoints.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use quell_model::Nanos;
use quell_observe::topology;
use quell_os::clock;

use super::tools::Tally;

const INSTANCES: &str = "/sys/kernel/tracing/instances";
const NAME: &str = "quell-bench";
/// As `perf sched record` and `quell record` have them.
const EVENTS: [&str; 8] = [
    "sched_switch",
    "sched_waking",
    "sched_wakeup",
    "sched_wakeup_new",
    "sched_migrate_task",
    "sched_process_fork",
    "sched_process_exec",
    "sched_process_exit",
];

/// Between two looks into the buffers.
const VISIT: Duration = Duration::from_millis(10);

/// The instance; removed on drop.
pub struct Instance {
    directory: PathBuf,
    cores: Vec<PathBuf>,
    copier: Option<JoinHandle<Result<()>>>,
    shared: Arc<Shared>,
}

/// Relaxed everywhere: neither publishes anything.
#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    /// CPU time of the copier so far.
    cpu_ns: AtomicU64,
}

impl Instance {
    /// Makes it, with so much room on all cores together, and records into a file.
    ///
    /// # Errors
    /// When tracefs is not mounted, or the kernel refuses.
    pub fn start(bytes: usize, into: &Path) -> Result<Instance> {
        ensure!(
            Path::new(INSTANCES).is_dir(),
            "tracefs is not mounted (mount -t tracefs tracefs /sys/kernel/tracing)"
        );
        let directory = Path::new(INSTANCES).join(NAME);
        if directory.is_dir() {
            // Left by a benchmark that was killed.
            fs::remove_dir(&directory)
                .with_context(|| format!("remove {}", directory.display()))?;
        }
        fs::create_dir(&directory).with_context(|| format!("make {}", directory.display()))?;
        let cores =
            topology::online()?.iter().map(|core| directory.join(format!("per_cpu/cpu{core}")));
        let shared = Arc::default();
        let mut instance = Instance { cores: cores.collect(), directory, copier: None, shared };
        instance
            .set("buffer_size_kb", &(bytes / instance.cores.len().max(1) / 1024).to_string())?;
        instance.set("trace_clock", "mono")?;
        for event in EVENTS {
            instance.set(&format!("events/sched/{event}/enable"), "1")?;
        }
        instance.set("tracing_on", "1")?;
        instance.copy(into)?;
        Ok(instance)
    }

    /// Copies the buffers from now on, on a thread of its own.
    fn copy(&mut self, into: &Path) -> Result<()> {
        let open = |core: &PathBuf| {
            let mut options = OpenOptions::new();
            options.read(true).custom_flags(libc::O_NONBLOCK).open(core.join("trace_pipe_raw"))
        };
        let buffers = self.cores.iter().map(open).collect::<std::io::Result<Vec<File>>>()?;
        let (into, shared) = (File::create(into)?, Arc::clone(&self.shared));
        let copier = std::thread::Builder::new().name("ftrace".into());
        self.copier = Some(copier.spawn(move || copy(buffers, into, &shared))?);
        Ok(())
    }

    /// CPU time that copying took so far.
    pub fn cpu(&self) -> Nanos {
        Nanos(self.shared.cpu_ns.load(Ordering::Relaxed))
    }

    /// Ends recording, and copies the rest.
    ///
    /// # Errors
    /// When the kernel refuses, or the file could not be written.
    pub fn stop(&mut self) -> Result<()> {
        let stopped = self.set("tracing_on", "0");
        self.shared.is_over.store(true, Ordering::Relaxed);
        if let Some(copier) = self.copier.take() {
            copier.join().map_err(|_| anyhow!("the copier panicked"))??;
        }
        stopped
    }

    /// What was recorded, read or not.
    ///
    /// # Errors
    /// When the kernel's statistics do not read.
    pub fn tally(&self) -> Result<Tally> {
        let mut sum = Tally::default();
        for core in &self.cores {
            let path = core.join("stats");
            let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let one = parse(&text).with_context(|| path.display().to_string())?;
            sum.events += one.events;
            sum.lost += one.lost;
        }
        Ok(sum)
    }

    fn set(&self, file: &str, value: &str) -> Result<()> {
        let path = self.directory.join(file);
        fs::write(&path, value).with_context(|| format!("write {value} to {}", path.display()))
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.stop();
        if let Err(error) = fs::remove_dir(&self.directory) {
            eprintln!("{} stays: {error}", self.directory.display());
        }
    }
}

/// Copies page after page, until there is nothing more and it is over. An empty read is no end here.
fn copy(buffers: Vec<File>, mut into: File, shared: &Shared) -> Result<()> {
    let mut page = vec![0; rustix::param::page_size()];
    loop {
        let is_last = shared.is_over.load(Ordering::Relaxed);
        for mut buffer in &buffers {
            loop {
                match buffer.read(&mut page) {
                    Ok(0) => break,
                    Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                    read => into.write_all(&page[..read.context("read a buffer of ftrace")?])?,
                }
            }
        }
        shared.cpu_ns.store(clock::thread_cpu().0, Ordering::Relaxed);
        if is_last {
            return Ok(());
        }
        std::thread::sleep(VISIT);
    }
}

/// `per_cpu/cpuN/stats`.
fn parse(stats: &str) -> Option<Tally> {
    let number = |name: &str| -> Option<u64> {
        let mut lines = stats.lines().filter_map(|line| line.split_once(": "));
        lines.find(|(found, _)| *found == name)?.1.trim().parse().ok()
    };
    Some(Tally {
        events: number("entries")? + number("read events")?,
        lost: number("overrun")? + number("commit overrun")? + number("dropped events")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_read_counts_and_what_was_overrun_is_lost() {
        let stats = "entries: 5\noverrun: 7\ncommit overrun: 1\nbytes: 300\n\
            oldest event ts: 46464.07\nnow ts: 46464.08\ndropped events: 2\nread events: 30\n";
        assert_eq!(parse(stats), Some(Tally { events: 35, lost: 10 }));
        assert_eq!(parse("entries: 5\n"), None);
    }
}
