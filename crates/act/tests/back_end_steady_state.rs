//! A back end allocates nothing and asks nothing of the host where nothing moves. A binary of its own, as
//! it counts all allocations of the process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use quell_act::backend::{
    BackEnd, Cpusets, Elevation, ElevationHost, Host, Inspection, TaskGroups, TaskInfo,
    ThreadSettings,
};
use quell_act::{ActError, Ladder, RestoreReport};
use quell_model::{
    BeRung, Class, CoreId, CoreMode, CorePlan, CoreSet, Nanos, Plan, Reason, Rung, TaskId,
    TaskPlan, TaskReason, ThreadId,
};
use quell_observe::{ThreadState, ThreadView};
use quell_os::sched::SchedAttr;
use quell_os::{ThreadRef, Tid};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: all is left to the system's allocator, which keeps the contract.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // Relaxed: a count, read by the only thread that matters.
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is passed on.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// A host that takes everything, counts, and whose clock stands still.
#[derive(Default)]
struct Counter {
    calls: u64,
}

impl Host for Counter {
    fn now(&self) -> Nanos {
        Nanos::from_secs(1)
    }

    fn online(&mut self) -> CoreSet {
        self.calls += 1;
        CoreSet::from_words(&[0xffff])
    }

    fn sched(&mut self, _: &ThreadRef) -> Result<SchedAttr, ActError> {
        self.calls += 1;
        Ok(SchedAttr::OTHER)
    }

    fn affinity(&mut self, _: &ThreadRef) -> Result<CoreSet, ActError> {
        Ok(self.online())
    }

    fn affinity_online(&mut self, _: &ThreadRef) -> Result<CoreSet, ActError> {
        Ok(self.online())
    }

    fn set_sched(&mut self, _: &ThreadRef, _: SchedAttr) -> Result<(), ActError> {
        self.calls += 1;
        Ok(())
    }

    fn set_affinity(&mut self, _: &ThreadRef, _: &CoreSet) -> Result<(), ActError> {
        self.calls += 1;
        Ok(())
    }

    fn inspect(&mut self, thread: &ThreadRef) -> Result<Inspection, ActError> {
        let settings = ThreadSettings { sched: self.sched(thread)?, cores: self.online() };
        Ok(Inspection { present: settings, original: settings })
    }

    fn adopt(&mut self, _: &ThreadRef, _: &ThreadRef) -> Result<(), ActError> {
        Ok(())
    }

    fn give_back(&mut self, _: &[ThreadRef]) -> RestoreReport {
        self.calls += 1;
        RestoreReport::default()
    }

    fn freeze(&mut self, _: &Path, _: bool) -> Result<(), ActError> {
        self.calls += 1;
        Ok(())
    }

    fn read_group(&mut self, _: &Path) -> Result<String, ActError> {
        self.calls += 1;
        Ok("0-15".into())
    }

    fn write_group(&mut self, _: &Path, _: &str) -> Result<(), ActError> {
        self.calls += 1;
        Ok(())
    }
}

const TASKS: u32 = 100;

fn id(index: u32) -> TaskId {
    TaskId { index, generation: 0 }
}

/// Task 0 owns all managed cores, the others lie beneath.
fn plan() -> Plan {
    let core = |number| CorePlan {
        id: CoreId(number),
        owner: (number > 0).then_some(id(0)),
        mode: if number > 0 { CoreMode::Kernel } else { CoreMode::Unmanaged },
        reason: Reason::Kept,
        yields: None,
    };
    let task = |index| TaskPlan {
        id: id(index),
        class: if index == 0 { Class::LatencyCritical } else { Class::BestEffort },
        cap: 16,
        rung: if index == 0 { Rung::Lc } else { Rung::SchedIdle },
        shared_cores: if index == 0 { CoreSet::EMPTY } else { CoreSet::from_words(&[0xfffe]) },
        llc_ways: None,
        reason: TaskReason::Configured,
    };
    Plan {
        cores: (0..16).map(core).collect(),
        tasks: (0..TASKS).map(task).collect(),
        ..Plan::default()
    }
}

fn views() -> Vec<ThreadView> {
    let view = |tid: i32| ThreadView {
        id: ThreadId { index: tid as u32, generation: 0 },
        thread: ThreadRef { tid: Tid(tid), tgid: Tid(tid), start_ticks: 1 },
        task: id(tid as u32 % TASKS),
        member: 0,
        lc: (tid as u32).is_multiple_of(TASKS),
        state: ThreadState::Sleeping,
        since: Nanos::ZERO,
        awake_since: Nanos::ZERO,
        core: CoreId(1),
        ran: Nanos::ZERO,
        waited: Nanos::ZERO,
        burst: Nanos::ZERO,
        burst_whole: Nanos::ZERO,
        transitions: 0,
    };
    (1..=1_000).map(view).collect()
}

fn admit(back: &mut dyn BackEnd) {
    for index in 0..TASKS {
        let mut groups = TaskGroups::default();
        if index % 2 == 0 {
            groups.cpuset = Some(format!("/cg/{index}").into());
            groups.freezer = Some(format!("/fz/{index}").into());
        }
        back.admit(TaskInfo {
            switched: None,
            id: id(index),
            name: format!("task {index}"),
            may_freeze: true,
            groups,
            away: CoreSet::EMPTY,
        });
    }
}

#[test]
fn nothing_is_allocated_and_nothing_asked_where_nothing_moves() {
    let host = ElevationHost { per_thread_state: true, freezes: true };
    let mut elevation = Elevation::new(Ladder::default(), BeRung::SchedIdle, host);
    let mut cpusets = Cpusets::new(true, true);
    let backs: [&mut dyn BackEnd; 2] = [&mut elevation, &mut cpusets];
    let (mut plan, views) = (plan(), views());
    for back in backs {
        let mut host = Counter::default();
        admit(back);
        for _ in 0..20 {
            back.apply(&plan, &views, &mut host);
        }
        assert!(host.calls >= 1_000, "it was busy before: {}", host.calls);

        let (calls, allocations) = (host.calls, ALLOCATIONS.load(Ordering::Relaxed));
        for tick in 0..100 {
            // Reasons change all the time, e.g. with a wait that they name.
            plan.cores[1].reason = Reason::Congested(Nanos(tick));
            let report = back.apply(&plan, &views, &mut host);
            assert_eq!(report.writes() + report.deferred, 0);
        }
        assert_eq!(host.calls, calls);
        assert_eq!(ALLOCATIONS.load(Ordering::Relaxed), allocations);
    }
}
