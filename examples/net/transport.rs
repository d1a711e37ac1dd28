//! A transport in one file: channels over pairs of pipes.
//!
//!     cargo run -p quell-net --example transport
//!
//! A transport moves bytes in order without waiting, and says what `poll` is asked until it can move more. The rest is the
//! library's: sockets, credit, classes, which thread reads.

use std::error::Error;
use std::io::{self, IoSlice, IoSliceMut, PipeReader, PipeWriter, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use quell_net::transport::{
    ChannelCaps, Incoming, Outgoing, PAYLOAD_MAX, PollFlags, Readiness, Transport,
};
use quell_net::{Class, Endpoint, EndpointConfig, Side};

/// One end of two pipes.
struct Pipes {
    reader: PipeReader,
    writer: PipeWriter,
    is_ended: AtomicBool,
}

impl Pipes {
    fn check(&self) -> io::Result<()> {
        // Relaxed: the flag carries nothing else.
        match self.is_ended.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::BrokenPipe.into()),
            false => Ok(()),
        }
    }
}

struct ToPipe(Arc<Pipes>);

struct FromPipe(Arc<Pipes>);

struct PipeReadiness(Arc<Pipes>);

impl Outgoing for ToPipe {
    fn enqueue(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.check()?;
        (&self.0.writer).write_vectored(bytes)
    }
}

impl Incoming for FromPipe {
    fn dequeue(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        self.0.check()?;
        (&self.0.reader).read_vectored(into)
    }

    fn is_asked_by_poll(&self) -> bool {
        true
    }
}

impl Readiness for PipeReadiness {
    fn readable(&self) -> (BorrowedFd<'_>, PollFlags) {
        (self.0.reader.as_fd(), PollFlags::IN)
    }

    fn writable(&self) -> (BorrowedFd<'_>, PollFlags) {
        (self.0.writer.as_fd(), PollFlags::OUT)
    }

    fn end(&self) {
        // The other side learns it when the last of this side's halves is dropped, which closes the pipes.
        self.0.is_ended.store(true, Ordering::Relaxed);
    }
}

/// A channel of this end.
pub fn transport(reader: PipeReader, writer: PipeWriter) -> io::Result<Transport> {
    rustix::io::ioctl_fionbio(&reader, true)?;
    rustix::io::ioctl_fionbio(&writer, true)?;
    let pipes = Arc::new(Pipes { reader, writer, is_ended: AtomicBool::new(false) });
    Ok(Transport {
        outgoing: Box::new(ToPipe(Arc::clone(&pipes))),
        incoming: Box::new(FromPipe(Arc::clone(&pipes))),
        readiness: Arc::new(PipeReadiness(pipes)),
        path: None,
        caps: ChannelCaps { is_lossy: false, max_frame: PAYLOAD_MAX },
        name: "pipes",
    })
}

/// Connects two endpoints by a channel of each class.
pub fn connect(server: &Endpoint, client: &Endpoint, at: SocketAddr) -> Result<(), Box<dyn Error>> {
    for class in Class::ALL {
        let (server_reader, client_writer) = io::pipe()?;
        let (client_reader, server_writer) = io::pipe()?;
        let ends =
            (transport(server_reader, server_writer)?, transport(client_reader, client_writer)?);
        // Each side waits for the other's hello.
        thread::scope(|scope| {
            let accepting = scope.spawn(|| server.attach(ends.0, class, Side::Acceptor, at));
            client.attach(ends.1, class, Side::Opener, at)?;
            accepting.join().map_err(|_| "the server's side panicked")??;
            Ok::<(), Box<dyn Error>>(())
        })?;
    }
    Ok(())
}

/// Sends bytes there and back over pipes.
pub fn main() -> Result<(), Box<dyn Error>> {
    let server = Endpoint::new(EndpointConfig::default())?;
    let client = Endpoint::new(EndpointConfig::default())?;
    let address: SocketAddr = "127.0.0.1:80".parse()?;
    connect(&server, &client, address)?;
    let listener = server.listen(address)?;
    let echo = thread::spawn(move || -> Result<(), quell_net::Error> {
        for _ in Class::ALL {
            let stream = listener.accept()?;
            let mut bytes = [0; 4_096];
            loop {
                match stream.read(&mut bytes)? {
                    0 => break,
                    length => stream.write_all(&bytes[..length])?,
                }
            }
        }
        Ok(())
    });
    for class in Class::ALL {
        let mut stream = client.connect(address, class)?;
        let sent = vec![7; 100_000];
        let mut received = vec![0; sent.len()];
        thread::scope(|scope| {
            let writer = scope.spawn(|| stream.write_all(&sent));
            (&stream).read_exact(&mut received)?;
            writer.join().map_err(|_| "the writer panicked")??;
            Ok::<(), Box<dyn Error>>(())
        })?;
        stream.shutdown(std::net::Shutdown::Write)?;
        assert_eq!(stream.read(&mut received[..1])?, 0, "the echo ends as well");
        assert!(received == sent, "other bytes than were sent");
        println!("{class:?}: {} bytes there and back", sent.len());
        stream.flush()?;
    }
    echo.join().map_err(|_| "the echo panicked")??;
    print!("the client: {}", client.stats());
    Ok(())
}
