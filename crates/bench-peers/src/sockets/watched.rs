//! What requests wait for while they are on their way: their threads for a core, and deferred network processing for one.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

/// Slow requests that are answered: one in so many, in this range.
const SLOWEST_PART: usize = 100;
const SLOWEST_MIN: usize = 10;
const SLOWEST_MAX: usize = 1_000;
/// Requests that a server keeps a wait of.
pub const LOG_MAX: usize = 1 << 21;
/// Threads of deferred softirqs that are read: one read each for every request.
const SOFTIRQ_THREADS_MAX: usize = 16;

/// Time that a thread was runnable and did not run, as the kernel accounts it (`schedstat`).
pub struct RunDelay(File);

impl RunDelay {
    /// Of the calling thread.
    ///
    /// # Errors
    /// Where the kernel does not count.
    pub fn own() -> Result<RunDelay> {
        RunDelay::open(Path::new("/proc/thread-self"))
    }

    fn open(thread: &Path) -> Result<RunDelay> {
        let path = thread.join("schedstat");
        let file = File::open(&path).with_context(|| format!("open {}", path.display()))?;
        let delay = RunDelay(file);
        delay.ns()?;
        Ok(delay)
    }

    /// So far.
    ///
    /// # Errors
    /// When the thread is gone.
    pub fn ns(&self) -> Result<u64> {
        let mut text = [0; 64];
        let length = self.0.read_at(&mut text, 0).context("read schedstat")?;
        run_delay(&text[..length]).context("schedstat has no run delay")
    }
}

/// The second of its three numbers.
fn run_delay(schedstat: &[u8]) -> Option<u64> {
    std::str::from_utf8(schedstat).ok()?.split_ascii_whitespace().nth(1)?.parse().ok()
}

/// See the module.
pub struct Watch {
    own: RunDelay,
    softirq: Vec<RunDelay>,
}

/// Waits so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Waits {
    own_ns: u64,
    softirq_ns: u64,
}

impl Watch {
    /// Of the calling thread and the threads of deferred softirqs (`ksoftirqd`).
    ///
    /// # Errors
    /// Where the kernel does not count.
    pub fn start() -> Result<Watch> {
        let mut softirq = Vec::new();
        for entry in fs::read_dir("/proc")?.flatten() {
            let comm = fs::read_to_string(entry.path().join("comm")).unwrap_or_default();
            if comm.starts_with("ksoftirqd/") && softirq.len() < SOFTIRQ_THREADS_MAX {
                softirq.push(RunDelay::open(&entry.path())?);
            }
        }
        Ok(Watch { own: RunDelay::own()?, softirq })
    }

    /// So far.
    ///
    /// # Errors
    /// When a thread is gone.
    pub fn read(&self) -> Result<Waits> {
        let softirq: Result<Vec<u64>> = self.softirq.iter().map(RunDelay::ns).collect();
        Ok(Waits { own_ns: self.own.ns()?, softirq_ns: softirq?.iter().sum() })
    }
}

/// One of the slowest requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Request {
    /// Of the server's requests, from 0.
    #[serde(skip)]
    number: usize,
    /// When it was sent, by the monotonic clock.
    at_ns: u64,
    /// Until its answer was read.
    ns: u64,
    /// The client's thread was runnable and did not run.
    client_wait_ns: u64,
    /// The same, of the server's thread.
    server_wait_ns: u64,
    /// Deferred network processing waited for a core, on any core.
    softirq_wait_ns: u64,
}

impl Request {
    /// With what passed meanwhile.
    pub fn new(number: usize, at_ns: u64, ns: u64, before: Waits, after: Waits) -> Request {
        Request {
            number,
            at_ns,
            ns,
            client_wait_ns: after.own_ns.saturating_sub(before.own_ns),
            server_wait_ns: 0,
            softirq_wait_ns: after.softirq_ns.saturating_sub(before.softirq_ns),
        }
    }
}

/// The slowest requests, each with what the server's thread waited for it.
pub fn slowest(mut requests: Vec<Request>, server_waits_ns: &[u64]) -> Vec<Request> {
    requests.sort_unstable_by_key(|request| std::cmp::Reverse(request.ns));
    requests.truncate((requests.len() / SLOWEST_PART).clamp(SLOWEST_MIN, SLOWEST_MAX));
    for request in &mut requests {
        request.server_wait_ns = server_waits_ns.get(request.number).copied().unwrap_or(0);
    }
    requests
}

/// The most memory that this process had.
///
/// # Errors
/// When the kernel does not say.
pub fn peak_memory_bytes() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("read /proc/self/status")?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = kib.and_then(|text| text.trim().strip_suffix("kB"));
    let kib: u64 = kib.context("no VmHWM in /proc/self/status")?.trim().parse()?;
    ensure!(kib > 0, "a process without memory");
    Ok(kib * 1_024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn run_delay_is_the_second_number() {
        assert_eq!(run_delay(b"8123 456 12\n"), Some(456));
        assert_eq!(run_delay(b"8123\n"), None);
        assert_eq!(run_delay(b"a b c"), None);
    }

    #[test]
    fn slowest_requests_have_the_waits_of_their_own_numbers() {
        let waits = |own_ns| Waits { own_ns, softirq_ns: 7 };
        let request = |number, ns| Request::new(number, 0, ns, waits(5), waits(8));
        let all = (0..2_000).map(|number| request(number, number as u64)).collect();
        let server: Vec<u64> = (0..1_999).map(|number| number * 10).collect();
        let slow = slowest(all, &server);
        assert_eq!(slow.len(), 20);
        assert_eq!((slow[0].number, slow[0].server_wait_ns), (1_999, 0));
        assert_eq!((slow[1].number, slow[1].server_wait_ns), (1_998, 19_980));
        assert_eq!((slow[1].client_wait_ns, slow[1].softirq_wait_ns), (3, 0));
    }
}
