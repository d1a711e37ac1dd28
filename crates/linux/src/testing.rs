//! Help for tests that change the host.

use std::fs::{File, OpenOptions};
use std::io;

/// Held while a test changes host-wide state or needs the machine quiet; released on drop.
pub struct HostLock {
    _file: File,
}

/// Waits until no other test of this host holds the lock.
///
/// # Errors
/// When the lock file cannot be opened or locked.
pub fn host_lock() -> io::Result<HostLock> {
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .open("/dev/shm/quell-test.lock")?;
    file.lock()?;
    Ok(HostLock { _file: file })
}
