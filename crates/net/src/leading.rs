//! Which thread reads which channel: leaders, and the followers that wait for them.
//!
//! A thread that waits for sockets reads the channels of their class itself, as their leader, for all sockets that use them.
//! Others that want the same channels sleep until it passes them their bytes, or the reading.

use std::sync::Arc;
use std::task::Waker;

use quell_model::Nanos;
use quell_net_engine::{Class, Key};

use crate::channel::Leader;
use crate::core::Core;
use crate::inbox::{Inbox, Input};
use crate::shared::Blocked;
use crate::transport::Readiness;

/// How long a channel of the latency class is left to threads that wait for latency sockets, after one has read it: others
/// would have it read by a thread that is busy with bulk data.
const RESERVED: Nanos = Nanos::from_millis(10);

/// A channel whose leader has read for other threads within this time is read by one of them when it leaves. Otherwise it
/// comes back before the helper has looked, as a rule.
const SHARED_FOR: Nanos = Nanos::from_millis(1);

/// Peers whose channels a thread reads that waits for new streams.
const ACCEPTOR_PEERS_MAX: usize = 4;

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

/// A thread that waits, at one look.
pub(crate) struct Waiting<'a> {
    pub interests: &'a [Interest],
    pub waker: &'a Waker,
    /// Its time is over, or it cannot wait.
    pub is_over: bool,
    /// Others could use its kernel thread.
    pub is_in_the_way: bool,
}

/// What a look under the lock says.
pub(crate) enum Step<T> {
    Done(Option<T>),
    Wait(Blocked),
    /// A green thread that reads for others lets some run.
    Yield,
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
    /// Nothing is read yet.
    pub fn new(key: Key, class: Class, inbox: Box<Inbox>, readiness: &Arc<dyn Readiness>) -> Led {
        Led { key, class, inbox, readiness: Arc::clone(readiness), input: Input::default() }
    }

    /// Whether its thread may let bulk data gather.
    pub fn may_nap(&self) -> bool {
        self.class == Class::Throughput && self.inbox.is_bulk()
    }
}

impl Core {
    /// A look of a thread that waits: takes apart what it has read, and if that is not what it waits for, takes what it is to read
    /// next.
    pub fn step<T>(
        &mut self,
        thread: &Waiting<'_>,
        led: &mut Vec<Led>,
        check: impl FnOnce(&mut Core, Nanos) -> Option<T>,
        register: impl Fn(&mut Core, &Waker, bool),
        now: Nanos,
    ) -> Step<T> {
        let Waiting { interests, waker, is_over, is_in_the_way } = *thread;
        let read = led.iter().filter(|it| !it.input.is_empty()).map(|it| it.key);
        let read: Vec<Key> = read.collect();
        self.parse(led, now);
        self.give_back(led);
        let found = check(self, now);
        match found {
            Some(_) => self.note_own(&read),
            None => self.note_shared(&read, now),
        }
        if found.is_some() || is_over {
            register(self, waker, false);
            interests.iter().for_each(|interest| self.leave(*interest, waker, now));
            return Step::Done(found);
        }
        register(self, waker, true);
        if !read.is_empty() && is_in_the_way {
            return Step::Yield;
        }
        for interest in interests {
            self.take_inboxes(*interest, waker, led, now);
        }
        Step::Wait(self.blocked_for(interests, waker))
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
        // Placed channels are read by threads of their own: these wake those that wait.
        keys.retain(|key| self.channels.get(*key).is_none_or(|it| it.thread.is_none()));
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
            let is_own_turn = [&channel.successor, &channel.heir]
                .into_iter()
                .flatten()
                .any(|it| it.will_wake(waker));
            let is_weak = interest.is_weak && !is_own_turn;
            if is_weak && channel.inbox.is_some() && !channel.followers.is_empty() {
                self.wakes.extend(channel.followers.first());
                channel.acceptors.add(waker);
                continue;
            }
            if !is_latency && channel.class == Class::Latency && now < channel.reserved_until {
                if channel.inbox.is_some() {
                    self.wakes.extend(channel.followers.first());
                }
                continue;
            }
            if is_latency && is_own && !interest.is_weak {
                channel.reserved_until = Nanos(now.0 + RESERVED.0);
            }
            let is_other = |successor: &Waker| !successor.will_wake(waker);
            let is_left = channel.is_paused || channel.successor.as_ref().is_some_and(is_other);
            match channel.inbox.take_if(|_| !is_left) {
                Some(inbox) => {
                    if let Some(successor) = channel.successor.take() {
                        channel.heir = Some(successor);
                        // It was the only user of late: others do not wait for it to leave.
                        channel.shared_at = None;
                    }
                    channel.askers.forget(waker);
                    channel.leader = Some(Leader { waker: waker.clone(), is_latency, is_weak });
                    // It may take the wake-up that was meant for the helper.
                    channel.armed.for_data = false;
                    channel.was_led = true;
                    led.push(Led::new(key, channel.class, inbox, &channel.readiness));
                }
                None if is_weak && !is_own => channel.acceptors.add(waker),
                None if is_own => {
                    let waiting =
                        if is_weak { &mut channel.acceptors } else { &mut channel.followers };
                    waiting.add(waker);
                    // A thread that is busy with bulk data gives it back, as does one that reads for this one alone.
                    let inherits = channel.asks(waker);
                    let gives_up = |it: &&Leader| {
                        inherits || (!is_weak && (it.is_weak || (is_latency && !it.is_latency)))
                    };
                    let leader = channel.leader.as_ref().filter(gives_up);
                    self.wakes.extend(leader.map(|leader| leader.waker.clone()));
                }
                None => {}
            }
        }
    }

    /// Gives a thread that does not wait the inboxes that none has or is to have next.
    pub fn take_free_inboxes(&mut self, interest: Interest, waker: &Waker, led: &mut Vec<Led>) {
        for key in self.channels_for(interest) {
            let Some(channel) = self.channels.get_mut(key) else { continue };
            let is_left = channel.is_paused || channel.successor.is_some();
            let Some(inbox) = channel.inbox.take_if(|_| !is_left) else { continue };
            let is_latency = interest.class == Class::Latency;
            channel.leader = Some(Leader { waker: waker.clone(), is_latency, is_weak: false });
            // It may take the wake-up that was meant for the helper.
            channel.armed.for_data = false;
            led.push(Led::new(key, channel.class, inbox, &channel.readiness));
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

    /// A thread waits no more: another one reads what it would have read, if others have used the channel just now.
    pub fn leave(&mut self, interest: Interest, waker: &Waker, now: Nanos) {
        let mut is_left = false;
        for key in self.channels_for(interest) {
            let Some(channel) = self.channels.get_mut(key) else { continue };
            channel.followers.remove(waker);
            channel.acceptors.remove(waker);
            channel.room_followers.remove(waker);
            channel.room_leader.take_if(|leader| leader.will_wake(waker));
            if channel.is_blocked && channel.room_leader.is_none() {
                self.wakes.extend(channel.room_followers.first());
            }
            let was_successor =
                channel.successor.take_if(|successor| successor.will_wake(waker)).is_some();
            let is_shared =
                channel.shared_at.is_some_and(|at| now.since(at) <= SHARED_FOR) || was_successor;
            // A thread that accepts streams comes back soon, as a rule.
            let comes_back =
                interest.is_weak && channel.heir.as_ref().is_some_and(|heir| heir.will_wake(waker));
            if channel.inbox.is_some() && !comes_back {
                let next = match channel.waiting_heir() {
                    None if is_shared => channel.followers.first(),
                    heir => heir,
                };
                self.wakes.extend(next);
            }
            let has_others = !channel.followers.is_empty() || !channel.acceptors.is_empty();
            is_left |= channel.inbox.is_some() && has_others;
        }
        if is_left {
            // It reads for the threads that wait on, should this one be long.
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

    /// A thread has read something of its own: it reads channels for itself.
    pub fn note_own(&mut self, keys: &[Key]) {
        for key in keys {
            if let Some(channel) = self.channels.get_mut(*key) {
                channel.askers.clear();
            }
        }
    }

    /// A thread has read channels, and nothing was its own.
    pub fn note_shared(&mut self, keys: &[Key], now: Nanos) {
        for key in keys {
            if let Some(channel) = self.channels.get_mut(*key) {
                channel.shared_at = Some(now);
            }
        }
    }
}
