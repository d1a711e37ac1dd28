//! One queue of the fair class: entities in the order of their virtual time.
//!
//! CFS runs the least virtual runtime (kernel/sched/fair.c until Linux 6.5). EEVDF runs the earliest virtual deadline among
//! entities that have lag, which is those behind the weighted mean of all (Linux 6.6). A core has one queue for its root, whose
//! entities are threads and task groups, and one for each task group.
//!
//! Not modelled: the buddies `next` and `last` of CFS, and slices set per thread.

use quell_model::Nanos;

use super::model::Picker;
use super::weights::NICE_0;

/// What the fair class schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Entity {
    Thread(u32),
    Group(u32),
}

/// Times that depend on the number of cores (`sched_tunable_scaling`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tunables {
    /// CFS: each of a few threads runs once in this time.
    pub latency: Nanos,
    /// CFS: each of many threads runs for this long.
    pub granularity: Nanos,
    /// CFS: a woken thread preempts if it is further behind.
    pub wakeup: Nanos,
    /// EEVDF: the slice of a thread.
    pub slice: Nanos,
}

/// Threads that share [`Tunables::latency`]; more of them lengthen the period (`sched_nr_latency`).
const FEW: u64 = 8;

impl Tunables {
    /// Of a host with so many cores: 1 + log2 of at most eight of them times the values of one core.
    pub fn of_cores(cores: usize) -> Tunables {
        let factor = 1 + u64::from(cores.clamp(1, 8).ilog2());
        Tunables {
            latency: Nanos(6_000_000 * factor),
            granularity: Nanos(750_000 * factor),
            wakeup: Nanos(1_000_000 * factor),
            slice: Nanos(750_000 * factor),
        }
    }

    /// The time in which each of so many threads runs once (`__sched_period`).
    pub fn period(&self, threads: u64) -> Nanos {
        match threads <= FEW {
            true => self.latency,
            false => Nanos(self.granularity.0 * threads),
        }
    }
}

/// How an entity comes into a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Arrival {
    New,
    Woken,
    Moved,
}

/// An entity in a queue. Virtual times are nanoseconds at the weight of nice 0.
#[derive(Clone, Copy, Debug)]
struct Item {
    entity: Entity,
    weight: u64,
    vruntime: i64,
    deadline: i64,
    /// Time that it ran since it was picked.
    ran: Nanos,
    /// EEVDF: it sleeps, and stays here until it has no negative lag left.
    is_delayed: bool,
}

impl Item {
    fn virtual_time(&self, time: Nanos) -> i64 {
        (time.0 * NICE_0 / self.weight.max(1)) as i64
    }
}

/// What [`FairQueue::pick`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PickResult {
    Entity(Entity),
    /// This entity slept and leaves the queue only now; pick again. Its place in virtual time is kept as by
    /// [`FairQueue::remove`].
    Left(Entity, i64),
    Nothing,
}

/// Entities of one core that want to run, the running one included.
#[derive(Clone, Debug)]
pub(super) struct FairQueue {
    picker: Picker,
    tunables: Tunables,
    running: Option<Item>,
    waiting: Vec<Item>,
    /// It called `sched_yield`: another one goes first.
    yielded: Option<Entity>,
    /// CFS: never decreases, and is at most the least virtual runtime of all (`min_vruntime`).
    least: i64,
    weight: u64,
}

impl FairQueue {
    pub fn new(picker: Picker, tunables: Tunables) -> FairQueue {
        FairQueue {
            picker,
            tunables,
            running: None,
            waiting: Vec::new(),
            yielded: None,
            least: 0,
            weight: 0,
        }
    }

    /// Entities, delayed ones included (`nr_running`).
    pub fn len(&self) -> usize {
        self.waiting.len() + usize::from(self.running.is_some())
    }

    /// The sum of their weights.
    pub fn weight(&self) -> u64 {
        self.weight
    }

    /// The weight of an entity; zero if it is not here.
    pub fn weight_of(&self, entity: Entity) -> u64 {
        self.items().find(|item| item.entity == entity).map_or(0, |item| item.weight)
    }

    /// Those that do not run, in the order of their arrival, delayed ones left out.
    #[cfg(test)]
    pub fn waiting(&self) -> impl DoubleEndedIterator<Item = Entity> + '_ {
        self.waiting.iter().filter(|item| !item.is_delayed).map(|item| item.entity)
    }

    fn items(&self) -> impl Iterator<Item = &Item> {
        self.running.iter().chain(&self.waiting)
    }

    fn is_eevdf(&self) -> bool {
        matches!(self.picker, Picker::Eevdf { .. })
    }

    /// The weighted mean of all virtual runtimes (`avg_vruntime`).
    fn mean(&self) -> i64 {
        let (mut sum, mut weight) = (0i128, 0i128);
        for item in self.items() {
            sum += i128::from(item.vruntime - self.least) * i128::from(item.weight);
            weight += i128::from(item.weight);
        }
        match weight {
            0 => self.least,
            weight => self.least + sum.div_euclid(weight) as i64,
        }
    }

    fn move_least(&mut self) {
        if let Some(least) = self.items().map(|item| item.vruntime).min() {
            self.least = self.least.max(least);
        }
    }

    /// The running entity ran for this long.
    pub fn charge(&mut self, ran: Nanos) {
        let Some(item) = &mut self.running else { return };
        item.ran += ran;
        item.vruntime += item.virtual_time(ran);
        self.move_least();
    }

    /// An entity comes to wait. `place` is its place in virtual time, [`FairQueue::relative`] to the queue it comes from.
    pub fn put(&mut self, entity: Entity, weight: u64, arrival: Arrival, place: i64) {
        debug_assert!(self.items().all(|item| item.entity != entity), "{entity:?} is here already");
        let mut item =
            Item { entity, weight, vruntime: 0, deadline: 0, ran: Nanos::ZERO, is_delayed: false };
        let slice = item.virtual_time(self.tunables.slice);
        if self.is_eevdf() {
            let lag = if arrival == Arrival::New { 0 } else { place };
            // What joins moves the mean towards itself.
            let lag = match self.weight {
                0 => 0,
                others => {
                    (i128::from(lag) * i128::from(others + weight) / i128::from(others)) as i64
                }
            };
            item.vruntime = self.mean() - lag;
            item.deadline = item.vruntime + if arrival == Arrival::New { slice / 2 } else { slice };
        } else {
            // `GENTLE_FAIR_SLEEPERS`.
            let credit = (self.tunables.latency.0 / 2) as i64;
            item.vruntime = match arrival {
                Arrival::New => {
                    let total = self.weight + weight;
                    let period = self.tunables.period(self.len() as u64 + 1);
                    self.least + item.virtual_time(Nanos(period.0 * weight / total.max(1)))
                }
                Arrival::Woken => (self.least + place).max(self.least - credit),
                Arrival::Moved => self.least + place,
            };
        }
        self.weight += weight;
        self.waiting.push(item);
    }

    /// Takes an entity out; its place in virtual time if it was here.
    pub fn remove(&mut self, entity: Entity) -> Option<i64> {
        let mean = if self.is_eevdf() { self.mean() } else { 0 };
        let item = match self.running {
            Some(item) if item.entity == entity => self.running.take()?,
            _ => {
                let at = self.waiting.iter().position(|item| item.entity == entity)?;
                self.waiting.remove(at)
            }
        };
        self.weight -= item.weight;
        self.yielded = self.yielded.filter(|yielded| *yielded != entity);
        self.move_least();
        if !self.is_eevdf() {
            return Some(item.vruntime);
        }
        let bound = item.virtual_time(Nanos(2 * self.tunables.slice.0));
        Some((mean - item.vruntime).clamp(-bound, bound))
    }

    /// The place of an entity that was removed, now, for [`FairQueue::put`] of any queue. CFS: how far ahead of this queue's
    /// least virtual runtime it is; EEVDF: its lag.
    pub fn relative(&self, place: i64) -> i64 {
        if self.is_eevdf() { place } else { place - self.least }
    }

    /// The running entity goes to sleep. EEVDF may keep it (`DELAY_DEQUEUE`): `None`, and a later pick finds it.
    pub fn sleep(&mut self, entity: Entity) -> Option<i64> {
        let keeps = self.picker == Picker::Eevdf { delayed_dequeue: true };
        let mean = if keeps { self.mean() } else { 0 };
        match self.running {
            Some(item)
                if item.entity == entity && keeps && item.vruntime > mean && self.len() > 1 =>
            {
                self.running = None;
                self.waiting.push(Item { is_delayed: true, ..item });
                None
            }
            _ => self.remove(entity),
        }
    }

    /// A delayed entity wakes where it is; false if it is not here.
    pub fn wake_delayed(&mut self, entity: Entity) -> bool {
        let mut delayed = self.waiting.iter_mut().filter(|item| item.is_delayed);
        match delayed.find(|item| item.entity == entity) {
            Some(item) => {
                item.is_delayed = false;
                item.deadline = item.vruntime + item.virtual_time(self.tunables.slice);
                true
            }
            None => false,
        }
    }

    /// The running entity waits again.
    pub fn put_back(&mut self) {
        if let Some(item) = self.running.take() {
            self.waiting.push(item);
        }
    }

    /// The next entity runs; none may be running.
    pub fn pick(&mut self) -> PickResult {
        debug_assert!(self.running.is_none(), "{:?} runs", self.running);
        let Some(at) = self.best() else { return PickResult::Nothing };
        let mut item = self.waiting[at];
        if item.is_delayed {
            let place = self.remove(item.entity).unwrap_or_default();
            return PickResult::Left(item.entity, place);
        }
        self.waiting.remove(at);
        item.ran = Nanos::ZERO;
        self.running = Some(item);
        self.yielded = None;
        PickResult::Entity(item.entity)
    }

    /// The index of the entity to run next.
    fn best(&self) -> Option<usize> {
        let indices = 0..self.waiting.len();
        if self.is_eevdf() {
            let mean = self.mean();
            let has_lag = |at: &usize| self.waiting[*at].vruntime <= mean;
            let by_deadline = |at: &usize| (self.waiting[*at].deadline, *at);
            let eligible = indices.clone().filter(has_lag).min_by_key(by_deadline);
            return eligible.or_else(|| indices.min_by_key(by_deadline));
        }
        let by_vruntime = |at: &usize| (self.waiting[*at].vruntime, *at);
        let first = indices.clone().min_by_key(by_vruntime)?;
        if self.yielded != Some(self.waiting[first].entity) {
            return Some(first);
        }
        // The second is taken unless it is so far ahead that the first would preempt it.
        let second = indices.filter(|at| *at != first).min_by_key(by_vruntime);
        let is_near = |at: &usize| !self.preempts(&self.waiting[first], &self.waiting[*at]);
        Some(second.filter(is_near).unwrap_or(first))
    }

    /// CFS: whether a woken entity preempts another (`wakeup_preempt_entity`).
    fn preempts(&self, woken: &Item, runs: &Item) -> bool {
        runs.vruntime - woken.vruntime > woken.virtual_time(self.tunables.wakeup)
    }

    /// Whether an entity that came to wait preempts the running one.
    pub fn woken_preempts(&self, entity: Entity) -> bool {
        let Some(runs) = &self.running else { return false };
        let Some(woken) = self.waiting.iter().find(|item| item.entity == entity) else {
            return false;
        };
        match self.picker {
            Picker::Cfs => self.preempts(woken, runs),
            // The running one keeps the core for its slice while it has lag (`RUN_TO_PARITY`); all have the same slice.
            Picker::Eevdf { .. } => {
                let first = self.best().map(|at| self.waiting[at].entity);
                runs.vruntime > self.mean() && first == Some(entity)
            }
        }
    }

    /// A tick: whether the running entity has had its slice. CFS needs the slice, which depends on all levels.
    pub fn slice_is_over(&mut self, slice: Nanos) -> bool {
        let others = self.waiting.iter().map(|item| item.vruntime).min();
        let granularity = self.tunables.granularity;
        let (is_eevdf, next) = (self.is_eevdf(), self.tunables.slice);
        let (Some(item), Some(first)) = (&mut self.running, others) else { return false };
        if is_eevdf {
            let is_over = item.vruntime >= item.deadline;
            if is_over {
                item.deadline = item.vruntime + item.virtual_time(next);
            }
            return is_over;
        }
        item.ran > slice || item.ran >= granularity && item.vruntime - first > slice.0 as i64
    }

    /// The running entity called `sched_yield`.
    pub fn yield_running(&mut self) {
        let (is_eevdf, slice) = (self.is_eevdf(), self.tunables.slice);
        let Some(item) = &mut self.running else { return };
        if is_eevdf {
            item.deadline += item.virtual_time(slice);
        }
        self.yielded = Some(item.entity);
    }

    /// The weight of an entity changes. EEVDF keeps its lag in time (`rescale_entity`).
    pub fn set_weight(&mut self, entity: Entity, weight: u64) {
        let mean = if self.is_eevdf() { Some(self.mean()) } else { None };
        let items = self.running.iter_mut().chain(&mut self.waiting);
        let Some(item) = items.into_iter().find(|item| item.entity == entity) else { return };
        let before = std::mem::replace(&mut item.weight, weight);
        if let Some(mean) = mean {
            let scale = |time: i64| {
                (i128::from(time) * i128::from(before) / i128::from(weight.max(1))) as i64
            };
            let left = item.deadline - item.vruntime;
            item.vruntime = mean - scale(mean - item.vruntime);
            item.deadline = item.vruntime + scale(left);
        }
        self.weight = self.weight + weight - before;
    }
}

#[cfg(test)]
mod tests {
    use super::super::weights;
    use super::*;
    use proptest::prelude::*;

    const PICKERS: [Picker; 3] = [
        Picker::Cfs,
        Picker::Eevdf { delayed_dequeue: false },
        Picker::Eevdf { delayed_dequeue: true },
    ];

    fn queue(picker: Picker) -> FairQueue {
        FairQueue::new(picker, Tunables::of_cores(1))
    }

    fn pick(queue: &mut FairQueue) -> Option<u32> {
        loop {
            match queue.pick() {
                PickResult::Entity(Entity::Thread(thread)) => return Some(thread),
                PickResult::Entity(Entity::Group(_)) => unreachable!(),
                PickResult::Left(..) => {}
                PickResult::Nothing => return None,
            }
        }
    }

    /// Runs threads of these weights for ten seconds with a tick of 1 ms; how long each ran.
    fn shares(picker: Picker, weights: &[u64]) -> Vec<u64> {
        let mut queue = queue(picker);
        for (thread, weight) in weights.iter().enumerate() {
            queue.put(Entity::Thread(thread as u32), *weight, Arrival::New, 0);
        }
        let mut ran = vec![0; weights.len()];
        let mut runs = pick(&mut queue).unwrap();
        for _ in 0..10_000 {
            queue.charge(Nanos::from_millis(1));
            ran[runs as usize] += 1;
            let period = queue.tunables.period(queue.len() as u64);
            let slice = Nanos(period.0 * weights[runs as usize] / queue.weight());
            if queue.slice_is_over(slice) {
                queue.put_back();
                runs = pick(&mut queue).unwrap();
            }
        }
        ran
    }

    #[test]
    fn threads_share_the_core_by_weight() {
        for picker in PICKERS {
            let ran =
                shares(picker, &[weights::of_nice(0), weights::of_nice(0), weights::of_nice(-5)]);
            let all = weights::of_nice(0) * 2 + weights::of_nice(-5);
            for (ran, weight) in
                ran.iter().zip([weights::of_nice(0), weights::of_nice(0), weights::of_nice(-5)])
            {
                let due = 10_000 * weight / all;
                assert!(ran.abs_diff(due) < 200, "{picker:?}: {ran} of {due}");
            }
        }
    }

    #[test]
    fn sleeper_preempts_under_cfs_and_waits_under_eevdf() {
        for picker in PICKERS {
            let mut queue = queue(picker);
            queue.put(Entity::Thread(0), 1_024, Arrival::New, 0);
            queue.put(Entity::Thread(1), 1_024, Arrival::New, 0);
            let slept = pick(&mut queue).unwrap();
            let place = queue.sleep(Entity::Thread(slept)).unwrap_or_default();
            let other = pick(&mut queue).unwrap();
            assert_ne!(slept, other);
            queue.charge(Nanos::from_millis(50));
            let place = queue.relative(place);
            queue.put(Entity::Thread(slept), 1_024, Arrival::Woken, place);
            assert_eq!(queue.woken_preempts(Entity::Thread(slept)), picker == Picker::Cfs);
            assert!(queue.slice_is_over(Nanos::from_millis(3)), "{picker:?}");
            queue.put_back();
            assert_eq!(pick(&mut queue), Some(slept), "{picker:?}");
        }
    }

    #[test]
    fn a_sleeper_is_at_most_half_a_period_behind() {
        let mut queue = queue(Picker::Cfs);
        queue.put(Entity::Thread(0), 1_024, Arrival::New, 0);
        pick(&mut queue).unwrap();
        queue.charge(Nanos::from_secs(5));
        queue.put(Entity::Thread(1), 1_024, Arrival::Woken, -5_000_000_000);
        queue.put_back();
        assert_eq!(pick(&mut queue), Some(1));
        queue.charge(Nanos::from_millis(4));
        queue.put_back();
        assert_eq!(pick(&mut queue), Some(0), "4 ms are more than the credit of 3");
    }

    #[test]
    fn a_thread_that_ran_ahead_of_its_share_is_dequeued_late() {
        let mut queue = queue(Picker::Eevdf { delayed_dequeue: true });
        queue.put(Entity::Thread(0), 1_024, Arrival::New, 0);
        queue.put(Entity::Thread(1), 1_024, Arrival::New, 0);
        let first = pick(&mut queue).unwrap();
        queue.charge(Nanos::from_millis(3));
        assert_eq!(queue.sleep(Entity::Thread(first)), None, "it has negative lag");
        assert_eq!((queue.len(), queue.waiting().count()), (2, 1));
        let second = pick(&mut queue).unwrap();
        assert_ne!(first, second);
        queue.charge(Nanos::from_millis(30));
        queue.put_back();
        // By now the sleeper is behind, so it is picked, and leaves.
        assert!(
            matches!(queue.pick(), PickResult::Left(Entity::Thread(left), lag) if left == first && lag >= 0)
        );
        assert_eq!(pick(&mut queue), Some(second));
    }

    #[test]
    fn a_yield_lets_the_next_one_run_if_it_is_near() {
        let mut queue = queue(Picker::Cfs);
        queue.put(Entity::Thread(0), 1_024, Arrival::Moved, 0);
        queue.put(Entity::Thread(1), 1_024, Arrival::Moved, 500_000);
        assert_eq!(pick(&mut queue), Some(0));
        queue.yield_running();
        queue.put_back();
        assert_eq!(pick(&mut queue), Some(1));
        queue.charge(Nanos::from_millis(9));
        queue.put_back();
        assert_eq!(pick(&mut queue), Some(0));
        queue.yield_running();
        queue.put_back();
        assert_eq!(pick(&mut queue), Some(0), "the other one is 9 ms ahead");
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_weights_add_up(
            at in 0usize..3,
            steps in proptest::collection::vec((0u8..6, 0u32..8, 1u64..4_000), 1..200),
        ) {
            let mut queue = queue(PICKERS[at]);
            let mut here = std::collections::BTreeMap::new();
            for (step, thread, number) in steps {
                let entity = Entity::Thread(thread);
                let known = queue.items().any(|item| item.entity == entity);
                match step {
                    0 if !known => queue.put(entity, number, Arrival::Woken, -(number as i64)),
                    1 => { queue.remove(entity); }
                    2 if queue.running.is_none() => { queue.pick(); }
                    3 => queue.put_back(),
                    4 => queue.charge(Nanos(number * 1_000)),
                    5 => queue.set_weight(entity, number),
                    _ => {}
                }
                here.clear();
                queue.items().for_each(|item| { here.insert(format!("{:?}", item.entity), item.weight); });
                prop_assert_eq!(here.len(), queue.len());
                prop_assert_eq!(here.values().sum::<u64>(), queue.weight());
            }
        }
    }
}
