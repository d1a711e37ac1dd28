//! Random lives of threads under every model: what holds after each step.

use proptest::prelude::*;
use quell_model::{Core, CoreId, CoreSet, Nanos, Topology};

use crate::kernel::linux::{KernelModel, Linux, ROOT, SchedClass, weights};

const CORES: u16 = 8;
const THREADS: usize = 24;

/// What happens next.
#[derive(Clone, Copy, Debug)]
enum Happens {
    /// A sleeping thread wakes, or is forked if it is new; the second one wakes it if that runs.
    Wakes(usize, usize),
    Sleeps(usize),
    Yields(usize),
    Execs(usize),
    Allowed(usize, u8),
    Class(usize, u8),
    Online(u16, bool),
    Passes(u32),
}

fn happens() -> impl Strategy<Value = Happens> {
    let thread = 0..THREADS;
    prop_oneof![
        4 => (thread.clone(), thread.clone()).prop_map(|(one, other)| Happens::Wakes(one, other)),
        3 => thread.clone().prop_map(Happens::Sleeps),
        1 => thread.clone().prop_map(Happens::Yields),
        1 => thread.clone().prop_map(Happens::Execs),
        1 => (thread.clone(), any::<u8>()).prop_map(|(thread, cores)| Happens::Allowed(thread, cores)),
        1 => (thread, 0u8..8).prop_map(|(thread, class)| Happens::Class(thread, class)),
        1 => (0..CORES, any::<bool>()).prop_map(|(core, online)| Happens::Online(core, online)),
        4 => (1u32..30_000_000).prop_map(Happens::Passes),
    ]
}

/// Two nodes with two pairs each.
fn topology() -> Topology {
    let core = |id: u16| Core { id: CoreId(id), physical: id / 2, llc: id / 4, node: id / 4 };
    Topology::new((0..CORES).map(core).collect()).unwrap()
}

struct Life {
    linux: Linux,
    now: Nanos,
}

impl Life {
    fn new(model: KernelModel) -> Life {
        let topology = topology();
        let mut linux = Linux::new(model, &topology);
        let groups = [ROOT, linux.add_group(1_024), linux.add_group(2_048)];
        for thread in 0..THREADS {
            let class = SchedClass::Fair { weight: weights::of_nice(0) };
            linux.add_thread(class, groups[thread % 3], topology.all(), CoreId(0), Nanos::ZERO);
        }
        Life { linux, now: Nanos::ZERO }
    }

    fn step(&mut self, step: Happens) {
        let now = self.now;
        let linux = &mut self.linux;
        let runs = |linux: &Linux, thread: usize| {
            (0..CORES).find(|core| linux.running(CoreId(*core)) == Some(thread))
        };
        match step {
            Happens::Wakes(thread, waker) if !linux.is_queued(thread) => {
                let waker = Some(waker).filter(|waker| runs(linux, *waker).is_some());
                if linux.is_new(thread) {
                    let parent = waker.map_or(CoreId(0), |waker| linux.last_core(waker));
                    let parent = if linux.online.contains(parent) {
                        parent
                    } else {
                        linux.online.first().unwrap()
                    };
                    linux.fork(thread, parent, None, now);
                } else {
                    linux.wake(thread, waker, now);
                }
            }
            Happens::Sleeps(thread) if runs(linux, thread).is_some() => linux.sleep(thread, now),
            Happens::Yields(thread) if runs(linux, thread).is_some() => {
                linux.yield_now(thread, now)
            }
            Happens::Execs(thread) if runs(linux, thread).is_some() => linux.exec(thread, now),
            Happens::Allowed(thread, cores) => {
                let cores = (0..CORES).filter(|core| cores >> core & 1 == 1).map(CoreId);
                linux.set_allowed(thread, cores.collect(), now);
            }
            Happens::Class(thread, class) => {
                let class = match class {
                    0 => SchedClass::Idle,
                    1 | 2 => SchedClass::RealTime(40 + class),
                    nice => SchedClass::Fair { weight: weights::of_nice(nice as i8 - 5) },
                };
                linux.set_class(thread, class, now);
            }
            Happens::Online(core, online) if online || linux.online.len() > 1 => {
                linux.set_online(CoreId(core), online, now);
            }
            Happens::Passes(time) => self.pass(Nanos(u64::from(time))),
            _ => {}
        }
        self.settle();
    }

    fn pass(&mut self, time: Nanos) {
        let until = self.now + time;
        while self.linux.next_tick(self.now) <= until {
            self.now = self.linux.next_tick(self.now);
            for core in (0..CORES).map(CoreId) {
                if self.linux.running(core).is_some() {
                    self.linux.tick(core, self.now);
                    self.settle();
                }
            }
        }
        self.now = until;
    }

    fn settle(&mut self) {
        let mut rounds = 0;
        while let Some(core) = self.linux.next_resched() {
            self.linux.schedule(core, self.now);
            rounds += 1;
            assert!(rounds < 1_000, "cores reschedule without end");
        }
        self.linux.take_migrations(&mut Vec::new());
        self.check();
    }

    fn check(&self) {
        let linux = &self.linux;
        for (at, queue) in linux.cores.iter().enumerate() {
            let id = CoreId(at as u16);
            let online = linux.online.contains(id);
            let waiting = queue.fair.len() + queue.realtime.len();
            assert!(online || queue.queued == 0, "core {at} is offline and has {}", queue.queued);
            assert!(queue.queued as usize >= waiting, "core {at}: {} and {waiting}", queue.queued);
            assert_eq!(linux.idle.contains(id), online && queue.queued == 0, "core {at}");
            assert_eq!(linux.crowded.contains(id), queue.queued > 1, "core {at}");
            assert!(!linux.idle.contains(id) || linux.tickless.contains(id), "core {at}");
            let is_realtime = |thread: usize| !linux.threads[thread].class.is_fair();
            let runs_realtime = queue.running.is_some_and(is_realtime);
            assert_eq!(linux.realtime_runs.all().contains(id), runs_realtime, "core {at}");
            let waits = queue.realtime.len() > usize::from(runs_realtime);
            assert_eq!(linux.realtime_waits.contains(id), waits, "core {at}");
            // Delayed sleepers keep nothing from running.
            assert_eq!(queue.running.is_some(), waiting > 0, "core {at} with {waiting} threads");
            for thread in queue.fair.iter().chain(&queue.realtime) {
                let state = &linux.threads[*thread];
                assert!(state.is_queued && state.core == at, "thread {thread} on core {at}");
                assert!(linux.may_use(*thread, at), "thread {thread} may not use core {at}");
            }
        }
        self.check_sums();
    }

    /// The sums of groups are those of their threads.
    fn check_sums(&self) {
        let linux = &self.linux;
        for (group, of) in linux.groups.iter().enumerate() {
            for core in 0..linux.cores.len() {
                let own = linux.threads.iter().filter(|thread| {
                    thread.is_queued
                        && thread.core == core
                        && thread.group == group
                        && thread.class.is_fair()
                });
                let load: u64 = own.map(|thread| thread.counted.load).sum();
                assert_eq!(of.on[core].sums.load, load, "group {group} on core {core}");
            }
            let load: u64 = of.on.iter().map(|core| core.sums.load).sum();
            assert_eq!(of.total.load, load, "group {group}");
        }
    }
}

proptest! {
    #[test]
    fn threads_are_in_one_queue_that_they_may_use(
        at in 0usize..KernelModel::PRESETS.len(),
        steps in proptest::collection::vec(happens(), 1..150),
    ) {
        let mut life = Life::new(KernelModel::PRESETS[at].1);
        for step in steps {
            life.step(step);
        }
    }

    /// Where all bugs are fixed, no core idles for long while a thread waits that may use it: threads that spin settle.
    #[test]
    fn spinning_threads_leave_no_core_idle_once_bugs_are_fixed(
        at in 3usize..KernelModel::PRESETS.len(),
        threads in 8usize..24,
        core in 0u16..CORES,
    ) {
        let mut life = Life::new(KernelModel::PRESETS[at].1);
        for thread in 0..threads {
            life.linux.fork(thread, CoreId(core), None, life.now);
            life.settle();
        }
        life.pass(Nanos::from_secs(4));
        prop_assert_eq!(life.linux.waste().cores, 0, "{:?}", life.linux.idle);
    }
}

/// For [`Happens::Allowed`]: no cores at all mean all.
#[test]
fn a_thread_without_a_core_may_use_all() {
    let mut life = Life::new(KernelModel::LINUX_6_12);
    life.linux.set_allowed(0, CoreSet::EMPTY, life.now);
    life.step(Happens::Wakes(0, 1));
    assert!(life.linux.is_queued(0));
}
