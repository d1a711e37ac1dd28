//! Clients of services beside the first: they wait asleep, so that they leave the core to the other client, which spins.

use std::net::SocketAddr;
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use quell_load::serve::send_runaway;
use quell_load::{Idle, LoadReport, LoadSpec, Silent};
use quell_model::Nanos;

use crate::host::{Inherit, Policy, set_policy_with};

/// The priority of such a client: it works for microseconds at a time, which the one that spins knows and leaves out.
const PRIORITY: i32 = 1;

/// What a client does to its server.
#[derive(Clone, Debug)]
pub enum Script {
    /// Offers load.
    Load(Box<LoadSpec>),
    /// Has a worker of the synthetic server run away for some time.
    Runaway {
        /// The server.
        addr: SocketAddr,
        /// Until then.
        after: Duration,
        /// For so long.
        spin: Duration,
    },
}

impl Script {
    /// Offers this load.
    pub fn load(load: LoadSpec) -> Script {
        Script::Load(Box::new(LoadSpec { idle: Idle::Wait, ..load }))
    }
}

/// Follows a script on a thread of its own, from now on.
///
/// # Errors
/// When the thread cannot be started.
pub fn follow(script: Script) -> Result<Following> {
    let thread = std::thread::Builder::new().name("second-client".into());
    let thread = thread.spawn(move || match script {
        Script::Load(load) => {
            // The generator's thread inherits the priority.
            set_policy_with(0, Policy::Fifo(PRIORITY), Inherit::Yes)
                .context("favour the second client")?;
            quell_load::run(&load, &mut Silent).map(Some).context("offer load to a second service")
        }
        Script::Runaway { addr, after, spin } => {
            std::thread::sleep(after);
            match send_runaway(addr, Some(Nanos(spin.as_nanos() as u64)))? {
                true => Ok(None),
                false => Err(anyhow!("the server refused to run away")),
            }
        }
    });
    Ok(Following { thread: thread.context("start the second client")? })
}

/// A script under way.
pub struct Following {
    thread: JoinHandle<Result<Option<LoadReport>>>,
}

impl Following {
    /// Waits for its end. What the load met, if it offered any.
    ///
    /// # Errors
    /// When the server could not be talked to.
    pub fn finish(self) -> Result<Option<LoadReport>> {
        self.thread.join().map_err(|_| anyhow!("the second client panicked"))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_load::ProtocolSpec;
    use quell_load::protocol::synthetic::{ServiceTime, SyntheticSpec};
    use quell_load::serve::{ServeSpec, Server};

    #[test]
    fn every_request_is_answered_by_a_client_that_sleeps() {
        let server = Server::start(&ServeSpec::new("127.0.0.1:0".parse().unwrap())).unwrap();
        let service = ServiceTime::Fixed { work_ns: 50_000 };
        let protocol = ProtocolSpec::Synthetic(SyntheticSpec { service });
        let load = LoadSpec::new(server.addr(), protocol, 500.0, Nanos::from_millis(300));
        let report = follow(Script::load(load)).unwrap().finish().unwrap().unwrap();
        let totals = report.overall.totals;
        assert!(totals.scheduled > 50 && totals.answered == totals.scheduled, "{totals:?}");
        assert_eq!(report.spec.idle, Idle::Wait);
        assert!(report.generator.slept_share > 0.0);
    }
}
