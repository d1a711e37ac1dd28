//! The state of the host while its events go by: who runs, who waits where, what is wasted.

use std::collections::HashMap;
use std::sync::Arc;

use quell_model::{
    Activity, Certainty, CoreId, CoreSet, Event, Keyframe, Left, Meta, MoveCause, Nanos, Runner,
    Search, Source, TaskNames, ThreadName, What,
};

use crate::waste::{Class, Waste};

/// A thread by the order of its appearance; 0 is every core's idle thread. A number of the kernel that is used again
/// after its thread ended is a thread of its own.
pub type ThreadIndex = u32;

/// The idle thread, and whoever is not known.
pub const NOBODY: ThreadIndex = 0;

/// What a reader of a trace wants to know. Times are nanoseconds since the first event and never run backwards;
/// cores are positions in the topology.
pub trait Watch {
    /// A run queue has a new size: threads that want the core.
    fn size(&mut self, _core: usize, _at: u64, _size: u32) {}
    /// A run queue has a new load: the sum of the weights in it.
    fn load(&mut self, _core: usize, _at: u64, _weight: u64) {}
    /// A core went to another thread.
    fn running(&mut self, _core: usize, _at: u64, _thread: ThreadIndex) {}
    /// What else is to be said of a core: [`WASTED`], [`LOST`], [`OFFLINE`].
    fn marks(&mut self, _core: usize, _at: u64, _marks: u8) {}
    /// Events of a core were lost in this span.
    fn gap(&mut self, _core: usize, _from: u64, _to: u64) {}
    /// A thread had a core.
    fn ran(&mut self, _core: usize, _thread: ThreadIndex, _from: u64, _to: u64) {}
    /// A thread waited on one core.
    fn waited(&mut self, _wait: &Wait) {}
    /// A thread waited, on whichever cores, from its wake-up until it ran.
    fn latency(&mut self, _thread: ThreadIndex, _at: u64, _ns: u64) {}
    /// One thread ran while another waited for the same core.
    fn delayed(&mut self, _thread: ThreadIndex, _by: ThreadIndex, _from: u64, _to: u64) {}
    /// A thread was moved.
    fn moved(
        &mut self,
        _at: u64,
        _thread: ThreadIndex,
        _from: usize,
        _to: usize,
        _cause: MoveCause,
    ) {
    }
    /// A thread was woken onto a busy core while one that it may use idled.
    fn bad_wakeup(&mut self, _at: u64, _thread: ThreadIndex, _onto: usize, _idle: usize) {}
    /// A search looked at these cores.
    fn considered(
        &mut self,
        _at: u64,
        _by: usize,
        _search: Search,
        _observed: bool,
        _cores: &CoreSet,
    ) {
    }
    /// The recording says something in words, of a span or of an instant.
    fn note(&mut self, _span: (u64, u64), _core: usize, _kind: Note, _text: &Arc<str>) {}
    /// A thread appeared, or has a new name.
    fn named(&mut self, _thread: ThreadIndex, _as: &Runner) {}
}

/// A mark of a core: it idles while a thread that may use it waits behind another.
pub const WASTED: u8 = 1;
/// A mark of a core: events were lost, its state is not known.
pub const LOST: u8 = 2;
/// A mark of a core: it is off line.
pub const OFFLINE: u8 = 4;

/// What kind of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// [`What::Violation`].
    Violation,
    /// [`What::Decision`], and what stands for it in files of older versions.
    Decision,
}

/// A thread's waiting on one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    /// Who.
    pub thread: ThreadIndex,
    /// Where.
    pub core: usize,
    /// Since when, in nanoseconds since the first event.
    pub from: u64,
    /// Until when.
    pub to: u64,
}

#[derive(Clone, Copy, PartialEq)]
enum State {
    Running,
    /// `on_core` is when it came to its present core.
    Waiting {
        since: u64,
        on_core: u64,
        woken: bool,
    },
    Asleep,
}

struct Thread {
    name: ThreadName,
    core: usize,
    state: State,
    /// `None`: it may not leave its core.
    class: Option<Class>,
    /// As counted in [`Waste`] while it waits.
    counted: Option<Class>,
}

struct Core {
    id: CoreId,
    running: ThreadIndex,
    since: u64,
    size: u32,
    load: u64,
    marks: u8,
    waiting: Vec<ThreadIndex>,
    /// The time of its last event and the number that its next one has.
    seen: (u64, u64),
}

/// Follows events and tells a [`Watch`] what they mean.
pub struct Replay {
    cores: Vec<Core>,
    position: HashMap<CoreId, usize>,
    threads: Vec<Thread>,
    by_number: HashMap<i32, ThreadIndex>,
    waste: Waste,
    tasks: TaskNames,
    /// The source knows no threads: whoever waits may run anywhere.
    anonymous: bool,
    origin: Option<Nanos>,
    now: u64,
}

impl Replay {
    /// Before the first event of a recording.
    pub fn new(meta: &Meta) -> Replay {
        let core = |id| Core {
            id,
            running: NOBODY,
            since: 0,
            size: 0,
            load: 0,
            marks: 0,
            waiting: Vec::new(),
            seen: (0, 0),
        };
        let cores: Vec<Core> = meta.topology.cores().iter().map(|one| core(one.id)).collect();
        let idle = Thread {
            name: ThreadName::new(b"idle"),
            core: 0,
            state: State::Running,
            class: None,
            counted: None,
        };
        let mut waste = Waste::new(meta.topology.all());
        cores.iter().for_each(|core| waste.set_idle(core.id, true));
        Replay {
            position: cores.iter().enumerate().map(|(at, core)| (core.id, at)).collect(),
            cores,
            threads: vec![idle],
            by_number: HashMap::from([(0, NOBODY)]),
            waste,
            tasks: TaskNames::default(),
            anonymous: meta.source == Source::WastedCores,
            origin: None,
            now: 0,
        }
    }

    /// The time of the first event, `None` before it.
    pub fn origin(&self) -> Option<Nanos> {
        self.origin
    }

    /// The time of the last event, in nanoseconds since the first.
    pub fn now(&self) -> u64 {
        self.now
    }

    /// Threads seen, the idle one included.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }

    /// Takes the next event. What names a core outside of the topology is passed over.
    pub fn push(&mut self, event: &Event, watch: &mut impl Watch) {
        let origin = *self.origin.get_or_insert(event.at);
        // Cores may see a few nanoseconds of skew.
        self.now = self.now.max(event.at.since(origin).0);
        let Some(&core) = self.position.get(&event.core) else { return };
        self.number(core, event, watch);
        self.apply(core, &event.what, watch);
        self.settle(watch);
        self.cores[core].seen.0 = self.now;
    }

    /// Tells what has been waited until now, so that what follows is told apart from it.
    pub fn cut(&mut self, watch: &mut impl Watch) {
        for core in 0..self.cores.len() {
            for at in 0..self.cores[core].waiting.len() {
                let thread = self.cores[core].waiting[at];
                self.end_piece(thread, watch);
                if let State::Waiting { on_core, .. } = &mut self.threads[thread as usize].state {
                    *on_core = self.now;
                }
            }
        }
    }

    /// Ends what still runs or waits.
    pub fn finish(&mut self, watch: &mut impl Watch) {
        for core in 0..self.cores.len() {
            self.end_run(core, watch);
        }
        self.cut(watch);
    }

    /// A gap in the numbers of a core is a loss like one that the recorder tells.
    fn number(&mut self, core: usize, event: &Event, watch: &mut impl Watch) {
        let next = self.cores[core].seen.1;
        self.cores[core].seen.1 = event.sequence.saturating_add(1);
        if next != 0 && event.sequence > next && !matches!(event.what, What::Keyframe(_)) {
            self.lose(core, watch);
        }
    }

    fn apply(&mut self, core: usize, what: &What, watch: &mut impl Watch) {
        match what {
            What::Switch { next, left, how, .. } => self.switch(core, next, *left, *how, watch),
            What::Waking { thread, target, .. } => {
                let thread = self.thread(thread, watch);
                if let Some(&onto) = self.position.get(target) {
                    self.wait(thread, onto, true, watch);
                }
            }
            What::Woken { thread, on, .. } => {
                let thread = self.thread(thread, watch);
                if let Some(&onto) = self.position.get(on) {
                    self.judge_wakeup(thread, onto, watch);
                    self.wait(thread, onto, true, watch);
                }
            }
            What::Migrate { thread, from, to, cause } => {
                self.migrate(*thread, *from, *to, *cause, watch);
            }
            What::Fork { child, .. } => {
                if child.thread != 0 {
                    self.by_number.remove(&child.thread);
                }
                self.thread(child, watch);
            }
            What::Exec { thread } => {
                self.thread(thread, watch);
            }
            What::Exit { thread } => {
                if *thread != 0
                    && let Some(gone) = self.by_number.remove(thread)
                {
                    self.stop_waiting(gone, watch);
                }
            }
            What::Allowed { thread, cores } => self.allow(*thread, *cores, false),
            What::Queue { of, runnable, .. } => self.told_size(*of, *runnable, watch),
            What::Load { of, weight, .. } => self.told_load(*of, *weight, watch),
            What::Considered { by, search, cores, certainty } => {
                if let Some(&by) = self.position.get(by) {
                    let observed = *certainty == Certainty::Observed;
                    watch.considered(self.now, by, *search, observed, cores);
                }
            }
            What::Online { of, online } => self.told_online(*of, *online, watch),
            What::Lost { .. } => self.lose(core, watch),
            What::Keyframe(frame) => self.synchronise(frame, watch),
            What::Task(_) => self.tasks.take(what),
            What::Decision(decision) => {
                let core = self.position.get(&decision.core).copied().unwrap_or(core);
                let line = decision.line(|id| self.tasks.name(id));
                watch.note((self.now, self.now), core, Note::Decision, &line.into());
            }
            What::Annotation(text) => {
                watch.note((self.now, self.now), core, Note::Decision, text);
            }
            What::Violation(told) => {
                let at = |time: Nanos| time.since(self.origin.unwrap_or_default()).0.min(self.now);
                let core = self.position.get(&told.core).copied().unwrap_or(core);
                watch.note((at(told.from), at(told.until)), core, Note::Violation, &told.text);
            }
            What::Softirq { .. } | What::Interrupt { .. } | What::Planned(_) => {}
        }
    }

    /// The index of a thread, which is new where its number is.
    fn thread(&mut self, runner: &Runner, watch: &mut impl Watch) -> ThreadIndex {
        let index = *self.by_number.entry(runner.thread).or_insert_with(|| {
            self.threads.push(Thread {
                name: ThreadName::default(),
                core: 0,
                state: State::Asleep,
                class: Some(Waste::ANYWHERE),
                counted: None,
            });
            (self.threads.len() - 1) as ThreadIndex
        });
        let thread = &mut self.threads[index as usize];
        if index != NOBODY && (thread.name != runner.name) {
            thread.name = runner.name;
            watch.named(index, runner);
        }
        index
    }

    fn switch(&mut self, core: usize, next: &Runner, left: i32, how: Left, watch: &mut impl Watch) {
        self.end_run(core, watch);
        let left = self.by_number.get(&left).copied().unwrap_or(NOBODY);
        if left != NOBODY && self.threads[left as usize].state == State::Running {
            self.threads[left as usize].state = State::Asleep;
            if how == Left::Preempted {
                self.wait(left, core, false, watch);
            }
        }
        let next = self.thread(next, watch);
        self.take(core, next, watch);
    }

    /// A thread gets a core.
    fn take(&mut self, core: usize, next: ThreadIndex, watch: &mut impl Watch) {
        if next != NOBODY {
            let state = self.threads[next as usize].state;
            self.stop_waiting(next, watch);
            if let State::Waiting { since, woken: true, .. } = state {
                watch.latency(next, self.now, self.now - since);
            }
            self.threads[next as usize].state = State::Running;
            self.threads[next as usize].core = core;
        }
        self.cores[core].running = next;
        watch.running(core, self.now, next);
        self.refresh_idle(core);
    }

    fn end_run(&mut self, core: usize, watch: &mut impl Watch) {
        let now = self.now;
        let Core { running, since, waiting, .. } = &self.cores[core];
        if *running != NOBODY && now > *since {
            watch.ran(core, *running, *since, now);
            for &waiter in waiting {
                if let State::Waiting { on_core, .. } = self.threads[waiter as usize].state {
                    watch.delayed(waiter, *running, on_core.max(*since), now);
                }
            }
        }
        self.cores[core].since = now;
    }

    /// A thread waits from now on, here; one that waits already at most changes its core.
    fn wait(&mut self, thread: ThreadIndex, core: usize, woken: bool, watch: &mut impl Watch) {
        if thread == NOBODY {
            return;
        }
        let since = match self.threads[thread as usize].state {
            // The wake-up of a running thread means nothing.
            State::Running => return,
            State::Waiting { .. } if self.threads[thread as usize].core == core => return,
            State::Waiting { since, woken, .. } => {
                self.stop_waiting(thread, watch);
                (since, woken)
            }
            State::Asleep => (self.now, woken),
        };
        let (since, woken) = since;
        let state = State::Waiting { since, on_core: self.now, woken };
        let slot = &mut self.threads[thread as usize];
        (slot.state, slot.core, slot.counted) = (state, core, slot.class);
        if let Some(class) = slot.counted {
            self.waste.begins(self.cores[core].id, class);
        }
        self.cores[core].waiting.push(thread);
    }

    /// Takes a thread out of the queue in which it waits.
    fn stop_waiting(&mut self, thread: ThreadIndex, watch: &mut impl Watch) {
        let State::Waiting { .. } = self.threads[thread as usize].state else { return };
        self.end_piece(thread, watch);
        let slot = &mut self.threads[thread as usize];
        slot.state = State::Asleep;
        let (core, counted) = (slot.core, slot.counted.take());
        if let Some(class) = counted {
            self.waste.ends(self.cores[core].id, class);
        }
        let waiting = &mut self.cores[core].waiting;
        if let Some(at) = waiting.iter().position(|one| *one == thread) {
            waiting.swap_remove(at);
        }
    }

    fn end_piece(&self, thread: ThreadIndex, watch: &mut impl Watch) {
        let Thread { core, state, .. } = self.threads[thread as usize];
        let State::Waiting { on_core, .. } = state else { return };
        let Core { running, since, .. } = self.cores[core];
        watch.waited(&Wait { thread, core, from: on_core, to: self.now });
        let from = on_core.max(since);
        if running != NOBODY && running != thread && self.now > from {
            watch.delayed(thread, running, from, self.now);
        }
    }

    /// Woken onto a core that runs another thread, while one that it may use idles.
    fn judge_wakeup(&mut self, thread: ThreadIndex, onto: usize, watch: &mut impl Watch) {
        let Thread { state, class, .. } = self.threads[thread as usize];
        let Core { running, marks, .. } = self.cores[onto];
        let (State::Waiting { .. } | State::Asleep, Some(class)) = (state, class) else { return };
        if running == NOBODY || running == thread || marks != 0 {
            return;
        }
        let idle = self.waste.idle().intersection(self.waste.allowed(class)).first();
        if let Some(&idle) = idle.and_then(|idle| self.position.get(&idle)) {
            watch.bad_wakeup(self.now, thread, onto, idle);
        }
    }

    fn migrate(
        &mut self,
        thread: i32,
        from: CoreId,
        to: CoreId,
        cause: MoveCause,
        watch: &mut impl Watch,
    ) {
        let (Some(&from), Some(&to)) = (self.position.get(&from), self.position.get(&to)) else {
            return;
        };
        let thread = self.by_number.get(&thread).copied().unwrap_or(NOBODY);
        watch.moved(self.now, thread, from, to, cause);
        if thread == NOBODY {
            return;
        }
        match self.threads[thread as usize].state {
            State::Waiting { .. } => self.wait(thread, to, false, watch),
            State::Running | State::Asleep => self.threads[thread as usize].core = to,
        }
    }

    fn allow(&mut self, thread: i32, cores: CoreSet, bound: bool) {
        let Some(&index) = self.by_number.get(&thread) else { return };
        if index == NOBODY {
            return;
        }
        let class = (!bound).then(|| self.waste.class(cores));
        let slot = &mut self.threads[index as usize];
        slot.class = class;
        if matches!(slot.state, State::Waiting { .. }) && slot.counted != class {
            let id = self.cores[slot.core].id;
            slot.counted.into_iter().for_each(|old| self.waste.ends(id, old));
            class.into_iter().for_each(|new| self.waste.begins(id, new));
            slot.counted = class;
        }
    }

    fn told_size(&mut self, of: CoreId, size: u32, watch: &mut impl Watch) {
        if let Some(&core) = self.position.get(&of) {
            self.set_marks(core, self.cores[core].marks & !LOST, watch);
            self.set_size(core, size, watch);
        }
    }

    fn told_load(&mut self, of: CoreId, weight: u64, watch: &mut impl Watch) {
        let Some(&core) = self.position.get(&of) else { return };
        if self.cores[core].load != weight {
            self.cores[core].load = weight;
            watch.load(core, self.now, weight);
        }
    }

    fn told_online(&mut self, of: CoreId, online: bool, watch: &mut impl Watch) {
        if let Some(&core) = self.position.get(&of) {
            let marks = self.cores[core].marks & !OFFLINE;
            self.set_marks(core, if online { marks } else { marks | OFFLINE }, watch);
        }
    }

    fn set_size(&mut self, core: usize, size: u32, watch: &mut impl Watch) {
        let Core { id, size: before, .. } = self.cores[core];
        if before == size {
            return;
        }
        self.cores[core].size = size;
        watch.size(core, self.now, size);
        if self.anonymous {
            match (before >= 2, size >= 2) {
                (false, true) => self.waste.begins(id, Waste::ANYWHERE),
                (true, false) => self.waste.ends(id, Waste::ANYWHERE),
                _ => {}
            }
        }
        self.refresh_idle(core);
    }

    fn set_marks(&mut self, core: usize, marks: u8, watch: &mut impl Watch) {
        if self.cores[core].marks != marks {
            self.cores[core].marks = marks;
            watch.marks(core, self.now, marks);
            self.refresh_idle(core);
        }
    }

    fn refresh_idle(&mut self, core: usize) {
        let Core { id, running, size, marks, .. } = self.cores[core];
        let known = marks & (LOST | OFFLINE) == 0;
        self.waste.set_idle(id, known && running == NOBODY && size == 0);
        self.waste.set_overloaded(id, known && size >= 2);
    }

    /// Nothing is known of this core until it is told again.
    fn lose(&mut self, core: usize, watch: &mut impl Watch) {
        watch.gap(core, self.cores[core].seen.0, self.now);
        self.end_run(core, watch);
        for thread in self.cores[core].waiting.clone() {
            self.stop_waiting(thread, watch);
        }
        self.cores[core].running = NOBODY;
        watch.running(core, self.now, NOBODY);
        self.set_marks(core, self.cores[core].marks | LOST, watch);
    }

    fn synchronise(&mut self, frame: &Keyframe, watch: &mut impl Watch) {
        let mut waits = std::collections::HashSet::new();
        for one in &frame.threads {
            let thread = self.thread(&one.thread, watch);
            self.allow(one.thread.thread, one.allowed, one.bound);
            if one.state == Activity::Waiting {
                waits.insert(thread);
            }
        }
        for state in &frame.cores {
            let Some(&core) = self.position.get(&state.core) else { continue };
            let running = self.by_number.get(&state.running).copied().unwrap_or(NOBODY);
            if self.cores[core].running != running {
                self.end_run(core, watch);
                let before = self.cores[core].running;
                if before != NOBODY && self.threads[before as usize].core == core {
                    self.threads[before as usize].state = State::Asleep;
                }
                self.take(core, running, watch);
            }
            for thread in self.cores[core].waiting.clone() {
                if !waits.contains(&thread) {
                    self.stop_waiting(thread, watch);
                }
            }
            self.told_size(state.core, state.runnable, watch);
            self.told_load(state.core, state.weight, watch);
        }
        for one in frame.threads.iter().filter(|one| one.state == Activity::Waiting) {
            let thread = self.thread(&one.thread, watch);
            if let Some(&core) = self.position.get(&one.core) {
                self.wait(thread, core, false, watch);
            }
        }
    }

    /// Tells which cores began or ceased to be wasted by the last event.
    fn settle(&mut self, watch: &mut impl Watch) {
        let (wasted, changed) = self.waste.settle();
        if changed.is_empty() {
            return;
        }
        let wasted = *wasted;
        for id in changed.iter() {
            let core = self.position[&id];
            let marks = self.cores[core].marks & !WASTED;
            let marks = if wasted.contains(id) { marks | WASTED } else { marks };
            self.cores[core].marks = marks;
            watch.marks(core, self.now, marks);
        }
    }
}
