//! Help for tests that change the host.

mod balancing;
mod sockmap;
mod softirq;
mod undo;

use std::fmt::Display;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write as _};

pub use balancing::{Balanced, Quiet, Unbalanced};
pub use sockmap::SockMap;
pub use softirq::SoftirqBurner;
pub use undo::Undo;

/// libelf reads headers in place: the code has to be aligned as they are.
#[repr(C, align(8))]
struct Aligned<Bytes: ?Sized>(Bytes);

/// Sets the one constant of an object that is not loaded yet.
fn set_constant<const BYTES: usize>(open: &mut libbpf_rs::OpenObject, value: [u8; BYTES]) {
    let is_constants = |name: &str| name.ends_with("rodata");
    for mut map in open.maps_mut().filter(|map| is_constants(&map.name().to_string_lossy())) {
        let first = map.initial_value_mut().and_then(|bytes| bytes.first_chunk_mut());
        if let Some(first) = first {
            *first = value;
        }
    }
}

/// Says that the test of this thread shows nothing here, and why. The harness keeps what `eprintln!` says to itself
/// as long as a test passes; not this.
pub fn skipped(why: impl Display) {
    let thread = std::thread::current();
    let _ = writeln!(io::stderr(), "skipped {}: {why}", thread.name().unwrap_or("a test"));
}

/// Held while a test changes host-wide state or needs the machine quiet; released on drop.
pub struct HostLock {
    _file: File,
}

/// Waits until no other test of this host holds the lock.
///
/// # Errors
/// When the lock file cannot be opened or locked.
pub fn host_lock() -> io::Result<HostLock> {
    let file = lock_file()?;
    file.lock()?;
    Ok(HostLock { _file: file })
}

/// Takes the lock if nobody holds it.
///
/// # Errors
/// When the lock file cannot be opened or locked.
pub fn try_host_lock() -> io::Result<Option<HostLock>> {
    let file = lock_file()?;
    match file.try_lock() {
        Ok(()) => Ok(Some(HostLock { _file: file })),
        Err(TryLockError::WouldBlock) => Ok(None),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn lock_file() -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).open("/dev/shm/quell-test.lock")
}

/// The version of the running kernel, without the patch level.
pub fn kernel() -> (u32, u32) {
    let host = rustix::system::uname();
    let release = host.release().to_string_lossy().into_owned();
    let mut parts = release.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}
