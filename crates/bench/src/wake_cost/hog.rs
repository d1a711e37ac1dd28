//! Batch work that counts what it does: the same loop as a thread of this process, or in a process of its own.
#![allow(unsafe_code)]

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use quell_model::{CoreId, CoreSet, Nanos};
use quell_os::{Tid, clock};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

use crate::host::{Policy, pin, set_policy, this_thread};

/// Steps between two updates of the count: a microsecond or two, so that telling costs next to nothing.
const STEPS: u32 = 1_024;
/// How long it may take until it counts.
const START_MAX: Duration = Duration::from_secs(20);
const PAGE_BYTES: usize = 4_096;

/// In whose address space the hog runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// In that of the woken thread.
    Shared,
    /// In one of its own, as batch work is beside a service.
    Own,
}

/// A loop in registers at SCHED_IDLE on one core, until dropped.
pub struct Hog {
    page: Arc<Page>,
    kind: Kind,
}

enum Kind {
    Thread { tid: i32, thread: Option<JoinHandle<()>> },
    Child(Pid),
}

impl Hog {
    /// Starts it and waits until it counts. A child is killed by the kernel when the calling thread ends.
    ///
    /// # Errors
    /// When it cannot be started or placed.
    pub fn start(core: CoreId, space: Space) -> Result<Hog> {
        let page = Arc::new(Page::new().context("map the page of the hog")?);
        let kind = match space {
            Space::Shared => thread(core, &page)?,
            Space::Own => Kind::Child(fork(core, page.board()).context("fork the hog")?),
        };
        let hog = Hog { page, kind };
        let until = Instant::now() + START_MAX;
        while hog.ops() == 0 {
            if Instant::now() > until {
                bail!("the hog does not run on core {core}");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(hog)
    }

    /// What it did so far.
    pub fn ops(&self) -> u64 {
        // Relaxed: a count alone.
        self.page.board().ops.load(Relaxed)
    }

    /// Its thread.
    pub fn tid(&self) -> i32 {
        match &self.kind {
            Kind::Thread { tid, .. } => *tid,
            Kind::Child(pid) => pid.as_raw_nonzero().get(),
        }
    }

    /// Its CPU time by the kernel's account.
    ///
    /// # Errors
    /// When it is gone.
    pub fn cpu(&self) -> io::Result<Nanos> {
        match &self.kind {
            Kind::Thread { tid, .. } => clock::thread_cpu_of(Tid(*tid)),
            Kind::Child(pid) => process_cpu(*pid),
        }
    }
}

impl Drop for Hog {
    fn drop(&mut self) {
        self.page.board().stop.store(true, Relaxed);
        match &mut self.kind {
            Kind::Thread { thread, .. } => {
                if let Some(thread) = thread.take() {
                    let _ = thread.join();
                }
            }
            Kind::Child(pid) => {
                let _ = kill_process(*pid, Signal::KILL);
                let _ = waitpid(Some(*pid), WaitOptions::empty());
            }
        }
    }
}

/// The loop. Not inlined, so that both kinds of hog run the very same instructions.
#[inline(never)]
fn turn(board: &Board) {
    let (mut word, mut ops) = (0x2545_f491_4f6c_dd1d_u64, 0);
    while !board.stop.load(Relaxed) {
        for _ in 0..STEPS {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
        }
        std::hint::black_box(word);
        ops += 1;
        board.ops.store(ops, Relaxed);
    }
}

fn place(core: CoreId) -> io::Result<()> {
    set_policy(0, Policy::Idle)?;
    pin(0, &CoreSet::of(core))
}

fn thread(core: CoreId, page: &Arc<Page>) -> Result<Kind> {
    let (ready, is_ready) = sync_channel(1);
    let page = page.clone();
    let run = move || {
        let placed = place(core);
        let failed = placed.is_err();
        let _ = ready.send(placed.map(|()| this_thread()));
        if !failed {
            turn(page.board());
        }
    };
    let thread = std::thread::Builder::new().name("hog".into()).spawn(run);
    let thread = thread.context("start the hog")?;
    let tid = is_ready.recv().context("the hog ended")?.context("place the hog")?;
    Ok(Kind::Thread { tid, thread: Some(thread) })
}

fn fork(core: CoreId, board: &Board) -> io::Result<Pid> {
    // SAFETY: until it is over the child makes system calls and computes on memory that is there; it allocates nothing
    // and takes no lock, which another thread may have held.
    match unsafe { libc::fork() } {
        0 => child(core, board),
        pid => Pid::from_raw(pid).filter(|_| pid > 0).ok_or_else(io::Error::last_os_error),
    }
}

fn child(core: CoreId, board: &Board) -> ! {
    let with_parent = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    if with_parent.is_ok() && place(core).is_ok() {
        turn(board);
    }
    // SAFETY: ends the process without running what belongs to the parent: destructors, buffers of its output.
    unsafe { libc::_exit(1) }
}

fn process_cpu(pid: Pid) -> io::Result<Nanos> {
    let mut clock = 0;
    // SAFETY: the pointer is valid for the call, which writes one clock number.
    let failed = unsafe { libc::clock_getcpuclockid(pid.as_raw_nonzero().get(), &mut clock) };
    if failed != 0 {
        return Err(io::Error::from_raw_os_error(failed));
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for the call, which writes one `timespec`.
    match unsafe { libc::clock_gettime(clock, &mut time) } {
        0 => Ok(Nanos(time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// What the hog and its owner share. The flag has a cache line of its own: it is only read.
#[repr(C)]
struct Board {
    ops: AtomicU64,
    _apart: [u64; 15],
    stop: AtomicBool,
}

/// A page with a [`Board`] that stays shared after fork(2).
struct Page(NonNull<Board>);

// SAFETY: only the board is reached through the pointer, all of it atomic, and the page lives as long as the value.
unsafe impl Send for Page {}
// SAFETY: as above.
unsafe impl Sync for Page {}

impl Page {
    fn new() -> io::Result<Page> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the kernel chooses the address, so no memory of ours is replaced.
        let at =
            unsafe { mmap_anonymous(std::ptr::null_mut(), PAGE_BYTES, access, MapFlags::SHARED)? };
        Ok(Page(NonNull::new(at.cast()).ok_or(io::ErrorKind::OutOfMemory)?))
    }

    fn board(&self) -> &Board {
        // SAFETY: mapped until drop, aligned to a page, larger than a board; zeros, which it begins with, are valid.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Page {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length, and no reference outlives `self`.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), PAGE_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_kinds_count_and_are_gone_when_dropped() {
        let _lock = quell_testkit::host_lock().unwrap();
        for space in [Space::Shared, Space::Own] {
            let hog = Hog::start(CoreId(0), space).unwrap();
            let before = hog.ops();
            let until = Instant::now() + START_MAX;
            while hog.ops() == before || hog.cpu().unwrap() == Nanos::ZERO {
                assert!(Instant::now() < until, "{space:?} does not go on");
            }
            let tid = hog.tid();
            drop(hog);
            assert!(!std::path::Path::new(&format!("/proc/{tid}/status")).exists(), "{space:?}");
        }
    }
}
