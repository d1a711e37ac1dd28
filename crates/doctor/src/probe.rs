//! System calls that are tried rather than asked about. Each leaves the host as it was.

use std::io;

use quell_observe::ObserveError;
use quell_observe::bpf::{BpfConfig, BpfObserver};
use quell_observe::perf::{CPU_CYCLES, Counted, Counter, HARDWARE};

/// Tries to open a counter of CPU cycles for this process.
pub(super) fn open_cycle_counter() -> io::Result<()> {
    Counter::of_this_process(Counted { unit: HARDWARE, config: CPU_CYCLES }).map(drop)
}

/// Tries to load and attach the observer's own programs, with the smallest tables.
pub(super) fn attach_observer() -> Result<(), ObserveError> {
    let smallest =
        BpfConfig { max_threads: 64, max_tasks: 1, ring_bytes: 4096, ..BpfConfig::default() };
    BpfObserver::new(&smallest).map(drop)
}

/// How often the calling thread was taken off its core by the kernel's scheduler.
pub(super) fn preemptions() -> i64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: `usage` is valid for writing; all-zero is a valid `rusage`, whatever the call does.
    unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init().ru_nivcsw
    }
}

/// Tries to open a pidfd of the calling thread rather than of its process.
pub(super) fn open_thread_pidfd() -> io::Result<()> {
    const PIDFD_THREAD: u32 = libc::O_EXCL as u32; // include/uapi/linux/pidfd.h
    let flags = rustix::process::PidfdFlags::from_bits_retain(PIDFD_THREAD);
    // Another thread than the first one: for that one every kernel with pidfds would do.
    let open = || rustix::process::pidfd_open(rustix::thread::gettid(), flags);
    let opened = std::thread::scope(|scope| scope.spawn(open).join());
    match opened {
        Ok(result) => Ok(result.map(drop)?),
        Err(_) => Err(io::Error::other("the thread that tried it panicked")),
    }
}
