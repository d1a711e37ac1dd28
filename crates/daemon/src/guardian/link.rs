//! Messages between daemon and guardian, with descriptors.
//!
//! A `SOCK_SEQPACKET` pair keeps the bounds of messages. First byte: what it is; the rest depends on it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use quell_model::{CORES_MAX, CoreSet, Nanos};
use quell_os::sched::{Policy, SchedAttr};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

/// Descriptors in one message; the kernel takes up to 253.
pub(super) const FDS_MAX: usize = 16;
const BYTES_MAX: usize = 1024;
/// A set of cores in a message.
const CORES_BYTES: usize = CORES_MAX / 8;

/// What daemon and guardian tell each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Message {
    /// To the guardian: what to watch. With journal and handle of the daemon's process.
    Watch { stale_after: Nanos, rung: SchedAttr, cores: CoreSet, journal: String },
    /// To the guardian: hold these descriptors under this name, instead of any before.
    Hold { name: String },
    /// To the daemon: watching. `degraded` says what the host refused the guardian.
    Ready { degraded: String },
}

impl Message {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        let text = match self {
            Message::Watch { stale_after, rung, cores, journal } => {
                bytes.push(b'W');
                bytes.extend(stale_after.0.to_le_bytes());
                bytes.push(rung.policy.to_kernel() as u8);
                bytes.push(rung.priority);
                bytes.extend(cores.words().iter().flat_map(|word| word.to_le_bytes()));
                journal
            }
            Message::Hold { name } => {
                bytes.push(b'H');
                name
            }
            Message::Ready { degraded } => {
                bytes.push(b'R');
                degraded
            }
        };
        bytes.extend(text.bytes().take(BYTES_MAX - bytes.len()));
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Message> {
        let (&kind, rest) = bytes.split_first()?;
        let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
        Some(match kind {
            b'W' => {
                let (stale_after, rest) = rest.split_first_chunk::<8>()?;
                let (&[policy, priority], rest) = rest.split_first_chunk::<2>()?;
                let policy = Policy::from_kernel(u32::from(policy))?;
                let (cores, rest) = rest.split_first_chunk::<CORES_BYTES>()?;
                let (words, _) = cores.as_chunks();
                let words: Vec<u64> = words.iter().map(|word| u64::from_le_bytes(*word)).collect();
                Message::Watch {
                    stale_after: Nanos(u64::from_le_bytes(*stale_after)),
                    rung: SchedAttr { policy, ..SchedAttr::fifo(priority) },
                    cores: CoreSet::from_words(&words),
                    journal: text(rest)?,
                }
            }
            b'H' => Message::Hold { name: text(rest)? },
            b'R' => Message::Ready { degraded: text(rest)? },
            _ => return None,
        })
    }
}

/// One end of the link.
#[derive(Debug)]
pub(super) struct Link(OwnedFd);

impl Link {
    /// Both ends of a new link.
    pub(super) fn pair() -> io::Result<(Link, OwnedFd)> {
        let (near, far) = rustix::net::socketpair(
            AddressFamily::UNIX,
            SocketType::SEQPACKET,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        Ok((Link(near), far))
    }

    /// The end that a guardian was started with.
    pub(super) fn from_stdin() -> io::Result<Link> {
        Ok(Link(io::stdin().as_fd().try_clone_to_owned()?))
    }

    /// Sends a message; never blocks.
    pub(super) fn send(&self, message: &Message, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let bytes = message.encode();
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
        }
        let iov = [IoSlice::new(&bytes)];
        let sent = rustix::net::sendmsg(&self.0, &iov, &mut control, SendFlags::NOSIGNAL)?;
        if sent < bytes.len() { Err(io::ErrorKind::WriteZero.into()) } else { Ok(()) }
    }

    /// Receives a message, if one is there. `Err(UnexpectedEof)` when the other end is closed.
    pub(super) fn receive(&self) -> io::Result<Option<(Message, Vec<OwnedFd>)>> {
        let mut bytes = [0; BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut iov = [IoSliceMut::new(&mut bytes)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        let received = match rustix::net::recvmsg(&self.0, &mut iov, &mut control, flags) {
            Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return Ok(None),
            received => received?,
        };
        if received.bytes == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut fds = Vec::new();
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                fds.extend(rights);
            }
        }
        let message = Message::decode(&bytes[..received.bytes]);
        message.map(|message| Some((message, fds))).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }
}

impl AsFd for Link {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_model::CoreId;
    use std::io::{Read, Seek, Write};

    #[test]
    fn descriptors_arrive_with_their_message() {
        let (near, far) = Link::pair().unwrap();
        let far = Link(far);
        assert!(far.receive().unwrap().is_none());
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"held").unwrap();
        let hold = Message::Hold { name: "slots".into() };
        near.send(&hold, &[file.as_fd(), file.as_fd()]).unwrap();
        let (message, fds) = far.receive().unwrap().unwrap();
        assert_eq!((message, fds.len()), (hold, 2));
        let mut same = std::fs::File::from(fds.into_iter().next().unwrap());
        same.rewind().unwrap();
        let mut text = String::new();
        same.read_to_string(&mut text).unwrap();
        assert_eq!(text, "held");
        drop(near);
        assert_eq!(far.receive().unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn messages_survive_and_garbage_does_not() {
        let watch = Message::Watch {
            stale_after: Nanos::from_secs(1),
            rung: SchedAttr::fifo(96),
            cores: CoreSet::of(CoreId(3)),
            journal: "/run/quell/journal".into(),
        };
        assert_eq!(Message::decode(&watch.encode()), Some(watch));
        for garbage in [&b""[..], b"W123", b"X", b"H\xff"] {
            assert_eq!(Message::decode(garbage), None);
        }
    }
}
