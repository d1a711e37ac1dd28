//! The grant of a core to a kernel thread, and how it is handed over.
//!
//! A kernel thread runs while the last grant that it was given is not revoked. It may sleep without giving its core
//! back: a grant holds until it is revoked, so that a kernel thread that wakes up on its core needs nobody. Only one
//! whose grant was revoked has to ask, and to wait for the daemon's bell.
//!
//! Two things must not happen. A grant must not be lost: the daemon gives one while the kernel thread is about to
//! wait, each looks too early, and neither rings nor runs. That is the pattern of two flags (Dekker's): each side
//! writes its own word, then a full fence, then reads the other's. And a kernel thread must not run on under a grant
//! that was revoked: it looks at its next step, and one that does not is moved by the daemon, which needs no word of it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

use quell_model::{CoreId, Nanos};

/// Where the count of grants begins in a grant's number.
const CORE_BITS: u32 = 16;
const CORE_MASK: u64 = (1 << CORE_BITS) - 1;

/// The core that a kernel thread may use. Written by the daemon.
#[repr(C, align(64))]
#[derive(Debug, Default)]
pub struct Grant<W = AtomicU64> {
    /// The number of the last grant: how many there were, and in the low 16 bits its core plus one. One word, so that
    /// number and core are never those of two grants; numbers only grow.
    generation: W,
    spare: W,
    /// The grant that has ended: it parks at its next step if this is its own.
    revoked: W,
    /// When the uthread began that has run long enough.
    quantum: W,
}

/// A grant that was just given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewGrant {
    /// Its number.
    pub generation: u64,
    /// The kernel thread waits for it: its bell has to be rung.
    pub awaited: bool,
}

/// A 64-bit word of a grant: std's, or loom's in the model.
pub trait Word {
    #[doc(hidden)]
    fn get(&self, order: Ordering) -> u64;
    #[doc(hidden)]
    fn set(&self, value: u64, order: Ordering);
}

/// The word with the state of a kernel thread.
pub(super) trait StateWord {
    fn relaxed(&self) -> u32;
    fn release(&self, value: u32);
    fn fence();
}

impl Word for AtomicU64 {
    #[inline]
    fn get(&self, order: Ordering) -> u64 {
        self.load(order)
    }

    #[inline]
    fn set(&self, value: u64, order: Ordering) {
        self.store(value, order);
    }
}

impl StateWord for AtomicU32 {
    fn relaxed(&self) -> u32 {
        self.load(Ordering::Relaxed)
    }

    fn release(&self, value: u32) {
        self.store(value, Ordering::Release);
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// The kernel thread's side: says that it waits, then looks whether it still has to. The fence pairs with that of
/// [`offer`].
pub(super) fn ask<S: StateWord, W: Word>(
    state: &S,
    asking: u32,
    grant: &Grant<W>,
) -> Option<(u64, CoreId)> {
    state.release(asking);
    S::fence();
    grant.valid()
}

/// The daemon's side: gives, then looks whether somebody waits. The fence pairs with that of [`ask`].
pub(super) fn offer<S: StateWord, W: Word>(
    state: &S,
    asking: u32,
    grant: &Grant<W>,
    core: CoreId,
) -> NewGrant {
    let generation = grant.give(core);
    S::fence();
    NewGrant { generation, awaited: state.relaxed() == asking }
}

impl<W: Word> Grant<W> {
    /// Grants this core; returns the grant's number. The daemon alone calls it, through
    /// [`KthreadLoad::offer`](super::KthreadLoad::offer) where somebody may wait.
    pub fn give(&self, core: CoreId) -> u64 {
        // Wraps: the runtime may have written anything there, and fools itself alone.
        let count = (self.generation.get(Ordering::Relaxed) >> CORE_BITS).wrapping_add(1);
        let generation = count << CORE_BITS | (u64::from(core.0) + 1) & CORE_MASK;
        // Release: pairs with `current`; no other word depends on it.
        self.generation.set(generation, Ordering::Release);
        generation
    }

    /// Ends the grant of this number. The daemon alone calls it.
    pub fn revoke(&self, generation: u64) {
        // Release: pairs with `is_revoked`; no other word depends on it.
        self.revoked.set(generation, Ordering::Release);
    }

    /// Asks the uthread that began to run then to yield, if it still runs. The daemon alone calls it.
    pub fn end_quantum(&self, began: Nanos) {
        // Relaxed: a hint that stands by itself.
        self.quantum.set(began.0, Ordering::Relaxed);
    }

    /// The last grant and its core; `None` before the first, or if the word makes no sense.
    pub fn current(&self) -> Option<(u64, CoreId)> {
        // Acquire: pairs with `give`.
        let generation = self.generation.get(Ordering::Acquire);
        let core = (generation & CORE_MASK).checked_sub(1)?;
        Some((generation, CoreId(u16::try_from(core).ok()?)))
    }

    /// The last grant and its core, if it holds.
    pub fn valid(&self) -> Option<(u64, CoreId)> {
        self.current().filter(|(generation, _)| !self.is_revoked(*generation))
    }

    /// Whether the grant of this number, or a later one, was revoked.
    #[inline]
    pub fn is_revoked(&self, generation: u64) -> bool {
        self.revoked.get(Ordering::Acquire) >= generation
    }

    /// Whether the uthread that began to run then, as [`KthreadLoad::set_uthread`](super::KthreadLoad::set_uthread) was told, is to
    /// yield.
    #[inline]
    pub fn is_quantum_over(&self, began: Nanos) -> bool {
        self.quantum.get(Ordering::Relaxed) == began.0.max(1)
    }
}

#[cfg(test)]
mod tests {
    use loom::sync::atomic as model;
    use loom::sync::{Arc, Condvar, Mutex};

    use super::*;

    const RUNNING: u32 = 1;
    const ASKING: u32 = 3;

    impl Word for model::AtomicU64 {
        fn get(&self, order: Ordering) -> u64 {
            self.load(order)
        }

        fn set(&self, value: u64, order: Ordering) {
            self.store(value, order);
        }
    }

    impl StateWord for model::AtomicU32 {
        fn relaxed(&self) -> u32 {
            self.load(Ordering::Relaxed)
        }

        fn release(&self, value: u32) {
            self.store(value, Ordering::Release);
        }

        fn fence() {
            model::fence(Ordering::SeqCst);
        }
    }

    /// One kernel thread, the core it runs on, and its bell, which remembers rings as an eventfd does.
    struct Scene {
        state: model::AtomicU32,
        grant: Grant<model::AtomicU64>,
        rings: Mutex<u32>,
        rung: Condvar,
    }

    impl Scene {
        fn new() -> Arc<Scene> {
            let word = || model::AtomicU64::new(0);
            let grant =
                Grant { generation: word(), spare: word(), revoked: word(), quantum: word() };
            Arc::new(Scene {
                state: model::AtomicU32::new(RUNNING),
                grant,
                rings: Mutex::new(0),
                rung: Condvar::new(),
            })
        }

        fn give(&self, core: u16) {
            if offer(&self.state, ASKING, &self.grant, CoreId(core)).awaited {
                *self.rings.lock().unwrap() += 1;
                self.rung.notify_one();
            }
        }

        /// Waits for a grant after the one of this number; loom fails where nobody ever rings.
        fn next(&self) -> (u64, CoreId) {
            loop {
                if let Some(granted) = ask(&self.state, ASKING, &self.grant) {
                    self.state.release(RUNNING);
                    return granted;
                }
                let mut rings = self.rings.lock().unwrap();
                while *rings == 0 {
                    rings = self.rung.wait(rings).unwrap();
                }
                *rings -= 1;
            }
        }
    }

    #[test]
    fn in_every_interleaving_a_kthread_that_asks_gets_the_grant_that_is_given() {
        loom::model(|| {
            let scene = Scene::new();
            let kthread = {
                let scene = Arc::clone(&scene);
                loom::thread::spawn(move || scene.next())
            };
            scene.give(4);
            assert_eq!(kthread.join().unwrap().1, CoreId(4));
        });
    }

    #[test]
    fn in_every_interleaving_a_core_that_is_revoked_and_replaced_ends_on_the_new_one() {
        loom::model(|| {
            let scene = Scene::new();
            scene.give(1);
            let (first, _) = scene.grant.current().unwrap();
            let kthread = {
                let scene = Arc::clone(&scene);
                loom::thread::spawn(move || {
                    let (at_first, core) = scene.next();
                    // Its work ends, or its next step finds the grant revoked.
                    match scene.grant.is_revoked(at_first) {
                        true => scene.next(),
                        false => (at_first, core),
                    }
                })
            };
            scene.grant.revoke(first);
            scene.give(2);
            let (last, core) = kthread.join().unwrap();
            // Under the first grant it may have ended before the revoke; never on a core of another grant.
            assert_eq!(core, CoreId(if last == first { 1 } else { 2 }));
            assert_eq!(scene.grant.valid().unwrap().1, CoreId(2));
            assert!(last == first || scene.grant.valid() == Some((last, core)));
        });
    }

    #[test]
    fn a_grant_holds_until_it_is_revoked_and_a_later_one_is_not_touched() {
        let grant: Grant = Grant::default();
        assert_eq!((grant.current(), grant.valid()), (None, None));
        let first = grant.give(CoreId(0));
        assert_eq!(grant.valid(), Some((first, CoreId(0))));
        grant.revoke(first);
        assert_eq!((grant.current(), grant.valid()), (Some((first, CoreId(0))), None));
        let second = grant.give(CoreId(7));
        assert!(!grant.is_revoked(second) && grant.is_revoked(first));
        grant.end_quantum(Nanos(90));
        assert!(grant.is_quantum_over(Nanos(90)) && !grant.is_quantum_over(Nanos(91)));
    }
}
