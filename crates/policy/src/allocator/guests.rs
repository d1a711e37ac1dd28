//! LC tasks that share cores of other LC tasks, on a host with shared cores.
//!
//! A congested LC task for which no core is left becomes a guest: all its threads go one rung down and may
//! run on cores of other LC tasks, whose owners preempt it and which preempts BE. A guest keeps its
//! rights for a hold. There are two kinds:
//!
//! - a *homeless* guest owns no core and may be let in on any LC core;
//! - an *overflowing* guest owns some, needs more, and is let in where an owner has cores to spare. Its
//!   own cores then admit nobody, because it would meet them on one rung. Where that would leave another guest
//!   without any host, it stays an owner only: a guarantee comes before work conservation.

use quell_model::{CoreId, CoreSet, Nanos};

use super::Allocator;
use super::tables::NONE;
use super::write::limited;

impl Allocator {
    /// Decides who is a guest and where.
    pub(super) fn admit_guests(&mut self, now: Nanos) {
        let mut guests = std::mem::take(&mut self.claims);
        guests.clear();
        let mut spare = None;
        for place in 0..self.tasks.len() as u32 {
            let task = self.task(place);
            // A lane waits on one core at a rung below all guests.
            if task.is_lc() && !task.is_lane() && (task.is_guest || task.claims() > 0) {
                let spare = *spare.get_or_insert_with(|| self.spare_cores());
                let offered = self.candidates(place, &spare, now);
                self.tasks[place as usize].offered = offered;
                match offered.is_empty() {
                    true => self.end_stay(place, now),
                    false => guests.push(place),
                }
            }
        }
        // Homeless first, then those with the fewest burst cores.
        guests.sort_unstable_by_key(|&place| {
            let task = self.task(place);
            (task.owned_len > 0, task.burst(), task.since, place)
        });
        let mut closed = CoreSet::EMPTY;
        let mut admitted = 0;
        for at in 0..guests.len() {
            let place = guests[at];
            let offered = self.task(place).offered.difference(&closed);
            let owned = self.task(place).owned;
            let taken = closed.union(&owned);
            let evicts = |&guest: &u32| self.task(guest).offered.is_subset(&taken);
            if offered.is_empty() || (!owned.is_empty() && guests[..admitted].iter().any(evicts)) {
                self.end_stay(place, now);
                continue;
            }
            closed = taken;
            guests[admitted] = place;
            admitted += 1;
        }
        for &place in &guests[..admitted] {
            self.stay(place, &closed, now);
        }
        self.claims = guests;
    }

    /// Cores of other LC tasks that this one may share: those that it shares already, and new ones
    /// whose owner has a core to spare (any owner, for a task that has no core at all).
    fn candidates(&self, place: u32, spare: &CoreSet, now: Nanos) -> CoreSet {
        let task = self.task(place);
        let wants = task.claims() > 0;
        let satisfied = task.owned_len > 0 && task.unmet() == 0 && task.granted.1 == now;
        if task.owned_len >= task.cap || satisfied || !(wants || now < task.guest_until) {
            return CoreSet::EMPTY;
        }
        let foreign = self.open(place).intersection(&self.lc_owned).difference(&task.owned);
        // The members of a lane run below the rung of guests, so its core admits none.
        let foreign: CoreSet =
            foreign.iter().filter(|core| !self.task(self.core(*core).owner).is_lane()).collect();
        let kept = foreign.intersection(&task.hosts);
        match (wants, task.owned_len) {
            (false, _) => kept,
            (true, 0) => foreign,
            (true, _) => kept.union(&foreign.intersection(spare)),
        }
    }

    /// LC cores whose owner has fewer runnable threads than cores.
    fn spare_cores(&self) -> CoreSet {
        let has_spare = |core: &CoreId| {
            let owner = self.task(self.core(*core).owner);
            owner.runnable < owner.owned_len && !owner.is_lane()
        };
        self.lc_owned.iter().filter(has_spare).collect()
    }

    fn stay(&mut self, place: u32, closed: &CoreSet, now: Nanos) {
        let hosts = self.choose_hosts(place, closed);
        debug_assert!(hosts.is_subset(&self.lc_owned), "a guest on {hosts}, not all of LC");
        debug_assert!(hosts.intersection(closed).is_empty(), "a guest where others overflow");
        let task = &mut self.tasks[place as usize];
        task.hosts = hosts;
        if !task.is_guest {
            task.guest_hold.begin(now);
        }
        task.is_guest = !task.hosts.is_empty();
        if task.claims() > 0 {
            task.guest_until = now + task.guest_hold.length;
        }
        let until = task.guest_until;
        self.revisit(until);
    }

    /// As many of the offered cores as the guest's cap leaves room for: those that it shares already, but while it waits
    /// rather others than those on which another LC thread runs now.
    fn choose_hosts(&self, place: u32, closed: &CoreSet) -> CoreSet {
        let task = self.task(place);
        let offered = task.offered.difference(closed);
        let room = task.cap.saturating_sub(task.owned_len);
        if task.claims() == 0 || offered.len() <= room as usize {
            return limited(offered, room, &task.hosts);
        }
        let taken = |core: &CoreId| {
            let runs = self.core(*core).running;
            runs != NONE && runs != place && self.task(runs).is_lc()
        };
        let taken: CoreSet = offered.iter().filter(taken).collect();
        let calm = limited(offered.difference(&taken), room, &task.hosts);
        calm.union(&limited(taken, room - calm.len() as u32, &task.hosts))
    }

    fn end_stay(&mut self, place: u32, now: Nanos) {
        let task = &mut self.tasks[place as usize];
        if task.is_guest {
            task.guest_hold.end(now);
        }
        (task.is_guest, task.hosts) = (false, CoreSet::EMPTY);
    }
}
