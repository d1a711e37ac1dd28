//! Files with blocking calls, which block the uthread and not its kthread.
//!
//! They have the signatures of `std::fs`. What is in the page cache is read and written at once; the rest is left to the
//! kthread's ring, or to helper threads where there is none, which also open files. On a thread that is none of a runtime
//! they block that thread.
//!
//! ```
//! use quell_runtime::{Daemon, Runtime, fs};
//!
//! let path = std::env::temp_dir().join(format!("quell-fs-{}", std::process::id()));
//! let runtime = Runtime::builder().daemon(Daemon::Never).max_cores(1).build()?;
//! let read = runtime.run(move || -> std::io::Result<Vec<u8>> {
//!     fs::write(&path, b"kept")?;
//!     let read = fs::read(&path);
//!     std::fs::remove_file(&path)?;
//!     read
//! })?;
//! assert_eq!(read, b"kept");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod options;

use std::fs::Metadata;
use std::io::{self, IoSlice, IoSliceMut, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use io_uring::squeue::Entry;
use io_uring::{opcode, types};
use rustix::io::{Errno, ReadWriteFlags, preadv2, pwritev2};

pub use options::OpenOptions;

use crate::io::{offload, perform};
use crate::kthread::local::checkpoint;
use crate::kthread::lock;
use crate::park::in_uthread;

/// The file's own position, to `preadv2` and to a ring.
const POSITION: u64 = u64::MAX;

/// An open file. As [`std::fs::File`], but what takes long parks the uthread.
#[derive(Debug)]
pub struct File {
    file: std::fs::File,
    /// Reading from the page cache alone can be asked for; so can writing.
    tries: [AtomicBool; 2],
}

const READ: usize = 0;
const WRITE: usize = 1;

impl File {
    /// Opens a file to be read.
    ///
    /// # Errors
    /// Those of [`std::fs::File::open`].
    pub fn open(path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new().read(true).open(path)
    }

    /// Opens a file to be written, which is made or emptied.
    ///
    /// # Errors
    /// Those of [`std::fs::File::create`].
    pub fn create(path: impl AsRef<Path>) -> io::Result<File> {
        OpenOptions::new().write(true).create(true).truncate(true).open(path)
    }

    /// How else a file may be opened.
    pub fn options() -> OpenOptions {
        OpenOptions::new()
    }

    /// Reads from a place; the file's position stays.
    ///
    /// # Errors
    /// Those of `pread`.
    pub fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        self.read_from(buffer, offset.min(POSITION - 1))
    }

    /// Writes to a place; the file's position stays.
    ///
    /// # Errors
    /// Those of `pwrite`.
    pub fn write_at(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        self.write_to(bytes, offset.min(POSITION - 1))
    }

    /// Waits until the file and what is known of it are on the device.
    ///
    /// # Errors
    /// Those of `fsync`.
    pub fn sync_all(&self) -> io::Result<()> {
        let entry = opcode::Fsync::new(self.number()).build();
        self.carry_out(entry, || self.file.sync_all().map(|()| 0)).map(drop)
    }

    /// Waits until the file's contents are on the device.
    ///
    /// # Errors
    /// Those of `fdatasync`.
    pub fn sync_data(&self) -> io::Result<()> {
        let entry = opcode::Fsync::new(self.number()).flags(types::FsyncFlags::DATASYNC).build();
        self.carry_out(entry, || self.file.sync_data().map(|()| 0)).map(drop)
    }

    /// Cuts or extends the file.
    ///
    /// # Errors
    /// Those of `ftruncate`.
    pub fn set_len(&self, bytes: u64) -> io::Result<()> {
        offload(|| self.file.set_len(bytes))
    }

    /// What is known of the file.
    ///
    /// # Errors
    /// Those of `fstat`.
    pub fn metadata(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }

    /// Another handle of the same open file, with the same position.
    ///
    /// # Errors
    /// When there are no more descriptors.
    pub fn try_clone(&self) -> io::Result<File> {
        Ok(self.file.try_clone()?.into())
    }

    fn number(&self) -> types::Fd {
        types::Fd(self.file.as_raw_fd())
    }

    /// Has the ring carry out `entry`, or a helper `otherwise`. What `entry` points to must be borrowed by the caller.
    fn carry_out(
        &self,
        entry: Entry,
        otherwise: impl Fn() -> io::Result<usize> + Sync,
    ) -> io::Result<usize> {
        if !in_uthread() {
            return otherwise();
        }
        loop {
            // SAFETY: the callers of this function borrow what the entry points to until it returns.
            let done = match unsafe { perform(entry.clone(), None) } {
                // Nobody cancels it but the kernel, before it is begun: where it cannot start a worker of the ring for it, as
                // when a tick of the quantum comes in each of its tries (io_uring/io-wq.c, WORKER_INIT_LIMIT).
                Some((Err(error), _)) if error.raw_os_error() == Some(libc::ECANCELED) => {
                    offload(&otherwise)
                }
                Some((done, _)) => done,
                None => offload(&otherwise),
            };
            match done {
                // A worker of the ring was interrupted.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => return done,
            }
        }
    }

    /// What can be done at once; `None`: nothing can.
    fn at_once(
        &self,
        what: usize,
        attempt: impl FnOnce() -> rustix::io::Result<usize>,
    ) -> Option<io::Result<usize>> {
        // Relaxed: a hint that stands by itself.
        if !in_uthread() || !self.tries[what].load(Ordering::Relaxed) {
            return None;
        }
        match attempt() {
            Err(Errno::AGAIN | Errno::INTR) => None,
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {
                self.tries[what].store(false, Ordering::Relaxed);
                None
            }
            done => {
                checkpoint();
                Some(done.map_err(io::Error::from))
            }
        }
    }

    fn read_from(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let attempt = || {
            let mut buffers = [IoSliceMut::new(&mut *buffer)];
            preadv2(&self.file, &mut buffers, offset, ReadWriteFlags::NOWAIT)
        };
        if let Some(done) = self.at_once(READ, attempt) {
            return done;
        }
        let length = u32::try_from(buffer.len()).unwrap_or(u32::MAX);
        // Either the ring writes to it or a helper does.
        let buffer = Mutex::new(buffer);
        let entry = opcode::Read::new(self.number(), lock(&buffer).as_mut_ptr(), length);
        self.carry_out(entry.offset(offset).build(), || {
            let mut buffer = lock(&buffer);
            let mut buffers = [IoSliceMut::new(&mut buffer)];
            Ok(preadv2(&self.file, &mut buffers, offset, ReadWriteFlags::empty())?)
        })
    }

    fn write_to(&self, bytes: &[u8], offset: u64) -> io::Result<usize> {
        let attempt =
            || pwritev2(&self.file, &[IoSlice::new(bytes)], offset, ReadWriteFlags::NOWAIT);
        if let Some(done) = self.at_once(WRITE, attempt) {
            return done;
        }
        let length = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
        let entry = opcode::Write::new(self.number(), bytes.as_ptr(), length);
        self.carry_out(entry.offset(offset).build(), || {
            let buffers = [IoSlice::new(bytes)];
            Ok(pwritev2(&self.file, &buffers, offset, ReadWriteFlags::empty())?)
        })
    }
}

/// Reads a whole file.
///
/// # Errors
/// Those of [`std::fs::read`].
pub fn read(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let expected = file.metadata().map_or(0, |it| usize::try_from(it.len()).unwrap_or(0));
    let mut contents = Vec::new();
    contents.try_reserve_exact(expected)?;
    file.read_to_end(&mut contents)?;
    Ok(contents)
}

/// Reads a whole file of text.
///
/// # Errors
/// Those of [`std::fs::read_to_string`].
pub fn read_to_string(path: impl AsRef<Path>) -> io::Result<String> {
    String::from_utf8(read(path)?)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the file is not UTF-8"))
}

/// Makes a file with these contents, or replaces them.
///
/// # Errors
/// Those of [`std::fs::write`].
pub fn write(path: impl AsRef<Path>, contents: impl AsRef<[u8]>) -> io::Result<()> {
    File::create(path)?.write_all(contents.as_ref())
}

impl Read for &File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.read_from(buffer, POSITION)
    }
}

impl Write for &File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_to(bytes, POSITION)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for &File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&self.file).seek(to)
    }
}

impl Read for File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (&*self).read(buffer)
    }
}

impl Write for File {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        (&*self).write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        (&*self).seek(to)
    }
}

impl From<std::fs::File> for File {
    fn from(file: std::fs::File) -> File {
        File { file, tries: [AtomicBool::new(true), AtomicBool::new(true)] }
    }
}

impl From<OwnedFd> for File {
    fn from(file: OwnedFd) -> File {
        std::fs::File::from(file).into()
    }
}

impl AsFd for File {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl AsRawFd for File {
    fn as_raw_fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }
}
