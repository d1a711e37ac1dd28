//! What a running daemon decided meanwhile.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use quell_control::client::{Client, ClientError};
use quell_control::protocol::{Method, Reply, Status, TaskStatus};
use quell_model::{Class, Nanos, TaskId, TaskInfo, What};

/// How often the daemon is asked: a part of [`LATEST`].
const EVERY: Duration = Duration::from_millis(100);
/// How often a daemon that is not there is looked for.
const AGAIN: Duration = Duration::from_secs(1);
/// Interval at which all tasks are introduced again, so that a reader can start at any keyframe.
const INTRODUCE_EVERY: Nanos = Nanos::from_secs(1);
/// How long after it was taken a decision is known here.
pub(crate) const LATEST: Nanos = Nanos::from_millis(500);

/// Asks the daemon from a thread of its own, so that a daemon that is slow holds up no event.
pub(crate) struct Decisions {
    news: Receiver<(Nanos, What)>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Decisions {
    /// Decisions from now on, of the daemon that listens there whenever one does.
    pub fn follow(socket: &Path, from: Nanos) -> std::io::Result<Decisions> {
        let (tell, news) = unbounded();
        let (stop, stopped) = bounded(0);
        let socket = socket.to_owned();
        let thread = std::thread::Builder::new()
            .name("quell-decisions".to_owned())
            .spawn(move || follow(&socket, from, &tell, &stopped))?;
        Ok(Decisions { news, stop: Some(stop), thread: Some(thread) })
    }

    /// What was decided since the last call, oldest first.
    pub fn take(&self) -> impl Iterator<Item = (Nanos, What)> {
        self.news.try_iter()
    }
}

impl Drop for Decisions {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn follow(socket: &Path, from: Nanos, tell: &Sender<(Nanos, What)>, stop: &Receiver<()>) {
    let (mut client, mut known) = (None, Known { newest: from, ..Known::default() });
    loop {
        let pause = match status(&mut client, socket) {
            Ok(status) => {
                for (at, what) in known.news(&status) {
                    if tell.send((at, what)).is_err() {
                        return;
                    }
                }
                EVERY
            }
            Err(_) => {
                (client, known.introduced) = (None, BTreeMap::new());
                AGAIN
            }
        };
        if stop.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

fn status(client: &mut Option<Client>, socket: &Path) -> Result<Status, ClientError> {
    let client = match client {
        Some(client) => client,
        None => client.insert(Client::connect(socket)?.with_patience(AGAIN)?),
    };
    match client.call(Method::Status)? {
        Reply::Status(status) => Ok(*status),
        _ => Err(ClientError::Refused("the daemon answered out of turn".to_owned())),
    }
}

/// What was recorded of the daemon so far.
#[derive(Default)]
struct Known {
    /// Time of the newest decision.
    newest: Nanos,
    introduced: BTreeMap<TaskId, Arc<TaskInfo>>,
    introduced_at: Nanos,
}

impl Known {
    /// The events that a status adds: tasks before the decisions that name them.
    fn news(&mut self, status: &Status) -> Vec<(Nanos, What)> {
        let now = Nanos(status.at_us * 1_000);
        let newest = self.newest;
        let decisions = status.decisions.iter().filter_map(|decision| {
            let at = Nanos(decision.at_us * 1_000);
            Some((at, decision.full.filter(|_| at > newest)?))
        });
        let decisions: Vec<_> = decisions.collect();
        let first = decisions.iter().map(|(at, _)| *at).fold(now, Nanos::min);
        if now.since(self.introduced_at) >= INTRODUCE_EVERY {
            (self.introduced_at, self.introduced) = (now, BTreeMap::new());
        }
        let mut events = Vec::new();
        for task in status.tasks.iter().map(task_info) {
            if self.introduced.get(&task.id).is_none_or(|known| **known != task) {
                let task = Arc::new(task);
                self.introduced.insert(task.id, Arc::clone(&task));
                events.push((first, What::Task(task)));
            }
        }
        for (at, decision) in decisions {
            self.newest = self.newest.max(at);
            events.push((at, What::Decision(decision)));
        }
        events
    }
}

fn task_info(task: &TaskStatus) -> TaskInfo {
    let [index, generation] = task.id;
    let class = match task.class == Class::LatencyCritical.to_string() {
        true => Class::LatencyCritical,
        false => Class::BestEffort,
    };
    let processes = task.processes.iter().take(TaskInfo::PROCESSES_MAX).copied().collect();
    TaskInfo { id: TaskId { index, generation }, name: task.name.clone(), class, processes }
}

#[cfg(test)]
mod tests {
    use quell_control::protocol::Decision;
    use quell_model::{CoreId, CoreMode, Reason};

    use super::*;

    fn status(at_us: u64, decided: &[u64], processes: &[i32]) -> Status {
        let web = TaskId { index: 0, generation: 2 };
        let full = quell_model::CoreDecision {
            core: CoreId(1),
            from: None,
            to: Some(web),
            mode: CoreMode::Kernel,
            reason: Reason::Guaranteed,
        };
        let decision =
            |at_us: &u64| Decision { at_us: *at_us, full: Some(full), ..Decision::default() };
        let task = TaskStatus {
            name: "web".into(),
            id: [0, 2],
            class: "LC".into(),
            processes: processes.to_vec(),
            ..TaskStatus::default()
        };
        Status {
            at_us,
            decisions: decided.iter().map(decision).collect(),
            tasks: vec![task],
            ..Status::default()
        }
    }

    fn kinds(events: &[(Nanos, What)]) -> String {
        let kind = |(_, what): &(Nanos, What)| match what {
            What::Task(_) => 't',
            What::Decision(_) => 'd',
            _ => '?',
        };
        events.iter().map(kind).collect()
    }

    #[test]
    fn status_yields_each_decision_once_after_its_task() {
        let mut known = Known { newest: Nanos::from_micros(50), ..Known::default() };
        let events = known.news(&status(2_000_000, &[40, 60, 70], &[7]));
        assert_eq!(kinds(&events), "tdd");
        assert_eq!(events[0].0, Nanos::from_micros(60));
        let What::Task(task) = &events[0].1 else { panic!("{events:?}") };
        assert_eq!((task.class, &task.processes[..]), (Class::LatencyCritical, &[7][..]));
        assert_eq!(kinds(&known.news(&status(2_100_000, &[60, 70, 80], &[7]))), "d");
        assert_eq!(kinds(&known.news(&status(2_200_000, &[80], &[7, 8]))), "t");
        assert_eq!(kinds(&known.news(&status(2_300_000, &[80], &[7, 8]))), "");
        assert_eq!(kinds(&known.news(&status(3_100_000, &[], &[7, 8]))), "t");
    }
}
