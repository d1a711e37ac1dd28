//! Waiting for many sockets at once.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Wake, Waker};
use std::time::Instant;

use quell_net_engine::Key;

use crate::batch;
use crate::endpoint::Endpoint;
use crate::error::Error;
use crate::leading::Interest;
use crate::stream::{Stream, register_reader};
use crate::threads;
use crate::waiter::Waiter;

/// Finds which of many sockets of an endpoint can be read, or have ended, for one thread that serves them all. As long as a
/// socket can be read, each wait returns it again.
pub struct Selector {
    endpoint: Endpoint,
    ready: Arc<Ready>,
    sockets: BTreeMap<u64, Watched>,
    interests: Vec<Interest>,
    /// Sockets that have each of them.
    counts: Vec<usize>,
    /// Returned by the last wait, and new ones: they are looked at before the next.
    unknown: Vec<u64>,
}

struct Watched {
    key: Key,
    interest: Interest,
    waker: Waker,
    mark: Arc<Mark>,
}

/// Sockets that were woken.
struct Ready {
    tokens: Mutex<Vec<u64>>,
    /// The thread that waits for them.
    waiter: Mutex<Option<Waker>>,
}

impl Ready {
    fn set_waiter(&self, waker: Waker) {
        threads::hold(|| {
            *self.waiter.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
        });
    }

    /// One more was woken. Returns the thread to be woken for that.
    fn list(&self, token: u64) -> Option<Waker> {
        threads::hold(|| {
            self.tokens.lock().unwrap_or_else(PoisonError::into_inner).push(token);
            self.waiter.lock().unwrap_or_else(PoisonError::into_inner).clone()
        })
    }
}

/// Wakes the thread for one socket.
struct Mark {
    token: u64,
    is_listed: AtomicBool,
    ready: Arc<Ready>,
}

impl Wake for Mark {
    fn wake(self: Arc<Self>) {
        // AcqRel: pairs with the store in `Selector::wait`, which comes before it looks at the socket.
        if self.is_listed.swap(true, Ordering::AcqRel) {
            return;
        }
        if let Some(waiter) = self.ready.list(self.token) {
            waiter.wake();
        }
    }
}

impl Selector {
    /// Waits for sockets of this endpoint.
    pub fn new(endpoint: &Endpoint) -> Selector {
        let ready = Ready { tokens: Mutex::default(), waiter: Mutex::default() };
        Selector {
            endpoint: endpoint.clone(),
            ready: Arc::new(ready),
            sockets: BTreeMap::new(),
            interests: Vec::new(),
            counts: Vec::new(),
            unknown: Vec::new(),
        }
    }

    /// Watches a socket of the same endpoint from now on, which waits call `token`.
    pub fn add(&mut self, token: u64, stream: &Stream) {
        self.remove(token);
        let mark =
            Mark { token, is_listed: AtomicBool::new(false), ready: Arc::clone(&self.ready) };
        let mark = Arc::new(mark);
        let waker = Waker::from(Arc::clone(&mark));
        let (key, interest) = (stream.key(), stream.interest(false));
        self.sockets.insert(token, Watched { key, interest, waker, mark });
        self.unknown.push(token);
        match self.interests.iter().position(|known| *known == interest) {
            Some(index) => self.counts[index] += 1,
            None => {
                self.interests.push(interest);
                self.counts.push(1);
            }
        }
    }

    /// Watches a socket no more.
    pub fn remove(&mut self, token: u64) {
        let Some(watched) = self.sockets.remove(&token) else { return };
        self.endpoint
            .shared()
            .with(|core, _| register_reader(core, watched.key, &watched.waker, false));
        self.unknown.retain(|known| *known != token);
        let index = self.interests.iter().position(|known| *known == watched.interest);
        let Some(index) = index else { return };
        self.counts[index] -= 1;
        if self.counts[index] == 0 {
            self.interests.swap_remove(index);
            self.counts.swap_remove(index);
        }
    }

    /// Waits until a socket can be read, has ended or failed, and gives the tokens of all that can.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if none could until then.
    pub fn wait(&mut self, until: Option<Instant>) -> Result<Vec<u64>, Error> {
        let waiter = Waiter::current().map_err(|source| Error::io("create an eventfd", source))?;
        let waker = Waker::from(Arc::clone(&waiter));
        self.ready.set_waiter(waker);
        let (sockets, ready) = (&self.sockets, &self.ready);
        let mut unknown = std::mem::take(&mut self.unknown);
        let shared = self.endpoint.shared();
        let found = shared.wait_with(
            Some(&waiter),
            &self.interests,
            until,
            |core, now| {
                unknown.append(&mut ready.tokens.lock().unwrap_or_else(PoisonError::into_inner));
                unknown.sort_unstable();
                unknown.dedup();
                let mut found = Vec::new();
                for token in unknown.drain(..) {
                    let Some(watched) = sockets.get(&token) else { continue };
                    // Release: a wake from here on lists it again, and the look comes after.
                    watched.mark.is_listed.store(false, Ordering::Release);
                    let status = core.engine.status(watched.key);
                    let can_read = status
                        .is_none_or(|it| it.readable > 0 || it.is_at_end || it.failure.is_some());
                    if can_read {
                        found.push(token);
                        continue;
                    }
                    core.engine.read(watched.key, 0, now);
                    register_reader(core, watched.key, &watched.waker, true);
                }
                if found.is_empty() {
                    return None;
                }
                batch::begin(shared, found.len(), now);
                if found.len() > 1 {
                    // It sends what waits, should the thread stop in between.
                    core.leave_to_helper(now);
                }
                Some(found)
            },
            |_, _, _| {},
        )?;
        self.unknown = found.clone();
        Ok(found)
    }
}

impl Drop for Selector {
    fn drop(&mut self) {
        let tokens: Vec<u64> = self.sockets.keys().copied().collect();
        tokens.into_iter().for_each(|token| self.remove(token));
    }
}
