//! Roles that the operator gives threads by their names (`[[task.threads]]`).

use std::collections::BTreeMap;

use quell_control::config::ThreadRule;
use quell_model::{Role, TaskId, ThreadId};
use quell_observe::procs;

use crate::command::Command;
use crate::mailbox::Postbox;

/// The roles given to threads of one task.
#[derive(Default)]
pub struct Assigned {
    roles: BTreeMap<ThreadId, Role>,
    /// Roles were asked for where threads have none.
    pub without_effect: bool,
}

impl Assigned {
    /// Compares the names of the task's threads with the rules. Threads come, and may change their names.
    pub fn look(&mut self, task: TaskId, rules: &[ThreadRule], engine: &Postbox<Command>) {
        if rules.is_empty() && self.roles.is_empty() {
            self.without_effect = false;
            return;
        }
        let Ok(threads) = engine.call(|reply| Command::Threads(task, reply)) else { return };
        let wanted: BTreeMap<ThreadId, Option<Role>> = threads
            .into_iter()
            .map(|(thread, id)| (id, role_of(&procs::thread_name(thread.tid.0), rules)))
            .collect();
        let changed = |(id, role): (&ThreadId, &Option<Role>)| {
            (self.roles.get(id).copied() != *role).then_some((*id, *role))
        };
        let changes: Vec<_> = wanted.iter().filter_map(changed).collect();
        if !changes.is_empty() {
            match engine.call(|reply| Command::AssignRoles(task, changes, reply)) {
                Ok(taken) => self.without_effect = !taken,
                // Told again at the next look.
                Err(_) => return,
            }
        }
        let given = wanted.into_iter().filter_map(|(id, role)| Some((id, role?)));
        self.roles = given.collect();
    }
}

/// The role of a thread with this name; the first rule that fits counts.
fn role_of(name: &str, rules: &[ThreadRule]) -> Option<Role> {
    rules.iter().find(|rule| rule.fits(name)).map(|rule| rule.role)
}
