//! A simulated Linux allocates no memory for its events. The allocator counts, so this test has a program of its own.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicU64, Ordering};

use quell_model::Nanos;
use quell_sim::file::Simulation;
use quell_sim::{Kernel, KernelModel, Scenario, run};

struct Counting;

// Relaxed: the test reads its own thread's count.
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: every call goes to the system's allocator with the caller's arguments.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Events, and allocations, of a run of this length.
#[expect(clippy::unwrap_used, reason = "part of the test")]
fn costs(scenario: &Scenario, ms: u64) -> (u64, u64) {
    let scenario = Scenario { length: Nanos::from_millis(ms), ..scenario.clone() };
    let config = quell_policy::Config::default();
    let mut policy = quell_policy::by_name("linux-default", scenario.host.clone(), config).unwrap();
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    let report = run(&scenario, policy.as_mut());
    (report.events, ALLOCATIONS.load(Ordering::Relaxed) - before)
}

#[test]
fn a_longer_run_allocates_no_more() {
    let text = include_str!("../../../examples/sim/wasted-cores-tpch.toml");
    let text = text.replace("length_permille = 50", "length_permille = 1000");
    let other = |_: &str| unreachable!("it names no file");
    let base = Simulation::parse(&text, "tpch.toml", "tpch", &other).unwrap().scenario;
    for model in [KernelModel::LINUX_4_1, KernelModel::LINUX_6_12] {
        let scenario = Scenario { kernel: Kernel::Linux(model), ..base.clone() };
        let (events, allocations) = costs(&scenario, 1_000);
        let (more_events, more_allocations) = costs(&scenario, 2_000);
        assert!(more_events > events + 50_000, "{events}, {more_events}");
        // Queues and lists still grow to the most that they ever hold. Debug builds check the books each millisecond.
        let checks = if cfg!(debug_assertions) { 2 * 1_000 } else { 0 };
        let grown = more_allocations.saturating_sub(allocations + checks);
        assert!(grown < (more_events - events) / 500, "{grown} for {}", more_events - events);
    }
}
