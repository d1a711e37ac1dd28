//! A channel: what it is, and which threads use it.

use std::sync::Arc;
use std::task::Waker;

use quell_model::Nanos;
use quell_net_engine::{Class, Key};

use crate::askers::Askers;
use crate::inbox::Inbox;
use crate::memory::Pool;
use crate::outbox::Outbox;
use crate::socket::Wakers;
use crate::stats::{Carried, Origin};
use crate::transport::{Path, Readiness, Transport};

/// See [`Channel::asks`].
const ASKED_MAX: u32 = 4;

/// The events of a channel that wake the helper, once.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Armed {
    /// Something has arrived.
    pub for_data: bool,
    /// It has room again.
    pub for_room: bool,
}

/// A thread that reads a channel.
#[derive(Debug)]
pub(crate) struct Leader {
    pub waker: Waker,
    /// It waits for latency sockets itself.
    pub is_latency: bool,
    /// It waits for new streams, and leaves the channel to any that waits for a socket.
    pub is_weak: bool,
}

/// A channel and its users. A direction that is absent is in use by a thread.
pub(crate) struct Channel {
    pub class: Class,
    pub peer: Key,
    pub name: &'static str,
    pub origin: Origin,
    pub sent: Carried,
    pub received: Carried,
    pub outbox: Option<Box<Outbox>>,
    pub inbox: Option<Box<Inbox>>,
    pub readiness: Arc<dyn Readiness>,
    /// Of bulk data across a network.
    pub path: Option<Arc<dyn Path>>,
    /// The thread of the endpoint that sends and reads it, if it is placed: no other does.
    pub thread: Option<usize>,
    /// Of that path, as far as it is known.
    pub rtt: Nanos,
    /// Since when bytes have waited for it, as the helper saw.
    pub waits_since: Option<Nanos>,
    /// Bytes per second that it sends at most.
    pub pace: Option<u64>,
    /// Its transport has no room: a thread waits until it has.
    pub is_blocked: bool,
    /// It has filled response queues, and is not read.
    pub is_paused: bool,
    /// A thread of the program read it since the helper's last look, and will read it again.
    pub was_led: bool,
    /// A thread sent on it since then.
    pub was_sent_on: bool,
    /// The helper read something at its last look.
    pub is_live: bool,
    /// Of what the helper learns.
    pub armed: Armed,
    /// The thread that has its inbox.
    pub leader: Option<Leader>,
    /// Threads that wait for the inbox.
    pub followers: Wakers,
    /// Threads that wait for new streams, and for the inbox where no other does.
    pub acceptors: Wakers,
    /// Threads that have found the inbox taken, and how often, since its reader last read something of its own.
    pub askers: Askers,
    /// It takes the inbox next: the leader gives it up.
    pub successor: Option<Waker>,
    /// The thread that was made to read it last: it gives way to no other, though it waits for new streams, until another is made
    /// to.
    pub heir: Option<Waker>,
    /// Threads that wait until no other sends on it.
    pub turns: Wakers,
    /// The thread that waits until it has room, and has it sent on then.
    pub room_leader: Option<Waker>,
    /// Threads that leave that to it.
    pub room_followers: Wakers,
    /// When a leader last read bytes of other threads.
    pub shared_at: Option<Nanos>,
    /// Left to latency sockets until then.
    pub reserved_until: Nanos,
}

impl Channel {
    /// One that is up.
    pub fn new(
        class: Class,
        peer: Key,
        transport: Transport,
        origin: Origin,
        pool: &Arc<Pool>,
    ) -> Channel {
        // A clock is dear to short messages.
        let is_timed = class == Class::Throughput;
        Channel {
            class,
            peer,
            name: transport.name,
            origin,
            sent: Carried::default(),
            received: Carried::default(),
            outbox: Some(Box::new(Outbox::new(transport.outgoing, is_timed))),
            inbox: Some(Box::new(Inbox::new(transport.incoming, pool, is_timed))),
            readiness: transport.readiness,
            path: transport.path.filter(|_| class == Class::Throughput),
            thread: None,
            rtt: Nanos::ZERO,
            waits_since: None,
            pace: None,
            is_blocked: false,
            is_paused: false,
            was_led: false,
            was_sent_on: false,
            is_live: true,
            armed: Armed::default(),
            leader: None,
            followers: Wakers::default(),
            acceptors: Wakers::default(),
            askers: Askers::default(),
            successor: None,
            heir: None,
            turns: Wakers::default(),
            room_leader: None,
            room_followers: Wakers::default(),
            shared_at: None,
            reserved_until: Nanos::ZERO,
        }
    }

    /// Whether no thread sends on it, and nothing waits for room.
    pub fn is_free(&self) -> bool {
        !self.is_blocked && self.outbox.as_ref().is_some_and(|outbox| outbox.is_empty())
    }

    /// The thread that is to read it now: its successor before all others.
    pub fn next_leader(&mut self) -> Option<Waker> {
        self.successor.clone().or_else(|| self.followers.first())
    }

    /// A thread has found the inbox taken. Whether it is to have it: most of what is read is for it, so that each of its messages
    /// wakes the reader in vain.
    pub fn asks(&mut self, waker: &Waker) -> bool {
        let inherits = self.askers.count(waker) >= ASKED_MAX && self.successor.is_none();
        if inherits {
            self.successor = Some(waker.clone());
            self.askers.clear();
        }
        inherits
    }

    /// The thread that was last made to read it, if it waits.
    pub fn waiting_heir(&self) -> Option<Waker> {
        let heir = self.heir.as_ref()?;
        let waits = self.followers.has(heir) || self.acceptors.has(heir);
        waits.then(|| heir.clone())
    }
}
