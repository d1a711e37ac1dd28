//! What follows from events of a text: sequence numbers, run queues and keyframes.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use quell_model::{
    Activity, CoreSet, CoreState, Event, Keyframe, Left, Nanos, ThreadState, Topology, What,
};

use super::{NOBODY_KNOWN, Raw};
use crate::old_host::{Host, HostCore, Place};

const KEYFRAME_EVERY: Nanos = Nanos::from_secs(1);

/// Follows a host through the events of a text.
#[derive(Debug)]
pub struct Infer {
    host: Host,
    everywhere: CoreSet,
    /// Whether queues have to be worked out.
    has_no_queues: bool,
    /// By the core's position.
    cores: Vec<Told>,
    /// Processes of threads, where the text tells them.
    processes: HashMap<i32, i32>,
    next_keyframe: Option<Nanos>,
}

/// What was told of a core.
#[derive(Clone, Debug, Default)]
struct Told {
    runnable: u32,
    weight: u64,
    sequence: u64,
}

impl Infer {
    /// Begins with what the first events, in the order of time, say of the time before them: who is switched away
    /// without having come ran, and who comes without having been woken waited.
    pub fn new<'a>(
        topology: Topology,
        has_no_queues: bool,
        early: impl Iterator<Item = &'a Raw>,
    ) -> Infer {
        let mut host = Host::new(topology);
        let (mut met, mut switched) = (HashSet::new(), CoreSet::EMPTY);
        for raw in early {
            match &raw.what {
                What::Switch { next, .. } => {
                    let Some(at) = host.topology().position(raw.core) else { continue };
                    let is_first = !switched.contains(raw.core);
                    switched.insert(raw.core);
                    if let Some(prev) = raw.prev.filter(|prev| is_first && met.insert(prev.thread))
                    {
                        host.runs(prev, at);
                    }
                    if next.thread != 0 && met.insert(next.thread) {
                        host.waits(*next, at);
                    }
                }
                What::Waking { thread, .. }
                | What::Woken { thread, .. }
                | What::Fork { child: thread, .. } => {
                    met.insert(thread.thread);
                }
                _ => {}
            }
        }
        let told = |core: &HostCore| Told { runnable: core.runnable(), ..Told::default() };
        Infer {
            everywhere: host.topology().all(),
            cores: host.cores().iter().map(told).collect(),
            processes: HashMap::new(),
            next_keyframe: None,
            has_no_queues,
            host,
        }
    }

    /// Takes an event, and appends it and what follows from it.
    pub fn event(&mut self, raw: Raw, out: &mut VecDeque<Event>) {
        let Raw { at, core, mut what, prev, process } = raw;
        let Some(here) = self.host.topology().position(core) else { return };
        if let Some((thread, process)) = process {
            self.processes.insert(thread, process);
        }
        if matches!(what, What::Lost { .. }) {
            // Who runs and who waits has to be seen anew before a keyframe can say it.
            self.next_keyframe = Some(at + KEYFRAME_EVERY);
        }
        if self.next_keyframe.is_none_or(|next| at >= next) {
            self.next_keyframe = Some(at + KEYFRAME_EVERY);
            let keyframe = What::Keyframe(Arc::new(self.keyframe()));
            self.put(at, 0, keyframe, out);
        }
        self.name_process(&mut what);
        if let Some(prev) = prev.filter(|prev| prev.thread != self.host.cores()[here].running) {
            self.host.runs(prev, here);
        }
        self.host.follow(here, &what);
        self.note(&what);
        self.put(at, here, what, out);
        if !self.has_no_queues {
            return;
        }
        for position in 0..self.cores.len() {
            let runnable = self.host.cores()[position].runnable();
            if self.cores[position].runnable != runnable {
                self.cores[position].runnable = runnable;
                let of = self.host.id(position);
                self.put(at, position, What::Queue { of, queued: runnable, runnable }, out);
            }
        }
    }

    fn put(&mut self, at: Nanos, position: usize, what: What, out: &mut VecDeque<Event>) {
        let core = self.host.id(position);
        let sequence = self.cores[position].sequence;
        self.cores[position].sequence += 1;
        out.push_back(Event { at, core, sequence, what });
    }

    fn name_process(&mut self, what: &mut What) {
        let (What::Switch { next: thread, .. }
        | What::Waking { thread, .. }
        | What::Woken { thread, .. }
        | What::Exec { thread }
        | What::Fork { child: thread, .. }) = what
        else {
            return;
        };
        if let Some(process) = self.processes.get(&thread.thread) {
            thread.process = *process;
        }
    }

    /// What the host does not follow.
    fn note(&mut self, what: &What) {
        let position = |of| self.host.topology().position(of);
        match what {
            What::Queue { of, runnable, .. } => {
                if let Some(at) = position(*of) {
                    self.cores[at].runnable = *runnable;
                }
            }
            What::Load { of, weight, .. } => {
                if let Some(at) = position(*of) {
                    self.cores[at].weight = *weight;
                }
            }
            What::Switch { left, how: Left::Dead, .. } => drop(self.processes.remove(left)),
            _ => {}
        }
    }

    fn keyframe(&self) -> Keyframe {
        let core = |(position, told): (usize, &Told)| CoreState {
            core: self.host.id(position),
            running: match self.has_no_queues {
                true => self.host.cores()[position].running,
                // Somebody runs; the text does not say who.
                false if told.runnable > 0 => NOBODY_KNOWN,
                false => 0,
            },
            queued: told.runnable,
            runnable: told.runnable,
            weight: told.weight,
            average: 0,
            wake_pending: false,
            domain: self.everywhere,
        };
        let thread = |place: &Place| ThreadState {
            thread: place.thread,
            core: self.host.id(place.at),
            state: if place.runs { Activity::Running } else { Activity::Waiting },
            allowed: self.everywhere,
            bound: false,
        };
        let mut threads: Vec<ThreadState> = self.host.threads().map(thread).collect();
        threads.sort_by_key(|state| state.thread.thread);
        Keyframe { cores: self.cores.iter().enumerate().map(core).collect(), threads }
    }
}
