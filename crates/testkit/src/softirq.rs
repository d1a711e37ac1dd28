//! Softirqs that take long, on purpose.
#![allow(unsafe_code)]

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use libbpf_rs::{Object, ObjectBuilder, OpenObject};

use crate::{Aligned, set_constant};

static CODE: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/burn.bpf.o")));

/// A socket of the loopback device. Each packet that comes to it keeps a softirq of the sender's core busy.
pub struct SoftirqBurner {
    _inbox: UdpSocket,
    outbox: UdpSocket,
    addr: SocketAddr,
    _object: Object,
}

impl SoftirqBurner {
    /// A socket whose packets take so long to deliver.
    ///
    /// # Errors
    /// When the kernel refuses the filter.
    pub fn new(each: Duration) -> io::Result<SoftirqBurner> {
        let ns = u64::try_from(each.as_nanos()).unwrap_or(u64::MAX);
        let object = load(ns).map_err(|error| io::Error::other(error.to_string()))?;
        Self::attach(object)
    }

    fn attach(object: Object) -> io::Result<SoftirqBurner> {
        let inbox = UdpSocket::bind("127.0.0.1:0")?;
        let outbox = UdpSocket::bind("127.0.0.1:0")?;
        let program = object.progs().next().ok_or(io::ErrorKind::NotFound)?.as_fd().as_raw_fd();
        // SAFETY: the option's value is a descriptor, passed with its size; the kernel only reads it.
        let done = unsafe {
            libc::setsockopt(
                inbox.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_ATTACH_BPF,
                std::ptr::from_ref(&program).cast(),
                size_of_val(&program) as libc::socklen_t,
            )
        };
        if done != 0 {
            return Err(io::Error::last_os_error());
        }
        let addr = inbox.local_addr()?;
        Ok(SoftirqBurner { _inbox: inbox, outbox, addr, _object: object })
    }

    /// One packet: the softirq runs on this core before the call returns.
    ///
    /// # Errors
    /// The kernel's.
    pub fn burn(&self) -> io::Result<()> {
        self.outbox.send_to(&[0], self.addr).map(drop)
    }
}

/// Loads the filter with `burn_ns` set.
fn load(burn_ns: u64) -> libbpf_rs::Result<Object> {
    let mut open: OpenObject = ObjectBuilder::default().name("burn")?.open_memory(&CODE.0)?;
    set_constant(&mut open, burn_ns.to_ne_bytes());
    open.load()
}
