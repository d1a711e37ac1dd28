//! What holds of the tables between the phases of a tick. Release builds compile this to nothing.

use quell_model::{CoreId, CoreSet};

use super::Allocator;
use super::tables::NONE;

impl Allocator {
    /// Checks the sets of cores, and one core and one task per call: the next ones at the next call, so that hosts
    /// with a thousand cores are not slower by much.
    pub(super) fn debug_check(&self, phase: &str) {
        if !cfg!(debug_assertions) {
            return;
        }
        self.check_sets(phase);
        let turn = self.version.wrapping_add(self.last.0) as usize;
        if let Some(core) = self.host.topology.cores().get(turn % self.host.topology.len().max(1)) {
            self.check_core(core.id, phase);
        }
        if !self.tasks.is_empty() {
            self.check_task(turn % self.tasks.len(), phase);
        }
    }

    fn check_sets(&self, phase: &str) {
        let (free, lc, be) = (&self.free, &self.lc_owned, &self.be_owned);
        debug_assert!(
            lc.intersection(be).is_empty(),
            "{phase}: cores {lc} and {be} of LC and of BE"
        );
        let owned = lc.union(be);
        debug_assert!(free.intersection(&owned).is_empty(), "{phase}: {owned} owned, {free} free");
        let known = free.union(&owned);
        debug_assert_eq!(known, self.usable, "{phase}: free and owned cores, and the usable ones");
    }

    fn check_core(&self, id: CoreId, phase: &str) {
        let core = self.core(id);
        debug_assert!(core.refusal.is_bounded(), "{phase}: core {id} is refused for too long");
        let is_owned = self.lc_owned.union(&self.be_owned).contains(id);
        debug_assert_eq!(core.owner != NONE, is_owned, "{phase}: core {id} in table and set");
        if let Some(owner) = self.owner_of(id) {
            debug_assert!(owner.alive, "{phase}: core {id} is of task {}, which left", owner.id);
            debug_assert!(owner.owned.contains(id), "{phase}: core {id} is not {}'s", owner.id);
            let set = if owner.is_lc() { &self.lc_owned } else { &self.be_owned };
            debug_assert!(set.contains(id), "{phase}: core {id} is in the set of the other class");
        }
        if core.reserved != NONE {
            let keeper = self.task(core.reserved);
            debug_assert!(keeper.reserved.contains(id), "{phase}: core {id} for {}", keeper.id);
        }
    }

    fn check_task(&self, place: usize, phase: &str) {
        let task = &self.tasks[place];
        let owned: CoreSet = task.owned;
        debug_assert_eq!(task.owned_len as usize, owned.len(), "{phase}: {} owns {owned}", task.id);
        let reserved = task.reserved.len();
        debug_assert_eq!(task.reserved_len as usize, reserved, "{phase}: reserved for {}", task.id);
        debug_assert!(task.alive || owned.is_empty(), "{phase}: {} left and owns {owned}", task.id);
        debug_assert!(task.burst_hold.is_bounded(), "{phase}: {} holds too long", task.id);
        debug_assert!(task.guest_hold.is_bounded(), "{phase}: {} stays too long", task.id);
        for id in owned.iter() {
            debug_assert_eq!(self.core(id).owner as usize, place, "{phase}: owner of core {id}");
        }
        let hosts = task.hosts.intersection(&owned);
        let shares_own = task.is_guest && !hosts.is_empty();
        debug_assert!(!shares_own, "{phase}: {} is a guest on {hosts}, its own", task.id);
    }
}
