//! Waiting with io_uring.
//!
//! Each kthread has a ring. A wait is one entry of its submission queue, which goes to the kernel with the next call
//! that the kthread makes for its ring anyhow: many waits, one call. The kernel completes an entry on behalf of the thread that
//! submitted it (it interrupts nobody for this: `COOP_TASKRUN`), so that a kthread that sleeps in [`Ring::wait`] completes its
//! own, and one that runs sees by a flag in shared memory that there is something to be completed.
//! Both queues may be used by any thread under the ring's lock: thieves take completions, and submit what a kthread did
//! not come to submit. Linux: io_uring/io_uring.c; `io_uring_enter(2)`.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};

use io_uring::squeue::{Entry, Flags};
use io_uring::types::{Fd, TimeoutFlags, Timespec};
use io_uring::{IoUring, opcode};
use quell_model::Nanos;

use super::op::Op;
use crate::kthread::{lock, now};
use crate::park::UthreadRef;

/// Entries of the submission queue; more waits are a call more.
const ENTRIES: u32 = 256;
/// Entries of the completion queue; the kernel keeps what is beyond and hands it over later.
const COMPLETIONS: u32 = 4_096;
/// Waits that are left for the next call; with more the call is made at once.
const BATCH: usize = 32;
/// Completions of entries that nobody waits for.
const IGNORED: u64 = 0;
/// The bell rang. No operation has this address.
const BELL: u64 = 1;
/// `IORING_ENTER_GETEVENTS`: complete what can be.
const GET_EVENTS: u32 = 1;
/// `IORING_ENTER_EXT_ARG`: the argument is [`WaitArg`].
const EXT_ARG: u32 = 8;

/// `IORING_RECVSEND_POLL_FIRST`.
const RECEIVE_POLL_FIRST: u16 = 1;

/// `struct io_uring_getevents_arg`.
#[repr(C)]
struct WaitArg {
    sigmask: u64,
    sigmask_bytes: u32,
    min_wait_us: u32,
    timeout: *const Timespec,
}

/// The ring of one kthread.
pub(super) struct Ring {
    ring: IoUring,
    /// Who holds it alone uses the queues. In it: uthreads whose completion was taken on the way to something else.
    queues: Mutex<Vec<UthreadRef>>,
    /// Operations whose uthread was not handed out by `poll`.
    in_flight: AtomicUsize,
    /// When completions were first seen to wait, or 0.
    since: AtomicU64,
    /// Of Linux 5.19 or later.
    is_recent: bool,
    bell: Arc<OwnedFd>,
    /// Whether the ring listens to the bell.
    listens: AtomicBool,
    /// The bell rang, and nobody who waited was told.
    rung: AtomicBool,
}

impl std::fmt::Debug for Ring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ring").field("in_flight", &self.in_flight).finish_non_exhaustive()
    }
}

impl Ring {
    /// A ring that this bell wakes.
    ///
    /// # Errors
    /// When the kernel has none, forbids it, or has an older one than Linux 5.11.
    pub(super) fn new(bell: Arc<OwnedFd>) -> io::Result<Ring> {
        let mut builder = IoUring::builder();
        builder.setup_cqsize(COMPLETIONS).dontfork().setup_submit_all();
        builder.setup_coop_taskrun().setup_taskrun_flag();
        let (ring, is_recent) = match builder.build(ENTRIES) {
            Ok(ring) => (ring, true),
            // Before Linux 5.19: each completion interrupts who submitted.
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                (IoUring::builder().setup_cqsize(COMPLETIONS).dontfork().build(ENTRIES)?, false)
            }
            Err(error) => return Err(error),
        };
        let params = ring.params();
        let known = params.is_feature_nodrop()
            && params.is_feature_submit_stable()
            && params.is_feature_rw_cur_pos()
            && params.is_feature_fast_poll()
            && params.is_feature_ext_arg();
        if !known {
            return Err(io::ErrorKind::Unsupported.into());
        }
        Ok(Ring {
            ring,
            queues: Mutex::new(Vec::new()),
            in_flight: AtomicUsize::new(0),
            since: AtomicU64::new(0),
            is_recent,
            bell,
            listens: AtomicBool::new(false),
            rung: AtomicBool::new(false),
        })
    }

    /// The entry that receives what is not there yet.
    pub(super) fn receive_entry(&self, fd: RawFd, buffer: *mut u8, length: u32) -> Entry {
        // With it the kernel does not try first, and says whether there was more.
        let priority = if self.is_recent { RECEIVE_POLL_FIRST } else { 0 };
        opcode::Recv::new(Fd(fd), buffer, length).ioprio(priority).build()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.in_flight.load(Ordering::Relaxed) == 0
    }

    /// Begins an operation, which makes the uthread ready when it is completed, at the latest at the deadline.
    ///
    /// # Safety
    /// What `entry` points to stays as it is until the operation is completed.
    pub(super) unsafe fn start(
        &self,
        op: &Op,
        entry: Entry,
        deadline: Option<Nanos>,
        waiter: UthreadRef,
    ) {
        let entry = entry.user_data(std::ptr::from_ref(op).expose_provenance() as u64);
        let mut done = lock(&self.queues);
        op.begin(waiter, deadline);
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        let room = match deadline {
            None => self.push(&mut done, &[entry]),
            Some(_) => {
                let timeout = opcode::LinkTimeout::new(op.deadline()).flags(TimeoutFlags::ABS);
                let timeout = timeout.build().user_data(IGNORED);
                self.push(&mut done, &[entry.flags(Flags::IO_LINK), timeout])
            }
        };
        if !room {
            // SAFETY: it began above, under the lock that is held, and the kernel does not know it.
            done.extend(unsafe { Op::complete(op, -libc::ENOMEM, false) });
        }
    }

    /// Moves what was completed to `ready`. Its own kthread also completes what the kernel left to it. Skipped while
    /// another thread does the same.
    pub(super) fn poll(&self, own: bool, ready: &mut Vec<UthreadRef>) {
        let mut done = match self.queues.try_lock() {
            Ok(done) => done,
            Err(TryLockError::Poisoned(done)) => done.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        // SAFETY: under the lock of the queues.
        let queue = unsafe { self.ring.submission_shared() };
        let submit = !queue.is_empty();
        let complete = (own && queue.taskrun()) || queue.cq_overflow();
        drop(queue);
        if submit || complete {
            // What the kernel refuses now it is asked again at the next poll.
            let _ = self.submit(&mut done, if complete { GET_EVENTS } else { 0 });
        }
        self.reap(&mut done);
        if !own && self.rung.load(Ordering::Relaxed) {
            // Taken from a kthread that may be past its last look before it sleeps.
            super::ring(&self.bell);
        }
        self.since.store(0, Ordering::Relaxed);
        self.in_flight.fetch_sub(done.len(), Ordering::Relaxed);
        ready.append(&mut done);
    }

    /// Waits for a completion or the bell. Only the kthread of the ring calls it.
    pub(super) fn wait(&self, until: Option<Nanos>) {
        let mut done = lock(&self.queues);
        if !self.listens.load(Ordering::Relaxed) {
            // A completion for each ring of the bell, whose counter is never read.
            let listen = opcode::PollAdd::new(Fd(self.bell.as_raw_fd()), libc::POLLIN as u32);
            let armed = self.push(&mut done, &[listen.multi(true).build().user_data(BELL)]);
            self.listens.store(armed, Ordering::Relaxed);
        }
        let submitted = self.submit(&mut done, 0);
        let rung = self.rung.swap(false, Ordering::Relaxed);
        if submitted.is_err() || rung || !done.is_empty() {
            return;
        }
        drop(done);
        let timeout = until.map(|until| timespec(until - now()));
        let arg = WaitArg {
            sigmask: 0,
            sigmask_bytes: 0,
            min_wait_us: 0,
            timeout: timeout.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
        };
        // SAFETY: the argument is of the kind that the flag names and outlives the call. Nothing is submitted: that needs the lock.
        // A time-out, a signal and a completion mean the same to the caller, who polls.
        let _ = unsafe { self.ring.submitter().enter(0, 1, GET_EVENTS | EXT_ARG, Some(&arg)) };
        self.reap(&mut lock(&self.queues));
        self.rung.store(false, Ordering::Relaxed);
    }

    /// Since when completions wait to be polled, as far as it was looked at.
    pub(super) fn oldest(&self, at: Nanos) -> Option<Nanos> {
        let done = self.queues.try_lock().ok()?;
        // SAFETY: under the lock of the queues.
        let waits = !done.is_empty() || unsafe { !self.ring.completion_shared().is_empty() };
        let since = match (waits, self.since.load(Ordering::Relaxed)) {
            (false, _) => 0,
            (true, 0) => at.0,
            (true, since) => since,
        };
        self.since.store(since, Ordering::Relaxed);
        waits.then_some(Nanos(since))
    }

    /// Appends entries that belong together. `false`: there is no room, and the kernel takes none.
    fn push(&self, done: &mut MutexGuard<'_, Vec<UthreadRef>>, entries: &[Entry]) -> bool {
        for attempt in 0..2 {
            // SAFETY: under the lock of the queues.
            let mut queue = unsafe { self.ring.submission_shared() };
            // SAFETY: `start` and `wait` promise that what the entries point to stays.
            let pushed = unsafe { queue.push_multiple(entries) }.is_ok();
            let waiting = queue.len();
            drop(queue);
            if pushed && waiting <= BATCH {
                return true;
            }
            let submitted = self.submit(done, 0);
            if pushed || (attempt > 0 && submitted.is_err()) {
                return pushed;
            }
        }
        false
    }

    /// Hands the submission queue to the kernel.
    fn submit(&self, done: &mut MutexGuard<'_, Vec<UthreadRef>>, mut flags: u32) -> io::Result<()> {
        loop {
            // SAFETY: under the lock of the queues.
            let waiting = unsafe { self.ring.submission_shared() }.len() as u32;
            if waiting == 0 && flags == 0 {
                return Ok(());
            }
            // SAFETY: as many entries as there are, and no argument.
            match unsafe { self.ring.submitter().enter::<()>(waiting, 0, flags, None) } {
                Ok(_) => flags = 0,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                // Too many completions wait to be taken.
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
                    if self.reap(done) == 0 {
                        return Err(error);
                    }
                    flags = GET_EVENTS;
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Takes the completions. Returns how many there were.
    fn reap(&self, done: &mut MutexGuard<'_, Vec<UthreadRef>>) -> usize {
        // SAFETY: under the lock of the queues.
        let completions = unsafe { self.ring.completion_shared() };
        let mut taken = 0;
        for completion in completions {
            taken += 1;
            match completion.user_data() {
                IGNORED => {}
                BELL => {
                    self.rung.store(true, Ordering::Relaxed);
                    if !io_uring::cqueue::more(completion.flags()) {
                        self.listens.store(false, Ordering::Relaxed);
                    }
                }
                op => {
                    let op = std::ptr::with_exposed_provenance(op as usize);
                    let more = io_uring::cqueue::sock_nonempty(completion.flags());
                    // SAFETY: the address of an operation that `start` began; each is completed once, here, under the lock.
                    done.extend(unsafe { Op::complete(op, completion.result(), more) });
                }
            }
        }
        taken
    }
}

/// The entry that waits until the descriptor can be read or written, or is at its end.
pub(super) fn poll_entry(fd: RawFd, events: i16) -> Entry {
    opcode::PollAdd::new(Fd(fd), u32::from(events as u16)).build()
}

/// A time as the kernel takes it.
pub(super) fn timespec(at: Nanos) -> Timespec {
    Timespec::new().sec(at.0 / 1_000_000_000).nsec((at.0 % 1_000_000_000) as u32)
}
