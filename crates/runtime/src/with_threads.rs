//! The lock-free protocols with threads of the system. The models of loom try every order; these run under Miri (`make miri`), which
//! loom's stacks do not, and which looks at each access to memory: that none races, and none is to what was freed or not begun.

use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use quell_model::Nanos;

use crate::kthread::queue::Ring;
use crate::kthread::wakers::Wakers;
use crate::race::Race;
use crate::task::{Ended, Join, Left};
use crate::token::{Parked, Token};

const ROUNDS: u64 = if cfg!(miri) { 200 } else { 5_000 };

/// What is not atomic, and a protocol hands from one to the other.
#[derive(Default)]
struct Handed(UnsafeCell<u64>);

// SAFETY: what the tests check: Miri fails them if two have it at once.
unsafe impl Sync for Handed {}

impl Handed {
    fn add(&self) -> u64 {
        // SAFETY: as above.
        unsafe {
            *self.0.get() += 1;
            *self.0.get()
        }
    }
}

/// As the scheduler makes an item of a uthread.
fn item(value: u64) -> u64 {
    Box::into_raw(Box::new(value)).expose_provenance() as u64
}

fn value(item: u64) -> u64 {
    // SAFETY: from `item`, and a queue gives each item once: what the test checks.
    *unsafe { Box::from_raw(ptr::with_exposed_provenance_mut::<u64>(item as usize)) }
}

#[test]
fn what_goes_through_a_run_queue_comes_out_once_and_whole() {
    let (ring, over) = (Ring::<AtomicU64, 8>::new(), AtomicU64::new(0));
    let (own, stolen) = thread::scope(|scope| {
        let thief = scope.spawn(|| {
            let (mut sum, mut taken) = (0, Vec::new());
            // Acquire: what was put in before the end is seen after it.
            while over.load(Ordering::Acquire) == 0 || ring.len() > 0 {
                ring.steal(4, &mut taken);
                sum += taken.drain(..).map(|(item, _)| value(item)).sum::<u64>();
                thread::yield_now();
            }
            sum
        });
        let mut sum = 0;
        for round in 1..=ROUNDS {
            let mut ready = (item(round), Nanos(round));
            while let Err(back) = ring.push(ready) {
                ready = back;
                sum += ring.pop().map_or(0, |(item, _)| value(item));
            }
        }
        over.store(1, Ordering::Release);
        (sum, thief.join().unwrap())
    });
    assert_eq!(own + stolen, ROUNDS * (ROUNDS + 1) / 2);
}

#[test]
fn what_is_done_before_an_unpark_is_seen_after_the_park() {
    let (token, run, handed) = (Token::<AtomicU64>::new(), AtomicU64::new(0), Handed::default());
    const ITEM: u64 = 64;
    // Turns: the waker's in even ones, the other's in odd ones.
    let turn = AtomicU64::new(0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..ROUNDS {
                while turn.load(Ordering::Acquire) != 2 * round {
                    thread::yield_now();
                }
                handed.add();
                turn.store(2 * round + 1, Ordering::Relaxed);
                if token.unpark() == Parked::Uthread(ITEM) {
                    run.store(1, Ordering::Release);
                }
            }
        });
        for round in 0..ROUNDS {
            if !token.take() && token.park(ITEM) {
                while run.swap(0, Ordering::Acquire) == 0 {
                    thread::yield_now();
                }
            }
            assert_eq!(handed.add(), 2 * round + 2);
            turn.store(2 * round + 2, Ordering::Release);
        }
    });
}

#[test]
fn who_joins_reads_what_the_uthread_left_and_the_last_one_frees_it() {
    struct Cell {
        join: Join,
        left: Handed,
    }
    for round in 0..ROUNDS / 10 {
        let cell = item_of(Cell { join: Join::new(), left: Handed::default() });
        let uthread = thread::spawn(move || {
            // SAFETY: the uthread keeps it until its end, or frees it as the last one.
            let shared = unsafe { &*pointer::<Cell>(cell) };
            shared.left.add();
            if shared.join.end() == Left::Alone {
                // SAFETY: nobody else has it.
                drop(unsafe { Box::from_raw(pointer::<Cell>(cell)) });
            }
        });
        // SAFETY: the handle keeps it until the end that it saw, or detaches.
        let shared = unsafe { &*pointer::<Cell>(cell) };
        if round % 2 == 0 {
            while shared.join.ended() == Ended::No {
                thread::yield_now();
            }
            assert_eq!(shared.left.add(), 2);
            // SAFETY: the uthread has ended and left it.
            drop(unsafe { Box::from_raw(pointer::<Cell>(cell)) });
        } else if shared.join.detach() == Ended::Yes {
            // SAFETY: as above.
            drop(unsafe { Box::from_raw(pointer::<Cell>(cell)) });
        }
        uthread.join().unwrap();
    }
}

fn item_of<T>(it: T) -> usize {
    Box::into_raw(Box::new(it)).expose_provenance()
}

fn pointer<T>(item: usize) -> *mut T {
    ptr::with_exposed_provenance_mut(item)
}

#[test]
fn a_timed_wait_is_ended_by_one_of_two() {
    for _ in 0..ROUNDS / 10 {
        let (race, ends) = (Race::<AtomicU64>::new(), Handed::default());
        let end = |ended: bool| {
            if ended {
                assert_eq!(ends.add(), 1, "it ends once");
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| end(race.time_over()));
            end(race.armed());
            end(race.wake());
        });
        assert!(race.is_woken() != race.is_over());
    }
}

#[test]
fn who_frees_a_runtime_waits_for_who_woke_its_last_uthread() {
    struct Runtime {
        wakers: Wakers,
        ready: AtomicU64,
        /// Not atomic: Miri knows of each look at it.
        idle: u64,
    }
    impl Runtime {
        fn wake(&self) {
            self.ready.store(1, Ordering::Release);
            assert_eq!(self.idle, 7, "it was freed");
        }
    }
    for _ in 0..ROUNDS / 10 {
        let runtime = item_of(Runtime { wakers: Wakers::new(), ready: AtomicU64::new(0), idle: 7 });
        let waker = thread::spawn(move || {
            let at = pointer::<Runtime>(runtime);
            // SAFETY: whoever frees it waits for the uthread, and then for this: what the test checks.
            unsafe { Wakers::count(&raw const (*at).wakers, || (*at).wake()) };
        });
        {
            // SAFETY: it is freed below.
            let shared = unsafe { &*pointer::<Runtime>(runtime) };
            while shared.ready.load(Ordering::Acquire) == 0 {
                thread::yield_now();
            }
            shared.wakers.wait();
        }
        // SAFETY: nobody else has it.
        drop(unsafe { Box::from_raw(pointer::<Runtime>(runtime)) });
        waker.join().unwrap();
    }
}
