//! The two programs of a case.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use quell_terminal::Stop;

use super::cases::{Case, Measured, Place};
use super::namespaces::{ADDRESSES, Namespaces};
use crate::host::Program;

/// How long a case may take beside its time.
const PATIENCE: Duration = Duration::from_secs(15);

/// See the module.
pub struct Ends<'a> {
    /// The `quell-bench-peers` program.
    pub peers: &'a Path,
    /// For what they print.
    pub directory: &'a Path,
    /// Where they run.
    pub namespaces: &'a Namespaces,
    /// The same, of [`Place::Bottleneck`].
    pub bottleneck: Option<&'a Namespaces>,
}

impl Ends<'_> {
    /// Runs a case once with a system.
    ///
    /// # Errors
    /// When an end fails, or bytes arrive that were not sent.
    pub fn measure(
        &self,
        case: &Case,
        system: &str,
        time: Duration,
        stop: &Stop,
    ) -> Result<Measured> {
        let said = [self.directory.join("server"), self.directory.join("client")];
        let (namespaces, address, client_side) = match case.place {
            Place::Together => (self.namespaces, "127.0.0.1", 0),
            Place::Apart => (self.namespaces, ADDRESSES[0], 1),
            Place::Bottleneck => {
                (self.bottleneck.context("there is no slow link")?, ADDRESSES[0], 1)
            }
        };
        if let Some(why) = namespaces.lacks_second_path.as_ref().filter(|_| system == "mptcp") {
            bail!("there is no second path: {why}");
        }
        let address = format!("{address}:0");
        let mut command = self.command(namespaces, 0);
        command.args(["server", system, &address]).stdout(File::create(&said[0])?);
        let mut server = Program::start("the server", &mut command)?;
        let port = self.port(&mut server, &said[0], stop)?;
        let mut command = self.command(namespaces, client_side);
        let millis = time.as_millis().to_string();
        command.args(["client", system, &port, case.name, &millis]);
        command.stdout(File::create(&said[1])?);
        let client = Program::start("the client", &mut command)?;
        client.finish(time + PATIENCE, stop)?;
        // It ends with its client's first connection.
        server.finish(PATIENCE, stop)?;
        let answer = fs::read_to_string(&said[1])?;
        Measured::parse(&answer).with_context(|| format!("the client's answer: {}", answer.trim()))
    }

    fn command(&self, namespaces: &Namespaces, side: usize) -> Command {
        let mut command = namespaces.command(side, self.peers.as_os_str());
        command.arg("sockets").stdin(Stdio::null());
        command
    }

    /// Where the server listens, once it says so.
    fn port(&self, server: &mut Program, said: &Path, stop: &Stop) -> Result<String> {
        let until = Instant::now() + PATIENCE;
        loop {
            let text = fs::read_to_string(said)?;
            if let Some(port) = text.strip_suffix('\n').and_then(|it| it.strip_prefix("port ")) {
                return Ok(port.to_owned());
            }
            server.check()?;
            ensure!(Instant::now() < until, "the server does not say where it listens");
            stop.sleep(Duration::from_millis(1))?;
        }
    }
}
