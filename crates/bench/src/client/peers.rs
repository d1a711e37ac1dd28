//! Open-loop clients of others: started as their authors mean it, on the client's core.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quell_model::{CoreId, CoreSet, Nanos};
use quell_terminal::Stop;
use serde::Deserialize;

use crate::host::Program;
use crate::services::Service;

/// The spinning client.
const SPIN: &str = include_str!("spin.c");
/// How long a client may take beyond its time.
const GRACE: Duration = Duration::from_secs(30);

/// A client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// pgbench of PostgreSQL with a rate: latencies count from the scheduled start.
    Pgbench,
    /// vegeta, a Go program: a constant rate.
    Vegeta,
    /// A C program that spins.
    Spin,
}

/// What a client is asked for.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Requests a second.
    pub rate_rps: f64,
    /// For so long.
    pub duration: Duration,
    /// Connections.
    pub connections: usize,
    /// The core to run on.
    pub core: CoreId,
    /// Seed of its arrivals, where it takes one.
    pub seed: u64,
}

/// Clients that are there.
pub struct Peers {
    directory: PathBuf,
    vegeta: Option<PathBuf>,
}

impl Peer {
    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Pgbench => "pgbench -R",
            Peer::Vegeta => "vegeta",
            Peer::Spin => "spinning C client",
        }
    }
}

impl Peers {
    /// Builds the spinning client into `directory`; `vegeta` is that program, if it is there.
    ///
    /// # Errors
    /// When there is no C compiler, or it refuses.
    pub fn prepare(directory: &Path, vegeta: Option<PathBuf>) -> Result<Peers> {
        let source = directory.join("spin.c");
        fs::write(&source, SPIN).with_context(|| format!("write {}", source.display()))?;
        let mut compiler = Command::new("cc");
        compiler.arg("-O2").arg("-o").arg(directory.join("spin")).arg(&source).arg("-lm");
        let built = compiler.output().context("cc (package build-essential)")?;
        if !built.status.success() {
            bail!("build spin.c: {}", String::from_utf8_lossy(&built.stderr));
        }
        Ok(Peers { directory: directory.to_owned(), vegeta })
    }

    /// Whether a client is there.
    pub fn has(&self, peer: Peer) -> bool {
        peer != Peer::Vegeta || self.vegeta.is_some()
    }

    /// Latencies of a run in ascending order.
    ///
    /// # Errors
    /// When the client fails, or what it wrote is malformed.
    pub fn run(
        &self,
        peer: Peer,
        service: &Service,
        asked: &Asked,
        stop: &Stop,
    ) -> Result<Vec<Nanos>> {
        let directory = tempfile::tempdir_in(&self.directory).context("make a directory")?;
        let latencies = match peer {
            Peer::Spin => self.spin(service, asked, directory.path(), stop),
            Peer::Pgbench => pgbench(service, asked, directory.path(), stop),
            Peer::Vegeta => self.vegeta(service, asked, directory.path(), stop),
        };
        let mut latencies = latencies.with_context(|| peer.name())?;
        if latencies.is_empty() {
            bail!("{} answered no request", peer.name());
        }
        latencies.sort_unstable();
        Ok(latencies)
    }

    fn spin(
        &self,
        service: &Service,
        asked: &Asked,
        directory: &Path,
        stop: &Stop,
    ) -> Result<Vec<Nanos>> {
        let mut command = Command::new(self.directory.join("spin"));
        command.args([&service.definition.name, &service.addr.port().to_string()]);
        command.args([asked.core.to_string(), asked.rate_rps.to_string()]);
        command.args([seconds(asked), asked.connections.to_string(), asked.seed.to_string()]);
        let said = finish(command, directory, asked, stop)?;
        said.lines().map(|line| Ok(Nanos(line.parse().context("a latency")?))).collect()
    }

    fn vegeta(
        &self,
        service: &Service,
        asked: &Asked,
        directory: &Path,
        stop: &Stop,
    ) -> Result<Vec<Nanos>> {
        #[derive(Deserialize)]
        struct Answer {
            latency: u64,
            code: u16,
        }
        let program = self.vegeta.as_ref().context("is not there")?;
        let results = directory.join("results.bin");
        let targets = directory.join("targets");
        fs::write(&targets, format!("GET http://{}/\n", service.addr)).context("write targets")?;
        let mut attack = Command::new(program);
        attack
            .args(["-cpus", "1", "attack", "-max-body", "0", "-targets"])
            .arg(&targets)
            .arg("-output")
            .arg(&results);
        attack.args(["-rate", &format!("{:.0}/s", asked.rate_rps)]);
        attack.args(["-duration", &format!("{}s", seconds(asked))]);
        attack.args(["-connections", &asked.connections.to_string()]);
        finish(attack, directory, asked, stop)?;
        let mut encode = Command::new(program);
        encode.args(["encode", "-to", "json"]).arg(&results);
        let said = finish(encode, directory, asked, stop)?;
        let answers = said.lines().map(|line| serde_json::from_str(line).context("an answer"));
        let answers: Vec<Answer> = answers.collect::<Result<_>>()?;
        let good = answers.iter().filter(|answer| answer.code == 200);
        Ok(good.map(|answer| Nanos(answer.latency)).collect())
    }
}

fn pgbench(service: &Service, asked: &Asked, directory: &Path, stop: &Stop) -> Result<Vec<Nanos>> {
    let prefix = directory.join("log");
    let mut command = Command::new("pgbench");
    command.args(["-n", "-S", "-h", "127.0.0.1", "-U", "postgres", "-p"]);
    command.arg(service.addr.port().to_string());
    command.args(["-c", &asked.connections.to_string(), "-j", "1"]);
    command.args(["-R", &format!("{:.0}", asked.rate_rps), "-T"]);
    command.arg(format!("{:.0}", asked.duration.as_secs_f64().ceil()));
    command.args(["--random-seed", &asked.seed.to_string(), "-l", "--log-prefix"]).arg(&prefix);
    command.arg("postgres");
    finish(command, directory, asked, stop)?;
    let mut latencies = Vec::new();
    for entry in fs::read_dir(directory).context("read its log")?.flatten() {
        if entry.file_name().to_string_lossy().starts_with("log.") {
            let text = fs::read_to_string(entry.path()).context("read its log")?;
            for line in text.lines() {
                // Client, transaction, microseconds.
                let micros = line.split(' ').nth(2).and_then(|word| word.parse().ok());
                latencies.push(Nanos::from_micros(micros.context("a line of its log")?));
            }
        }
    }
    Ok(latencies)
}

fn seconds(asked: &Asked) -> String {
    format!("{:.3}", asked.duration.as_secs_f64())
}

/// Runs a client on its core to its end. What it wrote to its standard output.
fn finish(mut command: Command, directory: &Path, asked: &Asked, stop: &Stop) -> Result<String> {
    let out = directory.join("out");
    command.stdin(Stdio::null()).stderr(Stdio::null());
    command.stdout(fs::File::create(&out).context("write its output")?);
    let name = command.get_program().to_string_lossy().into_owned();
    let program = Program::start(&name, &mut command)?;
    program.pin(&CoreSet::of(asked.core))?;
    program.finish(asked.duration + GRACE, stop)?;
    fs::read_to_string(&out).context("read its output")
}
