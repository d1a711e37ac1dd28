//! How a runtime registers: what it asks for, what it gets, and the client that keeps the connection.
//!
//! A runtime sends `register` once on a connection of its own, and is registered while that connection is open. With
//! the answer come descriptors (SCM_RIGHTS), in this order:
//!
//! 1. the memory that it shares with the daemon (a sealed memfd; layout: `quell-shm`, `runtime`);
//! 2. the bell of the daemon (an eventfd): written to when a kernel thread asks for a core;
//! 3. one bell a kernel thread (the reading end of a pipe, non-blocking): readable when it is granted a core.
//!
//! A bell of a kernel thread is a pipe rather than an eventfd because both ends of an eventfd share their flags: the
//! runtime could make the daemon's scheduler thread block in it.

use std::io::{self, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use quell_model::{Class, Nanos, TimeLimits, TypedTimes, with_time_limits};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::client::ClientError;
use crate::protocol::{self, LINE_BYTES_MAX, Method, PROTOCOL, Reply, Request, Response};

/// Kernel threads that a runtime can register at most: the kernel passes 253 descriptors at once (`SCM_MAX_FD` of
/// `include/net/scm.h`).
pub const KTHREADS_MAX: u32 = 250;
/// Real-time signals (signal(7)) that programs may use: the C library keeps the first for itself.
const SIGNALS: std::ops::RangeInclusive<i32> = 35..=64;
/// How long the answer may take.
const REPLY_TIMEOUT: Duration = Duration::from_secs(10);

with_time_limits! {
    /// What a runtime asks for. Times that are left out or null are those of a task that does not say.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
    #[serde(deny_unknown_fields)]
    pub struct Registration: u64 {
        /// The version of the shared memory's layout that it knows.
        pub layout: u32,
        /// The name of its task; as of those in a configuration.
        pub name: String,
        /// Its class.
        #[schemars(schema_with = "class_schema")]
        pub class: Class,
        /// Cores that are its own whenever it wants them.
        pub guaranteed: u32,
        /// Cores at most, and so its kernel threads: at most [`KTHREADS_MAX`].
        pub max_cores: u32,
        /// The real-time signal by which a kernel thread is told that its core is revoked; null: it looks by itself.
        #[serde(default)]
        pub signal: Option<i32>,
        /// The version of the runtime, for people.
        #[serde(default)]
        pub version: String,
    }
}

fn class_schema(_: &mut SchemaGenerator) -> Schema {
    schemars::json_schema!({ "enum": ["lc", "be"] })
}

impl Registration {
    /// Whether it makes sense by itself; not, who may ask for it.
    ///
    /// # Errors
    /// A sentence.
    pub fn check(&self) -> Result<(), String> {
        if !crate::config::is_name(&self.name) {
            return Err(format!("{:?} cannot be a task's name", excerpt(&self.name)));
        }
        if !(1..=KTHREADS_MAX).contains(&self.max_cores) {
            return Err(format!("max_cores is {}; 1 to {KTHREADS_MAX} can be", self.max_cores));
        }
        if self.guaranteed > self.max_cores {
            return Err(format!(
                "{} cores guaranteed of {} at most",
                self.guaranteed, self.max_cores
            ));
        }
        self.times()?;
        match self.signal {
            Some(signal) if !SIGNALS.contains(&signal) => {
                Err(format!("signal {signal} is none of the real-time signals 35 to 64"))
            }
            _ => Ok(()),
        }
    }

    /// The times that it asks for. One below its least value counts as that.
    ///
    /// # Errors
    /// A sentence about the first that is too long.
    pub fn times(&self) -> Result<TimeLimits, String> {
        TimeLimits::read(self, self.class, |key, &typed| {
            let (least, most) = (*key.range.start(), *key.range.end());
            if typed > most {
                return Err(format!("{} is {typed}; at most {most} can be", key.name));
            }
            Ok(typed.max(least))
        })
    }

    /// The same with these times, rounded up: zero means never.
    pub fn with_times(mut self, times: TimeLimits) -> Registration {
        let typed = TimeLimits::KEYS.iter().zip(self.typed_mut());
        for ((key, typed), Nanos(time)) in typed.zip(times.to_array()) {
            *typed = Some(time.div_ceil(key.unit_ns));
        }
        self
    }

    /// Whether it asks for what an ordinary user may not have: a class or cores before others.
    pub fn is_privileged(&self) -> bool {
        self.class == Class::LatencyCritical || self.guaranteed > 0
    }
}

fn excerpt(name: &str) -> String {
    name.chars().take(32).collect()
}

/// What a runtime gets. Where its process belongs to a task of the configuration, that task's limits hold instead of
/// those that it asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Registered {
    /// Its task.
    pub task: String,
    /// The class that it has.
    #[schemars(schema_with = "class_schema")]
    pub class: Class,
    /// Cores guaranteed.
    pub guaranteed: u32,
    /// Cores at most.
    pub max_cores: u32,
    /// Kernel threads that the shared memory is for: as many as it asked for.
    pub kthreads: u32,
    /// A kernel thread whose core is revoked has so long to leave it, in microseconds; then it is moved.
    pub revoke_deadline_us: u64,
}

/// A registration: it lasts until this is dropped, or the daemon ends.
#[derive(Debug)]
pub struct Session {
    /// What was granted.
    pub registered: Registered,
    /// The shared memory.
    pub memory: OwnedFd,
    /// Rung to ask for a core.
    pub daemon: OwnedFd,
    /// Rung by the daemon when a kernel thread is granted a core: one a kernel thread.
    pub bells: Vec<OwnedFd>,
    stream: UnixStream,
}

impl AsFd for Session {
    /// Readable once the daemon has gone.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

/// The socket of this host's daemon: in `$QUELL_RUN_DIR`, else in `/run/quell` or `/dev/shm/quell`, whichever has one.
pub fn default_socket() -> PathBuf {
    let in_dir = |dir: &Path| dir.join("control.sock");
    match std::env::var_os("QUELL_RUN_DIR").filter(|dir| !dir.is_empty()) {
        Some(dir) => in_dir(Path::new(&dir)),
        None => {
            let usual = in_dir(Path::new("/run/quell"));
            let other = in_dir(Path::new("/dev/shm/quell"));
            if !usual.exists() && other.exists() { other } else { usual }
        }
    }
}

/// Registers with the daemon at this socket.
///
/// # Errors
/// [`ClientError::NotRunning`] where nobody listens, [`ClientError::Refused`] with the daemon's words, or what broke
/// on the way.
pub fn register(socket: &Path, wanted: &Registration) -> Result<Session, ClientError> {
    let mut stream = crate::client::connect(socket)?;
    stream.set_read_timeout(Some(REPLY_TIMEOUT))?;
    let call = Method::Register(wanted.clone());
    protocol::send(&mut stream, &Request { v: PROTOCOL, id: 1, call })?;
    let (line, fds) = receive(&mut stream)?;
    let response: Response = serde_json::from_slice(&line)?;
    let registered = match response.reply {
        Reply::Registered(registered) => registered,
        Reply::Error(why) => return Err(ClientError::Refused(why)),
        _ => return Err(invalid("it answered something else").into()),
    };
    stream.set_read_timeout(None)?;
    let mut fds = fds.into_iter();
    let (Some(memory), Some(daemon)) = (fds.next(), fds.next()) else {
        return Err(invalid("no descriptors came with the answer").into());
    };
    let bells: Vec<OwnedFd> = fds.collect();
    if bells.len() != registered.kthreads as usize || registered.kthreads != wanted.max_cores {
        return Err(invalid("there is not one bell a kernel thread").into());
    }
    Ok(Session { registered, memory, daemon, bells, stream })
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

/// One line, and the descriptors that came with its beginning.
fn receive(stream: &mut UnixStream) -> io::Result<(Vec<u8>, Vec<OwnedFd>)> {
    let mut line = vec![0; 4_096];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut iov = [IoSliceMut::new(&mut line)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    let got = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(&*stream, &mut iov, &mut control, flags)
    })?;
    let mut fds = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            fds.extend(passed);
        }
    }
    if got.flags.contains(ReturnFlags::CTRUNC) {
        return Err(invalid("descriptors were lost: more may be open than `ulimit -n` allows"));
    }
    line.truncate(got.bytes);
    while line.last() != Some(&b'\n') {
        let mut more = [0; 1_024];
        match stream.read(&mut more)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            bytes => line.extend_from_slice(&more[..bytes]),
        }
        if line.len() as u64 > LINE_BYTES_MAX {
            return Err(invalid("the answer is too long"));
        }
    }
    Ok((line, fds))
}

/// The daemon's side: sends an answer with descriptors.
///
/// # Errors
/// When the peer is gone or does not read.
pub fn send_with(
    stream: &mut UnixStream,
    response: &Response,
    fds: &[BorrowedFd<'_>],
) -> io::Result<()> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
    let mut line = serde_json::to_vec(response)?;
    line.push(b'\n');
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(253))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let iov = [io::IoSlice::new(&line)];
    let sent = rustix::net::sendmsg(&*stream, &iov, &mut control, SendFlags::NOSIGNAL)?;
    stream.write_all(&line[sent..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted() -> Registration {
        Registration {
            layout: 1,
            name: "kv".into(),
            class: Class::LatencyCritical,
            guaranteed: 1,
            max_cores: 2,
            signal: Some(40),
            version: "0.1".into(),
            ..Registration::default()
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_in_words_that_name_it() {
        assert_eq!(wanted().check(), Ok(()));
        type Spoil = fn(&mut Registration);
        let cases: [(Spoil, &str); 6] = [
            (|it| it.name = "../x".into(), "name"),
            (|it| it.max_cores = 0, "max_cores"),
            (|it| it.max_cores = KTHREADS_MAX + 1, "max_cores"),
            (|it| it.guaranteed = 3, "guaranteed"),
            (|it| it.quantum_us = Some(u64::MAX), "quantum_us"),
            (|it| it.signal = Some(9), "signal 9"),
        ];
        for (spoil, named) in cases {
            let mut it = wanted();
            spoil(&mut it);
            let why = it.check().unwrap_err();
            assert!(why.contains(named), "{why}");
        }
    }

    #[test]
    fn times_arrive_rounded_up_and_zero_counts_as_the_least() {
        let times = TimeLimits {
            delay_target: Nanos::ZERO,
            sibling_idle_after: Nanos(25_001),
            ..TimeLimits::default()
        };
        let line = serde_json::to_string(&wanted().with_times(times)).unwrap();
        let read: Registration = serde_json::from_str(&line).unwrap();
        let us = Nanos::from_micros;
        let expected =
            TimeLimits { delay_target: us(1), sibling_idle_after: us(26), ..TimeLimits::default() };
        assert_eq!(read.times(), Ok(expected));
        assert_eq!(wanted().times(), Ok(TimeLimits::default()));
    }

    #[test]
    fn a_class_or_cores_before_others_are_privileges() {
        let be = Registration { class: Class::BestEffort, guaranteed: 0, ..wanted() };
        assert!(wanted().is_privileged() && !be.is_privileged());
        assert!(Registration { guaranteed: 1, ..be }.is_privileged());
    }

    #[test]
    fn descriptors_arrive_in_order_with_their_answer() {
        let (mut daemon, mut runtime) = UnixStream::pair().unwrap();
        let registered = Registered {
            task: "kv".into(),
            class: Class::LatencyCritical,
            guaranteed: 1,
            max_cores: 2,
            kthreads: 250,
            revoke_deadline_us: 100,
        };
        let reply = Reply::Registered(registered);
        let response = Response { v: PROTOCOL, id: 1, reply };
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let mut fds = vec![reader.as_fd(); 251];
        fds.push(writer.as_fd());
        send_with(&mut daemon, &response, &fds).unwrap();
        let (line, fds) = receive(&mut runtime).unwrap();
        assert_eq!(serde_json::from_slice::<Response>(&line).unwrap(), response);
        assert_eq!(fds.len(), 252);
        rustix::io::write(&fds[251], b"x").unwrap();
        assert_eq!(rustix::io::read(&fds[0], &mut [0u8; 4]), Ok(1));
    }
}
