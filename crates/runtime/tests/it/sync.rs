//! Locks and channels do as std's do, between uthreads, and between uthreads and threads.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::panic::{AssertUnwindSafe, RefUnwindSafe, UnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use quell_runtime::preempt::NoPreempt;
use quell_runtime::sync::mpsc::{self, RecvTimeoutError, TryRecvError, TrySendError};
use quell_runtime::sync::{
    Arc, Barrier, Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, Semaphore,
    TryLockError, WaitGroup,
};
use quell_runtime::{Daemon, JoinHandle, Runtime, scope, sleep, spawn, yield_now};

fn runtime(kthreads: usize) -> Runtime {
    Runtime::builder().daemon(Daemon::Never).max_cores(kthreads).build().unwrap()
}

/// Runs the same with uthreads of one and of two kthreads, and beside ordinary threads.
fn everywhere(check: impl Fn(&dyn Fn(Box<dyn FnOnce() + Send>)) + Send + Sync) {
    for kthreads in [1, 2] {
        let runtime = runtime(kthreads);
        let handle = runtime.handle();
        runtime.run(|| check(&|f| drop(spawn(f))));
        // Uthreads against ordinary threads.
        check(&|f| drop(handle.spawn(f)));
    }
}

#[test]
fn a_mutex_lets_one_in_at_a_time() {
    everywhere(|start| {
        let total = Arc::new((Mutex::new(0u64), AtomicBool::new(false), WaitGroup::new()));
        total.2.add(10);
        for _ in 0..10 {
            let total = Arc::clone(&total);
            start(Box::new(move || {
                for round in 0..500 {
                    let mut sum = total.0.lock().unwrap();
                    assert!(!total.1.swap(true, Ordering::SeqCst));
                    *sum += 1;
                    if round % 16 == 0 {
                        yield_now();
                    }
                    total.1.store(false, Ordering::SeqCst);
                }
                total.2.done();
            }));
        }
        total.2.wait();
        assert_eq!(*total.0.lock().unwrap(), 5_000);
    });
}

#[test]
fn a_mutex_is_poisoned_by_a_panic_of_its_holder() {
    runtime(1).run(|| {
        let mutex = Arc::new(Mutex::new(1));
        let theirs = Arc::clone(&mutex);
        spawn(move || {
            let _guard = theirs.lock().unwrap();
            panic!("with the lock");
        })
        .join()
        .unwrap_err();
        assert!(mutex.is_poisoned());
        assert_eq!(*mutex.lock().unwrap_err().into_inner(), 1);
        mutex.clear_poison();
        assert!(mutex.lock().is_ok() && mutex.try_lock().is_ok());
    });
}

#[test]
fn nobody_starves_at_a_mutex_that_another_takes_again_and_again() {
    let runtime = Runtime::builder().daemon(Daemon::Never).max_cores(1).build().unwrap();
    runtime.run(|| {
        let mutex = Arc::new(Mutex::new(()));
        let done = Arc::new(AtomicBool::new(false));
        let (theirs, told) = (Arc::clone(&mutex), Arc::clone(&done));
        let waiter = spawn(move || {
            drop(theirs.lock().unwrap());
            told.store(true, Ordering::SeqCst);
        });
        while !done.load(Ordering::SeqCst) {
            let guard = mutex.lock().unwrap();
            // The other finds it locked each time that it runs.
            yield_now();
            drop(guard);
        }
        waiter.join().unwrap();
    });
}

#[test]
fn a_condvar_wakes_one_or_all_and_none_is_lost() {
    everywhere(|start| {
        let pair = Arc::new((Mutex::new(0usize), Condvar::new(), WaitGroup::new()));
        pair.2.add(8);
        for _ in 0..8 {
            let pair = Arc::clone(&pair);
            start(Box::new(move || {
                let mut tokens = pair.1.wait_while(pair.0.lock().unwrap(), |n| *n == 0).unwrap();
                *tokens -= 1;
                drop(tokens);
                pair.2.done();
            }));
        }
        for _ in 0..4 {
            *pair.0.lock().unwrap() += 1;
            pair.1.notify_one();
            yield_now();
        }
        *pair.0.lock().unwrap() += 4;
        pair.1.notify_all();
        pair.2.wait();
        assert_eq!(*pair.0.lock().unwrap(), 0);
    });
}

#[test]
fn a_timed_wait_ends_by_time_or_by_a_notification_and_takes_none_after_its_time() {
    everywhere(|start| {
        let pair = Arc::new((Mutex::new(false), Condvar::new()));
        let begin = Instant::now();
        let (guard, over) =
            pair.1.wait_timeout(pair.0.lock().unwrap(), Duration::from_millis(5)).unwrap();
        assert!(over.timed_out() && begin.elapsed() >= Duration::from_millis(4));
        drop(guard);
        // If the wait above still stood in the queue, this would be lost on it.
        let theirs = Arc::clone(&pair);
        start(Box::new(move || {
            *theirs.0.lock().unwrap() = true;
            theirs.1.notify_one();
        }));
        let (done, over) = pair
            .1
            .wait_timeout_while(pair.0.lock().unwrap(), Duration::from_secs(20), |done| !*done)
            .unwrap();
        assert!(*done && !over.timed_out());
    });
}

#[test]
fn a_condvar_that_must_not_wait_panics_and_leaves_the_mutex_unlocked() {
    runtime(1).run(|| {
        let (mutex, condvar) = (Mutex::new(1), Condvar::new());
        let waits: [&dyn Fn(); 2] = [&|| drop(condvar.wait(mutex.lock().unwrap())), &|| {
            drop(condvar.wait_timeout(mutex.lock().unwrap(), Duration::from_millis(1)))
        }];
        for wait in waits {
            let panic = catch_unwind(AssertUnwindSafe(|| {
                let _off = NoPreempt::new();
                wait();
            }));
            let said = *panic.unwrap_err().downcast::<String>().unwrap();
            assert!(said.contains("sync.rs"), "{said}");
            // As with a guard of std that is dropped as its holder unwinds.
            assert!(matches!(mutex.try_lock(), Err(TryLockError::Poisoned(_))));
            mutex.clear_poison();
        }
        condvar.notify_all();
    });
}

#[test]
fn readers_share_and_writers_do_not() {
    everywhere(|start| {
        let lock = Arc::new((RwLock::new(0u64), AtomicUsize::new(0), WaitGroup::new()));
        lock.2.add(12);
        for at in 0..12 {
            let lock = Arc::clone(&lock);
            start(Box::new(move || {
                for _ in 0..100 {
                    if at % 4 == 0 {
                        let mut value = lock.0.write().unwrap();
                        assert_eq!(lock.1.fetch_add(1_000, Ordering::SeqCst), 0);
                        *value += 1;
                        yield_now();
                        lock.1.fetch_sub(1_000, Ordering::SeqCst);
                    } else {
                        let _value = lock.0.read().unwrap();
                        assert!(lock.1.fetch_add(1, Ordering::SeqCst) < 1_000);
                        yield_now();
                        lock.1.fetch_sub(1, Ordering::SeqCst);
                    }
                }
                lock.2.done();
            }));
        }
        lock.2.wait();
        assert_eq!(*lock.0.read().unwrap(), 300);
        assert!(lock.0.try_write().is_ok() && lock.0.try_read().is_ok());
    });
}

#[test]
fn a_semaphore_has_as_many_permits_as_it_was_given() {
    everywhere(|start| {
        let scene = Arc::new((Semaphore::new(3), AtomicUsize::new(0), WaitGroup::new()));
        scene.2.add(10);
        for _ in 0..10 {
            let scene = Arc::clone(&scene);
            start(Box::new(move || {
                for _ in 0..50 {
                    let _permit = scene.0.access();
                    assert!(scene.1.fetch_add(1, Ordering::SeqCst) < 3);
                    yield_now();
                    scene.1.fetch_sub(1, Ordering::SeqCst);
                }
                scene.2.done();
            }));
        }
        scene.2.wait();
        assert_eq!(scene.0.permits(), 3);
        assert!(!scene.0.acquire_timeout(4, Duration::from_millis(2)));
        assert!(scene.0.try_acquire(3) && !scene.0.try_acquire(1));
        scene.0.release(3);
    });
}

#[test]
fn a_barrier_holds_all_until_the_last_and_has_one_leader() {
    runtime(2).run(|| {
        let barrier = Barrier::new(5);
        let (come, leaders) = (AtomicUsize::new(0), AtomicUsize::new(0));
        scope(|scope| {
            for _ in 0..5 {
                scope.spawn(|| {
                    for round in 1..=20 {
                        come.fetch_add(1, Ordering::SeqCst);
                        let leads = barrier.wait().is_leader();
                        assert!(come.load(Ordering::SeqCst) >= round * 5);
                        leaders.fetch_add(usize::from(leads), Ordering::SeqCst);
                        barrier.wait();
                    }
                });
            }
        });
        assert_eq!(leaders.load(Ordering::SeqCst), 20);
    });
}

#[test]
fn a_channel_delivers_all_in_the_order_of_each_sender() {
    everywhere(|start| {
        let (sender, receiver) = mpsc::channel();
        for from in 0..4u32 {
            let sender = sender.clone();
            start(Box::new(move || {
                for number in 0..500u32 {
                    sender.send((from, number)).unwrap();
                }
            }));
        }
        drop(sender);
        let mut next = [0u32; 4];
        for (from, number) in receiver.iter() {
            assert_eq!(number, next[from as usize]);
            next[from as usize] += 1;
        }
        assert_eq!(next, [500; 4]);
        assert_eq!(receiver.try_recv(), Err(TryRecvError::Disconnected));
    });
}

#[test]
fn a_bounded_channel_never_holds_more_than_its_limit() {
    for limit in [0usize, 1, 7] {
        everywhere(move |start| {
            let (sender, receiver) = mpsc::sync_channel(limit);
            let ahead = Arc::new(AtomicUsize::new(0));
            let theirs = Arc::clone(&ahead);
            start(Box::new(move || {
                for number in 0..300usize {
                    sender.send(number).unwrap();
                    theirs.store(number + 1, Ordering::SeqCst);
                }
            }));
            for number in 0..300usize {
                assert!(ahead.load(Ordering::SeqCst) <= number + limit);
                assert_eq!(receiver.recv(), Ok(number));
            }
        });
    }
}

#[test]
fn a_sender_that_is_woken_for_a_place_is_not_overtaken() {
    runtime(1).run(|| {
        let (sender, receiver) = mpsc::sync_channel(1);
        sender.send(0).unwrap();
        for number in 1..=3 {
            let sender = sender.clone();
            drop(spawn(move || sender.send(number).unwrap()));
            yield_now();
        }
        // It is promised to the first, which has not run yet.
        assert_eq!(receiver.recv(), Ok(0));
        assert_eq!(sender.try_send(9), Err(TrySendError::Full(9)));
        let late = sender.clone();
        drop(spawn(move || late.send(4).unwrap()));
        drop(sender);
        assert_eq!(receiver.iter().collect::<Vec<_>>(), [1, 2, 3, 4]);
    });
}

#[test]
fn a_bounded_channel_loses_no_place_whoever_waits() {
    for limit in [0usize, 1, 3] {
        everywhere(move |start| {
            let (sender, receiver) = mpsc::sync_channel(limit);
            for _ in 0..6 {
                let sender = sender.clone();
                start(Box::new(move || (0..200).for_each(|number| sender.send(number).unwrap())));
            }
            let sum: u32 = receiver.iter().take(6 * 200).sum();
            assert_eq!(sum, 6 * 199 * 100);
            // All places are there again.
            (0..limit).for_each(|_| sender.try_send(0).unwrap());
            assert_eq!(sender.try_send(0), Err(TrySendError::Full(0)));
        });
    }
}

#[test]
fn a_channel_says_when_the_other_side_is_gone_or_slow() {
    runtime(2).run(|| {
        let (sender, receiver) = mpsc::sync_channel(1);
        sender.try_send(1).unwrap();
        assert_eq!(sender.try_send(2), Err(TrySendError::Full(2)));
        assert_eq!(receiver.recv_timeout(Duration::from_millis(1)), Ok(1));
        assert_eq!(receiver.recv_timeout(Duration::from_millis(1)), Err(RecvTimeoutError::Timeout));
        let blocked = spawn(move || {
            sender.send(3).unwrap();
            sender.send(4)
        });
        sleep(Duration::from_millis(1));
        drop(receiver);
        assert_eq!(blocked.join().unwrap().unwrap_err().0, 4);
        let (sender, receiver) = mpsc::sync_channel(0);
        let blocked = spawn(move || sender.send(5));
        sleep(Duration::from_millis(1));
        drop(receiver);
        assert_eq!(blocked.join().unwrap().unwrap_err().0, 5);
    });
}

#[test]
fn many_timed_waits_that_are_woken_in_time_or_not_all_end() {
    runtime(2).run(|| {
        let pair = Arc::new((Mutex::new(0u32), Condvar::new()));
        let all: Vec<_> = (0..200u64)
            .map(|at| {
                let pair = Arc::clone(&pair);
                spawn(move || {
                    for round in 0..20 {
                        let micros = (at * 7 + round * 13) % 300;
                        let guard = pair.0.lock().unwrap();
                        let wait = Duration::from_micros(micros);
                        drop(pair.1.wait_timeout(guard, wait).unwrap());
                        pair.1.notify_one();
                    }
                })
            })
            .collect();
        all.into_iter().for_each(|one| one.join().unwrap());
    });
}

#[test]
fn a_uthread_that_waits_in_a_destructor_as_it_unwinds_poisons_its_own_locks_alone() {
    /// Waits as it is dropped.
    struct Waits(mpsc::Receiver<()>, mpsc::Sender<bool>);
    impl Drop for Waits {
        fn drop(&mut self) {
            self.1.send(std::thread::panicking()).unwrap();
            self.0.recv().unwrap();
        }
    }
    runtime(1).run(|| {
        let (theirs, ours) = (Arc::new(Mutex::new(0)), Mutex::new(0));
        let (go_on, waits) = mpsc::channel();
        let (tell, told) = mpsc::channel();
        let kept = ours.lock().unwrap();
        let mutex = Arc::clone(&theirs);
        let unwinds = spawn(move || {
            let _kept = mutex.lock().unwrap();
            let _waits = Waits(waits, tell);
            panic!("on purpose");
        });
        assert!(told.recv().unwrap(), "it unwinds, and waits");
        // Kept since before the panic, and taken since.
        drop(kept);
        drop(ours.lock().unwrap());
        assert!(!ours.is_poisoned() && !theirs.is_poisoned());
        let panics = spawn(|| panic!("on purpose, too"));
        assert!(panics.join().is_err(), "another panic meanwhile ends where it belongs");
        go_on.send(()).unwrap();
        assert!(unwinds.join().is_err());
        assert!(theirs.is_poisoned());
        assert!(!std::thread::panicking(), "each panic was counted out where it was counted in");
        let ours = Arc::new(ours);
        let mutex = Arc::clone(&ours);
        let panics = spawn(move || {
            let _kept = mutex.lock().unwrap();
            panic!("on purpose, at last");
        });
        assert!(panics.join().is_err() && ours.is_poisoned(), "as ever");
    });
}

#[test]
fn what_is_shared_may_be_seen_after_a_panic_and_by_other_threads_as_with_std() {
    fn unwind_safe<T: UnwindSafe + RefUnwindSafe>() {}
    fn sync<T: Sync>() {}
    /// Neither by itself.
    type Plain = std::cell::Cell<&'static mut u32>;
    unwind_safe::<Mutex<Plain>>();
    unwind_safe::<RwLock<Plain>>();
    unwind_safe::<Condvar>();
    unwind_safe::<Barrier>();
    unwind_safe::<mpsc::Sender<Plain>>();
    unwind_safe::<mpsc::SyncSender<Plain>>();
    unwind_safe::<mpsc::Receiver<Plain>>();
    unwind_safe::<JoinHandle<Plain>>();
    sync::<MutexGuard<'_, u32>>();
    sync::<RwLockReadGuard<'_, u32>>();
    sync::<RwLockWriteGuard<'_, u32>>();
    let mut lock = RwLock::from(1);
    *lock.get_mut().unwrap() += 1;
    assert_eq!(format!("{}", lock.read().unwrap()), "2");
    assert_eq!(lock.into_inner().unwrap(), 2);
}
