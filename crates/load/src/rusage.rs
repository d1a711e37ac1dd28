//! Context switches of the calling thread: `getrusage(RUSAGE_THREAD)`, which rustix lacks.

use std::mem::MaybeUninit;

/// Voluntary and involuntary context switches of the calling thread so far.
pub(crate) fn context_switches() -> u64 {
    let mut usage = MaybeUninit::<libc::rusage>::uninit();
    // SAFETY: the pointer is valid for a write of one rusage, and the call fails only on a bad
    // pointer or selector.
    let failed = unsafe { libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr()) } != 0;
    if failed {
        return 0;
    }
    // SAFETY: the call succeeded, so the kernel filled the structure.
    let usage = unsafe { usage.assume_init() };
    (usage.ru_nvcsw + usage.ru_nivcsw) as u64
}
