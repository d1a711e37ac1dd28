//! Channels over kernel TCP by io_uring: a thread of the endpoint sends and receives for all of them, and the program's threads
//! only move memory. For bulk data: a message that waits for that thread, and has it wake another, takes twice as long as one
//! that its reader receives itself, so channels of the latency class stay with [`crate::tcp`].
//!
//! One ring serves all channels of an endpoint. Each has a receive that goes on (multishot), into memory that is provided for
//! it and goes to the sockets without a copy; what its threads have queued, by reference where it is large, is sent as one piece. What became due on all channels
//! meanwhile is one call. Only that thread has requests in the kernel: a request is completed by the thread that has made it,
//! so one that the program's threads made would wait for them, or interrupt what they do later.

mod driver;
mod link;
mod ring;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;

use quell_net_engine::ChannelCaps;
use quell_net_engine::wire::PAYLOAD_MAX;

use crate::tcp;
use crate::transport::{Path, Transport};
pub(crate) use driver::Driver;
use link::{Link, UringIncoming, UringOutgoing, UringReadiness};

/// A connection as a transport. `paces`: as that of [`tcp::transport`].
pub(crate) fn transport(
    connection: TcpStream,
    driver: &Driver,
    paces: bool,
) -> io::Result<Transport> {
    if !driver.is_up() {
        return Err(io::ErrorKind::NotConnected.into());
    }
    // What the kernel waits for is not to be refused.
    connection.set_nonblocking(false)?;
    let socket = Arc::new(connection);
    let path = tcp::path(&socket, paces)?;
    let link = Link::new(socket, &driver.shared)?;
    link.kick();
    Ok(of_link(link, path))
}

fn of_link(link: Arc<Link>, path: Option<Arc<dyn Path>>) -> Transport {
    Transport {
        outgoing: Box::new(UringOutgoing(Arc::clone(&link))),
        incoming: Box::new(UringIncoming { link: Arc::clone(&link), rest: VecDeque::new() }),
        readiness: Arc::new(UringReadiness(link)),
        path,
        caps: ChannelCaps { is_lossy: false, max_frame: PAYLOAD_MAX },
        name: "tcp-uring",
    }
}
