//! Which cores idle while a thread that may use them waits behind another one.
//!
//! A core is wasted while nothing runs or waits on it and an *overloaded* core (two runnable threads or more) has
//! a waiting thread whose affinity holds the idle one. Threads that share an affinity are counted together, so an
//! event costs a few words of a mask, however many threads wait.

use std::collections::HashMap;

use quell_model::{CoreId, CoreSet};

/// Threads that may use the same cores.
pub(crate) type Class = u32;

/// The waiting threads of a core.
#[derive(Default)]
struct Queue {
    overloaded: bool,
    waiting: Vec<(Class, u32)>,
}

pub(crate) struct Waste {
    queues: HashMap<CoreId, Queue>,
    classes: Vec<CoreSet>,
    class_of: HashMap<CoreSet, Class>,
    /// Waiting threads on overloaded cores, by class.
    stealable: Vec<u32>,
    /// Cores that any of them may use.
    wanted: CoreSet,
    idle: CoreSet,
    wasted: CoreSet,
    /// Something changed since [`Waste::settle`].
    changed: bool,
}

impl Waste {
    /// The class of threads whose affinity nobody told: they may use every core.
    pub const ANYWHERE: Class = 0;

    pub fn new(all: CoreSet) -> Waste {
        Waste {
            queues: HashMap::new(),
            classes: vec![all],
            class_of: HashMap::from([(all, Self::ANYWHERE)]),
            stealable: vec![0],
            wanted: CoreSet::EMPTY,
            idle: CoreSet::EMPTY,
            wasted: CoreSet::EMPTY,
            changed: false,
        }
    }

    pub fn class(&mut self, allowed: CoreSet) -> Class {
        *self.class_of.entry(allowed).or_insert_with(|| {
            self.classes.push(allowed);
            self.stealable.push(0);
            (self.classes.len() - 1) as Class
        })
    }

    /// Where threads of this class may run.
    pub fn allowed(&self, class: Class) -> &CoreSet {
        &self.classes[class as usize]
    }

    /// The cores that idle now.
    pub fn idle(&self) -> &CoreSet {
        &self.idle
    }

    pub fn set_idle(&mut self, core: CoreId, idle: bool) {
        self.changed |= self.idle.contains(core) != idle;
        match idle {
            true => self.idle.insert(core),
            false => self.idle.remove(core),
        }
    }

    pub fn set_overloaded(&mut self, core: CoreId, overloaded: bool) {
        let queue = self.queues.entry(core).or_default();
        if queue.overloaded == overloaded {
            return;
        }
        queue.overloaded = overloaded;
        for &(class, count) in &queue.waiting {
            let stealable = &mut self.stealable[class as usize];
            *stealable = if overloaded { *stealable + count } else { *stealable - count };
        }
        self.want();
    }

    pub fn begins(&mut self, core: CoreId, class: Class) {
        let queue = self.queues.entry(core).or_default();
        match queue.waiting.iter_mut().find(|(of, _)| *of == class) {
            Some((_, count)) => *count += 1,
            None => queue.waiting.push((class, 1)),
        }
        if queue.overloaded {
            self.stealable[class as usize] += 1;
            self.want();
        }
    }

    /// Undoes one [`Waste::begins`] of the same core and class.
    pub fn ends(&mut self, core: CoreId, class: Class) {
        let Some(queue) = self.queues.get_mut(&core) else { return };
        let Some(at) = queue.waiting.iter().position(|(of, _)| *of == class) else { return };
        queue.waiting[at].1 -= 1;
        if queue.waiting[at].1 == 0 {
            queue.waiting.swap_remove(at);
        }
        if queue.overloaded {
            self.stealable[class as usize] -= 1;
            self.want();
        }
    }

    /// The wasted cores and those that were not when this was last asked, or were and are no more.
    pub fn settle(&mut self) -> (&CoreSet, CoreSet) {
        if !std::mem::take(&mut self.changed) {
            return (&self.wasted, CoreSet::EMPTY);
        }
        let wasted = self.idle.intersection(&self.wanted);
        let changed = wasted.difference(&self.wasted).union(&self.wasted.difference(&wasted));
        self.wasted = wasted;
        (&self.wasted, changed)
    }

    fn want(&mut self) {
        self.changed = true;
        let wanted = self.stealable.iter().zip(&self.classes).filter(|(count, _)| **count > 0);
        self.wanted = wanted.fold(CoreSet::EMPTY, |wanted, (_, allowed)| wanted.union(allowed));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cores(list: &str) -> CoreSet {
        list.parse().unwrap()
    }

    #[test]
    fn an_idle_core_is_wasted_only_while_a_waiter_may_use_it() {
        let mut waste = Waste::new(cores("0-3"));
        let pinned = waste.class(cores("1"));
        waste.set_idle(CoreId(0), true);
        waste.set_overloaded(CoreId(1), true);
        waste.begins(CoreId(1), pinned);
        assert_eq!(waste.settle().1, CoreSet::EMPTY, "the waiter may not leave");
        waste.begins(CoreId(1), Waste::ANYWHERE);
        assert_eq!(waste.settle().1, cores("0"));
        waste.ends(CoreId(1), Waste::ANYWHERE);
        let (wasted, changed) = waste.settle();
        assert_eq!((*wasted, changed), (CoreSet::EMPTY, cores("0")));
    }

    #[test]
    fn a_waiter_on_a_core_of_its_own_wastes_nothing() {
        let mut waste = Waste::new(cores("0-1"));
        waste.set_idle(CoreId(0), true);
        waste.begins(CoreId(1), Waste::ANYWHERE);
        assert!(waste.settle().0.is_empty(), "it is about to run there");
        waste.set_overloaded(CoreId(1), true);
        assert_eq!(*waste.settle().0, cores("0"));
    }
}
