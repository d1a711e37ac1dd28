//! From the recorder to a file, by a thread of its own.
//!
//! Between them lies a ring of bytes that is wait-free on both sides: a thread at real-time priority must not
//! wait, not even in a spin loop, for one that it may itself keep from running. For the same reason nobody
//! rings: the writer looks into the ring every few milliseconds.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use rtrb::{Consumer, Producer, RingBuffer};

use super::format::{Preamble, is_recording};
use super::frame::{self, Kind};
use super::record::Sink;

/// Between the threads: seconds of decisions, should the disk or the writer's core be busy that long.
const BUFFER_BYTES: usize = 8 << 20;
/// How often the writer looks.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// A ring file's segments. The one that is overwritten next is the price of the ring: 1/16.
const SLOTS: u32 = 16;
/// The smallest ring.
pub const RING_MIN: u64 = 1 << 20;

/// Why no recording could be begun or ended.
#[derive(Debug, thiserror::Error)]
pub enum SpoolError {
    /// The file is there and something else.
    #[error("{0} exists and is not a recording; name another file")]
    NotARecording(PathBuf),
    /// The ring would hold too little.
    #[error("a ring of {0} bytes is too small; give it at least {RING_MIN}")]
    RingTooSmall(u64),
    /// The file could not be made or written.
    #[error("recording {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What went wrong.
        source: io::Error,
    },
}

/// The recorder's end.
pub struct RingSink {
    ring: Producer<u8>,
}

impl Sink for RingSink {
    fn room(&self) -> usize {
        // A writer that failed reads nothing any more.
        if self.ring.is_abandoned() { 0 } else { self.ring.slots() }
    }

    fn offer(&mut self, frames: &[u8]) -> bool {
        if frames.len() > self.room() {
            return false;
        }
        let Ok(mut chunk) = self.ring.write_chunk(frames.len()) else { return false };
        let (first, second) = chunk.as_mut_slices();
        let (to_first, to_second) = frames.split_at(first.len());
        first.copy_from_slice(to_first);
        second.copy_from_slice(to_second);
        chunk.commit_all();
        true
    }
}

/// What was written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Bytes, those that a ring overwrote included.
    pub bytes: u64,
}

/// A file that is ready for a recording.
pub struct NewFile {
    path: PathBuf,
    file: File,
    preamble: Preamble,
}

impl NewFile {
    /// Makes the file. A recording that is there already is kept beside it as `FILE.old`. With `ring`, the
    /// file keeps about the newest so many bytes.
    ///
    /// # Errors
    /// When the file is something else or cannot be made, or the ring is too small.
    pub fn create(path: &Path, ring: Option<u64>) -> Result<NewFile, SpoolError> {
        let failed = |source| SpoolError::Io { path: path.to_owned(), source };
        if let Some(bytes) = ring.filter(|bytes| *bytes < RING_MIN) {
            return Err(SpoolError::RingTooSmall(bytes));
        }
        let slot_bytes = ring.map(|bytes| (bytes - Preamble::BYTES as u64) / u64::from(SLOTS));
        keep_old(path)?;
        let file = OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?;
        let preamble = Preamble {
            slots: slot_bytes.map_or(0, |_| SLOTS),
            slot_bytes: slot_bytes.unwrap_or(0),
        };
        (&file).write_all(&preamble.to_bytes()).map_err(failed)?;
        Ok(NewFile { path: path.to_owned(), file, preamble })
    }

    /// How long a segment may be.
    pub fn segment_bytes(&self) -> Option<u64> {
        (self.preamble.slots > 0).then_some(self.preamble.slot_bytes)
    }

    /// Starts the writer, with the calling thread's priority and cores.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn start(self) -> Result<(RingSink, Spool), SpoolError> {
        let NewFile { path, file, preamble } = self;
        let (producer, ring) = RingBuffer::new(BUFFER_BYTES);
        let written = Written { bytes: Preamble::BYTES as u64 };
        let writer = Writer { file, ring, preamble, begun: 0, written };
        let thread = std::thread::Builder::new().name("quell-record".into());
        match thread.spawn(move || writer.run()) {
            Ok(thread) => Ok((RingSink { ring: producer }, Spool { path, thread })),
            Err(source) => Err(SpoolError::Io { path, source }),
        }
    }
}

/// The writer thread.
pub struct Spool {
    path: PathBuf,
    thread: JoinHandle<io::Result<Written>>,
}

impl Spool {
    /// Waits until all is written, once the recorder is gone.
    ///
    /// # Errors
    /// When something could not be written.
    pub fn finish(self) -> Result<Written, SpoolError> {
        let ended = self.thread.join();
        let ended = ended.unwrap_or_else(|_| Err(io::Error::other("the writer thread panicked")));
        ended.map_err(|source| SpoolError::Io { path: self.path, source })
    }
}

/// Moves a recording that is there to `FILE.old`.
fn keep_old(path: &Path) -> Result<(), SpoolError> {
    let failed = |source| SpoolError::Io { path: path.to_owned(), source };
    let mut head = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(8).read_to_end(&mut head).map_err(failed)?,
        Err(err) if err.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(source) => return Err(failed(source)),
    };
    if !is_recording(&head) {
        return Err(SpoolError::NotARecording(path.to_owned()));
    }
    let mut old = path.as_os_str().to_owned();
    old.push(".old");
    std::fs::rename(path, old).map_err(failed)
}

struct Writer {
    file: File,
    ring: Consumer<u8>,
    preamble: Preamble,
    /// Slots begun so far, which is also the current segment's number.
    begun: u32,
    written: Written,
}

impl Writer {
    fn run(mut self) -> io::Result<Written> {
        let mut frames = Vec::new();
        loop {
            // Asked first: what the recorder left before it went is still read.
            let last = self.ring.is_abandoned();
            self.take(&mut frames);
            match self.preamble.slots {
                0 => self.put(&frames)?,
                _ => self.put_in_slots(&frames)?,
            }
            if last {
                return Ok(self.written);
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Moves all there is out of the ring. The recorder commits whole frames.
    fn take(&mut self, frames: &mut Vec<u8>) {
        frames.clear();
        if let Ok(chunk) = self.ring.read_chunk(self.ring.slots()) {
            let (first, second) = chunk.as_slices();
            frames.extend_from_slice(first);
            frames.extend_from_slice(second);
            chunk.commit_all();
        }
    }

    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.written.bytes += bytes.len() as u64;
        self.file.write_all(bytes)
    }

    /// A Meta opens the next slot; the recorder sees to it that a segment fits.
    fn put_in_slots(&mut self, frames: &[u8]) -> io::Result<()> {
        let (mut from, mut at) = (0, 0);
        while let Some((kind, length)) = frame::first(&frames[at..]) {
            if kind == Kind::Meta {
                self.put_and_end(&frames[from..at])?;
                from = at;
                let slot = self.preamble.slot_at(self.begun % self.preamble.slots);
                self.file.seek(SeekFrom::Start(slot))?;
                self.begun = self.begun.wrapping_add(1);
            }
            at += length;
        }
        self.put_and_end(&frames[from..])
    }

    /// Writes frames and a mark behind them that ends the segment, which the next ones overwrite.
    fn put_and_end(&mut self, frames: &[u8]) -> io::Result<()> {
        if frames.is_empty() {
            return Ok(());
        }
        let mark = frame::end_mark(self.begun);
        self.put(frames)?;
        self.file.write_all(&mark)?;
        self.file.seek(SeekFrom::Current(-(mark.len() as i64)))?;
        Ok(())
    }
}
