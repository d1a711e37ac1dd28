//! Kthreads that lose their core, under a daemon of the tests' own making.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quell_shm::runtime::KthreadState;

use super::{Kthread, NEVER_REVOKED, Shared, local};
use crate::link::Cores;
use crate::preempt::tick;
use crate::{JoinHandle, Nanos, Runtime, sleep, spawn, yield_now};

/// The kthread that loses its core, which it never gets back.
const LOSER: usize = 1;
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, Default)]
struct Scarce {
    taken: AtomicBool,
}

impl Cores for Arc<Scarce> {
    fn take(&self, kthread: &Kthread) -> bool {
        let has_core = kthread.at != LOSER || !self.taken.load(Ordering::SeqCst);
        kthread.generation.store(if has_core { NEVER_REVOKED } else { 0 }, Ordering::Relaxed);
        has_core
    }

    fn ask(&self, kthread: &Kthread) -> bool {
        kthread.lines().work.set_state(KthreadState::Asking);
        std::thread::sleep(Duration::from_millis(1));
        self.take(kthread)
    }
}

impl Scarce {
    /// By the uthread that runs on the loser.
    fn revoke(&self) {
        self.taken.store(true, Ordering::SeqCst);
        local::with_kthread(|kthread| kthread.lines().grant.revoke(NEVER_REVOKED));
    }
}

fn compute(time: Duration) {
    let end = Instant::now() + time;
    while Instant::now() < end {
        std::hint::spin_loop();
    }
}

fn on_loser() -> bool {
    local::with_kthread(|kthread| kthread.at == LOSER)
}

/// Runs it on the loser: elsewhere its kthread computes without a call until the loser has taken it.
fn run_on_loser(f: impl FnOnce() + Send + 'static) {
    if on_loser() {
        return f();
    }
    let began = Arc::new(AtomicBool::new(false));
    let theirs = Arc::clone(&began);
    let there = spawn(move || {
        theirs.store(true, Ordering::SeqCst);
        f();
    });
    while !began.load(Ordering::SeqCst) {
        std::hint::spin_loop();
    }
    there.join().unwrap();
}

fn eventually(what: &str, holds: &dyn Fn() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Two kthreads with work without end, in uthreads that are counted; one loses its core by `scene`, which must end
/// all the same. The work goes on then, all of it.
fn with_work_without_end(scene: impl FnOnce(Arc<Scarce>) + Send + 'static) {
    const WORKERS: usize = 12;
    let shared = Shared::new(Runtime::builder().config, 2).unwrap();
    let scarce = Arc::new(Scarce::default());
    let threads = shared.start_with(Box::new(Arc::clone(&scarce))).unwrap();
    let turns: Arc<[AtomicU64; WORKERS]> = Arc::default();
    let over = Arc::new(AtomicBool::new(false));
    let start = |f: Box<dyn FnOnce() + Send>| -> JoinHandle<()> {
        // SAFETY: it borrows nothing.
        unsafe { crate::thread::spawn_outside(&shared, f) }.unwrap()
    };
    for worker in 0..WORKERS {
        let (turns, over) = (Arc::clone(&turns), Arc::clone(&over));
        drop(start(Box::new(move || {
            while !over.load(Ordering::Relaxed) {
                compute(Duration::from_micros(20));
                turns[worker].fetch_add(1, Ordering::Relaxed);
                yield_now();
            }
        })));
    }
    let ended = start(Box::new(move || {
        scene(scarce);
    }));
    eventually("the scene never ends", &|| ended.is_finished());
    let before: Vec<u64> = turns.iter().map(|turns| turns.load(Ordering::Relaxed)).collect();
    eventually("a uthread was left behind", &|| {
        turns.iter().zip(&before).all(|(turns, &before)| turns.load(Ordering::Relaxed) > before)
    });
    over.store(true, Ordering::Relaxed);
    eventually("they do not end", &|| shared.live_uthreads() == 0);
    shared.stop();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn a_timer_of_a_kthread_without_a_core_goes_off_though_all_others_have_work() {
    with_work_without_end(|scarce| {
        run_on_loser(move || {
            scarce.revoke();
            sleep(Duration::from_millis(5));
            assert!(!on_loser());
        });
    });
}

#[test]
fn io_of_a_kthread_without_a_core_is_seen_though_all_others_have_work() {
    with_work_without_end(|scarce| {
        let listener = crate::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let addr = listener.local_addr().unwrap();
        let answer = spawn(move || {
            let (mut peer, _) = listener.accept().unwrap();
            sleep(Duration::from_millis(5));
            peer.write_all(b"x").unwrap();
        });
        let mut stream = crate::net::TcpStream::connect(addr).unwrap();
        run_on_loser(move || {
            scarce.revoke();
            stream.read_exact(&mut [0]).unwrap();
            assert!(!on_loser());
        });
        answer.join().unwrap();
    });
}

#[test]
fn a_revokes_signal_stops_a_uthread_that_makes_no_call_and_it_goes_on_on_its_kthread() {
    tick::install().unwrap();
    let mut config = Runtime::builder().config;
    // A tick of its own never comes: what interrupts it is the signal of the revoke.
    config.preempt_every = Some(Nanos::from_secs(1_000_000));
    let shared = Shared::new(config, 2).unwrap();
    let scarce = Arc::new(Scarce::default());
    let threads = shared.start_with(Box::new(Arc::clone(&scarce))).unwrap();
    let turns = Arc::new(AtomicU64::new(0));
    let over = Arc::new(AtomicBool::new(false));
    let (counts, ends) = (Arc::clone(&turns), Arc::clone(&over));
    let blind = move || {
        while !ends.load(Ordering::Relaxed) {
            counts.fetch_add(1, Ordering::Relaxed);
        }
        assert!(on_loser(), "it is bound to its kthread");
    };
    // SAFETY: it borrows nothing.
    let blind = unsafe { crate::thread::spawn_outside(&shared, || run_on_loser(blind)) }.unwrap();
    let computed = || turns.load(Ordering::Relaxed);
    eventually("it never begins", &|| computed() > 0);

    let loser = &shared.kthreads[LOSER];
    let work = || loser.lines().work.read(super::now());
    scarce.taken.store(true, Ordering::SeqCst);
    loser.lines().grant.revoke(NEVER_REVOKED);
    // SAFETY: a system call without memory, to a thread of this process, whose handler is installed.
    let sent =
        unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), work().thread, tick::signal()) };
    assert_eq!(sent, 0);
    eventually("it keeps its core", &|| work().state == KthreadState::Asking);
    let stopped = computed();
    std::thread::sleep(Duration::from_millis(20));
    assert_eq!(computed(), stopped, "it runs without a core, or on another's");
    assert_eq!(loser.lines().counters.read().preemptions, 1);

    loser.lines().grant.revoke(0);
    scarce.taken.store(false, Ordering::SeqCst);
    eventually("it does not go on", &|| computed() > stopped);
    over.store(true, Ordering::Relaxed);
    blind.join().unwrap();
    shared.stop();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

/// Has a thread of this process run on one core, at a real-time priority; `false` where that is not permitted.
fn real_time(thread: i32, core: usize) -> bool {
    // SAFETY: plain system calls; the set and the parameters outlive them.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        let lowest = libc::sched_param { sched_priority: 1 };
        libc::sched_setaffinity(thread, size_of_val(&set), &raw const set) == 0
            && libc::sched_setscheduler(thread, libc::SCHED_FIFO, &raw const lowest) == 0
    }
}

#[test]
fn a_uthread_whose_kthread_has_no_core_goes_on_beside_one_that_always_has_work_at_its_priority() {
    let core = last_core();
    let shared = Shared::new(Runtime::builder().config, 2).unwrap();
    let scarce = Arc::new(Scarce::default());
    let threads = shared.start_with(Box::new(Arc::clone(&scarce))).unwrap();
    let (began, go, over) = (flag(), flag(), flag());
    let turns = Arc::new(AtomicU64::new(0));
    let (begins, waits) = (Arc::clone(&began), Arc::clone(&go));
    let halfway = move || {
        begins.store(true, Ordering::SeqCst);
        while !waits.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
    };
    // SAFETY: it borrows nothing.
    let halfway =
        unsafe { crate::thread::spawn_outside(&shared, || run_on_loser(halfway)) }.unwrap();
    eventually("it never begins", &|| began.load(Ordering::SeqCst));
    for _ in 0..2 {
        let (counts, ends) = (Arc::clone(&turns), Arc::clone(&over));
        let worker = move || {
            while !ends.load(Ordering::Relaxed) {
                counts.fetch_add(1, Ordering::Relaxed);
                compute(Duration::from_micros(20));
                yield_now();
            }
        };
        // SAFETY: it borrows nothing.
        drop(unsafe { crate::thread::spawn_outside(&shared, worker) }.unwrap());
    }
    scarce.taken.store(true, Ordering::SeqCst);
    shared.kthreads[LOSER].lines().grant.revoke(NEVER_REVOKED);
    let thread = |at: usize| shared.kthreads[at].lines().work.read(super::now()).thread;
    let works = || {
        let before = turns.load(Ordering::Relaxed);
        eventually("the other one does not work", &|| turns.load(Ordering::Relaxed) > before);
    };
    // First the one with work, which then keeps the core from the other.
    if real_time(thread(1 - LOSER), core) {
        works();
        assert!(real_time(thread(LOSER), core));
    }
    go.store(true, Ordering::SeqCst);
    eventually("it never goes on", &|| halfway.is_finished());
    over.store(true, Ordering::Relaxed);
    shared.stop();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn flag() -> Arc<AtomicBool> {
    Arc::default()
}

/// The last core that this thread may use.
fn last_core() -> usize {
    let own = rustix::thread::sched_getaffinity(None).unwrap();
    (0..rustix::thread::CpuSet::MAX_CPU).rev().find(|&core| own.is_set(core)).unwrap()
}

/// Once it is armed, the next that wakes a kthread takes long to come back from it.
#[derive(Debug, Default)]
struct Slow {
    armed: AtomicBool,
    back: AtomicBool,
}

impl Cores for Arc<Slow> {
    fn take(&self, _kthread: &Kthread) -> bool {
        true
    }

    fn ask(&self, _kthread: &Kthread) -> bool {
        true
    }

    fn wake(&self, kthread: &Kthread) {
        let slow = self.armed.swap(false, Ordering::SeqCst);
        kthread.bell.ring();
        if slow {
            std::thread::sleep(Duration::from_millis(50));
            self.back.store(true, Ordering::SeqCst);
        }
    }
}

/// A thread wakes the last uthread of a runtime, which then goes. Whether the thread had to wake a kthread for that.
fn goes_after_a_slow_waker() -> bool {
    let shared = Shared::new(Runtime::builder().config, 1).unwrap();
    let slow = Arc::new(Slow::default());
    let threads = shared.start_with(Box::new(Arc::clone(&slow))).unwrap();
    let (send, receive) = crate::sync::mpsc::channel();
    let began = flag();
    let begins = Arc::clone(&began);
    let waits = move || {
        begins.store(true, Ordering::SeqCst);
        receive.recv()
    };
    // SAFETY: it borrows nothing.
    let waits = unsafe { crate::thread::spawn_outside(&shared, waits) }.unwrap();
    eventually("it never begins", &|| began.load(Ordering::SeqCst));
    let state = || shared.kthreads[0].lines().work.read(super::now()).state;
    eventually("its kthread never sleeps", &|| state() == KthreadState::Parked);
    slow.armed.store(true, Ordering::SeqCst);
    let waker = std::thread::spawn(move || send.send(7));
    assert_eq!(waits.join().unwrap(), Ok(7));
    // Not if the kthread woke by itself just then.
    let woken = !slow.armed.swap(false, Ordering::SeqCst);
    shared.stop();
    threads.into_iter().for_each(|thread| thread.join().unwrap());
    assert_eq!(shared.live_uthreads(), 0);
    shared.let_go();
    assert!(!woken || slow.back.load(Ordering::SeqCst), "it was let go while a thread uses it");
    assert_eq!(waker.join().unwrap(), Ok(()));
    woken
}

#[test]
fn a_runtime_is_let_go_only_once_who_woke_its_last_uthread_is_back_from_that() {
    eventually("no waker wakes a kthread", &goes_after_a_slow_waker);
}
