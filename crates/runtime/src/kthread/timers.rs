//! The timers of a kthread: a 4-ary heap that grows as it has to, from which any timer can be removed.

use quell_model::Nanos;

const ARITY: usize = 4;
const NOWHERE: u32 = u32::MAX;

/// Names a timer until it is removed or taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TimerKey {
    slot: u32,
    generation: u32,
}

#[derive(Debug)]
struct Slot<T> {
    /// Its place in the heap, or `NOWHERE`.
    place: u32,
    /// How many timers had this slot before.
    generation: u32,
    what: Option<T>,
}

/// Timers, soonest first; those of one deadline in the order in which they were set.
#[derive(Debug)]
pub(crate) struct Timers<T> {
    /// Deadline, order of setting, slot.
    heap: Vec<(Nanos, u64, u32)>,
    slots: Vec<Slot<T>>,
    free: Vec<u32>,
    set: u64,
}

impl<T> Timers<T> {
    pub(crate) const fn new() -> Timers<T> {
        Timers { heap: Vec::new(), slots: Vec::new(), free: Vec::new(), set: 0 }
    }

    /// When the soonest is due.
    pub(crate) fn next(&self) -> Option<Nanos> {
        self.heap.first().map(|&(deadline, ..)| deadline)
    }

    /// Sets a timer.
    pub(crate) fn insert(&mut self, deadline: Nanos, what: T) -> TimerKey {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { place: NOWHERE, generation: 0, what: None });
            (self.slots.len() - 1) as u32
        });
        let entry = &mut self.slots[slot as usize];
        entry.what = Some(what);
        let key = TimerKey { slot, generation: entry.generation };
        self.set += 1;
        self.heap.push((deadline, self.set, slot));
        self.up(self.heap.len() - 1);
        key
    }

    /// Removes a timer; `None` if it is gone.
    pub(crate) fn remove(&mut self, key: TimerKey) -> Option<T> {
        let slot = self.slots.get(key.slot as usize)?;
        if slot.generation != key.generation || slot.place == NOWHERE {
            return None;
        }
        self.take(slot.place as usize)
    }

    /// Takes the soonest if it is due by now.
    pub(crate) fn pop_due(&mut self, now: Nanos) -> Option<(Nanos, T)> {
        let deadline = self.next().filter(|&deadline| deadline <= now)?;
        self.take(0).map(|what| (deadline, what))
    }

    fn take(&mut self, place: usize) -> Option<T> {
        let (.., slot) = self.heap.swap_remove(place);
        if place < self.heap.len() {
            // The last one has come here; it may belong on either side.
            self.up(place);
            self.down(self.slots[self.heap[place].2 as usize].place as usize);
        }
        let entry = &mut self.slots[slot as usize];
        entry.place = NOWHERE;
        entry.generation = entry.generation.wrapping_add(1);
        self.free.push(slot);
        entry.what.take()
    }

    fn put(&mut self, place: usize, entry: (Nanos, u64, u32)) {
        self.heap[place] = entry;
        self.slots[entry.2 as usize].place = place as u32;
    }

    fn up(&mut self, mut place: usize) {
        let entry = self.heap[place];
        while place > 0 {
            let parent = (place - 1) / ARITY;
            if self.heap[parent] <= entry {
                break;
            }
            self.put(place, self.heap[parent]);
            place = parent;
        }
        self.put(place, entry);
    }

    fn down(&mut self, mut place: usize) {
        let entry = self.heap[place];
        loop {
            let children = place * ARITY + 1..(place * ARITY + 1 + ARITY).min(self.heap.len());
            let Some(least) = children.min_by_key(|&child| self.heap[child]) else { break };
            if self.heap[least] >= entry {
                break;
            }
            self.put(place, self.heap[least]);
            place = least;
        }
        self.put(place, entry);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[derive(Clone, Debug)]
    enum Step {
        Insert(u64),
        Remove(usize),
        Pop(u64),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            (0..100u64).prop_map(Step::Insert),
            any::<usize>().prop_map(Step::Remove),
            (0..100u64).prop_map(Step::Pop),
        ]
    }

    proptest! {
        #[test]
        fn timers_are_those_of_a_sorted_list(steps in prop::collection::vec(step(), 0..300)) {
            let mut timers = Timers::new();
            // Deadline, what, key: in order of setting.
            let mut list: Vec<(u64, usize, TimerKey)> = Vec::new();
            let mut gone = Vec::new();
            for (what, step) in steps.into_iter().enumerate() {
                match step {
                    Step::Insert(at) => {
                        let key = timers.insert(Nanos(at), what);
                        list.push((at, what, key));
                    }
                    Step::Remove(which) if !list.is_empty() => {
                        let (_, what, key) = list.remove(which % list.len());
                        prop_assert_eq!(timers.remove(key), Some(what));
                        gone.push(key);
                    }
                    Step::Remove(_) => {}
                    Step::Pop(now) => {
                        let due = list.iter().filter(|(at, ..)| *at <= now).map(|&(at, what, _)| (at, what)).min();
                        prop_assert_eq!(timers.pop_due(Nanos(now)).map(|(at, what)| (at.0, what)), due);
                        if let Some((_, what)) = due {
                            let at = list.iter().position(|entry| entry.1 == what).unwrap();
                            gone.push(list.remove(at).2);
                        }
                    }
                }
                prop_assert_eq!(timers.next().map(|at| at.0), list.iter().map(|entry| entry.0).min());
                for &key in &gone {
                    prop_assert_eq!(timers.remove(key), None, "a key outlives its timer");
                }
            }
        }
    }

    #[test]
    fn timers_that_come_and_go_take_no_more_room_than_those_that_are_set_at_once() {
        let mut timers = Timers::new();
        for round in 0..if cfg!(miri) { 1_000 } else { 1_000_000u64 } {
            let one = timers.insert(Nanos(round + 10), ());
            let _two = timers.insert(Nanos(round), ());
            assert_eq!(timers.remove(one), Some(()));
            assert!(timers.pop_due(Nanos(round)).is_some());
        }
        assert!(timers.slots.len() <= 2 && timers.heap.is_empty());
    }
}
