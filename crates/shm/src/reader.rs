//! The reader: the daemon's side. The file is the application's, which may do anything to it at any time.

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

use crate::layout::{Header, Hint, LINE_BYTES, Line, Malformed, SlotCopy, page_bytes};

/// Why a page cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum HintsError {
    /// The file, or reading it.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// A directory, a pipe, a device.
    #[error("it is not a regular file")]
    Kind,
    /// Somebody else's.
    #[error("it belongs to user {0}, not to root or the user of the task's processes")]
    Owner(u32),
    /// No page of hints.
    #[error("{0}")]
    Malformed(#[from] Malformed),
}

/// Which file a path names: a service that starts anew may have made another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    device: u64,
    inode: u64,
}

impl Identity {
    /// The file at this path, if there is one.
    pub fn of(path: &Path) -> Option<Identity> {
        std::fs::symlink_metadata(path).ok().as_ref().map(Identity::from)
    }
}

impl From<&Metadata> for Identity {
    fn from(found: &Metadata) -> Identity {
        Identity { device: found.dev(), inode: found.ino() }
    }
}

/// An application's page, for reading.
#[derive(Debug)]
pub struct Reader {
    file: File,
    identity: Identity,
    header: Header,
    /// As last copied: header and slots.
    copy: Vec<Line>,
    /// Lines of `copy` that the last read filled.
    filled: usize,
}

impl Reader {
    /// Opens the page at `path`, if it belongs to root or to one of `users`. A symbolic link is not followed,
    /// and nothing but a regular file is read.
    ///
    /// # Errors
    /// Says what is wrong with the file.
    pub fn open(path: &Path, users: &[u32]) -> Result<Reader, HintsError> {
        // Without NONBLOCK the open of a pipe would wait for its other end.
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
        let file = OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(path)?;
        let found = file.metadata()?;
        if !found.is_file() {
            return Err(HintsError::Kind);
        }
        if found.uid() != 0 && !users.contains(&found.uid()) {
            return Err(HintsError::Owner(found.uid()));
        }
        let mut line: Line = [0; LINE_BYTES];
        fill(&file, &mut line, 0)?;
        let header = Header::read(&line)?;
        if found.len() < page_bytes(header.slots) as u64 {
            return Err(Malformed::Short.into());
        }
        let copy = vec![[0; LINE_BYTES]; header.slots as usize + 1];
        Ok(Reader { file, identity: Identity::from(&found), header, copy, filled: 0 })
    }

    /// Which file it reads.
    pub fn identity(&self) -> Identity {
        self.identity
    }

    /// Slots of the page.
    pub fn slots(&self) -> u32 {
        self.header.slots
    }

    /// Copies the slots that were ever in use. One system call, or two when their number grew; no allocation.
    ///
    /// # Errors
    /// When the file was cut short or is no longer the page that was opened.
    pub fn read(&mut self) -> Result<(), HintsError> {
        self.filled = 0;
        let lines = self.header.used as usize + 1;
        fill(&self.file, self.copy[..lines].as_flattened_mut(), 0)?;
        let header = Header::read(&self.copy[0])?;
        if header.slots != self.header.slots {
            return Err(Malformed::Size.into());
        }
        let grown = header.used as usize + 1;
        if grown > lines {
            let from = (lines * LINE_BYTES) as u64;
            fill(&self.file, self.copy[lines..grown].as_flattened_mut(), from)?;
        }
        // It never shrinks for a page that keeps to the layout.
        self.header.used = self.header.used.max(header.used);
        self.filled = lines.max(grown);
        Ok(())
    }

    /// The slots as of the last read, by their number; none if that failed.
    pub fn copied(&self) -> impl Iterator<Item = (usize, SlotCopy)> {
        let slots = self.copy.get(1..self.filled).unwrap_or_default();
        slots.iter().map(SlotCopy::read).enumerate()
    }

    /// The hints as of the last read.
    pub fn hints(&self) -> impl Iterator<Item = Hint> {
        self.copied().filter_map(|(_, slot)| match slot {
            SlotCopy::Of(hint) => Some(hint),
            SlotCopy::Free | SlotCopy::Unsettled => None,
        })
    }
}

/// Reads exactly these bytes; a file that ends before them was cut short.
fn fill(file: &File, bytes: &mut [u8], from: u64) -> Result<(), HintsError> {
    file.read_exact_at(bytes, from).map_err(|err| match err.kind() {
        io::ErrorKind::UnexpectedEof => Malformed::Short.into(),
        _ => err.into(),
    })
}
