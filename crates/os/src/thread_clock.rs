//! Clocks that rustix does not have: the CPU time of another thread of this process, and local time.

use std::io;

use quell_model::Nanos;

use crate::Tid;

/// CPU time of a thread of this process, exact even while it runs: its file `schedstat` is as old as the last tick.
///
/// # Errors
/// `EINVAL` where this process has no such thread.
pub(crate) fn thread_cpu(tid: Tid) -> io::Result<Nanos> {
    // CPUCLOCK_PERTHREAD_MASK | CPUCLOCK_SCHED of include/linux/posix-timers_types.h, as pthread_getcpuclockid(3) does.
    let clock = !tid.0 << 3 | 6;
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a local that outlives the call; a number that is no clock is refused.
    let status = unsafe { libc::clock_gettime(clock, &raw mut time) };
    match status {
        0 => Ok(Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Seconds that local time (TZ, /etc/localtime) is ahead of UTC at a time in seconds since 1970; 0 for a time that
/// no calendar has.
pub(crate) fn local_offset_s(at: i64) -> i64 {
    let mut local = std::mem::MaybeUninit::<libc::tm>::zeroed();
    // SAFETY: both pointers are to locals that outlive the call.
    let done = unsafe { libc::localtime_r(&raw const at, local.as_mut_ptr()) };
    if done.is_null() {
        return 0;
    }
    // SAFETY: zeroed, and filled by the successful call.
    unsafe { local.assume_init() }.tm_gmtoff
}
