//! Parties* (PARTIES, ASPLOS'19, as Caladan's authors re-implemented it): every 500 ms one resource of one service is
//! adjusted by its latency slack.
//!
//! Resources are physical cores (siblings stay together) and ways of the last-level cache. Each step, in the
//! paper's order and with its constants:
//!
//! 1. The last step is judged. An upsize that did not lower the latency turns the service's wheel to the
//!    other resource and is *not* undone, since several may be short. A downsize after which slack is
//!    below 5 % is undone, turns the wheel and keeps that service from downsizing for 30 s.
//! 2. The service with the smallest slack below 5 % gets one unit: one that nobody has, else a BE task's,
//!    else that of the service with the most slack, which has to keep one. A victim whose wheel stands at the
//!    same resource turns it.
//! 3. Otherwise the service with the largest slack above 20 % gives one unit to BE, or to nobody.
//!
//! The first resource is cores (the paper draws lots; a replay has to decide the same again). Slack is
//! (target - latency) / target, from `latency_target` and the reported tail. A service without both keeps
//! what it has. The migration of PARTIES, to another host after 60 s without success, is left out: there is
//! no other host.

use quell_model::{Class, Nanos, Plan, Snapshot, TaskView};
use serde::{Deserialize, Serialize};

use super::partition::Division;
use super::{Known, live};
use crate::state::{ensure, put, take};
use crate::{BadState, Host, Missing, Policy, Reads, Wake};

/// Between two steps.
pub const STEP: Nanos = Nanos::from_millis(500);
/// Slack below which a service needs more, in thousandths.
pub const UPSIZE_BELOW: i64 = 50;
/// Slack above which it can do with less.
pub const DOWNSIZE_ABOVE: i64 = 200;
/// How long a service is not downsized after that went wrong.
pub const BACK_OFF: Nanos = Nanos::from_secs(30);

const NO_WAYS: [Missing; 1] =
    [Missing { part: "cache ways", needs: "a last-level cache that can be divided" }];

/// See the module.
pub struct Parties {
    host: Host,
    known: Known,
    state: State,
}

#[derive(Clone, Default, Serialize, Deserialize)]
struct State {
    division: Division,
    /// By place.
    services: Vec<Service>,
    trial: Option<Trial>,
    next: Nanos,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Service {
    wheel: Resource,
    not_down_before: Nanos,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
enum Resource {
    #[default]
    Cores,
    Ways,
}

impl Resource {
    fn other(self) -> Resource {
        match self {
            Resource::Cores => Resource::Ways,
            Resource::Ways => Resource::Cores,
        }
    }
}

/// What the last step did, to be judged by the next.
#[derive(Clone, Copy, Serialize, Deserialize)]
enum Trial {
    Up {
        place: u32,
        before: Nanos,
    },
    /// `to`: the BE task that got the unit.
    Down {
        place: u32,
        resource: Resource,
        to: Option<u32>,
    },
}

impl Parties {
    /// The policy for a host.
    pub fn new(host: Host) -> Parties {
        Parties { host, known: Known::default(), state: State::default() }
    }

    fn restart(&mut self, now: Nanos, seen: &Snapshot) {
        self.state = State {
            division: Division::equal(&self.host, &self.known.usable, seen),
            services: vec![Service::default(); seen.tasks.len()],
            trial: None,
            next: now + STEP,
        };
    }

    fn step(&mut self, now: Nanos, seen: &Snapshot) {
        if self.judge(now, seen) {
            return;
        }
        let services = || {
            let lc = live(seen).filter(|task| task.limits.class == Class::LatencyCritical);
            lc.filter_map(|task| slack(task).map(|slack| (slack, task)))
        };
        let tightest = services().min_by_key(|(slack, task)| (*slack, task.id));
        if let Some((_, task)) = tightest.filter(|(slack, _)| *slack < UPSIZE_BELOW) {
            self.upsize(task, seen);
            return;
        }
        let at_ease = services().filter(|(slack, task)| {
            let service = &self.state.services[task.id.at()];
            *slack > DOWNSIZE_ABOVE && now >= service.not_down_before
        });
        if let Some((_, task)) = at_ease.max_by_key(|(slack, task)| (*slack, task.id)) {
            self.downsize(task, seen);
        }
    }

    /// Judges the last step; true if it was undone, which is all that this step does then.
    fn judge(&mut self, now: Nanos, seen: &Snapshot) -> bool {
        let Some(trial) = self.state.trial.take() else { return false };
        let (Trial::Up { place, .. } | Trial::Down { place, .. }) = trial;
        let Some(task) = seen.tasks.get(place as usize) else { return false };
        let Some(slack) = slack(task) else { return false };
        match trial {
            Trial::Up { before, .. } => {
                if task.latency.value().is_some_and(|latency| latency >= before) {
                    self.turn(place);
                }
                false
            }
            Trial::Down { .. } if slack >= UPSIZE_BELOW => false,
            Trial::Down { resource, to, .. } => {
                self.move_unit(resource, task, to);
                self.turn(place);
                self.state.services[place as usize].not_down_before = now + BACK_OFF;
                true
            }
        }
    }

    fn upsize(&mut self, task: &TaskView, seen: &Snapshot) {
        let place = task.id.index;
        for _ in 0..2 {
            let resource = self.state.services[place as usize].wheel;
            let sources =
                [Some(None), self.richest_be(resource, seen), self.victim(resource, task, seen)];
            for from in sources.into_iter().flatten() {
                if self.move_unit(resource, task, from) {
                    let before = task.latency.value().unwrap_or_default();
                    self.state.trial = Some(Trial::Up { place, before });
                    let lc = from.filter(|victim| {
                        seen.tasks[*victim as usize].limits.class == Class::LatencyCritical
                    });
                    if let Some(victim) = lc
                        && self.state.services[victim as usize].wheel == resource
                    {
                        self.turn(victim);
                    }
                    return;
                }
            }
            self.turn(place);
        }
    }

    fn downsize(&mut self, task: &TaskView, seen: &Snapshot) {
        let place = task.id.index;
        for _ in 0..2 {
            let resource = self.state.services[place as usize].wheel;
            if self.units(resource, place) > 1 {
                let be = live(seen).filter(|task| task.limits.class == Class::BestEffort);
                let poorest = be.min_by_key(|task| (self.units(resource, task.id.index), task.id));
                let to = poorest.filter(|be| self.move_unit(resource, be, Some(place)));
                if to.is_none() {
                    self.leave(resource, place);
                }
                let to = to.map(|task| task.id.index);
                self.state.trial = Some(Trial::Down { place, resource, to });
                return;
            }
            self.turn(place);
        }
    }

    /// The BE task with the most units. It may lose its last one only where it can do without any.
    fn richest_be(&self, resource: Resource, seen: &Snapshot) -> Option<Option<u32>> {
        let caps = self.host.caps;
        let least = match resource {
            Resource::Cores => u32::from(caps.shares_cores && !caps.freezes_tasks),
            Resource::Ways => 1,
        };
        let be = live(seen).filter(|task| task.limits.class == Class::BestEffort);
        let units = be.map(|task| (self.units(resource, task.id.index), task.id.index));
        units.filter(|(units, _)| *units > least).max().map(|(_, place)| Some(place))
    }

    /// The service with the most slack that has more than one unit.
    fn victim(&self, resource: Resource, of: &TaskView, seen: &Snapshot) -> Option<Option<u32>> {
        let lc = live(seen).filter(|task| {
            task.limits.class == Class::LatencyCritical
                && task.id != of.id
                && self.units(resource, task.id.index) > 1
        });
        let known = lc.filter_map(|task| slack(task).map(|slack| (slack, task.id.index)));
        known.max().map(|(_, place)| Some(place))
    }

    fn units(&self, resource: Resource, place: u32) -> u32 {
        match resource {
            Resource::Cores => self.state.division.units_of(place),
            Resource::Ways => self.state.division.ways[place as usize].into(),
        }
    }

    /// Moves a unit to the task: one of `from`, or one that nobody has.
    fn move_unit(&mut self, resource: Resource, to: &TaskView, from: Option<u32>) -> bool {
        let division = &mut self.state.division;
        if resource == Resource::Cores {
            return division.take(to, from);
        }
        let available = match from {
            None => division.free_ways(&self.host),
            Some(place) => division.ways[place as usize],
        };
        if available == 0 {
            return false;
        }
        if let Some(place) = from {
            division.ways[place as usize] -= 1;
        }
        division.ways[to.id.at()] += 1;
        true
    }

    fn leave(&mut self, resource: Resource, place: u32) {
        match resource {
            Resource::Cores => {
                self.state.division.leave(place);
            }
            Resource::Ways => self.state.division.ways[place as usize] -= 1,
        }
    }

    fn turn(&mut self, place: u32) {
        if self.host.caps.llc_ways > 0 {
            let wheel = &mut self.state.services[place as usize].wheel;
            *wheel = wheel.other();
        }
    }
}

/// How far the latency is below its target, in thousandths of the target.
fn slack(task: &TaskView) -> Option<i64> {
    let target = i128::from(task.limits.latency_target.0);
    let latency = i128::from(task.latency.value()?.0);
    let slack = (target - latency) * 1_000 / (target != 0).then_some(target)?;
    Some(slack.max(i128::from(i64::MIN)) as i64)
}

impl Policy for Parties {
    fn name(&self) -> &'static str {
        "parties-star"
    }

    fn missing(&self) -> &[Missing] {
        if self.host.caps.llc_ways == 0 { &NO_WAYS } else { &[] }
    }

    fn reads(&self) -> Reads {
        Reads { latency: true, ..Reads::default() }
    }

    fn decide(&mut self, now: Nanos, seen: &Snapshot, plan: &mut Plan) -> Wake {
        if self.known.changed(&self.host, seen) {
            self.restart(now, seen);
        } else if now >= self.state.next {
            self.step(now, seen);
            self.state.next = now + STEP;
        }
        self.state.division.write(&self.host, &self.known.usable, seen, plan);
        Wake::At(self.state.next)
    }

    fn save(&self, state: &mut Vec<u8>) {
        put(&(&self.known, &self.state), state);
    }

    fn restore(&mut self, state: &mut &[u8]) -> Result<(), BadState> {
        let (known, saved): (Known, State) = take(state)?;
        let tasks = known.tasks.len();
        ensure(saved.division.is_sound(&self.host, tasks), "a division of another host")?;
        ensure(saved.services.len() == tasks, "wheels of other tasks")?;
        let is_known = |place: u32| (place as usize) < tasks;
        let sound = match saved.trial {
            None => true,
            Some(Trial::Up { place, .. }) => is_known(place),
            Some(Trial::Down { place, to, .. }) => is_known(place) && to.is_none_or(is_known),
        };
        ensure(sound, "a trial with a task that is gone")?;
        (self.known, self.state) = (known, saved);
        Ok(())
    }
}
