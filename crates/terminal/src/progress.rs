//! What a benchmark tells while it runs, and how it is told to stop.

use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// Hears how far a benchmark is.
pub trait Progress {
    /// `done` of `total` steps are over; `what` comes next.
    fn step(&mut self, done: usize, total: usize, what: &str);
    /// Something worth a line of its own.
    fn note(&mut self, text: &str);
}

/// Hears nothing.
pub struct Silent;

impl Progress for Silent {
    fn step(&mut self, _: usize, _: usize, _: &str) {}
    fn note(&mut self, _: &str) {}
}

/// Writes to standard error: one live line on a terminal, else a line every few seconds.
pub struct Live {
    started: Instant,
    shown: Option<Instant>,
    terminal: bool,
}

impl Live {
    /// Starts the clock.
    pub fn new() -> Live {
        Live { started: Instant::now(), shown: None, terminal: std::io::stderr().is_terminal() }
    }
}

impl Default for Live {
    fn default() -> Self {
        Live::new()
    }
}

impl Progress for Live {
    fn step(&mut self, done: usize, total: usize, what: &str) {
        let passed = self.started.elapsed();
        let left = match done {
            0 => String::new(),
            done => {
                let rest = passed.mul_f64((total.saturating_sub(done)) as f64 / done as f64);
                format!(", {} s left", rest.as_secs())
            }
        };
        let line = format!("[{done}/{total}] {what} ({} s{left})", passed.as_secs());
        if self.terminal {
            eprint!("\r\x1b[2K{line}");
            let _ = std::io::stderr().flush();
        } else if self.shown.is_none_or(|at| at.elapsed() > Duration::from_secs(5)) {
            eprintln!("{line}");
            self.shown = Some(Instant::now());
        }
        if done >= total && self.terminal {
            eprintln!();
        }
    }

    fn note(&mut self, text: &str) {
        if self.terminal {
            eprint!("\r\x1b[2K");
        }
        eprintln!("{text}");
    }
}

/// Whether the benchmark shall stop. Clones share one answer.
#[derive(Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Stops on SIGINT or SIGTERM from now on.
    ///
    /// # Errors
    /// When the handlers cannot be installed.
    pub fn on_signals() -> Result<Stop> {
        let stop = Stop::default();
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, stop.0.clone())
                .context("install signal handlers")?;
        }
        Ok(stop)
    }

    /// Asks for the stop.
    pub fn now(&self) {
        // Relaxed: the flag guards no other data.
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether a stop was asked for.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Sleeps, but not past a stop.
    ///
    /// # Errors
    /// When a stop was asked for.
    pub fn sleep(&self, time: Duration) -> Result<()> {
        let until = Instant::now() + time;
        loop {
            self.check()?;
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(Duration::from_millis(20)));
        }
    }

    /// Fails if a stop was asked for.
    ///
    /// # Errors
    /// When a stop was asked for.
    pub fn check(&self) -> Result<()> {
        if self.is_asked() {
            bail!("interrupted; everything that was started has been stopped");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stop_ends_a_sleep() {
        let stop = Stop::default();
        let other = stop.clone();
        let thread = std::thread::spawn(move || other.sleep(Duration::from_secs(60)));
        stop.now();
        assert!(thread.join().unwrap().is_err());
    }
}
