//! The host state against hand-made events, a slow reference, a toy scheduler and brute force.

mod consumers;
mod matching;
mod properties;
mod reference;
mod toy;
mod units;
mod wasted;

use std::path::Path;
use std::sync::Arc;

use quell_model::{
    Activity, CoreId, CoreSet, CoreState, Event, Keyframe, Left, Meta, MoveCause, Nanos, Rank,
    Runner, Source, ThreadName, ThreadState as Entry, Topology, What,
};

use super::*;

// Streams for the tests of the readers of the state.
pub(crate) use properties::streams;
pub(crate) use toy::{Damage, record};

pub(crate) fn meta(source: Source, cores: u16) -> Meta {
    Meta {
        source,
        topology: Topology::regular(1, cores, 1).unwrap(),
        kernel: "6.12".to_owned(),
        host: "test".to_owned(),
        hooks: Vec::new(),
        absent: Vec::new(),
        wall_offset_ns: 0,
    }
}

pub(super) fn runner(tid: i32, prio: Rank) -> Runner {
    let name = match tid {
        0 => ThreadName::default(),
        _ => ThreadName::new(format!("t{tid}").as_bytes()),
    };
    Runner { thread: tid, process: tid, rank: if tid == 0 { Rank::NOBODY } else { prio }, name }
}

pub(super) fn fair(tid: i32) -> Runner {
    runner(tid, Rank::FAIR)
}

pub(super) fn cores(list: &str) -> CoreSet {
    list.parse().unwrap()
}

pub(super) fn switch(next: i32, left: i32, how: Left) -> What {
    What::Switch { next: fair(next), left, how, stolen: Nanos::ZERO }
}

pub(super) fn waking(tid: i32, target: u16) -> What {
    What::Waking { thread: fair(tid), by: 0, target: CoreId(target) }
}

pub(super) fn woken(tid: i32, on: u16) -> What {
    What::Woken { thread: fair(tid), on: CoreId(on), is_new: false }
}

pub(super) fn woken_new(tid: i32, on: u16) -> What {
    What::Woken { thread: fair(tid), on: CoreId(on), is_new: true }
}

pub(super) fn migrate(tid: i32, from: u16, to: u16) -> What {
    let (from, to) = (CoreId(from), CoreId(to));
    What::Migrate { thread: tid, from, to, cause: MoveCause::Periodic }
}

pub(super) fn queue(of: u16, runnable: u32) -> What {
    What::Queue { of: CoreId(of), queued: runnable, runnable }
}

pub(super) fn allowed(tid: i32, list: &str) -> What {
    What::Allowed { thread: tid, cores: cores(list).into() }
}

pub(super) fn entry(tid: i32, core: u16, state: Activity, allowed: &str) -> Entry {
    entry_of(fair(tid), core, state, cores(allowed))
}

pub(super) fn entry_of(thread: Runner, core: u16, state: Activity, allowed: CoreSet) -> Entry {
    Entry { thread, core: CoreId(core), state, allowed, bound: false }
}

/// A keyframe of so many cores, whose counts agree with its threads.
pub(super) fn keyframe(cores: u16, threads: Vec<Entry>) -> What {
    let core = |core| {
        let here = |state: Activity| {
            threads.iter().filter(move |one| one.core == CoreId(core) && one.state == state)
        };
        let running = here(Activity::Running).next();
        let runnable = here(Activity::Running).count() + here(Activity::Waiting).count();
        CoreState {
            core: CoreId(core),
            running: running.map_or(0, |one| one.thread.thread),
            queued: runnable as u32,
            runnable: runnable as u32,
            weight: 0,
            average: 0,
            wake_pending: false,
            domain: (0..cores).map(CoreId).collect(),
        }
    };
    What::Keyframe(Arc::new(Keyframe { cores: (0..cores).map(core).collect(), threads }))
}

/// Each recording of `tests/recordings`, with its name.
pub(super) fn recordings_of_tests() -> impl Iterator<Item = (String, Meta, Vec<Event>)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/recordings");
    let files = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    files.filter(|path| path.extension().is_some_and(|end| end == "gz")).map(|path| {
        let file = flate2::read::GzDecoder::new(std::fs::File::open(&path).unwrap());
        let input = std::io::BufReader::new(file);
        let source = crate::open(input, crate::import::Options::default()).unwrap();
        let meta = source.meta().clone();
        (path.display().to_string(), meta, source.map(Result::unwrap).collect())
    })
}

/// Takes events of a host as a recorder numbers them, and validates the state after each.
pub(super) struct Feed {
    pub host: HostState,
    pub wasted: WastedTime,
    sequence: Vec<u64>,
}

impl Feed {
    pub fn of(source: Source, cores: u16) -> Feed {
        let host = HostState::new(&meta(source, cores));
        Feed { host, wasted: WastedTime::default(), sequence: vec![0; usize::from(cores)] }
    }

    pub fn recorder(cores: u16) -> Feed {
        Feed::of(Source::Recorder, cores)
    }

    pub fn push_with<V: HostVisitor>(
        &mut self,
        at: u64,
        core: u16,
        what: What,
        visitor: &mut V,
    ) -> &mut Feed {
        let next = &mut self.sequence[usize::from(core)];
        let event = Event { at: Nanos(at), core: CoreId(core), sequence: *next, what };
        *next += 1;
        self.wasted.advance(&self.host, event.at);
        self.host.push(&event, visitor);
        self.host.validate().unwrap();
        self
    }

    pub fn push(&mut self, at: u64, core: u16, what: What) -> &mut Feed {
        self.push_with(at, core, what, &mut ())
    }

    /// Skips numbers of a core.
    pub fn skip(&mut self, core: u16, count: u64) -> &mut Feed {
        self.sequence[usize::from(core)] += count;
        self
    }

    pub fn until(&mut self, at: u64) -> &mut Feed {
        self.wasted.advance(&self.host, Nanos(at));
        self
    }

    pub fn state(&self, tid: i32) -> Option<(ThreadState, usize)> {
        self.host.thread_by_tid(tid).map(|thread| (thread.state, thread.core))
    }

    /// The tid that each core runs; `None` where it is not known.
    pub fn running(&self) -> Vec<Option<i32>> {
        let tid = |core| match self.host.occupant(core) {
            Occupant::Unknown => None,
            Occupant::Idle => Some(0),
            Occupant::Thread(thread) => Some(thread.tid()),
        };
        (0..self.sequence.len()).map(tid).collect()
    }
}
