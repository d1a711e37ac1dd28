//! Deficit round robin over sockets (Shreedhar and Varghese, SIGCOMM'95): each gets the same number of bytes in a round,
//! whatever the size of its chunks.

use std::collections::VecDeque;

/// Sockets that have something to send, and what they may send in this round.
#[derive(Clone, Debug)]
pub struct DeficitQueue<K> {
    quantum: u32,
    /// A socket is in the queue once. New ones go first.
    active: VecDeque<Entry<K>>,
    fresh: VecDeque<Entry<K>>,
}

#[derive(Clone, Copy, Debug)]
struct Entry<K> {
    key: K,
    left: u32,
}

impl<K: Copy + PartialEq> DeficitQueue<K> {
    /// Each socket may send `quantum` bytes in a round.
    pub fn new(quantum: u32) -> DeficitQueue<K> {
        DeficitQueue { quantum: quantum.max(1), active: VecDeque::new(), fresh: VecDeque::new() }
    }

    /// Whether no socket waits.
    pub fn is_empty(&self) -> bool {
        self.active.is_empty() && self.fresh.is_empty()
    }

    /// Sockets that wait.
    pub fn len(&self) -> usize {
        self.active.len() + self.fresh.len()
    }

    /// A socket that is not in the queue has something to send. It goes before those that have used a quantum: a short
    /// message does not wait for a round of bulk transfers, and one that sends more waits like the others.
    pub fn push(&mut self, key: K) {
        debug_assert!(!self.contains(key), "a socket waits twice");
        self.fresh.push_back(Entry { key, left: self.quantum });
    }

    /// Whether a socket waits.
    pub fn contains(&self, key: K) -> bool {
        self.fresh.iter().chain(&self.active).any(|entry| entry.key == key)
    }

    /// The socket that sends next, and how many bytes.
    pub fn front(&self) -> Option<(K, u32)> {
        self.fresh.front().or(self.active.front()).map(|entry| (entry.key, entry.left))
    }

    /// The front has sent `bytes`. It goes to the end when its quantum is used, and out of the queue unless it `has_more`.
    pub fn sent(&mut self, bytes: u32, has_more: bool) {
        let from_fresh = !self.fresh.is_empty();
        let queue = if from_fresh { &mut self.fresh } else { &mut self.active };
        let Some(mut entry) = queue.pop_front() else { return };
        if !has_more {
            return;
        }
        // A chunk may pass its quantum: the rest counts in the next round.
        match entry.left.checked_sub(bytes.max(1)).filter(|left| *left > 0) {
            Some(left) => {
                entry.left = left;
                queue.push_front(entry);
            }
            None => {
                let owed = bytes.saturating_sub(entry.left);
                entry.left = self.quantum.saturating_sub(owed).max(1);
                self.active.push_back(entry);
            }
        }
    }

    /// The front can send nothing now, and waits elsewhere.
    pub fn drop_front(&mut self) {
        self.sent(0, false);
    }

    /// A socket waits no more.
    pub fn remove(&mut self, key: K) {
        self.fresh.retain(|entry| entry.key != key);
        self.active.retain(|entry| entry.key != key);
    }

    /// Empties the queue.
    pub fn drain(&mut self) -> impl Iterator<Item = K> {
        self.fresh.drain(..).chain(self.active.drain(..)).map(|entry| entry.key)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Serves the queue: sockets that always have more, chunks of the given size each.
    fn serve(sizes: &[u32], quantum: u32, rounds: usize) -> Vec<u64> {
        let mut queue = DeficitQueue::new(quantum);
        (0..sizes.len()).for_each(|key| queue.push(key));
        let mut sent = vec![0; sizes.len()];
        for _ in 0..rounds {
            let (key, left) = queue.front().expect("all have more");
            let bytes = sizes[key].min(left);
            sent[key] += u64::from(bytes);
            queue.sent(bytes, true);
        }
        sent
    }

    proptest! {
        #[test]
        fn sockets_with_chunks_of_any_size_get_the_same(
            sizes in proptest::collection::vec(1u32..70_000, 1..8),
            quantum in 1_000u32..70_000,
        ) {
            let sent = serve(&sizes, quantum, 20_000);
            let (least, most) = (sent.iter().min(), sent.iter().max());
            let apart = most.expect("some") - least.expect("some");
            prop_assert!(apart <= 2 * u64::from(quantum), "{sent:?}");
        }
    }

    #[test]
    fn new_socket_goes_before_those_that_have_used_a_quantum() {
        let mut queue = DeficitQueue::new(100);
        queue.push('a');
        queue.push('b');
        queue.sent(100, true);
        queue.sent(100, true);
        queue.push('c');
        assert_eq!(queue.front(), Some(('c', 100)));
        queue.sent(40, true);
        assert_eq!(queue.front(), Some(('c', 60)));
        queue.sent(60, true);
        assert_eq!(queue.front(), Some(('a', 100)));
        queue.remove('a');
        queue.sent(10, false);
        assert_eq!((queue.front(), queue.len()), (Some(('c', 100)), 1));
    }
}
