//! One channel over UDP: its socket, and what each side may send. All channels of an endpoint share what may be on its way to
//! it.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use quell_model::Nanos;
use quell_net_engine::scheduler::{GrantLimits, Granter, Sender};
use quinn_udp::{Transmit, UdpSocketState};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::packet::{HEAD_BYTES, Head, Purpose};
use crate::threads;
use crate::waiter::timespec;

/// A side that waits for a grant says so again after this time: what it said before, or the answer, may be lost.
const ASK_EVERY: Duration = Duration::from_millis(2);
/// The socket's buffer holds more than grants let be on its way. Should it be full, packets wait so long, then count as lost.
const BUFFER_WAIT: Duration = Duration::from_millis(1);
/// Buffer of a socket that is asked for: what the window holds in small packets.
const BUFFER_BYTES: usize = 1 << 20;

/// What is on its way to an endpoint over all its channels.
pub(crate) struct Grants {
    limits: GrantLimits,
    start: Instant,
    known: Mutex<Known>,
}

struct Known {
    granter: Granter,
    links: BTreeMap<Sender, Weak<Link>>,
}

/// A place among the senders, until its link is up and after.
pub(crate) struct Place {
    grants: Arc<Grants>,
    sender: Sender,
    /// What its sender may send unasked.
    pub granted: u64,
}

impl Grants {
    pub fn new(limits: GrantLimits) -> Grants {
        let known = Known { granter: Granter::new(limits), links: BTreeMap::new() };
        Grants { limits, start: Instant::now(), known: Mutex::new(known) }
    }

    /// A new sender.
    pub fn place(self: &Arc<Grants>) -> Place {
        let (sender, granted) = self.with(|known| known.granter.add());
        Place { grants: Arc::clone(self), sender, granted }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Known) -> T) -> T {
        // Nothing in it panics halfway.
        threads::hold(|| act(&mut self.known.lock().unwrap_or_else(PoisonError::into_inner)))
    }

    /// A sender has sent so much, and wants that. Grants that rise are given to their links, of which some send them.
    fn heard(&self, sender: Sender, sent: u64, wanted: u64) {
        let now = Nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX));
        let raised: Vec<(Arc<Link>, u64)> = self.with(|known| {
            known.granter.heard(sender, sent, wanted, now);
            let mut raised = Vec::new();
            known.granter.grant(now, &mut raised);
            let link = |(sender, granted)| Some((known.links.get(&sender)?.upgrade()?, granted));
            raised.into_iter().filter_map(link).collect()
        });
        for (link, granted) in raised {
            link.raise(granted, self.limits.unscheduled);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.grants.with(|known| {
            known.granter.remove(self.sender);
            known.links.remove(&self.sender);
        });
    }
}

/// What each side of a channel may send. Bytes are those of frames, since the channel began.
#[derive(Debug, Default)]
struct Flow {
    /// Taken from the endpoint, in whole frames.
    taken: u64,
    /// Of them those in packets that have left.
    sent: u64,
    /// Taken, and offered beyond that.
    wanted: u64,
    /// The largest of those that a packet has said.
    announced: u64,
    announced_at: Option<Instant>,
    /// The peer lets this side send so much.
    allowed: u64,
    /// A thread waits for more.
    is_armed: bool,
    /// The peer has sent so much, as far as is known.
    heard: u64,
    /// This side lets the peer send so much, and has said so of that.
    granted: u64,
    said: u64,
}

/// See the module.
pub(crate) struct Link {
    socket: UdpSocket,
    state: UdpSocketState,
    peer: SocketAddr,
    /// What has to be in packets to this side.
    pub own_token: u64,
    pub their_token: u64,
    /// Bytes of a packet at most.
    pub packet_bytes: usize,
    place: Place,
    /// Rings when there is room, and when it is time to ask for some: a timer.
    bell: OwnedFd,
    flow: Mutex<Flow>,
    is_ended: AtomicBool,
}

/// The socket's end of a link before it is one.
pub(crate) struct Half {
    pub socket: UdpSocket,
    pub peer: SocketAddr,
    pub own_token: u64,
    pub place: Place,
}

impl Link {
    /// A link whose two sides have greeted each other.
    pub fn new(
        half: Half,
        their_token: u64,
        allowed: u64,
        packet_bytes: usize,
    ) -> io::Result<Arc<Link>> {
        let Half { socket, peer, own_token, place } = half;
        let state = UdpSocketState::new((&socket).into())?;
        // The kernel gives what its limits allow.
        rustix::net::sockopt::set_socket_recv_buffer_size(&socket, BUFFER_BYTES)?;
        rustix::net::sockopt::set_socket_send_buffer_size(&socket, BUFFER_BYTES)?;
        let flags = TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC;
        let bell = timerfd_create(TimerfdClockId::Monotonic, flags)?;
        let granted = place.granted;
        let flow = Flow { allowed, granted, said: granted, ..Flow::default() };
        let (grants, sender) = (Arc::clone(&place.grants), place.sender);
        let link = Arc::new(Link {
            socket,
            state,
            peer,
            own_token,
            their_token,
            packet_bytes,
            place,
            bell,
            flow: Mutex::new(flow),
            is_ended: AtomicBool::new(false),
        });
        grants.with(|known| known.links.insert(sender, Arc::downgrade(&link)));
        Ok(link)
    }

    fn with<T>(&self, act: impl FnOnce(&mut Flow) -> T) -> T {
        let lock = || -> MutexGuard<'_, Flow> {
            // Nothing in it panics halfway.
            self.flow.lock().unwrap_or_else(PoisonError::into_inner)
        };
        threads::hold(|| act(&mut lock()))
    }

    pub fn is_ended(&self) -> bool {
        // Relaxed: the flag carries nothing else.
        self.is_ended.load(Ordering::Relaxed)
    }

    /// Its socket, for data.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// What is readable when there is room.
    pub fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// `bytes` wait to be sent. Returns how many may be taken.
    pub fn offer(&self, bytes: u64) -> u64 {
        self.with(|flow| {
            flow.wanted = flow.wanted.max(flow.taken + bytes);
            flow.allowed.saturating_sub(flow.taken)
        })
    }

    /// So many bytes were taken.
    pub fn take(&self, bytes: u64) {
        self.with(|flow| {
            flow.taken += bytes;
            flow.wanted = flow.wanted.max(flow.taken);
        });
    }

    /// The head of the next packet, which holds so many bytes.
    pub fn head(&self, purpose: Purpose, bytes: u64) -> Head {
        self.with(|flow| {
            flow.sent += bytes;
            debug_assert!(flow.sent <= flow.taken, "sent what was not taken");
            (flow.announced, flow.said) = (flow.wanted, flow.granted);
            let (sent, wanted, granted) = (flow.sent, flow.wanted, flow.granted);
            Head { purpose, token: self.their_token, sent, wanted, granted }
        })
    }

    /// Nothing may be sent: the peer has to know what waits, and that again after a while.
    pub fn ask(&self) -> io::Result<()> {
        let now = Instant::now();
        let is_due = self.with(|flow| {
            let is_old = flow.announced_at.is_none_or(|at| now - at >= ASK_EVERY);
            let is_due = flow.wanted > flow.announced || is_old;
            if is_due {
                flow.announced_at = Some(now);
            }
            is_due
        });
        if is_due { self.tell(Purpose::Ask) } else { Ok(()) }
    }

    /// Sends a packet without frames.
    fn tell(&self, purpose: Purpose) -> io::Result<()> {
        self.send(&self.head(purpose, 0).encode(), HEAD_BYTES)
    }

    /// Sends packets of `size` bytes each, of which the last may be shorter.
    ///
    /// # Errors
    /// When the peer is not there any more, or the packets are too long for the network now.
    pub fn send(&self, packets: &[u8], size: usize) -> io::Result<()> {
        use rustix::io::Errno;
        let sent = self.send_at_once(packets, size);
        let refusal = sent.as_ref().err().and_then(Errno::from_io_error);
        match refusal {
            // The kernel cannot take them apart on this way (IPsec, an interface without checksums).
            Some(Errno::IO | Errno::INVAL) if size < packets.len() => {
                packets.chunks(size).try_for_each(|packet| self.send_at_once(packet, size))
            }
            _ => sent,
        }
    }

    fn send_at_once(&self, packets: &[u8], size: usize) -> io::Result<()> {
        let until = Instant::now() + BUFFER_WAIT;
        let transmit = Transmit {
            destination: self.peer,
            ecn: None,
            contents: packets,
            segment_size: Some(size),
            src_ip: None,
        };
        loop {
            let Err(error) = self.state.try_send((&self.socket).into(), &transmit) else {
                return Ok(());
            };
            match error.kind() {
                io::ErrorKind::WouldBlock if Instant::now() < until => self.wait_for_buffer()?,
                // Lost, as in the network: a full queue, a filter, a route that is gone for now.
                io::ErrorKind::WouldBlock
                | io::ErrorKind::PermissionDenied
                | io::ErrorKind::NetworkUnreachable
                | io::ErrorKind::HostUnreachable
                | io::ErrorKind::NetworkDown => return Ok(()),
                _ if rustix::io::Errno::from_io_error(&error)
                    == Some(rustix::io::Errno::NOBUFS) =>
                {
                    return Ok(());
                }
                _ => return Err(error),
            }
        }
    }

    fn wait_for_buffer(&self) -> io::Result<()> {
        let mut wanted = [PollFd::new(&self.socket, PollFlags::OUT)];
        match poll(&mut wanted, Some(&timespec(BUFFER_WAIT))) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// How many packets of one size leave at once.
    pub fn batch(&self) -> usize {
        self.state.max_gso_segments()
    }

    /// Receives packets into buffers; see [`UdpSocketState::recv`].
    pub fn receive(
        &self,
        buffers: &mut [io::IoSliceMut<'_>],
        meta: &mut [quinn_udp::RecvMeta],
    ) -> io::Result<usize> {
        self.state.recv((&self.socket).into(), buffers, meta)
    }

    /// Whether a packet may be the peer's.
    pub fn is_from_peer(&self, address: SocketAddr) -> bool {
        address.port() == self.peer.port()
            && address.ip().to_canonical() == self.peer.ip().to_canonical()
    }

    /// What packets of the peer have said: the largest of each. `asks`: one of them was sent for want of a grant.
    pub fn heard(&self, sent: u64, wanted: u64, granted: u64, asks: bool) {
        let is_lost = self.with(|flow| {
            flow.heard = flow.heard.max(sent);
            // It was let send more, and does not know.
            let is_lost = asks && flow.said > sent;
            let had_room = flow.allowed > flow.taken;
            flow.allowed = flow.allowed.max(granted);
            let has_more = !had_room && flow.allowed > flow.taken && flow.is_armed;
            if has_more {
                // Under the lock: a thread that arms it sets it to later.
                flow.is_armed = false;
                self.ring(Duration::from_nanos(1));
            }
            is_lost
        });
        self.place.grants.heard(self.place.sender, sent, wanted);
        if is_lost {
            self.tell_grant();
        }
    }

    /// This side lets the peer send so much. It goes with the next packet, or at once if the peer has little left.
    fn raise(&self, granted: u64, unscheduled: u64) {
        let is_needed = self.with(|flow| {
            flow.granted = flow.granted.max(granted);
            let beyond = flow.granted > flow.heard.saturating_add(unscheduled);
            flow.granted > flow.said
                && (beyond || flow.said < flow.heard.saturating_add(unscheduled / 2))
        });
        if is_needed {
            self.tell_grant();
        }
    }

    fn tell_grant(&self) {
        if let Err(error) = self.tell(Purpose::Frames) {
            // The thread that reads the channel finds out, too.
            tracing::debug!("a grant to {} is not sent: {error}", self.peer);
        }
    }

    /// A thread is about to sleep until there is room. True if there is.
    pub fn arm(&self) -> bool {
        let has_room = self.with(|flow| {
            flow.is_armed = flow.allowed <= flow.taken;
            if flow.is_armed {
                self.ring(ASK_EVERY);
            }
            !flow.is_armed
        });
        has_room || self.is_ended()
    }

    pub fn has_room(&self) -> bool {
        self.with(|flow| flow.allowed > flow.taken)
    }

    fn ring(&self, after: Duration) {
        let value = Timespec {
            tv_sec: after.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: after.subsec_nanos().into(),
        };
        let zero = Timespec { tv_sec: 0, tv_nsec: 0 };
        let time = Itimerspec { it_interval: zero, it_value: value };
        if let Err(error) = timerfd_settime(&self.bell, TimerfdTimerFlags::empty(), &time) {
            tracing::error!("a thread is not woken for room on a channel: {error}");
        }
    }

    /// The peer has ended the channel, or is not there.
    pub fn lose(&self) {
        // Relaxed: the system calls below wake the threads that have to look at it.
        self.is_ended.store(true, Ordering::Relaxed);
        // It fails where the peer's port is closed: then waiting threads know it.
        let _ = rustix::net::shutdown(&self.socket, rustix::net::Shutdown::Both);
        self.ring(Duration::from_nanos(1));
    }

    /// This side ends the channel.
    pub fn end(&self) {
        if !self.is_ended() {
            // Should it be lost the peer finds out when nothing answers.
            let _ = self.tell(Purpose::End);
        }
        self.lose();
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        // A channel that was refused, for instance: nothing has ended it.
        if !self.is_ended() {
            self.end();
        }
    }
}
