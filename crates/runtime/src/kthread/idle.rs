//! Who sleeps, who looks for work, and who is woken for it.
//!
//! A kthread without work first *searches*, then sleeps. Who makes a uthread ready wakes a sleeper only if nobody searches:
//! a searcher will find it. What must not happen is that a uthread is ready, a kthread sleeps, and nobody is on the way:
//!
//! - who makes one ready stores it in a queue, then (fence) looks at searchers and sleepers;
//! - who goes to sleep enters the sleepers, leaves the searchers, then (fence) looks at all queues once more.
//!
//! With a fence on both sides, one of them sees the other. A searcher that finds work and was the last one calls
//! [`Idle::found`]: there may be more work, and those who made it relied on the searcher.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::lock;
use crate::word::Word;

#[derive(Debug)]
pub(crate) struct Idle<W = AtomicU64> {
    searching: W,
    /// How many there are in `sleepers`, or about to be: it may be off by those that come and go, and wrap.
    sleeping: W,
    /// The numbers of the kthreads that sleep; the last to fall asleep is woken first: its cache is the warmest.
    /// Held for a few instructions and for no other word, so a mutex of the system will do.
    sleepers: Mutex<Vec<usize>>,
}

impl<W: Word> Idle<W> {
    pub(crate) fn new() -> Idle<W> {
        Idle { searching: W::new(0), sleeping: W::new(0), sleepers: Mutex::new(Vec::new()) }
    }

    /// A uthread was made ready: the kthread to wake, which counts as searching from now on.
    #[inline]
    pub(crate) fn to_wake(&self) -> Option<usize> {
        // Between the store in the queue and these loads; pairs with the one in `sleep`.
        W::fence();
        if self.sleeping.get(Ordering::Relaxed) == 0 || self.searching.get(Ordering::Relaxed) != 0 {
            return None;
        }
        self.pick()
    }

    #[cold]
    fn pick(&self) -> Option<usize> {
        // Two may come here at once, and wake one each: the second searches in vain.
        let at = lock(&self.sleepers).pop()?;
        self.sleeping.sub(1, Ordering::Relaxed);
        self.searching.add(1, Ordering::SeqCst);
        Some(at)
    }

    /// This one wakes whatever searches: for work that only one can do, or at the end. Whether it slept.
    pub(crate) fn wake_this(&self, at: usize) -> bool {
        let slept = self.remove(at);
        if slept {
            self.searching.add(1, Ordering::SeqCst);
        }
        slept
    }

    /// The calling kthread begins to search.
    pub(crate) fn search(&self) {
        self.searching.add(1, Ordering::SeqCst);
    }

    /// The calling kthread, which searched, has found work: whether it was the last that searched, so that somebody else
    /// has to look for more.
    pub(crate) fn found(&self) -> bool {
        self.searching.sub(1, Ordering::SeqCst) == 1
    }

    /// The calling kthread, which searched, goes to sleep. It must look at all queues after this and before it sleeps.
    pub(crate) fn sleep(&self, at: usize) {
        lock(&self.sleepers).push(at);
        self.sleeping.add(1, Ordering::Relaxed);
        self.searching.sub(1, Ordering::SeqCst);
        // Between the stores above and the loads of the queues; pairs with the one in `to_wake`.
        W::fence();
    }

    /// The calling kthread is awake, and searches from now on.
    pub(crate) fn awake(&self, at: usize) {
        if self.remove(at) {
            self.searching.add(1, Ordering::SeqCst);
        }
        // Else who took it from the sleepers has counted it.
    }

    fn remove(&self, at: usize) -> bool {
        let mut sleepers = lock(&self.sleepers);
        let Some(place) = sleepers.iter().position(|&sleeper| sleeper == at) else { return false };
        sleepers.remove(place);
        drop(sleepers);
        self.sleeping.sub(1, Ordering::Relaxed);
        true
    }
}

#[cfg(test)]
mod tests {
    use loom::sync::atomic as model;
    use loom::sync::{Arc, Notify};

    use super::*;

    struct Scene {
        idle: Idle<model::AtomicU64>,
        queue: model::AtomicU64,
        bells: [Notify; 2],
    }

    impl Scene {
        fn push(&self) {
            self.queue.add(1, Ordering::Release);
            self.notify();
        }

        fn notify(&self) {
            if let Some(at) = self.idle.to_wake() {
                self.bells[at].notify();
            }
        }

        fn take(&self) -> bool {
            let mut seen = self.queue.get(Ordering::Acquire);
            while seen > 0 {
                match self.queue.exchange(seen, seen - 1, Ordering::AcqRel) {
                    Ok(_) => return true,
                    Err(now) => seen = now,
                }
            }
            false
        }

        /// Searches, sleeps, wakes, until it has one.
        fn work(&self, at: usize) {
            self.idle.search();
            loop {
                if self.take() {
                    if self.idle.found() {
                        self.notify();
                    }
                    return;
                }
                self.idle.sleep(at);
                if self.queue.get(Ordering::Acquire) == 0 {
                    // loom fails a model in which this waits for ever.
                    self.bells[at].wait();
                }
                self.idle.awake(at);
            }
        }
    }

    fn scene() -> Arc<Scene> {
        Arc::new(Scene {
            idle: Idle::new(),
            queue: model::AtomicU64::new(0),
            bells: [Notify::new(), Notify::new()],
        })
    }

    /// With so many preemptions in a run at most: complete, the models take hours.
    fn model(preemptions: usize, check: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(preemptions);
        builder.check(check);
    }

    #[test]
    fn a_kthread_that_falls_asleep_hears_of_work_that_comes_meanwhile() {
        model(4, || {
            let scene = scene();
            let worker = {
                let scene = Arc::clone(&scene);
                loom::thread::spawn(move || scene.work(0))
            };
            scene.push();
            worker.join().unwrap();
        });
    }

    #[test]
    fn two_pieces_of_work_wake_two_kthreads_though_each_wakes_one_at_a_time() {
        model(2, || {
            let scene = scene();
            let workers: Vec<_> = (0..2)
                .map(|at| {
                    let scene = Arc::clone(&scene);
                    loom::thread::spawn(move || scene.work(at))
                })
                .collect();
            scene.push();
            scene.push();
            for worker in workers {
                worker.join().unwrap();
            }
        });
    }
}
