//! The side that asks.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::{HEAD_BYTES, Head, MessageKind, PAYLOAD_MAX};
use crate::error::Error;
use crate::stream::Stream;

/// Sends requests over a stream, of any number of threads at once. One of those that wait reads the answers of all.
pub struct Client {
    stream: Stream,
    payload_max: u32,
    state: Mutex<State>,
    changed: Condvar,
    /// Heads and payloads of one message stay together.
    writing: Mutex<()>,
}

#[derive(Default)]
struct State {
    next: u64,
    /// Requests without an answer: `None`, or with one that was not fetched.
    waiting: BTreeMap<u64, Option<Vec<u8>>>,
    /// A thread reads.
    is_read: bool,
    /// The stream has failed, or ended.
    failure: Option<(io::ErrorKind, String)>,
    /// A message of which a part was read when its reader's time was over.
    partial: Vec<u8>,
}

/// A request that was sent. Dropped before it is answered, it is cancelled.
pub struct Call<'a> {
    client: &'a Client,
    number: u64,
    until: Option<Instant>,
    is_over: bool,
}

impl Client {
    /// Asks over this stream.
    pub fn new(stream: Stream) -> Client {
        Client {
            stream,
            payload_max: PAYLOAD_MAX,
            state: Mutex::default(),
            changed: Condvar::new(),
            writing: Mutex::default(),
        }
    }

    /// Answers longer than this end the stream.
    #[must_use]
    pub fn with_payload_max(mut self, bytes: u32) -> Client {
        self.payload_max = bytes;
        self
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request, and waits for its answer.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if none has come in time: the request is cancelled then. Else when the stream has failed.
    pub fn ask(&self, request: &[u8], patience: Option<Duration>) -> Result<Vec<u8>, Error> {
        self.send(request, patience)?.wait()
    }

    /// Sends a request. Its answer is waited for later.
    ///
    /// # Errors
    /// When the stream has failed.
    pub fn send(&self, request: &[u8], patience: Option<Duration>) -> Result<Call<'_>, Error> {
        let length = u32::try_from(request.len()).map_err(|_| {
            Error::Config(format!("a request of {} bytes is too long", request.len()))
        })?;
        let number = {
            let mut state = self.lock();
            state.next += 1;
            let number = state.next;
            state.waiting.insert(number, None);
            number
        };
        let until = patience.map(|patience| Instant::now() + patience);
        let call = Call { client: self, number, until, is_over: false };
        let patience_ns =
            patience.map_or(0, |it| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX).max(1));
        self.write(&Head { number, length, kind: MessageKind::Request, patience_ns }, request)?;
        Ok(call)
    }

    fn write(&self, head: &Head, payload: &[u8]) -> Result<(), Error> {
        let mut message = Vec::with_capacity(HEAD_BYTES + payload.len());
        message.extend_from_slice(&head.encode());
        message.extend_from_slice(payload);
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.stream.write_all(&message)
    }

    /// Waits for an answer; reads the stream if no other thread does.
    fn wait(&self, number: u64, until: Option<Instant>) -> Result<Vec<u8>, Error> {
        let mut state = self.lock();
        loop {
            if let Some(answer) = state.waiting.get_mut(&number).and_then(Option::take) {
                return Ok(answer);
            }
            if let Some((kind, why)) = &state.failure {
                return Err(Error::io("read answers", io::Error::new(*kind, why.clone())));
            }
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Err(Error::TimedOut);
            }
            if state.is_read {
                state = match left {
                    None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                    Some(left) => {
                        let waited = self.changed.wait_timeout(state, left);
                        waited.unwrap_or_else(PoisonError::into_inner).0
                    }
                };
                continue;
            }
            state.is_read = true;
            let partial = std::mem::take(&mut state.partial);
            drop(state);
            let read = self.read(partial, left);
            state = self.lock();
            state.is_read = false;
            match read {
                Ok(Read::Answer(head, answer)) => {
                    // One that was cancelled meanwhile is dropped.
                    if let Some(place) = state.waiting.get_mut(&head.number) {
                        *place = Some(answer);
                    }
                }
                Ok(Read::Part(partial)) => state.partial = partial,
                Err(error) => {
                    let error = io::Error::from(error);
                    state.failure = Some((error.kind(), error.to_string()));
                }
            }
            self.changed.notify_all();
        }
    }

    /// Reads a message, of which a part may have come.
    fn read(&self, mut message: Vec<u8>, left: Option<Duration>) -> Result<Read, Error> {
        self.stream.set_read_timeout(left);
        loop {
            let mut wanted = HEAD_BYTES;
            if let Some(bytes) = message.first_chunk::<HEAD_BYTES>() {
                let head = Head::decode(bytes, self.payload_max).map_err(invalid)?;
                if head.kind != MessageKind::Answer {
                    return Err(invalid("the peer sends requests to a client"));
                }
                wanted += head.length as usize;
                if message.len() == wanted {
                    return Ok(Read::Answer(head, message.split_off(HEAD_BYTES)));
                }
            }
            let had = message.len();
            // Not more at once than what a lying peer would have to send.
            message.resize(wanted.min(had + READ_BYTES), 0);
            match self.stream.read(&mut message[had..]) {
                Ok(0) => {
                    return Err(Error::io("read answers", io::ErrorKind::UnexpectedEof.into()));
                }
                Ok(read) => message.truncate(had + read),
                Err(Error::TimedOut) => {
                    message.truncate(had);
                    return Ok(Read::Part(message));
                }
                Err(error) => return Err(error),
            }
        }
    }
}

/// Bytes of a payload that are asked for at once.
pub(super) const READ_BYTES: usize = 256 << 10;

enum Read {
    Answer(Head, Vec<u8>),
    Part(Vec<u8>),
}

pub(super) fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::io("read messages", io::Error::new(io::ErrorKind::InvalidData, error))
}

impl Call<'_> {
    /// Waits for the answer.
    ///
    /// # Errors
    /// As [`Client::ask`].
    pub fn wait(mut self) -> Result<Vec<u8>, Error> {
        let answer = self.client.wait(self.number, self.until);
        self.is_over = answer.is_ok();
        answer
    }

    /// Needs no answer any more: the server is notified, and may stop its work.
    pub fn cancel(self) {}
}

impl Drop for Call<'_> {
    fn drop(&mut self) {
        let mut state = self.client.lock();
        state.waiting.remove(&self.number);
        let has_failed = state.failure.is_some();
        drop(state);
        if !self.is_over && !has_failed {
            let head =
                Head { number: self.number, length: 0, kind: MessageKind::Cancel, patience_ns: 0 };
            // The stream has failed if this does: then there is nothing to cancel.
            let _ = self.client.write(&head, &[]);
        }
    }
}
