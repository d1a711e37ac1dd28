//! Turns among the threads of one task.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quell_model::{BeRung, CoreId, CoreSet, Nanos, Rung};

use super::fake::{Call, info};
use super::*;
use crate::testing::executor;
use quell_os::ThreadRef;
use quell_testkit::{host_lock, skipped};

/// Thread 10 runs on core 1, thread 11 of the same task waits there; the request on it began at 5.
fn asked() -> Pair {
    let mut t = pair();
    t.tick();
    t.views[1] = ThreadView { state: ThreadState::Running, core: CoreId(1), ..t.views[1] };
    t.views[3] = ThreadView { state: ThreadState::Waiting, core: CoreId(1), ..t.views[3] };
    t.plan.cores[1].yields = Some(Nanos(5));
    t.host.log.clear();
    t
}

#[test]
fn a_thread_whose_request_had_its_quantum_goes_behind_the_waiting_ones_once() {
    let mut t = asked();
    let report = t.tick();
    let guest = ladder().attr(Rung::LcOverflow).unwrap();
    assert_eq!(t.host.log, [Call::Sched(10, guest), Call::Sched(10, lc_attr())]);
    assert_eq!((report.lowered, report.raised), (1, 1));
    t.tick();
    assert_eq!(t.host.log.len(), 2, "once a request");
    t.plan.cores[1].yields = Some(Nanos(6));
    t.tick();
    assert_eq!(t.host.log.len(), 4, "another request");
    t.host.log.clear();
    t.plan.cores[1].yields = None;
    for _ in 0..10 {
        assert_eq!(t.tick().writes(), 0, "settled on its rung");
    }
}

#[test]
fn nobody_is_disturbed_where_nobody_waits() {
    let mut t = asked();
    t.views[3].state = ThreadState::Sleeping;
    t.tick();
    t.views[3] = ThreadView { state: ThreadState::Waiting, core: CoreId(0), ..t.views[3] };
    t.tick();
    t.views[1].state = ThreadState::Sleeping;
    t.views[3].core = CoreId(1);
    t.tick();
    assert!(t.host.log.is_empty(), "{:?}", t.host.log);
}

#[test]
fn a_thread_that_could_not_be_raised_again_is_repaired() {
    let mut t = asked();
    t.host.writes_left = Some(1);
    t.tick();
    assert_eq!(t.host.sched_of(10), ladder().attr(Rung::LcOverflow).unwrap());
    t.host.writes_left = None;
    t.tick();
    assert_eq!(t.host.sched_of(10), lc_attr());
}

/// A thread that spins and counts, for some seconds at most.
struct Spinner {
    thread: ThreadRef,
    turns: Arc<AtomicU64>,
    handle: std::thread::JoinHandle<()>,
}

impl Spinner {
    fn start(end: &Arc<AtomicBool>) -> Spinner {
        let (turns, end) = (Arc::new(AtomicU64::new(0)), Arc::clone(end));
        let (tell, told) = std::sync::mpsc::channel();
        let counts = Arc::clone(&turns);
        let handle = std::thread::spawn(move || {
            tell.send(ThreadRef::current().unwrap()).unwrap();
            let deadline = Instant::now() + Duration::from_secs(8);
            while !end.load(Ordering::Relaxed) && Instant::now() < deadline {
                counts.fetch_add(1, Ordering::Relaxed);
            }
        });
        Spinner { thread: told.recv().unwrap(), turns, handle }
    }

    fn view(&self, state: ThreadState) -> ThreadView {
        let thread = self.thread;
        ThreadView { thread, state, core: CoreId(1), ..super::fake::view(thread.tid.0, 0) }
    }
}

/// Which of the two has the core, once one of them has it for itself; a core may stand still for a while.
fn who_runs(spinners: &[Spinner; 2]) -> usize {
    let counts = || spinners.each_ref().map(|spinner| spinner.turns.load(Ordering::Relaxed));
    let deadline = Instant::now() + Duration::from_secs(2);
    loop {
        let before = counts();
        std::thread::sleep(Duration::from_millis(20));
        let after = counts();
        match [after[0] > before[0], after[1] > before[1]] {
            [true, false] => return 0,
            [false, true] => return 1,
            _ => assert!(Instant::now() < deadline, "never one alone: {before:?}, {after:?}"),
        }
    }
}

/// Two threads on one core at one real-time priority: the kernel runs the first until it is put behind the other.
fn take_turns_on_core_1() {
    let end = Arc::new(AtomicBool::new(false));
    let spinners = [Spinner::start(&end), Spinner::start(&end)];
    // After they inherited more.
    let me = ThreadRef::current().unwrap().tid;
    crate::sched::set_affinity(me, &CoreSet::of(CoreId(0))).unwrap();
    let (mut back, mut exec) = (elevation(BeRung::SchedIdle), executor());
    back.admit(info(0, "lc"));
    let mut wanted = plan(1);
    give(&mut wanted, LC, Rung::Lc, "1", "");
    let mut views = spinners.each_ref().map(|spinner| spinner.view(ThreadState::Waiting));
    back.apply(&wanted, &views, &mut *exec);

    // Whichever the kernel runs has the core for itself.
    let first = who_runs(&spinners);
    let still = who_runs(&spinners);
    views[first].state = ThreadState::Running;
    wanted.cores[1].yields = Some(Nanos(77));
    let report = back.apply(&wanted, &views, &mut *exec);
    let second = who_runs(&spinners);

    back.release(super::fake::task(0), &mut *exec);
    end.store(true, Ordering::Relaxed);
    for spinner in spinners {
        spinner.handle.join().unwrap();
    }
    assert_eq!(still, first, "a real-time thread keeps its core");
    assert_eq!((report.lowered, report.raised), (1, 1), "{report:?}");
    assert_eq!(second, 1 - first, "the other has it now");
}

#[test]
fn on_this_host_the_kernel_runs_the_one_that_waited() {
    let _lock = host_lock().unwrap();
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap();
    if !online.trim().parse::<CoreSet>().unwrap().contains(CoreId(1)) {
        return skipped("this host has no core 1");
    }
    std::thread::spawn(take_turns_on_core_1).join().unwrap();
}
