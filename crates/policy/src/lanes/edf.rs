//! Earliest deadline first, with a budget for each period.

use quell_model::Nanos;

use super::{LanePolicy, Look, Member, Members, Seen, Turn};

/// What a member is promised: a budget of CPU time in each period, by the deadline after the period's begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Job {
    /// Its period.
    pub period: Nanos,
    /// What it gets in each.
    pub budget: Nanos,
    /// From the period's begin.
    pub deadline: Nanos,
}

/// Where a member is in its period.
#[derive(Clone, Copy, Debug)]
struct State {
    released: Nanos,
    left: Nanos,
    /// When it last had a whole budget.
    full_at: Nanos,
}

impl State {
    /// With a whole budget, but for what it used already.
    fn full(job: &Job, at: Nanos, used: Nanos) -> State {
        State { released: at, left: job.budget - used, full_at: at }
    }

    /// Whether what it has left until its deadline is no more than it would have got by working evenly: then it may have
    /// it by then, and others that work evenly still meet theirs.
    fn is_even(&self, job: &Job, now: Nanos) -> bool {
        let until_deadline = (self.released + job.deadline).since(now);
        let (left, budget) = (u128::from(self.left.0), u128::from(job.budget.0));
        left * u128::from(job.deadline.0) <= budget * u128::from(until_deadline.0)
    }

    /// It woke up within its period.
    fn wake(&mut self, job: &Job, now: Nanos) {
        if self.is_even(job, now) && now < self.released + job.deadline {
            return;
        }
        if job.deadline >= job.period || now >= self.full_at + job.period {
            *self = State::full(job, now, Nanos::ZERO);
        } else if self.left > Nanos::ZERO {
            self.released = now;
        }
    }
}

/// Runs, of those with budget left, the one with the earliest deadline. A member without budget gets what nobody
/// with budget wants. Where the budgets fit (`Spec::check` takes no others) each is met.
///
/// A period begins when its member wakes up after the last one's end, or there if it did not sleep. What a member
/// used stays used when it sleeps within a period: waking up is no way to a new budget. One that wakes so late that what it has
/// left would crowd out others by its deadline begins a period there, as the constant bandwidth server has it (Abeni and
/// Buttazzo, RTSS 1998, section 3; the kernel's `update_dl_entity()`): with a whole budget where the deadline is the period's
/// end, or where it last had one a period ago; else with what it has left. With deadlines before the periods' ends that is
/// enough while budgets per deadline add up to 1 at most; beyond that it holds for members that sleep at their periods' ends
/// alone.
#[derive(Clone, Debug)]
pub struct Edf {
    jobs: Vec<Job>,
    states: Vec<Option<State>>,
    awake: Members,
    /// Up to when the turn was charged.
    charged: Nanos,
}

impl Edf {
    /// With a job for each member; those beyond have none and run where nobody else can.
    pub fn new(jobs: Vec<Job>) -> Edf {
        let states = vec![None; jobs.len()];
        Edf { jobs, states, awake: Members::NONE, charged: Nanos::ZERO }
    }

    fn charge(&mut self, seen: &Seen) {
        if let Some((member, since)) = seen.turn
            && let Some(Some(state)) = self.states.get_mut(member.at())
        {
            let ran = seen.now.since(since.max(self.charged));
            state.left = state.left - ran;
        }
        debug_assert!(self.charged <= seen.now, "charged up to a later time than now");
        self.charged = seen.now;
    }

    fn release(&mut self, seen: &Seen) {
        for member in seen.runnable.iter() {
            let Some(job) = self.jobs.get(member.at()).copied() else { continue };
            let woke = !self.awake.contains(member);
            let state = &mut self.states[member.at()];
            let Some(state) = state else {
                *state = Some(State::full(&job, seen.now, Nanos::ZERO));
                continue;
            };
            let over = seen.now.since(state.released).0 / job.period.0.max(1);
            if over == 0 {
                if woke {
                    state.wake(&job, seen.now);
                }
            } else if woke {
                *state = State::full(&job, seen.now, Nanos::ZERO);
            } else {
                let next = Nanos(state.released.0 + over * job.period.0);
                // Alone, it is not looked at when its period begins: what it ran since is of the new budget.
                let ran = seen.turn.filter(|(runs, _)| *runs == member);
                let ran = ran.map_or(Nanos::ZERO, |(_, since)| seen.now.since(since.max(next)));
                *state = State::full(&job, next, ran);
                debug_assert!(next <= seen.now, "a period that begins later than now");
            }
        }
        self.awake = seen.runnable;
    }

    fn state(&self, member: Member) -> Option<(Job, State)> {
        Some((*self.jobs.get(member.at())?, (*self.states.get(member.at())?)?))
    }

    /// When the member's next period begins, if it stays awake.
    fn next_release(&self, member: Member) -> Nanos {
        self.state(member).map_or(Nanos::MAX, |(job, state)| state.released + job.period)
    }

    fn deadline(&self, member: Member) -> Option<Nanos> {
        let (job, state) = self.state(member).filter(|(_, state)| state.left > Nanos::ZERO)?;
        Some(state.released + job.deadline)
    }
}

impl LanePolicy for Edf {
    fn name(&self) -> &'static str {
        "edf"
    }

    fn decide(&mut self, seen: &Seen) -> Turn {
        self.charge(seen);
        self.release(seen);
        let with_budget = seen.runnable.iter().filter_map(|who| Some((self.deadline(who)?, who)));
        let first = with_budget.min();
        let over = seen.runnable.iter().map(|who| (self.next_release(who), who)).min();
        let Some((_, member)) = first.or(over) else { return Turn::IDLE };
        if seen.runnable.len() == 1 {
            return Turn::of(member, Look::OnChange);
        }
        // The next period of anybody may change who is first.
        let release = seen.runnable.iter().map(|who| self.next_release(who)).min();
        let left = self.state(member).map_or(Nanos::ZERO, |(_, state)| state.left);
        let spent = if left > Nanos::ZERO { seen.now + left } else { Nanos::MAX };
        match spent.min(release.unwrap_or(Nanos::MAX)) {
            Nanos::MAX => Turn::of(member, Look::OnChange),
            at => Turn::of(member, Look::AtOrOnWake(at)),
        }
    }
}
