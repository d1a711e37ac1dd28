//! Runtimes that register, and those that leave.
//!
//! A runtime whose process belongs to a task of the configuration joins that task, and the operator's limits hold.
//! Any other becomes a task of its own with the limits that it asks for; what is asked for at others' expense, the
//! class LC and guaranteed cores, takes root.

use quell_control::config::{Source, TaskConfig};
use quell_control::protocol::{self, Registered};
use quell_model::{Children, TaskId};
use quell_os::{ThreadRef, Tid};

use super::task::Task;
use super::{Manager, no_answer, preflight};
use crate::access::Peer;
use crate::command::Command;
use crate::contract::Contract;
use crate::server::Visit;

/// Runtimes at once, all users together.
const RUNTIMES_MAX: usize = 64;

/// A connection by which a runtime registered.
pub struct Registration {
    /// The connection's number.
    connection: u64,
    /// The task that it belongs to.
    pub task: TaskId,
    /// Whether the task ends with it.
    owns_task: bool,
}

impl Manager {
    /// Serves a runtime that came, or one that left.
    pub fn receive(&mut self, visit: Visit) {
        match visit {
            Visit::Arrived { peer, wanted, connection, contract, reply } => {
                // A runtime that left meanwhile misses its answer; its connection tells next.
                let _ = reply.send(self.register(peer, &wanted, connection, contract));
            }
            Visit::Left(connection) => {
                self.unregister(connection);
                self.detach(connection);
            }
        }
    }

    fn register(
        &mut self,
        peer: Peer,
        wanted: &protocol::Registration,
        connection: u64,
        mut contract: Box<Contract>,
    ) -> Result<Registered, String> {
        if self.registrations.len() >= RUNTIMES_MAX {
            return Err(format!("{RUNTIMES_MAX} runtimes are registered already"));
        }
        self.drained.retain(|it| process(it.tgid.0).as_ref() == Some(it));
        if self.drained.iter().any(|it| it.tgid.0 == peer.pid) {
            return Err(
                "it was given back by `quell remove`: start it anew to have it back".to_owned()
            );
        }
        let known = self.tasks.iter().position(|task| task.pids().any(|pid| pid == peer.pid));
        let (at, owns_task) = match known {
            Some(at) => (at, false),
            None => (self.start_runtime(peer, wanted)?, true),
        };
        let id = self.tasks[at].id;
        if self.registrations.iter().any(|registration| registration.task == id) {
            return Err(format!("task `{}` has a runtime already", self.tasks[at].name()));
        }
        contract.take_effect();
        let before = self
            .engine
            .call(|reply| Command::Runtime(id, Some(contract), reply))
            .map_err(no_answer)?;
        drop(before);
        self.registrations.push(Registration { connection, task: id, owns_task });
        let limits = self.tasks[at].config.limits(&self.ground.checked.managed);
        Ok(Registered {
            task: self.tasks[at].name().to_owned(),
            class: limits.class,
            guaranteed: limits.guaranteed,
            max_cores: limits.max,
            kthreads: wanted.max_cores,
            revoke_deadline_us: self.ground.host.revoke_deadline.as_micros(),
        })
    }

    /// Makes a task of a runtime's process; its place.
    fn start_runtime(
        &mut self,
        peer: Peer,
        wanted: &protocol::Registration,
    ) -> Result<usize, String> {
        if wanted.is_privileged() && !peer.may_change() {
            return Err(format!(
                "user {} may register best-effort work without guaranteed cores; for more an administrator names its process in a configuration",
                peer.uid
            ));
        }
        if self.tasks.iter().any(|task| task.name() == wanted.name) {
            return Err(format!("there is a task `{}` already", wanted.name));
        }
        let managed = &self.ground.checked.managed;
        let given = self.tasks.iter().map(|task| u64::from(task.config.guaranteed)).sum::<u64>();
        let free = (managed.len() as u64).saturating_sub(given);
        if u64::from(wanted.guaranteed) > free {
            return Err(format!(
                "{} cores guaranteed are asked for, {free} are left of the managed ones ({managed})",
                wanted.guaranteed
            ));
        }
        let config = as_configured(peer.pid, wanted)?;
        preflight(&[&config], &self.ground.host, &self.ground.layout, true, "registration")?;
        let (managed, away) = (*managed, self.away());
        let task = Task::start(&config, &managed, away, &mut self.schedulers, &self.engine)?;
        self.tasks.push(task);
        Ok(self.tasks.len() - 1)
    }

    /// A runtime's connection is closed: its task goes on as any other, or ends if there is none without it.
    fn unregister(&mut self, connection: u64) {
        let here = |registration: &Registration| registration.connection == connection;
        let Some(at) = self.registrations.iter().position(here) else { return };
        let Registration { task, owns_task, .. } = self.registrations.swap_remove(at);
        // A scheduler thread that is gone has no runtimes.
        drop(self.engine.call(|reply| Command::Runtime(task, None, reply)));
        let at = self.tasks.iter().position(|known| owns_task && known.id == task);
        if let Some(at) = at {
            let _ = self.tasks.remove(at).end(&mut self.schedulers, &self.engine, true);
        }
    }
}

/// The first thread of a process, which tells it from a later one of the same number.
pub fn process(pid: i32) -> Option<ThreadRef> {
    ThreadRef::of(Tid(pid), Tid(pid)).ok()
}

/// What a runtime asks for, as a configuration would say it.
fn as_configured(process: i32, wanted: &protocol::Registration) -> Result<TaskConfig, String> {
    Ok(TaskConfig {
        name: wanted.name.clone(),
        class: wanted.class,
        source: Source::Registered(process),
        guaranteed: wanted.guaranteed,
        max: Some(wanted.max_cores),
        cores: None,
        times: wanted.times()?,
        // It knows its threads; programs that it starts are nobody's.
        children: Children::Leave,
        allow_freeze: false,
        latency: None,
        hints: None,
        threads: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use quell_model::{Class, CoreId, CoreSet, Nanos, TimeLimits};

    use super::*;

    #[test]
    fn what_a_runtime_asks_for_is_what_the_policy_sees() {
        let wanted = |class| protocol::Registration {
            layout: 1,
            name: "kv".to_owned(),
            class,
            guaranteed: 1,
            max_cores: 2,
            delay_target_us: Some(0),
            sibling_idle_after_us: Some(25),
            ..protocol::Registration::default()
        };
        let managed: CoreSet = (1..5).map(CoreId).collect();
        let seen = |class| as_configured(1, &wanted(class)).unwrap().limits(&managed);
        let us = Nanos::from_micros;
        let lc = seen(Class::LatencyCritical);
        assert_eq!((lc.class, lc.guaranteed, lc.max), (Class::LatencyCritical, 1, 2));
        let asked = (us(1), us(25));
        let times =
            TimeLimits { delay_target: asked.0, sibling_idle_after: asked.1, ..Default::default() };
        assert_eq!(lc.times, times);
        // Batch work serves no requests.
        assert_eq!(seen(Class::BestEffort).times.sibling_idle_after, Nanos::ZERO);
    }
}
