//! Looking after kthreads that do not get to run, by those that do.
//!
//! A kthread whose core was revoked leaves behind what is ready, timers, I/O. Who has nothing to do finds that
//! ([`super::search`]); but where all that have a core have work without end, nobody searches, and the kthread may be
//! without a core for as long as the daemon has none to spare. So a kthread that has work looks after one other, the next
//! in turn, now and then. (Caladan's watchdog steals for the same reason, `runtime/sched.c`.)

use quell_model::Nanos;

use super::local::Local;
use super::run::LOOK_AFTER;

/// How much longer than here the oldest has to wait on a kthread that has a core, until some is taken from it: it may run
/// one uthread for long, or batch work beneath others whose core the kernel gave to them.
const FORGOTTEN: Nanos = Nanos::from_millis(1);

impl Local {
    /// Looks after the next kthread in turn, if the last was not just now.
    #[cold]
    pub(super) fn look_after_others(&self, now: Nanos) {
        let kthreads = &self.shared.kthreads;
        let (last, turn) = self.tended.get();
        if kthreads.len() == 1 || now - last < LOOK_AFTER {
            return;
        }
        // All but this one, by turns.
        let victim = &kthreads[(self.at + 1 + turn % (kthreads.len() - 1)) % kthreads.len()];
        self.tended.set((now, turn.wrapping_add(1)));
        let work = victim.lines().work.read(now);
        let has_core = victim.has_core(&work);
        let here = self.kthread().queue.oldest().0.map_or(Nanos::ZERO, |since| now - since);
        if !has_core || work.ready_age > here + FORGOTTEN {
            self.take_half(victim);
        }
        self.serve(victim, has_core, now);
        if !has_core && work.uthread_start.is_some() {
            // It was moved from its core in the middle of a uthread, and nobody else can go on with that. If it waits for
            // this core, at a real-time priority like this one's, it would never get to its next safe point.
            rustix::thread::sched_yield();
        }
    }
}
