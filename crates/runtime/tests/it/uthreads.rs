//! Uthreads behave as threads of std do.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::cell::Cell;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use quell_runtime::{Daemon, JoinHandle, Runtime, current, scope, spawn, thread, yield_now};

fn runtime(kthreads: usize) -> Runtime {
    Runtime::builder().daemon(Daemon::Never).max_cores(kthreads).build().unwrap()
}

#[test]
fn run_returns_what_its_uthread_returns_and_may_borrow() {
    let words = ["a", "b"];
    assert_eq!(runtime(1).run(|| words.len()), 2);
}

#[test]
fn a_panic_in_run_propagates_and_the_runtime_goes_on() {
    let runtime = runtime(2);
    let panic =
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| runtime.run(|| panic!("oh"))));
    assert_eq!(panic.unwrap_err().downcast_ref::<&str>(), Some(&"oh"));
    assert_eq!(runtime.run(|| 7), 7);
}

#[test]
fn join_gives_the_result_or_the_panic() {
    runtime(2).run(|| {
        assert_eq!(spawn(|| 7).join().unwrap(), 7);
        let panic = spawn(|| -> u32 { std::panic::panic_any(3u8) }).join().unwrap_err();
        assert_eq!(panic.downcast_ref::<u8>(), Some(&3));
    });
}

#[test]
fn a_uthread_whose_handle_is_dropped_goes_on_and_its_result_is_dropped_once() {
    struct Counted(Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            // What drops may block.
            yield_now();
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let runtime = runtime(2);
    for round in 0..200 {
        let theirs = Arc::clone(&drops);
        runtime.run(move || {
            let handle = spawn(move || {
                if round % 2 == 0 {
                    yield_now();
                }
                Counted(theirs)
            });
            if round % 3 == 0 {
                yield_now();
            }
            drop(handle);
        });
    }
    let end = Instant::now() + Duration::from_secs(10);
    while (drops.load(Ordering::SeqCst) < 200 || runtime.live_uthreads() > 0)
        && Instant::now() < end
    {
        std::thread::yield_now();
    }
    assert_eq!(drops.load(Ordering::SeqCst), 200);
    assert_eq!(runtime.live_uthreads(), 0);
}

#[test]
fn names_and_numbers_are_a_uthreads_own() {
    runtime(2).run(|| {
        let named = thread::Builder::new().name("worker".into());
        let named = named.spawn(|| (current().name().map(str::to_owned), current().id())).unwrap();
        let id = named.thread().id();
        assert_eq!(named.thread().name(), Some("worker"));
        assert_eq!(named.join().unwrap(), (Some("worker".to_owned()), id));
        let ids: Vec<_> = (0..5_000).map(|_| spawn(|| current().id())).collect();
        let ids: HashSet<u64> = ids.into_iter().map(|id| id.join().unwrap()).collect();
        assert_eq!(ids.len(), 5_000);
    });
}

#[test]
fn more_uthreads_than_a_run_queue_holds_all_run_in_the_order_of_their_start() {
    runtime(1).run(|| {
        let next = Arc::new(AtomicUsize::new(0));
        let all: Vec<_> = (0..2_000)
            .map(|_| {
                let next = Arc::clone(&next);
                spawn(move || next.fetch_add(1, Ordering::Relaxed))
            })
            .collect();
        let order: HashSet<usize> = all.into_iter().map(|one| one.join().unwrap()).collect();
        assert_eq!(order.len(), 2_000);
    });
}

#[test]
fn a_scope_waits_for_uthreads_that_borrow() {
    runtime(2).run(|| {
        let mut parts = vec![0u64; 100];
        scope(|scope| {
            for (at, part) in parts.iter_mut().enumerate() {
                scope.spawn(move || {
                    yield_now();
                    *part = at as u64;
                });
            }
        });
        assert_eq!(parts.iter().sum::<u64>(), 4950);
    });
}

#[test]
fn a_scope_panics_if_a_uthread_did_whom_nobody_joined() {
    runtime(2).run(|| {
        let result = std::panic::catch_unwind(|| {
            scope(|scope| {
                scope.spawn(|| panic!("unseen"));
            });
        });
        assert!(result.is_err());
        let seen = scope(|scope| scope.spawn(|| panic!("seen")).join().is_err());
        assert!(seen);
    });
}

#[test]
fn a_scope_outside_a_uthread_starts_nothing_and_says_so() {
    let panic = std::panic::catch_unwind(|| scope(|scope| drop(scope.spawn(|| 7))));
    assert!(panic.unwrap_err().downcast_ref::<&str>().unwrap().contains("no runtime here"));
}

#[test]
fn locals_are_a_uthreads_own_and_dropped_at_its_end() {
    struct Noted(Cell<Option<Arc<AtomicU64>>>);
    impl Drop for Noted {
        fn drop(&mut self) {
            if let Some(drops) = self.0.take() {
                drops.fetch_add(1, Ordering::SeqCst);
            }
        }
    }
    quell_runtime::uthread_local! {
        static NUMBER: Cell<u64> = Cell::new(1);
        static NOTED: Noted = Noted(Cell::new(None));
    }
    let drops = Arc::new(AtomicU64::new(0));
    let theirs = Arc::clone(&drops);
    runtime(2).run(move || {
        let all: Vec<JoinHandle<u64>> = (0..100)
            .map(|at| {
                let drops = Arc::clone(&theirs);
                spawn(move || {
                    NUMBER.with(|number| number.set(number.get() + at));
                    NOTED.with(|noted| noted.0.set(Some(drops)));
                    yield_now();
                    NUMBER.with(Cell::get)
                })
            })
            .collect();
        for (at, one) in all.into_iter().enumerate() {
            assert_eq!(one.join().unwrap(), at as u64 + 1);
        }
    });
    assert_eq!(drops.load(Ordering::SeqCst), 100);
}

#[test]
fn sleepers_wake_in_the_order_of_their_deadlines_and_not_before() {
    // Each kthread has timers of its own: with two of them, one that is stopped wakes its sleepers later than the other.
    for kthreads in [1, 2] {
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        runtime(kthreads).run(|| {
            let begin = Instant::now();
            let all = [30u64, 10, 20].map(|ms| {
                let order = Arc::clone(&order);
                spawn(move || {
                    let time = Duration::from_millis(ms);
                    thread::sleep_until(begin + time);
                    assert!(begin.elapsed() + Duration::from_micros(2) >= time);
                    order.lock().unwrap().push(ms);
                })
            });
            all.into_iter().for_each(|one| one.join().unwrap());
        });
        let mut order = order.lock().unwrap().clone();
        if kthreads > 1 {
            order.sort_unstable();
        }
        assert_eq!(order, [10, 20, 30], "{kthreads}");
    }
}

#[test]
fn a_token_of_unpark_is_kept_for_the_next_park() {
    runtime(2).run(|| {
        current().unpark();
        thread::park();
        let parked = spawn(|| {
            thread::park();
            thread::park_timeout(Duration::from_millis(1));
            7
        });
        yield_now();
        parked.thread().unpark();
        assert_eq!(parked.join().unwrap(), 7);
    });
}

#[test]
fn uthreads_are_started_and_woken_from_ordinary_threads() {
    let runtime = runtime(2);
    let handle = runtime.handle();
    let sums: Vec<_> = (0..4)
        .map(|_| {
            let handle = handle.clone();
            std::thread::spawn(move || {
                (0..1_000u64).map(|n| handle.spawn(move || n).join().unwrap()).sum::<u64>()
            })
        })
        .collect();
    for sum in sums {
        assert_eq!(sum.join().unwrap(), 499_500);
    }
}

#[test]
fn ready_uthreads_of_a_kthread_that_computes_are_stolen() {
    // On a busy host `spawn` may find a quantum over, and some would run here.
    let builder = Runtime::builder().daemon(Daemon::Never).max_cores(2).quantum(None);
    let runtime = builder.build().unwrap();
    runtime.run(|| {
        let done = Arc::new(AtomicUsize::new(0));
        let all: Vec<_> = (0..10)
            .map(|_| {
                let done = Arc::clone(&done);
                spawn(move || done.fetch_add(1, Ordering::SeqCst))
            })
            .collect();
        // Without a call of the library: only another kthread can run them.
        while done.load(Ordering::SeqCst) < 10 {
            std::hint::spin_loop();
        }
        all.into_iter().for_each(|one| assert!(one.join().is_ok()));
    });
    assert!(runtime.stats().total().steals >= 10);
}

#[test]
fn a_uthread_that_only_calls_the_library_yields_at_the_end_of_its_quantum() {
    let runtime = runtime(1);
    runtime.run(|| {
        let stop = Arc::new(quell_runtime::sync::Mutex::new(false));
        let theirs = Arc::clone(&stop);
        let other = spawn(move || *theirs.lock().unwrap() = true);
        // It never yields by itself.
        while !*stop.lock().unwrap() {}
        other.join().unwrap();
    });
    assert!(runtime.stats().total().preemptions >= 1);
}

#[test]
fn blocking_with_preemption_off_panics_and_says_where_it_was_turned_off() {
    runtime(1).run(|| {
        let text = spawn(|| {
            let _off = quell_runtime::preempt::NoPreempt::new();
            thread::park_timeout(Duration::from_millis(1));
        });
        let text = *text.join().unwrap_err().downcast::<String>().unwrap();
        assert!(text.contains("uthreads.rs"), "{text}");
        yield_now();
    });
}

/// Keeps a `NoPreempt` beyond the end of its uthread: in one way or the other.
fn keep_preemption_off(how: &str) {
    thread_local! {
        static KEPT: Cell<Option<quell_runtime::preempt::NoPreempt>> = const { Cell::new(None) };
    }
    let forget = how == "forget";
    runtime(1).run(move || {
        let off = quell_runtime::preempt::NoPreempt::new();
        if forget { std::mem::forget(off) } else { KEPT.with(|kept| kept.set(Some(off))) }
    });
}

#[test]
fn a_uthread_that_ends_with_preemption_off_ends_the_process_and_says_where_it_was_turned_off() {
    if let Ok(how) = std::env::var("QUELL_TEST_PREEMPTION_OFF") {
        return keep_preemption_off(&how);
    }
    let name = "uthreads::a_uthread_that_ends_with_preemption_off_ends_the_process_and_says_where_it_was_turned_off";
    for how in ["forget", "thread-local"] {
        let child = std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name, "--nocapture"])
            .env("QUELL_TEST_PREEMPTION_OFF", how)
            .output()
            .unwrap();
        assert!(!child.status.success());
        let said = String::from_utf8_lossy(&child.stderr);
        assert!(
            said.contains("ended with preemption off") && said.contains("uthreads.rs"),
            "{said}"
        );
    }
}

#[test]
fn a_runtime_may_end_as_soon_as_an_ordinary_thread_has_woken_its_last_uthread() {
    let end = Instant::now() + Duration::from_millis(1_500);
    while Instant::now() < end {
        let runtime = runtime(2);
        let (sender, receiver) = quell_runtime::sync::mpsc::channel();
        let waits = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&waits);
        let waker = std::thread::spawn(move || {
            while !theirs.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            sender.send(7).unwrap();
        });
        let received = runtime.run(move || {
            waits.store(true, Ordering::Release);
            receiver.recv()
        });
        // The waker may not have returned from `send`.
        drop(runtime);
        assert_eq!(received, Ok(7));
        waker.join().unwrap();
    }
}

#[test]
fn what_still_waits_at_the_end_of_its_runtime_can_be_woken_and_never_runs() {
    let (sender, receiver) = quell_runtime::sync::mpsc::channel::<u32>();
    let runtime = runtime(2);
    let handle = runtime.handle();
    handle.spawn(move || receiver.recv());
    runtime.run(yield_now);
    drop(runtime);
    // Alive or dead, this must not touch what is gone.
    let _ = sender.send(7);
    std::thread::sleep(Duration::from_millis(5));
}

#[test]
fn two_runtimes_wake_each_others_uthreads() {
    let (one, two) = (runtime(1), runtime(1));
    let (send_there, receive_there) = quell_runtime::sync::mpsc::channel();
    let (send_back, receive_back) = quell_runtime::sync::mpsc::channel();
    let echo = two.handle().spawn(move || {
        for number in receive_there.iter() {
            send_back.send(number).unwrap();
        }
    });
    one.run(move || {
        for number in 0..500u32 {
            send_there.send(number).unwrap();
            assert_eq!(receive_back.recv().unwrap(), number);
        }
    });
    echo.join().unwrap();
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    let builder = || Runtime::builder().daemon(Daemon::Never);
    assert!(builder().max_cores(0).build().is_err());
    assert!(builder().max_cores(100_000).build().is_err());
    assert!(builder().max_cores(1).guaranteed(2).build().is_err());
    assert!(builder().cores(quell_runtime::CoreSet::EMPTY).build().is_err());
}

#[test]
fn what_comes_from_outside_runs_however_many_uthreads_yield_to_each_other() {
    let runtime = Runtime::builder().daemon(Daemon::Never).max_cores(1).build().unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    runtime.run(|| {
        for _ in 0..600 {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    thread::yield_now();
                }
            });
        }
    });
    for round in 0..20 {
        assert_eq!(runtime.run(|| round), round);
    }
    stop.store(true, Ordering::Relaxed);
}
