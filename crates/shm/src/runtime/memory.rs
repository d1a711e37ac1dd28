//! The memory itself: created and sealed by the daemon, mapped by both.

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use quell_os::{MapAccess, SharedMap};
use rustix::fs::{MemfdFlags, SealFlags};

use super::{Header, KTHREADS_MAX, Kthread, kthread_offset, memory_bytes};

/// The name that `/proc/PID/maps` shows.
const NAME: &CStr = c"quell-runtime";

/// No one may change its length, nor these seals: reading it can be no SIGBUS.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// The memory that a runtime and the daemon share, mapped. Its length and how many kernel threads it is for are
/// this side's own; nothing in the memory itself can change them.
pub struct Memory {
    map: SharedMap,
    kthreads: u32,
}

/// Why a descriptor is not the memory of a runtime.
#[derive(Debug, thiserror::Error)]
pub enum MemoryError {
    /// The kernel refused.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Nobody seals a file like that; its length could change under the reader.
    #[error("it is not sealed against a change of its length")]
    Unsealed,
    /// Not as long as it has to be.
    #[error("it has {bytes} bytes; {kthreads} kernel threads take {expected}")]
    Length {
        /// Its length.
        bytes: u64,
        /// For how many it ought to be.
        kthreads: u32,
        /// The length that takes.
        expected: u64,
    },
    /// Something else, or another version.
    #[error("it does not begin as the memory of a runtime of layout version {}", super::VERSION)]
    Layout,
}

impl Memory {
    /// Creates the memory for so many kernel threads, at most [`KTHREADS_MAX`], and says which daemon shares it.
    /// The descriptor is for the runtime; the mapping stays without it.
    ///
    /// # Errors
    /// `InvalidInput` for no or too many kernel threads, else those of `memfd_create(2)` and `mmap(2)`.
    pub fn create(kthreads: u32, daemon: u64) -> io::Result<(Memory, OwnedFd)> {
        if !(1..=KTHREADS_MAX).contains(&kthreads) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let file = rustix::fs::memfd_create(NAME, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&file, memory_bytes(kthreads) as u64)?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        let memory = Memory::map(file.as_fd(), kthreads)?;
        memory.header().init(kthreads, daemon);
        Ok((memory, file))
    }

    /// Maps what a daemon passed on.
    ///
    /// # Errors
    /// [`MemoryError`].
    pub fn open(file: OwnedFd, kthreads: u32) -> Result<Memory, MemoryError> {
        let file = File::from(file);
        // What is no memfd has no seals.
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(|_| MemoryError::Unsealed)?;
        if !seals.contains(SealFlags::SHRINK) {
            return Err(MemoryError::Unsealed);
        }
        let (bytes, expected) = (file.metadata()?.len(), memory_bytes(kthreads) as u64);
        if bytes != expected || !(1..=KTHREADS_MAX).contains(&kthreads) {
            return Err(MemoryError::Length { bytes, kthreads, expected });
        }
        let memory = Memory::map(file.as_fd(), kthreads)?;
        match memory.header().kthreads() {
            Some(said) if said == kthreads => Ok(memory),
            _ => Err(MemoryError::Layout),
        }
    }

    fn map(file: BorrowedFd<'_>, kthreads: u32) -> io::Result<Memory> {
        // The daemon's scheduler thread takes no page fault later.
        let map = SharedMap::new(file, 0, memory_bytes(kthreads), MapAccess::Populated)?;
        Ok(Memory { map, kthreads })
    }

    /// The head.
    pub fn header(&self) -> &Header {
        // SAFETY: the mapping is page-aligned, holds a header, lives as long as `self`, and is reached through atomics
        // only, of which any bits are valid.
        unsafe { self.map.start().cast().as_ref() }
    }

    /// How many kernel threads it is for.
    pub fn kthreads(&self) -> u32 {
        self.kthreads
    }

    /// The lines of a kernel thread; `None` beyond the last.
    pub fn kthread(&self, at: u32) -> Option<&Kthread> {
        // SAFETY: within the mapping, aligned as `kthread_offset` is a multiple of its size; else as for `header`.
        (at < self.kthreads)
            .then(|| unsafe { self.map.start().add(kthread_offset(at)).cast::<Kthread>().as_ref() })
    }

    /// The lines of all kernel threads.
    pub fn iter(&self) -> impl Iterator<Item = &Kthread> {
        (0..self.kthreads).filter_map(|at| self.kthread(at))
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Memory").field("kthreads", &self.kthreads).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::runtime::KthreadState;
    use proptest::prelude::*;
    use quell_model::{CoreId, Nanos};
    use std::io::Write;

    #[test]
    fn both_sides_see_one_memory_that_nobody_can_cut_short() {
        let (ours, file) = Memory::create(3, 77).unwrap();
        assert!(rustix::fs::ftruncate(&file, 0).is_err());
        let theirs = Memory::open(file, 3).unwrap();
        assert_eq!((theirs.kthreads(), theirs.header().daemon()), (3, 77));
        let work = |memory: &Memory| memory.kthread(2).unwrap().work.read(Nanos(1_000));
        theirs.kthread(2).unwrap().work.begin(41);
        theirs.kthread(2).unwrap().work.set_ready(Some(Nanos(400)), 5);
        let seen = work(&ours);
        assert_eq!((seen.thread, seen.state), (41, KthreadState::Running));
        assert_eq!((seen.delay(), seen.queued), (Nanos(600), 5));
        let given = ours.kthread(2).unwrap().grant.give(CoreId(9));
        assert_eq!(theirs.kthread(2).unwrap().grant.valid(), Some((given, CoreId(9))));
        assert!(ours.kthread(3).is_none());
        assert_eq!(ours.iter().count(), 3);
    }

    #[test]
    fn what_is_not_such_a_memory_is_refused() {
        let of = |file: OwnedFd, kthreads| Memory::open(file, kthreads).unwrap_err().to_string();
        let plain = tempfile::tempfile().unwrap();
        assert!(of(plain.into(), 1).contains("not sealed"));
        let (_ours, file) = Memory::create(2, 1).unwrap();
        let again = file.try_clone().unwrap();
        assert!(of(file, 3).contains("bytes"));
        let mut raw = File::from(again.try_clone().unwrap());
        raw.write_all(&[0; 8]).unwrap();
        assert!(of(again, 2).contains("does not begin"));
        assert!(Memory::create(0, 1).is_err() && Memory::create(KTHREADS_MAX + 1, 1).is_err());
    }

    proptest! {
        #[test]
        fn garbage_reads_as_claims_that_are_bounded_by_the_time_of_reading(
            bytes in proptest::collection::vec(any::<u8>(), 512),
            now in any::<u64>(),
        ) {
            let (ours, file) = Memory::create(1, 1).unwrap();
            std::os::unix::fs::FileExt::write_all_at(&File::from(file), &bytes, 0).unwrap();
            prop_assert_eq!(ours.kthreads(), 1);
            let copy = ours.kthread(0).unwrap().work.read(Nanos(now));
            for age in [copy.ready_age, copy.timer_age, copy.io_age, copy.uthread_age] {
                prop_assert!(age.0 <= now);
            }
            prop_assert!(copy.request_start.is_none_or(|start| start.0 <= now));
            let _ = (copy.delay(), ours.header().kthreads(), ours.header().told.load_millicores());
            let _ = ours.kthread(0).unwrap().grant.valid();
        }
    }
}
