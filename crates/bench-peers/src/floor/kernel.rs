//! The kernel's primitives.
#![allow(unsafe_code)]

use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::time::Duration;

use anyhow::Result;
use quell_model::Nanos;
use rustix::thread::{CpuSet, futex, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, Timespec};

use crate::net;
use crate::protocol::{GAP_PARKED, Measured, Meter, SLEEP, compute, now};

/// Bytes of a message; those of the benchmark's client.
const MESSAGE: usize = 64;

/// Puts the calling thread on one of the cores that the program may use: the first or the last. Two threads that need a core each
/// are not to share one.
pub fn place(last: bool) {
    let Ok(may) = sched_getaffinity(None) else { return };
    let mut cores = (0..CpuSet::MAX_CPU).filter(|core| may.is_set(*core));
    let core = if last { cores.next_back() } else { cores.next() };
    let mut only = CpuSet::new();
    only.set(core.unwrap_or(0));
    // Where it is refused, the kernel places it.
    let _ = sched_setaffinity(None, &only);
}

/// From waking a thread that sleeps on another core until it runs.
pub fn futex_wake(mut meter: Meter) -> Measured {
    const ASLEEP: u32 = 0;
    const CALLED: u32 = 1;
    const OVER: u32 = 2;
    let (word, ran) = (AtomicU32::new(ASLEEP), AtomicU64::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            place(true);
            loop {
                while word.load(Acquire) == ASLEEP {
                    let _ = futex::wait(&word, futex::Flags::PRIVATE, ASLEEP, None);
                }
                if word.load(Acquire) == OVER {
                    return;
                }
                // Release: pairs with the acquire that waits for the time, so that the word is asleep again by then.
                word.store(ASLEEP, Relaxed);
                ran.store(now().0, Release);
            }
        });
        // The other was born with all cores, and chooses among them.
        place(false);
        while meter.goes_on(1) {
            compute(GAP_PARKED);
            ran.store(0, Relaxed);
            let called = now();
            word.store(CALLED, Release);
            let _ = futex::wake(&word, futex::Flags::PRIVATE, 1);
            while ran.load(Acquire) == 0 {
                std::hint::spin_loop();
            }
            meter.sample(Nanos(ran.load(Relaxed)).since(called));
        }
        word.store(OVER, Release);
        let _ = futex::wake(&word, futex::Flags::PRIVATE, 1);
    });
    meter.finish()
}

/// A thread sleeps, with the least slack that the kernel grants.
///
/// # Errors
/// When the kernel refuses the slack.
pub fn nanosleep(mut meter: Meter) -> Result<Measured> {
    // SAFETY: PR_SET_TIMERSLACK takes a number and touches no memory.
    let done = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    if done != 0 {
        return Err(io::Error::last_os_error().into());
    }
    while meter.goes_on(1) {
        let due = Nanos(now().0 + SLEEP.as_nanos() as u64);
        let seconds = Timespec {
            tv_sec: (due.0 / 1_000_000_000) as i64,
            tv_nsec: (due.0 % 1_000_000_000) as i64,
        };
        let _ = rustix::thread::clock_nanosleep_absolute(ClockId::Monotonic, &seconds);
        meter.sample(now().since(due));
    }
    Ok(meter.finish())
}

/// A message goes through loopback from one end of a connection to the other, both on one core.
///
/// # Errors
/// The kernel's.
pub fn send_receive(mut meter: Meter) -> Result<Measured> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    let mut near = TcpStream::connect(listener.local_addr()?)?;
    let (mut far, _) = listener.accept()?;
    near.set_nodelay(true)?;
    let mut message = [0; MESSAGE];
    while meter.goes_on(100) {
        for _ in 0..100 {
            near.write_all(&message)?;
            far.read_exact(&mut message)?;
        }
    }
    Ok(meter.finish())
}

/// A server that never sleeps: it asks each of its connections in turn.
///
/// # Errors
/// The kernel's.
pub fn echo() -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0))?;
    net::announce(listener.local_addr()?.port())?;
    let come = Mutex::new(Vec::new());
    let lock = || come.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    // How many came: looked at without the lock.
    let count = AtomicU32::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while let Ok((stream, _)) = listener.accept() {
                lock().push(stream);
                count.fetch_add(1, Release);
            }
        });
        let (mut streams, mut seen) = (Vec::new(), 0);
        loop {
            if count.load(Acquire) != seen {
                for stream in lock().drain(..) {
                    stream.set_nonblocking(true)?;
                    stream.set_nodelay(true)?;
                    streams.push(stream);
                    seen += 1;
                }
            }
            if streams.is_empty() {
                std::thread::sleep(Duration::from_millis(1));
            }
            streams.retain_mut(|stream| answer(stream).is_ok());
        }
    })
}

/// Sends back what came, if anything did.
fn answer(stream: &mut TcpStream) -> io::Result<()> {
    let mut buffer = [0; net::BUFFER];
    match stream.read(&mut buffer) {
        Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
        Ok(taken) => stream.write_all(&buffer[..taken]),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
        Err(error) => Err(error),
    }
}
