//! What a driver holds for each socket: its bytes and its waiters.

use std::task::Waker;

use quell_net_engine::Key;

use crate::store::Store;
use crate::table::SideTable;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Socket {
    /// Bytes that the application has written and the peer has not acknowledged.
    pub written: Store,
    /// Bytes that have arrived and were not read.
    pub received: Store,
    /// Waiters for bytes.
    pub readers: Wakers,
    /// Waiters for room, or for the connection.
    pub writers: Wakers,
}

/// The waiters for one event: threads and tasks.
#[derive(Debug, Default)]
pub(crate) struct Wakers(Vec<Waker>);

impl Wakers {
    /// One more, unless it waits already.
    pub fn add(&mut self, waker: &Waker) {
        if !self.has(waker) {
            self.0.push(waker.clone());
        }
    }

    /// One waits no more.
    pub fn remove(&mut self, waker: &Waker) {
        self.0.retain(|known| !known.will_wake(waker));
    }

    /// Whether this one waits.
    pub fn has(&self, waker: &Waker) -> bool {
        self.0.iter().any(|known| known.will_wake(waker))
    }

    /// Whether none waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All of them, to be woken.
    pub fn take(&mut self) -> Vec<Waker> {
        std::mem::take(&mut self.0)
    }

    /// The one that waits longest.
    pub fn first(&mut self) -> Option<Waker> {
        (!self.0.is_empty()).then(|| self.0.remove(0))
    }
}

/// Sockets by their keys.
#[derive(Debug, Default)]
pub(crate) struct Sockets(SideTable<Socket>);

impl Sockets {
    pub fn get(&self, key: Key) -> Option<&Socket> {
        self.0.get(key)
    }

    pub fn get_mut(&mut self, key: Key) -> Option<&mut Socket> {
        self.0.get_mut(key)
    }

    /// That of a key which the engine has.
    pub fn of(&mut self, key: Key) -> &mut Socket {
        self.0.get_or_insert_with(key, Socket::default)
    }

    pub fn remove(&mut self, key: Key) {
        self.0.remove(key);
    }
}
