//! The checker as in the paper: a look each interval, and a closer one where it is suspicious.

use std::sync::Arc;

use quell_model::{Event, Keyframe, Meta, Nanos};

use super::{Checker, Managed, Options, Report, WastedWait};

/// A closer look that is later than so many steps begins anew.
const LATE_STEPS: u64 = 5;

/// What the sampler is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Nothing until the next look.
    Resting,
    /// The last look was suspicious; the walk over the queues takes no lock, so a second one has to agree.
    Confirming,
    /// Looks follow each other closely until here, or until no violation lasts.
    Watching(Nanos),
}

/// Says when to look, and checks what is seen. It has no clock and no host: its user looks for it.
#[derive(Clone, Debug)]
pub struct Sampler {
    checker: Checker,
    window: Nanos,
    interval: Nanos,
    step: Nanos,
    phase: Phase,
    /// When the last look was.
    last: Nanos,
}

impl Sampler {
    /// Looks each `interval`; with a suspicion, for a window, 25 times in it.
    pub fn new(meta: &Meta, options: Options, interval: Nanos) -> Sampler {
        let window = options.window;
        let step = Nanos((window.0 / 25).max(1));
        let checker = Checker::new(meta, options);
        Sampler { checker, window, interval, step, phase: Phase::Resting, last: Nanos::ZERO }
    }

    /// As [`Checker::set_managed`].
    pub fn set_managed(&mut self, managed: Managed) {
        self.checker.set_managed(managed);
    }

    /// Takes a look at the host, and says when to look again.
    #[must_use]
    pub fn keyframe(&mut self, at: Nanos, keyframe: Arc<Keyframe>) -> Nanos {
        let since = self.last;
        let is_late = self.phase != Phase::Resting
            && at.since(since) > Nanos(self.step.0.saturating_mul(LATE_STEPS));
        if is_late {
            // Between looks the host is taken to stay as it was: not for as long as this.
            self.checker.rest(since);
            self.phase = Phase::Resting;
        }
        self.last = at;
        self.checker.keyframe(at, keyframe);
        let suspicious = self.checker.is_suspicious();
        if is_late && suspicious {
            // It may have lasted: that is not for nothing.
            self.checker.add_blind(since, at, "a closer look came late".to_owned());
        }
        let (phase, next) = match self.phase {
            Phase::Resting if suspicious => (Phase::Confirming, at),
            Phase::Confirming if suspicious => {
                // A window that begins here, and the look after it.
                (Phase::Watching(at + self.window + self.step), at + self.step)
            }
            Phase::Watching(until) if at < until || self.checker.is_violated() => {
                (Phase::Watching(until), at + self.step)
            }
            _ => (Phase::Resting, at + self.interval),
        };
        if phase == Phase::Resting {
            self.checker.rest(at);
        }
        self.phase = phase;
        next
    }

    /// Takes an event of the stream that is there while [`Sampler::is_watching`].
    pub fn event(&mut self, event: &Event) {
        if self.is_watching() {
            self.checker.event(event);
        }
    }

    /// Whether a suspicion is watched.
    pub fn is_watching(&self) -> bool {
        matches!(self.phase, Phase::Watching(_))
    }

    /// As [`Checker::alerts`].
    pub fn alerts(&mut self) -> Vec<WastedWait> {
        self.checker.alerts()
    }

    /// What was found until the last look.
    pub fn finish(self) -> Report {
        self.checker.conclude(self.last, |checker| checker.report.samples > 0)
    }
}
