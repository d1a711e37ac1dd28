//! The same rules without lists, counts, classes and indices: everything is searched for when it is asked.

use std::collections::BTreeMap;

use super::*;
use ThreadState::*;

#[derive(Clone, Debug)]
pub(super) struct RefThread {
    pub state: ThreadState,
    pub core: usize,
    pub prio: Rank,
    pub allowed: Option<CoreSet>,
    pub bound: bool,
    has_run: bool,
    waking: Option<(Nanos, usize)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RefRunning {
    Unknown,
    Idle,
    Tid(i32),
}

#[derive(Clone, Debug)]
pub(super) struct RefCore {
    pub running: RefRunning,
    pub online: bool,
    pub lost: bool,
    count: Option<u32>,
    wake_pending: bool,
    next: Option<u64>,
    reported: u64,
}

/// A host of at most 64 cores, all with their index as number.
pub(super) struct Reference {
    pub threads: BTreeMap<i32, RefThread>,
    pub cores: Vec<RefCore>,
    shared: bool,
    has_wakeups: bool,
    now: Nanos,
}

impl Reference {
    pub fn new(meta: &Meta) -> Reference {
        let core = RefCore {
            running: RefRunning::Unknown,
            online: true,
            lost: false,
            count: None,
            wake_pending: false,
            next: None,
            reported: 0,
        };
        let reports = matches!(meta.source, Source::Recorder | Source::Simulator);
        Reference {
            threads: BTreeMap::new(),
            cores: vec![core; meta.topology.len()],
            shared: meta.source == Source::Simulator,
            has_wakeups: reports,
            now: Nanos::ZERO,
        }
    }

    fn at(&self, core: CoreId) -> Option<usize> {
        Some(core.index()).filter(|index| *index < self.cores.len())
    }

    pub fn waiting(&self, core: usize) -> usize {
        self.threads.values().filter(|one| (one.state, one.core) == (Waiting, core)).count()
    }

    fn waking(&self, core: usize) -> usize {
        self.threads.values().filter(|one| (one.state, one.core) == (Waking, core)).count()
    }

    pub fn idle(&self) -> CoreSet {
        let is_idle = |index: &usize| {
            let core = &self.cores[*index];
            let empty = core.count.map_or(self.waiting(*index) == 0, |count| count == 0);
            core.running == RefRunning::Idle
                && core.online
                && !core.lost
                && !core.wake_pending
                && self.waking(*index) == 0
                && (self.shared || empty)
        };
        (0..self.cores.len()).filter(is_idle).map(|index| CoreId(index as u16)).collect()
    }

    pub fn contended(&self) -> CoreSet {
        let is_contended = |index: &usize| {
            let (core, waiting) = (&self.cores[*index], self.waiting(*index));
            let behind = matches!(core.running, RefRunning::Tid(_))
                && core.count.is_none_or(|count| count as usize > waiting);
            core.online && !core.lost && waiting > 0 && (self.shared || behind)
        };
        (0..self.cores.len()).filter(is_contended).map(|index| CoreId(index as u16)).collect()
    }

    /// Of each thread that waits behind another: the idle cores that are wasted, and all that it may use.
    pub fn claims(&self) -> Vec<[CoreSet; 2]> {
        let (idle, contended) = (self.idle(), self.contended());
        let waits = |one: &&RefThread| {
            one.state == Waiting && contended.contains(CoreId(one.core as u16)) && !one.bound
        };
        let claim = |one: &RefThread| {
            let may = one.allowed?.intersection(&idle);
            let behind = match self.cores[one.core].running {
                RefRunning::Tid(tid) => self.threads[&tid].prio,
                _ => Rank::FAIR,
            };
            let is_plain = one.prio == Rank::FAIR && behind >= Rank::FAIR;
            Some([if is_plain { may } else { CoreSet::EMPTY }, may])
        };
        self.threads.values().filter(waits).filter_map(claim).collect()
    }

    pub fn event(&mut self, event: &Event) {
        self.now = self.now.max(event.at);
        let here = self.at(event.core);
        if let Some(here) = here {
            let core = &mut self.cores[here];
            let expected = core.next.unwrap_or(event.sequence);
            core.next = Some(expected.max(event.sequence.saturating_add(1)));
            let known = expected.saturating_add(std::mem::take(&mut core.reported));
            if event.sequence > known {
                self.lose(here);
            }
        }
        self.apply(here, &event.what);
    }

    fn apply(&mut self, here: Option<usize>, what: &What) {
        match what {
            What::Switch { next, left, how, .. } => {
                if let Some(here) = here {
                    self.switch(here, next, *left, *how);
                }
            }
            What::Waking { thread, target, .. } => {
                if let Some(target) = self.at(*target) {
                    self.wake(thread, target);
                }
            }
            What::Woken { thread, on, is_new } => {
                self.has_wakeups |= !is_new;
                if let Some(on) = self.at(*on) {
                    self.woken(thread, on, *is_new);
                }
            }
            What::Migrate { thread, from, to, .. } => {
                if let (Some(_), Some(to)) = (self.at(*from), self.at(*to)) {
                    self.migrate(*thread, to);
                }
            }
            What::Fork { child, .. } => {
                self.end(child.thread);
                if let Some(one) = self.named(child, here.unwrap_or(0)) {
                    one.state = New;
                }
            }
            What::Exec { thread } => drop(self.named(thread, here.unwrap_or(0))),
            What::Exit { thread } => {
                self.threads.retain(|tid, one| tid != thread || one.state == Running)
            }
            What::Allowed { thread, cores } => {
                if let Some(one) = self.entry(*thread, Rank::FAIR, here.unwrap_or(0)) {
                    one.allowed = Some(**cores);
                }
            }
            What::Queue { of, runnable, .. } => {
                if let Some(of) = self.at(*of) {
                    self.cores[of].count = Some(*runnable);
                }
            }
            What::Online { of, online } => {
                if let Some(of) = self.at(*of) {
                    self.cores[of].online = *online;
                }
            }
            What::Lost { count } => {
                if let Some(here) = here {
                    self.cores[here].reported = count.saturating_sub(1);
                    self.lose(here);
                }
            }
            What::Keyframe(keyframe) => self.keyframe(keyframe),
            _ => {}
        }
    }

    fn entry(&mut self, tid: i32, prio: Rank, core: usize) -> Option<&mut RefThread> {
        let new = || RefThread {
            state: Unknown,
            core,
            prio,
            allowed: None,
            bound: false,
            has_run: false,
            waking: None,
        };
        (tid > 0).then(|| self.threads.entry(tid).or_insert_with(new))
    }

    fn named(&mut self, info: &Runner, core: usize) -> Option<&mut RefThread> {
        let one = self.entry(info.thread, info.rank, core)?;
        if info.name != ThreadName::default() {
            one.prio = info.rank;
        }
        Some(one)
    }

    fn switch(&mut self, here: usize, next: &Runner, left: i32, how: Left) {
        let had = self.cores[here].running;
        self.cores[here].running = RefRunning::Unknown;
        if had != RefRunning::Tid(left) {
            if how == Left::Preempted {
                let _ = self.entry(left, Rank::FAIR, here);
            }
            if let RefRunning::Tid(missed) = had {
                let missed = self.threads.get_mut(&missed).unwrap();
                (missed.state, missed.waking) = (Unknown, None);
            }
        }
        let has_wakeups = self.has_wakeups;
        if let Some(one) = self.threads.get_mut(&left)
            && (one.core == here || !matches!(one.state, Running | Waiting | Waking))
        {
            one.has_run = true;
            if next.thread != left {
                one.core = here;
                let waking = one.waking.take();
                let waking = waking
                    .filter(|(at, _)| has_wakeups || self.now.since(*at) <= Nanos::from_micros(50));
                one.state = match (how, waking) {
                    (Left::Preempted, _) => Waiting,
                    (Left::Dead, _) => Exited,
                    (_, Some((_, target))) => {
                        one.core = target;
                        if has_wakeups { Waking } else { Waiting }
                    }
                    (Left::Sleeping, None) => Sleeping,
                    (Left::Blocked, None) => Blocked,
                    (Left::Stopped, None) => Stopped,
                };
                if one.state == Exited {
                    self.threads.remove(&left);
                }
            }
        }
        self.cores[here].wake_pending = false;
        self.switch_in(here, next);
    }

    fn switch_in(&mut self, here: usize, next: &Runner) {
        if next.thread == 0 {
            self.cores[here].running = RefRunning::Idle;
            self.cores[here].count = Some(0);
            let on_queue = |one: &&mut RefThread| (one.state, one.core) == (Waiting, here);
            if !self.shared {
                self.threads.values_mut().filter(on_queue).for_each(|one| one.state = Unknown);
            }
            return;
        }
        let Some(one) = self.named(next, here) else { return };
        let (state, core) = (one.state, one.core);
        (one.state, one.core, one.bound) = (Running, here, false);
        (one.has_run, one.waking) = (true, None);
        if state == Running && core != here {
            self.cores[core].running = RefRunning::Unknown;
        }
        self.cores[here].running = RefRunning::Tid(next.thread);
    }

    fn wake(&mut self, info: &Runner, target: usize) {
        let (now, woken) = (self.now, if self.has_wakeups { Waking } else { Waiting });
        let Some(one) = self.named(info, target) else { return };
        match one.state {
            Running => one.waking = Some((now, target)),
            Waiting | Waking => {}
            _ => {
                (one.state, one.core) = (woken, target);
                if woken == Waiting {
                    self.cores[target].count = None;
                }
            }
        }
    }

    fn woken(&mut self, info: &Runner, on: usize, is_new: bool) {
        let known = self.threads.get(&info.thread);
        if is_new && known.is_some_and(|one| one.has_run && one.state != Running) {
            self.end(info.thread);
        }
        if let Some(one) = self.named(info, on) {
            match one.state {
                Running => one.waking = None,
                _ => (one.state, one.core) = (Waiting, on),
            }
            self.cores[on].count = None;
        }
    }

    fn migrate(&mut self, tid: i32, to: usize) {
        let Some(one) = self.threads.get_mut(&tid) else { return };
        one.bound = false;
        let core = std::mem::replace(&mut one.core, to);
        if one.state == Running && core != to {
            (one.state, one.waking) = (Waiting, None);
            self.cores[core].running = RefRunning::Unknown;
        }
        self.cores[to].count = None;
    }

    fn end(&mut self, tid: i32) {
        if let Some(one) = self.threads.remove(&tid)
            && one.state == Running
        {
            self.cores[one.core].running = RefRunning::Unknown;
        }
    }

    fn lose(&mut self, here: usize) {
        let is_here = |one: &&mut RefThread| {
            one.core == here && matches!(one.state, Running | Waiting | Waking)
        };
        for one in self.threads.values_mut().filter(is_here) {
            (one.state, one.waking) = (Unknown, None);
        }
        let core = &mut self.cores[here];
        (core.running, core.lost) = (RefRunning::Unknown, true);
        (core.count, core.wake_pending) = (None, false);
    }

    fn keyframe(&mut self, keyframe: &Keyframe) {
        let mut listed: BTreeMap<i32, &Entry> = BTreeMap::new();
        for state in &keyframe.threads {
            if self.at(state.core).is_none() {
                continue;
            }
            let Some(one) = self.named(&state.thread, state.core.index()) else { continue };
            if listed.contains_key(&state.thread.thread) {
                continue;
            }
            (one.allowed, one.bound) = (Some(state.allowed), state.bound);
            listed.insert(state.thread.thread, state);
        }
        let mut running = vec![RefRunning::Unknown; self.cores.len()];
        let mut seen: Vec<CoreId> = Vec::new();
        for state in &keyframe.cores {
            let Some(index) = self.at(state.core) else { continue };
            let runs = RefRunning::Tid(state.running);
            if seen.contains(&state.core) {
                continue;
            }
            seen.push(state.core);
            if state.running == 0 {
                running[index] = RefRunning::Idle;
            } else if state.running > 0 {
                let _ = self.entry(state.running, Rank::FAIR, index);
                if !running.contains(&runs) {
                    running[index] = runs;
                }
            }
        }
        for (tid, one) in &mut self.threads {
            let runs_on = running.iter().position(|runs| *runs == RefRunning::Tid(*tid));
            let entry = listed.get(tid);
            if one.state == Running && runs_on != Some(one.core) {
                one.state = Unknown;
                one.waking = None;
            }
            let rests = matches!(one.state, Sleeping | Blocked | Stopped | New);
            match (runs_on, entry.map(|entry| entry.state)) {
                (Some(core), _) => (one.state, one.core, one.has_run) = (Running, core, true),
                (None, None) if !rests => one.state = Sleeping,
                (None, None) => {}
                (None, Some(state)) => {
                    one.core = entry.unwrap().core.index();
                    one.state = match state {
                        Activity::Running => Unknown,
                        Activity::Waiting if one.state == Waking => Waking,
                        Activity::Waiting => Waiting,
                        Activity::Throttled => Throttled,
                        Activity::Delayed => Delayed,
                        Activity::Moving => Migrating,
                        Activity::Sleeping if rests => one.state,
                        Activity::Sleeping => Sleeping,
                    };
                }
            }
        }
        for (core, running) in self.cores.iter_mut().zip(running) {
            core.running = running;
        }
        if keyframe.cores.is_empty() {
            return;
        }
        for core in &mut self.cores {
            (core.online, core.lost, core.count) = (false, false, None);
        }
        // Backwards, so that the first entry of a core counts.
        for state in keyframe.cores.iter().rev() {
            let Some(index) = self.at(state.core) else { continue };
            let core = &mut self.cores[index];
            (core.online, core.count) = (true, Some(state.runnable));
            core.wake_pending = state.wake_pending;
        }
    }
}
