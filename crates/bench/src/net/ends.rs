//! The two programs of a case.

use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quell_terminal::Stop;
use quell_testkit::SockMap;

use super::cases::{Case, MULTIPLEXERS, Measured, Place};
use super::namespaces::{ADDRESSES, Namespaces};
use super::pair::{Pair, path_text};

/// The server's address where connections go around TCP: of the loopback device, and no other program's.
const AROUND: Ipv4Addr = Ipv4Addr::new(127, 77, 7, 1);

/// See the module.
pub struct Ends<'a> {
    /// The `quell-bench-peers` program.
    pub peers: &'a Path,
    /// The program of [`MULTIPLEXERS`].
    pub multiplexers: &'a Path,
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
        // Until both programs have ended.
        let around = (system == "tcp-sockmap").then(|| SockMap::new(AROUND)).transpose();
        let _around = around.context("have connections go around TCP")?;
        let around = AROUND.to_string();
        let address = if system == "tcp-sockmap" { around.as_str() } else { address };
        let program = match MULTIPLEXERS.contains(&system) {
            true => vec![path_text(self.multiplexers)?],
            false => vec![path_text(self.peers)?, "sockets"],
        };
        let directory = self.directory;
        let (cores, server_ends) = ([None; 2], true);
        let program = &program;
        let pair =
            Pair { program, directory, namespaces, client_side, address, cores, server_ends };
        let answer = pair.run(system, case.name, time, stop)?;
        Measured::parse(&answer).with_context(|| format!("the client's answer: {}", answer.trim()))
    }
}
