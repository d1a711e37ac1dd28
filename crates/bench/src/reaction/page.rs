//! A page of memory that the sleeper and the benchmark share.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};

use quell_load::now;
use quell_model::Nanos;
use quell_os::{MapAccess, SharedMap};
use rustix::thread::futex;

const BYTES: usize = 4_096;
/// A call with this number ends the sleeper.
const QUIT: u32 = u32::MAX;

/// The benchmark counts `called` up and wakes; the sleeper stamps, then sets `answered` to it.
#[repr(C)]
struct Words {
    called: AtomicU32,
    answered: AtomicU32,
    stamp: AtomicU64,
}

/// The mapped page. Whoever made its file keeps it at full length; both sides are this program.
pub struct Page(SharedMap);

impl Page {
    /// Makes the file, a page long, and maps it.
    ///
    /// # Errors
    /// When it cannot be made or mapped.
    pub fn create(path: &Path) -> io::Result<Page> {
        let file = File::options().read(true).write(true).create_new(true).open(path)?;
        file.set_len(BYTES as u64)?;
        Page::map(&file)
    }

    /// Maps the file that [`Page::create`] made.
    ///
    /// # Errors
    /// When it is not a page long or cannot be mapped.
    pub fn open(path: &Path) -> io::Result<Page> {
        let file = File::options().read(true).write(true).open(path)?;
        if file.metadata()?.len() != BYTES as u64 {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "not a page long"));
        }
        Page::map(&file)
    }

    fn map(file: &File) -> io::Result<Page> {
        SharedMap::new(file.as_fd(), 0, BYTES, MapAccess::ReadWrite).map(Page)
    }

    fn words(&self) -> &Words {
        // SAFETY: the mapping is a page long, aligned, zeroed at first, valid as atomics whatever it
        // holds, and lives as long as `self`.
        unsafe { self.0.start().cast().as_ref() }
    }

    /// Wakes the sleeper. Returns the call's number and the time just before.
    pub fn call(&self) -> (u32, Nanos) {
        let words = self.words();
        let number = words.called.load(Relaxed).wrapping_add(1) % QUIT;
        let at = now();
        // Release: the sleeper's Acquire load of the number sees all before it.
        words.called.store(number, Release);
        let _ = futex::wake(&words.called, futex::Flags::empty(), 1);
        (number, at)
    }

    /// When the sleeper ran, once it has answered this call.
    pub fn answer(&self, number: u32) -> Option<Nanos> {
        let words = self.words();
        // Acquire pairs with the Release of `answered` in `sleep`: the stamp was written before.
        (words.answered.load(Acquire) == number).then(|| Nanos(words.stamp.load(Relaxed)))
    }

    /// Ends the sleeper.
    pub fn quit(&self) {
        self.words().called.store(QUIT, Release);
        let _ = futex::wake(&self.words().called, futex::Flags::empty(), 1);
    }

    /// The sleeper's side: sleeps, stamps and answers until told to quit.
    pub fn sleep(&self) {
        let words = self.words();
        let mut seen = 0;
        loop {
            let called = words.called.load(Acquire);
            if called == seen {
                let _ = futex::wait(&words.called, futex::Flags::empty(), seen, None);
                continue;
            }
            let at = now();
            if called == QUIT {
                return;
            }
            seen = called;
            words.stamp.store(at.0, Relaxed);
            words.answered.store(called, Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleeper_answers_each_call_with_a_later_stamp() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("page");
        let page = Page::create(&path).unwrap();
        let other = Page::open(&path).unwrap();
        let sleeper = std::thread::spawn(move || other.sleep());
        for _ in 0..3 {
            let (number, at) = page.call();
            let stamp = loop {
                if let Some(stamp) = page.answer(number) {
                    break stamp;
                }
            };
            assert!(stamp >= at);
        }
        page.quit();
        sleeper.join().unwrap();
    }

    #[test]
    fn a_file_of_another_length_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("page");
        std::fs::write(&path, "short").unwrap();
        assert!(Page::open(&path).is_err());
    }
}
