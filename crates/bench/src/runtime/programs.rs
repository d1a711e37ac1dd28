//! The programs of the systems: how they are built, run and asked.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use quell_model::CoreSet;

use super::cases::{CPU_PER_OP, Case, Measured, Seen};
use super::{RuntimeSpec, echo};
use crate::host::{self, Program};
use quell_terminal::Stop;

/// How long a program may take beside its warm-up and its time.
const PATIENCE: Duration = Duration::from_secs(10);
/// The cases in C.
const C_SOURCES: [(&str, &str); 2] =
    [("threads.c", include_str!("threads.c")), ("threads.h", include_str!("threads.h"))];
/// The cases in Go.
const GO_SOURCES: [(&str, &str); 3] = [
    ("go.mod", include_str!("go/go.mod")),
    ("main.go", include_str!("go/main.go")),
    ("meter.go", include_str!("go/meter.go")),
];

/// Who is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum System {
    /// Our runtime.
    Quell,
    /// Goroutines.
    Go,
    /// tokio with threads that steal.
    Tokio,
    /// tokio with one thread.
    TokioCurrentThread,
    /// `may`.
    May,
    /// POSIX threads, in C.
    Threads,
    /// What none can avoid.
    Floor,
}

impl System {
    /// All of them, in the order of the tables.
    pub const ALL: [System; 7] = [
        System::Quell,
        System::Go,
        System::Tokio,
        System::TokioCurrentThread,
        System::May,
        System::Threads,
        System::Floor,
    ];
    /// Those that ours is to be ahead of (issue: Go, tokio and may).
    pub const RIVALS: [System; 4] =
        [System::Go, System::Tokio, System::TokioCurrentThread, System::May];

    /// Its name, in reports and for `quell-bench-peers`.
    pub fn name(self) -> &'static str {
        match self {
            System::Quell => "quell",
            System::Go => "go",
            System::Tokio => "tokio",
            System::TokioCurrentThread => "tokio-current-thread",
            System::May => "may",
            System::Threads => "pthreads",
            System::Floor => "floor",
        }
    }
}

/// A system that is there.
struct Peer {
    program: PathBuf,
    /// What comes before the case.
    first: Option<&'static str>,
    /// The cases that it has.
    cases: Vec<String>,
}

impl Peer {
    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(self.first);
        command
    }
}

/// The programs, and why others are missing.
pub struct Programs {
    peers: BTreeMap<System, Peer>,
    missing: BTreeMap<String, String>,
    directory: PathBuf,
}

impl Programs {
    /// Builds those in C and in Go and asks all of them what they can do. What cannot be built, or does not answer, is missing.
    ///
    /// # Errors
    /// When the directory cannot be written, or a stop was asked for.
    pub fn build(peers: &Path, directory: &Path, stop: &Stop) -> Result<Programs> {
        let mut programs = Programs {
            peers: BTreeMap::new(),
            missing: BTreeMap::new(),
            directory: directory.to_owned(),
        };
        for system in System::ALL {
            let (program, first) = match system {
                System::Threads => (build_c(directory)?, None),
                System::Go => (build_go(directory)?, None),
                other => (Ok(peers.to_owned()), Some(other.name())),
            };
            let peer = program.and_then(|program| {
                let mut peer = Peer { program, first, cases: Vec::new() };
                let mut command = peer.command();
                let listed = programs.text(system, command.arg("list"), PATIENCE, stop);
                let text = listed.map_err(|error| format!("{error:#}"))?;
                peer.cases = text.lines().map(str::to_owned).collect();
                Ok(peer)
            });
            stop.check()?;
            match peer {
                Ok(peer) => drop(programs.peers.insert(system, peer)),
                Err(why) => drop(programs.missing.insert(system.name().to_owned(), why)),
            }
        }
        Ok(programs)
    }

    /// Measures a case with each system. Who goes first changes with the round.
    ///
    /// # Errors
    /// When a stop was asked for.
    pub fn round(
        &mut self,
        spec: &RuntimeSpec,
        case: &Case,
        round: usize,
        seen: &mut Seen,
        stop: &Stop,
    ) -> Result<()> {
        let mut systems: Vec<System> = self.peers.keys().copied().collect();
        let first = round % systems.len().max(1);
        systems.rotate_left(first);
        for system in systems {
            // Of what a runtime does, the floor has only the server.
            if system != System::Floor || case.connections > 0 {
                self.one(spec, case, system, round, seen, stop)?;
            }
        }
        Ok(())
    }

    /// Measures a case with a system; a failure is noted, and leaves the round without a value.
    ///
    /// # Errors
    /// When a stop was asked for.
    pub fn one(
        &mut self,
        spec: &RuntimeSpec,
        case: &Case,
        system: System,
        round: usize,
        seen: &mut Seen,
        stop: &Stop,
    ) -> Result<()> {
        let Some(peer) = self.peers.get(&system) else { return Ok(()) };
        let named = format!("{}, {}", system.name(), case.name);
        if !peer.cases.iter().any(|known| known == case.asked()) {
            self.missing.entry(named).or_insert_with(|| "it has no such thing".to_owned());
            return Ok(());
        }
        match self.ask(spec, case, system, peer, stop) {
            Ok(measured) => {
                for metric in case.metrics {
                    // A server that never sleeps takes all the time that it can get.
                    if system != System::Floor || case.connections == 0 || *metric != CPU_PER_OP {
                        seen.note(case.name, system, metric, round, measured.value(metric));
                    }
                }
            }
            Err(error) => {
                stop.check()?;
                self.missing.insert(named, format!("round {} failed: {error:#}", round + 1));
            }
        }
        Ok(())
    }

    fn ask(
        &self,
        spec: &RuntimeSpec,
        case: &Case,
        system: System,
        peer: &Peer,
        stop: &Stop,
    ) -> Result<Measured> {
        let millis = |time: Duration| time.as_millis().to_string();
        let mut command = peer.command();
        command.args([case.asked(), &case.workers.to_string()]);
        command.args([millis(spec.warm_up), millis(spec.time)]);
        let cores = spec.cores(case);
        if case.connections == 0 {
            let patience = spec.warm_up + spec.time + PATIENCE;
            let text = on(&cores, || self.start(system, &mut command))?;
            text.0.finish(patience, stop)?;
            return Measured::parse(&fs::read_to_string(&text.1)?);
        }
        let (mut server, out) = on(&cores, || self.start(system, &mut command))?;
        let port = port(&mut server, &out, stop)?;
        host::pin(0, &CoreSet::of(spec.other)).context("pin the client")?;
        echo::measure(port, case.connections, spec, &server, stop)
    }

    /// What a program that ends by itself prints.
    fn text(
        &self,
        system: System,
        command: &mut Command,
        patience: Duration,
        stop: &Stop,
    ) -> Result<String> {
        let (program, out) = self.start(system, command)?;
        program.finish(patience, stop)?;
        Ok(fs::read_to_string(out)?)
    }

    /// Starts a program that prints to a file.
    fn start(&self, system: System, command: &mut Command) -> Result<(Program, PathBuf)> {
        let out = self.directory.join("answer");
        command.stdout(File::create(&out)?).stderr(Stdio::inherit());
        Ok((Program::start(system.name(), command)?, out))
    }

    /// What is missing, and why: one sentence each.
    pub fn missing(&self) -> impl Iterator<Item = String> {
        self.missing.iter().map(|(what, why)| format!("{what}: n/a: {why}"))
    }
}

/// Starts something on these cores alone: it inherits them, before it has a thread that could be missed.
fn on<T>(cores: &CoreSet, start: impl FnOnce() -> Result<T>) -> Result<T> {
    let own = host::affinity(0).context("read the own affinity")?;
    host::pin(0, cores).context("pin a program")?;
    let started = start();
    host::pin(0, &own).context("take back the own affinity")?;
    started
}

/// Where a server listens, once it says so.
fn port(server: &mut Program, out: &Path, stop: &Stop) -> Result<u16> {
    #[derive(serde::Deserialize)]
    struct Announced {
        port: u16,
    }
    let until = Instant::now() + PATIENCE;
    loop {
        let text = fs::read_to_string(out)?;
        if text.ends_with('\n') {
            let announced: Announced = serde_json::from_str(text.trim())?;
            return Ok(announced.port);
        }
        server.check()?;
        ensure!(Instant::now() < until, "the server does not say where it listens");
        stop.sleep(Duration::from_millis(2))?;
    }
}

/// A program, or why there is none.
type Built = Result<PathBuf, String>;

fn build_c(directory: &Path) -> Result<Built> {
    write(directory, &C_SOURCES)?;
    let program = directory.join("threads");
    let mut command = Command::new("cc");
    command.current_dir(directory).args(["-O2", "-pthread", "-o"]).arg(&program);
    Ok(build(command.arg(C_SOURCES[0].0), "a C compiler (cc)").map(|()| program))
}

fn build_go(directory: &Path) -> Result<Built> {
    let sources = directory.join("go");
    fs::create_dir_all(&sources)?;
    write(&sources, &GO_SOURCES)?;
    let program = directory.join("goroutines");
    let mut command = Command::new("go");
    command.current_dir(&sources).args(["build", "-trimpath", "-o"]).arg(&program).arg(".");
    // No network, whatever the user's settings: the module has no dependencies.
    command.envs([("GOTOOLCHAIN", "local"), ("GOPROXY", "off"), ("GOFLAGS", "-mod=mod")]);
    Ok(build(&mut command, "Go 1.22 or later").map(|()| program))
}

fn write(directory: &Path, sources: &[(&str, &str)]) -> Result<()> {
    for (name, text) in sources {
        fs::write(directory.join(name), text).with_context(|| format!("write {name}"))?;
    }
    Ok(())
}

fn build(command: &mut Command, what: &str) -> Result<(), String> {
    let mut done = || -> Result<()> {
        let output = match command.output() {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                bail!("there is no {what}")
            }
            other => other?,
        };
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "it does not build: {}", said.trim());
        Ok(())
    };
    done().map_err(|error| format!("{error:#}"))
}
