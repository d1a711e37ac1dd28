//! The latency-critical service of a co-location: one of Debian's, unmodified, with one worker.

use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use quell_load::ProtocolSpec;
use quell_load::protocol::http::HttpSpec;
use quell_load::protocol::keyvalue::KeyValueSpec;
use quell_model::CoreSet;
use tempfile::TempDir;

use crate::host::{Program, directory};

/// How long a program may take until it serves or works.
pub(super) const START_MAX: Duration = Duration::from_secs(15);
/// What nginx serves, and how much of it.
const PAGE: &str = "page";
const PAGE_BYTES: usize = 1_024;

/// Which service.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Lc {
    /// memcached: GETs and SETs of small values.
    Memcached,
    /// Redis without persistence: the same keys and the same mix.
    Redis,
    /// nginx: a static page of 1 kB, without a log.
    Nginx,
}

impl Lc {
    /// All of them.
    pub const ALL: [Lc; 3] = [Lc::Memcached, Lc::Redis, Lc::Nginx];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Lc::Memcached => "memcached",
            Lc::Redis => "redis",
            Lc::Nginx => "nginx",
        }
    }

    /// The name of a report about it: `base` for memcached, `base-redis`, `base-nginx`.
    pub fn report_name(self, base: &str) -> String {
        match self {
            Lc::Memcached => base.to_owned(),
            Lc::Redis | Lc::Nginx => format!("{base}-{}", self.name()),
        }
    }

    /// What is asked of it.
    pub fn protocol(self) -> ProtocolSpec {
        match self {
            Lc::Memcached => ProtocolSpec::Memcached(KeyValueSpec::default()),
            Lc::Redis => ProtocolSpec::Redis(KeyValueSpec::default()),
            Lc::Nginx => ProtocolSpec::Http(HttpSpec {
                host: "localhost".to_owned(),
                paths: vec![format!("/{PAGE}")],
            }),
        }
    }

    /// The first rate that the search for its peak tries.
    pub(super) fn search_from_rps(self) -> f64 {
        match self {
            Lc::Memcached => 40_000.0,
            Lc::Redis => 20_000.0,
            Lc::Nginx => 10_000.0,
        }
    }

    /// How busy its cores may be at the offered load (0 to 1). A request costs less where many come at once: at
    /// half of its peak Redis is nearly as busy as at all of it, and nothing is left for batch work.
    pub(super) fn busy_max(self) -> Option<f64> {
        match self {
            Lc::Memcached => None,
            Lc::Redis | Lc::Nginx => Some(0.6),
        }
    }

    fn package(self) -> &'static str {
        match self {
            Lc::Memcached => "memcached",
            Lc::Redis => "redis-server",
            Lc::Nginx => "nginx-light",
        }
    }

    /// How it is started on `addr`, with `directory` for what it needs.
    fn command(self, addr: SocketAddr, directory: &Path) -> Result<Command> {
        let port = addr.port().to_string();
        Ok(match self {
            Lc::Memcached => memcached(&port),
            Lc::Redis => redis(&port, directory),
            Lc::Nginx => nginx(addr, directory)?,
        })
    }
}

fn memcached(port: &str) -> Command {
    let mut command = Command::new("memcached");
    command
        // All that is stored fits, so nothing has to be evicted. The thread that would look for it
        // gets the worker's priority wherever the service is elevated as a whole, and the worker
        // then waits behind it for up to 8 ms, with batch work or without (measured).
        .args(["-o", "no_lru_maintainer,no_lru_crawler,hashpower=20"])
        // It refuses to run as root unless told which user to be.
        .args(["-u", "root", "-l", "127.0.0.1", "-U", "0", "-t", "1", "-m", "256", "-c", "256"])
        .args(["-p", port]);
    command
}

fn redis(port: &str, directory: &Path) -> Command {
    let mut command = Command::new("redis-server");
    command
        .args(["--bind", "127.0.0.1", "--port", port, "--daemonize", "no"])
        // Nothing is written: a fork for a snapshot would be measured as latency.
        .args(["--save", "", "--appendonly", "no", "--dir"])
        .arg(directory);
    command
}

fn nginx(addr: SocketAddr, directory: &Path) -> Result<Command> {
    let path = directory.display();
    let temporary = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|kind| format!("  {kind}_temp_path {path}/{kind};\n"))
        .concat();
    // Without a master the worker is the process, as with the other services. A client keeps its
    // connections for the whole run.
    let configuration = format!(
        "daemon off;\nmaster_process off;\nworker_processes 1;\npid {path}/pid;\n\
         events {{ worker_connections 1024; }}\n\
         http {{\n  access_log off;\n  sendfile on;\n  tcp_nopush on;\n{temporary}  \
         keepalive_requests 1000000000;\n  keepalive_timeout 1h;\n  keepalive_time 24h;\n  \
         server {{ listen {addr}; root {path}; }}\n}}\n"
    );
    let write = |name: &str, content: &[u8]| {
        let file = directory.join(name);
        fs::write(&file, content).with_context(|| format!("write {}", file.display()))
    };
    write("nginx.conf", configuration.as_bytes())?;
    write(PAGE, &[b'x'; PAGE_BYTES])?;
    let mut command = Command::new("nginx");
    command.arg("-p").arg(directory).args(["-c", "nginx.conf", "-e"]).arg(directory.join("errors"));
    Ok(command)
}

/// A service on a free port of the loopback device.
pub struct Server {
    /// Which.
    pub lc: Lc,
    /// The process, with all threads that serve.
    pub program: Program,
    /// Where it listens.
    pub addr: SocketAddr,
    _folder: TempDir,
}

impl Server {
    /// Starts it on the managed cores and waits until it accepts connections.
    ///
    /// # Errors
    /// When it cannot be started or does not listen in time.
    pub fn start(lc: Lc, managed: &CoreSet) -> Result<Server> {
        let (addr, directory) = (free_address()?, directory()?);
        let mut command = lc.command(addr, directory.path())?;
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let mut program = Program::start(lc.name(), &mut command).with_context(|| {
            format!("is the package {} installed? `scripts/setup.sh` does it", lc.package())
        })?;
        accepts(&mut program, addr)?;
        program.pin(managed)?;
        Ok(Server { lc, program, addr, _folder: directory })
    }
}

/// An address that nobody listens on now.
pub(super) fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").context("find a free port")?;
    listener.local_addr().context("find a free port")
}

/// Waits until a program accepts connections.
///
/// # Errors
/// When it ends or takes too long.
pub(super) fn accepts(program: &mut Program, addr: SocketAddr) -> Result<()> {
    let until = Instant::now() + START_MAX;
    while TcpStream::connect(addr).is_err() {
        program.check()?;
        if Instant::now() > until {
            bail!("{} does not accept connections on {addr} after {START_MAX:?}", program.name());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    // Somebody else may have had the port already: then it is that one who accepts.
    program.check()
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_load::{LoadSpec, Silent};
    use quell_model::{CoreId, Nanos};

    #[test]
    fn every_service_starts_serves_its_load_and_ends() {
        // A benchmark that starts meanwhile would take the services' directories for left behind.
        let _alone = quell_testkit::host_lock().unwrap();
        for lc in Lc::ALL {
            let server = Server::start(lc, &CoreSet::of(CoreId(0))).unwrap();
            let length = Nanos::from_millis(50);
            let mut load = LoadSpec::new(server.addr, lc.protocol(), 2_000.0, length);
            load.grace = Nanos::from_secs(5);
            let report = quell_load::run(&load, &mut Silent).unwrap();
            let totals = report.overall.totals;
            assert!(totals.scheduled > 0 && totals.answered == totals.scheduled, "{totals:?}");
            assert_eq!(totals.misses, 0, "{}", lc.name());
            let addr = server.addr;
            drop(server);
            assert!(TcpStream::connect(addr).is_err(), "{} still listens", lc.name());
        }
    }

    #[test]
    fn reports_about_services_have_names_of_their_own() {
        let names = Lc::ALL.map(|lc| lc.report_name("colocate"));
        assert_eq!(names, ["colocate", "colocate-redis", "colocate-nginx"]);
    }
}
