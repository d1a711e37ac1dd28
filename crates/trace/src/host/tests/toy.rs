//! A toy kernel that schedules at random and is recorded, with or without damage.

use std::collections::BTreeMap;

use super::*;

/// Cores and tids of a toy.
pub(super) const CORES: u16 = 3;
const TIDS: i32 = 7;

/// Numbers from a seed (xorshift64*).
pub(super) struct Dice(u64);

impl Dice {
    pub fn new(seed: u64) -> Dice {
        Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % end
    }

    fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }

    fn of<T: Copy>(&mut self, items: &[T]) -> Option<T> {
        (!items.is_empty()).then(|| items[self.below(items.len())])
    }
}

/// What is done to the record of a toy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Damage {
    /// Nothing.
    None,
    /// Events are lost: the recorder reports it, or the numbers show it.
    Losses,
    /// Neighbours of one another change places, and a running thread is reported as moved.
    Order,
    /// Switches are missed without a trace; first wake-ups, forks and ends are not recorded.
    Missing,
}

/// What a toy thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Truth {
    Sleeping(usize),
    Waking(usize),
    Waiting(usize),
    Running(usize),
}

/// A recorded stream, and after each event what is true then.
pub(crate) struct Recorded {
    pub meta: Meta,
    pub events: Vec<Event>,
    pub truths: Vec<BTreeMap<i32, Truth>>,
}

/// An event that is not numbered yet, and the truth behind it.
type Draft = (Nanos, CoreId, What, BTreeMap<i32, Truth>);

struct Toy {
    dice: Dice,
    now: u64,
    threads: BTreeMap<i32, Truth>,
    online: Vec<bool>,
    counts: Vec<u32>,
    reports_counts: bool,
    drafts: Vec<Draft>,
}

/// The record of one random run.
pub(crate) fn record(seed: u64, source: Source, damage: Damage) -> Recorded {
    let mut toy = Toy {
        dice: Dice::new(seed),
        now: 1_000,
        threads: (1..4).map(|tid| (tid, Truth::Sleeping(0))).collect(),
        online: vec![true; usize::from(CORES)],
        counts: vec![0; usize::from(CORES)],
        reports_counts: source == Source::Recorder,
        drafts: Vec::new(),
    };
    toy.keyframe();
    for _ in 0..60 {
        toy.step();
    }
    let Toy { mut dice, drafts, .. } = toy;
    let drafts = match damage {
        Damage::Order => disorder(drafts, &mut dice),
        Damage::Missing => thin_out(drafts, &mut dice),
        Damage::None | Damage::Losses => drafts,
    };
    number(meta(source, CORES), drafts, damage == Damage::Losses, &mut dice)
}

impl Toy {
    fn tell(&mut self, core: usize, what: What) {
        let at = (Nanos(self.now), CoreId(core as u16));
        self.drafts.push((at.0, at.1, what, self.threads.clone()));
    }

    fn all(&self, is: impl Fn(Truth) -> bool) -> Vec<i32> {
        self.threads.iter().filter(|(_, truth)| is(**truth)).map(|(tid, _)| *tid).collect()
    }

    fn runs(&self, core: usize) -> Option<i32> {
        self.all(|truth| truth == Truth::Running(core)).first().copied()
    }

    fn queue(&self, core: usize) -> Vec<i32> {
        self.all(|truth| truth == Truth::Waiting(core))
    }

    fn a_core(&mut self) -> usize {
        let online: Vec<usize> = (0..usize::from(CORES)).filter(|at| self.online[*at]).collect();
        self.dice.of(&online).unwrap()
    }

    /// As the kernel: counts change with the queue, before the event that says why.
    fn count(&mut self, core: usize) {
        let now = self.queue(core).len() as u32 + u32::from(self.runs(core).is_some());
        if self.reports_counts && self.counts[core] != now {
            self.tell(core, queue(core as u16, now));
        }
        self.counts[core] = now;
    }

    fn step(&mut self) {
        if !self.dice.one_in(3) {
            self.now += 1 + self.dice.below(30_000) as u64;
        }
        match self.dice.below(24) {
            0..6 => self.wake(),
            6..11 => self.arrive(),
            11..15 => self.switch(true),
            15..18 => self.switch(false),
            18..20 => self.steal(),
            20 => self.push_off(),
            21 => self.fork_or_exit(),
            22 => self.keyframe(),
            _ => self.pin_or_plug(),
        }
        // A core does not idle for long while something is in its queue.
        for core in 0..usize::from(CORES) {
            if self.runs(core).is_none() && !self.queue(core).is_empty() && !self.dice.one_in(4) {
                self.now += self.dice.below(3) as u64;
                self.switch(false);
                self.start(core);
            }
        }
    }

    fn wake(&mut self) {
        let asleep = self.all(|truth| matches!(truth, Truth::Sleeping(_)));
        let Some(tid) = self.dice.of(&asleep) else { return };
        let Truth::Sleeping(last) = self.threads[&tid] else { return };
        let (by, to) = (self.a_core(), self.a_core());
        self.threads.insert(tid, Truth::Waking(last));
        self.tell(by, waking(tid, last as u16));
        if to != last {
            self.threads.insert(tid, Truth::Waking(to));
            self.tell(by, migrate(tid, last as u16, to as u16));
        }
        if !self.dice.one_in(3) {
            self.now += self.dice.below(2) as u64;
            self.arrive_at(tid, to);
        }
    }

    fn arrive(&mut self) {
        let waking = self.all(|truth| matches!(truth, Truth::Waking(_)));
        let Some(tid) = self.dice.of(&waking) else { return };
        let Truth::Waking(to) = self.threads[&tid] else { return };
        self.arrive_at(tid, to);
    }

    fn arrive_at(&mut self, tid: i32, to: usize) {
        if !self.online[to] {
            return;
        }
        self.threads.insert(tid, Truth::Waiting(to));
        self.count(to);
        self.tell(to, woken(tid, to as u16));
    }

    /// The running thread of some core leaves it, to sleep or to wait.
    fn switch(&mut self, sleeps: bool) {
        let core = self.a_core();
        let Some(left) = self.runs(core) else { return self.start(core) };
        let next = self.queue(core);
        let next = self.dice.of(&next);
        if next.is_none() && !sleeps {
            return;
        }
        let how = [Left::Sleeping, Left::Blocked, Left::Stopped];
        let how = if sleeps { self.dice.of(&how).unwrap() } else { Left::Preempted };
        if sleeps {
            self.threads.insert(left, Truth::Sleeping(core));
            self.count(core);
        } else {
            self.threads.insert(left, Truth::Waiting(core));
        }
        if let Some(next) = next {
            self.threads.insert(next, Truth::Running(core));
        }
        self.tell(core, switch(next.unwrap_or(0), left, how));
    }

    /// An idle core takes what waits there.
    fn start(&mut self, core: usize) {
        let queue = self.queue(core);
        if self.runs(core).is_none()
            && let Some(next) = self.dice.of(&queue)
        {
            self.threads.insert(next, Truth::Running(core));
            self.tell(core, switch(next, 0, Left::Preempted));
        }
    }

    fn steal(&mut self) {
        let waiting = self.all(|truth| matches!(truth, Truth::Waiting(_)));
        let Some(tid) = self.dice.of(&waiting) else { return };
        let to = self.a_core();
        self.move_to(tid, to, to);
    }

    fn move_to(&mut self, tid: i32, to: usize, by: usize) {
        let Truth::Waiting(from) = self.threads[&tid] else { return };
        if from != to {
            self.threads.insert(tid, Truth::Waiting(to));
            self.count(from);
            self.tell(by, migrate(tid, from as u16, to as u16));
            self.count(to);
        }
    }

    /// A balancer stops a running thread and pushes it elsewhere.
    fn push_off(&mut self) {
        let core = self.a_core();
        let Some(tid) = self.runs(core) else { return };
        let queue = self.queue(core);
        let Some(next) = self.dice.of(&queue) else { return };
        self.threads.insert(tid, Truth::Waiting(core));
        self.threads.insert(next, Truth::Running(core));
        self.tell(core, switch(next, tid, Left::Preempted));
        let to = self.a_core();
        self.move_to(tid, to, core);
    }

    fn fork_or_exit(&mut self) {
        let core = self.a_core();
        let free: Vec<i32> = (1..=TIDS).filter(|tid| !self.threads.contains_key(tid)).collect();
        if self.dice.one_in(2)
            && let Some(tid) = self.dice.of(&free)
        {
            self.tell(core, What::Fork { parent: 1, child: fair(tid) });
            self.tell(core, allowed(tid, "0-2"));
            self.threads.insert(tid, Truth::Waiting(core));
            self.count(core);
            self.tell(core, woken_new(tid, core as u16));
        } else if let Some(tid) = self.runs(core) {
            self.tell(core, What::Exit { thread: tid });
            self.threads.remove(&tid);
            self.count(core);
            let queue = self.queue(core);
            let next = self.dice.of(&queue);
            if let Some(next) = next {
                self.threads.insert(next, Truth::Running(core));
            }
            self.tell(core, switch(next.unwrap_or(0), tid, Left::Dead));
        }
    }

    fn pin_or_plug(&mut self) {
        if let Some(tid) = self.dice.of(&self.all(|_| true))
            && self.dice.one_in(2)
        {
            let list = self.dice.of(&["0-2", "0", "1-2", "0,2"]).unwrap();
            return self.tell(0, allowed(tid, list));
        }
        // Core 0 stays, and a core that goes is empty.
        let core = 1 + self.dice.below(usize::from(CORES) - 1);
        let is_here = |truth| match truth {
            Truth::Sleeping(_) => false,
            Truth::Waking(at) | Truth::Waiting(at) | Truth::Running(at) => at == core,
        };
        if !self.online[core] || self.all(is_here).is_empty() {
            self.online[core] = !self.online[core];
            let online = self.online[core];
            self.tell(0, What::Online { of: CoreId(core as u16), online });
            self.keyframe();
        }
    }

    fn keyframe(&mut self) {
        let entry = |(tid, truth): (&i32, &Truth)| {
            let (core, state) = match truth {
                Truth::Sleeping(core) => (core, Activity::Sleeping),
                Truth::Waking(core) | Truth::Waiting(core) => (core, Activity::Waiting),
                Truth::Running(core) => (core, Activity::Running),
            };
            entry(*tid, *core as u16, state, "0-2")
        };
        let frame = keyframe(CORES, self.threads.iter().map(entry).collect());
        let What::Keyframe(mut frame) = frame else { return };
        let shown = Arc::make_mut(&mut frame);
        shown.cores.retain(|core| self.online[core.core.index()]);
        for core in &mut shown.cores {
            core.runnable = self.counts[core.core.index()];
            if !self.reports_counts {
                core.runnable = self.queue(core.core.index()).len() as u32
                    + u32::from(self.runs(core.core.index()).is_some());
            }
            let waking = self.all(|truth| truth == Truth::Waking(core.core.index()));
            core.wake_pending = !waking.is_empty();
        }
        self.tell(0, What::Keyframe(frame));
    }
}

/// Neighbours of different cores change places, and so do a switch and the move behind it.
fn disorder(mut drafts: Vec<Draft>, dice: &mut Dice) -> Vec<Draft> {
    for at in 1..drafts.len() {
        let is_free = !matches!(drafts[at].2, What::Keyframe(_))
            && !matches!(drafts[at - 1].2, What::Keyframe(_));
        if is_free && dice.one_in(6) {
            drafts.swap(at - 1, at);
            let time = drafts[at - 1].0.min(drafts[at].0);
            drafts[at - 1].0 = time;
        }
    }
    drafts
}

/// Some switches are missing, and the events of lives.
fn thin_out(drafts: Vec<Draft>, dice: &mut Dice) -> Vec<Draft> {
    let is_kept = |draft: &Draft, dice: &mut Dice| match draft.2 {
        What::Fork { .. } | What::Exit { .. } | What::Woken { is_new: true, .. } => false,
        What::Switch { .. } | What::Migrate { .. } => !dice.one_in(8),
        _ => true,
    };
    drafts.into_iter().filter(|draft| is_kept(draft, dice)).collect()
}

/// Numbers the events of each core, and loses some.
fn number(meta: Meta, drafts: Vec<Draft>, loses: bool, dice: &mut Dice) -> Recorded {
    let (mut events, mut truths) = (Vec::new(), Vec::new());
    let mut sequence = [0; CORES as usize];
    let mut lost = [0; CORES as usize];
    for (at, core, what, truth) in drafts {
        let here = core.index();
        if loses && !matches!(what, What::Keyframe(_)) && dice.one_in(12) {
            lost[here] += 1;
            continue;
        }
        let missing = std::mem::take(&mut lost[here]);
        if missing > 0 && dice.one_in(2) {
            let what = What::Lost { count: missing };
            events.push(Event { at, core, sequence: sequence[here], what });
            truths.push(truth.clone());
        }
        sequence[here] += missing;
        events.push(Event { at, core, sequence: sequence[here], what });
        truths.push(truth);
        sequence[here] += 1;
    }
    Recorded { meta, events, truths }
}
