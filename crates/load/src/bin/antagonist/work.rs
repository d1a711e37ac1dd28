//! What all modes share: when to stop, how to publish, and threads.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use quell_load::be::{Publisher, Slot};
use quell_load::now;
use quell_load::rests::Rests;
use quell_model::Nanos;
use signal_hook::consts::{SIGINT, SIGTERM};

/// The frame of an antagonist's work.
pub struct Work {
    stop: Arc<AtomicBool>,
    deadline: Nanos,
    progress: Option<PathBuf>,
    rests: Option<Rests>,
}

impl Work {
    pub fn new(
        progress: Option<PathBuf>,
        seconds: Option<f64>,
        rests: Option<u64>,
    ) -> anyhow::Result<Work> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGTERM, SIGINT] {
            signal_hook::flag::register(signal, stop.clone())?;
        }
        let deadline = match seconds {
            Some(seconds) if seconds.is_finite() && seconds > 0.0 => {
                now() + Nanos((seconds * 1e9) as u64)
            }
            Some(seconds) => bail!("--seconds {seconds}: use a time above 0"),
            None => Nanos::MAX,
        };
        Ok(Work { stop, deadline, progress, rests: rests.map(Rests::new) })
    }

    /// Whether the work should end.
    pub fn over(&self) -> bool {
        // Relaxed: the flag publishes nothing but itself.
        self.stop.load(Ordering::Relaxed) || now() >= self.deadline
    }

    /// The file that the work is published in. To be called once everything is prepared, because a
    /// benchmark takes the file's appearance for the start of the work.
    pub fn publish(&self, threads: usize, unit: &str) -> anyhow::Result<Publisher> {
        Ok(Publisher::create(self.progress.as_deref(), threads, unit)?)
    }

    /// Runs `turn` again and again on the calling thread until the work is over; the ops done.
    /// A turn returns its ops and should last well under a millisecond.
    pub fn repeat(
        &self,
        mut slot: Slot,
        mut turn: impl FnMut() -> anyhow::Result<u64>,
    ) -> anyhow::Result<u64> {
        while !self.over() {
            slot.add(turn()?);
            self.rest();
        }
        Ok(slot.ops())
    }

    /// Sleeps while a rest is on.
    fn rest(&self) {
        let Some(rests) = self.rests else { return };
        let at = now();
        if let Some(end) = rests.end_of(at) {
            thread::sleep(Duration::from_nanos((end - at).0));
        }
    }

    /// One thread for each turn, until the work is over; prints the sum of their ops.
    pub fn run_threads<T>(&self, unit: &str, turns: Vec<T>) -> anyhow::Result<()>
    where
        T: FnMut() -> anyhow::Result<u64> + Send,
    {
        let publisher = self.publish(turns.len(), unit)?;
        let begun = now();
        let ops = thread::scope(|scope| {
            let mut threads = Vec::new();
            for (index, turn) in turns.into_iter().enumerate() {
                let slot = publisher.slot(index).context("a slot for each thread")?;
                let name = format!("be-{index}");
                let thread = thread::Builder::new()
                    .name(name)
                    .spawn_scoped(scope, || self.repeat(slot, turn))?;
                threads.push(thread);
            }
            let mut sum = 0;
            for thread in threads {
                sum += thread.join().map_err(|_| anyhow!("a thread panicked"))??;
            }
            anyhow::Ok(sum)
        })?;
        let seconds = now().since(begun).0 as f64 / 1e9;
        println!("{ops} ops ({unit}) in {seconds:.3} s");
        Ok(())
    }
}
