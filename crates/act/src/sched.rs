//! Sets policies and affinities of single threads. Nothing but the executor and the restore calls these.
//!
//! `rustix` has neither `sched_setattr` nor affinity by raw mask, and its bit-wise `CpuSet` costs more
//! than the system call.

use std::io;

use quell_model::{CORES_MAX, CoreSet};
use quell_os::Tid;
use quell_os::sched::{SchedAttr, to_kernel};

const MASK_BYTES: usize = CORES_MAX / 8;

fn checked(status: libc::c_long) -> io::Result<usize> {
    usize::try_from(status).map_err(|_| io::Error::last_os_error())
}

/// Sets policy, priority, nice value, slice and flags (`sched_setattr(2)`).
///
/// # Errors
/// Those of the system call.
pub(crate) fn set_attr(tid: Tid, attr: &SchedAttr) -> io::Result<()> {
    let raw = to_kernel(attr);
    // SAFETY: the kernel only reads `raw`, whose `size` field says how long it is.
    checked(unsafe { libc::syscall(libc::SYS_sched_setattr, tid.0, &raw const raw, 0) }).map(drop)
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
    use quell_os::sched::{Policy, affinity, attr, nice};

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
            assert_eq!(quell_os::sched::attr(me()).unwrap(), attr);
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
