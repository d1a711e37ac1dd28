//! Batch work beside a service: programs that count what they do, in a group and a session of their own.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use quell_load::be::Progress;
use quell_model::{CoreSet, Nanos};
use quell_terminal::Stop;
use tempfile::TempDir;

use crate::host::{Group, Program, directory};

/// How long batch work may take until it reports work.
const START_MAX: Duration = Duration::from_secs(15);
/// C files of the tree that `make` builds, and functions of each: a file takes some 30 ms to compile.
const C_FILES: usize = 64;
const FUNCTIONS: usize = 4;

/// A kind of batch work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Threads that compute in registers.
    Hog,
    /// A Monte-Carlo simulation on a collected heap: pauses of 100 to 200 ms.
    Gc,
    /// Page faults and file writes: long sections in the kernel.
    Faults,
    /// A Go program with its concurrent collector.
    GoGc,
    /// `make -j4` of a C tree, again and again: short processes, files, a linker's worth of system calls.
    Make,
    /// A thread that streams through memory.
    Stream,
}

impl Kind {
    /// All of them.
    pub const ALL: [Kind; 6] =
        [Kind::Hog, Kind::Gc, Kind::Faults, Kind::GoGc, Kind::Make, Kind::Stream];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Hog => "hog",
            Kind::Gc => "gc",
            Kind::Faults => "faults-writes",
            Kind::GoGc => "go-gc",
            Kind::Make => "make",
            Kind::Stream => "stream",
        }
    }

    /// What an operation of it is.
    pub fn unit(self) -> &'static str {
        match self {
            Kind::Hog => "1,024 random numbers",
            Kind::Gc => "trials",
            Kind::Faults => "page faults and synced blocks",
            Kind::GoGc => "trees",
            Kind::Make => "compiled files",
            Kind::Stream => "MiB moved",
        }
    }

    /// How `quell-antagonist` is called for each program of it.
    fn modes(self) -> &'static [&'static [&'static str]] {
        match self {
            Kind::Hog => &[&["hog", "--threads", "4"]],
            Kind::Gc => &[&["gc"]],
            Kind::Faults => &[&["faults"], &["writes"]],
            Kind::Stream => &[&["stream"]],
            Kind::GoGc | Kind::Make => &[],
        }
    }
}

/// Programs that batch work is made of.
#[derive(Clone, Debug)]
pub struct Programs {
    /// `quell-antagonist`.
    pub antagonist: PathBuf,
    /// What [`quell_load::go::build_gc`] made, where the host has Go.
    pub go_gc: Option<PathBuf>,
}

impl Programs {
    /// `quell-antagonist` with words for it. It rests at the times of a seed, if there is one.
    pub fn antagonist(antagonist: &Path, words: &[&str], rests: Option<u64>) -> Command {
        let mut command = Command::new(antagonist);
        command.args(words);
        if let Some(seed) = rests {
            command.args(["--rests", &seed.to_string()]);
        }
        command
    }
}

/// Batch work under way, until dropped.
pub struct BatchWork {
    /// Which.
    pub kind: Kind,
    /// All that belongs to it.
    pub group: Group,
    parts: Vec<Part>,
    _folder: TempDir,
}

struct Part {
    program: Program,
    counter: Counter,
}

/// Where a program counts.
enum Counter {
    /// In a file of [`quell_load::be`].
    Progress(Progress),
    /// One byte of a file for each operation.
    Bytes(PathBuf),
}

/// What was done up to a moment.
#[derive(Clone, Debug)]
pub struct Work {
    at: Instant,
    /// Of each program.
    ops: Vec<u64>,
    cpu: Nanos,
}

/// What was done a second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rates {
    /// Operations of each program.
    pub ops: Vec<f64>,
    /// CPU seconds.
    pub cpu: f64,
}

impl BatchWork {
    /// Starts it on these cores and waits until it works. It rests at the times of a seed, if there is one; `make` never.
    ///
    /// # Errors
    /// When a program cannot be started or reports no work in time.
    pub fn start(
        kind: Kind,
        programs: &Programs,
        rests: Option<u64>,
        managed: &CoreSet,
        stop: &Stop,
    ) -> Result<BatchWork> {
        let directory = directory()?;
        let group = Group::create(kind.name())?;
        let mut parts = Vec::new();
        let commands = commands(kind, programs, rests, directory.path())?;
        for (at, mut command) in commands.into_iter().enumerate() {
            command.stdout(Stdio::null()).stderr(Stdio::null());
            let program = Program::start_in(kind.name(), &mut command, &group)?;
            group.pin(managed)?;
            let counter = match kind {
                Kind::Make => Counter::Bytes(directory.path().join("done")),
                _ => Counter::Progress(
                    Progress::wait(&progress_file(directory.path(), at), START_MAX)
                        .with_context(|| format!("{} reports no work", kind.name()))?,
                ),
            };
            parts.push(Part { program, counter });
        }
        group.pin(managed)?;
        let batch = BatchWork { kind, group, parts, _folder: directory };
        batch.wait_until_working(stop)?;
        Ok(batch)
    }

    fn wait_until_working(&self, stop: &Stop) -> Result<()> {
        let until = Instant::now() + START_MAX;
        while self.work()?.ops.contains(&0) {
            if Instant::now() > until {
                bail!("{} does no work", self.kind.name());
            }
            stop.sleep(Duration::from_millis(20))?;
        }
        Ok(())
    }

    /// Fails if one of its programs is over.
    ///
    /// # Errors
    /// When one is.
    pub fn check(&mut self) -> Result<()> {
        self.parts.iter_mut().try_for_each(|part| part.program.check())
    }

    /// What was done so far.
    ///
    /// # Errors
    /// When a count is malformed.
    pub fn work(&self) -> Result<Work> {
        let ops = |part: &Part| match &part.counter {
            Counter::Progress(progress) => Ok(progress.read()?.ops),
            Counter::Bytes(file) => Ok(fs::metadata(file).map_or(0, |looks| looks.len())),
        };
        let ops: Result<_> = self.parts.iter().map(ops).collect();
        Ok(Work { at: Instant::now(), ops: ops?, cpu: self.group.cpu_time()? })
    }
}

impl Work {
    /// What was done a second since `earlier`.
    pub fn rates_since(&self, earlier: &Work) -> Rates {
        let seconds = (self.at - earlier.at).as_secs_f64().max(1e-9);
        let ops = self.ops.iter().zip(&earlier.ops);
        Rates {
            ops: ops.map(|(now, then)| now.saturating_sub(*then) as f64 / seconds).collect(),
            cpu: self.cpu.since(earlier.cpu).0 as f64 / 1e9 / seconds,
        }
    }
}

impl Rates {
    /// The mean of these and others of the same programs.
    pub fn mean(&self, other: &Rates) -> Rates {
        Rates {
            ops: self.ops.iter().zip(&other.ops).map(|(one, other)| (one + other) / 2.0).collect(),
            cpu: (self.cpu + other.cpu) / 2.0,
        }
    }

    /// As a share of `alone`: the mean over the programs, each compared with itself.
    pub fn share_of(&self, alone: &Rates) -> Option<f64> {
        let pairs = self.ops.iter().zip(&alone.ops).filter(|(_, alone)| **alone > 0.0);
        let shares: Vec<f64> = pairs.map(|(ops, alone)| ops / alone).collect();
        (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64)
    }
}

fn progress_file(directory: &Path, at: usize) -> PathBuf {
    directory.join(format!("progress-{at}"))
}

fn commands(
    kind: Kind,
    programs: &Programs,
    rests: Option<u64>,
    directory: &Path,
) -> Result<Vec<Command>> {
    let progress = |mut command: Command, at: usize| {
        command.arg("--progress").arg(progress_file(directory, at));
        command
    };
    match kind {
        Kind::Make => {
            write_tree(directory)?;
            let mut command = Command::new("sh");
            command.args(["-c", "while :; do make -s -j4 all || exit 1; rm -f *.o; done"]);
            command.current_dir(directory);
            Ok(vec![command])
        }
        Kind::GoGc => {
            let program = programs.go_gc.as_ref().context("the Go program was not built")?;
            let mut command = Command::new(program);
            rests.iter().for_each(|seed| _ = command.args(["-rests", &seed.to_string()]));
            Ok(vec![progress(command, 0)])
        }
        _ => {
            let of = |(at, words): (usize, &&[&str])| {
                progress(Programs::antagonist(&programs.antagonist, words, rests), at)
            };
            Ok(kind.modes().iter().enumerate().map(of).collect())
        }
    }
}

/// A C tree of many small files: a run of two seconds beside a busy service still counts some dozens.
fn write_tree(directory: &Path) -> Result<()> {
    let write = |name: &str, text: String| {
        fs::write(directory.join(name), text).with_context(|| format!("write {name} of the C tree"))
    };
    for file in 0..C_FILES {
        write(&format!("part{file}.c"), c_file(file))?;
    }
    let objects: Vec<String> = (0..C_FILES).map(|file| format!("part{file}.o")).collect();
    write(
        "Makefile",
        format!(
            "all: {}\n%.o: %.c\n\t@cc -O2 -c $< -o $@ && printf . >> done\n.PHONY: all\n",
            objects.join(" ")
        ),
    )
}

fn c_file(file: usize) -> String {
    let mut text =
        "#include <stdint.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n"
            .to_owned();
    for function in 0..FUNCTIONS {
        let (a, b) = (file * 31 + function * 7 + 3, function % 5 + 2);
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "uint64_t part{file}_{function}(uint64_t *words, uint64_t count, uint64_t seed) {{\n\
             \tuint64_t sum = seed;\n\
             \tfor (uint64_t at = 0; at + {b} < count; at++) {{\n\
             \t\tif ((words[at] ^ sum) % {a} == {b}) {{ sum = sum * {a} + words[at + {b}]; }}\n\
             \t\telse {{ words[at] = (sum << {b}) | (words[at] >> {b}); }}\n\
             \t}}\n\treturn sum;\n}}\n"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_compares_each_program_with_itself() {
        let rates = |ops: &[f64]| Rates { ops: ops.to_vec(), cpu: 1.0 };
        let share = rates(&[500.0, 10.0]).share_of(&rates(&[1_000.0, 10.0])).unwrap();
        assert!((share - 0.75).abs() < 1e-9);
        assert_eq!(rates(&[1.0]).share_of(&Rates::default()), None);
    }

    #[test]
    fn the_c_tree_builds() {
        let directory = tempfile::tempdir().unwrap();
        write_tree(directory.path()).unwrap();
        let built = Command::new("make")
            .args(["-s", "part0.o", "part1.o"])
            .current_dir(directory.path())
            .output()
            .unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        assert_eq!(fs::read(directory.path().join("done")).unwrap(), b"..");
    }
}
