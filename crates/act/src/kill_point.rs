//! Named places where the crash tests stop a process of Quell.
//!
//! In a debug build, the process that reaches the armed place writes `NAME PID` to a file and
//! stops itself; the test then kills whom it likes while nothing moves. `QUELL_KILL_POINT` names a file
//! with one line, `NAME NTH MARK`: the place, how many passes before it acts, and the file to write. The file is read
//! at each pass, so that a test can arm it at any time. Of a release build it is no part.

/// A place where the crash tests may stop this process.
#[cfg(not(debug_assertions))]
#[inline(always)]
pub fn kill_point(_name: &'static str) {}

/// A place where the crash tests may stop this process.
#[cfg(debug_assertions)]
pub fn kill_point(name: &'static str) {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    static PASSES: AtomicU64 = AtomicU64::new(0);

    let Some(order) = std::env::var_os("QUELL_KILL_POINT") else { return };
    let Ok(order) = std::fs::read_to_string(order) else { return };
    let mut words = order.split_ascii_whitespace();
    let (Some(wanted), Some(after), Some(mark)) = (words.next(), words.next(), words.next()) else {
        return;
    };
    // Relaxed: a counter of its own, nothing is published by it.
    if wanted != name || PASSES.fetch_add(1, Relaxed) < after.parse().unwrap_or(0) {
        return;
    }
    // One process only: of two guardians that race here the first takes the mark.
    let text = format!("{name} {}\n", std::process::id());
    let mark = std::path::Path::new(mark);
    let own = mark.with_extension(std::process::id().to_string());
    if std::fs::write(&own, text).is_ok() && std::fs::hard_link(&own, mark).is_ok() {
        let _ = std::fs::remove_file(&own);
        crate::stop::stop();
    }
    let _ = std::fs::remove_file(&own);
}
