//! Calls of bpf(2) for which libbpf-rs has no cheap way.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use libbpf_rs::libbpf_sys;

/// What a loaded program did so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// Runs and the time they took; counted while statistics are on.
    pub runs: u64,
    pub run_ns: u64,
    /// Runs left out because the program was running already on that CPU.
    pub recursion_misses: u64,
}

pub(super) fn program_counts(program: BorrowedFd<'_>) -> io::Result<Counts> {
    let mut info = MaybeUninit::<libbpf_sys::bpf_prog_info>::zeroed();
    let mut length = size_of::<libbpf_sys::bpf_prog_info>() as u32;
    // SAFETY: the buffer has the length that is told; zeroed, it asks for no arrays.
    let result = unsafe {
        libbpf_sys::bpf_obj_get_info_by_fd(
            program.as_raw_fd(),
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    if result < 0 {
        return Err(io::Error::from_raw_os_error(-result));
    }
    // SAFETY: zeroed and then filled by the kernel; any bit pattern is valid.
    let info = unsafe { info.assume_init() };
    Ok(Counts {
        runs: info.run_cnt,
        run_ns: info.run_time_ns,
        recursion_misses: info.recursion_misses,
    })
}

/// Has the kernel time every BPF program until the result is dropped. It costs some 20 ns a run.
pub(super) fn enable_statistics() -> io::Result<OwnedFd> {
    // SAFETY: takes a number.
    let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: a descriptor that the kernel just made and nobody else knows.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}
