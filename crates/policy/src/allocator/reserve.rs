//! Which cores serve whose guarantee.
//!
//! A reservation is a preference and a right, not a pin: others may use the core while its task does not
//! want it (on a host with exclusive cores). Lowest cores first, whole physical cores where there are
//! siblings (Caladan, section 4.2). First come, first served; LC before BE. Where guarantees exceed
//! what the allowed cores can give, some tasks stay short; no core is reserved twice.

use quell_model::{Class, CoreId, CoreSet};

use super::Allocator;
use super::tables::NONE;

impl Allocator {
    /// Redoes the reservations; those that still hold are kept.
    pub(super) fn reserve(&mut self) {
        self.drop_invalid();
        let is_short = |allocator: &Allocator, class: Class| {
            let mut tasks = allocator.tasks.iter();
            tasks.any(|task| {
                task.alive && task.class == class && task.reserved_len < task.guaranteed
            })
        };
        if is_short(self, Class::LatencyCritical) {
            for place in 0..self.tasks.len() as u32 {
                if self.task(place).is_be() {
                    self.task(place).reserved.iter().for_each(|core| self.unreserve(core));
                }
            }
        }
        for class in [Class::LatencyCritical, Class::BestEffort] {
            for place in 0..self.tasks.len() as u32 {
                if self.task(place).alive && self.task(place).class == class {
                    while self.task(place).reserved_len < self.task(place).guaranteed {
                        if !(self.reserve_next(place) || self.reserve_by_swap(place)) {
                            break;
                        }
                    }
                }
            }
        }
    }

    fn drop_invalid(&mut self) {
        for place in 0..self.tasks.len() as u32 {
            let task = self.task(place);
            let lost = task.reserved.difference(&task.allowed);
            let kept = task.reserved.intersection(&task.allowed);
            let surplus = kept.iter().skip(task.guaranteed as usize);
            lost.iter().chain(surplus).for_each(|core| self.unreserve(core));
        }
    }

    fn unreserve(&mut self, core: CoreId) {
        let place = std::mem::replace(&mut self.cores[core.index()].reserved, NONE);
        debug_assert_ne!(place, NONE, "core {core} serves no guarantee");
        let task = &mut self.tasks[place as usize];
        task.reserved.remove(core);
        task.reserved_len -= 1;
    }

    fn reserve_core(&mut self, core: CoreId, place: u32) {
        debug_assert_eq!(self.core(core).reserved, NONE, "core {core} is reserved twice");
        self.cores[core.index()].reserved = place;
        let task = &mut self.tasks[place as usize];
        debug_assert!(task.reserved_len < task.guaranteed, "{} has its guarantee", task.id);
        task.reserved.insert(core);
        task.reserved_len += 1;
    }

    fn unreserved(&self) -> CoreSet {
        self.usable.iter().filter(|&core| self.core(core).reserved == NONE).collect()
    }

    /// Reserves the best unreserved core: one that completes a physical core, then one of a whole
    /// physical core if the task needs all of it, then the lowest.
    fn reserve_next(&mut self, place: u32) -> bool {
        let task = self.task(place);
        let open = self.unreserved().intersection(&task.allowed);
        let missing = task.guaranteed - task.reserved_len;
        let siblings = |core: CoreId| self.host.topology.siblings(core).intersection(&self.usable);
        let completes = |core: &CoreId| {
            let siblings = siblings(*core);
            !siblings.is_empty() && !siblings.intersection(&task.reserved).is_empty()
        };
        let whole = |core: &CoreId| {
            let siblings = siblings(*core);
            siblings.is_subset(&open) && siblings.len() < missing as usize
        };
        let best = open.iter().find(completes).or_else(|| open.iter().find(whole));
        let Some(core) = best.or_else(|| open.first()) else { return false };
        self.reserve_core(core, place);
        true
    }

    /// Every allowed core serves another: finds a chain of tasks of which each can move on to a core of the
    /// next and the last to an unreserved one (an augmenting path), and moves them.
    fn reserve_by_swap(&mut self, place: u32) -> bool {
        let free = self.unreserved();
        if free.is_empty() {
            return false;
        }
        // Breadth first over tasks. Each was reached through a core that it holds and its parent wants.
        let mut queue = vec![(place, None::<(CoreId, usize)>)];
        let mut reached = CoreSet::EMPTY;
        let mut next = 0;
        while let Some(&(mover, _)) = queue.get(next) {
            let new = self.task(mover).allowed.difference(&reached);
            reached = reached.union(&new);
            if let Some(end) = new.intersection(&free).first() {
                self.shift(end, next, &queue);
                return true;
            }
            for core in new.iter() {
                let holder = self.core(core).reserved;
                if holder != NONE && !queue.iter().any(|&(seen, _)| seen == holder) {
                    queue.push((holder, Some((core, next))));
                }
            }
            next += 1;
        }
        false
    }

    /// Walks a chain backwards: each task takes the core that was passed on to it.
    fn shift(&mut self, end: CoreId, last: usize, chain: &[(u32, Option<(CoreId, usize)>)]) {
        let (mut core, mut at) = (end, last);
        loop {
            let (place, via) = chain[at];
            let Some((passed, parent)) = via else {
                self.reserve_core(core, place);
                return;
            };
            self.unreserve(passed);
            self.reserve_core(core, place);
            (core, at) = (passed, parent);
        }
    }
}
