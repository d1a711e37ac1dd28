//! The count of sessions, and how a kthread that runs learns that there is another one.
//!
//! Who changes the session counts, and then revokes the grant in the lines of each kthread. A kthread that changes over
//! takes up other lines, or clears the grant in those that it keeps. What must not happen is that the revoke goes to lines
//! that the kthread has just left, or is cleared by it, and the kthread believes that it has seen the last session. So
//! both write, pass a fence, and read what the other wrote: the kthread finds another count, or its lines were found.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::word::Word;

#[derive(Debug)]
pub(super) struct Epoch<W = AtomicU64>(W);

impl<W: Word> Epoch<W> {
    pub(super) fn new() -> Epoch<W> {
        Epoch(W::new(1))
    }

    /// The session was changed. `alert` tells the kthreads by the lines that each has by now.
    pub(super) fn changed(&self, alert: impl FnOnce()) {
        // Release: pairs with the acquire in `follow`; who sees the count sees the session.
        self.0.add(1, Ordering::Release);
        W::fence();
        alert();
    }

    /// Has a kthread change over: `settle` is called with the count until that did not change meanwhile.
    pub(super) fn follow<T>(&self, mut settle: impl FnMut(u64) -> T) -> T {
        let mut epoch = self.0.get(Ordering::Acquire);
        loop {
            let settled = settle(epoch);
            W::fence();
            let now = self.0.get(Ordering::Acquire);
            if now == epoch {
                return settled;
            }
            epoch = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic::AtomicU64;

    use super::*;

    struct Scene {
        epoch: Epoch<AtomicU64>,
        /// The lines that the kthread has: one of two, by count.
        lines: AtomicU64,
        revoked: [AtomicU64; 2],
    }

    impl Scene {
        fn change(&self) {
            self.epoch.changed(|| {
                let lines = self.lines.get(Ordering::Acquire);
                self.revoked[lines as usize % 2].put(1, Ordering::Release);
            });
        }

        /// The session that the kthread has seen last.
        fn follow(&self, keeps_lines: bool) -> u64 {
            self.epoch.follow(|epoch| {
                match keeps_lines {
                    true => self.revoked[0].put(0, Ordering::Relaxed),
                    false => self.lines.put(epoch, Ordering::Release),
                }
                epoch
            })
        }
    }

    fn no_change_is_missed(keeps_lines: bool) {
        loom::model(move || {
            let scene = Arc::new(Scene {
                epoch: Epoch::new(),
                lines: AtomicU64::new(0),
                revoked: [AtomicU64::new(0), AtomicU64::new(0)],
            });
            let changer = {
                let scene = Arc::clone(&scene);
                loom::thread::spawn(move || scene.change())
            };
            let seen = scene.follow(keeps_lines);
            changer.join().unwrap();
            let lines = if keeps_lines { 0 } else { seen };
            let alerted = scene.revoked[lines as usize % 2].get(Ordering::Acquire) == 1;
            assert!(seen == 2 || alerted, "it saw session {seen} and runs on");
        });
    }

    #[test]
    fn in_every_interleaving_a_kthread_that_takes_up_other_lines_misses_no_session() {
        no_change_is_missed(false);
    }

    #[test]
    fn in_every_interleaving_a_kthread_that_goes_alone_with_its_lines_misses_no_session() {
        no_change_is_missed(true);
    }
}
