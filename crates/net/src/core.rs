//! An endpoint's state, under its lock: the engine, the bytes of its sockets, and its channels.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::Waker;

use quell_model::Nanos;
use quell_net_engine::scheduler::Target;
use quell_net_engine::wire::Hello;
use quell_net_engine::{ChannelId, Class, Engine, Key, Notice};

use crate::channel::Channel;
use crate::error::Error;
use crate::helper::LOOK;
use crate::leading::Led;
use crate::memory::Pool;
use crate::outbox::{Outbox, Sent};
use crate::placing::Placing;
use crate::queue::SendQueue;
use crate::socket::{Sockets, Wakers};
use crate::stats::Origin;
use crate::table::SideTable;
use crate::transport::Transport;

/// Where peers are, and how they are reached again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub peer: Key,
    /// Their channel port, if this side has opened the channels.
    pub rendezvous: Option<SocketAddr>,
    /// This side's address towards it.
    pub own: IpAddr,
}

/// Of the two ends of a new channel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    pub peer: SocketAddr,
    /// Where this side opens lost channels again.
    pub rendezvous: Option<SocketAddr>,
    pub own: IpAddr,
    /// Why the channel is there.
    pub origin: Origin,
}

/// Sending that its thread has to do, without the lock.
pub(crate) struct Sending {
    pub key: Key,
    pub outbox: Box<Outbox>,
}

/// See the module.
pub(crate) struct Core {
    pub engine: Engine,
    pub sockets: Sockets,
    pub channels: SideTable<Channel>,
    pub pool: Arc<Pool>,
    pub listeners: BTreeMap<Key, Wakers>,
    pub routes: BTreeMap<IpAddr, Vec<Route>>,
    /// Channels with something to send that the program's threads send on.
    queue: SendQueue,
    /// Threads that send and read channels on cores of theirs, where a policy places them.
    pub placing: Option<Placing>,
    /// To be woken once the lock is free.
    pub wakes: Vec<Waker>,
    /// The same, for bulk data that has come: more may be on its way.
    bulk_wakes: Vec<Waker>,
    /// Peers to which channels are missing, to be opened again.
    pub missing: Vec<Key>,
    /// Peers to which a thread opens channels.
    pub reopening: BTreeSet<Key>,
    helper: Waker,
    /// When the helper looks next, by itself.
    pub helper_until: Nanos,
    /// It looks only when it is woken.
    pub is_helper_idle: bool,
    /// Since its last look a thread has left something that it has to send soon.
    pub needs_looks: bool,
    /// Tasks, which have no thread that reads for them, wait.
    pub has_tasks: bool,
    /// How many channels of the throughput class peers should have, where a policy decides that, and why.
    pub targets: BTreeMap<Key, Target>,
    pub is_closed: bool,
    next_port: u16,
    next_number: u32,
}

impl Core {
    pub fn new(engine: Engine, helper: Waker) -> Core {
        let queue = SendQueue::new(engine.config().latency_percent);
        Core {
            engine,
            sockets: Sockets::default(),
            channels: SideTable::default(),
            pool: Arc::new(Pool::default()),
            listeners: BTreeMap::new(),
            routes: BTreeMap::new(),
            queue,
            placing: None,
            wakes: Vec::new(),
            bulk_wakes: Vec::new(),
            missing: Vec::new(),
            reopening: BTreeSet::new(),
            helper,
            helper_until: Nanos::ZERO,
            is_helper_idle: false,
            needs_looks: false,
            has_tasks: false,
            targets: BTreeMap::new(),
            is_closed: false,
            next_port: 49_152,
            next_number: 1,
        }
    }

    /// A channel is up.
    pub fn add_channel(
        &mut self,
        hello: &Hello,
        is_ours: bool,
        transport: Transport,
        addresses: Addresses,
        now: Nanos,
    ) -> Result<Key, Error> {
        let Addresses { peer: address, rendezvous, own, origin } = addresses;
        if self.is_closed {
            return Err(Error::Closed);
        }
        let key = self
            .engine
            .channel_up(hello, is_ours, transport.caps, now)
            .map_err(|source| Error::Refused { address, source })?;
        let Some(peer) = self.engine.peer(hello.endpoint) else { return Err(Error::Closed) };
        let routes = self.routes.entry(address.ip().to_canonical()).or_default();
        match routes.iter_mut().find(|route| route.peer == peer) {
            Some(known) => known.rendezvous = known.rendezvous.or(rendezvous),
            None => routes.push(Route { peer, rendezvous, own }),
        }
        let channel = Channel::new(hello.class, peer, transport, origin, &self.pool);
        self.channels.insert(key, channel);
        self.place(key);
        self.wake_helper();
        Ok(key)
    }

    /// Has a thread woken once the lock is free.
    pub fn wake(&mut self, waker: Option<Waker>) {
        self.wakes.extend(waker);
    }

    /// Has the helper look.
    pub fn wake_helper(&mut self) {
        self.wakes.push(self.helper.clone());
    }

    /// Handles the engine's notices. Returns the wakers to call once the lock is free, those of readers of bulk data apart, and
    /// whether there is something to send.
    pub fn dispatch(&mut self) -> ([Vec<Waker>; 2], bool) {
        while let Some(notice) = self.engine.notice() {
            match notice {
                Notice::Readable(key) => {
                    let readers = self.sockets.get_mut(key).map(|it| it.readers.take());
                    let is_bulk = self.engine.class_of(key) == Some(Class::Throughput);
                    let wakes = if is_bulk { &mut self.bulk_wakes } else { &mut self.wakes };
                    wakes.extend(readers.into_iter().flatten());
                }
                Notice::Writable(key) | Notice::Connected(key) => {
                    let writers = self.sockets.get_mut(key).map(|it| it.writers.take());
                    self.wakes.extend(writers.into_iter().flatten());
                }
                Notice::Freed(key) => self.free_written(key),
                Notice::Acceptable(key) => {
                    let waiting = self.listeners.get_mut(&key).map(Wakers::take);
                    self.wakes.extend(waiting.into_iter().flatten());
                }
                Notice::Send(key) => self.queue(key),
                Notice::Pause(key, is_paused) => {
                    if let Some(channel) = self.channels.get_mut(key) {
                        channel.is_paused = is_paused;
                        self.wakes.extend(channel.next_leader());
                    }
                    self.wake_thread_of(key);
                    self.wake_helper();
                }
                Notice::Close(key) => self.drop_channel(key),
                // Seen when the last one of the class was lost.
                Notice::Missing(..) => {}
                Notice::Gone(key) => self.sockets.remove(key),
                Notice::PeerGone(peer) => {
                    self.routes.values_mut().for_each(|of| of.retain(|route| route.peer != peer));
                    self.routes.retain(|_, of| !of.is_empty());
                    self.targets.remove(&peer);
                }
            }
        }
        if self.engine.next_timer().is_some_and(|at| at < self.helper_until) {
            // Once: it sets this again when it has looked.
            self.helper_until = Nanos::ZERO;
            self.wake_helper();
        }
        let wakes = [std::mem::take(&mut self.wakes), std::mem::take(&mut self.bulk_wakes)];
        let has_placed = self.placing.as_ref().is_some_and(Placing::has_sleeping_sender);
        (wakes, !self.queue.is_empty() || has_placed)
    }

    /// A channel has something to send: its own thread does that, or whichever is next to send.
    pub fn queue(&mut self, key: Key) {
        let placed = self.channels.get(key).and_then(|channel| channel.thread);
        match placed.and_then(|index| self.placing.as_mut()?.thread_mut(index)) {
            Some(thread) => thread.queue.push(key),
            None => self.queue.push(key),
        }
    }

    fn free_written(&mut self, key: Key) {
        if let Some((needed, _)) = self.engine.send_range(key)
            && let Some(socket) = self.sockets.get_mut(key)
        {
            socket.written.free_below(needed);
        }
    }

    /// The next channel with something to send on which no thread sends, its frames gathered: those of the latency class first,
    /// up to their share, and for its threads only those. Wakes the threads of placed channels.
    pub fn next_sending(&mut self, only_latency: bool, now: Nanos) -> Option<Sending> {
        if let Some(placing) = &mut self.placing {
            placing.wake_senders(&mut self.wakes);
        }
        loop {
            let (next, leaves_bulk) = self.queue.next(only_latency, &self.channels);
            if leaves_bulk {
                // Its writers wait, or the helper looks.
                self.leave_to_helper(now);
            }
            if let Some(sending) = self.gather(next?, None, now) {
                return Some(sending);
            }
        }
    }

    /// The same for the thread of placed channels.
    pub fn next_sending_of(&mut self, thread: usize, now: Nanos) -> Option<Sending> {
        loop {
            let placing = self.placing.as_mut()?.thread_mut(thread)?;
            let (next, _) = placing.queue.next(false, &self.channels);
            if let Some(sending) = self.gather(next?, Some(thread), now) {
                return Some(sending);
            }
        }
    }

    /// Gathers the frames of a channel, if it is its turn and that of this thread.
    fn gather(&mut self, key: Key, thread: Option<usize>, now: Nanos) -> Option<Sending> {
        let is_due = |it: &&mut Channel| !it.is_blocked && it.thread == thread;
        let channel = self.channels.get_mut(key).filter(is_due)?;
        // A thread that sends looks for more before it leaves.
        let mut outbox = channel.outbox.take()?;
        outbox.gather(&mut self.engine, key, &self.sockets, now);
        channel.was_sent_on = true;
        if outbox.is_empty() {
            channel.outbox = Some(outbox);
            return None;
        }
        let (class, rtt) = (channel.class, channel.rtt);
        let queue = match thread.and_then(|index| self.placing.as_mut()?.thread_mut(index)) {
            Some(thread) => &mut thread.queue,
            None => &mut self.queue,
        };
        queue.sent(class, outbox.backlog(), &self.channels);
        // Others choose another channel meanwhile, if there is one.
        self.engine.channel_load(key, outbox.backlog(), false, rtt);
        Some(Sending { key, outbox })
    }

    /// A thread has sent.
    pub fn sent(&mut self, sending: Sending, result: std::io::Result<Sent>, now: Nanos) {
        let Sending { key, outbox } = sending;
        let Some(channel) = self.channels.get_mut(key) else { return };
        match result {
            Ok(sent) => {
                channel.is_blocked = sent == Sent::Part;
                if channel.is_blocked && channel.room_leader.is_none() {
                    // The thread that has sent may have something else to do.
                    self.wakes.extend(channel.room_followers.first());
                }
                // The wake-up that the helper asked for was for the room that it had before.
                channel.armed.for_room &= !channel.is_blocked;
                let (backlog, rtt) = (outbox.backlog(), channel.rtt);
                channel.sent = outbox.carried();
                channel.outbox = Some(outbox);
                let is_placed = channel.thread.is_some();
                if sent == Sent::Part {
                    match is_placed {
                        // The channel may have moved to it since, and it has found nothing to wait for.
                        true => self.wake_thread_of(key),
                        false => self.leave_to_helper(now),
                    }
                }
                self.engine.channel_load(key, backlog, sent == Sent::Part, rtt);
                if sent == Sent::All && self.engine.has_frame(key) {
                    self.queue(key);
                }
                if sent == Sent::All {
                    self.pass_turn(key);
                    self.close_retired(key, now);
                }
            }
            Err(error) => {
                tracing::debug!("channel {key:?}: cannot send: {error}");
                self.lose_channel(key, now);
            }
        }
    }

    /// A channel's transport has room again.
    pub fn unblock(&mut self, key: Key) {
        let Some(channel) = self.channels.get_mut(key) else { return };
        if std::mem::take(&mut channel.is_blocked) {
            channel.room_leader = None;
            let backlog = channel.outbox.as_ref().map_or(0, |outbox| outbox.backlog());
            self.engine.channel_load(key, backlog, false, channel.rtt);
            self.queue(key);
            if backlog == 0 {
                self.pass_turn(key);
            }
        }
    }

    /// Has the helper look from now on, unless it does.
    pub fn rouse_helper(&mut self) {
        if std::mem::take(&mut self.is_helper_idle) {
            self.wake_helper();
        }
    }

    /// The same for something that is left to it to send: it looks soon.
    pub fn leave_to_helper(&mut self, now: Nanos) {
        self.rouse_helper();
        if !std::mem::replace(&mut self.needs_looks, true) && !self.looks_soon(now) {
            self.wake_helper();
        }
    }

    /// Whether the helper looks within its shortest interval.
    pub fn looks_soon(&self, now: Nanos) -> bool {
        self.helper_until.0 <= now.0 + LOOK.0
    }

    /// An event of a channel has woken the helper: the channel is armed no more.
    pub fn told(&mut self, key: Key) {
        if let Some(channel) = self.channels.get_mut(key)
            && std::mem::take(&mut channel.armed).for_room
        {
            self.unblock(key);
        }
    }

    /// Takes apart what a thread has read.
    pub fn parse(&mut self, led: &mut Vec<Led>, now: Nanos) {
        let (mut lost, mut retired) = (Vec::new(), Vec::new());
        for Led { key, inbox, input, .. } in led.iter_mut() {
            let input = std::mem::take(input);
            let Some(channel) = self.channels.get_mut(*key).filter(|_| !input.is_empty()) else {
                continue;
            };
            channel.received.count(input.bytes(), input.time);
            let is_end = input.is_end;
            let result = inbox.parse(input, &mut self.engine, *key, &mut self.sockets, now);
            if let Err(error) = &result {
                tracing::warn!("channel {key:?} is ended: {error}");
            }
            if is_end || result.is_err() {
                lost.push(*key);
            } else if self.engine.is_retired(*key) {
                retired.push(*key);
            }
        }
        for key in lost {
            self.lose_channel(key, now);
        }
        for key in retired {
            self.close_retired(key, now);
        }
        for index in (0..led.len()).rev() {
            if self.channels.get(led[index].key).is_none() {
                led.swap_remove(index).inbox.end(&mut self.engine);
            }
        }
    }

    /// Closes a channel that was given up at both ends, once all is sent.
    fn close_retired(&mut self, key: Key, now: Nanos) {
        let is_sent = self.channels.get(key).is_some_and(Channel::is_free);
        if is_sent && self.engine.is_retired(key) {
            self.lose_channel(key, now);
        }
    }

    /// A channel has ended.
    pub fn lose_channel(&mut self, key: Key, now: Nanos) {
        self.engine.channel_down(key, now);
        self.drop_channel(key);
    }

    /// Frees a channel that the engine has no more. A thread that uses it learns that when it comes back.
    fn drop_channel(&mut self, key: Key) {
        self.wake_thread_of(key);
        let Some(mut channel) = self.channels.remove(key) else { return };
        channel.readiness.end();
        self.missing.push(channel.peer);
        if let Some(mut inbox) = channel.inbox.take() {
            inbox.end(&mut self.engine);
        }
        self.wakes.extend(channel.leader.take().map(|leader| leader.waker));
        self.wakes.extend(channel.followers.take());
        self.wakes.extend(channel.acceptors.take());
        self.wakes.extend(channel.turns.take());
        self.wakes.extend(channel.room_leader.take());
        self.wakes.extend(channel.room_followers.take());
        self.wake_helper();
    }

    /// Ends all channels.
    pub fn close_channels(&mut self, now: Nanos) {
        let keys: Vec<Key> = self.channels.keys().collect();
        keys.into_iter().for_each(|key| self.lose_channel(key, now));
    }

    /// The peer that has an address.
    pub fn route(&self, address: SocketAddr) -> Option<Route> {
        self.routes.get(&address.ip().to_canonical())?.first().copied()
    }

    /// The number of a channel that this side opens.
    pub fn channel_number(&mut self) -> ChannelId {
        let number = self.next_number;
        self.next_number = number.wrapping_add(1);
        ChannelId(number)
    }

    /// A port for the opener's end of a stream: a number by which statistics distinguish streams.
    pub fn port(&mut self) -> u16 {
        let port = self.next_port;
        self.next_port = if port == u16::MAX { 49_152 } else { port + 1 };
        port
    }
}
