//! Policies and affinities of single threads.
//!
//! `rustix` has neither `sched_setattr` nor affinity by raw mask, and its bit-wise `CpuSet` costs more
//! than the system call.

use std::io;
use std::mem::size_of;

use quell_model::{CORES_MAX, CoreSet, Nanos};

use crate::Tid;
use crate::act::{Policy, SchedAttr};

const MASK_BYTES: usize = CORES_MAX / 8;

fn checked(status: libc::c_long) -> io::Result<usize> {
    usize::try_from(status).map_err(|_| io::Error::last_os_error())
}

/// Reads policy, priority, nice value, slice and flags (`sched_getattr(2)`). The nice value of a
/// thread under FIFO or RR reads as 0.
///
/// # Errors
/// `ESRCH` for no such thread; `EOPNOTSUPP` for a policy that Quell does not handle (deadline, ext).
pub(crate) fn attr(tid: Tid) -> io::Result<SchedAttr> {
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

/// Sets policy, priority, nice value, slice and flags (`sched_setattr(2)`).
///
/// # Errors
/// Those of the system call.
pub(crate) fn set_attr(tid: Tid, attr: &SchedAttr) -> io::Result<()> {
    let mut raw = zeroed();
    raw.sched_policy = attr.policy.to_kernel();
    raw.sched_priority = u32::from(attr.priority);
    raw.sched_nice = i32::from(attr.nice);
    raw.sched_runtime = if attr.policy.is_fair() { attr.slice.0 } else { 0 };
    if attr.reset_on_fork {
        raw.sched_flags = libc::SCHED_FLAG_RESET_ON_FORK as u64;
    }
    // SAFETY: the kernel only reads `raw`, whose `size` field says how long it is.
    checked(unsafe { libc::syscall(libc::SYS_sched_setattr, tid.0, &raw const raw, 0) }).map(drop)
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
pub(crate) fn affinity(tid: Tid) -> io::Result<CoreSet> {
    let mut words = *CoreSet::EMPTY.words();
    // SAFETY: the buffer has the size that is passed.
    checked(unsafe {
        libc::syscall(libc::SYS_sched_getaffinity, tid.0, MASK_BYTES, words.as_mut_ptr())
    })?;
    Ok(CoreSet::from_words(&words))
}

/// Restricts a thread to these cores (`sched_setaffinity(2)`).
///
/// # Errors
/// Those of the system call; `EINVAL` where no core of the set is in the thread's cpuset.
pub(crate) fn set_affinity(tid: Tid, cores: &CoreSet) -> io::Result<()> {
    // SAFETY: the kernel only reads the mask, which has the size that is passed.
    checked(unsafe {
        libc::syscall(libc::SYS_sched_setaffinity, tid.0, MASK_BYTES, cores.words().as_ptr())
    })
    .map(drop)
}

/// The nice value of a thread, also under FIFO and RR, where `sched_getattr` hides it.
///
/// # Errors
/// `ESRCH` for no such thread.
pub(crate) fn nice(tid: Tid) -> io::Result<i8> {
    Ok(rustix::process::getpriority_process(rustix::process::Pid::from_raw(tid.0))? as i8)
}

/// Sets the nice value of a thread and leaves its policy.
///
/// # Errors
/// Those of `setpriority(2)`.
pub(crate) fn set_nice(tid: Tid, nice: i8) -> io::Result<()> {
    let pid = rustix::process::Pid::from_raw(tid.0);
    Ok(rustix::process::setpriority_process(pid, i32::from(nice))?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn me() -> Tid {
        Tid(rustix::thread::gettid().as_raw_nonzero().get())
    }

    #[test]
    fn what_is_set_reads_back() {
        std::thread::spawn(|| {
            let mut attr = attr(me()).unwrap();
            attr.policy = Policy::Batch;
            attr.nice = 7;
            attr.reset_on_fork = true;
            set_attr(me(), &attr).unwrap();
            assert_eq!(super::attr(me()).unwrap(), attr);
            assert_eq!(nice(me()).unwrap(), 7);

            let one = affinity(me()).unwrap().first().map(CoreSet::of).unwrap();
            set_affinity(me(), &one).unwrap();
            assert_eq!(affinity(me()).unwrap(), one);
        })
        .join()
        .unwrap();
    }

    #[test]
    fn no_core_is_refused_by_the_kernel() {
        let refused = set_affinity(me(), &CoreSet::EMPTY).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    }
}
