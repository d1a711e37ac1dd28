//! From a Plan to what each task's threads should be like: pure, no system call.

use quell_model::{BeRung, Class, CoreMode, CoreSet, Plan, Reason, Role, Rung, TaskId};

use super::Pin;
use super::intent::Style;

/// What a task's threads should be like now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Want {
    /// Whose; tells apart two tasks that held the same place.
    pub task: TaskId,
    /// The class it is treated as.
    pub class: Class,
    /// Its step of the ladder.
    pub rung: Rung,
    /// Cores that it may run on: owned and beneath, those online.
    pub usable: CoreSet,
    /// Cores that it owns, those online.
    pub owned: CoreSet,
    /// Cores outside of the managed set that it may retreat to when it has none.
    pub away: CoreSet,
    /// All managed cores.
    pub managed: CoreSet,
}

impl Want {
    fn nothing(task: TaskId) -> Want {
        Want {
            task,
            class: Class::BestEffort,
            rung: Rung::Original,
            usable: CoreSet::EMPTY,
            owned: CoreSet::EMPTY,
            away: CoreSet::EMPTY,
            managed: CoreSet::EMPTY,
        }
    }

    /// The want of one thread of the task with this role. Processes that an LC task created may be BE
    /// (`children = be`): they run below the LC threads, on the task's cores.
    ///
    /// While the thread has relief, it is on that rung if its own is lower.
    pub fn of_thread(&self, lc: bool, role: Role, relief: Option<Rung>, style: &Style) -> Want {
        let (class, own) = match self.rung {
            Rung::Lc | Rung::LcOverflow if !lc => (Class::BestEffort, style.be),
            rung => match rung.of_role(role) {
                Rung::LcFair if role == Role::Background => (self.class, style.background),
                own => (self.class, own),
            },
        };
        Want { class, rung: relief.map_or(own, |relief| relief.min(own)), ..*self }
    }

    /// The want of a thread that goes to these cores on its own rung.
    pub fn of_helper(&self, cores: CoreSet) -> Want {
        Want { rung: Rung::Original, usable: cores, owned: CoreSet::EMPTY, ..*self }
    }

    /// Whether the Plan leaves the task no core at all.
    pub fn off_core(&self) -> bool {
        self.usable.is_empty()
    }
}

/// Where a thread goes and on which step, after its own affinity was honoured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Its affinity; never more than the thread's own.
    pub cores: CoreSet,
    /// Its step of the ladder.
    pub rung: Rung,
    /// Its own affinity has no core that the Plan gives to its task.
    pub stranded: bool,
}

impl Place {
    /// The same on one core alone, if the thread is kept to one and may use that by itself.
    pub fn kept_to(self, pin: Option<Pin>, own: &CoreSet) -> Place {
        match pin {
            Some(Pin::Core(core)) if own.contains(core) => {
                Place { cores: CoreSet::of(core), stranded: false, ..self }
            }
            _ => self,
        }
    }
}

/// Places one thread of a task, given the affinity that the thread had by itself.
pub(super) fn place(want: &Want, own: &CoreSet) -> Place {
    let inside = want.usable.intersection(own);
    if !inside.is_empty() {
        return Place { cores: inside, rung: want.rung, stranded: false };
    }
    if want.rung == Rung::Original {
        return Place { cores: *own, rung: Rung::Original, stranded: true };
    }
    if want.class == Class::LatencyCritical {
        // Pinned by the operator where its task owns nothing: it stays there, below whoever owns
        // the core.
        let rung = match want.rung {
            Rung::Lc | Rung::LcBoosted | Rung::LcReleased => Rung::LcOverflow,
            Rung::LcLong => Rung::LcOverflowLong,
            rung => rung,
        };
        return Place { cores: *own, rung, stranded: true };
    }
    let away = want.away.intersection(own);
    if !away.is_empty() {
        // SCHED_IDLE: these cores belong to others. A rung of LC tasks: the thread has relief, wherever it waits.
        let rung = if want.rung <= Rung::LcOverflowLong { want.rung } else { Rung::SchedIdle };
        return Place { cores: away, rung, stranded: false };
    }
    let managed = want.managed.intersection(own);
    if managed.is_empty() {
        return Place { cores: *own, rung: Rung::SchedIdle, stranded: true };
    }
    Place { cores: managed, rung: want.rung, stranded: true }
}

/// The wants of all tasks, with a generation each: a thread is settled once it was brought to its
/// task's present generation.
#[derive(Debug, Default)]
pub(super) struct Targets {
    wants: Vec<Slot>,
    scratch: Vec<Want>,
    offline: CoreSet,
    next_generation: u32,
}

#[derive(Clone, Copy, Debug)]
struct Slot {
    want: Want,
    generation: u32,
}

/// What a new Plan moved.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Moved {
    /// Cores whose owner, sharers or rungs changed.
    pub cores: CoreSet,
    /// Cores that came or went (hotplug) since the last Plan.
    pub plugged: CoreSet,
}

impl Targets {
    /// Takes a Plan in. `away` tells the cores that an admitted task may retreat to, `None` for a task
    /// that was not admitted: it is left alone. Allocates only while the number of task places grows.
    pub fn update(
        &mut self,
        plan: &Plan,
        away: impl Fn(TaskId) -> Option<CoreSet>,
        be: BeRung,
    ) -> Moved {
        let mut moved = Moved::default();
        let offline = with_reason(plan, Reason::Offline);
        moved.plugged = offline.difference(&self.offline).union(&self.offline.difference(&offline));
        self.offline = offline;

        self.fill_scratch(plan, away, be);
        for (at, want) in self.scratch.iter().enumerate() {
            let Some(slot) = self.wants.get_mut(at) else {
                self.next_generation += 1;
                self.wants.push(Slot { want: *want, generation: self.next_generation });
                moved.cores = moved.cores.union(&want.usable);
                continue;
            };
            if slot.want == *want {
                continue;
            }
            moved.cores = moved.cores.union(&differing_cores(&slot.want, want));
            self.next_generation += 1;
            *slot = Slot { want: *want, generation: self.next_generation };
        }
        self.wants.truncate(self.scratch.len());
        debug_assert_eq!(self.wants.len(), self.scratch.len(), "a want for each task of the Plan");
        moved
    }

    fn fill_scratch(&mut self, plan: &Plan, away: impl Fn(TaskId) -> Option<CoreSet>, be: BeRung) {
        let managed = plan.cores.iter().filter(|core| core.mode != CoreMode::Unmanaged);
        let managed: CoreSet = managed.map(|core| core.id).collect();
        self.scratch.clear();
        self.scratch.extend(plan.tasks.iter().map(|task| {
            let Some(away) = away(task.id) else { return Want::nothing(task.id) };
            Want {
                task: task.id,
                class: task.class,
                rung: if task.rung == Rung::SchedIdle { be.rung() } else { task.rung },
                usable: task.shared_cores.difference(&self.offline),
                owned: CoreSet::EMPTY,
                away,
                managed,
            }
        }));
        for core in &plan.cores {
            let Some(owner) = core.owner.filter(|_| !self.offline.contains(core.id)) else {
                continue;
            };
            if let Some(want) = self.scratch.get_mut(owner.at()).filter(|w| w.task == owner) {
                want.usable.insert(core.id);
                want.owned.insert(core.id);
            }
        }
    }

    /// What a task's threads should be like, and the generation of that wish. `None` for a task
    /// that the Plan does not name: its threads are left alone.
    pub fn of(&self, task: TaskId) -> Option<(&Want, u32)> {
        let slot = self.wants.get(task.at())?;
        (slot.want.task == task).then_some((&slot.want, slot.generation))
    }

    /// All wants, in the order of the task places.
    pub fn iter(&self) -> impl Iterator<Item = &Want> {
        self.wants.iter().map(|slot| &slot.want)
    }

    /// Makes each thread of the task be looked at anew.
    pub fn touch(&mut self, task: TaskId) {
        self.next_generation += 1;
        let generation = self.next_generation;
        if let Some(slot) = self.wants.get_mut(task.at()).filter(|slot| slot.want.task == task) {
            slot.generation = generation;
        }
    }
}

fn differing_cores(old: &Want, new: &Want) -> CoreSet {
    let same_kind = old.task == new.task && old.class == new.class && old.rung == new.rung;
    let either = old.usable.union(&new.usable);
    if !same_kind {
        return either;
    }
    let usable = either.difference(&old.usable.intersection(&new.usable));
    let owned = old.owned.union(&new.owned).difference(&old.owned.intersection(&new.owned));
    usable.union(&owned)
}

fn with_reason(plan: &Plan, reason: Reason) -> CoreSet {
    plan.cores.iter().filter(|core| core.reason == reason).map(|core| core.id).collect()
}
