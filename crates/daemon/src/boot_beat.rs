//! Signs of life while the daemon starts.
//!
//! From the moment when the guardians watch until the scheduler thread ticks, reading the host may take longer
//! than the age at which they take a heartbeat for stale. Nothing can hang unseen meanwhile: the beat ends by
//! itself.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use quell_act::JournalFile;
use quell_model::CoreSet;
use quell_os::sched::SchedAttr;
use quell_os::{clock, own};

/// Between two beats.
const EVERY: Duration = Duration::from_millis(50);
/// A start that takes longer than this hangs.
const AT_MOST: Duration = Duration::from_secs(60);

/// Beats until dropped.
pub struct BootBeat {
    _stop: Sender<()>,
}

impl BootBeat {
    /// Starts to beat, on the scheduler's rung, so that nobody's busy threads keep it from doing so.
    ///
    /// # Errors
    /// When there are no threads left.
    pub fn start(
        journal: Arc<JournalFile>,
        cores: CoreSet,
        rung: SchedAttr,
    ) -> std::io::Result<BootBeat> {
        let (stop, stopped) = channel();
        std::thread::Builder::new().name("quell-boot".into()).spawn(move || {
            // Without its rung it beats as well as it can.
            let _ = own::place_scheduler(&cores, &rung);
            let until = Instant::now() + AT_MOST;
            while Instant::now() < until
                && stopped.recv_timeout(EVERY) == Err(RecvTimeoutError::Timeout)
            {
                journal.beat(clock::now());
            }
        })?;
        Ok(BootBeat { _stop: stop })
    }
}
