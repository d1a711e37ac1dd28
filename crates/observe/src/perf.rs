//! Counters of the kernel's performance events.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{FromRawFd, OwnedFd};

use quell_model::CoreId;

/// `PERF_TYPE_HARDWARE` (include/uapi/linux/perf_event.h).
pub const HARDWARE: u32 = 0;
/// `PERF_COUNT_HW_CPU_CYCLES`.
pub const CPU_CYCLES: u64 = 0;
/// `PERF_COUNT_HW_CACHE_MISSES`: misses in the last-level cache.
pub const CACHE_MISSES: u64 = 3;

/// `struct perf_event_attr`, the part of its first version.
#[repr(C)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample: [u64; 3],
    flags: u64,
    wakeup: u32,
    breakpoint: u32,
    config1: u64,
}

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The unit that counts (`type` in sysfs).
    pub unit: u32,
    /// The event, as that unit encodes it.
    pub config: u64,
}

/// A counter that counts from now on.
#[derive(Debug)]
pub struct Counter(File);

impl Counter {
    /// Opens a counter of all that this core does, in user space and in the kernel.
    ///
    /// # Errors
    /// `ENOENT` without such hardware, `EACCES` without the right (CAP_PERFMON), `ENODEV` on an offline core.
    pub fn on_core(counted: Counted, core: CoreId) -> io::Result<Counter> {
        open(counted, 0, -1, i32::from(core.0))
    }

    /// Opens a counter of what this process does in user space, which takes no right.
    ///
    /// # Errors
    /// As [`Counter::on_core`].
    pub fn of_this_process(counted: Counted) -> io::Result<Counter> {
        const USER_ONLY: u64 = 1 << 5 | 1 << 6; // exclude_kernel, exclude_hv
        open(counted, USER_ONLY, 0, -1)
    }

    /// The count so far.
    ///
    /// # Errors
    /// Those of the read; `UnexpectedEof` where the event could not be counted at all.
    pub fn read(&self) -> io::Result<u64> {
        let mut count = [0; 8];
        (&self.0).read_exact(&mut count)?;
        Ok(u64::from_ne_bytes(count))
    }
}

fn open(counted: Counted, flags: u64, pid: i32, core: i32) -> io::Result<Counter> {
    let attr = Attr {
        kind: counted.unit,
        size: size_of::<Attr>() as u32,
        config: counted.config,
        sample: [0; 3],
        flags,
        wakeup: 0,
        breakpoint: 0,
        config1: 0,
    };
    const CLOEXEC: u64 = 8;
    // SAFETY: `attr` has the layout and size that it states and outlives the call.
    let fd = unsafe { libc::syscall(libc::SYS_perf_event_open, &attr, pid, core, -1, CLOEXEC) };
    match i32::try_from(fd) {
        // SAFETY: the kernel just returned this descriptor to this process; nobody else has it.
        Ok(fd) if fd >= 0 => Ok(Counter(File::from(unsafe { OwnedFd::from_raw_fd(fd) }))),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `PERF_TYPE_SOFTWARE`, `PERF_COUNT_SW_PAGE_FAULTS`: there without any hardware.
    const PAGE_FAULTS: Counted = Counted { unit: 1, config: 2 };

    #[test]
    fn a_counter_grows_with_what_it_counts() {
        let counter = Counter::of_this_process(PAGE_FAULTS).unwrap();
        let before = counter.read().unwrap();
        let touched = vec![1u8; 16 << 20];
        assert!(touched.iter().step_by(4096).all(|&byte| byte == 1));
        assert!(counter.read().unwrap() > before);
    }

    #[test]
    fn a_core_that_does_not_exist_has_none() {
        assert!(Counter::on_core(PAGE_FAULTS, CoreId(1_023)).is_err());
    }
}
