//! TCP, UDP and virtual sockets with blocking calls, which block the uthread and not its kthread.
//!
//! They have the signatures of `std::net` and behave as it does on Linux: a read or write that outlasts its time-out answers
//! `WouldBlock`, a connect `TimedOut`; `Interrupted` does not occur. Used on a thread that is none of a runtime they block
//! that thread. There is no `set_nonblocking`.
//!
//! Virtual sockets are those of `quell_net`: all of its calls on uthreads wait so, but for those of its messages, and for
//! [`connect_peer`](quell_net::Endpoint::connect_peer), which waits on the kthread for the other endpoint.
//!
//! A host name is looked up on the kthread, which waits for the answer: give addresses where that matters.
//!
//! ```
//! use std::io::{Read, Write};
//! use quell_runtime::{Daemon, Runtime, net, spawn};
//!
//! let runtime = Runtime::builder().daemon(Daemon::Never).max_cores(1).build()?;
//! let answer = runtime.run(|| -> std::io::Result<String> {
//!     let listener = net::TcpListener::bind("127.0.0.1:0")?;
//!     let address = listener.local_addr()?;
//!     let server = spawn(move || -> std::io::Result<()> {
//!         let (mut stream, _) = listener.accept()?;
//!         let mut request = [0; 4];
//!         stream.read_exact(&mut request)?;
//!         stream.write_all(&request)
//!     });
//!     let mut stream = net::TcpStream::connect(address)?;
//!     stream.write_all(b"ping")?;
//!     let mut answer = String::new();
//!     stream.read_to_string(&mut answer)?;
//!     server.join().expect("the server does not panic")?;
//!     Ok(answer)
//! })?;
//! assert_eq!(answer, "ping");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod listener;
mod stream;
mod udp;
mod virtual_sockets;

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use listener::{Incoming, TcpListener};
pub use stream::TcpStream;
pub use udp::UdpSocket;
pub(crate) use virtual_sockets::serve as serve_virtual_sockets;
pub use virtual_sockets::{VirtualListener, VirtualStream};

/// Looks an address up, on the kthread's stack: the system's resolver wants more than a uthread's.
fn resolve(address: impl ToSocketAddrs) -> io::Result<Vec<SocketAddr>> {
    crate::io::on_kthread_stack(|| Ok(address.to_socket_addrs()?.collect()))
}

/// Calls `f` with each address until one will do.
fn first<R>(
    address: impl ToSocketAddrs,
    mut f: impl FnMut(SocketAddr) -> io::Result<R>,
) -> io::Result<R> {
    let none = io::Error::new(io::ErrorKind::InvalidInput, "no address to use");
    let mut last = Err(none);
    for address in resolve(address)? {
        last = f(address);
        if last.is_ok() {
            break;
        }
    }
    last
}

/// Refuses a time-out of zero, as std does.
fn none_of_zero(timeout: Option<Duration>) -> io::Result<()> {
    if timeout == Some(Duration::ZERO) {
        let what = "a time-out of zero would wait for ever";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
    }
    Ok(())
}

/// A time-out that may be changed while it is used.
#[derive(Debug, Default)]
struct Timeout {
    /// In nanoseconds; 0: none.
    ns: AtomicU64,
}

impl Timeout {
    fn get(&self) -> Option<Duration> {
        // Relaxed: a setting that stands by itself.
        Some(Duration::from_nanos(self.ns.load(Ordering::Relaxed))).filter(|it| !it.is_zero())
    }

    /// Zero is refused, as by std.
    fn set(&self, timeout: Option<Duration>) -> io::Result<()> {
        none_of_zero(timeout)?;
        let ns = timeout.map_or(0, |it| u64::try_from(it.as_nanos()).unwrap_or(u64::MAX));
        self.ns.store(ns, Ordering::Relaxed);
        Ok(())
    }

    fn copy(&self) -> Timeout {
        Timeout { ns: AtomicU64::new(self.ns.load(Ordering::Relaxed)) }
    }
}
