//! What the allocator knows from one tick to the next, as bytes and back.
//!
//! Owners and reservations are saved once, with the cores; the sets that follow from them are rebuilt. A
//! state that contradicts itself is refused, because the allocator relies on its tables.

use std::borrow::Cow;

use quell_model::{Class, CoreSet, Nanos};
use serde::{Deserialize, Serialize};

use super::Allocator;
use super::tables::{CoreState, NONE, TaskState};
use crate::BadState;
use crate::state::{ensure, put, take};

#[derive(Serialize, Deserialize)]
struct Saved<'a> {
    cores: Cow<'a, [CoreState]>,
    tasks: Cow<'a, [TaskState]>,
    usable: CoreSet,
    stale: bool,
    last: Nanos,
}

impl Allocator {
    /// As [`crate::Policy::save`].
    pub fn save(&self, state: &mut Vec<u8>) {
        let saved = Saved {
            cores: Cow::Borrowed(&self.cores),
            tasks: Cow::Borrowed(&self.tasks),
            usable: self.usable,
            stale: self.stale,
            last: self.last,
        };
        put(&saved, state);
    }

    /// As [`crate::Policy::restore`].
    ///
    /// # Errors
    /// When the bytes are not the state of an allocator of this host.
    pub fn restore(&mut self, state: &mut &[u8]) -> Result<(), BadState> {
        let saved: Saved<'_> = take(state)?;
        saved
            .check(self.cores.len(), &self.host.managed.intersection(&self.host.topology.all()))?;
        self.cores = saved.cores.into_owned();
        self.tasks = saved.tasks.into_owned();
        (self.usable, self.stale, self.last) = (saved.usable, saved.stale, saved.last);
        self.rebuild();
        Ok(())
    }

    /// The sets that follow from who owns what and who has what reserved.
    fn rebuild(&mut self) {
        for task in self.tasks.iter_mut().filter(|task| task.alive) {
            task.allowed = task.limits.allowed.intersection(&self.usable);
            task.allowed_len = task.allowed.len() as u32;
        }
        (self.free, self.lc_owned, self.be_owned) = (self.usable, CoreSet::EMPTY, CoreSet::EMPTY);
        for core in self.host.topology.all().iter() {
            let CoreState { owner, reserved, .. } = self.cores[core.index()];
            if owner != NONE {
                let task = &mut self.tasks[owner as usize];
                task.owned.insert(core);
                task.owned_len += 1;
                self.free.remove(core);
                match task.class {
                    Class::LatencyCritical => self.lc_owned.insert(core),
                    Class::BestEffort => self.be_owned.insert(core),
                }
            }
            if reserved != NONE {
                let task = &mut self.tasks[reserved as usize];
                task.reserved.insert(core);
                task.reserved_len += 1;
            }
        }
    }
}

impl Saved<'_> {
    fn check(&self, numbers: usize, managed: &CoreSet) -> Result<(), BadState> {
        ensure(self.cores.len() == numbers, "a table of other cores")?;
        ensure(self.usable.is_subset(managed), "a core that is not managed")?;
        let alive = |place: u32| {
            place == NONE || self.tasks.get(place as usize).is_some_and(|task| task.alive)
        };
        for (core, number) in self.cores.iter().zip(0u16..) {
            let places = [core.owner, core.reserved, core.refusal.task];
            ensure(places.into_iter().all(alive), "a core of a task that is gone")?;
            let usable = self.usable.contains(quell_model::CoreId(number));
            ensure(usable || core.owner == NONE, "an owner of a core that nobody may use")?;
            ensure(core.refusal.is_bounded(), "a wait after a refusal that is longer than any")?;
        }
        let holds = self.tasks.iter().flat_map(|task| [task.burst_hold, task.guest_hold]);
        ensure(holds.into_iter().all(|hold| hold.is_bounded()), "a hold longer than any")
    }
}
