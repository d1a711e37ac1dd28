//! Softirqs that take long, on purpose.
#![allow(unsafe_code)]

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

use libbpf_rs::Object;

use crate::observe::ObserveError;
use crate::observe::bpf::object::{self, refused};

static CODE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/burn.bpf.o"));

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
    pub fn new(each: Duration) -> Result<SoftirqBurner, ObserveError> {
        let mut open = object::open("burn", CODE)?;
        let ns = u64::try_from(each.as_nanos()).unwrap_or(u64::MAX);
        object::constants(&mut open, &ns.to_ne_bytes())?;
        let loaded = open.load().map_err(|error| refused("loading the BPF programs", &error))?;
        let attached = Self::attach(loaded);
        attached.map_err(|source| ObserveError::Kernel {
            what: "attaching a filter to a socket".to_owned(),
            source,
        })
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
