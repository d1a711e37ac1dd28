//! Random hosts, Snapshots and advice for the tests, made from a stream of numbers so that they shrink.

#![allow(dead_code, reason = "every test binary uses its part")]
#![allow(clippy::unwrap_used, reason = "a test that cannot build its scene fails")]

use quell_model::*;
use quell_policy::{Advice, Advisor, BadState, BanScope, Host};

/// A source of choices. An exhausted one always answers zero, the simplest choice.
pub struct Dice<'a> {
    numbers: std::slice::Iter<'a, u16>,
}

impl<'a> Dice<'a> {
    pub fn new(numbers: &'a [u16]) -> Self {
        Dice { numbers: numbers.iter() }
    }

    pub fn below(&mut self, sides: u64) -> u64 {
        self.numbers.next().map_or(0, |&number| u64::from(number) % sides)
    }

    /// True once in `times`.
    pub fn rarely(&mut self, times: u64) -> bool {
        self.below(times) + 1 == times
    }

    pub fn subset(&mut self, of: &CoreSet) -> CoreSet {
        match self.below(3) {
            0 => *of,
            1 => of.iter().filter(|_| self.below(2) == 0).collect(),
            _ => of.iter().skip(self.below(8) as usize).take(1 + self.below(4) as usize).collect(),
        }
    }

    pub fn signal(&mut self, most: u64) -> Signal<Nanos> {
        match self.below(5) {
            0 => Signal::Absent(Absence::NotApplicable),
            1 => Signal::Absent(Absence::NotSupported),
            2 => Signal::Estimated { value: Nanos(self.below(most)), how: Estimate::ProcSchedstat },
            _ => Signal::Measured(Nanos(self.below(most))),
        }
    }
}

pub fn caps(shares_cores: bool) -> HostCaps {
    HostCaps {
        shares_cores,
        idles_cores: true,
        places_threads: true,
        freezes_tasks: true,
        per_thread_state: true,
        bursts: shares_cores,
        request_start_times: true,
        yields_requests: true,
        memory_counters: true,
        llc_ways: 11,
        actuation_delay: Nanos::from_micros(100),
    }
}

/// 1 to 256 cores, SMT 1, 2 or 4, holes in the numbers, any managed subset.
pub fn host(dice: &mut Dice) -> Host {
    let most = [4, 8, 24, 256][dice.below(4) as usize];
    let smt = [1, 2, 4][dice.below(3) as usize];
    let physical = 1 + dice.below(most / smt);
    let holes = dice.below(2) == 1;
    let mut cores = Vec::new();
    for id in 0..physical * smt {
        if !holes || !dice.rarely(5) {
            let at = (id % physical) as u16;
            cores.push(Core { id: CoreId(id as u16), physical: at, llc: at / 8, node: at / 16 });
        }
    }
    if cores.is_empty() {
        cores.push(Core { id: CoreId(3), physical: 0, llc: 0, node: 0 });
    }
    let topology = Topology::new(cores).unwrap();
    let mut caps = caps(dice.below(2) == 0);
    caps.idles_cores = !dice.rarely(6);
    caps.freezes_tasks = !dice.rarely(4);
    Host { managed: dice.subset(&topology.all()), topology, caps }
}

pub fn limits(dice: &mut Dice, host: &Host) -> Limits {
    let cores = host.managed.len() as u64 + 2;
    let class = [Class::LatencyCritical, Class::BestEffort][dice.below(2) as usize];
    Limits {
        class,
        scheduler: TaskScheduler::Kernel,
        guaranteed: dice.below(cores.min(4)) as u32,
        max: [cores as u32, dice.below(cores) as u32][dice.below(2) as usize],
        times: {
            let mut times = TimeLimits::ZERO;
            times.delay_target = Nanos(dice.below(3) * 10_000);
            times.runaway_after = Nanos([0, 20_000, 60_000][dice.below(3) as usize]);
            times.sibling_idle_after = Nanos(dice.below(3) * 15_000);
            times.quantum = Nanos(dice.below(2) * 100_000);
            times
        },
        latency_target: Nanos(dice.below(3) * 300_000),
        allowed: dice.subset(&host.topology.all()),
    }
}

/// Makes some tasks of the Snapshots lanes and some runtimes: a place is the same kind of task in all of them.
pub fn mix_schedulers(dice: &mut Dice, seen: &mut [Snapshot]) {
    let kinds = [TaskScheduler::Kernel, TaskScheduler::Lane, TaskScheduler::Runtime];
    let of_place: Vec<_> = (0..16).map(|_| kinds[dice.below(3) as usize]).collect();
    for task in seen.iter_mut().flat_map(|seen| &mut seen.tasks) {
        task.limits.scheduler = of_place[task.id.at() % of_place.len()];
    }
}

pub fn task(dice: &mut Dice, index: u32, limits: Limits) -> TaskView {
    let generation = u32::from(dice.rarely(30));
    let misplaced = u32::from(dice.rarely(60));
    TaskView {
        id: TaskId { index: index + misplaced, generation },
        alive: !dice.rarely(10),
        limits,
        running: dice.below(4) as u32,
        waiting: [0, dice.below(6) as u32][dice.below(2) as usize],
        sleeping: dice.below(3) as u32,
        running_on: CoreSet::EMPTY,
        queueing_delay: dice.signal(40_000),
        longest_run: dice.signal(65_000),
        delay_caused: dice.signal(1_000_000),
        latency: dice.signal(500_000),
        load: Signal::default(),
        reported: None,
        bandwidth: Signal::default(),
        request_start: Signal::default(),
    }
}

pub fn core(dice: &mut Dice, id: CoreId, now: Nanos, tasks: usize) -> CoreView {
    let running = (tasks > 0 && dice.below(2) == 1).then(|| TaskId {
        index: dice.below(tasks as u64 + 1) as u32,
        generation: u32::from(dice.rarely(30)),
    });
    CoreView {
        id,
        managed: !dice.rarely(40),
        online: !dice.rarely(40),
        running,
        idle_since: (dice.below(2) == 1).then_some(now),
        lc_busy: match dice.below(3) {
            0 => Signal::Absent(Absence::NotSupported),
            _ => Signal::Measured(Permille(dice.below(1001) as u16)),
        },
        rt_share: match dice.below(3) {
            0 => Signal::Absent(Absence::NotSupported),
            _ => Signal::Measured(Permille(dice.below(1001) as u16)),
        },
        kernel_waits: (dice.below(4) == 1).then(|| Nanos(now.0 - dice.below(200_000_000))),
        burst: (dice.below(2) == 1).then(|| (thread(dice), Nanos(dice.below(30_000) * 100))),
        outcome: match dice.below(12) {
            0..=7 => Outcome::Done,
            8 | 9 => Outcome::Pending,
            10 => Outcome::Refused { errno: 1 },
            _ => Outcome::Raced,
        },
        request_start: match dice.below(3) {
            0 => Signal::Absent(Absence::NotApplicable),
            // Now and then in the future.
            _ => Signal::Measured(Nanos((now.0 + 5_000) - dice.below(60_000))),
        },
        serving: if dice.rarely(10) { None } else { running },
        memory: match dice.below(8) {
            0 => Signal::Absent(Absence::Stale),
            _ => Signal::Measured(Bytes(now.0 / 1_000 * dice.below(40))),
        },
    }
}

fn thread(dice: &mut Dice) -> ThreadId {
    ThreadId { index: dice.below(8) as u32, generation: u32::from(dice.rarely(30)) }
}

/// What may be reported of bursts, of threads and tasks that may not exist.
fn burst(dice: &mut Dice, tasks: usize) -> Burst {
    let (own, waiter_task) = (task_id(dice, tasks), task_id(dice, tasks));
    let state = match dice.below(5) {
        0 => BurstState::Proved,
        1 => BurstState::Exited,
        2 => BurstState::EndsSleep,
        _ => BurstState::Overran((!dice.rarely(4)).then(|| Waiter {
            thread: thread(dice),
            task: waiter_task,
            same_process: dice.below(2) == 1,
            has_record: dice.below(2) == 1,
        })),
    };
    let length = Nanos(dice.below(60_000) * 100);
    Burst {
        thread: thread(dice),
        task: own,
        core: CoreId(dice.below(4) as u16),
        length,
        whole: Nanos(length.0 * (1 + dice.below(32))),
        has_record: dice.below(2) == 1,
        state,
    }
}

fn task_id(dice: &mut Dice, tasks: usize) -> TaskId {
    TaskId { index: dice.below(tasks as u64 + 1) as u32, generation: 0 }
}

fn lock(dice: &mut Dice, tasks: usize) -> LockWait {
    let state = match dice.below(3) {
        0 => LockState::Released,
        _ => LockState::Owned { owner: thread(dice), task: task_id(dice, tasks) },
    };
    LockWait { waiter: thread(dice), task: task_id(dice, tasks), state }
}

fn in_kernel(dice: &mut Dice, now: Nanos, tasks: usize) -> InKernel {
    InKernel {
        thread: thread(dice),
        task: task_id(dice, tasks),
        core: CoreId(dice.below(4) as u16),
        since: Nanos(now.0 - dice.below(20_000_000)),
        stop: match dice.below(3) {
            0 => KernelStop::InTransaction,
            1 => KernelStop::Waits,
            _ => KernelStop::Sleeps,
        },
    }
}

/// Snapshots in ascending time over one set of tasks, whose states have nothing to do with the Plans.
pub fn snapshots(dice: &mut Dice, host: &Host) -> Vec<Snapshot> {
    let mut wishes: Vec<Limits> = (0..dice.below(10)).map(|_| limits(dice, host)).collect();
    let mut now = Nanos::from_secs(1);
    let count = 1 + dice.below(10);
    let mut snapshots = Vec::new();
    for _ in 0..count {
        now += Nanos([10_000, 1_000_000, 7_000_000, 300_000_000][dice.below(4) as usize]);
        if dice.rarely(8) {
            wishes.push(limits(dice, host));
        }
        if dice.rarely(8) {
            wishes.pop();
        }
        if let Some(wish) = wishes.first_mut().filter(|_| dice.rarely(8)) {
            *wish = limits(dice, host);
        }
        let mut tasks = Vec::new();
        for (index, wish) in wishes.iter().enumerate() {
            tasks.push(task(dice, index as u32, *wish));
        }
        let mut cores = Vec::new();
        for known in host.topology.cores() {
            cores.push(core(dice, known.id, now, tasks.len()));
        }
        for view in &cores {
            if let Some(task) = view.running.and_then(|id| tasks.get_mut(id.at())) {
                task.running_on.insert(view.id);
            }
        }
        let idle = cores.iter().filter(|core| core.idle_since.is_some()).map(|core| core.id);
        let went_idle = idle.filter(|_| dice.below(2) == 1).collect();
        let dirty = (0..tasks.len() as u32).filter(|_| dice.below(2) == 1).collect();
        let memory = match dice.below(8) {
            0 => Signal::Absent(Absence::Stale),
            _ => Signal::Measured(Bytes(now.0 / 1_000 * dice.below(60_000))),
        };
        let bursts = (0..dice.below(4)).map(|_| burst(dice, tasks.len())).collect();
        let locks = (0..dice.below(3)).map(|_| lock(dice, tasks.len())).collect();
        let in_kernel = (0..dice.below(4)).map(|_| in_kernel(dice, now, tasks.len())).collect();
        snapshots.push(Snapshot {
            now,
            cores,
            tasks,
            dirty,
            went_idle,
            elevated_background: dice.below(8) == 1,
            bursts,
            locks,
            in_kernel,
            memory,
        });
    }
    snapshots
}

/// Gives bad advice.
pub struct Adversary {
    numbers: Vec<u16>,
    at: usize,
}

impl Adversary {
    pub fn new(numbers: &[u16]) -> Self {
        Adversary { numbers: numbers.to_vec(), at: 0 }
    }
}

impl Advisor for Adversary {
    fn name(&self) -> &'static str {
        "adversary"
    }

    fn advise(&mut self, _now: Nanos, seen: &Snapshot, advice: &mut Advice) {
        if self.numbers.is_empty() || seen.tasks.is_empty() {
            return;
        }
        self.at = (self.at + 17) % self.numbers.len();
        let mut dice = Dice::new(&self.numbers[self.at..]);
        for _ in 0..dice.below(12) {
            let task = seen.tasks[dice.below(seen.tasks.len() as u64) as usize].id;
            let core = seen.cores[dice.below(seen.cores.len() as u64) as usize].id;
            let protects = seen.cores[dice.below(seen.cores.len() as u64) as usize].id;
            let scope = match dice.below(3) {
                0 => BanScope::Everyone,
                1 => BanScope::BestEffort,
                _ => BanScope::Task(task),
            };
            match dice.below(7) {
                0 => advice.cap(task, dice.below(4) as u32),
                4 => advice.cap_without(task, dice.below(4) as u32, core),
                5 => advice.keep_idle(core, protects),
                6 => advice.yield_to_others(core, Nanos(dice.below(1000))),
                1 => advice.keep_off_lc(task, Nanos(dice.below(1000))),
                2 => advice.prefer(task, core, dice.below(5000) as i32 - 2500),
                _ => advice.ban(scope, core, protects, TaskReason::Banned),
            }
        }
    }

    fn save(&self, state: &mut Vec<u8>) {
        state.extend((self.at as u64).to_le_bytes());
    }

    fn restore(&mut self, state: &mut &[u8]) -> Result<(), BadState> {
        let (at, rest) = state.split_first_chunk().unwrap();
        (self.at, *state) = (u64::from_le_bytes(*at) as usize, rest);
        Ok(())
    }
}

/// A host and its Snapshot, to be changed by hand between decisions.
pub struct Scene {
    pub host: Host,
    pub seen: Snapshot,
    pub plan: Plan,
}

impl Scene {
    /// `physical` cores with `smt` siblings each, all managed and idle.
    pub fn new(physical: u16, smt: u16, shares_cores: bool) -> Scene {
        let topology = Topology::regular(1, physical, smt).unwrap();
        let now = Nanos::from_secs(1);
        let cores = topology
            .cores()
            .iter()
            .map(|core| CoreView { idle_since: Some(Nanos::ZERO), ..CoreView::new(core.id) });
        let seen = Snapshot { now, cores: cores.collect(), ..Snapshot::default() };
        let host = Host { managed: topology.all(), topology, caps: caps(shares_cores) };
        Scene { host, seen, plan: Plan::default() }
    }

    /// Adds a sleeping task.
    pub fn add(&mut self, class: Class, guaranteed: u32, max: u32) -> TaskId {
        let index = self.seen.tasks.len() as u32;
        let limits = Limits {
            class,
            scheduler: TaskScheduler::Kernel,
            guaranteed,
            max,
            times: TimeLimits {
                runaway_after: Nanos::from_millis(50),
                quantum: Nanos::ZERO,
                ..TimeLimits::default()
            },
            latency_target: Nanos::ZERO,
            allowed: self.host.topology.all(),
        };
        let mut task = task(&mut Dice::new(&[]), index, limits);
        task.alive = true;
        self.seen.tasks.push(task);
        self.seen.tasks[index as usize].id
    }

    pub fn lc(&mut self, guaranteed: u32, max: u32) -> TaskId {
        self.add(Class::LatencyCritical, guaranteed, max)
    }

    pub fn be(&mut self, max: u32) -> TaskId {
        self.add(Class::BestEffort, 0, max)
    }

    /// A lane on any core.
    pub fn lane(&mut self, class: Class, guaranteed: u32) -> TaskId {
        let id = self.add(class, guaranteed, 1);
        let limits = &mut self.task(id).limits;
        (limits.scheduler, limits.times.runaway_after) = (TaskScheduler::Lane, Nanos::ZERO);
        id
    }

    pub fn task(&mut self, id: TaskId) -> &mut TaskView {
        &mut self.seen.tasks[id.at()]
    }

    /// Sets how many threads run and wait; those that wait did so for 50 us.
    pub fn demand(&mut self, id: TaskId, running: u32, waiting: u32) {
        let task = self.task(id);
        (task.running, task.waiting) = (running, waiting);
        task.queueing_delay = match waiting {
            0 => Signal::Absent(Absence::NotApplicable),
            _ => Signal::Measured(Nanos::from_micros(50)),
        };
    }

    /// The task runs on the core, as far as seen.
    pub fn runs(&mut self, core: u16, id: Option<TaskId>) {
        let now = self.seen.now;
        let at = self.host.topology.position(CoreId(core)).unwrap();
        let view = &mut self.seen.cores[at];
        if let Some(before) = view.running {
            self.seen.tasks[before.at()].running_on.remove(view.id);
        }
        (view.running, view.idle_since) = (id, id.is_none().then_some(now));
        if let Some(id) = id {
            self.seen.tasks[id.at()].running_on.insert(view.id);
        }
    }

    /// Decides `later` after the last decision.
    pub fn tick(
        &mut self,
        policy: &mut dyn quell_policy::Policy,
        later: Nanos,
    ) -> quell_policy::Wake {
        self.seen.now += later;
        policy.decide(self.seen.now, &self.seen, &mut self.plan)
    }

    /// The task's cores, printed.
    pub fn owned(&self, id: TaskId) -> String {
        self.plan.owned(id).to_string()
    }

    pub fn planned(&self, id: TaskId) -> &TaskPlan {
        &self.plan.tasks[id.at()]
    }
}
