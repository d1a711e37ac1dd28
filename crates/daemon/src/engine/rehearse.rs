//! The dry run: what would be decided and changed, without changing anything.

use std::time::Duration;

use quell_act::backend::{TaskGroups, TaskInfo};
use quell_control::config::Config;
use quell_model::CoreSet;
use quell_observe::procs;
use quell_os::{ThreadRef, clock};

use super::Engine;
use crate::command::Newcomer;
use crate::manager::sources;

/// How long tasks are watched before deciding: a few ticks, so that states are seen.
const WATCH: Duration = Duration::from_millis(150);

impl Engine {
    /// Joins the tasks' processes as they are now, decides once, and tells what acting would change. The
    /// executor is one that changes nothing.
    pub fn rehearse(&mut self, config: &Config, managed: &CoreSet) -> Vec<String> {
        let mut said = Vec::new();
        for task in &config.tasks {
            said.push(format!("task {}: would {}", task.name, sources::in_words(&task.source)));
            let id = self.join(Newcomer {
                name: task.name.clone(),
                limits: task.limits(managed),
                children: task.children,
            });
            self.admit(TaskInfo {
                id,
                name: task.name.clone(),
                may_freeze: task.allow_freeze,
                groups: TaskGroups::default(),
                away: CoreSet::EMPTY,
                switched: None,
            });
            let found = sources::processes(&task.source);
            let threads: Vec<ThreadRef> =
                found.iter().filter_map(|&pid| procs::threads(pid).ok()).flatten().collect();
            said.extend(self.watch(id, &threads));
        }
        self.decide(clock::now());
        std::thread::sleep(WATCH);
        self.decide(clock::now());
        said.extend(self.planned_in_words());
        let threads = self.parts.sight.seen().threads();
        let intended = self.parts.back_end.preview(&self.plan, threads, &mut self.parts.executor);
        said.push(format!("would change {} things:", intended.len()));
        said.extend(intended.iter().map(|change| format!("  {change}")));
        said.push("nothing was changed".to_owned());
        said
    }

    fn planned_in_words(&self) -> Vec<String> {
        let core = |plan: &quell_model::CorePlan| {
            let owner = plan.owner.map_or("nobody".to_owned(), |id| self.members.name(id));
            format!("core {}: {}, {owner}'s: {}", plan.id, plan.mode, plan.reason)
        };
        let task = |plan: &quell_model::TaskPlan| {
            let name = self.members.get(plan.id).map(|member| &member.name)?;
            let shared_cores = match plan.shared_cores.is_empty() {
                true => String::new(),
                false => format!(", beneath the owners of {}", plan.shared_cores),
            };
            Some(format!(
                "task {name}: {} on rung {}{shared_cores}: {}",
                plan.class, plan.rung, plan.reason
            ))
        };
        let cores = self.plan.cores.iter().map(core);
        cores.chain(self.plan.tasks.iter().filter_map(task)).collect()
    }
}
