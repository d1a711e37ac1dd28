//! LC tasks that share cores of other LC tasks, on a host with shared cores.
//!
//! A congested LC task for which no core is left becomes a guest: all its threads go one rung down and may
//! run on cores of other LC tasks, whose owners preempt it and which preempts BE. A guest keeps its
//! rights for a hold. On one core there is never a guest beside another task on the same rung: an owner that
//! is a guest elsewhere admits none on its own cores, unless those are all that the other may use.

use quell_model::{CoreSet, Nanos};

use super::Allocator;

impl Allocator {
    /// Decides who is a guest and where.
    pub(super) fn admit_guests(&mut self, now: Nanos) {
        for place in 0..self.tasks.len() as u32 {
            let task = self.task(place);
            if !task.is_lc() {
                continue;
            }
            let wants = task.claims() > 0;
            if wants || task.is_guest {
                self.admit(place, wants, now);
            }
        }
    }

    fn admit(&mut self, place: u32, wants: bool, now: Nanos) {
        let mut hosts = CoreSet::EMPTY;
        if wants || now < self.task(place).guest_until {
            hosts = self.hosts_for(place, wants);
        }
        let task = &mut self.tasks[place as usize];
        let satisfied = task.owned_len > 0 && task.unmet() == 0 && task.granted.1 == now;
        if hosts.is_empty() || satisfied {
            if task.is_guest {
                task.guest_hold.end(now);
            }
            (task.is_guest, task.hosts) = (false, CoreSet::EMPTY);
            return;
        }
        if !task.is_guest {
            task.guest_hold.begin(now);
        }
        (task.is_guest, task.hosts) = (true, hosts);
        if wants {
            task.guest_until = now + task.guest_hold.length;
        }
        let until = task.guest_until;
        self.revisit(until);
    }

    /// Cores of other LC tasks that this one may share: those that it shares already, and new ones whose owner has
    /// a core to spare (any owner for a task that has no core at all).
    fn hosts_for(&self, place: u32, wants: bool) -> CoreSet {
        let task = self.task(place);
        let foreign = task.open().intersection(&self.lc_owned).difference(&task.owned);
        let mut hosts = foreign.intersection(&task.hosts);
        if wants {
            for core in foreign.difference(&hosts).iter() {
                let owner = self.task(self.core(core).owner);
                if task.owned_len == 0 || owner.runnable < owner.owned_len {
                    hosts.insert(core);
                }
            }
        }
        // A guest's own cores are no place for others, and it is none where it would lock others out.
        let unshared: CoreSet =
            hosts.iter().filter(|&core| !self.task(self.core(core).owner).is_guest).collect();
        if !unshared.is_empty() {
            hosts = unshared;
        } else if task.owned_len > 0 {
            return CoreSet::EMPTY;
        }
        let room = task.cap.saturating_sub(task.owned_len) as usize;
        if hosts.len() <= room { hosts } else { hosts.iter().take(room).collect() }
    }
}
