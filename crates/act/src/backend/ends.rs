//! The two ends of a task's stay: what would be done to it, and giving it back.

use quell_model::{Plan, TaskId};

use super::engine::Engine;
use super::intent::{Change, Intended, Turn};
use super::record::Record;
use super::target::Targets;
use super::{Host, freezer};
use crate::{RestoreReport, Subject};
use quell_observe::ThreadView;
use quell_os::ThreadRef;

impl Engine {
    /// What a Plan would change, in the order of the batch. Threads that are not known yet are read;
    /// nothing is written, and the back end remembers nothing.
    pub fn preview(
        &self,
        plan: &Plan,
        threads: &[ThreadView],
        host: &mut dyn Host,
    ) -> Vec<Intended> {
        let mut targets = Targets::default();
        self.aim(&mut targets, plan);
        let mut changes: Vec<(Turn, Intended)> = Vec::new();
        for view in threads {
            let Some((want, _)) = targets.of(view.task) else { continue };
            let Some(state) = self.task(view.task) else { continue };
            let Some(record) = self.known_or_looked_at(plan, view, host) else { continue };
            let Some((original, lack)) =
                record.original.zip(state.lack(&record, want, &self.style))
            else {
                continue;
            };
            let thread = view.thread;
            let sched = lack.sched.map(|to| {
                let from = record.present_sched(&original);
                Change::Sched { thread, from, to }
            });
            let cores = lack.cores.map(|to| {
                let from = record.present_cores(&original);
                Change::Cores { thread, from, to }
            });
            for change in sched.into_iter().chain(cores) {
                let name = state.info.name.clone();
                changes.push((lack.turn, Intended { task: view.task, name, change }));
            }
        }
        changes.sort_by_key(|(turn, _)| *turn);
        let freezes = self.preview_freezes(&targets, threads);
        changes.into_iter().map(|(_, change)| change).chain(freezes).collect()
    }

    fn known_or_looked_at(
        &self,
        plan: &Plan,
        view: &ThreadView,
        host: &mut dyn Host,
    ) -> Option<Record> {
        let known = self.records.of(&view.thread).filter(|record| record.original.is_some());
        let mut record = match known {
            Some(record) => record.clone(),
            None => {
                let mut record = Record::new(view, 0);
                record.inspect(host).ok()?;
                record
            }
        };
        (record.role, record.relief) = (plan.role(view.id), plan.relief(view.id));
        Some(record)
    }

    fn preview_freezes<'a>(
        &'a self,
        targets: &'a Targets,
        threads: &'a [ThreadView],
    ) -> impl Iterator<Item = Intended> + 'a {
        self.tasks.iter().flatten().filter_map(|state| {
            let id = state.info.id;
            let (want, _) = targets.of(id)?;
            let mut status = state.status.clone();
            status.threads = threads.iter().filter(|view| view.task == id).count() as u32;
            status.unsettled = 0;
            let frozen = freezer::wanted(&state.info, &status, want)?;
            let group = state.info.groups.freezer.clone()?;
            let change = if frozen { Change::Freeze { group } } else { Change::Thaw { group } };
            Some(Intended { task: id, name: state.info.name.clone(), change })
        })
    }

    /// Gives a task's threads back as they were, thaws it and forgets it.
    pub fn release(&mut self, task: TaskId, host: &mut dyn Host) -> RestoreReport {
        let threads: Vec<ThreadRef> = self
            .records
            .iter()
            .filter(|record| record.task == task)
            .map(|record| record.thread)
            .collect();
        let mut report = host.give_back(&threads);
        if let Some(state) = self.task(task)
            && state.status.frozen
            && let Some(group) = &state.info.groups.freezer
            && let Err(error) = host.freeze(group, false)
        {
            report.failed.push((Subject::Setting(group.clone()), error.to_string()));
        }
        self.records.forget(task);
        if self.task(task).is_some() {
            self.tasks[task.at()] = None;
            self.forget_plan();
        }
        report
    }
}
