//! The configuration: which cores are managed, which tasks share them.
//!
//! A file is read in two stages. [`Config::parse`] accepts what is well-formed by itself: every key known,
//! every value in range, names unique. [`Config::check`] then holds it against a host: cores exist,
//! guarantees fit. Nothing on the host changes before both have passed.

mod check;
mod lane;
mod latency;
mod memory;
mod raw;
#[cfg(test)]
mod tests;
mod threads;

use std::net::SocketAddr;
use std::path::PathBuf;

pub use quell_model::FileError as ConfigError;
use quell_model::{BeRung, BytesPerSec, Children, Class, CoreSet, Nanos, TimeLimits};
pub(crate) use raw::is_name;

pub use check::CheckedHost;
pub use lane::{LaneConfig, LanePattern, MemberConfig};
pub use latency::{LatencyConfig, LatencySource, MetricsConfig, Unit};
pub use threads::ThreadRule;

/// The largest configuration that is read.
pub const CONFIG_BYTES_MAX: usize = 1 << 20;
/// The largest number of tasks in one configuration.
pub const TASKS_MAX: usize = 1_000;

/// A whole configuration, well-formed by itself.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The `[host]` table.
    pub host: HostConfig,
    /// The `[[task]]` tables, in the order of the file; names are unique.
    pub tasks: Vec<TaskConfig>,
}

/// What holds for the whole host.
#[derive(Clone, Debug, PartialEq)]
pub struct HostConfig {
    /// Cores to manage; `None`: all but the lowest physical core.
    pub managed: Option<CoreSet>,
    /// How plans are carried out.
    pub back_end: BackEndKind,
    /// The policy by name.
    pub policy: String,
    /// What the policies can be told.
    pub controllers: Controllers,
    /// Where memory traffic is read.
    pub memory: MemoryConfig,
    /// How the scheduler thread runs.
    pub pattern: Pattern,
    /// The tick; `None`: 1 ms shared, 10 us dedicated.
    pub tick: Option<Nanos>,
    /// Whether events of the kernel may call a tick before its time.
    pub tick_on_events: bool,
    /// Source of thread states and times.
    pub observer: ObserverKind,
    /// The rung of BE threads beneath LC.
    pub be_rung: BeRung,
    /// Whether RT throttling is switched off while cores are managed.
    pub rt_throttling: Throttling,
    /// Interrupt threads to raise to the softirq rung, by the name of their interrupt (`eth0`).
    pub irq_threads: Vec<String>,
    /// What to do with foreign threads on managed cores.
    pub foreign_threads: ForeignThreads,
    /// Threads watched at most.
    pub max_threads: u32,
    /// LC delay from which a BE task's kernel sections get it banned from LC's cores.
    pub nonpreemptible_delay_limit: Nanos,
    /// How long an LC task may be congested before the plan counts as unable to relieve it.
    pub congestion_after: Nanos,
    /// How long a runtime's kernel thread has to leave a core that is revoked, before it is moved off it.
    pub revoke_deadline: Nanos,
    /// A daemon that gave no sign of life for so long counts as hung, and its guardian restores the host.
    pub watchdog_timeout: Nanos,
    /// Where metrics are served; `None`: nowhere.
    pub metrics: Option<SocketAddr>,
    /// The group whose members may read over the control socket; `None`: nobody but root.
    pub control_group: Option<Named>,
}

/// Switches and bounds of the policies' controllers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Controllers {
    /// Memory traffic beyond which BE loses cores; 0: no bandwidth controller.
    pub bandwidth_limit: BytesPerSec,
    /// The least time between two steps of the bandwidth controller; zero: as the host allows.
    pub bandwidth_step: Nanos,
    /// Whether siblings of cores with a late request are idled.
    pub hyperthread: bool,
    /// Whether threads go first for a moment that hold in the kernel what LC threads wait for.
    pub lock_relief: bool,
    /// Whether requests that had their quantum let others go first.
    pub quantum: bool,
    /// `perfiso`: cores that are kept idle; 0: a sixth of the managed ones.
    pub idle_buffer: u32,
}

/// Where memory traffic is read, and how often.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryConfig {
    /// From where.
    pub source: MemorySource,
    /// Between two readings.
    pub every: Nanos,
}

/// Where memory traffic is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemorySource {
    /// The first of those that this host has.
    Auto,
    /// Nowhere.
    None,
    /// resctrl's bandwidth monitors.
    Resctrl,
    /// Hardware counters.
    Counters,
    /// A file that somebody writes.
    File(PathBuf),
}

/// A name that means something only on the host, with its line for the message if it does not.
#[derive(Clone, Debug, Eq)]
pub struct Named {
    /// As typed.
    pub name: String,
    /// The line, from 1.
    pub line: usize,
}

/// The same name on another line is the same setting.
impl PartialEq for Named {
    fn eq(&self, other: &Named) -> bool {
        self.name == other.name
    }
}

/// Which back end carries plans out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BackEndKind {
    /// SCHED_FIFO rungs and affinity.
    Elevation,
    /// cpusets and weights, no real-time priority.
    Cpuset,
}

/// How the scheduler thread runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pattern {
    /// Dedicated where three unmanaged or spare cores exist, else shared.
    Auto,
    /// Sleeps until its tick or an event.
    Shared,
    /// Spins on an unmanaged core of its own.
    Dedicated,
}

/// Source of thread states and times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ObserverKind {
    /// BPF where it loads, else /proc with a warning.
    Auto,
    /// BPF or nothing.
    Bpf,
    /// /proc only.
    Proc,
}

/// What happens to `kernel.sched_rt_runtime_us`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Throttling {
    /// Left, except where FIFO threads fill a core by design: those of a lane, a scheduler thread that spins, batch work
    /// under `fifo-low`. There it is switched off, if the kernel stops real-time threads by it.
    Auto,
    /// Switched off while managing.
    Off,
    /// Left as found.
    Leave,
}

/// What happens to foreign fair threads on managed cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ForeignThreads {
    /// Listed in the status.
    List,
    /// Moved to unmanaged cores, put back at the end.
    Move,
}

/// One task.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskConfig {
    /// Unique name.
    pub name: String,
    /// LC or BE.
    pub class: Class,
    /// What belongs to it.
    pub source: Source,
    /// Cores that are its own whenever it wants them.
    pub guaranteed: u32,
    /// Cores at most; `None`: all managed ones.
    pub max: Option<u32>,
    /// Managed cores that it may use; `None`: all.
    pub cores: Option<CoreSet>,
    /// Its times; zero those that its class does not have.
    pub times: TimeLimits,
    /// What its new processes become.
    pub children: Children,
    /// Whether it may be frozen when no core is left for it. Launched tasks: yes unless denied.
    pub allow_freeze: bool,
    /// LC: where its tail latency and load are read.
    pub latency: Option<LatencyConfig>,
    /// LC: the page in which its threads hint what they serve.
    pub hints: Option<PathBuf>,
    /// LC: roles of threads by their names; the first that fits counts.
    pub threads: Vec<ThreadRule>,
}

/// What belongs to a task.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// Launched by Quell.
    Command(Launch),
    /// A running process.
    Pid(i32),
    /// Every process with this name (`comm`), also those that start later.
    Match(String),
    /// Every process of this cgroup, by its path below the mount point.
    Cgroup(String),
    /// Members of a lane.
    Lane(Box<LaneConfig>),
    /// A runtime that registered over the control socket, by its process. No file can say that.
    Registered(i32),
}

/// A program to launch.
#[derive(Clone, Debug, PartialEq)]
pub struct Launch {
    /// Program and arguments; never empty.
    pub command: Vec<String>,
    /// Working directory.
    pub cwd: Option<PathBuf>,
    /// Environment on top of the daemon's.
    pub env: Vec<(String, String)>,
    /// Where its output goes; `None`: nowhere.
    pub output: Option<PathBuf>,
}

impl Config {
    /// Reads a configuration from TOML; `file` is only for messages.
    ///
    /// # Errors
    /// Names the file, the line and the remedy of the first thing that is wrong.
    pub fn parse(text: &str, file: &str) -> Result<Config, ConfigError> {
        raw::parse(text, file)
    }
}
