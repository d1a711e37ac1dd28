//! The steps of one recorded thread, as its events come.

use quell_model::Nanos;
use quell_sim::{ProgramStep, RecordedStart, Service};

/// A thread whose steps are gathered.
#[derive(Debug)]
pub(super) struct ThreadSteps {
    pub steps: Vec<ProgramStep>,
    /// How it begins; `None`: no event says what it did first.
    pub start: Option<RecordedStart>,
    /// Up to when its steps account for its time.
    pub until: Nanos,
    /// CPU time since its last step.
    computed: Nanos,
    /// CPU time of the present stay on a core that is in steps or in `computed` already.
    taken: Nanos,
    /// Time that it has slept since it ran last.
    slept: Nanos,
    /// A thread has ended that sleep.
    woken: bool,
    /// All CPU time, and when it ended.
    pub ran: Nanos,
    pub ran_until: Nanos,
    pub waited: Nanos,
}

impl ThreadSteps {
    /// A thread that appears at this time, of which nothing is known since `from`.
    pub fn new(from: Nanos) -> ThreadSteps {
        ThreadSteps {
            steps: Vec::new(),
            start: None,
            until: from,
            computed: Nanos::ZERO,
            taken: Nanos::ZERO,
            slept: Nanos::ZERO,
            woken: false,
            ran: Nanos::ZERO,
            ran_until: from,
            waited: Nanos::ZERO,
        }
    }

    /// Nothing is in its steps yet.
    pub fn is_fresh(&self) -> bool {
        self.steps.is_empty() && self.ran == Nanos::ZERO && self.taken == Nanos::ZERO
    }

    /// It slept in this span, or did what no event says.
    pub fn sleep(&mut self, from: Nanos, until: Nanos) {
        self.slept += from.since(self.until) + until.since(from);
        self.until = until;
    }

    /// A thread ends its sleep; whether it is the first to do so.
    pub fn wake(&mut self) -> bool {
        !std::mem::replace(&mut self.woken, true)
    }

    /// It goes on at this time on core `on`, by index as `start` has it: what it did before is a step. `own` is its sync.
    fn go_on(&mut self, from: Nanos, own: u32, on: RecordedStart) {
        self.slept += from.since(self.until);
        let slept = std::mem::take(&mut self.slept);
        let step = match std::mem::take(&mut self.woken) {
            true => Some(ProgramStep::Take(own)),
            false if slept > Nanos::ZERO => Some(ProgramStep::Sleep(Service::Fixed(slept))),
            false => None,
        };
        if self.start.is_none() {
            self.start = Some(match (on, &step) {
                (RecordedStart::Runnable(core), Some(_)) => RecordedStart::Asleep(core),
                (start, _) => start,
            });
        }
        self.until = self.until.max(from);
        if let Some(step) = step {
            self.step(step);
        }
    }

    /// It waited for a core in this span.
    pub fn wait(&mut self, from: Nanos, until: Nanos, own: u32, on: RecordedStart) {
        self.go_on(from, own, on);
        self.waited += until.since(from);
        self.until = until;
    }

    /// It has run from `from` to `now` and goes on.
    pub fn advance(&mut self, from: Nanos, now: Nanos, own: u32, on: RecordedStart) {
        self.go_on(from, own, on);
        let ran = now.since(from);
        self.computed += ran.since(self.taken);
        self.taken = self.taken.max(ran);
    }

    /// It ran in this span, and leaves its core.
    pub fn run(&mut self, from: Nanos, until: Nanos, own: u32, on: RecordedStart) {
        self.advance(from, until, own, on);
        self.taken = Nanos::ZERO;
        self.ran += until.since(from);
        (self.until, self.ran_until) = (until, until);
    }

    /// A step at the present place of its burst.
    pub fn step(&mut self, step: ProgramStep) {
        self.end_burst();
        self.steps.push(step);
    }

    /// The trace ends, or the thread. What it sleeps for does not matter any more.
    pub fn end_burst(&mut self) {
        if self.computed > Nanos::ZERO {
            let computed = std::mem::take(&mut self.computed);
            self.steps.push(ProgramStep::Compute(Service::Fixed(computed)));
        }
    }
}
