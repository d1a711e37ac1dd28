//! Servers to test against, ended when dropped.
#![allow(dead_code, reason = "each test binary uses a part")]
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test support")]

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// An address on loopback that nobody listens on at the moment.
pub fn free_addr() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// A memcached with one worker.
pub struct Memcached {
    child: Child,
    pub addr: SocketAddr,
}

impl Memcached {
    pub fn start() -> Memcached {
        Memcached::start_with(&[])
    }

    pub fn start_with(arguments: &[&str]) -> Memcached {
        let addr = free_addr();
        let port = addr.port().to_string();
        let child = Command::new("memcached")
            .args(["-u", "nobody", "-l", "127.0.0.1", "-t", "1", "-p", &port])
            .args(arguments)
            .stdout(Stdio::null())
            .spawn()
            .expect("memcached runs; on Debian: apt-get install memcached");
        let server = Memcached { child, addr };
        let deadline = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(addr).is_err() {
            assert!(Instant::now() < deadline, "memcached does not listen on {addr}");
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }
}

impl Drop for Memcached {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
