//! The core module: Caladan's core allocator, on any back end.
//!
//! It alone changes who owns which core, and alone keeps the four invariants of the crate. Two kinds
//! of host differ in what an owner needs to do with its core:
//!
//! - **Cores are shared** (`HostCaps::shares_cores`, a stock kernel): priority arbitrates on the core. An
//!   LC task owns its guaranteed cores always, even asleep, and BE is let in beneath it. Burst cores
//!   come with congestion and go after a hold. A congested LC task for which no core is left shares
//!   those of others as a guest: below their owner, above BE.
//! - **Cores are exclusive** (a runtime, a kernel module): a core serves its owner alone. A core
//!   is granted on demand and handed on the moment it falls idle, as in Caladan.
//!
//! One tick goes through the submodules in this order: `sync` (Snapshot into tables), `reserve`
//! (which cores serve whose guarantee), `advised` (bans and caps), `release`, `shields` (siblings that are
//! kept idle), `grant` (guarantees, then LC by congestion), `guests` or `batch` (BE), `write` (tables into
//! the Plan).
//!
//! Source: Caladan (OSDI'20, sections 4.1 and 4.2) and its `ias` policy.

pub mod constants;

mod advised;
mod batch;
mod debug;
mod grant;
mod guests;
mod release;
mod reserve;
mod save;
mod score;
mod shields;
mod sync;
mod tables;
mod write;

use quell_model::{Class, CoreId, CoreSet, Nanos, Plan, Reason, Snapshot};

use crate::explain::{Change, CoreWhy, Explanation, TaskWhy, Veto};
use crate::{Advice, Host, Wake};

use score::Market;
use tables::{CoreState, NONE, TaskState};

/// Declined advice that one tick can note.
const VETOES_MAX: usize = 64;
/// Changes of ownership that are kept for explanations.
const CHANGES_MAX: usize = 128;

/// The core module. [`crate::Quell`] runs it with advisors; alone it works as well.
pub struct Allocator {
    host: Host,
    /// By core number; holes in the numbers stay unusable.
    cores: Vec<CoreState>,
    tasks: Vec<TaskState>,
    /// Managed cores that are online.
    usable: CoreSet,
    /// Usable cores without an owner.
    free: CoreSet,
    lc_owned: CoreSet,
    be_owned: CoreSet,
    /// Cores that are kept idle (exclusive cores) or free of BE (shared ones) for a request on a sibling.
    shielded: CoreSet,
    /// Cores that fell idle or were given back in this tick.
    fell_idle: CoreSet,
    /// Tasks, limits or usable cores changed: reservations and spread have to be redone.
    stale: bool,
    /// Cores assigned since start.
    moves: u64,
    /// Grows whenever a core changes hands or a task its guarantee.
    version: u64,
    market: Market,
    /// By core number.
    siblings: Vec<Box<[CoreId]>>,
    /// Scratch: places of tasks that want cores.
    claims: Vec<u32>,
    /// The earliest time at which something has to be looked at without any event.
    next: Nanos,
    last: Nanos,
    vetoes: Vec<Veto>,
    vetoes_left_out: u32,
    changes: Vec<Change>,
    /// Where the next change goes once `changes` is full.
    oldest: usize,
}

impl Allocator {
    /// An allocator for a host, with nothing granted.
    pub fn new(host: Host) -> Allocator {
        let numbers = host.topology.cores().last().map_or(0, |core| core.id.index() + 1);
        let siblings = (0..numbers).map(|core| CoreId(core as u16));
        let siblings = siblings.map(|core| host.topology.siblings(core).iter().collect()).collect();
        Allocator {
            cores: vec![CoreState::NEW; numbers],
            host,
            tasks: Vec::new(),
            usable: CoreSet::EMPTY,
            free: CoreSet::EMPTY,
            lc_owned: CoreSet::EMPTY,
            be_owned: CoreSet::EMPTY,
            shielded: CoreSet::EMPTY,
            fell_idle: CoreSet::EMPTY,
            stale: true,
            moves: 0,
            version: 0,
            market: Market::default(),
            siblings,
            claims: Vec::new(),
            next: Nanos::MAX,
            last: Nanos::ZERO,
            vetoes: Vec::with_capacity(VETOES_MAX),
            vetoes_left_out: 0,
            changes: Vec::with_capacity(CHANGES_MAX),
            oldest: 0,
        }
    }

    /// The host that it decides for.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Decides from what was seen and advised, and writes the whole Plan.
    pub fn decide(
        &mut self,
        now: Nanos,
        seen: &Snapshot,
        advice: &Advice,
        plan: &mut Plan,
    ) -> Wake {
        self.next = advice.revisit;
        self.version += 1;
        self.sync(now, seen);
        if self.stale {
            self.reserve();
        }
        self.debug_check("reserve");
        self.take_advice(now, advice);
        self.release_unneeded(now);
        self.debug_check("release");
        self.take_shields(now, seen, advice);
        self.debug_check("shields");
        self.grant_guaranteed(now);
        self.grant_claims(now, seen, advice);
        // Fewer cores are idled each time, so this ends.
        while self.relent(now, advice) {
            self.grant_claims(now, seen, advice);
        }
        if self.host.caps.shares_cores {
            self.admit_guests(now);
        }
        self.debug_check("grant");
        self.write(now, seen, advice, plan);
        debug_assert_eq!(plan.cores.len(), self.host.topology.len(), "cores of the Plan");
        debug_assert_eq!(plan.tasks.len(), seen.tasks.len(), "tasks of the Plan");
        self.stale = false;
        self.last = now;
        Wake::at(self.next)
    }

    /// LC first, then BE, until nothing moves: one that lost a core to a task with more right may now
    /// claim one, and a BE task that gained a core may now yield another. Rights only ever grow in one
    /// direction (LC over BE, fewer burst cores over more), so this ends; the bound is for safety.
    fn grant_claims(&mut self, now: Nanos, seen: &Snapshot, advice: &Advice) {
        for _ in 0..=self.cores.len() {
            let before = self.moves;
            self.grant_lc(now, seen, advice);
            match self.host.caps.shares_cores {
                true => self.spread_leftover(now),
                false => self.grant_be(now, seen, advice),
            }
            if self.moves == before {
                return;
            }
        }
    }

    /// The last decision, explained.
    pub fn explain(&self) -> Explanation {
        let id_of = |place: u32| self.tasks.get(place as usize).map(|task| task.id);
        let tasks = self.tasks.iter().filter(|task| task.alive).map(|task| TaskWhy {
            id: task.id,
            class: task.class,
            runnable: task.runnable,
            waiting: task.waiting,
            queueing_delay: task.signal,
            congested: task.congested,
            cap: task.cap,
            banned: if task.is_banned { task.banned } else { CoreSet::EMPTY },
            owned: task.owned,
            reserved: task.reserved,
            rung: task.planned.0,
            reason: task.planned.1,
        });
        let cores = self.usable.iter().map(|id| (id, self.core(id))).map(|(id, core)| CoreWhy {
            id,
            owner: core.planned.0,
            reserved: id_of(core.reserved),
            since: core.since,
            reason: core.planned.1,
        });
        let (newer, older) = self.changes.split_at(self.oldest);
        Explanation {
            at: self.last,
            tasks: tasks.collect(),
            cores: cores.collect(),
            vetoes: self.vetoes.clone(),
            vetoes_left_out: self.vetoes_left_out,
            changes: older.iter().chain(newer).copied().collect(),
        }
    }

    /// Asks for a tick at `at`.
    fn revisit(&mut self, at: Nanos) {
        self.next = self.next.min(at);
    }

    /// Cores that the task may use now: allowed, neither banned nor shielded.
    fn open(&self, place: u32) -> CoreSet {
        let task = self.task(place);
        let spared = self.host.caps.shares_cores && task.is_lc();
        if spared { task.open() } else { task.open().difference(&self.shielded) }
    }

    fn core(&self, core: CoreId) -> &CoreState {
        &self.cores[core.index()]
    }

    fn owner_of(&self, core: CoreId) -> Option<&TaskState> {
        let owner = self.core(core).owner;
        (owner != NONE).then(|| self.task(owner))
    }

    fn task(&self, place: u32) -> &TaskState {
        &self.tasks[place as usize]
    }

    /// Makes a usable core the task's own, whoever had it.
    fn assign(&mut self, core: CoreId, place: u32, now: Nanos, reason: Reason) {
        debug_assert!(self.usable.contains(core), "core {core} is assigned and not usable");
        debug_assert!(self.task(place).alive, "core {core} is assigned to a task that left");
        debug_assert!(self.task(place).allowed.contains(core), "core {core} is not allowed");
        self.give_back(core, now);
        self.moves += 1;
        self.version += 1;
        let state = &mut self.cores[core.index()];
        (state.owner, state.since, state.reason) = (place, now, reason);
        let task = &mut self.tasks[place as usize];
        task.owned.insert(core);
        task.owned_len += 1;
        task.granted = (core, now);
        self.free.remove(core);
        match task.class {
            Class::LatencyCritical => self.lc_owned.insert(core),
            Class::BestEffort => self.be_owned.insert(core),
        }
    }

    /// Takes a core from its owner, if it has one.
    fn give_back(&mut self, core: CoreId, now: Nanos) {
        let state = &mut self.cores[core.index()];
        if state.owner == NONE {
            return;
        }
        let task = &mut self.tasks[state.owner as usize];
        debug_assert!(task.owned.contains(core), "core {core} is not among those of its owner");
        task.owned.remove(core);
        task.owned_len -= 1;
        (state.owner, state.since, state.reason) = (NONE, now, Reason::Unwanted);
        self.version += 1;
        self.lc_owned.remove(core);
        self.be_owned.remove(core);
        if self.usable.contains(core) {
            self.free.insert(core);
        }
    }

    /// Takes all cores and the place's reservations away.
    fn retire(&mut self, place: u32, now: Nanos) {
        for core in self.task(place).owned.iter() {
            self.give_back(core, now);
        }
        for core in self.task(place).reserved.iter() {
            self.cores[core.index()].reserved = NONE;
        }
        for core in &mut self.cores {
            core.history.iter_mut().filter(|ran| ran.0 == place).for_each(|ran| ran.0 = NONE);
            if core.refusal.task == place {
                core.refusal.task = NONE;
            }
        }
        let task = &mut self.tasks[place as usize];
        debug_assert_eq!(task.owned_len, 0, "task {} leaves with cores {}", task.id, task.owned);
        *task = TaskState::empty(task.id, task.limits);
        self.stale = true;
    }

    fn veto(&mut self, veto: Veto) {
        if self.vetoes.len() < VETOES_MAX {
            self.vetoes.push(veto);
        } else {
            self.vetoes_left_out += 1;
        }
    }

    fn log(&mut self, change: Change) {
        if self.changes.len() < CHANGES_MAX {
            self.changes.push(change);
        } else {
            self.changes[self.oldest] = change;
            self.oldest = (self.oldest + 1) % CHANGES_MAX;
        }
    }
}
