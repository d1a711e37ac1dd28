//! The manager: makes the set of tasks what the configuration says.
//!
//! Level-triggered: [`Manager::apply`] compares what is wanted with what there is, and [`Manager::look`]
//! does so again a few times a second (new processes that match, programs that ended). `quell run FILE` is
//! only the first caller of `apply`; later ones come over the control socket.

mod attach;
mod hints;
pub mod lanes;
mod live;
mod preflight;
mod roles;
mod runtimes;
pub mod sources;
mod task;
mod weights;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, select};
use quell_act::backend::Layout;
use quell_control::config::{CheckedHost, Config, HostConfig, Source, TaskConfig};
use quell_control::protocol::{Method, Reply, Status};
use quell_model::{CoreSet, Topology};
use quell_os::ThreadRef;

use crate::access::Peer;
use crate::boot::Lifetime;
use crate::command::Command;
use crate::engine::EngineThread;
use crate::mailbox::{NoAnswer, Postbox};
use crate::server::{Incoming, Visit};
use crate::throttling::fills_its_core;
use lanes::Schedulers;
pub use live::LiveLine;
pub use preflight::preflight;
use runtimes::Registration;
use task::Task;
use weights::Weighed;

/// Between two looks for ended programs.
const LOOK: Duration = Duration::from_millis(500);
/// Between two looks for ended and for new processes, which read files of /proc.
const FULL_LOOK: Duration = Duration::from_secs(1);

/// What the manager knows of the host.
pub struct Ground {
    /// Its cores.
    pub topology: Topology,
    /// Which of them are managed.
    pub checked: CheckedHost,
    /// The `[host]` table in force.
    pub host: HostConfig,
    /// Where its cgroup controllers are.
    pub layout: Layout,
}

/// See the module's documentation.
pub struct Manager {
    ground: Ground,
    engine: Postbox<Command>,
    schedulers: Schedulers,
    tasks: Vec<Task>,
    /// Tasks that are there for as long as a connection is open, by its number.
    attached: Vec<(u64, String)>,
    lifetime: Lifetime,
    /// Nobody has to be there before this time.
    left_due: Instant,
    /// Connections of runtimes, and the tasks that are theirs.
    registrations: Vec<Registration>,
    /// Processes whose runtime was drained: they are not let in again.
    drained: Vec<ThreadRef>,
    weighed: Option<Weighed>,
    started: Instant,
    looked: Instant,
    sweep_due: Arc<AtomicBool>,
    static_status: Status,
}

/// Why the manager returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A signal or `quell stop`.
    Asked {
        /// Launched programs go on.
        keep: bool,
    },
}

impl Manager {
    /// A manager without tasks. `status` holds what does not change: version, pid, back end, observer.
    pub fn new(
        ground: Ground,
        engine: &EngineThread,
        schedulers: Schedulers,
        status: Status,
    ) -> Manager {
        Manager {
            weighed: Weighed::new(&ground.host, &ground.layout, &status.observer),
            ground,
            engine: engine.postbox.clone(),
            schedulers,
            attached: Vec::new(),
            lifetime: Lifetime::UntilAsked,
            left_due: Instant::now(),
            tasks: Vec::new(),
            registrations: Vec::new(),
            drained: Vec::new(),
            started: Instant::now(),
            looked: Instant::now(),
            sweep_due: Arc::clone(&engine.sweep_due),
            static_status: status,
        }
    }

    /// Makes the tasks what a configuration says; in a dry run only tells what that would be.
    ///
    /// # Errors
    /// A sentence; nothing was changed.
    pub fn apply(
        &mut self,
        config: &Config,
        file: &str,
        dry_run: bool,
    ) -> Result<Vec<String>, String> {
        config.check(&self.ground.topology, file).map_err(|err| err.to_string())?;
        if config.host != self.ground.host {
            return Err(format!(
                "{file}: its [host] table differs from the one in force; stop the daemon and run it with the new file"
            ));
        }
        let is_new = |wanted: &&TaskConfig| !self.tasks.iter().any(|task| task.serves(wanted));
        let fresh: Vec<&TaskConfig> = config.tasks.iter().filter(is_new).collect();
        // What a leaving task launched ends with it, and cannot go to a lane.
        let keeps = |task: &Task| !self.is_unwanted(task, config) || task.has_launched();
        self.preflight(&fresh, file, keeps)?;
        let mut said = self.drain_unwanted(config, dry_run)?;
        for wanted in &config.tasks {
            said.extend(self.reconcile(wanted, dry_run)?);
        }
        if said.is_empty() {
            said.push("nothing to change".to_owned());
        }
        Ok(said)
    }

    /// Whether a configuration removes a task.
    fn is_unwanted(&self, task: &Task, config: &Config) -> bool {
        let is_wanted = config.tasks.iter().any(|wanted| task.serves(wanted));
        !is_wanted && !task.is_registered() && !self.is_attached(task)
    }

    fn drain_unwanted(&mut self, config: &Config, dry_run: bool) -> Result<Vec<String>, String> {
        let going = self.tasks.iter().filter(|task| self.is_unwanted(task, config));
        let going: Vec<String> = going.map(|task| task.name().to_owned()).collect();
        let mut said = Vec::new();
        for name in going {
            match dry_run {
                true => said.push(format!("{name}: would be drained")),
                false => said.extend(self.drain(&name, false)?),
            }
        }
        Ok(said)
    }

    fn reconcile(&mut self, wanted: &TaskConfig, dry_run: bool) -> Result<Vec<String>, String> {
        let managed = self.ground.checked.managed;
        let Some(task) = self.tasks.iter_mut().find(|task| task.serves(wanted)) else {
            if dry_run {
                return Ok(vec![format!(
                    "{}: would {}",
                    wanted.name,
                    sources::in_words(&wanted.source)
                )]);
            }
            return Ok(vec![self.start(wanted)?]);
        };
        if task.config == *wanted {
            return Ok(Vec::new());
        }
        if dry_run {
            return Ok(vec![format!("{}: its limits would change", wanted.name)]);
        }
        task.change(wanted, &managed, &self.engine)?;
        Ok(vec![format!("{}: limits changed", wanted.name)])
    }

    /// Checks what can be known to fail of tasks that are to start; `keeps` says which tasks keep their processes.
    fn preflight(
        &self,
        fresh: &[&TaskConfig],
        file: &str,
        keeps: impl Fn(&Task) -> bool,
    ) -> Result<(), String> {
        // Before the first lane starts, RT throttling goes off.
        let throttled = !fresh.iter().any(|task| fills_its_core(task));
        preflight(fresh, &self.ground.host, &self.ground.layout, throttled, file)?;
        // Two schedulers of one thread would each take the other's rung for the thread's own.
        let lanes = fresh.iter().filter(|task| matches!(task.source, Source::Lane(_)));
        for task in lanes {
            let wanted = sources::processes(&task.source);
            let owns = |other: &&Task| other.pids().any(|pid| wanted.contains(&pid));
            if let Some(other) = self.tasks.iter().filter(|other| keeps(other)).find(owns) {
                return Err(format!(
                    "{file}: task `{}`: a process of it belongs to task `{}`; `quell remove {}` frees it",
                    task.name,
                    other.name(),
                    other.name()
                ));
            }
        }
        Ok(())
    }

    fn start(&mut self, wanted: &TaskConfig) -> Result<String, String> {
        let (managed, away) = (self.ground.checked.managed, self.away());
        let task = Task::start(wanted, &managed, away, &mut self.schedulers, &self.engine)?;
        let said = format!("{}: {}", wanted.name, task.describe());
        self.tasks.push(task);
        Ok(said)
    }

    /// Where BE goes when no managed core is left: nowhere, since what it would disturb there is not
    /// ours to weigh. Kept as one place to change that.
    fn away(&self) -> CoreSet {
        CoreSet::EMPTY
    }

    /// Gives one task back and ends a launched program, unless it is to be kept.
    ///
    /// # Errors
    /// When there is no such task.
    pub fn drain(&mut self, name: &str, keep: bool) -> Result<Vec<String>, String> {
        let task = self.tasks.remove(self.task(name)?);
        if self.registrations.iter().any(|registration| registration.task == task.id) {
            self.drained.extend(task.pids().filter_map(runtimes::process));
        }
        self.registrations.retain(|registration| registration.task != task.id);
        task.end(&mut self.schedulers, &self.engine, keep)
    }

    /// The place of the task with this name.
    /// Tasks and registrations fit together. Release builds compile this to nothing.
    fn debug_check(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        for (at, task) in self.tasks.iter().enumerate() {
            let again = self.tasks[at + 1..].iter().any(|other| other.id == task.id);
            debug_assert!(!again, "two tasks are {}", task.id);
            let again = self.tasks[at + 1..].iter().any(|other| other.name() == task.name());
            debug_assert!(!again, "two tasks are named {}", task.name());
        }
        for (at, registration) in self.registrations.iter().enumerate() {
            let known = self.tasks.iter().any(|task| task.id == registration.task);
            debug_assert!(
                known,
                "a runtime is registered for task {}, which left",
                registration.task
            );
            let later = &self.registrations[at + 1..];
            let again = later.iter().any(|other| other.task == registration.task);
            debug_assert!(!again, "task {} has two runtimes", registration.task);
        }
    }

    fn task(&self, name: &str) -> Result<usize, String> {
        self.tasks.iter().position(|task| task.name() == name).ok_or_else(|| {
            let known: Vec<&str> = self.tasks.iter().map(Task::name).collect();
            format!("there is no task `{name}`; tasks are: {}", known.join(", "))
        })
    }

    /// Looks for programs that ended and, once a second, for processes that ended and new ones that
    /// belong to a task. Walking /proc is the daemon's largest cost, so nothing is looked for that an
    /// event would tell.
    pub fn look(&mut self) {
        self.debug_check();
        self.tasks.iter_mut().for_each(Task::notice_end);
        // Relaxed: a flag alone; the look that follows reads /proc anew.
        let lost = self.sweep_due.swap(false, Ordering::Relaxed);
        let full = lost || self.looked.elapsed() >= FULL_LOOK;
        if full {
            self.look_at_processes(lost);
        }
        if let Some(weighed) = self.weighed.as_mut().filter(|weighed| full || weighed.is_unsure()) {
            weighed.look(&mut self.tasks, &self.engine);
        }
    }

    /// `lost`: events were.
    fn look_at_processes(&mut self, lost: bool) {
        self.looked = Instant::now();
        self.tasks.iter_mut().for_each(Task::notice_exits);
        for task in &mut self.tasks {
            task.look_for_hints(&self.engine);
            let id = task.id;
            let is_runtime = self.registrations.iter().any(|registration| registration.task == id);
            task.assign_roles(is_runtime, &self.engine);
        }
        for at in 0..self.tasks.len() {
            if !lost && !self.tasks[at].may_grow() {
                continue;
            }
            let others = self.tasks.iter().enumerate().filter(|(other, _)| *other != at);
            let taken: Vec<i32> = others.flat_map(|(_, task)| task.pids()).collect();
            self.tasks[at].look(&taken, lost, &self.engine);
        }
    }

    /// Serves calls and looks around until asked to end.
    pub fn serve(
        &mut self,
        calls: &Receiver<Incoming>,
        runtimes: &Receiver<Visit>,
        signals: &Receiver<()>,
        mut live: Option<LiveLine>,
    ) -> (End, Option<Incoming>) {
        let mut look_due = Instant::now();
        loop {
            if Instant::now() >= look_due {
                self.look();
                look_due = Instant::now() + LOOK;
                if self.is_left() {
                    return (End::Asked { keep: false }, None);
                }
                if let Some(live) = &mut live {
                    live.show(self);
                }
            }
            let left = look_due.saturating_duration_since(Instant::now());
            select! {
                recv(signals) -> _ => return (End::Asked { keep: false }, None),
                recv(calls) -> call => match call {
                    Ok(stop @ Incoming { call: Method::Stop { keep_programs: keep }, .. }) => {
                        return (End::Asked { keep }, Some(stop));
                    }
                    Ok(incoming) => {
                        let reply = self.answer(incoming.peer, incoming.connection, incoming.call);
                        // A client that left meanwhile misses its answer.
                        let _ = incoming.reply.send(reply);
                    }
                    Err(_) => return (End::Asked { keep: false }, None),
                },
                // A server that ended leaves the runtimes that are there.
                recv(runtimes) -> visit => visit.into_iter().for_each(|visit| self.receive(visit)),
                default(left) => {}
            }
        }
    }

    fn answer(&mut self, peer: Peer, connection: u64, call: Method) -> Reply {
        let said = match call {
            Method::Status => {
                return self.status().map_or_else(
                    |err| Reply::Error(no_answer(err)),
                    |status| Reply::Status(Box::new(status)),
                );
            }
            Method::Congestion => {
                return self
                    .engine
                    .call(Command::Congestion)
                    .map_or_else(|err| Reply::Error(no_answer(err)), Reply::Congestion);
            }
            Method::Apply { file, text, dry_run } => Config::parse(&text, &file)
                .map_err(|err| err.to_string())
                .and_then(|config| self.apply(&config, &file, dry_run)),
            Method::Attach { file, text } => Config::parse(&text, &file)
                .map_err(|err| err.to_string())
                .and_then(|config| self.attach(connection, config, &file)),
            Method::Remove { task } => self.drain(&task, false),
            Method::Report(report) => self
                .task(&report.task)
                .and_then(|at| self.tasks[at].report(&report, peer))
                .map(|()| Vec::new()),
            Method::Explain { subject } => self
                .engine
                .call(|reply| Command::Why(subject, reply))
                .map_err(no_answer)
                .and_then(|said| said),
            Method::Schema | Method::Stop { .. } | Method::Subscribe | Method::Register(_) => {
                Err("answered elsewhere".to_owned())
            }
        };
        said.map_or_else(Reply::Error, Reply::Done)
    }

    /// What runs where.
    ///
    /// # Errors
    /// When the scheduler thread does not answer.
    pub fn status(&self) -> Result<Status, NoAnswer> {
        let mut status = *self.engine.call(Command::Status)?;
        let fixed = &self.static_status;
        status.version.clone_from(&fixed.version);
        status.host.clone_from(&fixed.host);
        status.back_end.clone_from(&fixed.back_end);
        status.observer.clone_from(&fixed.observer);
        status.pid = fixed.pid;
        status.uptime_s = self.started.elapsed().as_secs();
        status.counters.daemon_cpu_ms = quell_os::clock::process_cpu().0 as f64 / 1e6;
        for row in &mut status.tasks {
            if let Some(task) = self.tasks.iter().find(|task| task.name() == row.name) {
                task.complete(row);
            }
        }
        Ok(status)
    }

    /// Gives everything back and ends the scheduler thread.
    pub fn shut_down(mut self, keep: bool) -> Vec<String> {
        let mut said = Vec::new();
        while let Some(name) = self.tasks.first().map(|task| task.name().to_owned()) {
            match self.drain(&name, keep) {
                Ok(lines) => said.extend(lines),
                Err(err) => said.push(err),
            }
        }
        match self.engine.call(Command::Shutdown) {
            Ok(lines) => said.extend(lines),
            Err(err) => said.push(no_answer(err)),
        }
        said
    }
}

fn no_answer(err: NoAnswer) -> String {
    err.to_string()
}
