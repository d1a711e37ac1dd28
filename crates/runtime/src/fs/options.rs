//! How a file is opened.

use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::File;
use crate::io::offload;

/// How a file is opened. As [`std::fs::OpenOptions`].
#[derive(Clone, Debug)]
pub struct OpenOptions {
    options: std::fs::OpenOptions,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// Nothing is allowed yet.
    pub fn new() -> OpenOptions {
        OpenOptions { options: std::fs::OpenOptions::new() }
    }

    /// The file may be read.
    pub fn read(&mut self, read: bool) -> &mut OpenOptions {
        self.options.read(read);
        self
    }

    /// The file may be written.
    pub fn write(&mut self, write: bool) -> &mut OpenOptions {
        self.options.write(write);
        self
    }

    /// Each write goes to the end.
    pub fn append(&mut self, append: bool) -> &mut OpenOptions {
        self.options.append(append);
        self
    }

    /// The file is emptied.
    pub fn truncate(&mut self, truncate: bool) -> &mut OpenOptions {
        self.options.truncate(truncate);
        self
    }

    /// The file is made if there is none.
    pub fn create(&mut self, create: bool) -> &mut OpenOptions {
        self.options.create(create);
        self
    }

    /// The file is made; it is an error if there is one.
    pub fn create_new(&mut self, create_new: bool) -> &mut OpenOptions {
        self.options.create_new(create_new);
        self
    }

    /// The mode of a file that is made.
    pub fn mode(&mut self, mode: u32) -> &mut OpenOptions {
        self.options.mode(mode);
        self
    }

    /// Flags of `open(2)` beside those above.
    pub fn custom_flags(&mut self, flags: i32) -> &mut OpenOptions {
        self.options.custom_flags(flags);
        self
    }

    /// Opens the file, on a helper thread: a path may lead anywhere.
    ///
    /// # Errors
    /// Those of [`std::fs::OpenOptions::open`].
    pub fn open(&self, path: impl AsRef<Path>) -> io::Result<File> {
        let path = path.as_ref();
        offload(|| self.options.open(path)).map(File::from)
    }
}
