//! The two ends that `quell bench net` puts into two network namespaces, or onto one host: `quell-bench-peers sockets`.
//!
//! `server SYSTEM ADDRESS` prints `port ADDRESS` and serves one client, which says what it wants on its first connection;
//! `client SYSTEM ADDRESS CASE TIME_MS` runs one case and prints one line of JSON. Every byte that arrives is compared with
//! what was sent.

mod client;
mod connection;
mod gathering;
mod kernel_io;
mod options;
mod pattern;
mod server;
mod uring;
mod watched;

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quell_model::Nanos;
use quell_net::Class;
use quell_os::own;
use quell_os::sched::{Policy, SchedAttr};
use quell_runtime::{Daemon, Runtime};
use serde::Serialize;

use watched::Request;

/// The shortest slice that the kernel gives.
const SHORTEST: Nanos = Nanos::from_micros(100);

/// What carries the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// Kernel TCP, cubic.
    Tcp(Tcp),
    /// A Unix socket.
    Unix,
    /// Virtual sockets over channels of kernel TCP.
    Quell(Quell),
    /// Virtual sockets through shared memory.
    QuellShm,
    /// The same, on uthreads of Quell's runtime.
    UthreadsShm,
    /// Kernel TCP on uthreads of Quell's runtime.
    UthreadsTcp,
}

/// How kernel TCP is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tcp {
    /// As programs do.
    Plain,
    /// Writes are gathered in the program, for as long as virtual sockets gather theirs.
    Buffered,
    /// Threads that wait for answers have nice -20, those of streams 19.
    Nice,
    /// Threads that wait for answers have nice -20.
    LatencyNice,
    /// The same, and their packets go before others (`SO_PRIORITY`).
    Priority,
    /// Threads of streams have nice 19.
    BulkNice,
    /// Threads that wait for answers are real-time threads (`SCHED_FIFO`).
    Fifo,
    /// Through io_uring, on the threads that ask.
    UringInline,
    /// Through io_uring, on worker threads of the kernel.
    UringWorkers,
    /// Writes without a copy (`MSG_ZEROCOPY`).
    ZeroCopy,
    /// Threads that wait for answers have the shortest slices, as those of virtual sockets ask for.
    Slice,
    /// A connection is opened with its first bytes (RFC 7413).
    FastOpen,
    /// One connection over two subflows (RFC 8684).
    Multipath,
    /// By io_uring.
    Uring,
    /// Around the kernel's TCP, by a BPF sockmap that the benchmark sets up for the server's address.
    SockMap,
}

/// How channels of kernel TCP are set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quell {
    /// One of each class.
    Plain,
    /// So many for throughput.
    Channels(usize),
    /// Two for throughput, each sent and read by a thread on a core of its own, the latency class apart.
    Placed,
    /// A worker on each core copies parts of large reads and writes.
    Workers,
    /// No credit: streams that are not read fill their channel, which is then not read.
    NoRelief,
    /// The same, but the peer is asked to stop, and later to resume.
    StopResume,
    /// As many for throughput as the processors can use.
    Counted,
    /// Nothing is kept to be sent again should a channel be lost.
    NoRecovery,
    /// Channels fill the queues of slow links.
    Unpaced,
    /// Connections are opened together with their first bytes.
    Early,
    /// Over UDP instead.
    Udp,
    /// Sent and received by io_uring.
    Uring,
}

impl System {
    fn parse(name: &str) -> Result<System> {
        Ok(match name {
            "tcp" => System::Tcp(Tcp::Plain),
            "tcp-buffered" => System::Tcp(Tcp::Buffered),
            "tcp-nice" => System::Tcp(Tcp::Nice),
            "tcp-slice" => System::Tcp(Tcp::Slice),
            "tcp-latency-nice" => System::Tcp(Tcp::LatencyNice),
            "tcp-priority" => System::Tcp(Tcp::Priority),
            "tcp-bulk-nice" => System::Tcp(Tcp::BulkNice),
            "tcp-fifo" => System::Tcp(Tcp::Fifo),
            "tcp-uring-inline" => System::Tcp(Tcp::UringInline),
            "tcp-uring-workers" => System::Tcp(Tcp::UringWorkers),
            "tcp-zerocopy" => System::Tcp(Tcp::ZeroCopy),
            "tcp-fast-open" => System::Tcp(Tcp::FastOpen),
            "tcp-uring" => System::Tcp(Tcp::Uring),
            "tcp-sockmap" => System::Tcp(Tcp::SockMap),
            "mptcp" => System::Tcp(Tcp::Multipath),
            "unix" => System::Unix,
            "quell" => System::Quell(Quell::Plain),
            "quell-2" => System::Quell(Quell::Channels(2)),
            "quell-3" => System::Quell(Quell::Channels(3)),
            "quell-4" => System::Quell(Quell::Channels(4)),
            "quell-placed" => System::Quell(Quell::Placed),
            "quell-workers" => System::Quell(Quell::Workers),
            "quell-no-relief" => System::Quell(Quell::NoRelief),
            "quell-stop-resume" => System::Quell(Quell::StopResume),
            "quell-counted" => System::Quell(Quell::Counted),
            "quell-no-recovery" => System::Quell(Quell::NoRecovery),
            "quell-unpaced" => System::Quell(Quell::Unpaced),
            "quell-early" => System::Quell(Quell::Early),
            "quell-uring" => System::Quell(Quell::Uring),
            "quell-udp" => System::Quell(Quell::Udp),
            "quell-shm" => System::QuellShm,
            "uthreads-shm" => System::UthreadsShm,
            "uthreads-tcp" => System::UthreadsTcp,
            other => bail!("no system is called {other}"),
        })
    }

    /// Whether it runs on uthreads.
    fn is_green(self) -> bool {
        matches!(self, System::UthreadsShm | System::UthreadsTcp)
    }

    /// Runs an end on a thread of the system's kind, until it ends.
    fn run<T: Send + 'static>(self, end: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        if !self.is_green() {
            return end();
        }
        // A core for each end, as for threads that wait.
        let builder = Runtime::builder().name("sockets").daemon(Daemon::Never).max_cores(1);
        builder.build().context("build the runtime")?.run(end)
    }

    /// Starts another one, which ends with the process.
    fn spawn(self, task: impl FnOnce() + Send + 'static) {
        if self.is_green() {
            drop(quell_runtime::thread::spawn(task));
        } else {
            drop(std::thread::spawn(task));
        }
    }

    /// Gives the calling thread the priority of what it serves, where the system has such.
    ///
    /// # Errors
    /// When the kernel refuses it.
    fn prioritise(self, class: Class) -> Result<()> {
        let System::Tcp(kind) = self else { return Ok(()) };
        // Linux: of the calling thread alone.
        let set_nice = |nice| rustix::process::setpriority_process(None, nice);
        match (kind, class) {
            (Tcp::Slice, Class::Latency) => {
                let attr = own::attr().context("read the thread's slice")?;
                let attr = SchedAttr { slice: SHORTEST, ..attr };
                own::set_attr(&attr).context("set the thread's slice")
            }
            (Tcp::Nice | Tcp::LatencyNice | Tcp::Priority, Class::Latency) => {
                set_nice(-20).context("set nice -20")
            }
            (Tcp::Nice | Tcp::BulkNice, Class::Throughput) => set_nice(19).context("set nice 19"),
            (Tcp::Fifo, Class::Latency) => {
                let attr = SchedAttr { policy: Policy::Fifo, priority: 1, ..SchedAttr::OTHER };
                own::set_attr(&attr).context("become a real-time thread (SCHED_FIFO)")
            }
            _ => Ok(()),
        }
    }
}

/// What a case does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Case {
    /// Requests and answers of so many bytes, one after the other.
    PingPong { bytes: usize },
    /// So many streams, each written in pieces of so many bytes.
    Streams { count: usize, bytes: usize },
    /// One stream without copies on the side of virtual sockets.
    ZeroCopy { bytes: usize },
    /// Messages of so many bytes over so many sockets in turn.
    Messages { sockets: usize, bytes: usize },
    /// Requests and answers, one each 200 us, beside so many streams in the same two processes.
    Beside { streams: usize, bytes: usize },
    /// The same, one request after the other, each with what it waited for.
    Watched { streams: usize, bytes: usize },
    /// A new connection for each request.
    Connect { bytes: usize },
    /// So many streams, alone and then beside one that is never read.
    Stalled { streams: usize, bytes: usize },
}

impl Case {
    /// By its name.
    ///
    /// # Errors
    /// When there is none of the name.
    pub fn parse(name: &str) -> Result<Case> {
        Ok(match name {
            "pingpong-alone" | "same-host-rtt" => Case::PingPong { bytes: 4_096 },
            "uthread-echo" => Case::PingPong { bytes: 64 },
            "writes-4k" | "same-host-4k" => Case::Streams { count: 1, bytes: 4_096 },
            "messages-64b" => Case::Messages { sockets: 64, bytes: 64 },
            "stream-copying" | "same-host-bulk" => Case::Streams { count: 1, bytes: 256 << 10 },
            "stream-zero-copy" => Case::ZeroCopy { bytes: 64 << 10 },
            "eight-streams" => Case::Streams { count: 8, bytes: 256 << 10 },
            "latency-alone" => Case::Beside { streams: 0, bytes: 4_096 },
            "bulk-beside-latency" | "bottleneck" | "bottleneck-udp" => {
                Case::Beside { streams: 8, bytes: 4_096 }
            }
            "writes-10m" => Case::Streams { count: 1, bytes: 10 << 20 },
            "watched-alone" => Case::Watched { streams: 0, bytes: 4_096 },
            "watched-beside-8" => Case::Watched { streams: 8, bytes: 4_096 },
            "connect-request" => Case::Connect { bytes: 64 },
            "stalled-reader" => Case::Stalled { streams: 2, bytes: 64 << 10 },
            "two-channels" => Case::ZeroCopy { bytes: 4_096 },
            other => bail!("no case is called {other}"),
        })
    }
}

/// What is answered, as one line of JSON.
#[derive(Debug, Default, Serialize)]
pub struct Measured {
    /// Bytes that arrived at the other end, were compared, and acknowledged by it.
    pub bytes: u64,
    /// Round trips, messages or connections.
    pub ops: u64,
    /// The time of both.
    pub ns: u64,
    /// Processor time of this process in it.
    pub client_cpu_ns: u64,
    /// The same, of the other.
    pub server_cpu_ns: u64,
    /// Times of round trips.
    pub samples: Vec<u64>,
    /// Of [`Case::Stalled`]: the rate beside the one that is never read, as a part of that alone.
    pub part: Option<f64>,
    /// Of [`Case::Watched`]: the slowest requests.
    pub slowest: Vec<Request>,
    /// Of writes that were to be without a copy: the part that the kernel copied.
    pub copied_share: Option<f64>,
    /// Of [`Case::Stalled`]: the most memory that the server's process had.
    pub server_peak_bytes: Option<u64>,
}

/// Runs one end.
///
/// # Errors
/// When the words name none, or it fails.
pub fn run(words: &[&str]) -> Result<()> {
    match *words {
        ["server", system, address] => {
            let (system, address) = (System::parse(system)?, address.to_owned());
            system.run(move || server::run(system, &address))
        }
        ["client", system, address, case, millis] => {
            let millis: u64 = millis.parse().context("the time in milliseconds")?;
            let time = Duration::from_millis(millis.min(60_000));
            let (system, case) = (System::parse(system)?, Case::parse(case)?);
            let address = address.to_owned();
            let measured = system.run(move || client::run(system, &address, case, time))?;
            println!("{}", serde_json::to_string(&measured)?);
            Ok(())
        }
        _ => bail!("usage: sockets server SYSTEM ADDRESS | client SYSTEM ADDRESS CASE TIME_MS"),
    }
}
