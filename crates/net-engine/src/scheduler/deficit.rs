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
    /// It had something to send in this round: if it has again, it waits in its place, as in FQ-CoDel (RFC 8290, 4.2). One
    /// that came back as a new socket each time would go before all others for ever.
    is_spent: bool,
}

impl<K: Copy + PartialEq> DeficitQueue<K> {
    /// Each socket may send `quantum` bytes in a round.
    pub fn new(quantum: u32) -> DeficitQueue<K> {
        DeficitQueue { quantum: quantum.max(1), active: VecDeque::new(), fresh: VecDeque::new() }
    }

    /// Whether no socket waits.
    pub fn is_empty(&self) -> bool {
        self.waiting().next().is_none()
    }

    /// Sockets that wait.
    pub fn len(&self) -> usize {
        self.waiting().count()
    }

    fn waiting(&self) -> impl Iterator<Item = &Entry<K>> {
        self.fresh.iter().chain(&self.active).filter(|entry| !entry.is_spent)
    }

    /// A socket that is not in the queue has something to send. It goes before those that have used a quantum: a short
    /// message does not wait for a round of bulk transfers, and one that sends more waits like the others.
    pub fn push(&mut self, key: K) {
        debug_assert!(!self.contains(key), "a socket waits twice");
        match self.active.iter_mut().find(|entry| entry.key == key) {
            Some(known) => known.is_spent = false,
            None => {
                let entry = Entry { key, left: self.quantum, is_spent: false };
                self.fresh.push_back(entry);
            }
        }
    }

    /// Whether a socket waits.
    pub fn contains(&self, key: K) -> bool {
        self.waiting().any(|entry| entry.key == key)
    }

    /// The socket that sends next, and how many bytes.
    pub fn front(&self) -> Option<(K, u32)> {
        self.waiting().next().map(|entry| (entry.key, entry.left))
    }

    /// The front has sent `bytes`. It goes to the end when its quantum is used, and out of the queue unless it `has_more`.
    pub fn sent(&mut self, bytes: u32, has_more: bool) {
        let from_fresh = !self.fresh.is_empty();
        let queue = if from_fresh { &mut self.fresh } else { &mut self.active };
        // The round has come to those that have nothing more: they are new again.
        while queue.front().is_some_and(|entry| entry.is_spent) {
            queue.pop_front();
        }
        let Some(mut entry) = queue.pop_front() else { return };
        if self.active.iter().all(|entry| entry.is_spent) {
            self.active.clear();
        }
        // A chunk may pass its quantum: the rest counts in the next round.
        let left = entry.left.checked_sub(bytes.max(1)).filter(|left| *left > 0);
        let is_used = left.is_none();
        let owed = bytes.saturating_sub(entry.left);
        entry.left = left.unwrap_or_else(|| self.quantum.saturating_sub(owed).max(1));
        entry.is_spent = !has_more;
        if (has_more && is_used) || (!has_more && !self.active.is_empty()) {
            self.active.push_back(entry);
        } else if has_more {
            let queue = if from_fresh { &mut self.fresh } else { &mut self.active };
            queue.push_front(entry);
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
        let all = self.fresh.drain(..).chain(self.active.drain(..));
        all.filter(|entry| !entry.is_spent).map(|entry| entry.key)
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
    fn socket_that_runs_empty_each_time_does_not_starve_others() {
        let mut queue = DeficitQueue::new(100);
        queue.push('a');
        queue.sent(100, true);
        let mut sent = [0; 2];
        queue.push('b');
        for _ in 0..100 {
            let (key, left) = queue.front().expect("both have more");
            let is_b = key == 'b';
            sent[usize::from(is_b)] += left;
            queue.sent(left, !is_b);
            if is_b {
                queue.push('b');
            }
        }
        assert_eq!(sent, [5_000, 5_000]);
        // What is left of the round is forgotten when no other waits.
        queue.remove('a');
        queue.sent(10, false);
        assert!(queue.is_empty());
        queue.push('c');
        assert_eq!((queue.front(), queue.len()), (Some(('c', 100)), 1));
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
