//! What a daemon tells of itself: the status and what it is made of.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::latency::LatencyStatus;

/// What runs where, and why.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// The policy that decides.
    pub policy: String,
    /// The back end that acts.
    pub back_end: String,
    /// `shared` or `dedicated`: how the scheduler thread runs.
    pub pattern: String,
    /// Source of thread states and times: `bpf` or `proc`.
    pub observer: String,
    /// Managed cores as a list.
    pub managed: String,
    /// Cores that are left alone.
    pub unmanaged: String,
    /// Guardians alive; below 2 nothing is changed.
    pub guardians: u32,
    /// What this host lacks, and its consequence.
    pub degraded: Vec<String>,
    /// The host's name.
    #[serde(default)]
    pub host: String,
    /// When this was read: microseconds of CLOCK_MONOTONIC.
    #[serde(default)]
    pub at_us: u64,
    /// Memory traffic; null where the policy does not read it or nothing supplies it.
    #[serde(default)]
    pub memory: Option<MemoryStatus>,
    /// Per core of the host.
    pub cores: Vec<CoreStatus>,
    /// Per task.
    pub tasks: Vec<TaskStatus>,
    /// Totals since the start.
    pub counters: Counters,
    /// The newest events, oldest first.
    pub events: Vec<String>,
    /// Cores that changed hands lately, oldest first.
    #[serde(default)]
    pub decisions: Vec<Decision>,
    /// Advice to the last plan: what was followed, and what was declined.
    #[serde(default)]
    pub advice: Vec<Advised>,
}

/// A core that changed hands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Decision {
    /// When it was decided: microseconds of CLOCK_MONOTONIC, as [`Status::at_us`].
    pub at_us: u64,
    /// The core.
    pub core: u32,
    /// The task that owned it.
    pub from: Option<String>,
    /// The task that owns it since.
    pub to: Option<String>,
    /// Why.
    pub reason: String,
}

/// A piece of advice, and what became of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Advised {
    /// The task that it is about.
    pub task: String,
    /// What was advised.
    pub offer: String,
    /// Why it was declined; null: it is followed.
    pub declined: Option<String>,
}

/// Memory traffic as measured.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemoryStatus {
    /// Where it is read.
    pub source: String,
    /// The traffic between the last two readings, in MB/s; null while it is not known.
    pub total_mb_s: Option<f64>,
    /// How the total is known: `measured`, `estimated: ..`, `absent: ..`.
    pub provenance: String,
    /// Cores whose part is known.
    pub cores: u32,
    /// Why the last reading failed; null: it did not.
    pub problem: Option<String>,
}

/// What a task's threads hint about the requests that they serve.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HintsStatus {
    /// The page.
    pub page: String,
    /// Threads that have a slot.
    pub threads: u32,
    /// Requests in service.
    pub serving: u32,
    /// Hints left out so far: of threads that are not the task's or are gone, or from the future.
    pub ignored: u64,
    /// Why the page is not read now; null: it is.
    pub problem: Option<String>,
}

/// A runtime under the daemon: what it publishes, and what it was granted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RuntimeStatus {
    /// Its version, as it says.
    pub version: String,
    /// Kernel threads that it may have.
    pub kthreads: u32,
    /// Of those, how many run uthreads or look for some.
    pub running: u32,
    /// How many sleep.
    pub parked: u32,
    /// How many are awake without a core, for a timer or for I/O that is due.
    pub requesting_core: u32,
    /// Cores granted to its kernel threads, as a list.
    pub granted: String,
    /// The greatest queueing delay of its kernel threads, in microseconds (Caladan, section 4.1).
    pub queueing_delay_us: f64,
    /// Uthreads that are ready, over all kernel threads.
    pub ready_uthreads: u64,
    /// Cores in use, smoothed.
    pub cores_used: f64,
    /// Switches to a uthread, so far; this and what follows as the runtime says.
    pub switches: u64,
    /// Uthreads taken from another kernel thread.
    pub steals: u64,
    /// Times that a kernel thread parked for want of work.
    pub parks: u64,
    /// Uthreads that were made to yield at the end of their quantum.
    pub preemptions: u64,
    /// Times that a kernel thread woke without a core.
    pub core_requests: u64,
    /// Milliseconds that its kernel threads ran uthreads.
    pub busy_ms: f64,
    /// Cores granted so far.
    pub grants: u64,
    /// Cores revoked so far.
    pub revokes: u64,
    /// Of those, how many were not left in time, so that the thread was moved.
    pub forced_revokes: u64,
    /// Claims left out: of threads that are not the runtime's, or that are another kernel thread already.
    pub rejected_claims: u64,
}

/// A lane: members that share one core by slices.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LaneStatus {
    /// The core that it has, or on which its members wait; null while it has none.
    pub core: Option<u16>,
    /// Whether slices are dealt out: it owns the core.
    pub scheduling: bool,
    /// The policy that picks the next member.
    pub policy: String,
    /// `shared` or `dedicated`: how its scheduler waits for the end of a slice.
    pub pattern: String,
    /// Whose slice it is.
    pub running: Option<String>,
    /// Slices that went to another member than the one before.
    pub switches: u64,
    /// Runs of the policy.
    pub decisions: u64,
    /// Looks by time that came more than 50 us late.
    pub late: u64,
    /// How late the latest of all looks by time was.
    pub latest_ns: u64,
    /// Duration of a switch, its two changes with their checks: the minimum.
    pub switch_min_ns: Option<u64>,
    /// The mean.
    pub switch_mean_ns: Option<u64>,
    /// From the end of a slice until the next member may run: the shortest that was seen. No slice on this host is
    /// more exact than this.
    pub floor_ns: Option<u64>,
    /// Writes that were not made because a guardian was missing.
    pub writes_blocked: u64,
    /// Threads on the lane now.
    pub threads: u32,
    /// The members, in order.
    pub members: Vec<MemberStatus>,
    /// What happened that somebody may want to know.
    pub notes: Vec<String>,
    /// The thread that switches its members.
    pub scheduler: LaneSchedulerStatus,
}

/// A member of a lane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct MemberStatus {
    /// Its name.
    pub name: String,
    /// Its slices that began.
    pub slices: u64,
    /// How long they were, those that have ended.
    pub slices_ns: u64,
}

/// The scheduler thread of a lane.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct LaneSchedulerStatus {
    /// Its number.
    pub tid: i32,
    /// For how long it has run.
    pub uptime_ns: u64,
    /// The CPU time that it used meanwhile, by the kernel's account: all that its lanes cost beside their members' slices.
    pub cpu_ns: Option<u64>,
}

/// CPU time of a task on one core.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskCpuTime {
    /// The task.
    pub task: String,
    /// Milliseconds since the task is watched.
    pub cpu_ms: f64,
}

/// Wakeup latencies of the last second; each bound is at most an eighth too high.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WakeupLatency {
    /// Wake-ups.
    pub count: u64,
    /// Median, in microseconds.
    pub p50_us: f64,
    /// 99th percentile, in microseconds.
    pub p99_us: f64,
    /// 99.9th percentile, in microseconds.
    pub p999_us: f64,
}

/// One core.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CoreStatus {
    /// The kernel's number.
    pub core: u32,
    /// `kernel`, `lane`, `runtime`, `idled` or `unmanaged`.
    pub mode: String,
    /// The task that owns it.
    pub owner: Option<String>,
    /// The task that runs on it now.
    pub running: Option<String>,
    /// Why it is so.
    pub reason: String,
    /// How long the request that runs on it is served already, in microseconds; null without one, or without hints.
    #[serde(default)]
    pub request_age_us: Option<f64>,
    /// Share of the last 100 ms that LC threads ran on it, in percent.
    pub lc_busy_percent: Option<f64>,
    /// What became of the last plan for it.
    pub outcome: String,
    /// How long it ran each task; empty without BPF.
    #[serde(default)]
    pub task_cpu: Vec<TaskCpuTime>,
    /// Milliseconds that it idled; null without BPF and for cores that are not managed.
    #[serde(default)]
    pub idle_ms: Option<f64>,
}

/// The role of a thread of an LC task, where it is not that of an event thread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct ThreadRoleStatus {
    /// The thread.
    pub tid: i32,
    /// Its name; empty once it is gone.
    #[serde(default)]
    pub name: String,
    /// `long-event`, `background` or `fair`.
    pub role: String,
    /// Seconds since it has this role.
    pub since_s: f64,
    /// The length of the burst that cost it the role before, in microseconds.
    pub burst_us: f64,
    /// Short bursts in a row that earn it a higher role; 0: the end of the present burst does.
    pub needs: u32,
    /// It has this role by `[[task.threads]]`, whatever its bursts are.
    #[serde(default)]
    pub configured: bool,
}

/// How often threads of a task went first for a moment, because they held in the kernel what LC threads waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ReliefCounts {
    /// A thread owned a mutex or semaphore that an LC thread waited for.
    pub lock: u64,
    /// A thread starved inside the kernel while an LC thread slept there uninterruptibly.
    pub starved: u64,
}

/// One task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskStatus {
    /// Its name.
    pub name: String,
    /// `LC` or `BE`, as configured.
    pub class: String,
    /// How it came: launched, adopted by pid, match or cgroup.
    pub source: String,
    /// `running`, `waiting for processes`, `exited (status)`.
    pub state: String,
    /// Processes watched.
    pub processes: Vec<i32>,
    /// Threads watched.
    pub threads: u32,
    /// Threads that run now.
    pub running: u32,
    /// Threads that wait for a core now.
    pub waiting: u32,
    /// Age of the oldest wait, in microseconds; null when none waits or it is not known.
    pub queueing_delay_us: Option<f64>,
    /// Cores that it owns, as a list.
    pub owned: String,
    /// Cores that it may use at lower priority than their owner.
    pub shared_cores: String,
    /// The rung of its threads.
    pub rung: String,
    /// Why it is treated so.
    pub reason: String,
    /// Whether it is frozen now.
    pub frozen: bool,
    /// Milliseconds that its threads were on cores since it joined; without BPF, of threads alive.
    pub cpu_ms: f64,
    /// Milliseconds that its threads waited for cores since it joined; without BPF, of threads alive.
    pub run_delay_ms: f64,
    /// What went wrong with it, newest last.
    pub problems: Vec<String>,
    /// LC: the cause of its congestion, while that is one that the plan cannot relieve.
    #[serde(default)]
    pub unresolved_congestion: Option<CongestionCause>,
    /// LC: seconds of such congestion since it joined, by cause.
    #[serde(default)]
    pub unresolved_congestion_s: BTreeMap<CongestionCause, f64>,
    /// LC: how long its threads took from wake-up to core; null without BPF or wake-ups.
    #[serde(default)]
    pub wakeup_latency: Option<WakeupLatency>,
    /// BE: how late LC threads got a core that it had, p99.9 of the last second in microseconds.
    #[serde(default)]
    pub lc_delay_caused_us: Option<f64>,
    /// LC: tail latency and load as the service or its client sees them; null for BE.
    #[serde(default)]
    pub latency: Option<LatencyStatus>,
    /// What its threads hint; null without `hints` in its configuration.
    #[serde(default)]
    pub hints: Option<HintsStatus>,
    /// What it publishes as a runtime; null for other programs.
    #[serde(default)]
    pub runtime: Option<RuntimeStatus>,
    /// LC: its threads that are below its rung, because their bursts held up other LC threads; empty without BPF.
    #[serde(default)]
    pub roles: Vec<ThreadRoleStatus>,
    /// How often its threads went first for a moment.
    #[serde(default)]
    pub reliefs: ReliefCounts,
    /// What its members did as a lane; null for other tasks.
    #[serde(default)]
    pub lane: Option<LaneStatus>,
}

/// Why a Plan cannot relieve a task's congestion.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum CongestionCause {
    /// It owns as many cores as it may: `max`, or all that it may use.
    AtMaximum,
    /// Other LC tasks own every other core that it may use.
    LcOwned,
    /// Advice caps it or keeps it off the others.
    Advice,
    /// The host refuses it a core.
    Refused,
    /// None of the cores that it may use is managed and online.
    NoCore,
    /// It ran without sleeping past its bound, so it counts as BE.
    RanAway,
    /// It owns a core for each thread that could run: something else than a lack of cores holds them up.
    EnoughCores,
    /// The policy gives it no more, although it could.
    Policy,
}

impl CongestionCause {
    /// All of them.
    pub const ALL: [CongestionCause; 8] = [
        CongestionCause::AtMaximum,
        CongestionCause::LcOwned,
        CongestionCause::Advice,
        CongestionCause::Refused,
        CongestionCause::NoCore,
        CongestionCause::RanAway,
        CongestionCause::EnoughCores,
        CongestionCause::Policy,
    ];

    /// As in JSON.
    pub fn label(self) -> &'static str {
        match self {
            CongestionCause::AtMaximum => "at_maximum",
            CongestionCause::LcOwned => "lc_owned",
            CongestionCause::Advice => "advice",
            CongestionCause::Refused => "refused",
            CongestionCause::NoCore => "no_core",
            CongestionCause::RanAway => "ran_away",
            CongestionCause::EnoughCores => "enough_cores",
            CongestionCause::Policy => "policy",
        }
    }
}

/// Congestion that the plan cannot relieve: what a scheduler of many hosts reads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CongestionReport {
    /// When the report was made, in nanoseconds of CLOCK_MONOTONIC.
    pub now_ns: u64,
    /// A task is listed once it was congested for this long, in milliseconds.
    pub threshold_ms: f64,
    /// The tasks; empty when there is no such congestion.
    pub tasks: Vec<CongestedTask>,
}

/// One task whose congestion the plan cannot relieve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CongestedTask {
    /// Its name.
    pub task: String,
    /// Since when it is congested, in nanoseconds of CLOCK_MONOTONIC.
    pub since_ns: u64,
    /// How long that is, in seconds.
    pub duration_s: f64,
    /// Age of the oldest wait, in microseconds; null when none waits just now or it is not known.
    pub queueing_delay_us: Option<f64>,
    /// Threads that could use a core now.
    pub runnable: u32,
    /// Cores that it owns, as a list.
    pub owned: String,
    /// Why the plan cannot help.
    pub cause: CongestionCause,
    /// The cores that the cause is about, as a list.
    pub cores: String,
    /// The tasks that own those.
    pub owners: Vec<String>,
    /// The host's reason for refusing.
    pub errno: Option<i32>,
    /// The cause in a sentence.
    pub explanation: String,
    /// What would relieve it, in a sentence.
    pub remedy: String,
}

/// Totals since the daemon started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Counters {
    /// Ticks of the scheduler thread.
    pub ticks: u64,
    /// Of those, called by an event of the kernel rather than by time.
    pub ticks_by_event: u64,
    /// Plans that differed from the one before.
    pub plans: u64,
    /// Writes to the host: priorities, affinities and other settings.
    pub host_writes: u64,
    /// Writes to the host that the kernel refused.
    pub host_writes_refused: u64,
    /// Decisions taken on a state that had moved when they took effect.
    pub stale_decisions: u64,
    /// Changes of the role of a thread.
    #[serde(default)]
    pub role_changes: u64,
    /// Times that a guaranteed core was missing although its task wanted it (invariant 1).
    pub violations_guarantee: u64,
    /// Times that BE was put before LC (invariant 2).
    pub violations_lc_first: u64,
    /// Times that a core idled by plan while a task that may use it had work (invariant 3).
    pub violations_work_conservation: u64,
    /// Times that advice was not followed although nothing forbade it (invariant 4).
    pub violations_advice: u64,
    /// Times that a plan contradicted itself or the host.
    pub violations_malformed: u64,
    /// Events of the kernel that were lost; a sweep followed each time.
    pub events_lost: u64,
    /// Microseconds during which an LC thread waited while a managed core that it may use was idle;
    /// null without BPF.
    pub idle_while_lc_waits_us: Option<f64>,
    /// Time of the last tick, in microseconds.
    pub tick_last_us: f64,
    /// Time of all ticks, in microseconds.
    #[serde(default)]
    pub tick_total_us: f64,
    /// Mean time of a tick, in microseconds.
    pub tick_mean_us: f64,
    /// Longest tick, in microseconds.
    pub tick_max_us: f64,
    /// CPU time of the scheduler thread, in milliseconds.
    pub scheduler_cpu_ms: f64,
    /// CPU time of the daemon, all threads, in milliseconds.
    #[serde(default)]
    pub daemon_cpu_ms: f64,
}
