//! Servers to test against, ended when dropped.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "test support")]

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use quell_load::LoadReport;
use rustix::process::{Pid, Signal, kill_process_group};
use tempfile::TempDir;

/// What nginx serves at `/page`.
pub const PAGE: &[u8] = &[b'x'; 1_024];

/// An address on loopback that nobody listens on at the moment.
pub fn free_addr() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

/// One of Debian's servers, unmodified, with one worker.
pub struct Server {
    child: Child,
    pub addr: SocketAddr,
    _folder: TempDir,
}

impl Server {
    pub fn memcached() -> Server {
        Server::memcached_with(&[])
    }

    pub fn memcached_with(arguments: &[&str]) -> Server {
        Server::start("memcached", |command, addr, _| {
            command.args(["-u", "nobody", "-l", "127.0.0.1", "-t", "1"]);
            command.args(["-p", &addr.port().to_string()]).args(arguments);
        })
    }

    pub fn redis() -> Server {
        Server::redis_with(&[])
    }

    pub fn redis_with(arguments: &[&str]) -> Server {
        Server::start("redis-server", |command, addr, folder| {
            command.args(["--bind", "127.0.0.1", "--port", &addr.port().to_string()]);
            command.args(["--save", "", "--appendonly", "no", "--dir", folder]).args(arguments);
        })
    }

    /// Serves [`PAGE`], and what else its `server` block says.
    pub fn nginx(server: &str) -> Server {
        Server::start("nginx", |command, addr, folder| {
            let root = rustix::process::getuid().is_root();
            let user = if root { "user root;" } else { "" };
            let configuration = format!(
                "{user} daemon off; worker_processes 1; pid {folder}/pid;
                 events {{ worker_connections 256; }}
                 http {{
                   access_log off;
                   client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy;
                   fastcgi_temp_path {folder}/fastcgi; uwsgi_temp_path {folder}/uwsgi;
                   scgi_temp_path {folder}/scgi;
                   server {{ listen {addr}; root {folder}; {server} }}
                 }}"
            );
            fs::write(format!("{folder}/conf"), configuration).unwrap();
            fs::write(format!("{folder}/page"), PAGE).unwrap();
            command.args(["-p", folder, "-c", "conf", "-e", &format!("{folder}/errors")]);
        })
    }

    /// With another port where somebody else was faster to take the one that was free.
    fn start(name: &str, arguments: impl Fn(&mut Command, SocketAddr, &str)) -> Server {
        let deadline = Instant::now() + Duration::from_secs(20);
        loop {
            let (addr, folder) = (free_addr(), tempfile::tempdir().unwrap());
            let mut command = Command::new(name);
            arguments(&mut command, addr, folder.path().to_str().unwrap());
            command.process_group(0).stdout(Stdio::null());
            let child = command.spawn().unwrap_or_else(|error| {
                panic!("{name} does not start ({error}); on Debian: scripts/setup.sh installs it")
            });
            let mut server = Server { child, addr, _folder: folder };
            while server.child.try_wait().unwrap().is_none() {
                assert!(Instant::now() < deadline, "{name} does not listen on {addr}");
                // A connection to a port that nobody listens on may meet itself.
                let answers = TcpStream::connect(addr)
                    .is_ok_and(|stream| stream.local_addr().is_ok_and(|own| own != addr));
                // It binds before it accepts: one that lives and accepts has the port.
                if answers && server.child.try_wait().unwrap().is_none() {
                    return server;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // With its workers: those of nginx are processes.
        let group = Pid::from_child(&self.child);
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Each request has ended in exactly one way.
pub fn books_balance(report: &LoadReport) {
    for part in report.steps.iter().chain([&report.overall]) {
        let totals = part.totals;
        assert_eq!(totals.scheduled, totals.sent + totals.unsent);
        assert_eq!(totals.sent, totals.answered + totals.errors + totals.unanswered);
        assert_eq!(part.latency.count, totals.scheduled);
    }
    let kept = report.samples.len() as u64 + report.samples_missing;
    assert_eq!(kept, report.overall.totals.scheduled);
}
