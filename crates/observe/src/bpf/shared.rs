//! How user space reads what the BPF programs write at the same time.
//!
//! Two protocols between one reader and writers on any CPU; `bpf/maps.h` is the other side of both. They
//! are written over traits, so that the tests can check every interleaving that the memory model allows.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// The sequence word of a slot or a core: odd while a writer is at it.
pub(super) trait Sequence {
    fn acquire(&self) -> u32;
    fn relaxed(&self) -> u32;
    /// An acquire fence.
    fn fence();
}

impl Sequence for AtomicU32 {
    fn acquire(&self) -> u32 {
        self.load(Ordering::Acquire)
    }

    fn relaxed(&self) -> u32 {
        self.load(Ordering::Relaxed)
    }

    fn fence() {
        fence(Ordering::Acquire);
    }
}

/// Reads while no writer is at it; also tells how often it had to be tried again. `None` if a writer never
/// left. The first load of `seq` pairs with the writer's last exchange, the fence with its first: what lies
/// between is either all old or all new.
pub(super) fn coherent<S: Sequence, T>(
    seq: &S,
    tries: u32,
    read: impl Fn() -> T,
) -> (Option<T>, u32) {
    for retries in 0..tries {
        let before = seq.acquire();
        if before & 1 == 0 {
            let copy = read();
            S::fence();
            if seq.relaxed() == before {
                return (Some(copy), retries);
            }
        }
        std::hint::spin_loop();
    }
    (None, tries)
}

/// A word of the bitmap of slots that changed.
pub(super) trait Dirty {
    fn relaxed(&self) -> u64;
    /// Sets it to 0; what it was.
    fn clear(&self) -> u64;
    /// A sequentially consistent fence.
    fn fence();
}

impl Dirty for AtomicU64 {
    fn relaxed(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }

    fn clear(&self) -> u64 {
        self.swap(0, Ordering::Relaxed)
    }

    fn fence() {
        fence(Ordering::SeqCst);
    }
}

/// Takes the marks of a word. The fence keeps the reads of the slots after the clearing: it pairs with the
/// full barrier of the exchange that ends each write of a slot, before the writer looks at this word. So
/// either the reader sees the write, or the writer sees the word cleared and marks it again.
pub(super) fn take_marks<W: Dirty>(word: &W) -> u64 {
    // A plain load first: most words are clean, and an exchange takes the line from other CPUs.
    if word.relaxed() == 0 {
        return 0;
    }
    let marks = word.clear();
    W::fence();
    marks
}

#[cfg(test)]
mod tests {
    use loom::sync::Arc;
    use loom::sync::atomic as model;

    use super::*;

    impl Sequence for model::AtomicU32 {
        fn acquire(&self) -> u32 {
            self.load(Ordering::Acquire)
        }

        fn relaxed(&self) -> u32 {
            self.load(Ordering::Relaxed)
        }

        fn fence() {
            model::fence(Ordering::Acquire);
        }
    }

    impl Dirty for model::AtomicU64 {
        fn relaxed(&self) -> u64 {
            self.load(Ordering::Relaxed)
        }

        fn clear(&self) -> u64 {
            self.swap(0, Ordering::Relaxed)
        }

        fn fence() {
            model::fence(Ordering::SeqCst);
        }
    }

    /// A slot of two words, and the bitmap's word: what the programs do, with the kernel's atomics (LKMM:
    /// those that return a value are full barriers).
    struct Shared {
        seq: model::AtomicU32,
        words: [model::AtomicU64; 2],
        dirty: model::AtomicU64,
    }

    impl Shared {
        fn new() -> Arc<Shared> {
            Arc::new(Shared {
                seq: model::AtomicU32::new(0),
                words: [model::AtomicU64::new(0), model::AtomicU64::new(0)],
                dirty: model::AtomicU64::new(0),
            })
        }

        /// `slot_lock`, the stores, `slot_unlock`, `mark_dirty`. False if another writer held the slot.
        fn write(&self, value: u64) -> bool {
            let seen = self.seq.load(Ordering::Relaxed);
            let locked = seen & 1 == 0
                && self
                    .seq
                    .compare_exchange(seen, seen + 1, Ordering::SeqCst, Ordering::Relaxed)
                    .is_ok();
            if !locked {
                return false;
            }
            model::fence(Ordering::SeqCst);
            for word in &self.words {
                word.store(value, Ordering::Relaxed);
            }
            model::fence(Ordering::SeqCst);
            self.seq.swap(seen + 2, Ordering::SeqCst);
            model::fence(Ordering::SeqCst);
            if self.dirty.load(Ordering::Relaxed) == 0 {
                self.dirty.fetch_or(1, Ordering::SeqCst);
            }
            true
        }

        fn read(&self) -> Option<[u64; 2]> {
            let words = || [0, 1].map(|at: usize| self.words[at].load(Ordering::Relaxed));
            coherent(&self.seq, 2, words).0
        }
    }

    #[test]
    fn in_every_interleaving_a_copy_is_all_old_or_all_new() {
        loom::model(|| {
            let shared = Shared::new();
            let writer = {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || shared.write(1) && shared.write(2))
            };
            if let Some([first, second]) = shared.read() {
                assert_eq!(first, second);
            }
            assert!(writer.join().unwrap());
        });
    }

    #[test]
    fn in_every_interleaving_the_last_write_is_read_in_the_end() {
        loom::model(|| {
            let shared = Shared::new();
            // An older change that the reader is about to take.
            assert!(shared.write(1));
            let writer = {
                let shared = Arc::clone(&shared);
                loom::thread::spawn(move || shared.write(2))
            };
            let mut known = None;
            let look = |known: &mut Option<[u64; 2]>| {
                if take_marks(&shared.dirty) != 0 {
                    match shared.read() {
                        Some(copy) => *known = Some(copy),
                        // As `Views::refresh` does: looked at again next time.
                        None => drop(shared.dirty.fetch_or(1, Ordering::Relaxed)),
                    }
                }
            };
            look(&mut known);
            assert!(writer.join().unwrap());
            look(&mut known);
            assert_eq!(known, Some([2, 2]));
        });
    }

    #[test]
    fn a_writer_that_never_leaves_is_given_up() {
        let seq = AtomicU32::new(1);
        assert_eq!(coherent(&seq, 9, || 7), (None, 9));
        seq.store(2, Ordering::Relaxed);
        assert_eq!(coherent(&seq, 9, || 7), (Some(7), 0));
    }
}
