//! The asynchronous quantum: a timer of each kthread interrupts the uthread that runs, wherever it is.
//!
//! `docs/reference/runtime-preemption.md` has the rule and why it is sound. All of the signal handling is here.

use std::io;
use std::mem::MaybeUninit;
use std::ptr;
use std::sync::OnceLock;

use quell_model::Nanos;

use crate::clock;
use crate::kthread::local::{self, Local};

/// Bytes of the stack that the handler and the switch take.
const STACK_NEEDED: usize = 2 << 10;

/// The signal: a real-time one that neither glibc nor Rust's std uses.
pub(crate) fn signal() -> i32 {
    libc::SIGRTMIN() + 7
}

/// Sets the handler up, once for the process.
///
/// # Errors
/// When the kernel refuses it.
pub(crate) fn install() -> io::Result<()> {
    static INSTALLED: OnceLock<i32> = OnceLock::new();
    let result = *INSTALLED.get_or_init(|| {
        // SAFETY: all zero is a valid `sigaction`, with an empty mask; the handler touches only what a handler may.
        unsafe {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed().assume_init();
            action.sa_sigaction = on_tick as *const () as usize;
            // Deferred within the handler, else ticks that come faster than it ends would pile up on the stack.
            action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
            libc::sigaction(signal(), &raw const action, ptr::null_mut())
        }
    });
    if result == 0 { Ok(()) } else { Err(io::Error::other("sigaction failed")) }
}

/// The timer of one kthread.
#[derive(Debug)]
pub(crate) struct Ticker {
    timer: libc::timer_t,
    period: Nanos,
}

impl Ticker {
    /// A stopped timer for the calling thread.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub(crate) fn new(period: Nanos) -> io::Result<Ticker> {
        let mut timer = ptr::null_mut();
        // SAFETY: all zero is a valid `sigevent`; the kernel writes the timer.
        let made = unsafe {
            let mut event = MaybeUninit::<libc::sigevent>::zeroed().assume_init();
            event.sigev_notify = libc::SIGEV_THREAD_ID;
            event.sigev_signo = signal();
            event.sigev_notify_thread_id = rustix::thread::gettid().as_raw_nonzero().get();
            libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer)
        };
        if made != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(Ticker { timer, period })
    }

    fn set(&self, period: Nanos) {
        let period = libc::timespec {
            tv_sec: (period.0 / 1_000_000_000) as i64,
            tv_nsec: (period.0 % 1_000_000_000) as i64,
        };
        let both = libc::itimerspec { it_interval: period, it_value: period };
        // SAFETY: the timer is this one's own. It fails for no valid period.
        unsafe { libc::timer_settime(self.timer, 0, &raw const both, ptr::null_mut()) };
    }

    /// Ticks from now on.
    pub(crate) fn start(&self) {
        self.set(self.period);
    }

    /// Ticks no more: its kthread sleeps.
    pub(crate) fn stop(&self) {
        self.set(Nanos::ZERO);
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        // SAFETY: the timer is this one's own.
        unsafe { libc::timer_delete(self.timer) };
    }
}

/// The control words of floating point, as a thread of the application has them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FloatControl {
    #[cfg(target_arch = "x86_64")]
    mxcsr: u32,
    #[cfg(target_arch = "x86_64")]
    x87: u16,
}

#[cfg(target_arch = "x86_64")]
impl FloatControl {
    /// Those of the calling thread.
    pub(crate) fn current() -> FloatControl {
        let mut control = FloatControl { mxcsr: 0, x87: 0 };
        // SAFETY: stores the two words where they belong.
        unsafe {
            core::arch::asm!(
                "stmxcsr [{mxcsr}]",
                "fnstcw [{x87}]",
                mxcsr = in(reg) &raw mut control.mxcsr,
                x87 = in(reg) &raw mut control.x87,
                options(nostack, preserves_flags),
            );
        }
        control
    }

    /// Makes them those of the calling thread.
    fn set(&self) {
        // SAFETY: words that `current` read.
        unsafe {
            core::arch::asm!(
                "ldmxcsr [{mxcsr}]",
                "fldcw [{x87}]",
                mxcsr = in(reg) &raw const self.mxcsr,
                x87 = in(reg) &raw const self.x87,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
impl FloatControl {
    pub(crate) fn current() -> FloatControl {
        FloatControl {}
    }

    fn set(&self) {}
}

extern "C" fn on_tick(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: a thread has one, and `errno` is an integer.
    let errno = unsafe { *libc::__errno_location() };
    let preempt = Local::with(|local| local.is_some_and(|local| may_preempt(local, context)));
    if preempt {
        // Here the kernel has reset the floating-point state, and keeps that of the uthread in the frame below.
        Local::with(|local| local.map(|local| local.float.set()));
        local::leave_preempted(unblock);
    }
    // On the same thread as before. The kernel restores the registers.
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

/// Lets the next tick in: the handler leaves by a switch, and the next uthread must be interruptible, too.
fn unblock() {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: changes this thread's mask to what it was before the handler.
    unsafe {
        libc::sigaddset(set.as_mut_ptr(), signal());
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), ptr::null_mut());
    }
}

/// Whether the uthread that was interrupted may leave its stack here, and somebody gains by it.
fn may_preempt(local: &Local, context: *mut libc::c_void) -> bool {
    let Some(task) = local.task() else { return false };
    if local.preempt.get() != 0 || std::thread::panicking() {
        return false;
    }
    // It must be on its own stack, not on that of another handler, and there must be room.
    let here = (&raw const context).addr();
    let bottom = task.bottom.get() + STACK_NEEDED;
    if here < bottom || here > task.bottom.get() + task.stack_bytes.get() {
        return false;
    }
    // SAFETY: the kernel passes the context that it interrupted.
    let mask = unsafe { &(*context.cast::<libc::ucontext_t>()).uc_sigmask };
    // Within a handler of the application, or a section that blocks signals: the mask belongs to the thread.
    if mask_of(mask) != local.signals {
        return false;
    }
    // The daemon sends the same signal with a revoke: the others are to be stolen, and this one stays with its kthread.
    if local.kthread().is_revoked() {
        return true;
    }
    let Some(period) = local.shared().config.preempt_every else { return false };
    let ran = clock::now() - local.started.get();
    ran.0 >= period.0 / 2 && local.others_wait_now()
}

/// The first word of a set of signals: all that Linux has.
fn mask_of(set: &libc::sigset_t) -> u64 {
    // SAFETY: a set of signals begins with 64 bits, one for each signal, in the kernel's and in glibc's layout.
    unsafe { ptr::from_ref(set).cast::<u64>().read() }
}

/// The signals that the calling thread blocks.
pub(crate) fn blocked_signals() -> u64 {
    let mut set = MaybeUninit::<libc::sigset_t>::zeroed();
    // SAFETY: reads this thread's mask.
    unsafe {
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), set.as_mut_ptr());
        mask_of(&set.assume_init())
    }
}
