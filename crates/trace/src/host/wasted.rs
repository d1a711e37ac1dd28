//! The time of idle cores that waiting threads could have used.

use quell_model::{CoreId, CoreSet, Nanos};
use serde::Serialize;

use super::matching::Matcher;
use super::{ClassIndex, HostCore, HostState, Queues};

/// Times of cores that idled while threads waited behind others, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CoreTimes {
    /// Wall time in which a core did.
    pub wall_ns: u64,
    /// The same, each time with as many cores as could each have relieved another core: core-nanoseconds.
    pub core_ns: u64,
    /// The same, each time with as many cores as waiting threads could have used: core-nanoseconds.
    pub thread_ns: u64,
}

impl CoreTimes {
    /// Adds times. Damaged streams may have any, so sums saturate.
    pub fn add(&mut self, other: &CoreTimes) {
        self.wall_ns = self.wall_ns.saturating_add(other.wall_ns);
        self.core_ns = self.core_ns.saturating_add(other.core_ns);
        self.thread_ns = self.thread_ns.saturating_add(other.thread_ns);
    }

    fn times(&self, time: Nanos) -> CoreTimes {
        CoreTimes {
            wall_ns: self.wall_ns.saturating_mul(time.0),
            core_ns: self.core_ns.saturating_mul(time.0),
            thread_ns: self.thread_ns.saturating_mul(time.0),
        }
    }

    fn minus(&self, other: &CoreTimes) -> CoreTimes {
        CoreTimes {
            wall_ns: self.wall_ns - other.wall_ns,
            core_ns: self.core_ns - other.core_ns,
            thread_ns: self.thread_ns - other.thread_ns,
        }
    }
}

/// Times by what is to be said of them. The parts do not overlap; later ones are what they add to earlier ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WastedSplit {
    /// A waiting thread could have used the core, and no policy says otherwise.
    pub wasted: CoreTimes,
    /// A policy allows it: the thread is real-time or SCHED_IDLE, waits behind a real-time thread, or a plan of
    /// Quell keeps it off the core.
    pub allowed_by_policy: CoreTimes,
    /// The affinity of the thread is not known.
    pub affinity_unknown: CoreTimes,
}

impl WastedSplit {
    /// Adds each part.
    pub fn add(&mut self, other: &WastedSplit) {
        self.wasted.add(&other.wasted);
        self.allowed_by_policy.add(&other.allowed_by_policy);
        self.affinity_unknown.add(&other.affinity_unknown);
    }

    fn times(&self, time: Nanos) -> WastedSplit {
        WastedSplit {
            wasted: self.wasted.times(time),
            allowed_by_policy: self.allowed_by_policy.times(time),
            affinity_unknown: self.affinity_unknown.times(time),
        }
    }

    /// Wasted and allowed together.
    pub fn total(&self) -> CoreTimes {
        let mut total = self.wasted;
        total.add(&self.allowed_by_policy);
        total
    }
}

/// The idle cores that are matched with waiting threads, the lowest cores first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WastedCores {
    /// Those that are wasted.
    pub wasted: CoreSet,
    /// Those that idle although a thread waits, as a policy allows.
    pub allowed_by_policy: CoreSet,
}

/// Integrates the time of idle cores that waiting threads could have used.
///
/// At each instant it is the size of a maximum matching of idle cores ([`HostState::idle`]) with threads that wait
/// behind another one ([`HostState::contended`]) and may use them, by classes of alike threads. Cores of which
/// events were lost are neither idle nor contended. What policies allow is that of [`HostState::usable_cores`].
/// Where the source reports no threads, the sizes of queues stand for them.
///
/// Times are *judged* once a keyframe or the end of the stream shows that nothing was lost since the keyframe
/// before; what a loss puts in doubt, and the time before the first keyframe, is *unjudged*.
#[derive(Clone, Debug, Default)]
pub struct WastedTime {
    judged: WastedSplit,
    unjudged: WastedSplit,
    /// Since the last keyframe.
    pending: WastedSplit,
    pending_time: Nanos,
    judged_time: Nanos,
    unjudged_time: Nanos,
    interval: u64,
    /// Up to when time has passed.
    at: Nanos,
    /// What each nanosecond adds while the host stays as it is at `epoch`; `None` before the first event.
    rate: WastedSplit,
    cores: WastedCores,
    epoch: Option<u64>,
    matcher: Matcher,
    /// By class; by queue. Memory that is kept.
    usable: Vec<Usable>,
    queues: Vec<Usable>,
    known: Inputs,
}

/// All that rate and matched cores of a source with threads follow from.
#[derive(Clone, Debug, Default)]
struct Inputs {
    idle: CoreSet,
    classes_rekeyed: u64,
    /// Waiting threads by contended core and class, and whether they wait behind a real-time thread.
    groups: Vec<(CoreId, bool, ClassIndex, u32)>,
}

impl Inputs {
    /// Takes those of now; whether any differ.
    fn update(&mut self, host: &HostState) -> bool {
        let mut differs = self.idle != *host.idle();
        differs |= self.classes_rekeyed != host.classes_rekeyed();
        (self.idle, self.classes_rekeyed) = (*host.idle(), host.classes_rekeyed());
        let mut count = 0;
        for core in host.contended().iter().filter_map(|id| host.core(id)) {
            let behind = host.is_behind_realtime(core.index);
            for (class, threads) in core.groups() {
                let group = (core.id, behind, *class, *threads);
                match self.groups.get_mut(count) {
                    Some(known) => differs |= std::mem::replace(known, group) != group,
                    None => {
                        self.groups.push(group);
                        differs = true;
                    }
                }
                count += 1;
            }
        }
        differs |= count != self.groups.len();
        self.groups.truncate(count);
        differs
    }
}

/// What alike threads, or queues, could use.
#[derive(Clone, Copy, Debug, Default)]
struct Usable {
    threads: usize,
    /// Idle cores that are wasted beside it; with those that a policy allows; with those that are not known.
    layers: [CoreSet; 3],
}

impl WastedTime {
    /// Lets time pass up to `to`, with the host as it is. Call it before each event that the host takes, with that
    /// event's time, and once with the end of the stream. Whether the matched cores changed: then they did so with
    /// the last event, at [`HostState::now`].
    pub fn advance(&mut self, host: &HostState, to: Nanos) -> bool {
        if self.interval != host.interval() {
            self.close(host);
        }
        let time = to.since(self.at.max(host.now()));
        if time == Nanos::ZERO || host.origin().is_none() {
            return false;
        }
        self.at = to;
        let changed = self.epoch != Some(host.epoch()) && self.compute(host);
        self.epoch = Some(host.epoch());
        if self.rate != WastedSplit::default() {
            self.pending.add(&self.rate.times(time));
        }
        self.pending_time += time;
        changed
    }

    /// Lets time pass up to `to` that does not count: nobody knows what the host did since time advanced last.
    pub fn skip(&mut self, host: &HostState, to: Nanos) {
        if self.interval != host.interval() {
            self.close(host);
        }
        self.at = self.at.max(to);
    }

    /// Ends the stream: what happened since the last keyframe is judged, unless something was lost.
    pub fn finish(&mut self, host: &HostState) {
        self.close(host);
    }

    /// The interval before the present one is over.
    fn close(&mut self, host: &HostState) {
        let pending = std::mem::take(&mut self.pending);
        let time = std::mem::take(&mut self.pending_time);
        let is_complete =
            self.interval > 0 && host.last_incomplete_interval() != Some(self.interval);
        match is_complete {
            true => {
                self.judged.add(&pending);
                self.judged_time += time;
            }
            false => {
                self.unjudged.add(&pending);
                self.unjudged_time += time;
            }
        }
        self.interval = host.interval();
    }

    /// The times for which the stream is complete, up to the last keyframe or the end.
    pub fn judged(&self) -> &WastedSplit {
        &self.judged
    }

    /// What the events say of times in which something was lost, or nothing was known yet.
    pub fn unjudged(&self) -> &WastedSplit {
        &self.unjudged
    }

    /// Judged, unjudged and what is neither yet: the integral over the matched cores.
    pub fn total(&self) -> WastedSplit {
        let mut total = self.judged;
        total.add(&self.unjudged);
        total.add(&self.pending);
        total
    }

    /// How long the judged and unjudged times are.
    pub fn judged_time(&self) -> Nanos {
        self.judged_time
    }

    /// See [`WastedTime::judged_time`].
    pub fn unjudged_time(&self) -> Nanos {
        self.unjudged_time
    }

    /// The cores that were matched when time advanced last.
    pub fn cores(&self) -> &WastedCores {
        &self.cores
    }

    /// What each nanosecond adds since time advanced last.
    pub fn rate(&self) -> &WastedSplit {
        &self.rate
    }

    /// Works out rate and matched cores; whether the latter changed.
    fn compute(&mut self, host: &HostState) -> bool {
        let is_by_sizes = host.queues() == Queues::SizesOnly;
        let may_waste = !host.idle().is_empty() && !host.contended().is_empty();
        if may_waste && !is_by_sizes && !self.known.update(host) {
            return false;
        }
        let before = std::mem::take(&mut self.cores);
        self.rate = WastedSplit::default();
        match (may_waste, is_by_sizes) {
            (false, _) => self.known.groups.clear(),
            (true, true) => self.compute_by_sizes(host),
            (true, false) => self.compute_by_threads(host),
        }
        let (idle, wasted) = (host.idle(), &self.cores.wasted);
        let allowed = &self.cores.allowed_by_policy;
        debug_assert!(
            wasted.union(allowed).is_subset(idle),
            "matched cores beyond the idle {idle}"
        );
        debug_assert!(wasted.is_disjoint(allowed), "{wasted} wasted and {allowed} allowed");
        debug_assert!(
            self.rate.total().wall_ns <= 2,
            "wall time passes once, in two parts at most"
        );
        self.cores != before
    }

    fn compute_by_sizes(&mut self, host: &HostState) {
        let sizes = host.contended().iter().filter_map(|id| host.core(id)?.runnable);
        let waiting: usize = sizes.map(|size| size as usize - 1).sum();
        let threads = host.idle().len().min(waiting);
        self.cores.wasted = host.idle().lowest(threads);
        self.rate.wasted = CoreTimes {
            wall_ns: 1,
            core_ns: host.idle().len().min(host.contended().len()) as u64,
            thread_ns: threads as u64,
        };
    }

    /// Adds what a contended queue could use. Returns where, of its last class and of itself, unless that is nothing.
    fn add_queue(&mut self, host: &HostState, core: &HostCore) -> Option<(usize, usize)> {
        let mut queue = Usable { threads: 1, ..Usable::default() };
        let mut last = None;
        for (class, threads) in core.groups() {
            let layers = host.usable_cores(*class, core.index).layers();
            // The last one contains the others.
            if layers[2].is_empty() {
                continue;
            }
            for (all, one) in queue.layers.iter_mut().zip(&layers) {
                *all = all.union(one);
            }
            let one = Usable { threads: *threads as usize, layers };
            last = Some(push_or_merge(&mut self.usable, one));
        }
        last.map(|last| (last, push_or_merge(&mut self.queues, queue)))
    }

    fn compute_by_threads(&mut self, host: &HostState) {
        self.usable.clear();
        self.queues.clear();
        // By queue, and by class: a queue is relieved by a core that any of its threads may use. Many queues are like
        // the one before, of one class.
        let mut previous: Option<((ClassIndex, bool), usize, usize)> = None;
        for core in host.contended().iter().filter_map(|id| host.core(id)) {
            let like = match core.groups() {
                [(class, _)] => Some((*class, host.is_behind_realtime(core.index))),
                _ => None,
            };
            if let Some((likeness, by_class, by_queue)) = previous
                && like == Some(likeness)
            {
                self.usable[by_class].threads += core.waiting as usize;
                self.queues[by_queue].threads += 1;
                continue;
            }
            previous = self.add_queue(host, core).zip(like).map(|(at, like)| (like, at.0, at.1));
        }
        let [queues_wasted, queues_allowed, queues_unknown] =
            matched(&mut self.matcher, host.idle(), &self.queues);
        let [wasted, allowed, unknown] = matched(&mut self.matcher, host.idle(), &self.usable);
        debug_assert!(wasted.is_subset(&allowed) && allowed.is_subset(&unknown), "layers grow");
        debug_assert!(queues_unknown.len() <= unknown.len(), "a queue relieved by no thread");
        let times = |threads: &CoreSet, queues: &CoreSet| CoreTimes {
            wall_ns: u64::from(!threads.is_empty()),
            core_ns: queues.len() as u64,
            thread_ns: threads.len() as u64,
        };
        let sums = [
            times(&wasted, &queues_wasted),
            times(&allowed, &queues_allowed),
            times(&unknown, &queues_unknown),
        ];
        self.cores = WastedCores { wasted, allowed_by_policy: allowed.difference(&wasted) };
        self.rate = WastedSplit {
            wasted: sums[0],
            allowed_by_policy: sums[1].minus(&sums[0]),
            affinity_unknown: sums[2].minus(&sums[1]),
        };
    }
}

/// Adds what alike threads could use to a list without doubles; returns where.
fn push_or_merge(list: &mut Vec<Usable>, one: Usable) -> usize {
    match list.iter().position(|known| known.layers == one.layers) {
        Some(at) => {
            list[at].threads += one.threads;
            at
        }
        None => {
            list.push(one);
            list.len() - 1
        }
    }
}

/// The matched cores with each layer, which contain those of the layers before.
fn matched(matcher: &mut Matcher, idle: &CoreSet, usable: &[Usable]) -> [CoreSet; 3] {
    if let Some(matched) = matched_without_choice(usable) {
        return matched;
    }
    matcher.clear();
    for one in usable {
        let _ = matcher.add(one.layers[0], one.threads);
    }
    let mut matched = [CoreSet::EMPTY; 3];
    for (layer, matched) in matched.iter_mut().enumerate() {
        // Demands have the indices of the list.
        for (demand, one) in usable.iter().enumerate() {
            matcher.extend(demand, &one.layers[layer], 0);
        }
        matcher.run(idle);
        *matched = *matcher.matched();
    }
    matched
}

/// The matched cores where in each layer all threads that may use a core may use the same ones: the lowest.
fn matched_without_choice(usable: &[Usable]) -> Option<[CoreSet; 3]> {
    let mut matched = [CoreSet::EMPTY; 3];
    let mut before = CoreSet::EMPTY;
    for (layer, matched) in matched.iter_mut().enumerate() {
        let is_same = |one: &Usable| layer > 0 && one.layers[layer] == one.layers[layer - 1];
        if usable.iter().all(is_same) {
            *matched = before;
            continue;
        }
        let mut threads = 0;
        let mut cores = CoreSet::EMPTY;
        for one in usable.iter().filter(|one| !one.layers[layer].is_empty()) {
            if threads > 0 && one.layers[layer] != cores {
                return None;
            }
            cores = one.layers[layer];
            threads += one.threads;
        }
        // Threads lose no core from layer to layer, so those matched before are among these.
        debug_assert!(before.is_subset(&cores) || cores.is_empty(), "a layer lost cores");
        let left = threads.saturating_sub(before.len());
        let free = cores.difference(&before);
        let taken = match left {
            0 => CoreSet::EMPTY,
            // To look for the lowest one is cheaper than to take all others out.
            1 => free.first().map_or(CoreSet::EMPTY, CoreSet::of),
            _ => free.lowest(left),
        };
        before = taken.union(&before);
        *matched = before;
    }
    Some(matched)
}
