//! Which parts of a call are begun, and whether all are done.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::meet::{Word, acquire};

/// Each part is claimed once, by a worker or by the calling thread; one that is not claimed is touched by neither.
#[derive(Debug)]
pub(super) struct Progress<W = AtomicU64> {
    /// 1 for a part that is claimed.
    claimed: Box<[W]>,
    /// Parts that are not done.
    left: W,
}

impl<W: Word> Progress<W> {
    pub fn new(parts: usize) -> Progress<W> {
        let claimed = (0..parts).map(|_| W::of(0)).collect();
        Progress { claimed, left: W::of(parts as u64) }
    }

    /// Whether the part is the caller's from now on.
    pub fn claim(&self, part: usize) -> bool {
        // Relaxed: it only has to be one thread's. What the part is was published with the job, by the lock of a queue.
        self.claimed[part].swap_with(1, Ordering::Relaxed) == 0
    }

    /// A part that was claimed is done. Whether all are: then the calling thread has to be woken.
    pub fn done(&self) -> bool {
        // Release: publishes the bytes of the part; pairs with `is_done`. Acquire: so do those of the others, by this thread.
        let is_last = self.left.subtract(1, Ordering::AcqRel) == 1;
        // Pairs with that in `is_done`: a thread that is woken for something else at the same time sees either the wake-up or
        // that all is done.
        W::fence(Ordering::SeqCst);
        is_last
    }

    /// Whether all parts are done, and their bytes seen. Asked after the calling thread's wake-ups were reset.
    pub fn is_done(&self) -> bool {
        // Pairs with that in `done`.
        W::fence(Ordering::SeqCst);
        acquire(&self.left) == 0
    }
}

#[cfg(test)]
mod tests {
    use loom::cell::UnsafeCell;
    use loom::sync::atomic::AtomicU64;
    use loom::sync::{Arc, Condvar, Mutex};
    use loom::thread;

    use super::*;
    use crate::meet::WakeState;

    const PARTS: usize = 2;

    /// A call of two parts, each a cell, and the thread that has made it.
    struct Scene {
        progress: Progress<AtomicU64>,
        parts: [UnsafeCell<u64>; PARTS],
        caller: WakeState<AtomicU64>,
        event: (Mutex<bool>, Condvar),
        has_ended: std::sync::atomic::AtomicBool,
    }

    impl Scene {
        fn new() -> Arc<Scene> {
            Arc::new(Scene {
                progress: Progress::new(PARTS),
                parts: std::array::from_fn(|_| UnsafeCell::new(0)),
                caller: WakeState::new(),
                event: (Mutex::new(false), Condvar::new()),
                has_ended: std::sync::atomic::AtomicBool::new(false),
            })
        }

        fn copy(&self, part: usize) -> bool {
            if !self.progress.claim(part) {
                return false;
            }
            assert!(!self.has_ended.load(Ordering::Relaxed), "memory of a call that has ended");
            // SAFETY: what the model checks: loom fails where two threads use a part at once.
            self.parts[part].with_mut(|it| unsafe { *it += 1 });
            self.progress.done()
        }

        fn wake(&self) {
            if self.caller.wake() {
                *self.event.0.lock().unwrap() = true;
                self.event.1.notify_one();
            }
        }

        /// As the library waits: loom fails where nothing ends the sleep.
        fn wait(&self) {
            loop {
                self.caller.reset();
                if self.progress.is_done() {
                    break;
                }
                if self.caller.begin_sleep() {
                    let mut signalled = self.event.0.lock().unwrap();
                    while !*signalled {
                        signalled = self.event.1.wait(signalled).unwrap();
                    }
                    *signalled = false;
                }
                self.caller.end_sleep();
            }
            self.has_ended.store(true, Ordering::Relaxed);
            // SAFETY: as above: a worker that still wrote would fail the model.
            self.parts.iter().for_each(|it| it.with(|it| assert_eq!(unsafe { *it }, 1)));
        }
    }

    #[test]
    fn loom_call_returns_after_its_parts_and_once_each() {
        let mut model = loom::model::Builder::new();
        model.preemption_bound = Some(2);
        model.check(|| {
            let scene = Scene::new();
            let worker = {
                let scene = Arc::clone(&scene);
                thread::spawn(move || {
                    for part in 0..PARTS {
                        if scene.copy(part) {
                            scene.wake();
                        }
                    }
                })
            };
            let other = {
                let scene = Arc::clone(&scene);
                // A socket of the same thread wakes it meanwhile, for nothing.
                thread::spawn(move || scene.wake())
            };
            scene.copy(1);
            scene.wait();
            worker.join().unwrap();
            other.join().unwrap();
        });
    }
}
