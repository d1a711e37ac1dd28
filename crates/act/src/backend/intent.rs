//! What one thread lacks, in which order threads are served, and the same in words.

use std::fmt;
use std::path::PathBuf;

use quell_model::{Class, CoreSet, Rung, TaskId};

use super::ThreadSettings;
use super::record::Record;
use super::target::{Place, Want};
use crate::{Ladder, Policy, SchedAttr};
use quell_os::ThreadRef;

/// How a back end renders rungs and cores.
#[derive(Clone, Debug)]
pub(super) struct Style {
    /// Priorities of the rungs; `None` for a back end that elevates nobody.
    pub ladder: Option<Ladder>,
    /// Tasks with a cpuset of Quell's own are placed by it rather than thread by thread.
    pub places_by_group: bool,
    /// The rung of BE threads.
    pub be: Rung,
    /// That of background threads of LC tasks: the fair class, or one above BE where that is not.
    pub background: Rung,
}

impl Style {
    /// The setting of a rung for a thread.
    pub fn sched(&self, rung: Rung, original: &ThreadSettings) -> SchedAttr {
        match rung {
            Rung::Original => original.sched,
            // A thread that was real-time by itself would pass the event threads of its task.
            Rung::LcFair if original.sched.policy.is_realtime() => {
                SchedAttr { policy: Policy::Other, priority: 0, ..original.sched }
            }
            Rung::LcFair => original.sched,
            Rung::SchedIdle => SchedAttr { policy: Policy::Idle, priority: 0, ..original.sched },
            rung => {
                self.ladder.as_ref().and_then(|ladder| ladder.attr(rung)).unwrap_or(original.sched)
            }
        }
    }
}

/// When a change has its turn. Raise first, then lower: the thread that gets a core is on its rung
/// before the one that held it steps down, so that no third thread slips in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Turn {
    /// A higher rung, or more cores for an LC thread; highest rung first.
    Raise {
        /// Orders by descending rank of the new setting.
        below_top: u16,
    },
    /// A lower rung or fewer cores.
    Lower,
    /// More cores for a BE thread: nobody waits for that.
    Spread,
}

/// The difference between a thread and what the Plan wants of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lack {
    pub sched: Option<SchedAttr>,
    pub cores: Option<CoreSet>,
    pub place: Place,
    pub turn: Turn,
}

impl Lack {
    /// Compares a thread with what is wanted. `may_elevate` is false while the host refuses the task
    /// real-time priority; `by_group` where a cpuset places the whole task; `switched` for a lane.
    pub fn of(
        record: &Record,
        original: &ThreadSettings,
        want: &Want,
        style: &Style,
        may_elevate: bool,
        by_group: bool,
        switched: bool,
    ) -> Lack {
        let want = &want.of_thread(record.lc, record.role, record.relief, style);
        // The operator names a lane's members one by one: they go to its core, whatever their own affinity is.
        let reach = if switched { original.cores.union(&want.usable) } else { original.cores };
        let place = super::target::place(want, &reach).kept_to(record.pin, &reach);
        let present = record.present_sched(original);
        let mut wanted = style.sched(place.rung, original);
        if wanted.policy.is_realtime() && !may_elevate {
            wanted = if present.policy.is_realtime() { present } else { original.sched };
        }
        let elevates = wanted.policy.is_realtime() && !present.policy.is_realtime();
        debug_assert!(may_elevate || !elevates, "{wanted} for a task that the host refuses it");
        debug_assert!(place.cores.is_subset(&reach), "beyond the thread's own affinity");
        let keeps = record.keeps_sched || switched;
        let sched = (!keeps && !present.same_effect(&wanted)).then_some(wanted);
        let here = record.present_cores(original);
        let cores =
            (!record.keeps_cores && !by_group && here != place.cores).then_some(place.cores);

        let rises = sched.is_some_and(|new| rank(&new) > rank(&present));
        let spreads = cores.is_some_and(|new| !new.is_subset(&here));
        let turn = if rises || (spreads && want.class == Class::LatencyCritical) {
            Turn::Raise { below_top: u16::MAX - rank(&wanted) }
        } else if spreads && sched.is_none() {
            Turn::Spread
        } else {
            Turn::Lower
        };
        Lack { sched, cores, place, turn }
    }

    /// Nothing is lacking.
    pub fn is_nothing(&self) -> bool {
        self.sched.is_none() && self.cores.is_none()
    }
}

/// Orders settings by who preempts whom; among fair threads roughly, by nice value.
pub(super) fn rank(attr: &SchedAttr) -> u16 {
    match attr.policy {
        Policy::Fifo | Policy::Rr => 100 + u16::from(attr.priority),
        Policy::Idle => 0,
        _ => (40 - i16::from(attr.nice)).clamp(1, 99) as u16,
    }
}

/// One change that a back end intends, for a dry run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Intended {
    /// Whose.
    pub task: TaskId,
    /// The operator's name for the task.
    pub name: String,
    /// What.
    pub change: Change,
}

/// What is to change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::large_enum_variant, reason = "made for people to read, not kept")]
pub enum Change {
    /// A thread's policy and priority.
    Sched {
        /// Which thread.
        thread: ThreadRef,
        /// As it is.
        from: SchedAttr,
        /// As it shall be.
        to: SchedAttr,
    },
    /// A thread's affinity.
    Cores {
        /// Which thread.
        thread: ThreadRef,
        /// As it is.
        from: CoreSet,
        /// As it shall be.
        to: CoreSet,
    },
    /// A file of a cgroup of Quell's own.
    Group {
        /// The file.
        file: PathBuf,
        /// What it shall hold.
        to: String,
    },
    /// The whole task is frozen, as no core is left for it.
    Freeze {
        /// The cgroup.
        group: PathBuf,
    },
    /// The whole task is thawed.
    Thaw {
        /// The cgroup.
        group: PathBuf,
    },
}

impl fmt::Display for Intended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.name.escape_debug())?;
        match &self.change {
            Change::Sched { thread, from, to } => {
                write!(f, "thread {} from {from} to {to}", thread.tid)
            }
            Change::Cores { thread, from, to } => {
                write!(f, "thread {} from cores {from} to cores {to}", thread.tid)
            }
            Change::Group { file, to } => write!(f, "{to} to {}", file.display()),
            Change::Freeze { group } => {
                write!(f, "freeze {}, as no core is left for it", group.display())
            }
            Change::Thaw { group } => write!(f, "thaw {}", group.display()),
        }
    }
}
