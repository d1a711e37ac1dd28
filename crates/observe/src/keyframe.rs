//! Who runs and who waits on this host, and where: the state in which a stream of events begins.
//!
//! `bpf/keyframe.bpf.c` walks all threads when it is asked; nothing runs in between. Most threads sleep and
//! cost the walk some 430 ns each (`quell bench check` measures it).

use std::ffi::OsStr;
use std::io::Read as _;

use libbpf_rs::{Iter, Link, Object};
use quell_model::{
    Activity, CoreId, CoreSet, CoreState, Keyframe, Nanos, Runner, ThreadName, ThreadState,
};

use super::bpf::object::{self, refused};
use super::layout::{Field as _, MASK_WORDS, bpf_record, cores};
use super::recorder::rank;
use super::{ObserveError, topology};
use quell_os::clock;

static CODE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/keyframe.bpf.o"));
const SOURCE: &str = "bpf/keyframe.bpf.c";

bpf_record! {
    /// `struct keyframe_core`.
    "keyframe_core" struct CoreRecord {
        kind: u16,
        core: u16,
        running: i32,
        queued: u32,
        runnable: u32,
        weight: u64,
        average: u64,
        online: u32,
        wake_pending: u32,
    }
}

bpf_record! {
    /// `struct keyframe_thread`.
    "keyframe_thread" struct ThreadRecord {
        kind: u16,
        core: u16,
        thread: i32,
        process: i32,
        priority: u16,
        policy: u16,
        activity: u16,
        bound: u16,
        reserved: u32,
        comm: [u8; 16],
    }
}

#[cfg(test)]
pub(crate) fn layouts() -> Vec<crate::layout::Layout> {
    vec![CoreRecord::LAYOUT, ThreadRecord::LAYOUT]
}

/// Both records have one size; a mask follows.
const HEAD_BYTES: usize = size_of::<CoreRecord>();
const _: () = assert!(HEAD_BYTES == size_of::<ThreadRecord>());

/// Reads [`Keyframe`]s of this host.
pub struct KeyframeReader {
    awake: Link,
    all: Link,
    buffer: Vec<u8>,
    mask_words: usize,
    _object: Object,
}

impl KeyframeReader {
    /// Loads the BPF programs and tries them.
    ///
    /// # Errors
    /// When the kernel refuses, or was built without CONFIG_FAIR_GROUP_SCHED (no distribution's is).
    pub fn open() -> Result<KeyframeReader, ObserveError> {
        let possible = topology::possible()?.iter().last().map_or(1, |core| core.index() + 1);
        let mask_words = possible.div_ceil(64).min(MASK_WORDS);
        let mut open = object::open("keyframe", CODE)?;
        object::size(&mut open, "told", possible)?;
        object::constants(&mut open, "rodata", &(mask_words as u32).to_ne_bytes())?;
        let object = open.load().map_err(|error| refused("loading the BPF programs", &error))?;
        let (awake, all) = (attach(&object, "awake")?, attach(&object, "all")?);
        let mut reader =
            KeyframeReader { awake, all, buffer: Vec::new(), mask_words, _object: object };
        if reader.read()?.1.cores.is_empty() {
            let what = "the kernel shows no run queue; it needs CONFIG_FAIR_GROUP_SCHED";
            return Err(object::broken(SOURCE, what.to_owned()));
        }
        Ok(reader)
    }

    /// The cores, and the threads that do not sleep.
    ///
    /// The time is that before the walk: events after it, applied in their order, correct what changed while
    /// the walk went on.
    ///
    /// # Errors
    /// When the kernel cannot walk its threads.
    pub fn read(&mut self) -> Result<(Nanos, Keyframe), ObserveError> {
        walk(&self.awake, &mut self.buffer, self.mask_words)
    }

    /// As [`KeyframeReader::read`], with the threads that sleep.
    ///
    /// # Errors
    /// As [`KeyframeReader::read`].
    pub fn read_all(&mut self) -> Result<(Nanos, Keyframe), ObserveError> {
        walk(&self.all, &mut self.buffer, self.mask_words)
    }
}

fn attach(object: &Object, name: &str) -> Result<Link, ObserveError> {
    let program = object.progs_mut().find(|program| program.name() == OsStr::new(name));
    let program = program.ok_or_else(|| object::broken(SOURCE, format!("no program `{name}`")))?;
    program.attach().map_err(|error| refused("attaching to iter/task", &error))
}

fn walk(
    link: &Link,
    buffer: &mut Vec<u8>,
    mask_words: usize,
) -> Result<(Nanos, Keyframe), ObserveError> {
    let what = "walking the threads of the host";
    let at = clock::now();
    buffer.clear();
    let mut iterator = Iter::new(link).map_err(|error| refused(what, &error))?;
    iterator
        .read_to_end(buffer)
        .map_err(|source| ObserveError::Kernel { what: what.to_owned(), source })?;
    Ok((at, parse(buffer, mask_words)))
}

fn parse(bytes: &[u8], mask_words: usize) -> Keyframe {
    let mut keyframe = Keyframe::default();
    for record in bytes.chunks_exact(HEAD_BYTES + 8 * mask_words) {
        let (head, mask) = record.split_at(HEAD_BYTES);
        match u16::from_bytes(head) {
            1 => keyframe.cores.extend(CoreRecord::parse(head).and_then(|it| core(&it, mask))),
            2 => {
                keyframe.threads.extend(ThreadRecord::parse(head).and_then(|it| thread(&it, mask)))
            }
            _ => {}
        }
    }
    keyframe.cores.sort_unstable_by_key(|core| core.core);
    keyframe
}

/// The core of a record; `None` if it is offline.
fn core(record: &CoreRecord, mask: &[u8]) -> Option<CoreState> {
    let id = CoreId(record.core);
    let domain = cores(mask);
    (record.online != 0).then(|| CoreState {
        core: id,
        running: record.running,
        queued: record.queued,
        runnable: record.runnable,
        weight: record.weight,
        average: record.average,
        wake_pending: record.wake_pending != 0,
        domain: if domain.is_empty() { CoreSet::of(id) } else { domain },
    })
}

/// The thread of a record.
fn thread(record: &ThreadRecord, mask: &[u8]) -> Option<ThreadState> {
    let state = match record.activity {
        1 => Activity::Running,
        2 => Activity::Waiting,
        3 => Activity::Throttled,
        4 => Activity::Delayed,
        5 => Activity::Moving,
        6 => Activity::Sleeping,
        _ => return None,
    };
    Some(ThreadState {
        thread: Runner {
            thread: record.thread,
            process: record.process,
            rank: rank(record.thread, record.priority, record.policy),
            name: ThreadName::new(&record.comm),
        },
        core: CoreId(record.core),
        state,
        allowed: cores(mask),
        bound: record.bound != 0,
    })
}

#[cfg(test)]
mod tests;
