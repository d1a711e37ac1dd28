//! Channels on cores: a policy gives each a core, and a thread of the endpoint that keeps to that core sends and reads it.
//!
//! So transmission, the softirq that it raises and reception are on one core, and the two classes on two, where there are as
//! many. The program's threads leave what they write to such a thread, and sleep until it has read something of theirs.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::task::Waker;

use quell_model::{CoreId, CoreSet, Nanos, Topology};
use quell_net_engine::scheduler::{ChannelPlace, Placement};
use quell_net_engine::{Class, Key};
use quell_os::{Tid, sched, topology};

use crate::channel::Channel;
use crate::core::Core;
use crate::error::Error;
use crate::leading::Led;
use crate::queue::SendQueue;
use crate::shared::Blocked;
use crate::waiter::Waiter;

/// The cores of the host, and those that an endpoint's threads may be kept to.
#[derive(Clone, Debug)]
pub(crate) struct Cores {
    pub topology: Arc<Topology>,
    pub allowed: CoreSet,
}

impl Cores {
    /// As configured, or as the host has them. Where no policy uses them, the host is not asked.
    pub fn of(
        is_used: bool,
        topology: Option<Topology>,
        allowed: Option<CoreSet>,
    ) -> Result<Cores, Error> {
        let failed = |source| Error::io("read the cores of the host", source);
        let topology = match topology {
            Some(topology) => topology,
            None if is_used => topology::read_at(Path::new(topology::SYSFS)).map_err(failed)?,
            None => Topology::regular(1, 1, 1).map_err(|error| failed(io::Error::other(error)))?,
        };
        let allowed = match allowed {
            Some(allowed) => allowed,
            None if is_used => sched::affinity(Tid(0)).map_err(failed)?,
            None => CoreSet::EMPTY,
        };
        Ok(Cores { topology: Arc::new(topology), allowed })
    }
}

/// The core that the calling thread is on at this moment.
pub(crate) fn current_core() -> Option<CoreId> {
    u16::try_from(rustix::thread::sched_getcpu()).ok().map(CoreId)
}

/// See the module.
pub(crate) struct Placing {
    policy: Box<dyn Placement>,
    cores: Cores,
    /// Where the program made the endpoint.
    near: Option<CoreId>,
    threads: Vec<PlacedThread>,
}

/// A thread that sends and reads channels on one core.
pub(crate) struct PlacedThread {
    pub core: CoreId,
    waker: Waker,
    /// Until it is started: what it sleeps on.
    waiter: Option<Arc<Waiter>>,
    pub queue: SendQueue,
    /// It looks at its queue before it sleeps.
    is_awake: bool,
    pub state: ThreadState,
}

/// How far a thread is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ThreadState {
    /// The helper has to start it.
    Wanted,
    /// It was started. The cores that it may use are not known yet.
    Started,
    /// It runs. Whether the kernel keeps it to its core, as was read back.
    Runs(bool),
    /// It could not be started: the program's threads do its work.
    Failed,
}

impl PlacedThread {
    fn new(core: CoreId, waker: Waker, latency_percent: u8) -> PlacedThread {
        let queue = SendQueue::new(latency_percent);
        PlacedThread {
            core,
            waker,
            waiter: None,
            queue,
            is_awake: false,
            state: ThreadState::Wanted,
        }
    }

    fn wake(&mut self, wakes: &mut Vec<Waker>) {
        self.is_awake = true;
        wakes.push(self.waker.clone());
    }
}

impl Placing {
    /// Near the calling thread.
    pub fn new(policy: Box<dyn Placement>, cores: Cores) -> Placing {
        Placing { policy, cores, near: current_core(), threads: Vec::new() }
    }

    pub fn threads(&self) -> &[PlacedThread] {
        &self.threads
    }

    pub fn thread_mut(&mut self, index: usize) -> Option<&mut PlacedThread> {
        self.threads.get_mut(index)
    }

    /// Whether a thread sleeps that has something to send.
    pub fn has_sleeping_sender(&self) -> bool {
        self.threads.iter().any(|it| !it.is_awake && !it.queue.is_empty())
    }

    /// Has those woken.
    pub fn wake_senders(&mut self, wakes: &mut Vec<Waker>) {
        let due = |it: &&mut PlacedThread| !it.is_awake && !it.queue.is_empty();
        self.threads.iter_mut().filter(due).for_each(|thread| thread.wake(wakes));
    }

    /// A core for each channel; `None` where the policy has none, or another one than it may use.
    fn places(&self, classes: &[Class]) -> Option<Vec<CoreId>> {
        let channels: Vec<ChannelPlace> =
            classes.iter().map(|class| ChannelPlace { class: *class, near: self.near }).collect();
        let places = self.policy.place(&self.cores.topology, &self.cores.allowed, &channels)?;
        let is_valid = places.len() == channels.len()
            && places.iter().all(|core| self.cores.allowed.contains(*core));
        if !is_valid {
            tracing::warn!("the placement policy has chosen cores that it may not use: {places:?}");
        }
        is_valid.then_some(places)
    }

    /// The thread on a core, which is started if there is none. `None` if it cannot be.
    fn thread_on(&mut self, core: CoreId, latency_percent: u8) -> Option<usize> {
        if let Some(index) = self.threads.iter().position(|it| it.core == core) {
            return (self.threads[index].state != ThreadState::Failed).then_some(index);
        }
        let waiter = match Waiter::new() {
            Ok(waiter) => Arc::new(waiter),
            Err(error) => {
                tracing::warn!("a channel is not placed on core {core}: {error}");
                return None;
            }
        };
        let waker = Waker::from(Arc::clone(&waiter));
        self.threads.push(PlacedThread {
            waiter: Some(waiter),
            ..PlacedThread::new(core, waker, latency_percent)
        });
        Some(self.threads.len() - 1)
    }

    /// One that a model runs.
    #[cfg(test)]
    pub fn of_thread(core: CoreId, waker: Waker) -> Placing {
        let topology =
            Topology::new(vec![quell_model::Core { id: core, physical: 0, llc: 0, node: 0 }]);
        let cores =
            Cores { topology: Arc::new(topology.expect("a core")), allowed: CoreSet::of(core) };
        let threads = vec![PlacedThread {
            state: ThreadState::Runs(true),
            ..PlacedThread::new(core, waker, 80)
        }];
        let policy = Box::new(quell_net_engine::scheduler::Apart);
        Placing { policy, cores, near: None, threads }
    }
}

impl Core {
    /// Gives a new channel a core. Those before it may get another one.
    pub fn place(&mut self, new: Key) {
        let Some(placing) = &mut self.placing else { return };
        let is_placed = |key: &Key| {
            *key == new || self.channels.get(*key).is_some_and(|it| it.thread.is_some())
        };
        let mut keys: Vec<Key> = self.channels.keys().filter(is_placed).collect();
        // The oldest first: as a rule those keep their cores.
        keys.sort_by_key(|key| self.engine.channel_id(*key).map(|id| id.0));
        let class = |key: &Key| self.channels.get(*key).map_or(Class::Throughput, |it| it.class);
        let classes: Vec<Class> = keys.iter().map(class).collect();
        let Some(places) = placing.places(&classes) else { return };
        let latency_percent = self.engine.config().latency_percent;
        let mut moved = Vec::new();
        for (key, core) in keys.into_iter().zip(places) {
            let Some(index) = placing.thread_on(core, latency_percent) else { continue };
            let Some(channel) = self.channels.get_mut(key) else { continue };
            if let Some(before) = channel.thread.replace(index).filter(|it| *it != index)
                && let Some(thread) = placing.thread_mut(before)
            {
                // It gives the channel up.
                thread.wake(&mut self.wakes);
            }
            moved.push(key);
        }
        for key in moved {
            self.queue(key);
            self.wake_thread_of(key);
        }
    }

    /// Has the thread of a placed channel look at it.
    pub fn wake_thread_of(&mut self, key: Key) {
        let placed = self.channels.get(key).and_then(|channel| channel.thread);
        if let Some(thread) = placed.and_then(|index| self.placing.as_mut()?.thread_mut(index)) {
            thread.wake(&mut self.wakes);
        }
    }

    /// Has all of them look: the endpoint is closed.
    pub fn wake_threads(&mut self) {
        let threads = self.placing.iter_mut().flat_map(|placing| &mut placing.threads);
        threads.for_each(|thread| thread.wake(&mut self.wakes));
    }

    /// Threads that have to be started.
    pub fn take_wanted_threads(&mut self) -> Vec<(usize, CoreId, Arc<Waiter>)> {
        let threads = self.placing.iter_mut().flat_map(|placing| &mut placing.threads);
        let start = |(index, thread): (usize, &mut PlacedThread)| {
            let waiter = thread.waiter.take()?;
            thread.state = ThreadState::Started;
            Some((index, thread.core, waiter))
        };
        threads.enumerate().filter_map(start).collect()
    }

    /// A thread says whether the kernel keeps it to its core.
    pub fn note_kept(&mut self, index: usize, is_kept: bool) {
        let thread = self.placing.as_mut().and_then(|placing| placing.thread_mut(index));
        if let Some(thread) = thread {
            thread.state = ThreadState::Runs(is_kept);
        }
    }

    /// A thread has panicked. Of a frame that had come in part no more comes: its bytes are to be taken when they are sent again.
    pub fn lose_thread(&mut self, index: usize, led: Vec<Led>, now: Nanos) {
        led.into_iter().for_each(|mut it| it.inbox.end(&mut self.engine));
        self.give_up_thread(index, now);
    }

    /// A thread could not be started, or has panicked: the program's threads send and read its channels. Those that it had are
    /// lost with it.
    pub fn give_up_thread(&mut self, index: usize, now: Nanos) {
        let thread = self.placing.as_mut().and_then(|placing| placing.thread_mut(index));
        if let Some(thread) = thread {
            thread.state = ThreadState::Failed;
        }
        let (mut left, mut lost) = (Vec::new(), Vec::new());
        for (key, channel) in self.channels.iter_mut().filter(|(_, it)| it.thread == Some(index)) {
            channel.thread = None;
            let is_whole = channel.inbox.is_some() && channel.outbox.is_some();
            if is_whole { left.push(key) } else { lost.push(key) }
        }
        left.into_iter().for_each(|key| self.queue(key));
        lost.into_iter().for_each(|key| self.lose_channel(key, now));
        self.wake_helper();
    }

    /// What the thread of placed channels does next: takes apart what it has read, and takes the inboxes that it is to read.
    pub fn look_of_thread(&mut self, index: usize, led: &mut Vec<Led>, now: Nanos) -> ThreadLook {
        self.parse(led, now);
        let is_own = |it: &Channel| it.thread == Some(index) && !it.is_paused;
        let mut others = Vec::new();
        for place in (0..led.len()).rev() {
            if !self.channels.get(led[place].key).is_some_and(is_own) {
                others.push(led.swap_remove(place));
            }
        }
        for Led { key, inbox, .. } in others {
            if let Some(channel) = self.channels.get_mut(key) {
                channel.inbox = Some(inbox);
            }
            self.wake_reader_of(key, index);
        }
        let mut blocked: Blocked = Vec::new();
        for (key, channel) in self.channels.iter_mut().filter(|(_, it)| it.thread == Some(index)) {
            if channel.is_blocked {
                blocked.push((key, Arc::clone(&channel.readiness)));
            }
            if let Some(inbox) = channel.inbox.take_if(|_| !channel.is_paused) {
                led.push(Led::new(key, channel.class, inbox, &channel.readiness));
            }
        }
        let is_closed = self.is_closed;
        let thread = self.placing.as_mut().and_then(|placing| placing.thread_mut(index));
        let has_more = thread.is_some_and(|thread| {
            thread.is_awake = !thread.queue.is_empty();
            thread.is_awake
        });
        ThreadLook { blocked, has_more, is_closed }
    }

    /// A thread has given a channel up: the one that has it now reads on, or the helper.
    fn wake_reader_of(&mut self, key: Key, index: usize) {
        match self.channels.get(key).map(|channel| channel.thread) {
            Some(Some(other)) if other != index => self.wake_thread_of(key),
            Some(None) => self.wake_helper(),
            _ => {}
        }
    }

    /// A thread ends: the channels that it has read are no one's.
    pub fn end_thread(&mut self, led: &mut Vec<Led>) {
        for Led { key, mut inbox, .. } in led.drain(..) {
            match self.channels.get_mut(key) {
                Some(channel) => channel.inbox = Some(inbox),
                None => inbox.end(&mut self.engine),
            }
        }
    }
}

/// See [`Core::look_of_thread`].
pub(crate) struct ThreadLook {
    /// Its channels that have no room.
    pub blocked: Blocked,
    /// It has something to send.
    pub has_more: bool,
    pub is_closed: bool,
}
