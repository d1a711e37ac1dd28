//! The side that answers.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::client::{READ_BYTES, invalid};
use super::{HEAD_BYTES, Head, MessageKind, PAYLOAD_MAX};
use crate::error::Error;
use crate::stream::Stream;

/// Requests that a client may have open; beyond that its stream is given up.
const OPEN_MAX: usize = 4_096;

/// Receives requests from a stream. One thread takes them; any answers them.
pub struct Server {
    answers: Arc<Answers>,
    payload_max: u32,
    /// Bytes of the next message.
    message: Vec<u8>,
}

struct Answers {
    stream: Stream,
    /// Requests that were not answered, and whether they were cancelled.
    open: Mutex<BTreeMap<u64, bool>>,
    writing: Mutex<()>,
}

/// A request to be answered. Dropped without, it gets an empty answer.
pub struct Request {
    answers: Arc<Answers>,
    number: u64,
    payload: Vec<u8>,
    until: Option<Instant>,
    is_answered: bool,
}

impl Server {
    /// Answers over this stream.
    pub fn new(stream: Stream) -> Server {
        let answers = Answers { stream, open: Mutex::default(), writing: Mutex::default() };
        Server { answers: Arc::new(answers), payload_max: PAYLOAD_MAX, message: Vec::new() }
    }

    /// Requests longer than this end the stream.
    #[must_use]
    pub fn with_payload_max(mut self, bytes: u32) -> Server {
        self.payload_max = bytes;
        self
    }

    /// The next request; `None` at the end of the stream. Requests whose sender has given up meanwhile are left out.
    ///
    /// # Errors
    /// When the stream has failed, or carries something else.
    pub fn receive(&mut self) -> Result<Option<Request>, Error> {
        loop {
            let Some(head) = self.read()? else { return Ok(None) };
            let payload = self.message.split_off(HEAD_BYTES);
            self.message.clear();
            let mut open = self.answers.open.lock().unwrap_or_else(PoisonError::into_inner);
            match head.kind {
                MessageKind::Answer => return Err(invalid("the peer answers what was not asked")),
                MessageKind::Cancel => {
                    open.entry(head.number).and_modify(|is_cancelled| *is_cancelled = true);
                }
                MessageKind::Request => {
                    if open.insert(head.number, false).is_some() {
                        return Err(invalid("the peer uses a number twice"));
                    }
                    if open.len() > OPEN_MAX {
                        return Err(invalid("the peer has more requests open than are allowed"));
                    }
                    drop(open);
                    let patience = Duration::from_nanos(head.patience_ns);
                    let until =
                        (head.patience_ns > 0).then(|| Instant::now().checked_add(patience));
                    return Ok(Some(Request {
                        answers: Arc::clone(&self.answers),
                        number: head.number,
                        payload,
                        until: until.flatten(),
                        is_answered: false,
                    }));
                }
            }
        }
    }

    /// Reads a message whole.
    fn read(&mut self) -> Result<Option<Head>, Error> {
        loop {
            let mut wanted = HEAD_BYTES;
            if let Some(bytes) = self.message.first_chunk::<HEAD_BYTES>() {
                let head = Head::decode(bytes, self.payload_max).map_err(invalid)?;
                wanted += head.length as usize;
                if self.message.len() == wanted {
                    return Ok(Some(head));
                }
            }
            let had = self.message.len();
            self.message.resize(wanted.min(had + READ_BYTES), 0);
            let read = self.answers.stream.read(&mut self.message[had..]);
            self.message.truncate(had + read.as_ref().map_or(0, |read| *read));
            match read {
                Ok(0) if had == 0 => return Ok(None),
                Ok(0) => {
                    return Err(Error::io("read requests", io::ErrorKind::UnexpectedEof.into()));
                }
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl Request {
    /// What was asked.
    pub fn payload(&self) -> &[u8] {
        &self.payload
    }

    /// When its sender gives up.
    pub fn until(&self) -> Option<Instant> {
        self.until
    }

    /// Whether its sender waits no more for the answer: it was cancelled, or its time is over.
    pub fn is_cancelled(&self) -> bool {
        let open = self.answers.open.lock().unwrap_or_else(PoisonError::into_inner);
        let is_late = self.until.is_some_and(|until| Instant::now() >= until);
        is_late || open.get(&self.number).copied().unwrap_or_default()
    }

    /// Answers it. Nothing is sent if its sender waits no more.
    ///
    /// # Errors
    /// When the stream has failed.
    pub fn answer(mut self, answer: &[u8]) -> Result<(), Error> {
        self.is_answered = true;
        self.send(answer)
    }

    fn send(&self, answer: &[u8]) -> Result<(), Error> {
        let is_cancelled = self.is_cancelled();
        self.answers.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.number);
        if is_cancelled {
            return Ok(());
        }
        let length = u32::try_from(answer.len()).map_err(|_| {
            Error::Config(format!("an answer of {} bytes is too long", answer.len()))
        })?;
        let head = Head { number: self.number, length, kind: MessageKind::Answer, patience_ns: 0 };
        let mut message = Vec::with_capacity(HEAD_BYTES + answer.len());
        message.extend_from_slice(&head.encode());
        message.extend_from_slice(answer);
        let _writing = self.answers.writing.lock().unwrap_or_else(PoisonError::into_inner);
        self.answers.stream.write_all(&message)
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        if !self.is_answered {
            // Where the stream has failed, its client knows.
            let _ = self.send(&[]);
        }
    }
}
