//! The batch work of a co-location.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, Result};
use quell_load::be::{Progress, Reading};
use quell_model::{CoreSet, Nanos};
use tempfile::TempDir;

use super::lc::START_MAX;
use super::spec::Mix;
use crate::host::{Program, directory};

/// The batch programs of a mix, which count what they do.
pub struct BatchWork {
    parts: Vec<Part>,
    _folder: TempDir,
}

struct Part {
    program: Program,
    progress: Progress,
}

/// Work of the programs of a mix up to a moment.
pub struct Readings {
    at: Instant,
    parts: Vec<Worked>,
}

/// Of one program.
struct Worked {
    /// What it published last: work, and the CPU time that it took. A program that works in cycles
    /// publishes at the end of each, so that between two readings lie whole ones.
    published: Reading,
    /// CPU time until now.
    cpu: Nanos,
}

/// Work of the programs of a mix a second, and the CPU time that each took for it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates(pub Vec<Rate>);

/// Of one program.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rate {
    /// Work a second.
    pub ops: f64,
    /// CPU seconds a second.
    pub cpu: f64,
}

impl BatchWork {
    /// Starts the batch programs of a mix on the managed cores and waits until they work.
    /// `antagonist` is the `quell-antagonist` program, `go_gc` the one that [`quell_load::go::build_gc`] made.
    ///
    /// # Errors
    /// When one cannot be started or does not report any work in time.
    pub fn start(
        antagonist: &Path,
        managed: &CoreSet,
        mix: Mix,
        go_gc: Option<&Path>,
    ) -> Result<BatchWork> {
        let directory = directory()?;
        let mut parts = Vec::new();
        for (at, words) in modes(mix).iter().enumerate() {
            let file = directory.path().join(format!("progress-{at}"));
            let (program, name) = match words {
                [] => (go_gc.context("the Go antagonist was not built")?, mix.name()),
                [name, ..] => (antagonist, *name),
            };
            let mut command = Command::new(program);
            command.args(*words).arg("--progress").arg(&file);
            command.stdout(Stdio::null()).stderr(Stdio::null());
            let program = Program::start(name, &mut command)?;
            // Threads that start from here on are born pinned.
            program.pin(managed)?;
            let progress = Progress::wait(&file, START_MAX)
                .with_context(|| format!("{name} reports no work"))?;
            program.pin(managed)?;
            parts.push(Part { program, progress });
        }
        Ok(BatchWork { parts, _folder: directory })
    }

    /// The programs.
    pub fn programs(&self) -> impl Iterator<Item = &Program> {
        self.parts.iter().map(|part| &part.program)
    }

    /// Fails if a program is over.
    ///
    /// # Errors
    /// When one is: names it.
    pub fn check(&mut self) -> Result<()> {
        self.parts.iter_mut().try_for_each(|part| part.program.check())
    }

    /// Their work so far.
    ///
    /// # Errors
    /// When what one reports does not read.
    pub fn work(&self) -> Result<Readings> {
        let worked = |part: &Part| -> Result<Worked> {
            Ok(Worked { published: part.progress.read()?, cpu: part.program.usage()?.cpu })
        };
        let parts: Result<_> = self.parts.iter().map(worked).collect();
        Ok(Readings { at: Instant::now(), parts: parts? })
    }
}

impl Readings {
    /// What was done a second since `earlier`: the CPU time that a program got, and its work in that
    /// time at the rate of the whole cycles in between. Nothing if it did not publish meanwhile.
    pub fn rates_since(&self, earlier: &Readings) -> Rates {
        let seconds = (self.at - earlier.at).as_secs_f64().max(1e-9);
        let rate = |(now, earlier): (&Worked, &Worked)| {
            let cpu = now.cpu.since(earlier.cpu).0 as f64 / 1e9 / seconds;
            let busy = now.published.cpu_ns.since(earlier.published.cpu_ns).0.max(1) as f64 / 1e9;
            let done = now.published.ops.saturating_sub(earlier.published.ops) as f64;
            Rate { ops: cpu * done / busy, cpu }
        };
        Rates(self.parts.iter().zip(&earlier.parts).map(rate).collect())
    }
}

impl Rates {
    /// The mean of these rates and others of the same programs.
    pub fn mean(&self, other: &Rates) -> Rates {
        let mean = |(one, other): (&Rate, &Rate)| Rate {
            ops: (one.ops + other.ops) / 2.0,
            cpu: (one.cpu + other.cpu) / 2.0,
        };
        Rates(self.0.iter().zip(&other.0).map(mean).collect())
    }

    /// These rates as a share of `alone`. Of several programs each counts as much as the CPU time
    /// that it took alone.
    pub fn share_of(&self, alone: &Rates) -> Option<f64> {
        let pairs = || self.0.iter().zip(&alone.0).filter(|(_, alone)| alone.ops > 0.0);
        let weights: f64 = pairs().map(|(_, alone)| alone.cpu).sum();
        let sum: f64 = pairs().map(|(rate, alone)| alone.cpu * rate.ops / alone.ops).sum();
        (weights > 0.0).then_some(sum / weights)
    }

    /// Work a second of all programs; meaningful where they do the same work.
    pub fn ops(&self) -> f64 {
        self.0.iter().map(|rate| rate.ops).sum()
    }

    /// CPU seconds a second of all programs.
    pub fn cpu(&self) -> f64 {
        self.0.iter().map(|rate| rate.cpu).sum()
    }
}

/// How `quell-antagonist` is called for each program of a mix.
fn modes(mix: Mix) -> &'static [&'static [&'static str]] {
    match mix {
        Mix::Stream => &[&["stream"]],
        Mix::Hog => &[&["hog", "--threads", "4"]],
        Mix::Gc => &[&["gc"]],
        Mix::Faults => &[&["faults"], &["writes"]],
        // A program of its own, without a mode.
        Mix::GoGc => &[&[]],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_weighs_programs_by_their_cpu_time() {
        let rate = |ops, cpu| Rate { ops, cpu };
        let alone = Rates(vec![rate(1_000.0, 0.9), rate(10.0, 0.1)]);
        let beside = Rates(vec![rate(500.0, 0.45), rate(10.0, 0.1)]);
        assert!((beside.share_of(&alone).unwrap() - 0.55).abs() < 1e-9);
        assert_eq!(beside.share_of(&Rates::default()), None);
    }
}
