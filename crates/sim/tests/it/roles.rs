//! Roles of threads in a closed loop: bursts that policies see on simulated hosts, and what becomes of them.

#![allow(clippy::unwrap_used, reason = "a policy that is not there fails the test")]

use crate::common::*;
use quell_model::*;
use quell_policy::{BadState, Config, Host, Policy, Wake, by_name};
use quell_sim::workload::Service;
use quell_sim::{Change, Faults, Helper, Load, Report, Scenario, Step, Style, Task, fuzz, run};

/// The policy, and each change of the roles that it plans: since when, for which thread, which role.
struct Watched {
    inner: Box<dyn Policy>,
    changes: Changes,
    planned: Plan,
    /// The lowest rung that an LC task or thread ever had.
    lowest: Rung,
}

impl Policy for Watched {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn decide(&mut self, now: Nanos, seen: &Snapshot, plan: &mut Plan) -> Wake {
        let wake = self.inner.decide(now, seen, plan);
        let lists = [&self.planned.roles, &plan.roles];
        let mut threads: Vec<ThreadId> =
            lists.into_iter().flatten().map(|planned| planned.thread).collect();
        threads.sort_unstable();
        threads.dedup();
        for thread in threads {
            if self.planned.role(thread) != plan.role(thread) {
                self.changes.push((now, thread.index, plan.role(thread)));
            }
        }
        self.planned.roles.clone_from(&plan.roles);
        let lc = plan.tasks.iter().filter(|task| task.class == Class::LatencyCritical);
        let rungs = lc.flat_map(|task| {
            let own = plan.roles.iter().filter(|planned| planned.task == task.id);
            own.map(|planned| task.rung.of_role(planned.role)).chain([task.rung])
        });
        self.lowest = rungs.fold(self.lowest, Rung::max);
        wake
    }

    fn save(&self, state: &mut Vec<u8>) {
        self.inner.save(state);
    }

    fn restore(&mut self, state: &mut &[u8]) -> Result<(), BadState> {
        self.inner.restore(state)
    }
}

/// One core, on which priority alone arbitrates; with and without bursts.
fn one_core(bursts: bool) -> Scenario {
    let mut host = host(1, 1, true);
    host.caps.bursts = bursts;
    let mut scenario = scenario(host);
    scenario.length = Nanos(SECOND);
    scenario.warm_up = Nanos::ZERO;
    scenario
}

/// When which thread gets which role.
type Changes = Vec<(Nanos, u32, Role)>;

/// What came out, and the changes of roles on the way.
fn watch(scenario: &Scenario) -> (Report, Changes) {
    let inner = by_name("quell", scenario.host.clone(), Config::default()).unwrap();
    let (planned, lowest) = (Plan::default(), Rung::Guardian);
    let mut policy = Watched { inner, changes: Vec::new(), planned, lowest };
    let report = run(scenario, &mut policy);
    if scenario.host.caps.bursts {
        assert!(policy.lowest < Rung::SchedIdle, "LC at or below BE: {:?}", policy.lowest);
    }
    assert_eq!(report.broken, []);
    let first: Vec<String> = report.violations.iter().take(3).map(|it| it.1.to_string()).collect();
    assert!(first.is_empty(), "{first:?}");
    (report, policy.changes)
}

/// Requests of 20 us each on one thread, in thousandths of one core.
fn worker(host: &Host, guaranteed: u32, busy: &[(u64, u64)]) -> Task {
    let takes = Nanos(20 * US);
    let steps = busy.iter().map(|(from, busy)| Step::every(Nanos(*from), Nanos(20_000_000 / busy)));
    let load = Load::Open { steps: steps.collect(), service: Service::Fixed(takes) };
    Task { load, ..service(host, guaranteed, 1, &[(0, 1)]) }
}

fn helper(name: &str, period: u64, burst: u64) -> Helper {
    let (name, burst) = (name.to_owned(), Service::Fixed(Nanos(burst)));
    Helper { name, threads: 1, period: Nanos(period), burst, stops_world: false }
}

/// When the thread first gets the role after some time.
fn first(changes: &Changes, after: u64, thread: u32, role: Role) -> Nanos {
    let found = changes.iter().find(|(at, of, to)| at.0 >= after && (*of, *to) == (thread, role));
    found.unwrap_or_else(|| panic!("thread {thread} is never {role:?}: {changes:?}")).0
}

#[test]
fn collector_delays_its_service_by_a_budget_and_is_raised_again() {
    let outcome = |bursts| {
        let mut scenario = one_core(bursts);
        let mut task = worker(&scenario.host, 1, &[(0, 300)]);
        task.helpers = vec![helper("collector", 100 * MS, 8 * MS)];
        scenario.tasks = vec![task, hog(&scenario.host, 1)];
        let (report, changes) = watch(&scenario);
        (report.tasks[0].latency.max(), changes)
    };
    let ((with, changes), (without, _)) = (outcome(true), outcome(false));
    assert!(without > Nanos(7 * MS), "without roles requests wait for the collector: {without}");
    assert!(with < Nanos(MS), "{with}");
    let demoted = first(&changes, 100 * MS, 1, Role::LongEvent);
    assert!(demoted < Nanos(101 * MS), "{demoted}");
    // 8 ms of work beside a service that has 30 % of the core: its first burst ends after some 11.5 ms.
    let raised = first(&changes, 101 * MS, 1, Role::Event);
    assert!(raised < Nanos(113 * MS), "{raised}");
    assert!(changes.iter().all(|(_, thread, _)| *thread == 1), "{changes:?}");
}

#[test]
fn backlog_of_short_requests_costs_no_role_until_it_is_long() {
    // Two workers, and load beyond the core's for a while: they are awake until it is worked off.
    let changes_after = |overloaded: u64| {
        let mut scenario = one_core(true);
        let steps = [(0, 300), (100 * MS, 1_300), (100 * MS + overloaded, 300)];
        let task = Task { threads: 2, ..worker(&scenario.host, 1, &steps) };
        scenario.tasks = vec![task, hog(&scenario.host, 1)];
        watch(&scenario).1
    };
    assert_eq!(changes_after(7 * MS), [], "some 10 ms for both");
    let long = changes_after(200 * MS);
    assert!(long.iter().any(|(_, _, role)| *role == Role::LongEvent), "{long:?}");
}

#[test]
fn collector_of_a_cores_owner_lends_its_core_to_the_neighbour() {
    let outcome = |bursts| {
        let mut scenario = one_core(bursts);
        let mut owner = worker(&scenario.host, 1, &[(0, 100)]);
        owner.helpers = vec![helper("collector", 100 * MS, 8 * MS)];
        let neighbour = worker(&scenario.host, 0, &[(0, 100)]);
        scenario.tasks = vec![owner, neighbour, hog(&scenario.host, 1)];
        let (report, changes) = watch(&scenario);
        ([0, 1].map(|task| report.tasks[task].latency.max()), changes)
    };
    let (([own, guest], changes), ([_, without], _)) = (outcome(true), outcome(false));
    assert!(own < Nanos(MS), "{own}");
    assert!(guest.0 * 4 < without.0 * 3, "{guest} with roles, {without} without");
    let demoted = first(&changes, 100 * MS, 1, Role::LongEvent);
    assert!(demoted < Nanos(101 * MS), "{demoted}");
    let lends = first(&changes, 100 * MS, 1, Role::Background);
    let returns = first(&changes, lends.0, 1, Role::LongEvent);
    assert!(returns < lends + Nanos(2 * MS), "it lends for 1 ms: {lends} to {returns}");
}

#[test]
fn crawler_does_not_hold_up_a_cache() {
    let outcome = |bursts| {
        let mut scenario = one_core(bursts);
        let mut task = worker(&scenario.host, 1, &[(0, 500)]);
        task.helpers = vec![helper("crawler", 20 * MS, 3 * MS)];
        scenario.tasks = vec![task, hog(&scenario.host, 1)];
        watch(&scenario).0.tasks[0].clone()
    };
    let (with, without) = (outcome(true), outcome(false));
    let tails = (with.percentile(990), without.percentile(990));
    assert!(tails.0.0 * 3 < tails.1.0, "p99 {tails:?}");
    assert!(with.latency.max() < Nanos(2 * MS), "{}", with.latency.max());
}

#[test]
fn requests_wait_only_for_a_collector_of_their_task() {
    let mut scenario = one_core(true);
    let mut stops = worker(&scenario.host, 1, &[(0, 300)]);
    let collector = Helper { threads: 2, ..helper("collector", 100 * MS, 3 * MS) };
    stops.helpers = vec![Helper { stops_world: true, ..collector.clone() }];
    scenario.tasks = vec![stops, hog(&scenario.host, 1)];
    let (stopped, _) = watch(&scenario);
    scenario.tasks[0].helpers = vec![collector];
    let (other, _) = watch(&scenario);
    let [stopped, other] = [stopped, other].map(|report| report.tasks[0].latency.max());
    assert!((Nanos(6 * MS)..Nanos(7 * MS)).contains(&stopped), "two bursts on one core: {stopped}");
    assert!(other < Nanos(MS), "{other}");
}

#[test]
fn backlog_never_puts_an_event_loop_below_batch_work() {
    let mut scenario = one_core(true);
    (scenario.length, scenario.sample) = (Nanos(3 * SECOND), Nanos(10 * MS));
    let load = [(0, 300), (SECOND, 1_300), (2 * SECOND, 300)];
    let neighbour = worker(&scenario.host, 0, &[(0, 100)]);
    scenario.tasks = vec![worker(&scenario.host, 1, &load), neighbour, hog(&scenario.host, 1)];
    let (report, changes) = watch(&scenario);
    // The backlog of the overload is served some 0.6 s after its end.
    let overloaded = report.timeline.iter().filter(|sample| {
        (Nanos(SECOND + 20 * MS)..Nanos(2 * SECOND + 400 * MS)).contains(&sample.at)
    });
    let batch: u64 = overloaded.map(|sample| sample.tasks[2].ran.0).sum();
    assert!(batch < 28 * MS, "batch work had {} of 1.4 s", Nanos(batch));
    assert!(report.tasks.iter().take(2).all(|task| task.unanswered <= 2), "{:?}", changes);
    let last = first(&changes, 2 * SECOND, 0, Role::Event);
    let later = changes.iter().filter(|(at, thread, _)| *at > last && *thread == 0);
    assert_eq!(later.count(), 0, "an event thread again once the backlog is served: {changes:?}");
}

#[test]
fn thread_that_spun_for_a_second_is_raised_within_milliseconds() {
    let mut scenario = one_core(true);
    scenario.length = Nanos(3 * SECOND);
    let owner = worker(&scenario.host, 1, &[(0, 300)]);
    let changing = Task { threads: 2, ..worker(&scenario.host, 0, &[(0, 100)]) };
    scenario.tasks = vec![owner, changing, hog(&scenario.host, 1)];
    let [from, to] = [SECOND, 2 * SECOND].map(Nanos);
    scenario.changes = vec![(from, Change::Spin(1, true)), (to, Change::Spin(1, false))];
    let (report, changes) = watch(&scenario);
    let demoted = first(&changes, from.0, 1, Role::LongEvent);
    assert!(demoted < from + Nanos(MS), "{demoted}");
    let raised = first(&changes, to.0, 1, Role::Event);
    assert!(raised < to + Nanos(3 * MS), "{raised}");
    assert!(report.tasks[1].latency.max() < Nanos(MS), "its other thread answers meanwhile");
    assert!(report.tasks[0].latency.max() < Nanos(MS));
    assert!(report.tasks[2].ran > Nanos(SECOND), "batch work has what both leave before and after");
}

#[test]
fn forked_child_goes_behind_its_server_at_once() {
    let mut scenario = one_core(true);
    let mut task = worker(&scenario.host, 1, &[(0, 300)]);
    task.helpers = vec![helper("save-child", 600 * MS, 120 * MS)];
    scenario.tasks = vec![task, hog(&scenario.host, 1)];
    let (report, changes) = watch(&scenario);
    let demoted = first(&changes, 600 * MS, 1, Role::LongEvent);
    assert!(demoted < Nanos(601 * MS), "{demoted}");
    assert!(changes.iter().all(|(_, thread, _)| *thread == 1), "the server keeps its role");
    assert!(report.tasks[0].latency.max() < Nanos(MS), "{}", report.tasks[0].latency.max());
}

#[test]
fn three_services_of_one_core_survive_the_overload_of_one() {
    let outcome = |third: &[(u64, u64)]| {
        let mut scenario = one_core(true);
        (scenario.length, scenario.sample) = (Nanos(4 * SECOND), Nanos(10 * MS));
        let host = &scenario.host;
        let services = [worker(host, 1, &[(0, 200)]), worker(host, 0, &[(0, 100)])];
        scenario.tasks =
            services.into_iter().chain([worker(host, 0, third), hog(host, 1)]).collect();
        watch(&scenario).0
    };
    let (calm, report) =
        (outcome(&[(0, 500)]), outcome(&[(0, 500), (SECOND, 1_300), (3 * SECOND, 250)]));
    for service in 0..2 {
        let [alone, beside] = [&calm, &report].map(|report| report.tasks[service].percentile(999));
        assert!(
            ratio(beside, alone) < 2.0,
            "service {service}: p99.9 {beside}, {alone} beside a calm one"
        );
    }
    let overloaded = report
        .timeline
        .iter()
        .filter(|sample| (Nanos(SECOND + 20 * MS)..Nanos(3 * SECOND)).contains(&sample.at));
    let batch: u64 = overloaded.map(|sample| sample.tasks[3].ran.0).sum();
    assert!(batch < 40 * MS, "batch work had {} of 2 s", Nanos(batch));
}

/// None of them runs for long, and together they leave the core no pause: by their share of it alone they would leave it
/// to others after nine tenths of 250 ms.
#[test]
fn threads_that_take_turns_leave_the_core_to_the_kernel_in_time() {
    let mut scenario = one_core(true);
    scenario.length = Nanos(2 * SECOND);
    let workers = Task { threads: 8, ..worker(&scenario.host, 1, &[(0, 1_050)]) };
    let kernel =
        Task::kernel(&scenario.host.topology, Nanos(10 * MS), Service::Fixed(Nanos(50 * US)));
    scenario.tasks = vec![workers, hog(&scenario.host, 1), kernel];
    let waited = watch(&scenario).0.longest_kernel_wait;
    assert!(waited <= fuzz::KERNEL_WAIT_MAX, "{waited}");
}

/// A service whose only thread is overloaded, and a thread of the kernel on the same core.
fn beside_the_kernel(bursts: bool) -> Scenario {
    let mut scenario = one_core(bursts);
    let mut service = worker(&scenario.host, 1, &[(0, 1_300)]);
    service.limits.times.runaway_after = TimeLimits::default().runaway_after;
    let topology = &scenario.host.topology;
    let kernel = Task::kernel(topology, Nanos(10 * MS), Service::Fixed(Nanos(50 * US)));
    scenario.tasks = vec![service, hog(&scenario.host, 1), kernel];
    scenario
}

#[test]
fn kernel_threads_run_beside_an_overloaded_service() {
    let waited = |bursts| watch(&beside_the_kernel(bursts)).0.longest_kernel_wait;
    let (with, without) = (waited(true), waited(false));
    assert!(with < Nanos(50 * MS), "{with}");
    assert!(without > fuzz::KERNEL_WAIT_MAX, "roles are what lets them run: {without}");
}

/// Hosts of the search with threads of the kernel, all of whose services are overloaded.
fn overloaded(seed: u64) -> Option<Scenario> {
    let mut scenario = fuzz::scenario(seed);
    let is_lc = |task: &Task| task.limits.class == Class::LatencyCritical;
    let fits = scenario.host.caps.shares_cores
        && scenario.host.topology.len() <= 8
        && scenario.tasks.iter().all(|task| task.limits.scheduler == TaskScheduler::Kernel)
        && scenario.tasks.iter().any(is_lc);
    if !fits || !scenario.changes.is_empty() || scenario.faults != Faults::default() {
        return None;
    }
    scenario.tasks.retain(|task| task.style != Style::Kernel);
    for task in &mut scenario.tasks {
        task.limits.times.runaway_after = TimeLimits::default().runaway_after;
        if let Load::Open { steps, .. } = &mut task.load {
            steps.iter_mut().for_each(|step| step.gap_ps /= 10);
        }
    }
    let topology = &scenario.host.topology;
    let kernel = Task::kernel(topology, Nanos(10 * MS), Service::Fixed(Nanos(50 * US)));
    scenario.tasks.push(kernel);
    scenario.length = Nanos(300 * MS);
    Some(scenario)
}

#[test]
fn kernel_threads_run_beside_overloaded_services() {
    let (mut hosts, mut starved) = (0, 0);
    for seed in 0..700 {
        let Some(mut scenario) = overloaded(seed) else { continue };
        let mut waited = |bursts| {
            scenario.host.caps.bursts = bursts;
            let report = under("quell", &scenario);
            assert_eq!(report.broken, [], "seed {seed}");
            report.longest_kernel_wait
        };
        let (with, without) = (waited(true), waited(false));
        assert!(with <= fuzz::KERNEL_WAIT_MAX, "seed {seed}: {with}");
        hosts += 1;
        starved += u32::from(without > fuzz::KERNEL_WAIT_MAX);
    }
    assert!(hosts >= 10, "{hosts} hosts");
    assert!(starved * 2 > hosts, "without roles they starve on {starved} of {hosts} hosts");
}
