//! Threads that are alike: what decides which idle cores a waiting thread could use.
//!
//! Alike threads share a class, so that what is computed for waiting threads costs the same however many wait.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use quell_model::{CoreSet, Rank};

/// What decides which idle cores a waiting thread could use, but for the cores themselves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaiterKey {
    /// The cores that it may use; `None` while not reported.
    pub allowed: Option<CoreSet>,
    /// Its scheduling priority.
    pub prio: Rank,
    /// It may not leave its core now, or is a thread of the checker itself.
    pub is_pinned: bool,
    /// Where a plan of Quell lets it run, if one does.
    pub plan: Option<PlanCores>,
}

/// The cores that a plan of Quell lets a thread use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlanCores {
    /// Those that the plan allows.
    pub planned: CoreSet,
    /// Those that the thread might use without the plan; they contain the planned ones.
    pub original: CoreSet,
}

impl WaiterKey {
    /// A thread of which nothing is reported.
    pub const DEFAULT: WaiterKey =
        WaiterKey { allowed: None, prio: Rank::FAIR, is_pinned: false, plan: None };
}

impl Hash for WaiterKey {
    /// A mix of the words that are not zero: the default hash of 400 bytes costs more than the rest of an event.
    fn hash<H: Hasher>(&self, state: &mut H) {
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let mut sum = u64::from(self.prio.number()) << 1 | u64::from(self.is_pinned);
        let plan = self.plan.as_ref();
        let sets = [self.allowed.as_ref(), plan.map(|p| &p.planned), plan.map(|p| &p.original)];
        for set in sets {
            sum = (sum ^ u64::from(set.is_some())).wrapping_mul(FACTOR);
            let words = set.into_iter().flat_map(|set| set.words()).enumerate();
            for (index, word) in words.filter(|(_, word)| **word != 0) {
                sum = (sum ^ word).wrapping_mul(FACTOR).rotate_left(29) ^ index as u64;
            }
        }
        state.write_u64(sum.wrapping_mul(FACTOR));
    }
}

/// Takes a hash that is mixed already.
#[derive(Clone, Copy, Debug, Default)]
struct Mixed(u64);

impl Hasher for Mixed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        debug_assert!(false, "a key writes one word, not {} bytes", bytes.len());
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// The class of alike threads. Its index is used again when its last thread has left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassIndex(pub(super) u32);

impl ClassIndex {
    /// As an index into dense tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// All classes in use.
#[derive(Clone, Debug)]
pub(super) struct Classes {
    keys: Vec<WaiterKey>,
    /// Threads in each class.
    members: Vec<u32>,
    free: Vec<ClassIndex>,
    by_key: HashMap<WaiterKey, ClassIndex, BuildHasherDefault<Mixed>>,
    /// The class that was joined last: often all threads of a process change alike, one after the other.
    last: ClassIndex,
}

impl Classes {
    /// The class of threads of which nothing is reported; it always exists.
    pub const DEFAULT: ClassIndex = ClassIndex(0);

    pub fn new() -> Classes {
        Classes {
            keys: vec![WaiterKey::DEFAULT],
            // One more than it has, so that it stays.
            members: vec![1],
            free: Vec::new(),
            by_key: HashMap::from_iter([(WaiterKey::DEFAULT, Classes::DEFAULT)]),
            last: Classes::DEFAULT,
        }
    }

    #[inline]
    pub fn key(&self, class: ClassIndex) -> &WaiterKey {
        &self.keys[class.index()]
    }

    /// How many indices there are, used or free.
    pub fn len(&self) -> usize {
        self.keys.len()
    }

    /// A thread joins the class of this key.
    pub fn join(&mut self, key: &WaiterKey) -> ClassIndex {
        let is_last = self.members[self.last.index()] > 0 && self.key(self.last) == key;
        if !is_last {
            self.last = match self.by_key.get(key) {
                Some(class) => *class,
                None => self.add(key),
            };
        }
        self.members[self.last.index()] += 1;
        self.last
    }

    /// A thread leaves its class.
    pub fn leave(&mut self, class: ClassIndex) {
        let members = &mut self.members[class.index()];
        debug_assert!(*members > 0, "a class has fewer threads than left it");
        *members -= 1;
        if *members == 0 {
            self.by_key.remove(&self.keys[class.index()]);
            self.free.push(class);
        }
    }

    fn add(&mut self, key: &WaiterKey) -> ClassIndex {
        let class = match self.free.pop() {
            Some(class) => {
                self.keys[class.index()] = *key;
                class
            }
            None => {
                self.keys.push(*key);
                self.members.push(0);
                ClassIndex(self.keys.len() as u32 - 1)
            }
        };
        self.by_key.insert(*key, class);
        class
    }

    /// Threads in a class.
    #[cfg(any(test, debug_assertions))]
    pub fn members(&self, class: ClassIndex) -> u32 {
        self.members[class.index()] - u32::from(class == Classes::DEFAULT)
    }
}
