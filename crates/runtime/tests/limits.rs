//! Many uthreads, many that come and go, and many timers: what is bounded stays bounded.
//!
//! The counts of a usual run are small; `make soak` does the full ones, and prints what a uthread takes.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use quell_runtime::sync::{Semaphore, WaitGroup};
use quell_runtime::{Daemon, Runtime, sleep, spawn, thread, time};

/// Held by who measures memory: it is that of the whole process.
static MEASURING: Mutex<()> = Mutex::new(());

fn alone() -> impl Drop {
    MEASURING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn runtime() -> Runtime {
    Runtime::builder().daemon(Daemon::Never).max_cores(2).build().unwrap()
}

/// Bytes in memory of this process; of the page tables as well.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let kilobytes = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    };
    (kilobytes("VmRSS:") + kilobytes("VmPTE:")) << 10
}

/// Bytes that each of so many uthreads takes while all are parked.
fn parked_at_once(count: u64) -> u64 {
    let _alone = alone();
    let runtime = runtime();
    let before = resident_bytes();
    let each = runtime.run(move || {
        let scene = Arc::new((Semaphore::new(0), WaitGroup::new()));
        scene.1.add(count as usize);
        for _ in 0..count {
            let scene = Arc::clone(&scene);
            spawn(move || {
                scene.0.acquire(1);
                scene.1.done();
            });
        }
        while scene.0.waiting() < count as usize {
            quell_runtime::yield_now();
        }
        let each = resident_bytes().saturating_sub(before) / count;
        scene.0.release(count as usize);
        scene.1.wait();
        each
    });
    println!("{count} uthreads at once: {each} bytes each");
    each
}

#[test]
fn a_parked_uthread_takes_little_more_than_a_page() {
    let each = parked_at_once(30_000);
    assert!((1..8 << 10).contains(&each), "{each} bytes each");
}

fn come_and_go(count: u64) {
    let _alone = alone();
    let runtime = runtime();
    let churn = move |count: u64| {
        for number in 0..count {
            assert_eq!(spawn(move || number).join().unwrap(), number);
        }
    };
    runtime.run(move || churn(count / 10));
    let before = resident_bytes();
    runtime.run(move || churn(count));
    let grown = resident_bytes().saturating_sub(before);
    println!("{count} spawned and joined: {grown} bytes more");
    assert!(grown < 8 << 20, "{grown} bytes more after {count} uthreads");
    assert_eq!(runtime.live_uthreads(), 0);
}

#[test]
fn uthreads_that_come_and_go_leak_nothing() {
    come_and_go(200_000);
}

#[test]
fn the_pages_of_a_burst_are_given_back() {
    let _alone = alone();
    let runtime = runtime();
    runtime.run(|| {
        let gate = Arc::new(WaitGroup::new());
        gate.add(1);
        let all: Vec<_> = (0..20_000)
            .map(|_| {
                let gate = Arc::clone(&gate);
                spawn(move || gate.wait())
            })
            .collect();
        quell_runtime::yield_now();
        let burst = resident_bytes();
        gate.done();
        all.into_iter().for_each(|one| one.join().unwrap());
        let after = resident_bytes();
        // 20,000 stacks had a page at least; about 1,100 stay warm.
        assert!(after + (40 << 20) < burst, "{burst} bytes, then {after}");
    });
}

/// How long a neighbour of the interval computes, and so how late it is at least.
const AT_A_TIME: Duration = Duration::from_micros(60);

/// How much later, of the median, the last hundred of a thousand ticks are than the first hundred, on a kthread with two
/// uthreads that compute by turns, so that ticks are late.
fn growth_of_lateness(period: Duration) -> Duration {
    let runtime = Runtime::builder().daemon(Daemon::Never).max_cores(1).build().unwrap();
    runtime.run(|| {
        let over = Arc::new(AtomicBool::new(false));
        let neighbours = [(); 2].map(|()| {
            let over = Arc::clone(&over);
            spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    let end = Instant::now() + AT_A_TIME;
                    while Instant::now() < end {
                        std::hint::spin_loop();
                    }
                    quell_runtime::yield_now();
                }
            })
        });
        let mut interval = time::Interval::new(period);
        let due = (0..1_000).map(|tick| interval.first_at() + period * tick).collect::<Vec<_>>();
        let lateness = due.into_iter().map(|due| {
            interval.tick();
            let now = Instant::now();
            assert!(now >= due, "a tick came {:?} early", due - now);
            now - due
        });
        let lateness: Vec<_> = lateness.collect();
        over.store(true, Ordering::Relaxed);
        neighbours.into_iter().for_each(|neighbour| neighbour.join().unwrap());
        assert_eq!(interval.next_at(), interval.first_at() + period * 1_000);
        let median = |part: &[Duration]| {
            let mut part = part.to_vec();
            part.sort_unstable();
            part[part.len() / 2]
        };
        median(&lateness[900..]).saturating_sub(median(&lateness[..100]))
    })
}

#[test]
fn interval_deadlines_are_multiples_of_its_period() {
    let _alone = alone();
    let period = Duration::from_micros(300);
    runtime().run(move || {
        let mut interval = time::Interval::new(period);
        for tick in 1..=200 {
            let due = interval.next_at();
            assert_eq!(due, interval.first_at() + period * (tick - 1));
            interval.tick();
            assert!(Instant::now() >= due, "tick {tick} came early");
            // Late ticks do not put off the later ones.
            if tick % 50 == 0 {
                sleep(period * 3);
            }
        }
        assert_eq!(interval.next_at(), interval.first_at() + period * 200);
    });
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn an_interval_does_not_drift() {
    let _alone = alone();
    // If lateness added up, it would grow by 54 ms, whatever the period. This one leaves time for all ticks.
    let grown = growth_of_lateness(Duration::from_millis(4));
    assert!(grown < Duration::from_millis(10), "lateness grows by {grown:?}");
}

/// Timeouts that are set and cancelled, as many as a busy server sets in a day at full count.
fn timer_churn(count: u64) {
    let _alone = alone();
    let runtime = runtime();
    let churn = |count: u64| {
        let never = Semaphore::new(0);
        let done = AtomicU64::new(0);
        quell_runtime::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..count {
                    // Far away: cancelled long before.
                    assert!(never.acquire_timeout(1, Duration::from_secs(30)));
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
            for sent in 0..count {
                while done.load(Ordering::Relaxed) < sent {
                    quell_runtime::yield_now();
                }
                never.release(1);
            }
        });
    };
    runtime.run(|| churn(count / 10));
    let before = resident_bytes();
    runtime.run(|| churn(count));
    let grown = resident_bytes().saturating_sub(before);
    println!("{count} timeouts set and cancelled: {grown} bytes more");
    assert!(grown < 8 << 20, "{grown} bytes more");
}

#[test]
fn timeouts_that_are_cancelled_leave_nothing_behind() {
    timer_churn(50_000);
}

#[test]
fn sleepers_by_the_thousand_all_wake() {
    let _alone = alone();
    runtime().run(|| {
        let all: Vec<_> = (0..10_000u64)
            .map(|at| spawn(move || sleep(Duration::from_micros(at * 7919 % 50_000))))
            .collect();
        all.into_iter().for_each(|one| one.join().unwrap());
    });
}

fn overflow() {
    #[inline(never)]
    fn deeper(depth: u64) -> u64 {
        let room = std::hint::black_box([depth; 64]);
        if room[0] == u64::MAX {
            return 0;
        }
        deeper(depth + 1) + room[depth as usize % 64]
    }
    runtime().run(|| {
        let deep = thread::Builder::new().name("deep one".into()).spawn(|| deeper(0));
        deep.unwrap().join().unwrap()
    });
}

#[test]
fn a_stack_overflow_ends_the_process_and_names_the_uthread() {
    if std::env::var_os("QUELL_TEST_OVERFLOW").is_some() {
        return overflow();
    }
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_stack_overflow_ends_the_process_and_names_the_uthread"])
        .env("QUELL_TEST_OVERFLOW", "1")
        .output()
        .unwrap();
    assert!(!child.status.success());
    let said = String::from_utf8_lossy(&child.stderr);
    assert!(
        said.contains("uthread") && said.contains("(deep one) has overflowed its stack"),
        "{said}"
    );
}

/// The full counts. `make soak` runs them one by one, and `make test-all` skips modules of this name.
mod soak {
    use super::*;

    #[test]
    #[ignore = "soak: takes 6 GB"]
    fn a_million_uthreads_exist_at_once() {
        let each = parked_at_once(1_000_000);
        assert!((1..8 << 10).contains(&each), "{each} bytes each");
    }

    #[test]
    #[ignore = "soak: takes minutes"]
    fn ten_million_uthreads_that_come_and_go_leak_nothing() {
        come_and_go(10_000_000);
    }

    #[test]
    #[ignore = "soak: takes minutes"]
    fn a_days_timeouts_leave_nothing_behind() {
        timer_churn(20_000_000);
    }
}
