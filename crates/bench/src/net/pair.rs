//! Two programs in two namespaces: a server that says where it listens, and a client that answers with one line.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use quell_terminal::Stop;

use super::namespaces::Namespaces;
use crate::host::Program;

/// How long a case may take beside its time.
const PATIENCE: Duration = Duration::from_secs(15);
/// Characters of what a program has printed that an error quotes.
const QUOTE_MAX: usize = 300;

/// See the module.
pub struct Pair<'a> {
    /// The program, and its first words.
    pub program: &'a [&'a str],
    /// For what they print.
    pub directory: &'a Path,
    /// Where they run.
    pub namespaces: &'a Namespaces,
    /// In which of them the client is; the server is in the first.
    pub client_side: usize,
    /// Where the server listens, without a port.
    pub address: &'a str,
    /// The only core of the server, and that of the client.
    pub cores: [Option<usize>; 2],
    /// The server has to end with its client's first connection.
    pub server_ends: bool,
}

impl Pair<'_> {
    /// Runs a case once with a system; the client's answer.
    ///
    /// # Errors
    /// When an end fails, with the command and what it printed.
    pub fn run(&self, system: &str, case: &str, time: Duration, stop: &Stop) -> Result<String> {
        let address = format!("{}:0", self.address);
        let mut server = self.start("server", &["server", system, &address])?;
        let port = self.port(&mut server, stop).map_err(|error| self.explain(&server, error))?;
        let millis = time.as_millis().to_string();
        let client = self.start("client", &["client", system, &port, case, &millis])?;
        let End { name, command, program } = client;
        let finished = program.finish(time + PATIENCE, stop);
        stop.check()?;
        finished.map_err(|error| self.explain_end(name, &command, error))?;
        if self.server_ends {
            let End { name, command, program } = server;
            let finished = program.finish(PATIENCE, stop);
            finished.map_err(|error| self.explain_end(name, &command, error))?;
        }
        Ok(fs::read_to_string(self.output("client"))?)
    }

    fn start(&self, name: &'static str, words: &[&str]) -> Result<End> {
        let side = if name == "server" { 0 } else { self.client_side };
        let core = self.cores[usize::from(name != "server")].map(|core| core.to_string());
        let mut all: Vec<&str> = Vec::new();
        if let Some(core) = &core {
            all.extend(["taskset", "--cpu-list", core]);
        }
        all.extend(self.program.iter().chain(words));
        let (first, rest) = all.split_first().context("no program")?;
        let mut command = self.namespaces.command(side, first.as_ref());
        command.args(rest).stdin(Stdio::null());
        command.stdout(File::create(self.output(name))?);
        command.stderr(File::create(self.errors(name))?);
        let text = shown(&command);
        Ok(End { name, command: text, program: Program::start(name, &mut command)? })
    }

    fn output(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn errors(&self, name: &str) -> PathBuf {
        self.directory.join(format!("{name}.errors"))
    }

    /// Where the server listens, once it says so.
    fn port(&self, server: &mut End, stop: &Stop) -> Result<String> {
        let until = Instant::now() + PATIENCE;
        loop {
            let text = fs::read_to_string(self.output("server"))?;
            if let Some(port) = text.strip_suffix('\n').and_then(|it| it.strip_prefix("port ")) {
                return Ok(port.to_owned());
            }
            server.program.check()?;
            ensure!(Instant::now() < until, "the server does not say where it listens");
            stop.sleep(Duration::from_millis(1))?;
        }
    }

    fn explain(&self, end: &End, error: anyhow::Error) -> anyhow::Error {
        self.explain_end(end.name, &end.command, error)
    }

    /// What both have printed, the one that has failed first: the other may know why.
    fn explain_end(&self, name: &str, command: &str, error: anyhow::Error) -> anyhow::Error {
        let other = if name == "server" { "client" } else { "server" };
        let printed = [name, other].map(|name| {
            let text = fs::read_to_string(self.errors(name)).unwrap_or_default();
            text.split_whitespace().collect::<Vec<_>>().join(" ")
        });
        let printed: String = printed.join(" ").trim().chars().take(QUOTE_MAX).collect();
        match printed.is_empty() {
            true => error.context(format!("`{command}`")),
            false => error.context(format!("`{command}`: {printed}")),
        }
    }
}

/// One of the two, while it runs.
struct End {
    name: &'static str,
    command: String,
    program: Program,
}

/// What a person would type, without the directories of this machine.
fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let short = words.map(|word| {
        let word = word.to_string_lossy().into_owned();
        match Path::new(&word).file_name() {
            Some(name) if word.starts_with('/') => name.to_string_lossy().into_owned(),
            _ => word,
        }
    });
    // `nsenter --net --target PID --` is not part of what a person would run.
    let words: Vec<String> = short.collect();
    let own = words.iter().position(|word| word == "--").map_or(0, |at| at + 1);
    words[own..].join(" ")
}

/// The path of a program as text.
///
/// # Errors
/// When it is no Unicode.
pub fn path_text(path: &Path) -> Result<&str> {
    match path.to_str() {
        Some(text) => Ok(text),
        None => bail!("{} is not Unicode", path.display()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_is_shown_without_directories_and_namespaces() {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", "12", "--", "/a/b/peers", "sockets", "server"]);
        assert_eq!(shown(&command), "peers sockets server");
    }
}
