//! A lane in simulated time, whose members sleep and wake as they like.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;

use quell_model::Nanos;
use quell_policy::lanes::{LanePolicy, Look, Member, Members, Seen, Spec};

pub const fn us(micros: u64) -> Nanos {
    Nanos::from_micros(micros)
}

/// What a member does: works for a while, sleeps for a while, again and again.
#[derive(Clone, Copy, Debug)]
pub struct Habit {
    pub works: Nanos,
    /// Zero: never.
    pub sleeps: Nanos,
    /// It exits when it has worked so often.
    pub lives: u32,
}

impl Habit {
    pub const fn of(works: Nanos, sleeps: Nanos) -> Habit {
        Habit { works, sleeps, lives: u32::MAX }
    }
}

pub const BUSY: Habit = Habit::of(Nanos::MAX, Nanos::ZERO);

pub struct Actor {
    pub habit: Habit,
    pub left: Nanos,
    /// How often it works from now on.
    pub lives: u32,
    /// When it wakes up, if it sleeps; never, if it exited.
    pub wakes: Option<Nanos>,
}

/// A reason to choose anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    Woke(Member),
    Slept(Member),
    Exited(Member),
    /// The time has come at which the policy wanted to be asked, or has passed.
    Due,
}

/// Somebody lost the turn, or nobody had it.
#[derive(Clone, Debug)]
pub struct Change {
    pub from: Option<Member>,
    /// All that happened since the policy was last asked and that it wanted to know of.
    pub reasons: Vec<Event>,
}

/// A stretch of a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ran {
    pub member: Member,
    pub from: Nanos,
    pub to: Nanos,
    /// Who could run when the turn was given.
    pub runnable: Members,
}

/// A lane that does as its policy says: looks by time are late by `late`, a switch takes `switch`.
pub struct Lane {
    pub policy: Box<dyn LanePolicy>,
    pub actors: Vec<Actor>,
    pub now: Nanos,
    pub turn: Option<(Member, Nanos)>,
    /// When the policy wants to be asked next.
    pub look: Look,
    pub late: Nanos,
    pub switch: Nanos,
    pub ran: Vec<Ran>,
    /// What happened since the policy was last asked.
    pub happened: Vec<Event>,
    pub changes: Vec<Change>,
    /// Looks that were asked for by a time that had passed.
    pub stuck: u32,
}

impl Lane {
    pub fn new(spec: &Spec, habits: &[Habit]) -> Lane {
        let actor = |habit: &Habit| Actor {
            habit: *habit,
            left: habit.works,
            lives: habit.lives,
            wakes: None,
        };
        Lane {
            policy: spec.build(habits.len()).unwrap(),
            actors: habits.iter().map(actor).collect(),
            now: us(1_000),
            turn: None,
            look: Look::OnChange,
            late: Nanos::ZERO,
            switch: Nanos::ZERO,
            ran: Vec::new(),
            // The members are there.
            happened: (0..habits.len()).map(|at| Event::Woke(Member(at as u8))).collect(),
            changes: Vec::new(),
            stuck: 0,
        }
    }

    pub fn runnable(&self) -> Members {
        let awake = |at: &usize| self.actors[*at].wakes.is_none();
        (0..self.actors.len()).filter(awake).map(|at| Member(at as u8)).collect()
    }

    pub fn wake(&mut self) {
        for (at, actor) in self.actors.iter_mut().enumerate() {
            if actor.wakes.is_some_and(|wakes| wakes <= self.now) {
                (actor.wakes, actor.left) = (None, actor.habit.works);
                self.happened.push(Event::Woke(Member(at as u8)));
            }
        }
    }

    /// What the policy may choose anew for: whoever wakes up is a reason if it wanted to know, or if nobody could run.
    pub fn reasons(&mut self) -> Vec<Event> {
        let mut happened = std::mem::take(&mut self.happened);
        if self.look.at().is_some_and(|at| at <= self.now) {
            happened.push(Event::Due);
        }
        let tells_of_wakes = self.look.on_wake() || self.turn.is_none();
        happened.retain(|event| tells_of_wakes || !matches!(event, Event::Woke(_)));
        happened
    }

    /// Asks the policy, and gives the turn as it says; again after each switch, in which members may wake up, sleep
    /// and exit and periods may begin.
    pub fn look(&mut self) -> Look {
        loop {
            self.wake();
            let reasons = self.reasons();
            let seen = Seen { now: self.now, runnable: self.runnable(), turn: self.turn };
            let turn = self.policy.decide(&seen);
            assert_eq!(turn.member.is_none(), seen.runnable.is_empty(), "work conservation");
            assert!(turn.member.is_none_or(|member| seen.runnable.contains(member)));
            self.stuck += u32::from(turn.look.at().is_some_and(|at| at <= self.now));
            self.look = turn.look;
            let from = self.turn.map(|(member, _)| member);
            if turn.member == from {
                return turn.look;
            }
            assert!(!reasons.is_empty(), "{seen:?} and nothing happened, but now it says {turn:?}");
            self.changes.push(Change { from, reasons });
            self.give(turn.member);
            // Asked again once the switch is done, as a lane does.
            if self.turn.is_none() {
                return turn.look;
            }
        }
    }

    /// The member that is raised runs before the switch is over, and may go to sleep by then.
    pub fn give(&mut self, to: Option<Member>) {
        let raised = self.now + Nanos(self.switch.0 / 2);
        self.now += self.switch;
        self.turn = to.map(|member| (member, self.now));
        if let Some(member) = to.filter(|_| raised < self.now) {
            self.work(member, raised);
        }
    }

    /// Runs until `end`.
    pub fn run(&mut self, end: Nanos) {
        while self.now < end {
            let look = self.look();
            let runs = self.turn.map(|(member, _)| member);
            let by_time = look.at().map(|at| at.max(self.now) + self.late);
            let wakes = self.actors.iter().filter_map(|actor| actor.wakes).min();
            let sleeps = runs.map(|member| self.now + self.actors[member.at()].left);
            // A lane where nobody can run looks at each wake-up whatever the policy says.
            let wakes = wakes.filter(|_| look.on_wake() || runs.is_none());
            let next = [by_time, wakes, sleeps, Some(end)].into_iter().flatten().min().unwrap();
            let from = self.now;
            self.now = next.max(self.now);
            if let Some(member) = runs {
                self.work(member, from);
            }
        }
    }

    /// A member has the core from then until now, or until it goes to sleep.
    pub fn work(&mut self, member: Member, from: Nanos) {
        let runnable = self.runnable();
        let actor = &mut self.actors[member.at()];
        let ran = self.now.since(from).min(actor.left);
        actor.left = actor.left - ran;
        if actor.left == Nanos::ZERO {
            actor.lives -= 1;
            let (wakes, event) = match actor.lives {
                0 => (Nanos::MAX, Event::Exited(member)),
                _ => (from + ran + actor.habit.sleeps, Event::Slept(member)),
            };
            actor.wakes = Some(wakes);
            self.happened.push(event);
        }
        self.ran.push(Ran { member, from, to: from + ran, runnable });
    }

    /// What each member got.
    pub fn shares(&self) -> BTreeMap<u8, Nanos> {
        let mut shares = BTreeMap::new();
        for ran in &self.ran {
            *shares.entry(ran.member.0).or_default() += ran.to.since(ran.from);
        }
        shares
    }

    /// The longest time for which a member that could run all along did not.
    pub fn longest_wait(&self, end: Nanos) -> Nanos {
        let waits =
            (0..self.actors.len()).filter(|at| self.actors[*at].habit.sleeps == Nanos::ZERO);
        let longest = waits.map(|at| {
            let mut last = us(1_000);
            let mut longest = Nanos::ZERO;
            for ran in self.ran.iter().filter(|ran| ran.member.at() == at) {
                longest = longest.max(ran.from.since(last));
                last = ran.to;
            }
            longest.max(end.since(last))
        });
        longest.max().unwrap_or_default()
    }

    /// From when a member woke up until it had done its work, each time.
    pub fn times_to_work(&self, member: usize) -> Vec<Nanos> {
        let habit = self.actors[member].habit;
        let (mut woke, mut left, mut times) = (us(1_000), habit.works, Vec::new());
        for ran in self.ran.iter().filter(|ran| ran.member.at() == member) {
            left = left - ran.to.since(ran.from);
            if left == Nanos::ZERO {
                times.push(ran.to.since(woke));
                (woke, left) = (ran.to + habit.sleeps, habit.works);
            }
        }
        times
    }

    /// Who ran, stretches of one turn counted once.
    pub fn order(&self) -> Vec<u8> {
        let mut order: Vec<u8> = self.ran.iter().map(|ran| ran.member.0).collect();
        order.dedup();
        order
    }
}
