//! Cores that go online and offline.

use quell_model::{CoreId, MoveCause, Nanos};

use super::Linux;

impl Linux {
    /// Cores go online or offline; domains are built again.
    pub fn set_online(&mut self, core: CoreId, online: bool, now: Nanos) {
        let at = core.index();
        if self.online.contains(core) == online {
            return;
        }
        self.still.remove(core);
        if online {
            // The levels are lost as it comes back.
            self.after_hotplug = true;
            self.online.insert(core);
            self.idle.insert(core);
            self.tickless.insert(core);
            self.cores[at].idle_since = now;
        } else {
            self.online.remove(core);
            self.drain(at, now);
            self.idle.remove(core);
            self.tickless.remove(core);
        }
        let Linux { topology, online, model, after_hotplug, .. } = self;
        self.domains = super::Domains::build(topology, online, model, *after_hotplug);
        self.note_domains();
    }

    /// Moves all threads off a core (`migrate_tasks`).
    fn drain(&mut self, core: usize, now: Nanos) {
        let queue = &self.cores[core];
        let threads: Vec<usize> = queue.fair.iter().chain(&queue.realtime).copied().collect();
        for thread in threads {
            self.fall_back(thread);
            let to = self.threads[thread].allowed.intersection(&self.online).first();
            if let Some(to) = to {
                self.migrate(thread, to.index(), MoveCause::Hotplug, now);
            }
        }
    }
}
