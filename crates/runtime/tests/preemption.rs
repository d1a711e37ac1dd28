//! Uthreads that are interrupted anywhere keep their memory, their registers and their errors.
//!
//! `make soak` runs the soak for twenty minutes (`QUELL_SOAK_SECONDS`).

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::time::{Duration, Instant};

use quell_runtime::preempt::{self, Allocator};
use quell_runtime::{Daemon, Nanos, Runtime, spawn, yield_now};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator::SYSTEM;

fn runtime(kthreads: usize, every: Nanos) -> Runtime {
    let builder = Runtime::builder().daemon(Daemon::Never).max_cores(kthreads);
    // SAFETY: the allocator is above; the tests turn preemption off around C, output and thread-locals.
    unsafe { builder.preempt_every(every) }.build().unwrap()
}

#[test]
fn a_uthread_that_never_calls_the_library_does_not_keep_others_from_running() {
    let runtime = runtime(1, Nanos::from_micros(100));
    runtime.run(|| {
        let stop = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&stop);
        let spinner = spawn(move || {
            while !theirs.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        yield_now();
        // The spinner runs, and only an interruption brings this back.
        stop.store(true, Ordering::Relaxed);
        spinner.join().unwrap();
    });
    assert!(runtime.stats().total().preemptions >= 1);
}

#[test]
fn nothing_is_preempted_while_preemption_is_off() {
    let runtime = runtime(1, Nanos::from_micros(50));
    runtime.run(|| {
        let ran = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&ran);
        let off = preempt::NoPreempt::new();
        let other = spawn(move || theirs.store(true, Ordering::SeqCst));
        let end = Instant::now() + Duration::from_millis(20);
        while Instant::now() < end {
            assert!(!ran.load(Ordering::SeqCst));
        }
        drop(off);
        while !ran.load(Ordering::SeqCst) {
            std::hint::spin_loop();
        }
        other.join().unwrap();
    });
}

thread_local! {
    static VISITS: Cell<u64> = const { Cell::new(0) };
    static IN_HOOK: Cell<bool> = const { Cell::new(false) };
}

/// Panics that a test means; nobody needs to read of them.
const MEANT: &str = "meant: ";
/// Of those, how many the hook has seen, and how many of them while another one was within the hook on the same thread.
static HOOKED: AtomicU64 = AtomicU64::new(0);
static INTERRUPTED: AtomicU64 = AtomicU64::new(0);

fn hear_of_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let text = panic.payload().downcast_ref::<String>();
            if !text.is_some_and(|text| text.starts_with(MEANT)) {
                return usual(panic);
            }
            HOOKED.fetch_add(1, Ordering::Relaxed);
            // Who panics is not preempted: a thread-local of the hook is its own until it returns.
            let interrupted = IN_HOOK.replace(true);
            INTERRUPTED.fetch_add(u64::from(interrupted), Ordering::Relaxed);
            black_box(float_sum(1));
            IN_HOOK.set(false);
        }));
    });
}

/// A sum whose value depends on the order of its additions, in registers all the while.
fn float_sum(seed: u64) -> f64 {
    (1..2_000u64).fold(seed as f64, |sum, n| (sum + 1.0 / n as f64).sqrt() * 1.000_1)
}

fn allocate_and_format(seed: u64) {
    let mut lines: Vec<String> =
        (0..50).map(|n| format!("{seed}-{n}-{:?}", n as f64 / 3.0)).collect();
    lines.sort();
    lines.dedup();
    assert_eq!(lines.len(), 50);
    let mut blocks: Vec<Vec<u8>> = (0..20).map(|n| vec![n as u8; 100 << (n % 8)]).collect();
    blocks.retain(|block| block[0] % 2 == 1);
    assert!(blocks.iter().all(|block| block.iter().all(|byte| *byte == block[0])));
}

fn panic_and_catch(seed: u64) {
    let panic = std::panic::catch_unwind(|| panic!("{MEANT}{seed}"));
    assert_eq!(*panic.unwrap_err().downcast::<String>().unwrap(), format!("{MEANT}{seed}"));
}

fn call_c(seed: u64) {
    let mut text = [0u8; 64];
    let value = preempt::off(|| {
        // SAFETY: the text holds 64 bytes, and both functions keep to them.
        unsafe {
            libc::snprintf(text.as_mut_ptr().cast(), 64, c"%llu".as_ptr(), seed);
            libc::strtoull(text.as_ptr().cast(), std::ptr::null_mut(), 10)
        }
    });
    assert_eq!(value, seed);
}

extern "C" fn by_size(one: *const c_void, other: *const c_void) -> c_int {
    // SAFETY: `qsort` passes two elements of its array.
    unsafe { (*one.cast::<u32>()).cmp(&*other.cast()) as c_int }
}

/// C that is re-entrant: with preemption on.
fn call_reentrant_c(seed: u64) {
    // So few that no C library allocates memory to sort them.
    let mut numbers: [u32; 64] =
        std::array::from_fn(|at| (at as u32 + seed as u32).wrapping_mul(0x9e37_79b9));
    let sum = |numbers: &[u32]| numbers.iter().map(|&number| u64::from(number)).sum::<u64>();
    let before = sum(&numbers);
    let long = vec![b'a' + seed as u8; 20_000];
    let mut text = vec![0u8; long.len() + 1];
    // SAFETY: 64 numbers of 4 bytes; the text has room for `long` and the zero behind it.
    let length = unsafe {
        libc::qsort(numbers.as_mut_ptr().cast(), black_box(64), 4, Some(by_size));
        libc::memcpy(text.as_mut_ptr().cast(), long.as_ptr().cast(), black_box(long.len()));
        libc::strlen(black_box(text.as_ptr().cast()))
    };
    assert!(numbers.is_sorted() && sum(&numbers) == before);
    assert!(length == long.len() && text[..length] == long);
}

/// Holds a lock of std, which others wait for in the kernel, for longer than a tick.
fn hold_a_lock(counts: &Mutex<[u64; 2]>, seed: u64) {
    // Poison says nothing here: std counts panics by thread, and of who was interrupted right after it caught one the thread's
    // count may stand at one while others run there, and leave a lock.
    let mut counts = counts.lock().unwrap_or_else(PoisonError::into_inner);
    counts[0] += 1;
    black_box(float_sum(seed));
    counts[1] += 1;
    assert_eq!(counts[0], counts[1], "two had the lock");
}

#[cfg(target_arch = "x86_64")]
mod rounding {
    use std::arch::asm;

    /// So many additions take longer than a tick.
    const TURNS: u64 = 10_000;

    /// How this thread rounds: SSE's control word without what happened so far, and that of x87.
    pub fn mode() -> (u32, u16) {
        let (mut sse, mut x87) = (0u32, 0u16);
        // SAFETY: stores the two words where they belong.
        unsafe {
            asm!("stmxcsr [{}]", "fnstcw [{}]", in(reg) &raw mut sse, in(reg) &raw mut x87, options(nostack));
        }
        (sse & !0x3f, x87)
    }

    /// Thirds, added with these bits set in the control word of SSE. Nothing but this runs while they are.
    fn sum_by_sse(bits: u32) -> u64 {
        let (mut old, mut new, mut sum) = (0u32, 0u32, 0f64);
        // SAFETY: changes how SSE rounds, and changes it back before it ends.
        unsafe {
            asm!(
                "stmxcsr [{old}]",
                "or {bits:e}, dword ptr [{old}]",
                "mov dword ptr [{new}], {bits:e}",
                "ldmxcsr [{new}]",
                "2:",
                "movapd {third}, {one}",
                "divsd {third}, {three}",
                "addsd {sum}, {third}",
                "dec {turns}",
                "jnz 2b",
                "ldmxcsr [{old}]",
                old = in(reg) &raw mut old,
                new = in(reg) &raw mut new,
                bits = inout(reg) bits => _,
                turns = inout(reg) TURNS => _,
                one = in(xmm_reg) 1f64,
                three = in(xmm_reg) 3f64,
                third = out(xmm_reg) _,
                sum = inout(xmm_reg) sum,
                options(nostack),
            );
        }
        sum.to_bits()
    }

    /// The same by x87.
    fn sum_by_x87(bits: u16) -> u64 {
        let (mut old, mut new, mut sum) = (0u16, 0u16, 0f64);
        // SAFETY: changes how x87 rounds, and changes it back before it ends; its stack is empty before and after.
        unsafe {
            asm!(
                "fnstcw [{old}]",
                "or {bits:x}, word ptr [{old}]",
                "mov word ptr [{new}], {bits:x}",
                "fldcw [{new}]",
                "fldz",
                "2:",
                "fld1",
                "fdiv qword ptr [{three}]",
                "faddp st(1), st",
                "dec {turns}",
                "jnz 2b",
                "fstp qword ptr [{sum}]",
                "fldcw [{old}]",
                old = in(reg) &raw mut old,
                new = in(reg) &raw mut new,
                bits = inout(reg) bits => _,
                turns = inout(reg) TURNS => _,
                three = in(reg) &raw const THREE,
                sum = in(reg) &raw mut sum,
                out("st(0)") _, out("st(1)") _, out("st(2)") _, out("st(3)") _,
                out("st(4)") _, out("st(5)") _, out("st(6)") _, out("st(7)") _,
                options(nostack),
            );
        }
        sum.to_bits()
    }

    static THREE: f64 = 3.0;

    /// Sums by SSE and x87, rounded up.
    pub fn upwards() -> [u64; 2] {
        [sum_by_sse(0x4000), sum_by_x87(0x0800)]
    }

    /// The same as everybody rounds.
    pub fn usual() -> [u64; 2] {
        [sum_by_sse(0), sum_by_x87(0)]
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod rounding {
    pub fn mode() {}

    pub fn upwards() -> [u64; 2] {
        [1; 2]
    }

    pub fn usual() -> [u64; 2] {
        [0; 2]
    }
}

fn keep_errno() {
    // SAFETY: closes nothing; sets `errno`.
    unsafe { libc::close(-1) };
    // The address is taken once: an interrupted uthread stays on its thread.
    // SAFETY: the thread's own.
    let errno = unsafe { &*libc::__errno_location() };
    for _ in 0..500 {
        std::hint::spin_loop();
        assert_eq!(*std::hint::black_box(errno), libc::EBADF);
    }
}

fn visit() {
    preempt::off(|| {
        VISITS.with(|visits| {
            let before = visits.get();
            for _ in 0..20 {
                std::hint::spin_loop();
            }
            visits.set(before + 1);
        });
    });
}

fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = pages.split_whitespace().nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

/// What is computed while nobody is preempted.
fn expected() -> (Vec<u64>, [u64; 2], [u64; 2]) {
    let sums = (0..16).map(|at| float_sum(at).to_bits()).collect();
    let (upwards, usual) = (rounding::upwards(), rounding::usual());
    assert!(upwards.iter().zip(usual).all(|(up, usual)| *up > usual), "it rounds as ever");
    (sums, upwards, usual)
}

#[test]
fn the_soak_finds_no_corruption_no_deadlock_and_no_leak() {
    let seconds = std::env::var("QUELL_SOAK_SECONDS").ok().and_then(|text| text.parse().ok());
    let length = Duration::from_secs(seconds.unwrap_or(2));
    hear_of_panics();
    let runtime = runtime(4, Nanos::from_micros(20));
    let (rounds, settled) = runtime.run(move || {
        let end = Instant::now() + length;
        let rounds = Arc::new(AtomicU64::new(0));
        let lock = Arc::new(Mutex::new([0; 2]));
        let mode = rounding::mode();
        let expected = Arc::new(preempt::off(expected));
        let workers: Vec<_> = (0..16u64)
            .map(|at| {
                let (rounds, lock) = (Arc::clone(&rounds), Arc::clone(&lock));
                let expected = Arc::clone(&expected);
                spawn(move || {
                    let (sums, upwards, usual) = &*expected;
                    while Instant::now() < end {
                        allocate_and_format(at);
                        panic_and_catch(at);
                        call_c(at);
                        call_reentrant_c(at);
                        keep_errno();
                        visit();
                        hold_a_lock(&lock, at);
                        match at % 4 {
                            0 => assert_eq!(rounding::upwards(), *upwards),
                            _ => assert_eq!(rounding::usual(), *usual),
                        }
                        assert_eq!(rounding::mode(), mode);
                        assert_eq!(float_sum(at).to_bits(), sums[at as usize]);
                        let child = spawn(move || format!("{at}"));
                        assert_eq!(child.join().unwrap(), at.to_string());
                        rounds.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        quell_runtime::sleep(length / 4);
        let settled = resident_bytes();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        (rounds.load(Ordering::Relaxed), settled)
    });
    let stats = runtime.stats().total();
    let grown = resident_bytes().saturating_sub(settled);
    println!("{rounds} rounds, {grown} bytes more, {stats:?}");
    assert!(rounds > 0 && stats.preemptions > 0);
    assert_eq!(INTERRUPTED.load(Ordering::Relaxed), 0, "a hook was preempted");
    assert!(HOOKED.load(Ordering::Relaxed) >= rounds);
    // Two dozen runs of 2 to 120 s grew by 0.11 to 0.74 MB: stacks and pages of the allocator that are kept.
    assert!(grown < 4 << 20, "{grown} bytes more");
    assert_eq!(runtime.live_uthreads(), 0);
}
