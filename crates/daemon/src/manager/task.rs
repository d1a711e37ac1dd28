//! One task of the manager: its source, its processes, its program.

use std::collections::BTreeSet;
use std::path::PathBuf;

use quell_act::Joining;
use quell_act::backend::{TaskGroups, TaskInfo};
use quell_control::config::{LaneConfig, Source, TaskConfig};
use quell_control::protocol::{LatencyReport, TaskStatus};
use quell_model::{Children, CoreSet, TaskId};
use quell_observe::procs;

use super::hints::{self, Hints};
use super::lanes::{self, Schedulers};
use super::roles::Assigned;
use super::{no_answer, sources};
use crate::access::Peer;
use crate::command::{Command, GroupCall, Newcomer};
use crate::lane::LaneRequest;
use crate::latency::Gauge;
use crate::launch::{Launched, in_words};
use crate::mailbox::Postbox;

/// A task that runs, or waits for its processes.
pub struct Task {
    /// What was asked for.
    pub config: TaskConfig,
    /// Its place.
    pub id: TaskId,
    processes: BTreeSet<i32>,
    /// What Quell started: the command, or members of the lane.
    programs: Vec<Launched>,
    groups: Option<TaskGroups>,
    /// That of them in which its processes are found.
    home: Option<PathBuf>,
    ended: Option<String>,
    problems: Vec<String>,
    /// What stands in the way of its cgroup's counting for least, at the last look.
    weight_problem: Option<String>,
    /// Reads its latency and load; LC only.
    gauge: Option<Gauge>,
    /// Its page of hints.
    hints: Hints,
    /// Roles that its configuration gives threads.
    assigned: Assigned,
}

impl Task {
    /// Launches or adopts what the configuration names.
    ///
    /// # Errors
    /// A sentence; what was begun is taken back.
    pub fn start(
        config: &TaskConfig,
        managed: &CoreSet,
        away: CoreSet,
        schedulers: &mut Schedulers,
        engine: &Postbox<Command>,
    ) -> Result<Task, String> {
        let named = |what: String| format!("task `{}`: {what}", config.name);
        let lane = match &config.source {
            Source::Lane(lane) => {
                Some((lane, LaneRequest::check(lane).map_err(|err| named(format!("{err:#}")))?))
            }
            _ => None,
        };
        let programs = match (&config.source, &lane) {
            (Source::Command(launch), _) => {
                let launch = hints::with_path(launch, config.hints.as_deref());
                let program = Launched::spawn(&launch);
                vec![program.map_err(|err| named(format!("cannot launch: {err}")))?]
            }
            (_, Some((_, request))) => lanes::launch(request).map_err(named)?,
            _ => Vec::new(),
        };
        let newcomer = Newcomer {
            name: config.name.clone(),
            limits: config.limits(managed),
            children: config.children,
        };
        let id = engine.call(|reply| Command::Join(newcomer, reply)).map_err(no_answer)?;
        let mut task = Task {
            config: config.clone(),
            id,
            processes: BTreeSet::new(),
            programs,
            groups: None,
            home: None,
            ended: None,
            problems: Vec::new(),
            weight_problem: None,
            gauge: None,
            hints: Hints::default(),
            assigned: Assigned::default(),
        };
        let lane = lane.as_ref().map(|(lane, request)| (lane.as_ref(), request));
        if let Err(what) = task.begin(managed, away, lane, schedulers, engine) {
            // What was begun is given back before anybody hears of it.
            let _ = task.end(schedulers, engine, false);
            return Err(named(what));
        }
        task.start_gauge(engine);
        Ok(task)
    }

    /// From a place among the tasks to threads that are followed, and programs that run.
    fn begin(
        &mut self,
        managed: &CoreSet,
        away: CoreSet,
        lane: Option<(&LaneConfig, &LaneRequest)>,
        schedulers: &mut Schedulers,
        engine: &Postbox<Command>,
    ) -> Result<(), String> {
        let id = self.id;
        if let Some((typed, request)) = lane {
            let allowed = self.config.allowed(managed);
            if let Err(why) = engine.call(Command::Unthrottle).map_err(no_answer)? {
                self.problems.push(format!("RT throttling stays on: {why}"));
            }
            let remark = schedulers.open(id, typed, request, &allowed, engine)?;
            self.problems.extend(remark);
        }
        let info = TaskInfo {
            id,
            name: self.config.name.clone(),
            may_freeze: self.config.allow_freeze,
            groups: self.make_groups(engine)?,
            away,
            switched: schedulers.rungs.filter(|_| lane.is_some()).map(|rungs| rungs.members),
        };
        engine.call(|reply| Command::Admit(info, reply)).map_err(no_answer)?;
        match (lane, self.programs.first().map(Launched::pid)) {
            (Some((_, request)), _) => {
                let members = lanes::watch(id, request, &self.programs, engine)?;
                self.processes.extend(members);
            }
            (None, Some(pid)) => self.watch(vec![pid], engine),
            (None, None) => self.look(&[], false, engine),
        }
        // All at once, when everybody is there.
        self.programs.iter().try_for_each(|it| it.release().map_err(|err| err.to_string()))
    }

    fn start_gauge(&mut self, engine: &Postbox<Command>) {
        let latency = self.config.latency.as_ref();
        self.gauge = latency.map(|config| Gauge::start(self.id, config, engine));
    }

    /// Takes what the task's limits and latency are to be from now on. It has to [`Task::serves`] it.
    ///
    /// # Errors
    /// When the scheduler thread does not answer.
    pub fn change(
        &mut self,
        wanted: &TaskConfig,
        managed: &CoreSet,
        engine: &Postbox<Command>,
    ) -> Result<(), String> {
        let (id, limits) = (self.id, wanted.limits(managed));
        let same_latency = self.config.latency == wanted.latency;
        if self.config.hints != wanted.hints {
            self.hints.close(id, engine);
        }
        self.config = wanted.clone();
        if !same_latency {
            self.start_gauge(engine);
        }
        engine.call(|reply| Command::SetLimits(id, limits, reply)).map_err(no_answer)
    }

    /// Takes what somebody measured of its latency.
    ///
    /// # Errors
    /// A sentence: who reports has no right to, or the report makes no sense.
    pub fn report(&self, report: &LatencyReport, peer: Peer) -> Result<(), String> {
        let name = self.name();
        let own = |pid| procs::user(pid).is_ok_and(|user| user == peer.uid);
        let serves = !self.processes.is_empty() && self.pids().all(own);
        if !(peer.may_change() || serves) {
            return Err(format!(
                "user {} may not report on `{name}`: root and the user of its processes may",
                peer.uid
            ));
        }
        let gauge = self.gauge.as_ref();
        gauge
            .ok_or_else(|| format!("`{name}` is best-effort and has no latency"))?
            .report(report, peer.pid)
    }

    /// A launched program runs in groups of Quell's, so that it can be frozen. An adopted process stays
    /// where it is, and is frozen there only with consent.
    fn make_groups(&mut self, engine: &Postbox<Command>) -> Result<TaskGroups, String> {
        let call = match (self.programs.first(), &self.config.source, self.config.allow_freeze) {
            (_, Source::Lane(_), _) => return Ok(TaskGroups::default()),
            (Some(program), _, _) => GroupCall::Make {
                task: self.id,
                name: self.config.name.clone(),
                pid: program.pid(),
            },
            (None, Source::Pid(pid), true) => GroupCall::Find { pid: *pid },
            (None, _, true) => {
                self.problem(
                    "`allow_freeze` works for a task by `command` or `pid` only; not frozen".into(),
                );
                return Ok(TaskGroups::default());
            }
            (None, _, false) => return Ok(TaskGroups::default()),
        };
        match engine.call(|reply| Command::Groups(call, reply)).map_err(no_answer)? {
            Ok((groups, moves)) => {
                if !self.programs.is_empty() {
                    self.groups = Some(groups.clone());
                }
                let entered = self.enter(groups, moves, engine);
                self.home = entered.freezer.clone().filter(|_| !self.programs.is_empty());
                Ok(entered)
            }
            Err(why) => {
                self.problem(format!("no group in which it can be frozen: {why}"));
                Ok(TaskGroups::default())
            }
        }
    }

    /// Moves the program into its groups; answers with those that it is in.
    fn enter(
        &mut self,
        mut groups: TaskGroups,
        moves: Vec<Joining>,
        engine: &Postbox<Command>,
    ) -> TaskGroups {
        for joining in moves {
            let moved = joining.carry_out();
            if let Err(why) = &moved {
                groups.leave_out(joining.dir());
                self.problem(format!("it stays in the cgroup that it is in: {why}"));
            }
            engine.post(Command::Joined(joining, moved.is_ok()));
        }
        groups
    }

    /// The task's name.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// Whether this task can become what is wanted by changing limits and latency alone.
    pub fn serves(&self, wanted: &TaskConfig) -> bool {
        let same = TaskConfig {
            guaranteed: self.config.guaranteed,
            max: self.config.max,
            cores: self.config.cores,
            times: self.config.times,
            latency: self.config.latency.clone(),
            hints: self.config.hints.clone(),
            threads: self.config.threads.clone(),
            ..wanted.clone()
        };
        same == self.config
    }

    /// Whether a runtime made it by registering: no configuration knows it.
    pub fn is_registered(&self) -> bool {
        matches!(self.config.source, Source::Registered(_))
    }

    /// How it came, in words.
    pub fn describe(&self) -> String {
        match (&self.config.source, self.processes.len()) {
            (Source::Command(_), _) => {
                let pid = self.processes.first().copied().unwrap_or_default();
                format!("launched as process {pid}")
            }
            (Source::Lane(lane), _) => {
                let members = format!("a lane of {} members", lane.member.len());
                self.problems.iter().fold(members, |said, problem| format!("{said}; {problem}"))
            }
            (_, 0) => "waiting for processes".to_owned(),
            (_, 1) => "adopted 1 process".to_owned(),
            (_, many) => format!("adopted {many} processes"),
        }
    }

    /// Whether programs of it end with it.
    pub fn has_launched(&self) -> bool {
        !self.programs.is_empty()
    }

    /// The processes that belong to it.
    pub fn pids(&self) -> impl Iterator<Item = i32> + '_ {
        self.processes.iter().copied()
    }

    /// Notices the end of a launched program: cheap, one system call.
    pub fn notice_end(&mut self) {
        let ended: Vec<_> = self.programs.iter_mut().filter_map(Launched::ended).collect();
        if ended.is_empty() {
            return;
        }
        self.notice_exits();
        // A lane goes on with the members that are left.
        if let Some(last) = ended.last().filter(|_| self.processes.is_empty()) {
            self.ended.get_or_insert(in_words(*last));
        }
    }

    /// Notices the end of any of its processes: a file of /proc for each.
    pub fn notice_exits(&mut self) {
        self.processes.retain(|&pid| procs::exists(pid));
    }

    /// Opens the task's page of hints when it is there, and again when it was made anew.
    pub fn look_for_hints(&mut self, engine: &Postbox<Command>) {
        let Some(path) = self.config.hints.clone().filter(|_| !self.processes.is_empty()) else {
            return;
        };
        let users = self.pids().filter_map(|pid| procs::user(pid).ok());
        let users: std::collections::BTreeSet<u32> = users.collect();
        let users: Vec<u32> = users.into_iter().collect();
        self.hints.look(&path, &users, self.id, engine);
    }

    /// Gives threads the roles that the configuration gives their names. Those of a runtime have none.
    pub fn assign_roles(&mut self, is_runtime: bool, engine: &Postbox<Command>) {
        match is_runtime {
            true => self.assigned = Assigned::default(),
            false => self.assigned.look(self.id, &self.config.threads, engine),
        }
    }

    /// Whether processes that nobody told of can come to belong to it: those that match a name or enter a cgroup.
    pub fn may_grow(&self) -> bool {
        matches!(self.config.source, Source::Match(_) | Source::Cgroup(_))
    }

    /// Looks for processes that belong to it and are not `taken` by another task. What they create later
    /// is followed where it happens (BPF, or the sweep of the /proc observer); what they had created
    /// before is found here, once. `again` looks at the known ones' children too: events were lost.
    pub fn look(&mut self, taken: &[i32], again: bool, engine: &Postbox<Command>) {
        let mut found = sources::processes(&self.config.source);
        found.retain(|pid| !self.processes.contains(pid));
        if self.config.children == Children::Adopt {
            let known: Vec<i32> = if again { self.pids().collect() } else { Vec::new() };
            let roots = found.iter().copied().chain(known);
            let children: Vec<i32> = roots.flat_map(procs::descendants).collect();
            found.extend(children);
        }
        found.retain(|pid| !taken.contains(pid) && (again || !self.processes.contains(pid)));
        found.sort_unstable();
        found.dedup();
        if !found.is_empty() {
            self.watch(found, engine);
        }
    }

    fn watch(&mut self, pids: Vec<i32>, engine: &Postbox<Command>) {
        let mut threads = Vec::new();
        for pid in pids {
            // A process that ended between being found and being read is none of ours.
            if let Ok(found) = procs::threads(pid) {
                threads.extend(found);
                self.processes.insert(pid);
            }
        }
        let id = self.id;
        match engine.call(|reply| Command::Watch(id, threads, reply)) {
            Ok(problems) => problems.into_iter().for_each(|problem| self.problem(problem)),
            Err(err) => self.problem(no_answer(err)),
        }
    }

    fn problem(&mut self, what: String) {
        if self.problems.len() < 8 && !self.problems.contains(&what) {
            self.problems.push(what);
        }
    }

    /// Takes what stands in the way of its cgroup's counting for least now.
    pub fn note_weight(&mut self, problem: Option<String>) {
        self.weight_problem = problem;
    }

    /// Adds to its row of the status what the scheduler thread does not know.
    pub fn complete(&self, row: &mut TaskStatus) {
        row.source = sources::in_words(&self.config.source);
        row.state = match (&self.ended, row.processes.is_empty(), &self.config.source) {
            (Some(how), _, _) => how.clone(),
            (None, true, Source::Pid(_) | Source::Registered(_) | Source::Lane(_)) => {
                "exited".to_owned()
            }
            (None, true, _) => "waiting for processes".to_owned(),
            (None, false, _) => "running".to_owned(),
        };
        row.problems.extend(self.problems.iter().chain(&self.weight_problem).cloned());
        if self.assigned.without_effect {
            row.problems.push(
                "[[task.threads]] has no effect: roles need BPF and backend = \"elevation\""
                    .to_owned(),
            );
        }
        for thread in &mut row.roles {
            thread.name = procs::thread_name(thread.tid);
        }
        self.hints.complete(self.config.hints.as_deref(), row);
        if let (Some(gauge), Some(latency)) = (&self.gauge, &mut row.latency) {
            gauge.complete(latency);
        }
    }

    /// Gives the task back, and ends its program unless it is to be kept.
    ///
    /// # Errors
    /// When the scheduler thread does not answer.
    pub fn end(
        mut self,
        schedulers: &mut Schedulers,
        engine: &Postbox<Command>,
        keep: bool,
    ) -> Result<Vec<String>, String> {
        let id = self.id;
        schedulers.close(id);
        let mut said = engine.call(|reply| Command::Leave(id, reply)).map_err(no_answer)?;
        let group = self.home.take();
        for program in &mut self.programs {
            let pid = program.pid();
            if keep {
                said.push(format!("{}: left running as process {pid}", self.config.name));
                continue;
            }
            let members = || match &group {
                Some(dir) => procs::of_cgroup(&dir.to_string_lossy()).unwrap_or_default(),
                None => procs::descendants(pid),
            };
            let how = program.end(&members).map_or("gone".to_owned(), in_words);
            said.push(format!("{}: program {how}", self.config.name));
        }
        if let Some(groups) = self.groups.take() {
            // Here and not on the scheduler thread: each move may take as long as a second.
            let removed = if keep { groups.give_back() } else { groups.dismantle() };
            if let Err(why) = removed {
                said.push(format!(
                    "{}: a group stays until the daemon ends: {why}",
                    self.config.name
                ));
                return Ok(said);
            }
            engine.call(|reply| Command::Ungroup(groups, reply)).map_err(no_answer)?;
        }
        Ok(said)
    }
}
