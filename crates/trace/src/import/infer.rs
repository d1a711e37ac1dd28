//! What follows from events of a text: sequence numbers, run queues and keyframes.
//!
//! The state of the host is [`HostState`]'s. Only what a text says beside its events is added here: names of threads
//! that leave a core, processes of threads, and what each core ran before the first event.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use quell_model::{
    Activity, CoreSet, CoreState, Event, Keyframe, Left, Meta, Nanos, Runner, Source as Origin,
    ThreadState, What,
};

use super::{NOBODY_KNOWN, Raw};
use crate::host::{self, HostCore, HostState, HostThread, HostVisitor, Occupant};

const KEYFRAME_EVERY: Nanos = Nanos::from_secs(1);

/// Follows a host through the events of a text.
#[derive(Debug)]
pub struct Infer {
    host: HostState,
    everywhere: CoreSet,
    /// Whether the text has no sizes of queues.
    has_no_queues: bool,
    /// By the core's index.
    cores: Vec<Given>,
    changed: Changed,
    /// Processes of threads, where the text has them.
    processes: HashMap<i32, i32>,
    next_keyframe: Option<Nanos>,
}

/// What was given out of a core.
#[derive(Clone, Copy, Debug, Default)]
struct Given {
    runnable: u32,
    sequence: u64,
}

/// Cores whose queue an event may have changed, with its size then.
#[derive(Debug, Default)]
struct Changed(Vec<(usize, u32)>);

impl HostVisitor for Changed {
    fn core_changed(&mut self, core: &HostCore, _: Nanos) {
        self.0.push((core.index, runnable(core)));
    }
}

/// Threads that want a core, by the events.
fn runnable(core: &HostCore) -> u32 {
    core.waiting + u32::from(matches!(core.running, host::Running::Thread(_)))
}

impl Infer {
    /// Begins with what the first events, in the order of time, say of the time before them: the first thread that is
    /// switched away from a core ran there, unless an event named it before.
    pub fn new<'a>(meta: &Meta, early: impl Iterator<Item = &'a Raw>) -> Infer {
        let topology = &meta.topology;
        let mut infer = Infer {
            everywhere: topology.all(),
            has_no_queues: meta.source != Origin::WastedCores,
            cores: vec![Given::default(); topology.len()],
            changed: Changed::default(),
            processes: HashMap::new(),
            next_keyframe: None,
            host: HostState::new(meta),
        };
        let mut begins_with: Vec<Option<Runner>> = vec![None; topology.len()];
        let (mut named, mut first) = (HashSet::new(), None);
        for raw in early {
            first.get_or_insert(raw.at);
            if let (Some(prev), Some(here)) = (raw.prev, topology.position(raw.core))
                && begins_with[here].is_none()
            {
                // Of a thread that was named before, the switch that brought it here is missing.
                let is_new = prev.thread == 0 || named.insert(prev.thread);
                let nameless = Runner { thread: NOBODY_KNOWN, ..prev };
                begins_with[here] = Some(if is_new { prev } else { nameless });
            }
            match &raw.what {
                What::Switch { next: thread, .. }
                | What::Waking { thread, .. }
                | What::Woken { thread, .. }
                | What::Fork { child: thread, .. } => drop(named.insert(thread.thread)),
                _ => {}
            }
        }
        if let Some(first) = first {
            let keyframe = infer.first_keyframe(&begins_with);
            infer.host.push_keyframe(first, &keyframe, &mut ());
        }
        infer
    }

    /// Each core as it is before the first event, and the thread that it runs.
    fn first_keyframe(&self, begins_with: &[Option<Runner>]) -> Keyframe {
        // Sizes of queues that the text has are of running threads that it does not name.
        let unseen = if self.has_no_queues { NOBODY_KNOWN } else { 0 };
        let core = |(core, runs): (&HostCore, &Option<Runner>)| {
            let running = runs.map_or(unseen, |runs| runs.thread);
            self.core_state(core, running, u32::from(running > 0))
        };
        let cores = self.host.cores().iter().zip(begins_with);
        let runs = cores.clone().filter_map(|(core, runs)| Some((core, (*runs)?)));
        let runs = runs.filter(|(_, runs)| runs.thread > 0);
        Keyframe {
            threads: runs
                .map(|(core, runs)| self.thread_state(runs, core.index, Activity::Running))
                .collect(),
            cores: cores.map(core).collect(),
        }
    }

    /// Takes an event, and appends it and what follows from it.
    pub fn event(&mut self, raw: Raw, out: &mut VecDeque<Event>) {
        let Raw { at, core, mut what, mut prev, process } = raw;
        let Some(here) = self.host.topology().position(core) else { return };
        if let Some((thread, process)) = process {
            self.processes.insert(thread, process);
        }
        if matches!(what, What::Lost { .. }) {
            // What runs and waits has to be seen anew before a keyframe can list it.
            self.next_keyframe = Some(at + KEYFRAME_EVERY);
        }
        if self.next_keyframe.is_none_or(|next| at >= next) {
            self.next_keyframe = Some(at + KEYFRAME_EVERY);
            let keyframe = self.keyframe();
            self.host.push_keyframe(at, &keyframe, &mut ());
            for (given, core) in self.cores.iter_mut().zip(&keyframe.cores) {
                given.runnable = core.runnable;
            }
            self.put(at, 0, What::Keyframe(Arc::new(keyframe)), out);
        }
        self.name_process(&mut what, &mut prev);
        self.changed.0.clear();
        // The numbers of a text are given here, and have no gaps.
        let event = Event { at, core, sequence: 0, what };
        self.host.push(&event, &mut self.changed);
        if let Some(prev) = prev {
            self.host.describe(&prev, &mut ());
        }
        if let What::Switch { left, how: Left::Dead, .. } = &event.what {
            self.processes.remove(left);
        }
        self.put(at, here, event.what, out);
        if !self.has_no_queues {
            return;
        }
        let mut changed = std::mem::take(&mut self.changed);
        changed.0.sort_unstable();
        for (index, runnable) in changed.0.drain(..) {
            if std::mem::replace(&mut self.cores[index].runnable, runnable) != runnable {
                let of = self.host.cores()[index].id;
                self.put(at, index, What::Queue { of, queued: runnable, runnable }, out);
            }
        }
        self.changed = changed;
    }

    fn put(&mut self, at: Nanos, index: usize, what: What, out: &mut VecDeque<Event>) {
        let core = self.host.cores()[index].id;
        let sequence = self.cores[index].sequence;
        self.cores[index].sequence += 1;
        out.push_back(Event { at, core, sequence, what });
    }

    fn name_process(&mut self, what: &mut What, prev: &mut Option<Runner>) {
        let named = match what {
            What::Switch { next: thread, .. }
            | What::Waking { thread, .. }
            | What::Woken { thread, .. }
            | What::Exec { thread }
            | What::Fork { child: thread, .. } => Some(thread),
            _ => None,
        };
        for thread in named.into_iter().chain(prev) {
            if let Some(process) = self.processes.get(&thread.thread) {
                thread.process = *process;
            }
        }
    }

    /// The state as it is.
    fn keyframe(&self) -> Keyframe {
        let core = |core: &HostCore| match self.has_no_queues {
            true => {
                let running = match self.host.occupant(core.index) {
                    Occupant::Unknown => NOBODY_KNOWN,
                    Occupant::Idle => 0,
                    Occupant::Thread(thread) => thread.tid(),
                };
                self.core_state(core, running, runnable(core))
            }
            false => {
                let runnable = core.counts.map_or(0, |counts| counts.runnable);
                // The text does not name the thread that runs.
                self.core_state(core, if runnable > 0 { NOBODY_KNOWN } else { 0 }, runnable)
            }
        };
        let thread = |thread: &HostThread| {
            let state = match thread.state {
                host::ThreadState::Running => Activity::Running,
                // A thread on its way to a queue is listed as the kernel lists it.
                host::ThreadState::Waiting | host::ThreadState::Waking => Activity::Waiting,
                _ => return None,
            };
            Some(self.thread_state(thread.info, thread.core, state))
        };
        let mut threads: Vec<ThreadState> = self.host.threads().filter_map(thread).collect();
        threads.sort_by_key(|state| state.thread.thread);
        Keyframe { cores: self.host.cores().iter().map(core).collect(), threads }
    }

    fn core_state(&self, core: &HostCore, running: i32, runnable: u32) -> CoreState {
        CoreState {
            core: core.id,
            running,
            queued: runnable,
            runnable,
            weight: core.load_weight,
            average: 0,
            wake_pending: false,
            domain: self.everywhere,
        }
    }

    fn thread_state(&self, thread: Runner, core: usize, state: Activity) -> ThreadState {
        let core = self.host.cores()[core].id;
        ThreadState { thread, core, state, allowed: self.everywhere, bound: false }
    }
}
