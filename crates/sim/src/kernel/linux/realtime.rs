//! Real-time threads: the highest priority that is queued runs; others are pushed and pulled to cores that run lower ones
//! (kernel/sched/rt.c). And what keeps them from starving fair threads.

use quell_model::{CoreId, CoreSet, MoveCause, Nanos};

use super::fair_server::{FairServer, Ran};
use super::model::RtLimit;
use super::{Linux, SchedClass, SchedThread};

/// Real-time threads may run this much of each [`PERIOD`] (`sched_rt_runtime_us`).
const RUNTIME: Nanos = Nanos::from_millis(950);
const PERIOD: Nanos = Nanos::from_secs(1);

/// What a core's limit has counted.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Limit {
    /// When the period began.
    began: Nanos,
    /// Time that real-time threads ran in it.
    realtime: Nanos,
    /// They had what they may have.
    is_throttled: bool,
    server: FairServer,
}

/// Real-time threads in all queues, by priority.
#[derive(Clone, Debug)]
pub(super) struct Levels {
    counts: [u32; 128],
    /// Priorities of which there are any, as bits.
    present: u128,
}

impl Levels {
    pub const EMPTY: Levels = Levels { counts: [0; 128], present: 0 };

    pub fn add(&mut self, class: SchedClass) {
        if let SchedClass::RealTime(priority) = class {
            self.counts[usize::from(priority)] += 1;
            self.present |= 1 << priority;
        }
    }

    pub fn remove(&mut self, class: SchedClass) {
        if let SchedClass::RealTime(priority) = class {
            let count = &mut self.counts[usize::from(priority)];
            *count -= 1;
            if *count == 0 {
                self.present &= !(1 << priority);
            }
        }
    }

    /// The highest priority of any.
    fn highest(&self) -> i32 {
        match self.present {
            0 => NOTHING,
            present => 127 - present.leading_zeros() as i32,
        }
    }
}

/// The priority of what runs on a core; fair threads and nothing are below all.
const NOTHING: i32 = -2;
const FAIR: i32 = -1;

impl Linux {
    /// A real-time thread comes into the queue of a core, behind those of its priority.
    pub(super) fn insert_realtime(&mut self, thread: usize, core: usize) {
        let Linux { cores, threads, .. } = self;
        let queue = &mut cores[core].realtime;
        let own = priority(threads[thread].class);
        let at = queue.partition_point(|other| priority(threads[*other].class) >= own);
        queue.insert(at, thread);
        debug_assert!(
            queue.is_sorted_by_key(|other| std::cmp::Reverse(priority(threads[*other].class))),
            "real-time threads of core {core}"
        );
    }

    /// The priority that a core runs.
    fn running_priority(&self, core: usize) -> i32 {
        match self.cores[core].running {
            Some(thread) => priority(self.threads[thread].class),
            None if self.is_idle(core) => NOTHING,
            None => FAIR,
        }
    }

    /// Where a real-time thread runs (`select_task_rq_rt`): on its core unless that runs an equal or higher one, else on the
    /// core that runs the lowest (`find_lowest_rq`).
    pub(super) fn select_realtime(&self, thread: usize) -> usize {
        let own = priority(self.threads[thread].class);
        let last = self.threads[thread].core;
        if self.may_use(thread, last) && self.running_priority(last) < own {
            return last;
        }
        self.lowest_core(thread).or_else(|| self.any_core(thread)).unwrap_or(last)
    }

    /// The core with the lowest priority below the thread's own that it may use (`cpupri_find`): one that idles, else one that runs a
    /// fair thread, else a lower real-time one.
    fn lowest_core(&self, thread: usize) -> Option<usize> {
        let SchedClass::RealTime(own) = self.threads[thread].class else { return None };
        let allowed = &self.threads[thread].allowed;
        let found = self.lowest_fair(allowed).or_else(|| {
            let has_lower = self.realtime_runs.has_below(own);
            let usable = || allowed.intersection(&self.online);
            has_lower.then(|| self.realtime_runs.lowest(&usable(), own)).flatten()
        });
        debug_assert_eq!(
            found,
            self.lowest_of_all(&allowed.intersection(&self.online), own),
            "thread {thread}"
        );
        found.map(|core| core.index())
    }

    /// The lowest of these cores that idles, else the lowest that runs no real-time thread.
    fn lowest_fair(&self, allowed: &CoreSet) -> Option<CoreId> {
        let sets =
            [allowed, &self.online, self.realtime_runs.all(), &self.idle].map(CoreSet::words);
        let [allowed, online, realtime, idle] = sets;
        let first = |at: usize, word: u64| CoreId((at * 64) as u16 + word.trailing_zeros() as u16);
        let mut fair = None;
        for at in 0..allowed.len() {
            let word = allowed[at] & online[at] & !realtime[at];
            if word & idle[at] != 0 {
                return Some(first(at, word & idle[at]));
            }
            if word != 0 && fair.is_none() {
                fair = Some(first(at, word));
            }
        }
        fair
    }

    /// The same by a look at all cores.
    fn lowest_of_all(&self, usable: &CoreSet, own: u8) -> Option<CoreId> {
        let lower = usable.iter().map(|core| (self.running_priority(core.index()), core));
        lower.filter(|(other, _)| *other < i32::from(own)).min().map(|(_, core)| core)
    }

    fn any_core(&self, thread: usize) -> Option<usize> {
        let usable = self.threads[thread].allowed.intersection(&self.online);
        usable.first().map(|core| core.index())
    }

    /// Real-time threads that wait here go to cores that run lower ones (`push_rt_tasks`).
    pub(super) fn push_realtime(&mut self, core: usize, now: Nanos) {
        let queue = &self.cores[core];
        let runs = queue.running.filter(|thread| !self.threads[*thread].class.is_fair());
        // The first one runs as soon as the core reschedules.
        let first = queue.realtime.first().copied();
        let kept = runs.filter(|runs| Some(*runs) == first).or(first);
        let mut waiting = std::mem::take(&mut self.pushed);
        let stays = |thread: &usize| Some(*thread) == kept || queue.running == Some(*thread);
        waiting.extend(queue.realtime.iter().copied().filter(|thread| !stays(thread)));
        // Where one found no core, another one like it finds none either.
        let mut in_vain = None;
        let are_alike = self.waste.are_alike(core) && self.is_of_one_priority(core);
        for thread in waiting.drain(..) {
            let SchedThread { class, mask, .. } = self.threads[thread];
            if in_vain == Some((class, mask)) {
                debug_assert_eq!(self.lowest_core(thread).filter(|to| *to != core), None);
                continue;
            }
            debug_assert!(in_vain.is_none() || !are_alike, "threads of core {core} differ");
            match self.lowest_core(thread).filter(|to| *to != core) {
                Some(to) => self.migrate(thread, to, MoveCause::Realtime, now),
                None => in_vain = Some((class, mask)),
            }
            if are_alike && in_vain.is_some() && !cfg!(debug_assertions) {
                break;
            }
        }
        waiting.clear();
        self.pushed = waiting;
    }

    /// All real-time threads of a core have the same priority.
    fn is_of_one_priority(&self, core: usize) -> bool {
        let queue = &self.cores[core].realtime;
        let class = |thread: Option<&usize>| thread.map(|thread| self.threads[*thread].class);
        class(queue.first()) == class(queue.last())
    }

    /// Whether a real-time thread waits on the core, and whether one runs, after its queue or what it runs changed.
    pub(super) fn note_realtime(&mut self, core: usize) {
        let queue = &self.cores[core];
        let running = queue.running.and_then(|thread| match self.threads[thread].class {
            SchedClass::RealTime(priority) => Some(priority),
            SchedClass::Fair { .. } | SchedClass::Idle => None,
        });
        match queue.realtime.len() > usize::from(running.is_some()) {
            true => self.realtime_waits.insert(Linux::id(core)),
            false => self.realtime_waits.remove(Linux::id(core)),
        };
        self.realtime_runs.set(core, running);
    }

    /// A core that is about to run something lower takes the highest real-time thread that waits elsewhere
    /// (`pull_rt_task`).
    pub(super) fn pull_realtime(&mut self, core: usize, now: Nanos) {
        if self.realtime_queued == self.cores[core].realtime.len() {
            return;
        }
        let own = self.cores[core]
            .realtime
            .first()
            .map_or(NOTHING, |thread| priority(self.threads[*thread].class));
        // No one is higher than the highest of all queues.
        if self.realtime_levels.highest() <= own {
            return;
        }
        let mut best: Option<(i32, usize)> = None;
        let waits = self.realtime_waits.intersection(&self.online);
        for other in waits.iter().map(|other| other.index()).filter(|other| *other != core) {
            let queue = &self.cores[other];
            if queue.realtime.len() < 2
                && queue.realtime.first().is_none_or(|first| queue.running == Some(*first))
            {
                continue;
            }
            let waits =
                |thread: &&usize| queue.running != Some(**thread) && self.may_use(**thread, core);
            // The first one is about to run there, unless that core does not get to it.
            let skipped =
                usize::from(queue.running.is_none_or(|runs| !queue.realtime.contains(&runs)));
            // They are sorted.
            let least = best.map_or(own, |(best, _)| best);
            let higher = queue.realtime.iter().skip(skipped);
            let higher = higher.map(|thread| (priority(self.threads[*thread].class), thread));
            let mut higher = higher.take_while(|(found, _)| *found > least);
            if let Some((found, thread)) = higher.find(|(_, thread)| waits(thread)) {
                best = Some((found, *thread));
            }
        }
        if let Some((_, thread)) = best {
            self.migrate(thread, core, MoveCause::Realtime, now);
        }
    }

    /// Time passed on a core.
    pub(super) fn charge_limit(&mut self, core: usize, ran: Nanos, now: Nanos) {
        let running = self.cores[core].running.map(|thread| self.threads[thread].class);
        let fair_waits = !self.cores[core].fair.is_empty();
        let limit = &mut self.cores[core].limit;
        match self.model.rt_limit {
            RtLimit::None => {}
            RtLimit::Throttling => {
                if let Some(SchedClass::RealTime(_)) = running {
                    limit.realtime += ran;
                }
                if now.since(limit.began) >= PERIOD {
                    // The next tick sees whether the limit still holds.
                    *limit = Limit { began: now, realtime: Nanos::ZERO, ..*limit };
                }
            }
            RtLimit::FairServer => {
                let is_fair = running.is_some_and(SchedClass::is_fair);
                let what = if is_fair { Ran::Fair } else { Ran::Other };
                limit.server.pass((Nanos(now.0.saturating_sub(ran.0)), now), what, fair_waits);
            }
        }
    }

    /// A tick: real-time threads may have had what they may have.
    pub(super) fn check_limit(&mut self, core: usize, now: Nanos) {
        // What is charged is up to now.
        debug_assert!(self.cores[core].charged >= now, "core {core} is not charged");
        let limit = &mut self.cores[core].limit;
        if self.model.rt_limit == RtLimit::Throttling {
            // Throttled threads do not run; here fair ones go first, and an idle core is not kept so.
            limit.is_throttled = limit.realtime >= RUNTIME;
        }
        let queue = &self.cores[core];
        let runs_fair = queue.running.is_some_and(|thread| self.threads[thread].class.is_fair());
        let is_wrong = match self.is_limited(core) {
            true => !runs_fair && !queue.fair.is_empty(),
            false => runs_fair && !queue.realtime.is_empty(),
        };
        if is_wrong {
            self.resched.insert(Linux::id(core));
        }
    }

    /// Fair threads go before real-time ones.
    pub(super) fn is_limited(&self, core: usize) -> bool {
        let limit = &self.cores[core].limit;
        match self.model.rt_limit {
            RtLimit::None => false,
            RtLimit::Throttling => limit.is_throttled,
            RtLimit::FairServer => limit.server.is_serving(),
        }
    }
}

fn priority(class: SchedClass) -> i32 {
    match class {
        SchedClass::RealTime(priority) => i32::from(priority),
        SchedClass::Fair { .. } | SchedClass::Idle => FAIR,
    }
}
