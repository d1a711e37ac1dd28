//! The token of `park` and `unpark`, and who is parked: one word.
//!
//! `unpark` leaves a token, or takes who is parked and wakes it; `park` uses a token up, or puts the uthread where an `unpark` finds it.
//! It does so once the uthread is off its stack: who takes it may run it at once. With a deadline the clock may take it as well: then
//! the word says only that somebody is parked, and a lock holds the waiter (see `thread`).

use std::sync::atomic::{AtomicU64, Ordering};

use crate::word::Word;

const NOTHING: u64 = 0;
const TOKEN: u64 = 1;
/// Somebody is parked until a deadline.
const TIMED: u64 = 2;
// Every other value is the item of the uthread that is parked.

#[derive(Debug)]
pub(crate) struct Token<W = AtomicU64>(W);

/// Whom an `unpark` wakes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Parked {
    /// Nobody: the token waits for the next `park`.
    Nobody,
    /// This uthread, which is the caller's now.
    Uthread(u64),
    /// Who waits until a deadline; the token stays until that one is awake.
    Timed,
}

impl<W: Word> Token<W> {
    pub(crate) fn new() -> Token<W> {
        Token(W::new(NOTHING))
    }

    /// Uses the token up; false: there is none.
    #[inline]
    pub(crate) fn take(&self) -> bool {
        // Acquire: who takes a token sees what was done before it was left. Pairs with `unpark`.
        self.0.get(Ordering::Relaxed) == TOKEN
            && self.0.exchange(TOKEN, NOTHING, Ordering::Acquire).is_ok()
    }

    /// Parks this uthread, which is off its stack; not to be touched after it. False: there was a token, which is used up.
    #[inline]
    pub(crate) fn park(&self, item: u64) -> bool {
        // Release: who takes the uthread sees it as it left its stack. Pairs with `unpark`.
        if self.0.exchange(NOTHING, item, Ordering::Release).is_ok() {
            return true;
        }
        // Acquire: as in `take`.
        self.0.swap(NOTHING, Ordering::Acquire);
        false
    }

    /// Somebody parks until a deadline, and is where [`Parked::Timed`] looks. False: there is a token, which stays.
    pub(crate) fn park_timed(&self) -> bool {
        // Release: who finds it parked sees the waiter.
        self.0.exchange(NOTHING, TIMED, Ordering::Release).is_ok()
    }

    /// Whoever was parked until a deadline is awake; a token that it finds is used up.
    pub(crate) fn end_timed(&self) {
        // Acquire: as in `take`.
        self.0.swap(NOTHING, Ordering::Acquire);
    }

    /// Leaves a token, or takes who is parked.
    #[inline]
    pub(crate) fn unpark(&self) -> Parked {
        let mut seen = self.0.get(Ordering::Relaxed);
        loop {
            let (next, parked) = match seen {
                // Even where there is a token: who takes it is to see what was done before this one, too.
                NOTHING | TOKEN => (TOKEN, Parked::Nobody),
                TIMED => (TOKEN, Parked::Timed),
                item => (NOTHING, Parked::Uthread(item)),
            };
            // AcqRel: see `take`, `park` and `park_timed`.
            match self.0.exchange(seen, next, Ordering::AcqRel) {
                Ok(_) => return parked,
                Err(now) => seen = now,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use loom::cell::UnsafeCell;
    use loom::sync::atomic as model;
    use loom::sync::{Arc, Notify};
    use loom::thread;

    use super::*;

    const ITEM: u64 = 64;

    struct Scene {
        token: Token<model::AtomicU64>,
        /// What the uthread keeps on its stack, and who resumes it touches.
        stack: UnsafeCell<u32>,
        runs: Notify,
        woken: model::AtomicU64,
    }

    fn scene() -> Arc<Scene> {
        Arc::new(Scene {
            token: Token::new(),
            stack: UnsafeCell::new(0),
            runs: Notify::new(),
            woken: model::AtomicU64::new(0),
        })
    }

    impl Scene {
        fn unpark(&self) {
            match self.token.unpark() {
                Parked::Uthread(item) => {
                    assert_eq!(item, ITEM);
                    // SAFETY: what the models check: loom fails them if two have the uthread.
                    self.stack.with_mut(|stack| unsafe { *stack += 1 });
                    self.woken.add(1, Ordering::Release);
                    self.runs.notify();
                }
                Parked::Nobody => {}
                Parked::Timed => unreachable!("nobody waits until a deadline"),
            }
        }

        /// What the kthread of the uthread does, and the uthread once it goes on.
        fn park(&self, before: u64) {
            if self.token.take() {
                return;
            }
            // SAFETY: as above.
            self.stack.with_mut(|stack| unsafe { *stack += 1 });
            if self.token.park(ITEM) {
                while self.woken.get(Ordering::Acquire) == before {
                    // loom fails a model in which this waits for ever.
                    self.runs.wait();
                }
            }
        }
    }

    #[test]
    fn one_unpark_ends_one_park_whichever_comes_first() {
        loom::model(|| {
            let scene = scene();
            let other = {
                let scene = Arc::clone(&scene);
                thread::spawn(move || scene.unpark())
            };
            scene.park(0);
            // SAFETY: as above.
            scene.stack.with_mut(|stack| unsafe { *stack += 1 });
            other.join().unwrap();
            assert!(!scene.token.take(), "the token was used up");
        });
    }

    #[test]
    fn two_unparks_at_once_wake_a_parked_uthread_once_and_leave_a_token_at_most() {
        let mut builder = loom::model::Builder::new();
        // Complete, it takes a minute, and finds no more.
        builder.preemption_bound = Some(3);
        builder.check(|| {
            let scene = scene();
            let others: Vec<_> = (0..2)
                .map(|_| {
                    let scene = Arc::clone(&scene);
                    thread::spawn(move || scene.unpark())
                })
                .collect();
            scene.park(0);
            others.into_iter().for_each(|other| other.join().unwrap());
            assert!(scene.woken.get(Ordering::Acquire) <= 1);
            scene.token.take();
            assert!(!scene.token.take());
        });
    }

    #[test]
    fn who_takes_a_token_sees_what_was_done_before_each_unpark_that_left_it() {
        let mut builder = loom::model::Builder::new();
        // Complete, it takes minutes, and finds no more.
        builder.preemption_bound = Some(2);
        builder.check(|| {
            let token = Arc::new(Token::<model::AtomicU64>::new());
            let done: Arc<[_; 2]> = Arc::new(std::array::from_fn(|_| model::AtomicU64::new(0)));
            let others: Vec<_> = (0..2)
                .map(|at| {
                    let (token, done) = (Arc::clone(&token), Arc::clone(&done));
                    thread::spawn(move || {
                        done[at].put(1, Ordering::Relaxed);
                        assert_eq!(token.unpark(), Parked::Nobody);
                    })
                })
                .collect();
            let seen = || done.iter().map(|it| it.get(Ordering::Relaxed)).sum::<u64>();
            while !token.take() {
                thread::yield_now();
            }
            let first = seen();
            others.into_iter().for_each(|other| other.join().unwrap());
            // A token that stands for both lets both be seen.
            assert!(first == 2 || (first == 1 && token.take()));
        });
    }

    #[test]
    fn who_waits_until_a_deadline_is_found_by_an_unpark_or_finds_its_token() {
        loom::model(|| {
            let token = Arc::new(Token::<model::AtomicU64>::new());
            let waiter = Arc::new(UnsafeCell::new(0));
            let other = {
                let (token, waiter) = (Arc::clone(&token), Arc::clone(&waiter));
                thread::spawn(move || {
                    let parked = token.unpark();
                    if parked == Parked::Timed {
                        // SAFETY: what the model checks.
                        waiter.with(|waiter| assert_eq!(unsafe { *waiter }, 1));
                    }
                    parked
                })
            };
            // SAFETY: as above.
            waiter.with_mut(|waiter| unsafe { *waiter = 1 });
            let parks = token.park_timed();
            let parked = other.join().unwrap();
            assert_eq!(parked == Parked::Timed, parks);
            token.end_timed();
            assert!(!token.take());
        });
    }
}
