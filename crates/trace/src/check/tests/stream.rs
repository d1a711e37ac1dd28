//! Streams of events, made by hand.

use std::collections::BTreeMap;
use std::sync::Arc;

use quell_model::{
    Activity, CoreId, CoreSet, CoreState, Event, Keyframe, Left, Meta, MoveCause, Nanos, Rank,
    Runner, Source, ThreadName, ThreadState, Topology, What,
};

use super::super::*;

/// The idle thread.
pub(super) fn nobody() -> Runner {
    runner(0, "swapper", Rank::NOBODY)
}

pub(super) fn ms(ms: u64) -> Nanos {
    Nanos::from_millis(ms)
}

pub(super) fn on(core: u16) -> CoreId {
    CoreId(core)
}

pub(super) fn runner(thread: i32, name: &str, rank: Rank) -> Runner {
    Runner { thread, process: thread, rank, name: ThreadName::new(name.as_bytes()) }
}

pub(super) fn fair(thread: i32, name: &str) -> Runner {
    runner(thread, name, Rank::FAIR)
}

pub(super) fn cores(list: &str) -> CoreSet {
    list.parse().unwrap()
}

/// A stream under construction, and the host that its keyframes show.
#[derive(Clone)]
pub(super) struct Stream {
    topology: Topology,
    pub(super) kernel: &'static str,
    pub(super) source: Source,
    pub(super) events: Vec<Event>,
    pub(super) now: Nanos,
    sequence: BTreeMap<u16, u64>,
    pub(super) shown: Keyframe,
}

impl Stream {
    /// A host of this many idle cores in one domain.
    pub(super) fn of(cores: u16) -> Stream {
        Stream::on(Topology::regular(1, cores, 1).unwrap())
    }

    pub(super) fn on(topology: Topology) -> Stream {
        let domain = topology.all();
        let idle = |core: CoreId| CoreState {
            core,
            running: 0,
            queued: 0,
            runnable: 0,
            weight: 0,
            average: 0,
            wake_pending: false,
            domain,
        };
        let cores = topology.cores().iter().map(|core| idle(core.id)).collect();
        Stream {
            topology,
            kernel: "6.18.0",
            source: Source::Recorder,
            events: Vec::new(),
            now: ms(1_000),
            sequence: BTreeMap::new(),
            shown: Keyframe { cores, threads: Vec::new() },
        }
    }

    /// Shows a thread in the keyframes from here on.
    pub(super) fn show(
        &mut self,
        thread: Runner,
        core: u16,
        state: Activity,
        allowed: &str,
    ) -> &mut ThreadState {
        let at = &mut self.shown.cores[usize::from(core)];
        match state {
            Activity::Running => (at.running, at.runnable) = (thread.thread, at.runnable + 1),
            Activity::Waiting => at.runnable += 1,
            _ => {}
        }
        at.queued += 1;
        let allowed = cores(allowed);
        let state = ThreadState { thread, core: on(core), state, allowed, bound: false };
        self.shown.threads.push(state);
        self.shown.threads.last_mut().unwrap()
    }

    /// Thread 11 runs on a core, thread 12 waits there; a keyframe shows it.
    pub(super) fn hog_and_waiter(&mut self, core: u16, allowed: &str) {
        self.show(fair(11, "hog"), core, Activity::Running, allowed);
        self.show(fair(12, "waiter"), core, Activity::Waiting, allowed);
        self.keyframe();
    }

    pub(super) fn push(&mut self, core: u16, what: What) -> &mut Stream {
        let next = self.sequence.entry(core).or_default();
        self.events.push(Event { at: self.now, core: on(core), sequence: *next, what });
        *next += 1;
        self
    }

    pub(super) fn skip(&mut self, core: u16, count: u64) {
        *self.sequence.entry(core).or_default() += count;
    }

    pub(super) fn after(&mut self, time: u64) -> &mut Stream {
        self.now += ms(time);
        self
    }

    /// Lets time pass, with some events that change nothing.
    pub(super) fn idle(&mut self, time: u64) {
        for _ in 0..time {
            self.after(1).push(0, What::Fork { parent: 1, child: fair(99, "child") });
        }
    }

    pub(super) fn look(&self) -> Arc<Keyframe> {
        Arc::new(self.shown.clone())
    }

    pub(super) fn keyframe(&mut self) -> &mut Stream {
        self.push(0, What::Keyframe(self.look()))
    }

    pub(super) fn switch(&mut self, core: u16, next: Runner, left: i32, how: Left) -> &mut Stream {
        self.push(core, What::Switch { next, left, how, stolen: Nanos::ZERO })
    }

    pub(super) fn waking(&mut self, thread: i32, target: u16) -> &mut Stream {
        let thread = fair(thread, "waiter");
        self.push(target, What::Waking { thread, by: 0, target: on(target) })
    }

    pub(super) fn woken(&mut self, thread: i32, core: u16) -> &mut Stream {
        let thread = fair(thread, "waiter");
        self.push(core, What::Woken { thread, on: on(core), is_new: false })
    }

    pub(super) fn migrate(
        &mut self,
        thread: i32,
        from: u16,
        to: u16,
        cause: MoveCause,
    ) -> &mut Stream {
        self.push(to, What::Migrate { thread, from: on(from), to: on(to), cause })
    }

    pub(super) fn allowed(&mut self, thread: i32, list: &str) -> &mut Stream {
        self.push(0, What::Allowed { thread, cores: cores(list).into() })
    }

    pub(super) fn queue(&mut self, core: u16, queued: u32, runnable: u32) -> &mut Stream {
        self.push(core, What::Queue { of: on(core), queued, runnable })
    }

    pub(super) fn exit(&mut self, thread: i32) -> &mut Stream {
        self.push(0, What::Exit { thread })
    }

    pub(super) fn lost(&mut self, core: u16, count: u64) -> &mut Stream {
        self.push(core, What::Lost { count })
    }

    pub(super) fn meta(&self) -> Meta {
        Meta {
            source: self.source,
            topology: self.topology.clone(),
            kernel: self.kernel.to_owned(),
            host: "test".to_owned(),
            hooks: Vec::new(),
            absent: Vec::new(),
            wall_offset_ns: 0,
        }
    }

    pub(super) fn check(&self) -> Report {
        self.check_with(Options::default())
    }

    pub(super) fn check_with(&self, options: Options) -> Report {
        self.check_managed(options, Managed::default())
    }

    pub(super) fn check_managed(&self, options: Options, managed: Managed) -> Report {
        let mut checker = Checker::new(&self.meta(), options);
        checker.set_managed(managed);
        self.events.iter().for_each(|event| checker.event(event));
        checker.finish(self.now)
    }
}
