//! The elevation back end: real-time rungs and affinities (APSys'24, "priority elevation trick").
//!
//! LC threads stay on their rung even while asleep, BE beneath them: the kernel preempts BE the moment
//! an LC thread wakes and runs BE the moment it blocks, without the scheduler having a part in it. What
//! a Plan changes is who may use which core, and what happens to tasks for which none is left.

use quell_model::{BeRung, CoreSet, HostCaps, Nanos, Plan, Rung, TaskId};

use super::engine::Engine;
use super::intent::Style;
use super::{
    ApplyReport, BackEnd, CoreOutcome, Host, Intended, Notice, Pin, TaskInfo, TaskStatus, freezer,
};
use crate::{Ladder, RestoreReport};
use quell_observe::ThreadView;
use quell_os::ThreadRef;

/// Real-time rungs and affinities.
#[derive(Debug)]
pub struct Elevation {
    engine: Engine,
    per_thread_state: bool,
    freezes: bool,
}

/// What an [`Elevation`] has to be told of its host.
#[derive(Clone, Copy, Debug)]
pub struct ElevationHost {
    /// Whether the observer sees single threads as they change.
    pub per_thread_state: bool,
    /// Whether there is a freezer ([`super::Layout`] finds out).
    pub freezes: bool,
}

impl Elevation {
    /// A back end on this ladder.
    pub fn new(ladder: Ladder, be: BeRung, host: ElevationHost) -> Elevation {
        let style = Style {
            ladder: Some(ladder),
            places_by_group: false,
            be: be.rung(),
            background: Rung::LcFair,
        };
        Elevation {
            engine: Engine::new(style, be),
            per_thread_state: host.per_thread_state,
            freezes: host.freezes,
        }
    }
}

impl BackEnd for Elevation {
    fn caps(&self) -> HostCaps {
        HostCaps {
            shares_cores: true,
            idles_cores: true,
            places_threads: true,
            freezes_tasks: self.freezes,
            per_thread_state: self.per_thread_state,
            bursts: self.per_thread_state,
            yields_requests: true,
            // A remote priority change takes effect in about 5 us, an affinity change in 10.
            actuation_delay: Nanos::from_micros(10),
            ..HostCaps::default()
        }
    }

    fn admit(&mut self, info: TaskInfo) {
        self.engine.admit(info);
    }

    fn forked(
        &mut self,
        parent: &ThreadRef,
        child: &ThreadRef,
        watched: bool,
        host: &mut dyn Host,
    ) {
        self.engine.forked(parent, child, watched, host);
    }

    fn pin(&mut self, thread: &ThreadRef, pin: Option<Pin>) -> bool {
        self.engine.records.pin(thread, pin)
    }

    fn place_helpers(&mut self, task: TaskId, cores: CoreSet) {
        self.engine.place_helpers(task, cores);
    }

    fn elevate_background(&mut self, on: bool) {
        self.engine.elevate_background(on);
    }

    fn apply(&mut self, plan: &Plan, threads: &[ThreadView], host: &mut dyn Host) -> ApplyReport {
        let mut report = ApplyReport::default();
        self.engine.take_in(plan);
        self.engine.serve_threads(threads, host, &mut report);
        freezer::serve(&mut self.engine, host, &mut report);
        self.engine.take_turns(plan, threads, host, &mut report);
        self.engine.conclude(plan, threads, host, &mut report);
        report
    }

    fn outcomes(&self) -> &[CoreOutcome] {
        self.engine.outcomes()
    }

    fn status(&self, task: TaskId) -> Option<&TaskStatus> {
        self.engine.task(task).map(|state| &state.status)
    }

    fn drain_notices(&mut self, sink: &mut dyn FnMut(Notice)) {
        self.engine.drain_notices(sink);
    }

    fn preview(&self, plan: &Plan, threads: &[ThreadView], host: &mut dyn Host) -> Vec<Intended> {
        self.engine.preview(plan, threads, host)
    }

    fn release(&mut self, task: TaskId, host: &mut dyn Host) -> RestoreReport {
        self.engine.release(task, host)
    }
}
