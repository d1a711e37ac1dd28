//! Who says which kthread runs on which core: nobody but itself alone, the daemon under the daemon.
//!
//! Alone a kthread runs when it likes. Under the daemon it runs while it holds a grant, which stands until the daemon
//! revokes it: a kthread that sleeps for want of work keeps its core, and needs nobody when it wakes up there. One that
//! has no grant sleeps on in its reactor; if work comes to it there (a timer, I/O, its bell) it asks for a core, rings
//! the daemon, and waits for its own bell.
//!
//! A *session* is one registration with one daemon. When the daemon goes away the session ends, every kthread goes on
//! alone, and a thread of this module registers again as soon as there is a daemon. Each session has its own memory;
//! kthreads change over to it one by one, each at its next scheduling point.

mod epoch;
mod keeper;
mod session;

use std::fmt;
use std::sync::Arc;

use quell_model::Nanos;

use crate::kthread::{Kthread, Shared};
use crate::runtime::{BuildError, Daemon};
use keeper::Keeper;
use session::Link;

/// Where kthreads get their cores.
pub(crate) trait Cores: Send + Sync + fmt::Debug {
    /// Takes the core that this kthread may use now, on its own thread: whether there is one. It changes over to another
    /// session here, so no uthread runs.
    fn take(&self, kthread: &Kthread) -> bool;

    /// Asks for a core for this kthread, on its own thread, and waits for it for a while: whether it has one.
    fn ask(&self, kthread: &Kthread) -> bool;

    /// Another kthread wants this one to run: there is work for it, and it sleeps. From any thread.
    fn wake(&self, kthread: &Kthread) {
        kthread.bell.ring();
    }

    /// What the daemon tells of this runtime; `None` without one.
    fn told(&self) -> Option<CongestionInfo> {
        None
    }
}

/// What the daemon tells of this runtime.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct CongestionInfo {
    /// The greatest queueing delay of the kthreads.
    pub(crate) queueing_delay: Nanos,
    /// Cores in use, smoothed.
    pub(crate) load: f64,
    /// Cores granted now.
    pub(crate) cores: usize,
}

/// Every kthread runs when it likes, on the cores that the runtime may use.
#[derive(Debug)]
pub(crate) struct Alone;

impl Cores for Alone {
    fn take(&self, _kthread: &Kthread) -> bool {
        true
    }

    fn ask(&self, _kthread: &Kthread) -> bool {
        true
    }
}

/// Where the kthreads of this runtime get their cores. Called before they start.
///
/// # Errors
/// When the daemon is required and not there.
pub(crate) fn connect(shared: &Shared) -> Result<Box<dyn Cores>, BuildError> {
    let config = &shared.config;
    if config.daemon == Daemon::Never {
        return Ok(Box::new(Alone));
    }
    let link = Arc::new(Link::new(shared));
    match link.register() {
        Ok(()) => {}
        Err(err) if config.daemon == Daemon::Required => {
            return Err(BuildError::Daemon(err.to_string()));
        }
        // Looked for again in the background.
        Err(_) => {}
    }
    let keeper = Keeper::start(Arc::clone(&link)).map_err(|source| BuildError::System {
        what: "start the thread that keeps the daemon",
        source,
    })?;
    Ok(Box::new(Kept { link, _keeper: keeper }))
}

/// The link with the thread that keeps it.
#[derive(Debug)]
struct Kept {
    link: Arc<Link>,
    _keeper: Keeper,
}

impl Cores for Kept {
    fn take(&self, kthread: &Kthread) -> bool {
        self.link.take(kthread)
    }

    fn ask(&self, kthread: &Kthread) -> bool {
        self.link.ask(kthread)
    }

    fn told(&self) -> Option<CongestionInfo> {
        self.link.told()
    }
}
