//! The one event model: what a scheduler did, as a recorder on a host, a simulator or an imported file tells it.
//!
//! A stream of [`Event`]s opens with a [`Meta`] and a [`Keyframe`], which is repeated each second, so that a
//! reader can start anywhere. Events of one core are numbered; what was lost is an event too, and nobody may
//! conclude anything across it.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{
    Class, CoreId, CoreMode, CoreSet, DomainTrees, Left, Nanos, Pass, Reason, Runner, TaskId,
    TaskReason, Topology,
};

/// Something that happened.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// When, on CLOCK_MONOTONIC (in a simulation: since its start).
    pub at: Nanos,
    /// The core whose sequence it belongs to: where it was recorded.
    pub core: CoreId,
    /// Its place among the events of that core, from 0; a gap is a loss.
    pub sequence: u64,
    /// What.
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// The core went from one thread to another.
    Switch {
        /// Who got it; thread 0 is the idle thread.
        next: Runner,
        /// Who had it.
        left: i32,
        /// How that one left.
        how: Left,
        /// Time that the hypervisor took from the core since its last switch.
        stolen: Nanos,
    },
    /// Somebody wakes a thread: its waiting starts here.
    Waking {
        /// Who is woken.
        thread: Runner,
        /// Who wakes it; 0 from an interrupt over the idle thread.
        by: i32,
        /// Where it is to run.
        target: CoreId,
    },
    /// A thread was put into a run queue.
    Woken {
        /// Who.
        thread: Runner,
        /// Whose queue.
        on: CoreId,
        /// Whether it is the first time, after its birth.
        is_new: bool,
    },
    /// A thread moved from one core's queue to another's.
    Migrate {
        /// Who.
        thread: i32,
        /// From where.
        from: CoreId,
        /// To where.
        to: CoreId,
        /// Who moved it, as the stack says.
        cause: MoveCause,
    },
    /// A thread was born.
    Fork {
        /// Whose child.
        parent: i32,
        /// Who.
        child: Runner,
    },
    /// A thread became another program: its name is new, and its process' other threads are gone.
    Exec {
        /// Who, with the new name.
        thread: Runner,
    },
    /// A thread ended.
    Exit {
        /// Who.
        thread: i32,
    },
    /// The cores that a thread may use, told when it is first seen and whenever they changed.
    Allowed {
        /// Who.
        thread: i32,
        /// Where it may run.
        cores: Box<CoreSet>,
    },
    /// What Quell's plan lets the threads of a process use from here on, so that the plan is judged and not its means.
    Planned(Arc<Planned>),
    /// The size of a run queue changed.
    Queue {
        /// Whose.
        of: CoreId,
        /// Threads in it, as the kernel counts (`rq->nr_running`): since Linux 6.12 with sleepers whose
        /// dequeueing is delayed.
        queued: u32,
        /// Threads in it that want the core, the running one included.
        runnable: u32,
    },
    /// The load of a run queue changed.
    Load {
        /// Whose.
        of: CoreId,
        /// The sum of the weights of its fair threads (`cfs_rq->load.weight`, 1024 is a thread of nice 0): what the
        /// Wasted Cores paper plots.
        weight: u64,
        /// Its decayed average (PELT `load_avg`).
        average: u64,
    },
    /// The cores that a search of the scheduler looked at.
    Considered {
        /// On behalf of which core.
        by: CoreId,
        /// Which search.
        search: Search,
        /// What it looked at.
        cores: Box<CoreSet>,
        /// Whether that was seen or worked out.
        certainty: Certainty,
    },
    /// A pass of the load balancer ended.
    Pass(Box<Pass>),
    /// The scheduling domains of the host: at the start, and again whenever the kernel has built them anew.
    Domains(Arc<DomainTrees>),
    /// The handler of a softirq began or ended on this core (`softirq_entry`, `softirq_exit`).
    Softirq {
        /// Index in the kernel's `softirq_to_name`; [`What::BALANCER`] is the load balancer.
        vector: u8,
        /// `true` at the entry, `false` at the exit.
        begins: bool,
    },
    /// The handler of a device interrupt began or ended on this core (`irq_handler_entry`, `irq_handler_exit`).
    Interrupt {
        /// The Linux interrupt number, as in `/proc/interrupts`.
        irq: u32,
        /// `true` at the entry, `false` at the exit.
        begins: bool,
    },
    /// A core went on or off line.
    Online {
        /// Which.
        of: CoreId,
        /// Whether it is there now.
        online: bool,
    },
    /// Events of this core were lost.
    Lost {
        /// How many.
        count: u64,
    },
    /// The state of the host at this instant.
    Keyframe(Arc<Keyframe>),
    /// A task that Quell schedules. Repeated after each keyframe and when a field changed; later events name the
    /// task by its id.
    Task(Arc<TaskInfo>),
    /// A decision of Quell's allocator about one core.
    Decision(CoreDecision),
    /// Text that an older version recorded in place of typed decisions. Only readers of such files create it.
    Annotation(Arc<str>),
    /// The checker found a violation; it may have ended before this was told.
    Violation(Arc<Violation>),
}

impl What {
    /// The vector of the load balancer's softirq (`SCHED_SOFTIRQ` in include/linux/interrupt.h).
    pub const BALANCER: u8 = 7;
}

/// A task that Quell schedules, as its events name it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskInfo {
    /// Its id, valid until another [`What::Task`] has the same index.
    pub id: TaskId,
    /// Its name in the configuration, at most [`TaskInfo::NAME_MAX`] bytes.
    pub name: String,
    /// LC or BE, as configured.
    pub class: Class,
    /// Process ids (tgids) of its threads, at most [`TaskInfo::PROCESSES_MAX`].
    pub processes: Vec<i32>,
}

impl TaskInfo {
    /// Maximum length of a name in bytes.
    pub const NAME_MAX: usize = 64;
    /// Maximum number of process ids.
    pub const PROCESSES_MAX: usize = 4096;
}

/// A decision of Quell's allocator: a core changed its owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoreDecision {
    /// The core.
    pub core: CoreId,
    /// Owner before; `None`: no task.
    pub from: Option<TaskId>,
    /// Owner from here on; `None`: no task.
    pub to: Option<TaskId>,
    /// Which scheduler the core has from here on.
    pub mode: CoreMode,
    /// Why the allocator decided so.
    pub reason: Reason,
}

/// Threads waited in one core's queue beside idle cores that they could have used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// In whose queue.
    pub core: CoreId,
    /// Since when.
    pub from: Nanos,
    /// Until when, as far as it was followed.
    pub until: Nanos,
    /// Who waited, the longest first; at most [`Violation::WAITERS_MAX`].
    pub waiters: Vec<i32>,
    /// The idle cores that they could have used.
    pub idle: CoreSet,
    /// All of it in one line.
    pub text: Arc<str>,
}

impl Violation {
    /// Waiters that are named.
    pub const WAITERS_MAX: usize = 64;
}

/// What a plan lets the threads of a process use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Planned {
    /// Whose threads.
    pub process: i32,
    /// Where they might run without the plan.
    pub original: CoreSet,
    /// Where the plan lets them run.
    pub cores: CoreSet,
    /// Why not everywhere.
    pub reason: PlanReason,
}

/// Why a plan restricts the threads of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlanReason {
    /// How the plan treats the task of the process.
    Task {
        /// The task.
        task: TaskId,
        /// Why it is treated so.
        reason: TaskReason,
    },
    /// Text that an older version recorded in place of a typed reason. Only readers of such files create it.
    Text(Arc<str>),
}

/// Who moved a thread (the caller of `set_task_cpu`, from the stack at `sched_migrate_task`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MoveCause {
    /// The placement of a thread that wakes up (`try_to_wake_up`).
    Wakeup,
    /// The placement of a new thread (`wake_up_new_task`).
    Fork,
    /// The placement of a thread at exec (`sched_exec`).
    Exec,
    /// A core that was about to idle took it (`sched_balance_newidle`).
    NewIdle,
    /// The periodic balancer, or one on behalf of idle cores (`sched_balance_domains`).
    Periodic,
    /// A running thread was pushed by the stopper on behalf of a balancer (`active_load_balance_cpu_stop`).
    Active,
    /// Its affinity or cpuset changed (`__set_cpus_allowed_ptr`, `migration_cpu_stop`).
    Affinity,
    /// Memory locality (`task_numa_migrate`, `migrate_swap`).
    Numa,
    /// A real-time or deadline thread was pushed or pulled.
    Realtime,
    /// Its core went away.
    Hotplug,
    /// The stack was not known or said nothing.
    Unknown,
}

impl MoveCause {
    /// All of them, in the order of their discriminants.
    pub const ALL: [MoveCause; 11] = [
        MoveCause::Wakeup,
        MoveCause::Fork,
        MoveCause::Exec,
        MoveCause::NewIdle,
        MoveCause::Periodic,
        MoveCause::Active,
        MoveCause::Affinity,
        MoveCause::Numa,
        MoveCause::Realtime,
        MoveCause::Hotplug,
        MoveCause::Unknown,
    ];
}

/// Which search looked at cores (the kinds of the Wasted Cores recorder).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Search {
    /// For an idle core near the one a thread woke on (`select_idle_sibling`).
    IdleSibling,
    /// For the idlest group and core at fork and exec (`sched_balance_find_dst_group`).
    Idlest,
    /// For the busiest group (`update_sd_lb_stats`).
    GroupStatistics,
    /// For the busiest queue of that group (`sched_balance_find_src_rq`).
    BusiestQueue,
}

/// Whether something was seen or worked out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Certainty {
    /// A hook on the function, or the simulator, told it.
    Observed,
    /// From the span of the domain in which the search ran.
    Inferred,
}

/// Who runs and who waits, where.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Keyframe {
    /// One entry a core on line, in ascending order.
    pub cores: Vec<CoreState>,
    /// Every thread that runs or waits; sleepers as well in the first keyframe of a recording, where the
    /// recorder can tell.
    pub threads: Vec<ThreadState>,
}

/// A core in a [`Keyframe`].
#[derive(Clone, Debug, PartialEq)]
pub struct CoreState {
    /// Which.
    pub core: CoreId,
    /// Who runs; 0 is the idle thread.
    pub running: i32,
    /// As in [`What::Queue`].
    pub queued: u32,
    /// As in [`What::Queue`].
    pub runnable: u32,
    /// As in [`What::Load`].
    pub weight: u64,
    /// As in [`What::Load`].
    pub average: u64,
    /// A wake-up is on its way to it (`rq->ttwu_pending`): it is not idle, whoever runs.
    pub wake_pending: bool,
    /// The cores that balance with it: the span of its top scheduling domain; itself alone where it has none.
    pub domain: CoreSet,
}

/// A thread in a [`Keyframe`].
#[derive(Clone, Debug, PartialEq)]
pub struct ThreadState {
    /// Who.
    pub thread: Runner,
    /// In whose queue it is, or ran last.
    pub core: CoreId,
    /// What it does.
    pub state: Activity,
    /// Where it may run now (`p->cpus_ptr`).
    pub allowed: CoreSet,
    /// It may not leave its core now: a per-core kernel thread, or within `migrate_disable()`.
    pub bound: bool,
}

/// What a thread does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Activity {
    /// It has the core.
    Running,
    /// It wants the core.
    Waiting,
    /// It is in the queue and its cgroup's quota is used up.
    Throttled,
    /// It sleeps and is still in the queue (delayed dequeue, Linux 6.12).
    Delayed,
    /// It moves between queues.
    Moving,
    /// It sleeps.
    Sleeping,
}

/// What a recording is of.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// Where the events come from.
    pub source: Source,
    /// The cores, their siblings, caches and nodes; all of the host, on line or not.
    pub topology: Topology,
    /// The kernel's release, or the name and version of the model.
    pub kernel: String,
    /// The name of the host, or of the scenario.
    pub host: String,
    /// The hooks that were there, by the kernel's name.
    pub hooks: Vec<String>,
    /// Which kinds of events this source cannot tell, in words for a reader.
    pub absent: Vec<String>,
    /// CLOCK_REALTIME minus CLOCK_MONOTONIC at the start, in nanoseconds; 0 where there is no wall clock.
    pub wall_offset_ns: i64,
}

/// Where a recording comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Source {
    /// This project's recorder on a host.
    Recorder,
    /// This project's simulator.
    Simulator,
    /// Text of ftrace or `trace-cmd report`.
    Ftrace,
    /// Text of `perf sched script`.
    Perf,
    /// Text of the Wasted Cores authors' recorder.
    WastedCores,
}
