//! A loop that keeps a core awake and steps aside for anything.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};
use quell_model::CoreId;
use quell_model::CoreSet;

use super::{Policy, pin, set_policy};

/// A PAUSE loop at SCHED_IDLE on one core, until dropped. It keeps a virtual core from halting
/// (an idle one takes 4 to 20 times as long to wake) without contending for caches or memory, and
/// its turns tell how much of the core is left to it.
pub struct PauseLoop {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    stop: AtomicBool,
    turns: AtomicU64,
}

impl PauseLoop {
    /// Starts the loop on `core`.
    ///
    /// # Errors
    /// When the thread cannot be started, pinned, or put at SCHED_IDLE: it does not spin then.
    pub fn start(core: CoreId) -> Result<PauseLoop> {
        let shared = Arc::new(Shared::default());
        let seen = shared.clone();
        let (ready, is_ready) = std::sync::mpsc::sync_channel(1);
        let thread = std::thread::Builder::new()
            .name("pause-loop".into())
            .spawn(move || {
                let set = set_policy(0, Policy::Idle).and_then(|()| pin(0, &CoreSet::of(core)));
                let failed = set.is_err();
                let _ = ready.send(set);
                let mut turns = 0;
                // Relaxed: neither flag nor count guards other data.
                while !failed && !seen.stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                    turns += 1;
                    seen.turns.store(turns, Ordering::Relaxed);
                }
            })
            .context("start a PAUSE loop")?;
        let pause = PauseLoop { shared, thread: Some(thread) };
        is_ready.recv().context("the PAUSE loop ended")?.context("place the PAUSE loop")?;
        Ok(pause)
    }

    /// How often it went round so far.
    pub fn turns(&self) -> u64 {
        // Relaxed: a count alone.
        self.shared.turns.load(Ordering::Relaxed)
    }
}

impl Drop for PauseLoop {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
