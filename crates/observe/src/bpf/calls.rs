//! What BPF programs cost: calls of bpf(2) for which libbpf-rs has no cheap way.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use libbpf_rs::{Object, Program, libbpf_sys};

use super::{Measurement, ProgramCost};

/// What a loaded program did so far.
#[derive(Clone, Copy, Debug, Default)]
struct Counts {
    /// Runs and the time they took; counted while statistics are on.
    runs: u64,
    run_ns: u64,
    /// Runs left out because the program was running already on that CPU.
    recursion_misses: u64,
}

/// What each attached program cost.
pub(crate) fn costs(object: &Object) -> Vec<ProgramCost> {
    let attached = object.progs().filter(|program| program.autoload()).filter_map(|program| {
        let section = program.section().to_str()?.strip_prefix("tp_btf/")?.to_owned();
        let Counts { runs, run_ns, .. } = program_counts(program.as_fd()).ok()?;
        Some(ProgramCost { event: section, runs, time: Duration::from_nanos(run_ns) })
    });
    attached.collect()
}

/// How often any program was left out because it ran already on that CPU.
pub(crate) fn recursion_misses(object: &Object) -> u64 {
    // A missed lock is one without relief, and no thread is lost by it; a spinlock that the programs contend for counts there.
    let counted = |program: &Program<'_>| {
        program.autoload() && !program.section().to_string_lossy().contains("contention_")
    };
    let loaded = object.progs().filter(counted);
    let counts = loaded.flat_map(|program| program_counts(program.as_fd()));
    counts.map(|counts| counts.recursion_misses).sum()
}

fn program_counts(program: BorrowedFd<'_>) -> io::Result<Counts> {
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
pub(crate) fn measure() -> io::Result<Measurement> {
    // SAFETY: takes a number.
    let fd = unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) };
    if fd < 0 {
        return Err(io::Error::from_raw_os_error(-fd));
    }
    // SAFETY: a descriptor that the kernel just made and nobody else knows.
    let statistics = unsafe { OwnedFd::from_raw_fd(fd) };
    Ok(Measurement { _statistics: statistics })
}
