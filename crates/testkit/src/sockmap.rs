//! Loopback connections that go around TCP (a BPF sockmap).

use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::PathBuf;

use libbpf_rs::{Link, MapCore as _, Object, ObjectBuilder};

use crate::Aligned;

static CODE: &Aligned<[u8]> = &Aligned(*include_bytes!(concat!(env!("OUT_DIR"), "/sockmap.bpf.o")));

/// While it lives, connections to one address that processes of this process's cgroup make go around TCP. Nothing is left of it
/// after this process.
pub struct SockMap {
    _link: Link,
    _object: Object,
}

impl SockMap {
    /// Of connections to this address of the loopback device.
    ///
    /// # Errors
    /// When this host has no cgroups of version 2, or the kernel refuses a program.
    pub fn new(server: Ipv4Addr) -> io::Result<SockMap> {
        let mut builder = ObjectBuilder::default();
        let open = builder.name("sockmap").and_then(|named| named.open_memory(&CODE.0));
        let mut open = open.map_err(failed("read the programs"))?;
        crate::set_constant(&mut open, u32::from_ne_bytes(server.octets()).to_ne_bytes());
        let object = open.load().map_err(failed("load the programs"))?;
        let map = object.maps().find(|map| map.name() == "ends").ok_or(io::ErrorKind::NotFound)?;
        let map = map.as_fd().as_raw_fd();
        let cgroup = own_cgroup()?;
        let mut link = None;
        for program in object.progs_mut() {
            match program.name().to_str() {
                Some("pass") => program.attach_sockmap(map).map_err(failed("attach to the map"))?,
                _ => {
                    let attached = program.attach_cgroup(cgroup.as_raw_fd());
                    link = Some(attached.map_err(failed("attach to the cgroup"))?);
                }
            }
        }
        let link = link.ok_or(io::ErrorKind::NotFound)?;
        Ok(SockMap { _link: link, _object: object })
    }
}

fn failed(what: &'static str) -> impl Fn(libbpf_rs::Error) -> io::Error {
    move |error| io::Error::other(format!("{what}: {error}"))
}

/// The directory of this process's cgroup of version 2.
fn own_cgroup() -> io::Result<File> {
    let lacks = || io::Error::other("no cgroup2 file system is mounted");
    let mounts = fs::read_to_string("/proc/self/mounts")?;
    let root = mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let (_, directory, kind) = (words.next()?, words.next()?, words.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(directory))
    });
    let groups = fs::read_to_string("/proc/self/cgroup")?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).ok_or_else(lacks)?;
    File::open(root.ok_or_else(lacks)?.join(own))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};
    use std::net::{Shutdown, TcpListener, TcpStream};

    use super::*;

    /// A read that waits may find nothing all the same (`tcp_bpf_recvmsg`).
    struct Patient<'a>(&'a TcpStream);

    impl io::Read for Patient<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.0.read(into).map_err(|error| match error.kind() {
                io::ErrorKind::WouldBlock => io::ErrorKind::Interrupted.into(),
                _ => error,
            })
        }
    }

    #[test]
    fn connections_to_the_address_go_around_tcp_and_lose_nothing() {
        if !rustix::process::geteuid().is_root() {
            return crate::skipped("loading BPF programs takes root");
        }
        // No other test has it.
        let address = Ipv4Addr::new(127, 77, 7, 9);
        let map = match SockMap::new(address) {
            Ok(map) => map,
            Err(error) => return crate::skipped(error),
        };
        let listener = TcpListener::bind((address, 0)).expect("a port");
        let mut client = TcpStream::connect(listener.local_addr().expect("bound")).expect("up");
        let (mut server, _) = listener.accept().expect("it waits");
        let sent: Vec<u8> = (0..2_000_000_u32).map(|at| (at / 7) as u8).collect();
        let expected = sent.clone();
        let writer = std::thread::spawn(move || {
            client.write_all(&sent).expect("it is read");
            client.shutdown(Shutdown::Write).expect("it is up");
            let mut answer = [0; 2];
            Patient(&client).read_exact(&mut answer).expect("an answer");
            let path = quell_os::tcp::path(std::os::fd::AsFd::as_fd(&client)).expect("TCP_INFO");
            // The end of the connection is TCP's, and counts as a byte.
            assert!(path.acked_bytes <= 2, "{} bytes went over TCP", path.acked_bytes);
            answer
        });
        let mut all = Vec::new();
        Patient(&server).read_to_end(&mut all).expect("all comes");
        server.write_all(b"ok").expect("it is up");
        assert_eq!(writer.join().expect("no panic"), *b"ok");
        assert!(all == expected, "{} bytes", all.len());
        drop(map);
    }
}
