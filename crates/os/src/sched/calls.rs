//! Reads scheduling attributes and affinities of threads, and sets those of the calling thread.
//!
//! `rustix` has neither `sched_setattr` nor affinity by raw mask, and its bit-wise `CpuSet` costs more
//! than the system call.

use std::io;
use std::mem::size_of;

use quell_model::{CORES_MAX, CoreSet, Nanos};

use crate::Tid;
use crate::sched::{Policy, SchedAttr};

const MASK_BYTES: usize = CORES_MAX / 8;

fn checked(status: libc::c_long) -> io::Result<usize> {
    usize::try_from(status).map_err(|_| io::Error::last_os_error())
}

/// Reads policy, priority, nice value, slice and flags (`sched_getattr(2)`). The nice value of a
/// thread under FIFO or RR reads as 0.
///
/// # Errors
/// `ESRCH` for no such thread; `EOPNOTSUPP` for a policy that Quell does not handle (deadline, ext).
pub fn attr(tid: Tid) -> io::Result<SchedAttr> {
    let mut raw = zeroed();
    // SAFETY: `raw` is a plain struct of the size that is passed; the kernel writes at most that much.
    checked(unsafe {
        libc::syscall(
            libc::SYS_sched_getattr,
            tid.0,
            &raw mut raw,
            size_of::<libc::sched_attr>(),
            0,
        )
    })?;
    let policy = Policy::from_kernel(raw.sched_policy)
        .ok_or_else(|| io::Error::from_raw_os_error(libc::EOPNOTSUPP))?;
    Ok(SchedAttr {
        policy,
        priority: raw.sched_priority as u8,
        nice: raw.sched_nice.clamp(-20, 19) as i8,
        reset_on_fork: raw.sched_flags & libc::SCHED_FLAG_RESET_ON_FORK as u64 != 0,
        slice: Nanos(if policy.is_fair() { raw.sched_runtime } else { 0 }),
    })
}

/// The argument of `sched_setattr(2)` for these attributes.
pub fn to_kernel(attr: &SchedAttr) -> libc::sched_attr {
    let mut raw = zeroed();
    raw.sched_policy = attr.policy.to_kernel();
    raw.sched_priority = u32::from(attr.priority);
    raw.sched_nice = i32::from(attr.nice);
    raw.sched_runtime = if attr.policy.is_fair() { attr.slice.0 } else { 0 };
    if attr.reset_on_fork {
        raw.sched_flags = libc::SCHED_FLAG_RESET_ON_FORK as u64;
    }
    raw
}

/// Sets policy, priority, nice value, slice and flags of the calling thread.
pub(crate) fn set_own_attr(attr: &SchedAttr) -> io::Result<()> {
    let raw = to_kernel(attr);
    // SAFETY: the kernel only reads `raw`, whose `size` field says how long it is; thread 0 is the caller.
    checked(unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const raw, 0) }).map(drop)
}

/// Restricts the calling thread to these cores.
pub(crate) fn set_own_affinity(cores: &CoreSet) -> io::Result<()> {
    // SAFETY: the kernel only reads the mask, which has the size that is passed; thread 0 is the caller.
    checked(unsafe {
        libc::syscall(libc::SYS_sched_setaffinity, 0, MASK_BYTES, cores.words().as_ptr())
    })
    .map(drop)
}

fn zeroed() -> libc::sched_attr {
    libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    }
}

/// The cores that a thread may use and that are online (`sched_getaffinity(2)`).
///
/// # Errors
/// `ESRCH` for no such thread; `EINVAL` on a host with more cores than [`CORES_MAX`].
pub fn affinity(tid: Tid) -> io::Result<CoreSet> {
    let mut words = *CoreSet::EMPTY.words();
    // SAFETY: the buffer has the size that is passed.
    checked(unsafe {
        libc::syscall(libc::SYS_sched_getaffinity, tid.0, MASK_BYTES, words.as_mut_ptr())
    })?;
    Ok(CoreSet::from_words(&words))
}

/// The nice value of a thread, also under FIFO and RR, where `sched_getattr` hides it.
///
/// # Errors
/// `ESRCH` for no such thread.
pub fn nice(tid: Tid) -> io::Result<i8> {
    Ok(rustix::process::getpriority_process(rustix::process::Pid::from_raw(tid.0))? as i8)
}
