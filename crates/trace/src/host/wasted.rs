//! The time of idle cores that waiting threads could have used.

use quell_model::{CoreSet, Nanos, Rank};
use serde::Serialize;

use super::apply::is_realtime;
use super::matching::Matcher;
use super::{ClassIndex, HostState, Occupant, Queues, WaiterKey};

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
/// events were lost are neither idle nor contended. Where the source reports no threads, the sizes of queues
/// stand for them.
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
    usable: Vec<Usable>,
}

/// What the waiting threads of a class could use on one core's queue.
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
        self.pending.add(&self.rate.times(time));
        self.pending_time += time;
        changed
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
        let before = std::mem::take(&mut self.cores);
        self.rate = WastedSplit::default();
        if !host.idle().is_empty() && !host.contended().is_empty() {
            match host.queues() {
                Queues::SizesOnly => self.compute_by_sizes(host),
                Queues::PerCore | Queues::Shared => self.compute_by_threads(host),
            }
        }
        self.cores != before
    }

    fn compute_by_sizes(&mut self, host: &HostState) {
        let sizes = host.contended().iter().filter_map(|id| host.core(id)?.runnable);
        let waiting: usize = sizes.map(|size| size as usize - 1).sum();
        let threads = host.idle().len().min(waiting);
        self.cores.wasted = host.idle().iter().take(threads).collect();
        self.rate.wasted = CoreTimes {
            wall_ns: 1,
            core_ns: host.idle().len().min(host.contended().len()) as u64,
            thread_ns: threads as u64,
        };
    }

    fn compute_by_threads(&mut self, host: &HostState) {
        let mut usable = std::mem::take(&mut self.usable);
        usable.clear();
        // By queue, and then by class: a queue is relieved by a core that any of its threads may use.
        for id in host.contended().iter() {
            let Some(core) = host.core(id) else { continue };
            let behind = match host.occupant(core.index) {
                Occupant::Thread(thread) => thread.prio(),
                Occupant::Unknown | Occupant::Idle => Rank::FAIR,
            };
            let mut queue = Usable { threads: 1, ..Usable::default() };
            for (class, _) in core.groups() {
                let layers = layers(host, *class, behind);
                for (all, one) in queue.layers.iter_mut().zip(layers) {
                    *all = all.union(&one);
                }
            }
            usable.push(queue);
        }
        let [queues_wasted, queues_allowed, queues_unknown] = self.matched(host, &usable);
        usable.clear();
        for id in host.contended().iter() {
            let Some(core) = host.core(id) else { continue };
            let behind = host.occupant(core.index).thread().map_or(Rank::FAIR, |by| by.prio());
            for (class, threads) in core.groups() {
                let layers = layers(host, *class, behind);
                usable.push(Usable { threads: *threads as usize, layers });
            }
        }
        let [wasted, allowed, unknown] = self.matched(host, &usable);
        self.usable = usable;
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

    /// The matched cores with each layer, which contain those of the layers before.
    fn matched(&mut self, host: &HostState, usable: &[Usable]) -> [CoreSet; 3] {
        let idle = host.idle();
        if let Some(matched) = match_free(idle, usable) {
            return matched;
        }
        self.matcher.clear();
        let mut demands: Vec<(Usable, usize)> = Vec::with_capacity(usable.len());
        for one in usable {
            match demands.iter_mut().find(|(known, _)| known.layers == one.layers) {
                Some((known, _)) => known.threads += one.threads,
                None => demands.push((*one, 0)),
            }
        }
        let mut matched = [CoreSet::EMPTY; 3];
        for (layer, matched) in matched.iter_mut().enumerate() {
            for (of, demand) in &mut demands {
                match layer {
                    0 => *demand = self.matcher.add(of.layers[0], of.threads),
                    _ => self.matcher.extend(*demand, &of.layers[layer], 0),
                }
            }
            self.matcher.run(idle);
            *matched = *self.matcher.matched();
        }
        matched
    }
}

/// The matched cores where each thread may use either all idle cores of a layer or none.
fn match_free(idle: &CoreSet, usable: &[Usable]) -> Option<[CoreSet; 3]> {
    let mut threads = [0; 3];
    for one in usable {
        for (sum, cores) in threads.iter_mut().zip(&one.layers) {
            if cores == idle {
                *sum += one.threads;
            } else if !cores.is_empty() {
                return None;
            }
        }
    }
    Some(threads.map(|threads| idle.iter().take(threads).collect()))
}

/// The idle cores that a waiting thread could use: those that are wasted then, those and the ones that a policy
/// keeps it off, and those and the ones of which its affinity does not say.
fn layers(host: &HostState, class: ClassIndex, behind: Rank) -> [CoreSet; 3] {
    let WaiterKey { allowed, prio, is_pinned, plan } = host.class(class);
    let idle = host.idle();
    if *is_pinned {
        return [CoreSet::EMPTY; 3];
    }
    if let Some(plan) = plan {
        let may = idle.intersection(&plan.original);
        return [idle.intersection(&plan.planned), may, may];
    }
    let Some(allowed) = allowed.or(host.assumed_affinity()) else {
        return [CoreSet::EMPTY, CoreSet::EMPTY, *idle];
    };
    let may = idle.intersection(&allowed);
    let is_excused = *prio >= Rank::BENEATH || is_realtime(*prio) || is_realtime(behind);
    [if is_excused { CoreSet::EMPTY } else { may }, may, may]
}
