//! The primitives that a runtime cannot avoid, each by itself. `quell bench runtime` adds them up to the floor of a case.

mod kernel;

use std::sync::atomic::{AtomicU64, Ordering::*};

use anyhow::{Context as _, Result};
use corosensei::stack::DefaultStack;
use corosensei::{Coroutine, CoroutineResult};

use crate::protocol::{Measured, Meter, Request, now};

/// Their names.
pub const PRIMITIVES: [&str; 8] = [
    "lock-pair",
    "switch-pair",
    "coroutine-life",
    "line-transfer",
    "futex-wake",
    "nanosleep",
    "send-receive",
    "echo",
];
/// Bytes of a coroutine's stack.
const STACK: usize = 64 << 10;

/// Measures a primitive.
///
/// # Errors
/// When the kernel refuses a thread, memory or a socket.
pub fn run(request: &Request) -> Result<()> {
    let meter = Meter::start(request);
    match request.case.as_str() {
        "lock-pair" => lock_pair(meter),
        "switch-pair" => switch_pair(meter)?,
        "coroutine-life" => coroutine_life(meter)?,
        "line-transfer" => line_transfer(meter),
        "futex-wake" => kernel::futex_wake(meter),
        "nanosleep" => kernel::nanosleep(meter)?,
        "send-receive" => kernel::send_receive(meter)?,
        _ => return kernel::echo(),
    }
    .print()
}

/// What taking and giving back a lock that nobody else wants cannot do without: a compare-exchange and an exchange.
fn lock_pair(mut meter: Meter) -> Measured {
    let word = AtomicU64::new(0);
    let word = std::hint::black_box(&word);
    while meter.goes_on(1_000) {
        for _ in 0..1_000 {
            // The orderings of a lock: acquire when it is taken, release when it is given back.
            let _ = word.compare_exchange(0, 1, Acquire, Relaxed);
            word.swap(0, Release);
        }
    }
    meter.finish()
}

/// A coroutine suspends and is resumed.
fn switch_pair(mut meter: Meter) -> Result<Measured> {
    let stack = DefaultStack::new(STACK).context("a stack")?;
    let mut coroutine: Coroutine<bool, (), (), _> =
        Coroutine::with_stack(stack, |yielder, mut goes_on| {
            while goes_on {
                goes_on = yielder.suspend(());
            }
        });
    while meter.goes_on(1_000) {
        for _ in 0..1_000 {
            coroutine.resume(true);
        }
    }
    coroutine.resume(false);
    Ok(meter.finish())
}

/// A coroutine is made on a stack that was used before, runs and ends.
fn coroutine_life(mut meter: Meter) -> Result<Measured> {
    let mut stack = DefaultStack::new(STACK).context("a stack")?;
    while meter.goes_on(1_000) {
        for at in 0..1_000u64 {
            let mut coroutine: Coroutine<u64, (), u64, _> =
                Coroutine::with_stack(stack, |_, given| given);
            if let CoroutineResult::Return(given) = coroutine.resume(at) {
                std::hint::black_box(given);
            }
            stack = coroutine.into_stack();
        }
    }
    Ok(meter.finish())
}

/// No turn is taken any more.
const OVER: u64 = u64::MAX;

/// From a store on one core until a loop on another one sees it: half of a word's way to and fro.
fn line_transfer(mut meter: Meter) -> Measured {
    let word = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            kernel::place(true);
            loop {
                // The word alone is passed.
                match word.load(Acquire) {
                    1 => word.store(0, Release),
                    OVER => return,
                    _ => std::hint::spin_loop(),
                }
            }
        });
        // The other was born with all cores, and chooses among them.
        kernel::place(false);
        while meter.goes_on(2_000) {
            let (since, mut passed) = (now(), 0);
            while passed < 1_000 {
                word.store(1, Release);
                while word.load(Acquire) != 0 {
                    std::hint::spin_loop();
                }
                passed += 1;
            }
            // Half of a round, as the mean of a thousand.
            meter.sample(quell_model::Nanos(now().since(since).0 / 2_000));
        }
        word.store(OVER, Release);
    });
    meter.finish()
}
