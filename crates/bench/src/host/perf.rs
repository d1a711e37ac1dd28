//! A ring of perf_event_open(2) records of one core, as far as timer interrupts need it.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, FromRawFd as _};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::*};

use quell_model::{CoreId, Nanos};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Bytes of the ring: a power of two of pages, room for tens of thousands of records.
const RING_BYTES: usize = 2 << 20;
const PAGE_BYTES: usize = 4_096;

// Numbers of include/uapi/linux/perf_event.h.
const TYPE_SOFTWARE: u32 = 1;
const COUNT_SW_CPU_CLOCK: u64 = 0;
const SAMPLE_TID: u64 = 1 << 1;
const SAMPLE_TIME: u64 = 1 << 2;
const SAMPLE_ID_ALL: u64 = 1 << 18;
const USE_CLOCKID: u64 = 1 << 25;
const IOC_ENABLE: libc::Ioctl = 0x2400;
const IOC_DISABLE: libc::Ioctl = 0x2401;
const FLAG_FD_CLOEXEC: libc::c_ulong = 1 << 3;
const RECORD_SAMPLE: u32 = 9;
const DATA_HEAD_AT: usize = 1_024;
const DATA_TAIL_AT: usize = 1_032;

/// `struct perf_event_attr` up to version 5.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved: u16,
}

/// An interrupt of the timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// When, on CLOCK_MONOTONIC.
    pub at: Nanos,
    /// The process that it interrupted; 0 is the idle task.
    pub pid: i32,
}

/// Records of one core while it lives. Of more than fit between two [`PerfRing::drain`]s the kernel
/// drops the newest.
pub struct PerfRing {
    event: File,
    ring: NonNull<u8>,
}

impl PerfRing {
    /// Starts recording the interrupts of a timer with this period, which come whatever the core does.
    ///
    /// # Errors
    /// Where perf events are not allowed or not in this kernel.
    pub fn start(core: CoreId, period: Nanos) -> io::Result<PerfRing> {
        let attributes = Attributes {
            kind: TYPE_SOFTWARE,
            config: COUNT_SW_CPU_CLOCK,
            sample_period: period.0,
            size: size_of::<Attributes>() as u32,
            sample_type: SAMPLE_TID | SAMPLE_TIME,
            flags: SAMPLE_ID_ALL | USE_CLOCKID,
            clockid: libc::CLOCK_MONOTONIC,
            ..Attributes::default()
        };
        // SAFETY: the pointer is valid for the call and the size in the struct is its own.
        let fd = unsafe {
            let (every_process, no_group): (libc::pid_t, libc::c_int) = (-1, -1);
            let core = core.index() as libc::c_int;
            let number = libc::SYS_perf_event_open;
            libc::syscall(number, &attributes, every_process, core, no_group, FLAG_FD_CLOEXEC)
        };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the descriptor is new and nobody else's.
        let event = unsafe { File::from_raw_fd(fd as libc::c_int) };
        let (length, access) = (PAGE_BYTES + RING_BYTES, ProtFlags::READ | ProtFlags::WRITE);
        // SAFETY: the kernel chooses the address, so no memory of ours is replaced.
        let at =
            unsafe { mmap(std::ptr::null_mut(), length, access, MapFlags::SHARED, &event, 0)? };
        let ring = NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(PerfRing { event, ring })
    }

    /// Stops or goes on recording.
    ///
    /// # Errors
    /// Never, for an event that was started.
    pub fn set_enabled(&self, enabled: bool) -> io::Result<()> {
        let request = if enabled { IOC_ENABLE } else { IOC_DISABLE };
        // SAFETY: these two requests take no argument that the kernel would follow.
        match unsafe { libc::ioctl(self.event.as_raw_fd(), request, 0) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// A word of the control page, which the kernel shares.
    fn word(&self, at: usize) -> &AtomicU64 {
        // SAFETY: inside of the mapped control page, aligned, and valid whatever it holds.
        unsafe { self.ring.byte_add(at).cast::<AtomicU64>().as_ref() }
    }

    /// The records since the last call, oldest first.
    pub fn drain(&mut self) -> Vec<Record> {
        // Acquire pairs with the kernel's barrier before it publishes the head: the records are there.
        let head = self.word(DATA_HEAD_AT).load(Acquire);
        let mut tail = self.word(DATA_TAIL_AT).load(Relaxed);
        let mut records = Vec::new();
        while tail < head {
            let header = self.read_u64(tail);
            let (kind, size) = (header as u32, (header >> 48) as u16);
            if size < 8 {
                break;
            }
            // After the header: process and thread, then the time.
            if kind == RECORD_SAMPLE && size >= 24 {
                let pid = (self.read_u64(tail + 8) as u32).cast_signed();
                records.push(Record { at: Nanos(self.read_u64(tail + 16)), pid });
            }
            tail += u64::from(size);
        }
        // Release: the kernel may overwrite what was read, not before.
        self.word(DATA_TAIL_AT).store(head, Release);
        records
    }

    /// Records are multiples of 8 bytes, so a word never wraps.
    fn read_u64(&self, position: u64) -> u64 {
        let at = PAGE_BYTES + (position as usize & (RING_BYTES - 1) & !7);
        // SAFETY: inside of the mapped ring and aligned; the kernel does not write between tail and
        // head.
        unsafe { self.ring.byte_add(at).cast::<u64>().read() }
    }
}

impl Drop for PerfRing {
    fn drop(&mut self) {
        // SAFETY: mapped by `start` with this length, and no reference outlives `self`.
        let _ = unsafe { munmap(self.ring.as_ptr().cast(), PAGE_BYTES + RING_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};

    const PATIENCE: Duration = Duration::from_secs(60);

    #[test]
    fn a_timer_interrupts_whatever_runs_while_it_is_enabled() {
        let mut ring = PerfRing::start(CoreId(0), Nanos::from_millis(1)).unwrap();
        ring.set_enabled(false).unwrap();
        ring.drain();
        std::thread::sleep(Duration::from_millis(50));
        assert_eq!(ring.drain().len(), 0);
        ring.set_enabled(true).unwrap();
        let (mut records, until) = (Vec::new(), Instant::now() + PATIENCE);
        while records.len() <= 10 {
            assert!(Instant::now() < until, "{} interrupts", records.len());
            std::thread::sleep(Duration::from_millis(20));
            records.extend(ring.drain());
        }
        assert!(records.is_sorted_by_key(|one| one.at));
    }
}
