//! Who runs and who waits where, followed through events.

use std::collections::HashMap;

use quell_model::{Activity, CoreId, Keyframe, Left, Rank, Runner, ThreadName, Topology, What};

/// A host as the events so far leave it.
#[derive(Debug)]
pub struct Host {
    topology: Topology,
    cores: Vec<HostCore>,
    threads: HashMap<i32, Place>,
}

/// A core.
#[derive(Clone, Copy, Debug)]
pub struct HostCore {
    /// Who runs; 0 is the idle thread.
    pub running: i32,
    /// How many wait.
    pub waiting: u32,
    /// Whether it is on line.
    pub online: bool,
}

impl HostCore {
    /// How many want the core.
    pub fn runnable(&self) -> u32 {
        self.waiting + u32::from(self.running != 0)
    }
}

/// Where a thread runs or waits.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Who.
    pub thread: Runner,
    /// The core's position in the topology.
    pub at: usize,
    /// Whether it runs; else it waits.
    pub runs: bool,
}

impl Host {
    /// A host on which nobody runs.
    pub fn new(topology: Topology) -> Host {
        let idle = HostCore { running: 0, waiting: 0, online: true };
        Host { cores: vec![idle; topology.len()], topology, threads: HashMap::new() }
    }

    /// Its shape.
    pub fn topology(&self) -> &Topology {
        &self.topology
    }

    /// The core's number.
    pub fn id(&self, at: usize) -> CoreId {
        self.topology.cores()[at].id
    }

    /// The cores by position.
    pub fn cores(&self) -> &[HostCore] {
        &self.cores
    }

    /// The threads that run or wait, in no order.
    pub fn threads(&self) -> impl Iterator<Item = &Place> {
        self.threads.values()
    }

    /// Where a thread runs or waits.
    pub fn place(&self, thread: i32) -> Option<&Place> {
        self.threads.get(&thread)
    }

    /// Takes an event of the core at this position.
    pub fn follow(&mut self, here: usize, what: &What) {
        match what {
            What::Switch { next, left, how, .. } => self.switch(here, next, *left, *how),
            What::Waking { thread, target: on, .. } | What::Woken { thread, on, .. } => {
                let runs = self.place(thread.thread).is_some_and(|place| place.runs);
                if let Some(at) = self.topology.position(*on).filter(|_| !runs) {
                    self.waits(*thread, at);
                }
            }
            What::Migrate { thread, to, .. } => {
                let place = self.place(*thread).filter(|place| !place.runs).copied();
                if let (Some(place), Some(at)) = (place, self.topology.position(*to)) {
                    self.waits(place.thread, at);
                }
            }
            What::Exec { thread } => {
                if let Some(place) = self.threads.get_mut(&thread.thread) {
                    place.thread = *thread;
                }
            }
            What::Online { of, online } => {
                if let Some(at) = self.topology.position(*of) {
                    self.cores[at].online = *online;
                }
            }
            What::Keyframe(keyframe) => self.restart(keyframe),
            What::Lost { .. } => self.forget(here),
            _ => {}
        }
    }

    /// A thread waits there, wherever it was.
    pub fn waits(&mut self, thread: Runner, at: usize) {
        self.leaves(thread.thread);
        self.cores[at].waiting += 1;
        self.threads.insert(thread.thread, Place { thread, at, runs: false });
    }

    /// A thread runs there, wherever it was.
    pub fn runs(&mut self, thread: Runner, at: usize) {
        self.leaves(thread.thread);
        // Whoever was taken to run here does not, whatever the events left out.
        let before = self.cores[at].running;
        if self.place(before).is_some_and(|place| place.runs && place.at == at) {
            self.threads.remove(&before);
        }
        self.cores[at].running = thread.thread;
        if thread.thread != 0 {
            self.threads.insert(thread.thread, Place { thread, at, runs: true });
        }
    }

    fn switch(&mut self, here: usize, next: &Runner, left: i32, how: Left) {
        let known = self.place(left).map(|place| place.thread);
        self.leaves(left);
        if how == Left::Preempted && left != 0 {
            let nameless = Runner {
                thread: left,
                process: left,
                rank: Rank::FAIR,
                name: ThreadName::default(),
            };
            self.waits(known.unwrap_or(nameless), here);
        }
        self.runs(*next, here);
    }

    fn leaves(&mut self, thread: i32) {
        if let Some(place) = self.threads.remove(&thread) {
            let core = &mut self.cores[place.at];
            match place.runs {
                true => core.running = 0,
                false => core.waiting = core.waiting.saturating_sub(1),
            }
        }
    }

    fn forget(&mut self, here: usize) {
        self.threads.retain(|_, place| place.at != here);
        self.cores[here] = HostCore { running: 0, waiting: 0, ..self.cores[here] };
    }

    fn restart(&mut self, keyframe: &Keyframe) {
        *self = Host::new(self.topology.clone());
        let listed = |of: &CoreId| keyframe.cores.iter().any(|core| core.core == *of);
        for at in 0..self.cores.len() {
            self.cores[at].online = keyframe.cores.is_empty() || listed(&self.id(at));
        }
        for thread in &keyframe.threads {
            let Some(at) = self.topology.position(thread.core) else { continue };
            match thread.state {
                Activity::Running => self.runs(thread.thread, at),
                Activity::Waiting => self.waits(thread.thread, at),
                _ => {}
            }
        }
    }
}
