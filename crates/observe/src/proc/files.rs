//! The files of /proc that the fallback observer reads each sweep.

use std::fs::File;
use std::io::{self, Read};

use quell_model::{CoreId, Nanos};

use quell_os::ThreadRef;

/// What /proc shows of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shown {
    /// `R`: runs or waits for a core.
    pub runnable: bool,
    pub start_ticks: u64,
    /// The core that it runs or waits on, or ran on last.
    pub core: CoreId,
    /// Total time on cores and waiting, from `schedstat`.
    pub ran: Nanos,
    pub waited: Nanos,
    /// How often it got a core.
    pub slices: u64,
}

/// Reads small files without allocating for each.
#[derive(Default)]
pub(super) struct Reader {
    path: String,
    text: Vec<u8>,
}

impl Reader {
    fn read(&mut self, path: std::fmt::Arguments<'_>) -> io::Result<&str> {
        self.path.clear();
        self.text.clear();
        let formatted = std::fmt::Write::write_fmt(&mut self.path, path);
        formatted.map_err(io::Error::other)?;
        File::open(&self.path)?.read_to_end(&mut self.text)?;
        std::str::from_utf8(&self.text).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// What a thread does.
    ///
    /// # Errors
    /// `NotFound` if it ended; `InvalidData` if a file does not read as proc(5) says.
    pub fn thread(&mut self, thread: ThreadRef) -> io::Result<Shown> {
        let ThreadRef { tid, tgid, .. } = thread;
        let gone = |error: io::Error| match error.raw_os_error() {
            Some(libc::ESRCH) => io::ErrorKind::NotFound.into(),
            _ => error,
        };
        let sums = self.read(format_args!("/proc/{tgid}/task/{tid}/schedstat")).map_err(gone)?;
        let (ran, waited, slices) = parse_schedstat(sums).ok_or(io::ErrorKind::InvalidData)?;
        // The name in a stat file may hold any bytes.
        let path = format_args!("/proc/{tgid}/task/{tid}/stat");
        let read = self.read(path).map(|_| ());
        match read {
            Err(error) if error.kind() != io::ErrorKind::InvalidData => return Err(gone(error)),
            _ => {}
        }
        let (runnable, start_ticks, core) =
            parse_stat(&self.text).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Shown { runnable, start_ticks, core, ran, waited, slices })
    }

    /// How often a thread went to sleep by itself.
    ///
    /// # Errors
    /// As [`Reader::thread`].
    pub fn sleeps(&mut self, thread: ThreadRef) -> io::Result<u64> {
        let ThreadRef { tid, tgid, .. } = thread;
        let status = self.read(format_args!("/proc/{tgid}/task/{tid}/status"))?;
        let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        count.and_then(|count| count.trim().parse().ok()).ok_or(io::ErrorKind::InvalidData.into())
    }

    /// Tells the idle and the whole time of each core, in clock ticks.
    ///
    /// # Errors
    /// When /proc is not mounted.
    pub fn idle_ticks(&mut self, mut each: impl FnMut(CoreId, u64, u64)) -> io::Result<()> {
        for line in self.read(format_args!("/proc/stat"))?.lines() {
            let Some((core, idle, whole)) = parse_core(line) else { continue };
            each(core, idle, whole);
        }
        Ok(())
    }
}

fn parse_schedstat(text: &str) -> Option<(Nanos, Nanos, u64)> {
    let mut fields = text.split_ascii_whitespace().map(str::parse::<u64>);
    let mut next = || fields.next()?.ok();
    Some((Nanos(next()?), Nanos(next()?), next()?))
}

fn parse_stat(text: &[u8]) -> Option<(bool, u64, CoreId)> {
    let after_name = text.iter().rposition(|&byte| byte == b')')? + 1;
    let rest = std::str::from_utf8(text.get(after_name..)?).ok()?;
    // The first field here is number 3, the state; 22 is the start time, 39 the processor.
    let mut fields = rest.split_ascii_whitespace();
    let runnable = fields.next()? == "R";
    let start_ticks = fields.nth(18)?.parse().ok()?;
    let core = fields.nth(16)?.parse().ok()?;
    Some((runnable, start_ticks, CoreId(core)))
}

/// `cpu3 user nice system idle iowait irq softirq steal guest guest_nice`.
fn parse_core(line: &str) -> Option<(CoreId, u64, u64)> {
    let (name, ticks) = line.split_once(' ')?;
    let core = CoreId(name.strip_prefix("cpu")?.parse().ok()?);
    let mut whole = 0u64;
    let mut idle = 0u64;
    // Guest time is part of user time.
    for (at, field) in ticks.split_ascii_whitespace().take(8).enumerate() {
        let field: u64 = field.parse().ok()?;
        whole = whole.saturating_add(field);
        idle = idle.saturating_add(if matches!(at, 3 | 4) { field } else { 0 });
    }
    Some((core, idle, whole))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn fields_count_from_the_end_of_the_name() {
        let stat =
            b"7 (a) R (b) S 1 1 1 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 1 0 987654 1 2 3 4 5 6 7 8 9 \
            10 11 12 13 14 15 17 5 0 0";
        assert_eq!(parse_stat(stat), Some((false, 987_654, CoreId(5))));
        let mine = std::fs::read("/proc/thread-self/stat").unwrap();
        assert!(parse_stat(&mine).unwrap().0, "who reads this runs");
    }

    #[test]
    fn waiting_for_a_disk_is_idle_time_and_guests_are_not_counted_twice() {
        assert_eq!(parse_core("cpu3 1 2 3 10 5 0 0 4 100 100"), Some((CoreId(3), 15, 25)));
        assert_eq!(parse_core("cpu 1 2 3 10 5"), None);
        assert_eq!(parse_core("intr 1 2"), None);
    }

    #[test]
    fn this_thread_shows() {
        let me = ThreadRef::current().unwrap();
        let mut reader = Reader::default();
        let shown = reader.thread(me).unwrap();
        assert!(shown.runnable && shown.start_ticks == me.start_ticks && shown.slices > 0);
        std::thread::sleep(std::time::Duration::from_millis(1));
        assert!(reader.sleeps(me).unwrap() > 0);
        let gone = ThreadRef { tid: quell_os::Tid(i32::MAX), ..me };
        assert_eq!(reader.thread(gone).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,200}") {
            let _ = (parse_stat(text.as_bytes()), parse_schedstat(&text), parse_core(&text));
        }
    }
}
