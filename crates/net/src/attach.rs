//! The first bytes on a transport that is connected, and channels over transports of the program's own.

use std::io::{self, IoSlice, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::time::{Duration, Instant};

use quell_net_engine::Class;
use quell_net_engine::wire::{HELLO_BYTES, Hello};
use rustix::event::{PollFd, PollFlags, poll};

use crate::core::Addresses;
use crate::endpoint::{Endpoint, Peer};
use crate::error::Error;
use crate::stats::Origin;
use crate::tcp;
use crate::transport::Transport;
use crate::waiter::timespec;

/// Which end of a transport an endpoint has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// It has opened it: it says of which class the channel is.
    Opener,
    /// It has accepted it.
    Acceptor,
}

impl Endpoint {
    /// Makes a channel of a transport to another endpoint, whose program does the same at the other side. `class` is what the
    /// opener says. Streams to the IP address of `peer` take it from then on. Waits for the other side's hello. A channel that is
    /// lost is not opened again: that is the program's.
    ///
    /// # Errors
    /// When the other side does not answer, speaks something else, or is not on this host and `insecure` is not set.
    pub fn attach(
        &self,
        mut transport: Transport,
        class: Class,
        side: Side,
        peer: SocketAddr,
    ) -> Result<Peer, Error> {
        if !self.is_insecure() && tcp::leaves_host(peer.ip()) {
            return Err(Error::Insecure(peer));
        }
        let shared = self.shared();
        let until = Instant::now() + tcp::HANDSHAKE_TIME;
        let theirs = match side {
            Side::Opener => {
                let (hello, _) = shared.with(|core, _| {
                    let number = core.channel_number();
                    core.engine.hello(number, class)
                });
                greet(&mut transport, &hello, peer)?
            }
            Side::Acceptor => {
                let theirs = read_hello(&mut transport, peer, until)?;
                let (hello, _) =
                    shared.with(|core, _| core.engine.hello(theirs.channel, theirs.class));
                send_hello(&mut transport, &hello, peer, until)?;
                theirs
            }
        };
        let origin = Origin::Attached;
        let addresses = Addresses { peer, rendezvous: None, own: peer.ip(), origin };
        let is_ours = side == Side::Opener;
        shared.act(|core, now| {
            core.add_channel(&theirs, is_ours, transport, addresses, now)?;
            core.engine.peer(theirs.endpoint).map(Peer).ok_or(Error::Closed)
        })
    }
}

/// Says hello as the side that has opened a transport, and reads the answer. The class and the number are what this side
/// asked for, whatever the peer says.
pub(crate) fn greet(
    transport: &mut Transport,
    hello: &Hello,
    address: SocketAddr,
) -> Result<Hello, Error> {
    let until = Instant::now() + tcp::HANDSHAKE_TIME;
    send_hello(transport, hello, address, until)?;
    let theirs = read_hello(transport, address, until)?;
    Ok(Hello { class: hello.class, channel: hello.channel, ..theirs })
}

fn send_hello(
    transport: &mut Transport,
    hello: &Hello,
    address: SocketAddr,
    until: Instant,
) -> Result<(), Error> {
    let what = "send the hello";
    send_all(transport, &hello.encode(), until).map_err(|source| Error::Peer {
        address,
        what,
        source,
    })
}

fn read_hello(
    transport: &mut Transport,
    address: SocketAddr,
    until: Instant,
) -> Result<Hello, Error> {
    let what =
        "read the peer's hello: it may have refused the channel, or the port is another program's";
    let bytes =
        read_first(transport, until).map_err(|source| Error::Peer { address, what, source })?;
    Hello::decode(&bytes).map_err(|source| Error::Hello { address, source })
}

fn send_all(
    transport: &mut Transport,
    bytes: &[u8; HELLO_BYTES],
    until: Instant,
) -> io::Result<()> {
    let mut sent = 0;
    while sent < bytes.len() {
        match transport.outgoing.enqueue(&[IoSlice::new(&bytes[sent..])]) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(count) => sent += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !transport.readiness.arm_writable() {
                    wait(transport.readiness.writable(), until)?;
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn read_first(transport: &mut Transport, until: Instant) -> io::Result<[u8; HELLO_BYTES]> {
    let (mut bytes, mut filled) = ([0; HELLO_BYTES], 0);
    while filled < HELLO_BYTES {
        // No more than the hello: frames follow at once.
        match transport.incoming.dequeue(&mut [IoSliceMut::new(&mut bytes[filled..])]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !transport.readiness.arm_readable() {
                    wait(transport.readiness.readable(), until)?;
                    transport.incoming.woken();
                }
            }
            Err(error) => return Err(error),
        }
    }
    Ok(bytes)
}

pub(crate) fn wait((fd, flags): (BorrowedFd<'_>, PollFlags), until: Instant) -> io::Result<()> {
    let left = until.saturating_duration_since(Instant::now());
    if left == Duration::ZERO {
        return Err(io::ErrorKind::TimedOut.into());
    }
    match poll(&mut [PollFd::from_borrowed_fd(fd, flags)], Some(&timespec(left))) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
