//! Channels between two processes of one host, through memory that they share.
//!
//! A Unix socket carries the hello and the descriptors, and from then on the wake-ups: one for data on the connection itself,
//! one for room on a second pair. It ends with either process, which so learns of the other's death; bytes that are in the
//! ring by then are read first.

mod ring;

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr as UnixAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use quell_net_engine::ChannelCaps;
use quell_net_engine::wire::{HELLO_BYTES, Hello, PAYLOAD_MAX};
use rustix::event::PollFlags;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType,
};

use crate::error::Error;
use crate::tcp::HANDSHAKE_TIME;
use crate::transport::{Incoming, Outgoing, Readiness, Transport};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use ring::write_anything;
use ring::{Consumer, Producer, Side};

/// Descriptors of a hello: the opener's memory and its end of the pair for room; the acceptor's memory.
const DESCRIPTORS_MAX: usize = 2;

/// Where the channel port of an address takes channels through shared memory. The name is in the network namespace, as the
/// port is.
fn name(port: SocketAddr) -> String {
    format!("quell-net/{}", SocketAddr::new(port.ip().to_canonical(), port.port()))
}

/// Listens beside a TCP port.
pub(crate) fn listen(port: SocketAddr) -> io::Result<UnixListener> {
    let listener = UnixListener::bind_addr(&UnixAddr::from_abstract_name(name(port))?)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Channels are shared with processes of the same user, and with root's.
pub(crate) fn check_user(connection: &UnixStream) -> io::Result<()> {
    let (user, _) = quell_os::peer_credentials(connection.as_fd())?;
    let own = rustix::process::geteuid().as_raw();
    match user == own || user == 0 || own == 0 {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("the process at the other end is of user {user}, this one of {own}"),
        )),
    }
}

/// Connects without waiting for the owner of the name: it may be any process, and never accept.
fn dial(address: SocketAddr) -> io::Result<UnixStream> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new_abstract_name(name(address).as_bytes())?)?;
    let connection = UnixStream::from(socket);
    connection.set_nonblocking(false)?;
    Ok(connection)
}

/// Opens a channel to a port of this host. `None` where nothing takes channels through shared memory there.
pub(crate) fn connect(
    address: SocketAddr,
    hello: &Hello,
) -> Result<Option<(Transport, Hello)>, Error> {
    let at = |what: &'static str| move |source| Error::Peer { address, what, source };
    // A system that has no sealed memory has TCP.
    let Ok((side, file)) = Side::create() else { return Ok(None) };
    let Ok(connection) = dial(address) else { return Ok(None) };
    if check_user(&connection).is_err() {
        return Ok(None);
    }
    connection.set_read_timeout(Some(HANDSHAKE_TIME)).map_err(at("set a time limit"))?;
    let (room, their_room) = UnixStream::pair().map_err(at("create a socket pair"))?;
    send(&connection, hello, &[file.as_fd(), their_room.as_fd()]).map_err(at("send the hello"))?;
    let (bytes, mut descriptors) = receive(&connection).map_err(at("read the peer's hello"))?;
    let theirs = Hello::decode(&bytes).map_err(|source| Error::Hello { address, source })?;
    let memory = descriptors.pop().filter(is_memory).ok_or(io::ErrorKind::InvalidData.into());
    let peer = memory.and_then(Side::open).map_err(at("map the peer's memory"))?;
    let transport = transport(side, peer, connection, room).map_err(at("set a channel up"))?;
    Ok(Some((transport, theirs)))
}

/// A hello that came over a connection, and what came with it.
pub(crate) struct Opening {
    pub hello: [u8; HELLO_BYTES],
    memory: OwnedFd,
    room: OwnedFd,
}

/// Reads the hello of a new connection; `None` if it has not come.
pub(crate) fn opening(connection: &UnixStream) -> io::Result<Option<Opening>> {
    let (hello, mut descriptors) = match receive(connection) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        received => received?,
    };
    let (room, memory) = (descriptors.pop(), descriptors.pop());
    if let (Some(memory), Some(room)) = (memory, room) {
        if is_memory(&memory) && is_stream_socket(&room) {
            return Ok(Some(Opening { hello, memory, room }));
        }
        discard(vec![memory, room]);
    }
    Err(io::Error::new(io::ErrorKind::InvalidData, "a hello without the descriptors for a channel"))
}

/// Whether a descriptor is of the kind that its peer promised: asked is only what no file system answers, since that might
/// never do so.
fn is_memory(file: &OwnedFd) -> bool {
    rustix::fs::fcntl_get_seals(file).is_ok()
}

/// See [`is_memory`].
fn is_stream_socket(file: &OwnedFd) -> bool {
    use rustix::net::sockopt::{socket_domain, socket_type};
    socket_domain(file) == Ok(AddressFamily::UNIX) && socket_type(file) == Ok(SocketType::STREAM)
}

/// Closes what a peer has sent on a thread of its own: a file system may never let that end.
fn discard(files: Vec<OwnedFd>) {
    let thread = std::thread::Builder::new().name("quell-net-close".to_owned());
    if let Err(error) = thread.spawn(move || drop(files)) {
        tracing::error!("a peer's descriptors are closed late: {error}");
    }
}

/// Answers an opening.
pub(crate) fn accept(
    connection: UnixStream,
    opening: Opening,
    hello: &Hello,
) -> io::Result<Transport> {
    let peer = Side::open(opening.memory)?;
    let (side, file) = Side::create()?;
    let room = UnixStream::from(opening.room);
    send(&connection, hello, &[file.as_fd()])?;
    transport(side, peer, connection, room)
}

fn send(connection: &UnixStream, hello: &Hello, files: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(files)) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "too many descriptors"));
    }
    let bytes = hello.encode();
    let iov = [IoSlice::new(&bytes)];
    let sent = rustix::net::sendmsg(connection, &iov, &mut control, SendFlags::NOSIGNAL)?;
    if sent == bytes.len() { Ok(()) } else { Err(io::ErrorKind::WriteZero.into()) }
}

fn receive(connection: &UnixStream) -> io::Result<([u8; HELLO_BYTES], Vec<OwnedFd>)> {
    let mut bytes = [0; HELLO_BYTES];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut iov = [IoSliceMut::new(&mut bytes)];
    let received = rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(connection, &mut iov, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    let mut files = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            files.extend(rights);
        }
    }
    // It was sent as one message, and fits into any socket's buffer.
    if received.bytes != HELLO_BYTES {
        discard(files);
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "no whole hello"));
    }
    Ok((bytes, files))
}

fn transport(own: Side, peer: Side, data: UnixStream, room: UnixStream) -> io::Result<Transport> {
    data.set_nonblocking(true)?;
    let (own, peer) = (Arc::new(own), Arc::new(peer));
    let ready = Arc::new(ShmReadiness {
        own: Arc::clone(&own),
        peer: Arc::clone(&peer),
        data,
        room,
        sleeps: AtomicU64::new(1),
        woken: Default::default(),
        is_gone: AtomicBool::new(false),
    });
    let producer = Producer::new(Arc::clone(&own), Arc::clone(&peer));
    let consumer = Consumer::new(own, peer);
    let outgoing = Box::new(ShmOutgoing { producer, ready: Arc::clone(&ready) });
    let incoming = Box::new(ShmIncoming { consumer, ready: Arc::clone(&ready), has_ended: false });
    let caps = ChannelCaps { is_lossy: false, max_frame: PAYLOAD_MAX };
    Ok(Transport { outgoing, incoming, readiness: ready, path: None, caps, name: "shm" })
}

struct ShmReadiness {
    own: Arc<Side>,
    peer: Arc<Side>,
    /// Wake-ups for data, and the other's death.
    data: UnixStream,
    /// Wake-ups for room.
    room: UnixStream,
    /// Numbers of sleeps, so that the other wakes each once.
    sleeps: AtomicU64,
    /// Numbers of the other's sleeps for data and for room from which it was last woken.
    woken: [AtomicU64; 2],
    /// The other side takes no wake-ups. What is sent from then on goes nowhere; what it has sent is read.
    is_gone: AtomicBool,
}

impl ShmReadiness {
    /// Wakes the other side. A full socket has wake-ups enough.
    fn ring(socket: &UnixStream) -> io::Result<()> {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        match rustix::net::send(socket, &[1], flags) {
            Ok(_) | Err(rustix::io::Errno::AGAIN) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Takes wake-ups. False once the other side is gone.
    fn drain(socket: &UnixStream) -> bool {
        let mut bytes = [0_u8; 64];
        match rustix::net::recv(socket, &mut bytes[..], RecvFlags::DONTWAIT) {
            Ok((0, _)) => false,
            Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => true,
            Err(_) => false,
        }
    }

    /// The other side is gone. Only the reader ends the channel, once it has read the ring.
    fn lose(&self) {
        // Relaxed: the wake-up below is what orders.
        self.is_gone.store(true, Ordering::Relaxed);
        // It fails where the connection is gone as well: a thread that waits for data knows it then.
        let _ = rustix::net::shutdown(&self.data, Shutdown::Both);
    }

    fn number(&self) -> u64 {
        // Relaxed: a counter.
        self.sleeps.fetch_add(1, Ordering::Relaxed)
    }
}

struct ShmOutgoing {
    producer: Producer,
    ready: Arc<ShmReadiness>,
}

impl Outgoing for ShmOutgoing {
    fn enqueue(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        let all = bytes.iter().map(|slice| slice.len()).sum();
        if self.ready.is_gone.load(Ordering::Relaxed) {
            return Ok(all);
        }
        let (taken, must_wake) = self.producer.push(bytes)?;
        if must_wake {
            // Relaxed: a hint for how to wait.
            self.ready.woken[0].store(self.producer.rung(), Ordering::Relaxed);
            if ShmReadiness::ring(&self.ready.data).is_err() {
                self.ready.lose();
                return Ok(all);
            }
        }
        if taken == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.ready.own.disarm_room();
        Ok(taken)
    }
}

struct ShmIncoming {
    consumer: Consumer,
    ready: Arc<ShmReadiness>,
    has_ended: bool,
}

impl Incoming for ShmIncoming {
    fn dequeue(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let (taken, must_wake) = self.consumer.pull(into)?;
        if must_wake {
            // Relaxed: a hint for how to wait.
            self.ready.woken[1].store(self.consumer.rung(), Ordering::Relaxed);
            // The other may be gone: what it wrote is read all the same.
            let _ = ShmReadiness::ring(&self.ready.room);
        }
        if taken > 0 {
            self.ready.own.disarm_data();
            return Ok(taken);
        }
        // Looked at before the ring was: nothing comes after that.
        match self.has_ended {
            true => Ok(0),
            false => Err(io::ErrorKind::WouldBlock.into()),
        }
    }

    fn woken(&mut self) {
        self.has_ended |= !ShmReadiness::drain(&self.ready.data);
    }
}

impl Readiness for ShmReadiness {
    fn readable(&self) -> (BorrowedFd<'_>, PollFlags) {
        (self.data.as_fd(), PollFlags::IN)
    }

    fn writable(&self) -> (BorrowedFd<'_>, PollFlags) {
        (self.room.as_fd(), PollFlags::IN)
    }

    fn arm_readable(&self) -> bool {
        Consumer::arm(&self.own, &self.peer, self.number())
    }

    fn arm_writable(&self) -> bool {
        // Wake-ups of earlier sleeps do not count.
        if !ShmReadiness::drain(&self.room) {
            self.lose();
            return true;
        }
        Producer::arm(&self.own, &self.peer, self.number())
    }

    fn has_room(&self) -> bool {
        Producer::has_room(&self.own, &self.peer)
    }

    fn is_peer_active(&self) -> bool {
        let woken = self.woken.each_ref().map(|word| word.load(Ordering::Relaxed));
        self.peer.is_awake_elsewhere(woken)
    }

    fn end(&self) {
        // They fail where the other is gone already.
        let _ = rustix::net::shutdown(&self.data, Shutdown::Both);
        let _ = rustix::net::shutdown(&self.room, Shutdown::Both);
    }
}
