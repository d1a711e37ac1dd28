//! Channels over UDP, without connections in the kernel: virtual sockets repair loss and reordering, and the receiver says how
//! much may be on its way to it ([`quell_net_engine::scheduler::Granter`]).
//!
//! A channel begins with a packet each way, of which the first is repeated until the second comes. From then on each side has a
//! socket that takes the other's packets alone.

mod link;
mod packet;
mod receiving;
mod sending;

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use quell_net_engine::ChannelCaps;
use quell_net_engine::wire::{HEADER_BYTES, HELLO_BYTES, Hello};
use quinn_udp::{RecvMeta, Transmit, UdpSocketState};
use rustix::event::PollFlags;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

use crate::error::Error;
use crate::tcp::HANDSHAKE_TIME;
use crate::transport::{Readiness, Transport};
pub(crate) use link::Grants;
use link::{Half, Link};
use packet::{Greeting, HEAD_BYTES, Head, PACKET_MAX, PACKET_MIN, Purpose};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use receiving::take_anything;
use receiving::{Answer, UdpIncoming};
use sending::UdpOutgoing;

/// The first packet is repeated after this time, doubled up to [`REPEAT_MAX`].
const REPEAT_FIRST: Duration = Duration::from_millis(20);
/// See [`REPEAT_FIRST`].
const REPEAT_MAX: Duration = Duration::from_millis(500);
/// So many times with the longest packets of the first link, which another link of the path may not carry.
const LONG_TRIES: u32 = 3;
/// Datagrams that a port looks at before other things of the endpoint are done.
const DATAGRAMS_MAX: usize = 64;
/// See [`Recent`].
const REQUESTS_KEPT: usize = 256;

/// Bytes before and behind a datagram's own, which the kernel counts as part of its largest size.
fn header_bytes(address: IpAddr) -> usize {
    // That of IP without options, and that of UDP.
    if address.to_canonical().is_ipv4() { 20 + 8 } else { 40 + 8 }
}

/// The longest packet that the way to a connected socket's peer takes at first.
fn longest_packet(socket: &UdpSocket, peer: IpAddr) -> usize {
    let mtu = match peer {
        IpAddr::V4(_) => sockopt::ip_mtu(socket),
        IpAddr::V6(_) => sockopt::ipv6_mtu(socket),
    };
    let longest = mtu.map_or(PACKET_MIN, |mtu| mtu as usize - header_bytes(peer).min(mtu as usize));
    longest.clamp(PACKET_MIN, PACKET_MAX)
}

/// A socket at an address. `is_shared`: others of this process have it, too.
fn bind(address: SocketAddr, is_shared: bool) -> io::Result<UdpSocket> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, None)?;
    if is_shared {
        sockopt::set_socket_reuseport(&socket, true)?;
    }
    rustix::net::bind(&socket, &address)?;
    Ok(UdpSocket::from(socket))
}

/// Opens a channel to a port. Returns it with the peer's hello, and this side's address.
pub(crate) fn connect(
    address: SocketAddr,
    hello: &Hello,
    grants: &Arc<Grants>,
) -> Result<(Transport, Hello, IpAddr), Error> {
    let at = |what: &'static str| move |source| Error::Peer { address, what, source };
    let any = match address {
        SocketAddr::V4(_) => IpAddr::from(Ipv4Addr::UNSPECIFIED),
        SocketAddr::V6(_) => IpAddr::from(Ipv6Addr::UNSPECIFIED),
    };
    let socket = bind(SocketAddr::new(any, 0), false).map_err(at("create a socket"))?;
    socket.connect(address).map_err(at("find a way"))?;
    let own = socket.local_addr().map_err(at("find a way"))?.ip();
    // It keeps packets whole.
    let _ = UdpSocketState::new((&socket).into()).map_err(at("set a socket up"))?;
    let place = grants.place();
    let token = rand::random();
    let greeting = Greeting { token, hello: hello.encode() };
    let head =
        Head { purpose: Purpose::Open, token: 0, sent: 0, wanted: 0, granted: place.granted };
    let what = "reach its channel port by UDP: it may take TCP alone";
    let (head, theirs, size) = ask(&socket, address.ip(), &greeting, &head).map_err(at(what))?;
    let half = Half { socket, peer: address, own_token: token, place };
    let link = Link::new(half, theirs.token, head.granted, size).map_err(at("set a channel up"))?;
    let hello = Hello::decode(&theirs.hello).map_err(|source| Error::Hello { address, source })?;
    Ok((transport(link, None), hello, own))
}

/// What was done; `None` where nothing could be, or a packet was too long for a link of the path: the kernel knows that now.
fn unless_too_long<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(done) => Ok(Some(done)),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock || is_too_long(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

fn is_too_long(error: &io::Error) -> bool {
    rustix::io::Errno::from_io_error(error) == Some(rustix::io::Errno::MSGSIZE)
}

/// Sends the first packet until the answer comes.
fn ask(
    socket: &UdpSocket,
    peer: IpAddr,
    greeting: &Greeting,
    head: &Head,
) -> io::Result<(Head, Greeting, usize)> {
    let until = Instant::now() + HANDSHAKE_TIME;
    let mut buffer = vec![0; PACKET_MAX];
    let mut pause = REPEAT_FIRST;
    for tries in 0_u32.. {
        let longest = longest_packet(socket, peer);
        let size = if tries < LONG_TRIES { longest } else { PACKET_MIN };
        unless_too_long(socket.send(&greeting.packet(head, size)))?;
        let next = until.min(Instant::now() + pause);
        while crate::attach::wait((socket.as_fd(), PollFlags::IN), next).is_ok() {
            let Some(length) = unless_too_long(socket.recv(&mut buffer))? else { continue };
            let answer = Head::decode(&buffer[..length]);
            let Some((answer, payload)) = answer.filter(|(it, _)| it.token == greeting.token)
            else {
                continue;
            };
            match (answer.purpose, Greeting::decode(payload)) {
                // As long as the packet that was answered.
                (Purpose::Answer, Some(theirs)) => {
                    return Ok((answer, theirs, length.clamp(PACKET_MIN, longest)));
                }
                (Purpose::End, _) => return Err(io::ErrorKind::ConnectionRefused.into()),
                _ => {}
            }
        }
        if Instant::now() >= until {
            break;
        }
        pause = (pause * 2).min(REPEAT_MAX);
    }
    Err(io::ErrorKind::TimedOut.into())
}

/// Requests of late: where they came from, their token and their length. One that is repeated after it was taken is answered by
/// its channel.
#[derive(Clone, Default)]
struct Recent(Arc<Mutex<VecDeque<(SocketAddr, u64, usize)>>>);

impl Recent {
    fn with<T>(&self, act: impl FnOnce(&mut VecDeque<(SocketAddr, u64, usize)>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether it is new.
    fn note(&self, request: (SocketAddr, u64, usize)) -> bool {
        self.with(|recent| {
            let is_new = !recent.contains(&request);
            if is_new {
                recent.truncate(REQUESTS_KEPT - 1);
                recent.push_front(request);
            }
            is_new
        })
    }

    fn forget(&self, token: u64) {
        self.with(|recent| recent.retain(|(_, known, _)| *known != token));
    }
}

/// Where an endpoint takes channels over UDP.
pub(crate) struct Port {
    socket: UdpSocket,
    state: UdpSocketState,
    address: SocketAddr,
    recent: Recent,
    buffer: Vec<u8>,
}

/// A request for a channel.
pub(crate) struct Opening {
    pub from: SocketAddr,
    pub hello: [u8; HELLO_BYTES],
    /// Of the side that asks.
    token: u64,
    granted: u64,
    size: usize,
    /// Where it came to.
    at: SocketAddr,
    recent: Recent,
}

impl Port {
    /// Listens beside a TCP port.
    pub fn bind(address: SocketAddr) -> io::Result<Port> {
        let socket = bind(address, true)?;
        let state = UdpSocketState::new((&socket).into())?;
        let (recent, buffer) = (Recent::default(), vec![0; PACKET_MAX]);
        Ok(Port { socket, state, address, recent, buffer })
    }

    /// The next request, if one is among the next datagrams.
    pub fn accept(&mut self) -> io::Result<Option<Opening>> {
        for _ in 0..DATAGRAMS_MAX {
            let mut meta = [RecvMeta::default()];
            let mut buffer = [IoSliceMut::new(&mut self.buffer)];
            match self.state.recv((&self.socket).into(), &mut buffer, &mut meta) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
            let [RecvMeta { addr: from, len, stride, dst_ip, .. }] = meta;
            // Further ones that the kernel has put behind it are the same request, repeated.
            let length = len.min(stride);
            let Some((head, payload)) = Head::decode(&self.buffer[..length]) else { continue };
            if head.purpose == Purpose::Frames {
                // Of a channel that this process does not have, or has no more.
                self.refuse(&head, from, dst_ip);
                continue;
            }
            let greeting = Greeting::decode(payload).filter(|_| head.purpose == Purpose::Open);
            let Some(greeting) = greeting.filter(|_| length >= PACKET_MIN) else { continue };
            if !self.recent.note((from, greeting.token, length)) {
                continue;
            }
            let Greeting { token, hello } = greeting;
            // Answers come from the address that was asked.
            let at = SocketAddr::new(dst_ip.unwrap_or(self.address.ip()), self.address.port());
            let (from, at, granted) = (unmapped(from), unmapped(at), head.granted);
            let recent = self.recent.clone();
            return Ok(Some(Opening { from, hello, token, granted, size: length, at, recent }));
        }
        Ok(None)
    }

    /// Says that a packet is of no channel, with the token that it had: so the other side knows that it was received.
    fn refuse(&self, head: &Head, to: SocketAddr, from: Option<IpAddr>) {
        let refusal = Head { purpose: Purpose::Unknown, ..*head }.encode();
        let transmit = Transmit {
            destination: to,
            ecn: None,
            contents: &refusal,
            segment_size: None,
            src_ip: from,
        };
        if let Err(error) = self.state.try_send((&self.socket).into(), &transmit) {
            tracing::debug!("a packet of {to} that is of no channel is not answered: {error}");
        }
    }
}

/// An IPv4 address as one, where a socket of IPv6 has received from it.
fn unmapped(address: SocketAddr) -> SocketAddr {
    match address {
        SocketAddr::V6(v6) => match v6.ip().to_ipv4_mapped() {
            Some(v4) => SocketAddr::from((v4, v6.port())),
            None => address,
        },
        SocketAddr::V4(_) => address,
    }
}

impl AsFd for Port {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Answers a request. Returns the channel, and this side's address.
pub(crate) fn accept(
    opening: &Opening,
    hello: &Hello,
    grants: &Arc<Grants>,
) -> io::Result<(Transport, IpAddr)> {
    let answered = answer(opening, hello, grants);
    if answered.is_err() {
        // It may be repeated.
        opening.recent.forget(opening.token);
    }
    answered
}

fn answer(
    opening: &Opening,
    hello: &Hello,
    grants: &Arc<Grants>,
) -> io::Result<(Transport, IpAddr)> {
    let socket = bind(opening.at, true)?;
    socket.connect(opening.from)?;
    let own = socket.local_addr()?.ip();
    let size = opening.size.min(longest_packet(&socket, opening.from.ip()));
    let place = grants.place();
    let token = rand::random();
    let head = Head {
        purpose: Purpose::Answer,
        token: opening.token,
        sent: 0,
        wanted: 0,
        granted: place.granted,
    };
    let packet = Greeting { token, hello: hello.encode() }.packet(&head, size);
    let half = Half { socket, peer: opening.from, own_token: token, place };
    let link = Link::new(half, opening.token, opening.granted, size)?;
    link.send(&packet, packet.len())?;
    Ok((transport(link, Some(Answer { packet, token: opening.token, at: Instant::now() })), own))
}

fn transport(link: Arc<Link>, answer: Option<Answer>) -> Transport {
    let max_frame = (link.packet_bytes - HEAD_BYTES - HEADER_BYTES) as u32;
    Transport {
        outgoing: Box::new(UdpOutgoing::new(Arc::clone(&link))),
        incoming: Box::new(UdpIncoming::new(Arc::clone(&link), answer)),
        readiness: Arc::new(UdpReadiness(link)),
        // Grants bound its queue.
        path: None,
        caps: ChannelCaps { is_lossy: true, max_frame },
        name: "udp",
    }
}

struct UdpReadiness(Arc<Link>);

impl Readiness for UdpReadiness {
    fn readable(&self) -> (BorrowedFd<'_>, PollFlags) {
        (self.0.socket(), PollFlags::IN)
    }

    fn writable(&self) -> (BorrowedFd<'_>, PollFlags) {
        (self.0.bell(), PollFlags::IN)
    }

    fn arm_writable(&self) -> bool {
        self.0.arm()
    }

    fn has_room(&self) -> bool {
        self.0.has_room()
    }

    fn end(&self) {
        self.0.end();
    }
}
