//! Channels, as `std::sync::mpsc`: many senders, one receiver.

use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::panic::RefUnwindSafe;
use std::sync::Arc;
pub use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};
use std::time::Duration;

use quell_model::Nanos;

use super::Brief;
use crate::kthread::local;
use crate::park::{Waiter, block, block_until, deadline_after};

#[derive(Debug)]
struct State<T> {
    queue: VecDeque<T>,
    /// How many were ever taken out, and put in.
    taken: u64,
    put: u64,
    senders: usize,
    receiver: bool,
    /// The receiver waits.
    receiving: Option<Waiter>,
    /// Senders wait for a place, in the order of coming.
    sending: VecDeque<Waiter>,
    /// Places of senders that were woken and have not put anything in yet: nobody else gets these.
    promised: usize,
    /// In a channel without room, who sent what is in it waits until that is taken.
    handing: Option<Waiter>,
}

#[derive(Debug)]
struct Channel<T> {
    /// `None`: no limit. Zero: who sends waits until it is received.
    limit: Option<usize>,
    state: Brief<State<T>>,
}

/// Sends; as many as wanted may be cloned.
pub struct Sender<T>(Arc<Channel<T>>);

/// Sends, and waits while the channel is full.
pub struct SyncSender<T>(Arc<Channel<T>>);

/// Receives.
pub struct Receiver<T> {
    channel: Arc<Channel<T>>,
    // As with std: one receives at a time.
    not_sync: PhantomData<std::cell::Cell<()>>,
}

// The others are so by themselves.
impl<T> RefUnwindSafe for Receiver<T> {}

/// A channel without limit.
///
/// ```
/// # let runtime = quell_runtime::Runtime::builder().daemon(quell_runtime::Daemon::Never).build()?;
/// # runtime.run(|| {
/// let (sender, receiver) = quell_runtime::sync::mpsc::channel();
/// quell_runtime::spawn(move || (0..3).for_each(|n| sender.send(n).unwrap()));
/// assert_eq!(receiver.iter().collect::<Vec<_>>(), [0, 1, 2]);
/// # });
/// # Ok::<(), quell_runtime::BuildError>(())
/// ```
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let channel = Arc::new(Channel::new(None));
    (Sender(Arc::clone(&channel)), Receiver { channel, not_sync: PhantomData })
}

/// A channel that holds so many; none: who sends waits until it is received.
pub fn sync_channel<T>(limit: usize) -> (SyncSender<T>, Receiver<T>) {
    let channel = Arc::new(Channel::new(Some(limit)));
    (SyncSender(Arc::clone(&channel)), Receiver { channel, not_sync: PhantomData })
}

impl<T> Channel<T> {
    fn new(limit: Option<usize>) -> Channel<T> {
        let state = State {
            queue: VecDeque::new(),
            taken: 0,
            put: 0,
            senders: 1,
            receiver: true,
            receiving: None,
            sending: VecDeque::new(),
            promised: 0,
            handing: None,
        };
        Channel { limit, state: Brief::new(state) }
    }

    /// Whether there is no place that was not promised to somebody.
    fn is_full(&self, state: &State<T>) -> bool {
        // A channel without room holds one for as long as its sender waits.
        self.limit.is_some_and(|limit| state.queue.len() + state.promised >= limit.max(1))
    }

    /// Puts it in if there is room, or by a promise: as which, counted from one.
    fn put(&self, value: T, promised: bool) -> Result<u64, TrySendError<T>> {
        let mut state = self.state.lock();
        if !state.receiver {
            return Err(TrySendError::Disconnected(value));
        }
        if promised {
            state.promised -= 1;
        } else if self.is_full(&state) {
            return Err(TrySendError::Full(value));
        }
        state.queue.push_back(value);
        state.put += 1;
        let put = state.put;
        let receiver = state.receiving.take();
        drop(state);
        if let Some(receiver) = receiver {
            receiver.wake();
        }
        Ok(put)
    }

    fn send(&self, value: T) -> Result<(), SendError<T>> {
        local::checkpoint();
        let put = match self.put(value, false) {
            Err(TrySendError::Full(value)) => {
                self.wait_for_a_place();
                self.put(value, true)
            }
            done => done,
        };
        let put = put.map_err(|error| match error {
            // By a promise it is never full.
            TrySendError::Full(value) | TrySendError::Disconnected(value) => SendError(value),
        })?;
        if self.limit == Some(0) {
            self.wait_until_taken(put);
            let mut state = self.state.lock();
            if state.taken < put
                && let Some(value) = state.queue.pop_front()
            {
                return Err(SendError(value));
            }
        }
        Ok(())
    }

    /// A sender waits until it is promised a place, or the receiver is gone.
    fn wait_for_a_place(&self) {
        block(|waiter| {
            let mut state = self.state.lock();
            // While others wait it is full: who takes one out promises the place to one of them.
            if state.receiver && self.is_full(&state) {
                state.sending.push_back(waiter);
            } else {
                state.promised += 1;
                drop(state);
                waiter.wake();
            }
        });
    }

    /// A sender waits until what it put in was taken out, or the receiver is gone.
    fn wait_until_taken(&self, put: u64) {
        block(|waiter| {
            let mut state = self.state.lock();
            if state.receiver && state.taken < put {
                state.handing = Some(waiter);
            } else {
                drop(state);
                waiter.wake();
            }
        });
    }

    fn try_recv(&self) -> Result<T, TryRecvError> {
        let mut state = self.state.lock();
        let Some(value) = state.queue.pop_front() else {
            let alive = state.senders > 0;
            return Err(if alive { TryRecvError::Empty } else { TryRecvError::Disconnected });
        };
        state.taken += 1;
        let (handed, next) = (state.handing.take(), state.sending.pop_front());
        state.promised += usize::from(next.is_some());
        drop(state);
        for waiter in handed.into_iter().chain(next) {
            waiter.wake();
        }
        Ok(value)
    }

    fn recv(&self, deadline: Option<Nanos>) -> Result<T, RecvTimeoutError> {
        local::checkpoint();
        loop {
            match self.try_recv() {
                Ok(value) => return Ok(value),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) => {}
            }
            let woken = block_until(deadline, |waiter| {
                let mut state = self.state.lock();
                if state.queue.is_empty() && state.senders > 0 {
                    state.receiving = Some(waiter);
                } else {
                    drop(state);
                    waiter.wake();
                }
            });
            if !woken {
                // A waiter whose time is over may have been left behind.
                self.state.lock().receiving = None;
                return self.try_recv().map_err(|error| match error {
                    TryRecvError::Empty => RecvTimeoutError::Timeout,
                    TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
                });
            }
        }
    }

    fn add_sender(&self) {
        self.state.lock().senders += 1;
    }

    fn drop_sender(&self) {
        let mut state = self.state.lock();
        state.senders -= 1;
        let receiver = if state.senders == 0 { state.receiving.take() } else { None };
        drop(state);
        if let Some(receiver) = receiver {
            receiver.wake();
        }
    }

    fn drop_receiver(&self) {
        let mut state = self.state.lock();
        state.receiver = false;
        // A sender that waits until its value is taken takes it back.
        let unsent =
            if self.limit == Some(0) { VecDeque::new() } else { std::mem::take(&mut state.queue) };
        let (handing, waiting) = (state.handing.take(), std::mem::take(&mut state.sending));
        drop(state);
        for waiter in handing.into_iter().chain(waiting) {
            waiter.wake();
        }
        drop(unsent);
    }
}

impl<T> Sender<T> {
    /// Sends.
    ///
    /// # Errors
    /// When the receiver is gone; the error has the value.
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        self.0.send(value)
    }
}

impl<T> SyncSender<T> {
    /// Sends; waits while the channel is full.
    ///
    /// # Errors
    /// When the receiver is gone; the error has the value.
    pub fn send(&self, value: T) -> Result<(), SendError<T>> {
        self.0.send(value)
    }

    /// Sends if that is possible at once.
    ///
    /// # Errors
    /// When the channel is full, or the receiver is gone; the error has the value.
    pub fn try_send(&self, value: T) -> Result<(), TrySendError<T>> {
        if self.0.limit == Some(0) && self.0.state.lock().receiving.is_none() {
            return Err(TrySendError::Full(value));
        }
        self.0.put(value, false).map(drop)
    }
}

impl<T> Receiver<T> {
    /// Receives; waits until there is something.
    ///
    /// # Errors
    /// When there is nothing and all senders are gone.
    pub fn recv(&self) -> Result<T, RecvError> {
        self.channel.recv(None).map_err(|_| RecvError)
    }

    /// Receives if there is something.
    ///
    /// # Errors
    /// When there is nothing.
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        self.channel.try_recv()
    }

    /// Receives; waits so long at most.
    ///
    /// # Errors
    /// When there was nothing.
    pub fn recv_timeout(&self, timeout: Duration) -> Result<T, RecvTimeoutError> {
        self.channel.recv(deadline_after(timeout))
    }

    /// What comes until all senders are gone.
    pub fn iter(&self) -> impl Iterator<Item = T> + '_ {
        std::iter::from_fn(|| self.recv().ok())
    }

    /// What is there now.
    pub fn try_iter(&self) -> impl Iterator<Item = T> + '_ {
        std::iter::from_fn(|| self.try_recv().ok())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Sender<T> {
        self.0.add_sender();
        Sender(Arc::clone(&self.0))
    }
}

impl<T> Clone for SyncSender<T> {
    fn clone(&self) -> SyncSender<T> {
        self.0.add_sender();
        SyncSender(Arc::clone(&self.0))
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.drop_sender();
    }
}

impl<T> Drop for SyncSender<T> {
    fn drop(&mut self) {
        self.0.drop_sender();
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        self.channel.drop_receiver();
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for SyncSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SyncSender").finish_non_exhaustive()
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Receiver").finish_non_exhaustive()
    }
}
