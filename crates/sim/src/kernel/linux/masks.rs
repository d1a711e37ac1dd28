//! The sets of cores that threads may use, each once, and what waits for the idle ones among them.

use std::collections::HashMap;

use quell_model::{CoreId, CoreSet};

use super::waste::{Near, WasteNow};

/// Threads that may use the same cores, and how near those that wait are to idle ones.
#[derive(Clone, Debug)]
struct Mask {
    cores: CoreSet,
    /// Threads that may use these cores, in whatever state.
    threads: u32,
    is_counted: bool,
    /// Idle cores of these.
    idle: u32,
    waiting: u32,
    /// By the first core of a physical core or a node: idle cores of these, and threads that wait there.
    physical: Vec<Place>,
    node: Vec<Place>,
    /// Threads that wait where [`Place::idle`] is not zero.
    near_physical: u32,
    near_node: u32,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    idle: u32,
    waiting: u32,
}

impl Place {
    /// An idle core comes (1) or goes (-1). By how many threads that changes the number of those that wait beside an idle core.
    fn add_idle(&mut self, by: i32) -> i32 {
        let had = self.idle > 0;
        self.idle = self.idle.wrapping_add_signed(by);
        match (had, self.idle > 0) {
            (false, true) => self.waiting as i32,
            (true, false) => -(self.waiting as i32),
            _ => 0,
        }
    }

    /// The same for threads that come or go.
    fn add_waiting(&mut self, by: i32) -> i32 {
        self.waiting = self.waiting.wrapping_add_signed(by);
        if self.idle > 0 { by } else { 0 }
    }
}

impl Mask {
    fn new(cores: CoreSet, idle: &CoreSet, near: &[Near]) -> Mask {
        // What waits on the only core that it may use cannot use an idle one.
        let is_counted = cores.len() > 1;
        let places = vec![Place::default(); if is_counted { near.len() } else { 0 }];
        let mut mask = Mask {
            cores,
            threads: 0,
            is_counted,
            idle: 0,
            waiting: 0,
            physical: places.clone(),
            node: places,
            near_physical: 0,
            near_node: 0,
        };
        for core in idle.intersection(&cores).iter() {
            mask.add_idle(core.index(), 1, near);
        }
        mask
    }

    fn add_idle(&mut self, core: usize, by: i32, near: &[Near]) {
        if !self.is_counted {
            return;
        }
        let Near { first_sibling, first_of_node, .. } = near[core];
        self.idle = self.idle.wrapping_add_signed(by);
        let more = self.physical[first_sibling].add_idle(by);
        self.near_physical = self.near_physical.wrapping_add_signed(more);
        let more = self.node[first_of_node].add_idle(by);
        self.near_node = self.near_node.wrapping_add_signed(more);
    }

    fn add_waiting(&mut self, core: usize, by: i32, near: &[Near]) {
        self.waiting = self.waiting.wrapping_add_signed(by);
        if !self.is_counted {
            return;
        }
        let Near { first_sibling, first_of_node, .. } = near[core];
        let more = self.physical[first_sibling].add_waiting(by);
        self.near_physical = self.near_physical.wrapping_add_signed(more);
        let more = self.node[first_of_node].add_waiting(by);
        self.near_node = self.near_node.wrapping_add_signed(more);
    }
}

/// All that some thread has.
#[derive(Clone, Debug, Default)]
pub(super) struct Masks {
    masks: Vec<Mask>,
    known: HashMap<CoreSet, u32>,
    free: Vec<u32>,
    /// Those that are counted.
    counted: Vec<u32>,
    /// The idle cores that the masks count.
    idle: CoreSet,
}

impl Masks {
    /// One more thread may use these cores. Their number.
    pub fn take(&mut self, cores: &CoreSet, near: &[Near]) -> u32 {
        let number = match self.known.get(cores) {
            Some(number) => *number,
            None => {
                let mask = Mask::new(*cores, &self.idle, near);
                let number = self.free.pop().unwrap_or(self.masks.len() as u32);
                match self.masks.get_mut(number as usize) {
                    Some(free) => *free = mask,
                    None => self.masks.push(mask),
                }
                self.known.insert(*cores, number);
                if self.masks[number as usize].is_counted {
                    self.counted.push(number);
                }
                number
            }
        };
        self.masks[number as usize].threads += 1;
        number
    }

    /// A thread may use other cores from now on.
    pub fn release(&mut self, number: u32) {
        let mask = &mut self.masks[number as usize];
        mask.threads -= 1;
        self.forget_unused(number);
    }

    /// Those that no thread has, and none had when the queues were counted last.
    fn forget_unused(&mut self, number: u32) {
        let mask = &mut self.masks[number as usize];
        if mask.threads == 0 && mask.waiting == 0 {
            self.known.remove(&mask.cores);
            self.counted.retain(|other| *other != number);
            self.free.push(number);
        }
    }

    /// Threads that have this number come to wait on a core, or no longer do.
    pub fn add_waiting(&mut self, number: u32, core: usize, by: i32, near: &[Near]) {
        let mask = &mut self.masks[number as usize];
        mask.add_waiting(core, by, near);
        if by < 0 {
            self.forget_unused(number);
        }
    }

    /// Counts these idle cores.
    pub fn follow_idle(&mut self, idle: &CoreSet, near: &[Near]) {
        let Masks { masks, counted, idle: before, .. } = self;
        // Few change from one event to the next, most of the time none.
        for (at, (was, is)) in before.words().iter().zip(idle.words()).enumerate() {
            let mut changed = was ^ is;
            while changed != 0 {
                let bit = changed.trailing_zeros();
                changed &= changed - 1;
                let core = at * 64 + bit as usize;
                let by = if is >> bit & 1 == 1 { 1 } else { -1 };
                for number in counted.iter() {
                    let mask = &mut masks[*number as usize];
                    if mask.cores.contains(CoreId(core as u16)) {
                        mask.add_idle(core, by, near);
                    }
                }
            }
        }
        self.idle = *idle;
    }

    /// Idle cores that could run what waits, and the threads that wait.
    pub fn sum(&self) -> WasteNow {
        let mut waste = WasteNow::default();
        let masks = self.counted.iter().map(|number| &self.masks[*number as usize]);
        let mut masks = masks.filter(|mask| mask.waiting > 0 && mask.idle > 0);
        let Some(first) = masks.next() else { return waste };
        let (mut usable, mut idle) = (first.cores, first.idle);
        let mut add = |mask: &Mask| {
            let [physical, node, all] =
                [mask.near_physical, mask.near_node, mask.waiting].map(u64::from);
            // The topology in a file may have siblings on two nodes.
            let node = node.max(physical);
            let threads = [physical, node - physical, all - node];
            waste.threads.iter_mut().zip(threads).for_each(|(sum, more)| *sum += more);
        };
        add(first);
        for mask in masks {
            add(mask);
            usable = usable.union(&mask.cores);
            idle = usable.intersection(&self.idle).len() as u32;
        }
        waste.cores = waste.threads.iter().sum::<u64>().min(u64::from(idle));
        waste
    }
}
