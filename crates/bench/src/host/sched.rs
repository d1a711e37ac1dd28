//! Policies, nice values and affinities of threads, by hand.
#![allow(unsafe_code)]

use std::io;

use quell_act::Ladder;
use quell_model::{CoreId, CoreSet, Nanos, Rung};
use rustix::process::Pid;
use rustix::thread::CpuSet;

/// A scheduling policy with its priority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// SCHED_OTHER.
    Other,
    /// SCHED_BATCH.
    Batch,
    /// SCHED_IDLE.
    Idle,
    /// SCHED_FIFO with a priority from 1 to 99.
    Fifo(i32),
    /// SCHED_RR with a priority from 1 to 99.
    Rr(i32),
}

impl Policy {
    fn numbers(self) -> (i32, i32) {
        match self {
            Policy::Other => (libc::SCHED_OTHER, 0),
            Policy::Batch => (libc::SCHED_BATCH, 0),
            Policy::Idle => (libc::SCHED_IDLE, 0),
            Policy::Fifo(priority) => (libc::SCHED_FIFO, priority),
            Policy::Rr(priority) => (libc::SCHED_RR, priority),
        }
    }
}

/// The priority of an LC thread on its Quell rung, on this host.
pub fn lc_priority() -> i32 {
    let ladder = Ladder::for_this_host().unwrap_or_default();
    ladder.priority(Rung::Lc).map_or(1, i32::from)
}

/// Sets a thread's policy; 0 is the calling thread. What is elevated carries SCHED_RESET_ON_FORK, so
/// that no child inherits it.
///
/// # Errors
/// The kernel's: no such thread, not allowed.
pub fn set_policy(tid: i32, policy: Policy) -> io::Result<()> {
    set_policy_with(tid, policy, Inherit::No)
}

/// Whether children of an elevated thread are elevated too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inherit {
    /// As `chrt` and `CPUSchedulingPolicy=` of systemd leave it.
    Yes,
    /// By SCHED_RESET_ON_FORK.
    No,
}

/// As [`set_policy`], and says what children get.
///
/// # Errors
/// The kernel's: no such thread, not allowed.
pub fn set_policy_with(tid: i32, policy: Policy, inherit: Inherit) -> io::Result<()> {
    let (number, priority) = policy.numbers();
    let reset = match (policy, inherit) {
        (Policy::Fifo(_) | Policy::Rr(_), Inherit::No) => libc::SCHED_RESET_ON_FORK,
        _ => 0,
    };
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the pointer is valid for the call, which only reads through it.
    let done = unsafe { libc::sched_setscheduler(tid, number | reset, &parameters) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Gives a thread of the fair class a nice value that its children do not inherit: a negative one becomes 0 (sched(7)).
///
/// # Errors
/// The kernel's: no such thread, not allowed.
pub fn set_own_nice(tid: i32, nice: i32) -> io::Result<()> {
    let parameters = libc::sched_param { sched_priority: 0 };
    let policy = libc::SCHED_OTHER | libc::SCHED_RESET_ON_FORK;
    // SAFETY: the pointer is valid for the call, which only reads through it.
    let done = unsafe { libc::sched_setscheduler(tid, policy, &parameters) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    set_nice(tid, nice)
}

/// What sched_setattr(2) takes (include/uapi/linux/sched/types.h), the first version of it.
#[repr(C)]
#[derive(Default)]
struct Attributes {
    size: u32,
    policy: u32,
    flags: u64,
    nice: i32,
    priority: u32,
    runtime_ns: u64,
    deadline_ns: u64,
    period_ns: u64,
}

/// `SCHED_FLAG_RESET_ON_FORK` and `SCHED_FLAG_RECLAIM`.
const RESET_ON_FORK: u64 = 1;
const RECLAIM: u64 = 2;

/// Asks for a slice of the fair class (`sched_runtime`, Linux 6.12), which the kernel keeps within 0.1 and 100 ms.
///
/// # Errors
/// The kernel's: no such thread.
pub fn set_slice(tid: i32, slice: Nanos) -> io::Result<()> {
    set_attributes(tid, Attributes { runtime_ns: slice.0, ..Attributes::default() })
}

/// Makes a thread SCHED_DEADLINE: so much time in each period.
///
/// # Errors
/// The kernel's: EPERM where the thread is pinned to part of its scheduling domain, EBUSY where too much is promised.
pub fn set_deadline(tid: i32, budget: Nanos, period: Nanos) -> io::Result<()> {
    deadline(tid, budget, period, RESET_ON_FORK)
}

/// As [`set_deadline`], and what others were promised and do not use is the thread's too (GRUB).
///
/// # Errors
/// Those of [`set_deadline`].
pub fn set_budget(tid: i32, budget: Nanos, period: Nanos) -> io::Result<()> {
    deadline(tid, budget, period, RESET_ON_FORK | RECLAIM)
}

fn deadline(tid: i32, budget: Nanos, period: Nanos, flags: u64) -> io::Result<()> {
    set_attributes(
        tid,
        Attributes {
            policy: libc::SCHED_DEADLINE.cast_unsigned(),
            flags,
            runtime_ns: budget.0,
            deadline_ns: period.0,
            period_ns: period.0,
            ..Attributes::default()
        },
    )
}

fn set_attributes(tid: i32, mut attributes: Attributes) -> io::Result<()> {
    attributes.size = size_of::<Attributes>() as u32;
    // SAFETY: the pointer is valid for the call, which only reads as much as `size` says.
    let done = unsafe { libc::syscall(libc::SYS_sched_setattr, tid, &raw const attributes, 0) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A thread's policy as the kernel numbers it (with flags), and its real-time priority.
///
/// # Errors
/// The kernel's: no such thread.
pub fn policy(tid: i32) -> io::Result<(i32, i32)> {
    let mut parameters = libc::sched_param { sched_priority: 0 };
    // SAFETY: no pointer is passed.
    let number = unsafe { libc::sched_getscheduler(tid) };
    // SAFETY: the pointer is valid for the call, which writes one `sched_param`.
    let done = unsafe { libc::sched_getparam(tid, &mut parameters) };
    if number < 0 || done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok((number, parameters.sched_priority))
}

/// Sets a thread's nice value.
///
/// # Errors
/// The kernel's: no such thread, not allowed.
pub fn set_nice(tid: i32, value: i32) -> io::Result<()> {
    // SAFETY: no pointer is passed.
    let done = unsafe { libc::setpriority(libc::PRIO_PROCESS, tid.cast_unsigned(), value) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// A thread's nice value.
///
/// # Errors
/// The kernel's: no such thread.
pub fn nice(tid: i32) -> io::Result<i32> {
    let pid = Pid::from_raw(tid);
    Ok(rustix::process::getpriority_process(pid)?)
}

/// Sets the cores that a thread may use; 0 is the calling thread.
///
/// # Errors
/// The kernel's: no such thread, none of these cores is allowed.
pub fn pin(tid: i32, cores: &CoreSet) -> io::Result<()> {
    let mut set = CpuSet::new();
    for core in cores.iter().filter(|core| core.index() < CpuSet::MAX_CPU) {
        set.set(core.index());
    }
    Ok(rustix::thread::sched_setaffinity(Pid::from_raw(tid), &set)?)
}

/// The cores that a thread may use; 0 is the calling thread.
///
/// # Errors
/// The kernel's: no such thread.
pub fn affinity(tid: i32) -> io::Result<CoreSet> {
    let set = rustix::thread::sched_getaffinity(Pid::from_raw(tid))?;
    Ok((0..CpuSet::MAX_CPU)
        .filter(|&core| set.is_set(core))
        .map(|core| CoreId(core as u16))
        .collect())
}

/// A thread's name.
///
/// # Errors
/// The kernel's: no such thread.
pub fn comm(tid: i32) -> io::Result<String> {
    let text = std::fs::read_to_string(format!("/proc/{tid}/comm"))?;
    Ok(text.trim_end_matches('\n').to_owned())
}

/// The number of the calling thread.
pub fn this_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}
