//! An endpoint's state, under its lock: the engine, the bytes of its sockets, and its channels.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::task::Waker;

use quell_model::Nanos;
use quell_net_engine::wire::Hello;
use quell_net_engine::{ChannelId, Class, Engine, Key, Notice};

use crate::channel::{Channel, Leader};
use crate::error::Error;
use crate::helper::LOOK;
use crate::inbox::{Inbox, Input};
use crate::memory::Pool;
use crate::outbox::{Outbox, Sent};
use crate::socket::{Sockets, Wakers};
use crate::table::SideTable;
use crate::transport::{Readiness, Transport};
use crate::waiter::Waiter;

/// How long a channel of the latency class is left to threads that wait for latency sockets, after one has read it: others
/// would have it read by a thread that is busy with bulk data.
const RESERVED: Nanos = Nanos::from_millis(10);

/// A channel whose leader has read for other threads within this time is read by one of them when it leaves. Otherwise it
/// comes back before the helper has looked, as a rule.
const SHARED_FOR: Nanos = Nanos::from_millis(1);

/// Peers whose channels a thread reads that waits for new streams.
const ACCEPTOR_PEERS_MAX: usize = 4;

/// Where peers are, and how they are reached again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Route {
    pub peer: Key,
    /// Their channel port, if this side has opened the channels.
    pub rendezvous: Option<SocketAddr>,
    /// This side's address towards it.
    pub own: IpAddr,
}

/// What a thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Interest {
    pub peer: Key,
    pub class: Class,
    /// Control frames may end the wait: credit, an answer to an open frame.
    pub wants_control: bool,
    /// It waits for new streams: it reads what no other thread does, and waits for no other to leave it that.
    pub is_weak: bool,
}

/// A channel's inbox in the hands of the thread that reads it.
pub(crate) struct Led {
    pub key: Key,
    pub class: Class,
    pub inbox: Box<Inbox>,
    pub readiness: Arc<dyn Readiness>,
    pub input: Input,
}

impl Led {
    /// Whether its thread may let bulk data gather.
    pub fn may_nap(&self) -> bool {
        self.class == Class::Throughput && self.inbox.is_bulk()
    }
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
    /// Channels with something to send.
    to_send: VecDeque<Key>,
    /// To be woken once the lock is free.
    wakes: Vec<Waker>,
    /// Peers to which channels are missing, to be opened again.
    pub missing: Vec<Key>,
    /// Peers to which a thread opens channels.
    pub reopening: BTreeSet<Key>,
    pub helper: Arc<Waiter>,
    /// When the helper looks next, by itself.
    pub helper_until: Nanos,
    /// It looks only when it is woken.
    pub is_helper_idle: bool,
    /// Since its last look a thread has left something that it has to send soon.
    pub needs_looks: bool,
    /// Tasks, which have no thread that reads for them, wait.
    pub has_tasks: bool,
    pub is_closed: bool,
    next_port: u16,
    next_number: u32,
}

impl Core {
    pub fn new(engine: Engine, helper: Arc<Waiter>) -> Core {
        Core {
            engine,
            sockets: Sockets::default(),
            channels: SideTable::default(),
            pool: Arc::new(Pool::default()),
            listeners: BTreeMap::new(),
            routes: BTreeMap::new(),
            to_send: VecDeque::new(),
            wakes: Vec::new(),
            missing: Vec::new(),
            reopening: BTreeSet::new(),
            helper,
            helper_until: Nanos::ZERO,
            is_helper_idle: false,
            needs_looks: false,
            has_tasks: false,
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
        addresses: (SocketAddr, IpAddr),
        now: Nanos,
    ) -> Result<Key, Error> {
        let (address, own) = addresses;
        if self.is_closed {
            return Err(Error::Closed);
        }
        let key = self
            .engine
            .channel_up(hello, is_ours, transport.caps, now)
            .map_err(|source| Error::Refused { address, source })?;
        let Some(peer) = self.engine.peer(hello.endpoint) else { return Err(Error::Closed) };
        let rendezvous = is_ours.then_some(address);
        let routes = self.routes.entry(address.ip().to_canonical()).or_default();
        match routes.iter_mut().find(|route| route.peer == peer) {
            Some(known) => known.rendezvous = known.rendezvous.or(rendezvous),
            None => routes.push(Route { peer, rendezvous, own }),
        }
        let channel = Channel::new(hello.class, peer, transport, &self.pool);
        self.channels.insert(key, channel);
        self.wake_helper();
        Ok(key)
    }

    /// Has a thread woken once the lock is free.
    pub fn wake(&mut self, waker: Option<Waker>) {
        self.wakes.extend(waker);
    }

    /// Has the helper look.
    pub fn wake_helper(&mut self) {
        self.wakes.push(Waker::from(Arc::clone(&self.helper)));
    }

    /// Handles the engine's notices. Returns the wakers to call once the lock is free, and whether there is
    /// something to send.
    pub fn dispatch(&mut self) -> (Vec<Waker>, bool) {
        while let Some(notice) = self.engine.notice() {
            match notice {
                Notice::Readable(key) => {
                    let readers = self.sockets.get_mut(key).map(|it| it.readers.take());
                    self.wakes.extend(readers.into_iter().flatten());
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
                Notice::Send(key) => self.to_send.push_back(key),
                Notice::Pause(key, is_paused) => {
                    if let Some(channel) = self.channels.get_mut(key) {
                        channel.is_paused = is_paused;
                        self.wakes.extend(channel.next_leader());
                    }
                    self.wake_helper();
                }
                Notice::Close(key) => self.drop_channel(key),
                // Seen when the last one of the class was lost.
                Notice::Missing(..) => {}
                Notice::Gone(key) => self.sockets.remove(key),
                Notice::PeerGone(peer) => {
                    self.routes.values_mut().for_each(|of| of.retain(|route| route.peer != peer));
                    self.routes.retain(|_, of| !of.is_empty());
                }
            }
        }
        if self.engine.next_timer().is_some_and(|at| at < self.helper_until) {
            // Once: it sets this again when it has looked.
            self.helper_until = Nanos::ZERO;
            self.wake_helper();
        }
        (std::mem::take(&mut self.wakes), !self.to_send.is_empty())
    }

    fn free_written(&mut self, key: Key) {
        if let Some((needed, _)) = self.engine.send_range(key)
            && let Some(socket) = self.sockets.get_mut(key)
        {
            socket.written.free_below(needed);
        }
    }

    /// The next channel with something to send on which no thread sends, its frames gathered: those of the latency class first,
    /// and for its threads only those.
    pub fn next_sending(&mut self, only_latency: bool, now: Nanos) -> Option<Sending> {
        while let Some(key) = self.next_to_send(only_latency) {
            let Some(channel) = self.channels.get_mut(key).filter(|it| !it.is_blocked) else {
                continue;
            };
            // A thread that sends looks for more before it leaves.
            let Some(mut outbox) = channel.outbox.take() else { continue };
            outbox.gather(&mut self.engine, key, &self.sockets, now);
            channel.was_sent_on = true;
            if outbox.is_empty() {
                channel.outbox = Some(outbox);
                continue;
            }
            // Others choose another channel meanwhile, if there is one.
            self.engine.channel_load(key, outbox.backlog(), false, Nanos::ZERO);
            return Some(Sending { key, outbox });
        }
        None
    }

    fn next_to_send(&mut self, only_latency: bool) -> Option<Key> {
        let is_latency = |key: &Key| {
            self.channels.get(*key).is_none_or(|channel| channel.class == Class::Latency)
        };
        match self.to_send.iter().position(is_latency) {
            Some(index) => self.to_send.remove(index),
            None if only_latency => {
                if !self.to_send.is_empty() {
                    // Its writers wait, or the helper looks.
                    self.rouse_helper();
                }
                None
            }
            None => self.to_send.pop_front(),
        }
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
                let backlog = outbox.backlog();
                channel.outbox = Some(outbox);
                if sent == Sent::Part {
                    self.rouse_helper();
                }
                self.engine.channel_load(key, backlog, sent == Sent::Part, Nanos::ZERO);
                if sent == Sent::All && self.engine.has_frame(key) {
                    self.to_send.push_back(key);
                } else if sent == Sent::All {
                    self.pass_turn(key);
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
            self.engine.channel_load(key, backlog, false, Nanos::ZERO);
            self.to_send.push_back(key);
            if backlog == 0 {
                self.pass_turn(key);
            }
        }
    }

    /// The channels that carry a class to a peer: those of another if it has none.
    fn channels_of(&self, peer: Key, class: Class) -> impl Iterator<Item = Key> {
        let has_own = self.engine.channels(peer).any(|(_, of)| of == class);
        let of_class = move |it: &(Key, Class)| !has_own || it.1 == class;
        self.engine.channels(peer).filter(of_class).map(|(key, _)| key)
    }

    /// Channels that a thread reads, or that can be written for it.
    pub fn channels_for(&self, interest: Interest) -> Vec<Key> {
        let mut keys: Vec<Key> = self.channels_of(interest.peer, interest.class).collect();
        let is_apart = interest.class != Class::Latency && self.engine.has_control_apart();
        if interest.wants_control && is_apart {
            let control = self.channels_of(interest.peer, Class::Latency);
            control.for_each(|key| {
                if !keys.contains(&key) {
                    keys.push(key);
                }
            });
        }
        keys
    }

    /// Full channels that no other thread waits for: this one has them sent on.
    pub fn blocked_for(
        &mut self,
        interests: &[Interest],
        waker: &Waker,
    ) -> Vec<(Key, Arc<dyn Readiness>)> {
        let mut blocked: Vec<(Key, Arc<dyn Readiness>)> = Vec::new();
        let keys: Vec<Key> =
            interests.iter().flat_map(|interest| self.channels_for(*interest)).collect();
        for key in keys {
            let Some(channel) = self.channels.get_mut(key) else { continue };
            let is_led = channel.room_leader.as_ref().is_some_and(|it| !it.will_wake(waker));
            if !channel.is_blocked || is_led {
                channel.room_followers.add(waker);
            } else if blocked.iter().all(|(known, _)| *known != key) {
                channel.room_leader = Some(waker.clone());
                blocked.push((key, Arc::clone(&channel.readiness)));
            }
        }
        blocked
    }

    /// Gives a thread the inboxes that it waits for and that no other has.
    pub fn take_inboxes(
        &mut self,
        interest: Interest,
        waker: &Waker,
        led: &mut Vec<Led>,
        now: Nanos,
    ) {
        let is_latency = interest.class == Class::Latency;
        for key in self.channels_for(interest) {
            let Some(channel) = self.channels.get_mut(key) else { continue };
            let is_own = channel.class == interest.class;
            if !is_latency && channel.class == Class::Latency && now < channel.reserved_until {
                if channel.inbox.is_some() {
                    self.wakes.extend(channel.followers.first());
                }
                continue;
            }
            if is_latency && is_own {
                channel.reserved_until = Nanos(now.0 + RESERVED.0);
            }
            let is_other = |successor: &Waker| !successor.will_wake(waker);
            let is_left = channel.is_paused || channel.successor.as_ref().is_some_and(is_other);
            match channel.inbox.take_if(|_| !is_left) {
                Some(inbox) => {
                    if channel.successor.take().is_some() {
                        // It was the only user of late: others do not wait for it to leave.
                        channel.shared_at = None;
                    }
                    channel.asked.take_if(|(asker, _)| asker.will_wake(waker));
                    channel.leader = Some(Leader { waker: waker.clone(), is_latency });
                    // It may take the wake-up that was meant for the helper.
                    channel.armed.for_data = false;
                    channel.was_led = true;
                    let (class, readiness) = (channel.class, Arc::clone(&channel.readiness));
                    led.push(Led { key, class, inbox, readiness, input: Input::default() });
                }
                None if interest.is_weak => channel.acceptors.add(waker),
                None if is_own => {
                    channel.followers.add(waker);
                    // A thread that is busy with bulk data gives it back, as does one that reads for this one alone.
                    let inherits = channel.asks(waker);
                    let gives_up = |it: &&Leader| inherits || (is_latency && !it.is_latency);
                    let leader = channel.leader.as_ref().filter(gives_up);
                    self.wakes.extend(leader.map(|leader| leader.waker.clone()));
                }
                None => {}
            }
        }
    }

    /// A thread returns the inboxes that it took.
    pub fn give_back(&mut self, led: &mut Vec<Led>) {
        let mut is_unwatched = false;
        for Led { key, mut inbox, .. } in led.drain(..) {
            match self.channels.get_mut(key) {
                Some(channel) => {
                    channel.inbox = Some(inbox);
                    channel.leader = None;
                    channel.was_led = true;
                    self.wakes.extend(channel.successor.clone());
                    is_unwatched |= !channel.armed.for_data;
                }
                None => inbox.end(&mut self.engine),
            }
        }
        if is_unwatched {
            self.rouse_helper();
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

    /// The helper has read channels: those with input are in use.
    pub fn note_live(&mut self, led: &[Led]) {
        for it in led.iter().filter(|it| !it.input.is_empty()) {
            if let Some(channel) = self.channels.get_mut(it.key) {
                channel.is_live = true;
                // Reading ends the wake-up that was asked for.
                channel.armed.for_data = false;
            }
        }
    }

    /// The helper returns the inboxes that it has read for want of a leader. Threads that came meanwhile go on.
    pub fn give_back_to_followers(&mut self, led: &mut Vec<Led>) {
        for Led { key, mut inbox, .. } in led.drain(..) {
            match self.channels.get_mut(key) {
                Some(channel) => {
                    channel.inbox = Some(inbox);
                    self.wakes.extend(channel.next_leader());
                }
                None => inbox.end(&mut self.engine),
            }
        }
    }

    /// An event of a channel has woken the helper: the channel is armed no more.
    pub fn told(&mut self, key: Key) {
        if let Some(channel) = self.channels.get_mut(key)
            && std::mem::take(&mut channel.armed).for_room
        {
            self.unblock(key);
        }
    }

    /// A thread waits no more: another one reads what it would have read, if others have used the channel just now.
    pub fn leave(&mut self, interest: Interest, waker: &Waker, now: Nanos) {
        let mut is_left = false;
        for key in self.channels_for(interest) {
            let Some(channel) = self.channels.get_mut(key) else { continue };
            channel.followers.remove(waker);
            channel.acceptors.remove(waker);
            channel.room_followers.remove(waker);
            if channel.room_leader.take_if(|leader| leader.will_wake(waker)).is_some() {
                self.wakes.extend(channel.room_followers.first());
            }
            let was_successor =
                channel.successor.take_if(|successor| successor.will_wake(waker)).is_some();
            let is_shared =
                channel.shared_at.is_some_and(|at| now.since(at) <= SHARED_FOR) || was_successor;
            if channel.inbox.is_some() && is_shared {
                self.wakes.extend(channel.followers.first());
            }
            is_left |= channel.inbox.is_some() && !channel.followers.is_empty();
        }
        if is_left {
            // It reads for those who wait on, should this thread be long.
            self.leave_to_helper(now);
        }
    }

    /// A stream is closed: its channels may have lost their last reader, and a thread that accepts streams reads them.
    pub fn offer(&mut self, peer: Key) {
        let keys: Vec<Key> = self.engine.channels(peer).map(|(key, _)| key).collect();
        for key in keys {
            let channel = self.channels.get_mut(key).filter(|it| it.inbox.is_some());
            self.wakes.extend(channel.and_then(|channel| channel.acceptors.first()));
        }
    }

    /// What a thread that accepts streams waits for: the channels of some peers. The helper reads those of others.
    pub fn interests_of_acceptor(&self) -> Vec<Interest> {
        let peers = self.routes.values().flatten().map(|route| route.peer);
        let of_peer = |peer| {
            Class::ALL.map(|class| Interest { peer, class, wants_control: false, is_weak: true })
        };
        peers.take(ACCEPTOR_PEERS_MAX).flat_map(of_peer).collect()
    }

    /// A thread has read channels, and nothing was its own.
    pub fn note_shared(&mut self, keys: &[Key], now: Nanos) {
        for key in keys {
            if let Some(channel) = self.channels.get_mut(*key) {
                channel.shared_at = Some(now);
            }
        }
    }

    /// Takes apart what a thread has read.
    pub fn parse(&mut self, led: &mut Vec<Led>, now: Nanos) {
        let mut lost = Vec::new();
        for Led { key, inbox, input, .. } in led.iter_mut() {
            let input = std::mem::take(input);
            if input.is_empty() || self.channels.get(*key).is_none() {
                continue;
            }
            let is_end = input.is_end;
            let result = inbox.parse(input, &mut self.engine, *key, &mut self.sockets, now);
            if let Err(error) = &result {
                tracing::warn!("channel {key:?} is ended: {error}");
            }
            if is_end || result.is_err() {
                lost.push(*key);
            }
        }
        for key in lost {
            self.lose_channel(key, now);
        }
        for index in (0..led.len()).rev() {
            if self.channels.get(led[index].key).is_none() {
                led.swap_remove(index).inbox.end(&mut self.engine);
            }
        }
    }

    /// A channel has ended.
    pub fn lose_channel(&mut self, key: Key, now: Nanos) {
        self.engine.channel_down(key, now);
        self.drop_channel(key);
    }

    /// Frees a channel that the engine has no more. A thread that uses it learns that when it comes back.
    fn drop_channel(&mut self, key: Key) {
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
