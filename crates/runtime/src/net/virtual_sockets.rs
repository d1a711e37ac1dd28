//! Virtual sockets (`quell_net`) with blocking calls, which block the uthread and not its kthread.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use quell_net::threads::{Sleeper, Threads};
use quell_net::{Class, Endpoint, Listener, Stream};

use super::none_of_zero;
use crate::io::{Interest, Source, deadline_of};
use crate::kthread::local::{self, Local, checkpoint, hold};
use crate::park::in_uthread;

/// How uthreads wait for virtual sockets.
struct Uthreads;

/// From now on uthreads that use virtual sockets wait as uthreads.
pub(crate) fn serve() {
    // Another runtime of this library was first, with the same.
    let _ = quell_net::threads::serve(&Uthreads);
}

impl Threads for Uthreads {
    fn is_own(&self) -> bool {
        in_uthread()
    }

    fn sleeper(&self, descriptor: OwnedFd) -> Box<dyn Sleeper> {
        Box::new(Readable(Source::new(descriptor)))
    }

    fn hold(&self, act: &mut dyn FnMut()) {
        let _held = hold();
        act();
    }

    fn is_wanted(&self) -> bool {
        Local::with(|local| local.is_some_and(Local::others_wait_now))
    }

    fn yield_now(&self) {
        local::yield_now();
    }

    fn pause(&self, time: Duration) {
        crate::thread::sleep(time);
    }
}

/// A descriptor that uthreads wait for, one after the other.
struct Readable(Source<OwnedFd>);

impl Sleeper for Readable {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.0.get().as_fd()
    }

    fn is_usable(&self) -> bool {
        self.0.is_served()
    }

    fn wait(
        &self,
        until: Option<Instant>,
        attempt: &mut dyn FnMut() -> io::Result<()>,
    ) -> io::Result<()> {
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        self.0.retry(Interest::Read, deadline_of(left), |_| attempt())
    }
}

/// A byte stream over the channels of an [`Endpoint`]: as [`TcpStream`](super::TcpStream), but for what a kernel socket has
/// and a virtual one has not. Both kinds of calls of [`Stream`], which [`get`](VirtualStream::get) returns, may be used.
pub struct VirtualStream {
    stream: Stream,
}

impl VirtualStream {
    /// Opens a stream to an address of a peer of the endpoint, and waits until it is accepted.
    ///
    /// # Errors
    /// Those of [`Endpoint::connect`].
    pub fn connect(
        endpoint: &Endpoint,
        address: SocketAddr,
        class: Class,
    ) -> io::Result<VirtualStream> {
        Ok(endpoint.connect(address, class)?.into())
    }

    /// The stream, for calls that kernel sockets do not have.
    pub fn get(&self) -> &Stream {
        &self.stream
    }

    /// The other end, as that says.
    pub fn peer_addr(&self) -> SocketAddr {
        self.stream.peer_addr()
    }

    /// This end.
    pub fn local_addr(&self) -> SocketAddr {
        self.stream.local_addr()
    }

    /// Ends writing.
    ///
    /// # Errors
    /// Those of [`Stream::shutdown`].
    pub fn shutdown(&self, how: Shutdown) -> io::Result<()> {
        Ok(self.stream.shutdown(how)?)
    }

    /// How long a read waits at most.
    ///
    /// # Errors
    /// When it is zero.
    pub fn set_read_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        none_of_zero(timeout)?;
        self.stream.set_read_timeout(timeout);
        Ok(())
    }

    /// How long a write waits at most.
    ///
    /// # Errors
    /// When it is zero.
    pub fn set_write_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        none_of_zero(timeout)?;
        self.stream.set_write_timeout(timeout);
        Ok(())
    }
}

impl From<Stream> for VirtualStream {
    fn from(stream: Stream) -> VirtualStream {
        VirtualStream { stream }
    }
}

impl fmt::Debug for VirtualStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = f.debug_struct("VirtualStream");
        f.field("local", &self.local_addr()).field("peer", &self.peer_addr()).finish()
    }
}

/// A time-out of the library is one of std here.
fn timed_out(error: quell_net::Error) -> io::Error {
    match error {
        quell_net::Error::TimedOut => ErrorKind::WouldBlock.into(),
        other => other.into(),
    }
}

impl Read for &VirtualStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer).map_err(timed_out);
        checkpoint();
        read
    }
}

impl Write for &VirtualStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.stream.write(bytes).map_err(timed_out);
        checkpoint();
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for VirtualStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }
}

impl Write for VirtualStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Takes streams that peers of an [`Endpoint`] open to an address.
pub struct VirtualListener {
    listener: Listener,
}

impl VirtualListener {
    /// Listens.
    ///
    /// # Errors
    /// Those of [`Endpoint::listen`].
    pub fn bind(endpoint: &Endpoint, address: SocketAddr) -> io::Result<VirtualListener> {
        Ok(VirtualListener { listener: endpoint.listen(address)? })
    }

    /// Waits for a stream; it comes with its other end.
    ///
    /// # Errors
    /// Those of [`Listener::accept`].
    pub fn accept(&self) -> io::Result<(VirtualStream, SocketAddr)> {
        let stream = self.listener.accept()?;
        let peer = stream.peer_addr();
        checkpoint();
        Ok((stream.into(), peer))
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.listener.local_addr()
    }
}

impl fmt::Debug for VirtualListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("VirtualListener").field("address", &self.local_addr()).finish()
    }
}
