//! Threads that are alike: what decides which idle cores a waiting thread could use.
//!
//! Alike threads share a class, so that what is computed for waiting threads costs the same however many wait.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};

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
    /// A mix of all words: the default hashes of 400 bytes cost more than the rest of an event. The words do not
    /// wait for each other.
    fn hash<H: Hasher>(&self, state: &mut H) {
        const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;
        let mix = |set: &CoreSet, salt: u64| {
            let words = set.words().iter().zip(1..);
            let mixed = words.map(|(word, number)| {
                let spread = (word ^ (word >> 29)).wrapping_mul(FACTOR | (number << 1));
                spread ^ (spread >> 32)
            });
            mixed.fold(salt, u64::wrapping_add).wrapping_mul(FACTOR)
        };
        let mut sum = u64::from(self.prio.number()) << 1 | u64::from(self.is_pinned);
        if let Some(allowed) = &self.allowed {
            sum = sum.rotate_left(17) ^ mix(allowed, 1);
        }
        if let Some(plan) = &self.plan {
            sum = sum.rotate_left(17) ^ mix(&plan.planned, 2);
            sum = sum.rotate_left(17) ^ mix(&plan.original, 3);
        }
        state.write_u64(sum);
    }
}

/// The class of alike threads. Once its last thread has left it, its index may be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClassIndex(pub(super) u32);

impl ClassIndex {
    /// The class of threads of which nothing is reported.
    pub const DEFAULT: ClassIndex = Classes::DEFAULT;

    /// As an index into dense tables.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// All classes in use, and those that were.
#[derive(Clone, Debug)]
pub(super) struct Classes {
    keys: Vec<WaiterKey>,
    /// Threads in each class.
    members: Vec<u32>,
    /// Classes that were left by their last thread; some have threads again.
    free: Vec<ClassIndex>,
    /// Whether a class is among them.
    is_free: Vec<bool>,
    by_key: HashMap<WaiterKey, ClassIndex>,
    /// The class that was joined last: threads of a process do so one after the other.
    latest: ClassIndex,
    /// How often an index got another key.
    rekeyed: u64,
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
            is_free: vec![false],
            by_key: HashMap::from([(WaiterKey::DEFAULT, Classes::DEFAULT)]),
            latest: Classes::DEFAULT,
            rekeyed: 0,
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

    /// How often an index got another key.
    pub fn rekeyed(&self) -> u64 {
        self.rekeyed
    }

    /// A thread joins the class of this key.
    pub fn join(&mut self, key: &WaiterKey) -> ClassIndex {
        if self.keys[self.latest.index()] != *key {
            self.latest = match self.by_key.get(key) {
                Some(class) => *class,
                None => self.add(key),
            };
        }
        self.members[self.latest.index()] += 1;
        self.latest
    }

    /// A thread leaves its class. One that nobody is in keeps its key until its index is needed: threads change
    /// between few.
    pub fn leave(&mut self, class: ClassIndex) {
        let members = &mut self.members[class.index()];
        debug_assert!(*members > 0, "a class has fewer threads than left it");
        *members -= 1;
        if *members == 0 && !std::mem::replace(&mut self.is_free[class.index()], true) {
            self.free.push(class);
        }
    }

    fn add(&mut self, key: &WaiterKey) -> ClassIndex {
        let class = match self.take_free() {
            Some(class) => {
                self.by_key.remove(&self.keys[class.index()]);
                self.keys[class.index()] = *key;
                self.rekeyed += 1;
                class
            }
            None => {
                self.keys.push(*key);
                self.members.push(0);
                self.is_free.push(false);
                ClassIndex(self.keys.len() as u32 - 1)
            }
        };
        self.by_key.insert(*key, class);
        class
    }

    fn take_free(&mut self) -> Option<ClassIndex> {
        while let Some(class) = self.free.pop() {
            self.is_free[class.index()] = false;
            if self.members[class.index()] == 0 {
                return Some(class);
            }
        }
        None
    }

    /// Threads in a class.
    #[cfg(any(test, debug_assertions))]
    pub fn members(&self, class: ClassIndex) -> u32 {
        self.members[class.index()] - u32::from(class == Classes::DEFAULT)
    }
}
