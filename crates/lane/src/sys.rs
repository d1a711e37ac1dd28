//! Policies and affinities of threads of this process: what `rustix` does not have. All `unsafe` of the crate.

use std::io;
use std::mem::size_of;

/// The calling thread, to the scheduler's system calls.
pub const SELF: i32 = 0;

/// Cores that a mask has room for.
pub const CORES_MAX: usize = 8192;

const WORD_BITS: usize = u64::BITS as usize;

/// A set of cores.
#[derive(Clone, PartialEq, Eq)]
pub struct Cores([u64; CORES_MAX / WORD_BITS]);

impl Cores {
    pub const ALL: Cores = Cores([u64::MAX; CORES_MAX / WORD_BITS]);

    pub fn one(core: u32) -> Cores {
        let mut cores = Cores([0; CORES_MAX / WORD_BITS]);
        if let Some(word) = cores.0.get_mut(core as usize / WORD_BITS) {
            *word = 1 << (core as usize % WORD_BITS);
        }
        cores
    }

    pub fn has(&self, core: u32) -> bool {
        let word = self.0.get(core as usize / WORD_BITS);
        word.is_some_and(|word| word >> (core as usize % WORD_BITS) & 1 == 1)
    }
}

/// What `sched_getattr(2)` tells of a thread, to be given back as it is.
#[derive(Clone, Copy)]
pub struct Attr(libc::sched_attr);

impl Attr {
    pub fn resets_on_fork(&self) -> bool {
        self.0.sched_flags & RESET_ON_FORK != 0
    }

    pub fn with_reset_on_fork(mut self) -> Attr {
        self.0.sched_flags |= RESET_ON_FORK;
        self
    }
}

const RESET_ON_FORK: u64 = libc::SCHED_FLAG_RESET_ON_FORK as u64;

fn checked(status: libc::c_long) -> io::Result<()> {
    if status < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

/// The calling thread's policy; `None` for one that could not be given back (deadline, ext).
pub fn attr() -> io::Result<Option<Attr>> {
    let mut raw = libc::sched_attr {
        size: size_of::<libc::sched_attr>() as u32,
        sched_policy: 0,
        sched_flags: 0,
        sched_nice: 0,
        sched_priority: 0,
        sched_runtime: 0,
        sched_deadline: 0,
        sched_period: 0,
    };
    let size = size_of::<libc::sched_attr>();
    // SAFETY: `raw` is a plain struct of the size that is passed; the kernel writes at most that much.
    checked(unsafe { libc::syscall(libc::SYS_sched_getattr, SELF, &raw mut raw, size, 0) })?;
    raw.size = size as u32;
    raw.sched_flags &= RESET_ON_FORK;
    let known =
        [libc::SCHED_OTHER, libc::SCHED_FIFO, libc::SCHED_RR, libc::SCHED_BATCH, libc::SCHED_IDLE];
    Ok(known.contains(&(raw.sched_policy as i32)).then_some(Attr(raw)))
}

/// Gives the calling thread a policy.
pub fn set_attr(attr: &Attr) -> io::Result<()> {
    // SAFETY: the kernel only reads the struct, whose `size` field says how long it is.
    checked(unsafe { libc::syscall(libc::SYS_sched_setattr, SELF, &raw const attr.0, 0) })
}

/// Puts a thread under SCHED_FIFO.
pub fn set_fifo(tid: i32, priority: u8, reset_on_fork: bool) -> io::Result<()> {
    let param = libc::sched_param { sched_priority: i32::from(priority) };
    let flags = if reset_on_fork { libc::SCHED_RESET_ON_FORK } else { 0 };
    let policy = libc::SCHED_FIFO | flags;
    // SAFETY: the kernel only reads `param`.
    checked(unsafe { libc::syscall(libc::SYS_sched_setscheduler, tid, policy, &raw const param) })
}

/// The real-time priority of a thread.
pub fn priority(tid: i32) -> io::Result<u8> {
    let mut param = libc::sched_param { sched_priority: 0 };
    // SAFETY: the kernel writes one `sched_param`.
    checked(unsafe { libc::syscall(libc::SYS_sched_getparam, tid, &raw mut param) })?;
    Ok(param.sched_priority as u8)
}

/// The cores that the calling thread may use and that are online.
pub fn cores() -> io::Result<Cores> {
    let mut cores = Cores([0; CORES_MAX / WORD_BITS]);
    let size = size_of::<Cores>();
    // SAFETY: the buffer has the size that is passed.
    checked(unsafe {
        libc::syscall(libc::SYS_sched_getaffinity, SELF, size, cores.0.as_mut_ptr())
    })?;
    Ok(cores)
}

/// Restricts the calling thread to these cores.
pub fn set_cores(cores: &Cores) -> io::Result<()> {
    let size = size_of::<Cores>();
    // SAFETY: the kernel only reads the mask, which has the size that is passed.
    checked(unsafe { libc::syscall(libc::SYS_sched_setaffinity, SELF, size, cores.0.as_ptr()) })
}
