//! Subscriptions: what a daemon decides, a JSON line for each change.
//!
//! The daemon answers `subscribe` with a [`Response`] of `subscribed`, then sends [`Update`] lines until the
//! connection ends: first its current state, then each change. A client that reads too slowly loses lines: it gets
//! their number ([`Update::Lost`]) and the state again. [`Subscription`] reads the lines of one connection,
//! [`Follower`] does so from a thread of its own and connects again.

mod follower;
#[cfg(test)]
mod tests;

use std::io::{self, BufReader, Read as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use quell_model::{
    CORES_MAX, Class, CoreDecision, CoreId, CoreMode, CoreSet, Nanos, Reason, TaskId, TaskInfo,
    TaskReason,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::client::{ClientError, connect};
use crate::protocol::{self, LINE_BYTES_MAX, Method, PROTOCOL, Reply, Request, Response};

pub use follower::Follower;

/// Maximum number of thread ids in a [`TaskUpdate`].
pub const THREADS_MAX: usize = 1 << 16;

/// One line of a subscription. Times are nanoseconds of CLOCK_MONOTONIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Update {
    /// A task that is new, or whose fields changed.
    Task(TaskUpdate),
    /// A task left; decisions taken before may still follow.
    TaskLeft(TaskLeft),
    /// The state of a core, as part of the state at the start and after a loss.
    Core(CoreUpdate),
    /// A core changed its owner or its scheduler.
    Decision(DecisionUpdate),
    /// The cores that the plan lets a task use changed, or the reason did.
    PlanAffinity(PlanAffinity),
    /// This client read too slowly: lines are missing here. The state follows again.
    Lost(Lost),
}

/// A task.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskUpdate {
    /// Since when it is so.
    #[schemars(with = "u64")]
    pub at_ns: Nanos,
    /// Its id: `index` is reused, with another `generation`.
    #[schemars(with = "serde_json::Value")]
    pub id: TaskId,
    /// Its name in the configuration.
    pub name: String,
    /// `lc` or `be`, as configured.
    #[schemars(with = "String")]
    pub class: Class,
    /// Process ids (tgids) of its threads, at most [`TaskInfo::PROCESSES_MAX`].
    pub processes: Vec<i32>,
    /// Its threads whose affinity Quell changed, at most [`THREADS_MAX`].
    pub affinities: Vec<OriginalAffinity>,
}

/// Threads of one process that had the same affinity before Quell changed it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OriginalAffinity {
    /// The process id (tgid).
    pub process: i32,
    /// The cores that the threads were allowed to use before.
    #[schemars(with = "String")]
    pub cores: CoreSet,
    /// Their ids.
    pub threads: Vec<i32>,
    /// Whether these are all threads of the process that belong to the task.
    pub whole_process: bool,
}

/// The end of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct TaskLeft {
    /// When.
    #[schemars(with = "u64")]
    pub at_ns: Nanos,
    /// Its id.
    #[schemars(with = "serde_json::Value")]
    pub id: TaskId,
}

/// The state of a core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CoreUpdate {
    /// When it was so.
    #[schemars(with = "u64")]
    pub at_ns: Nanos,
    /// The core.
    #[schemars(with = "u16")]
    pub core: CoreId,
    /// The task that owns it.
    #[schemars(with = "serde_json::Value")]
    pub owner: Option<TaskId>,
    /// Which scheduler it has.
    #[schemars(with = "String")]
    pub mode: CoreMode,
    /// Why.
    #[schemars(with = "serde_json::Value")]
    pub reason: Reason,
}

/// A decision about one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DecisionUpdate {
    /// When it was taken.
    #[schemars(with = "u64")]
    pub at_ns: Nanos,
    /// `core`, `from`, `to`, `mode` and `reason`.
    #[serde(flatten)]
    #[schemars(with = "serde_json::Value")]
    pub decision: CoreDecision,
}

/// What a plan lets the threads of a task use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlanAffinity {
    /// Since when.
    #[schemars(with = "u64")]
    pub at_ns: Nanos,
    /// The task.
    #[schemars(with = "serde_json::Value")]
    pub task: TaskId,
    /// The cores that it owns or shares. A thread may use those of them that its original affinity has.
    #[schemars(with = "String")]
    pub cores: CoreSet,
    /// How the plan treats the task.
    #[schemars(with = "serde_json::Value")]
    pub reason: TaskReason,
}

/// Lines that were left out for one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Lost {
    /// When this was noticed.
    #[schemars(with = "u64")]
    pub at_ns: Nanos,
    /// Number of lines.
    pub count: u64,
}

impl Update {
    /// When it happened.
    pub fn at(&self) -> Nanos {
        match self {
            Update::Task(TaskUpdate { at_ns, .. })
            | Update::TaskLeft(TaskLeft { at_ns, .. })
            | Update::Core(CoreUpdate { at_ns, .. })
            | Update::Decision(DecisionUpdate { at_ns, .. })
            | Update::PlanAffinity(PlanAffinity { at_ns, .. })
            | Update::Lost(Lost { at_ns, .. }) => *at_ns,
        }
    }

    /// Parses one line.
    ///
    /// # Errors
    /// What is wrong, as part of a sentence.
    pub fn parse(line: &str) -> Result<Update, String> {
        let update: Update = serde_json::from_str(line).map_err(|err| err.to_string())?;
        update.check()?;
        Ok(update)
    }

    /// Checks what the types alone do not.
    fn check(&self) -> Result<(), String> {
        if i64::try_from(self.at().0).is_err() {
            return Err(format!("the time {} ns is out of range", self.at().0));
        }
        match self {
            Update::Task(task) => task.check(),
            Update::Core(CoreUpdate { core, .. })
            | Update::Decision(DecisionUpdate { decision: CoreDecision { core, .. }, .. })
                if core.index() >= CORES_MAX =>
            {
                Err(format!("core {core} is out of range: at most {CORES_MAX} cores"))
            }
            _ => Ok(()),
        }
    }
}

impl TaskUpdate {
    fn check(&self) -> Result<(), String> {
        let TaskUpdate { name, processes, affinities, .. } = self;
        if name.len() > TaskInfo::NAME_MAX || name.chars().any(char::is_control) {
            return Err(format!("`{}` is not a name of a task", name.escape_debug()));
        }
        let threads = || affinities.iter().flat_map(|affinity| &affinity.threads);
        let named = affinities.iter().map(|affinity| &affinity.process);
        if let Some(id) = processes.iter().chain(named).chain(threads()).find(|id| **id <= 0) {
            return Err(format!("{id} is not the id of a process or thread"));
        }
        if processes.len() > TaskInfo::PROCESSES_MAX || threads().count() > THREADS_MAX {
            return Err(format!(
                "task {name} has {} processes and {} threads: at most {} and {THREADS_MAX}",
                processes.len(),
                threads().count(),
                TaskInfo::PROCESSES_MAX
            ));
        }
        Ok(())
    }
}

/// A connection that receives updates.
#[derive(Debug)]
pub struct Subscription {
    reader: BufReader<UnixStream>,
    /// What was read of the next line.
    partial: Vec<u8>,
    /// Number of complete lines that were read, the answer included.
    lines: u64,
}

impl Subscription {
    /// Subscribes at the socket at `path`. [`Subscription::next_update`] waits at most `patience` each time.
    ///
    /// # Errors
    /// As [`Client::connect`](crate::client::Client::connect); [`ClientError::Refused`] with the daemon's words.
    pub fn open(path: &Path, patience: Duration) -> Result<Subscription, ClientError> {
        let mut stream = connect(path)?;
        let patient = Some(crate::client::REPLY_TIMEOUT);
        stream.set_read_timeout(patient)?;
        stream.set_write_timeout(patient)?;
        protocol::send(&mut stream, &Request { v: PROTOCOL, id: 1, call: Method::Subscribe })?;
        let reader = BufReader::new(stream);
        let mut subscription = Subscription { reader, partial: Vec::new(), lines: 0 };
        let line = subscription.next_line()?.ok_or(io::ErrorKind::TimedOut);
        let response: Response = serde_json::from_str(&line.map_err(io::Error::from)?)?;
        match response.reply {
            Reply::Subscribed => {}
            Reply::Error(why) => return Err(ClientError::Refused(why)),
            other => {
                let what = format!("expected `subscribed`, found {other:?}");
                return Err(subscription.rejected(what));
            }
        }
        subscription.reader.get_ref().set_read_timeout(Some(patience))?;
        Ok(subscription)
    }

    /// The next update; `None` when none came in time.
    ///
    /// # Errors
    /// [`ClientError::Io`] when the connection ended, [`ClientError::Line`] for a line that is rejected.
    pub fn next_update(&mut self) -> Result<Option<Update>, ClientError> {
        let Some(line) = self.next_line()? else { return Ok(None) };
        Update::parse(&line).map(Some).map_err(|why| self.rejected(why))
    }

    fn rejected(&self, why: String) -> ClientError {
        ClientError::Line { line: self.lines, why }
    }

    /// A line of at most [`LINE_BYTES_MAX`]. What arrived before a timeout is kept for the next call.
    fn next_line(&mut self) -> Result<Option<String>, ClientError> {
        let room = LINE_BYTES_MAX.saturating_sub(self.partial.len() as u64);
        let read =
            io::BufRead::read_until(&mut self.reader.by_ref().take(room), b'\n', &mut self.partial);
        match read {
            Err(err) if matches!(err.kind(), io::ErrorKind::WouldBlock) => return Ok(None),
            Err(err) => return Err(err.into()),
            Ok(_) if self.partial.last() == Some(&b'\n') => {}
            Ok(_) if self.partial.len() as u64 >= LINE_BYTES_MAX => {
                self.lines += 1;
                return Err(self.rejected(format!("it is longer than {LINE_BYTES_MAX} bytes")));
            }
            Ok(_) => {
                let ended = "it closed the connection";
                return Err(io::Error::new(io::ErrorKind::UnexpectedEof, ended).into());
            }
        }
        self.lines += 1;
        let line = String::from_utf8(std::mem::take(&mut self.partial));
        line.map(Some).map_err(|_| self.rejected("it is not UTF-8".to_owned()))
    }
}
