//! A task's page of hints: found when its service has made it, found anew when it was made anew.

use std::path::Path;

use quell_control::config::Launch;
use quell_control::protocol::{HintsStatus, TaskStatus};
use quell_model::TaskId;
use quell_shm::{HintsError, Identity, PATH_VARIABLE, Reader};

use crate::command::Command;
use crate::mailbox::Postbox;

/// The page of one task.
#[derive(Default)]
pub struct Hints {
    /// The file that the scheduler thread reads.
    open: Option<Identity>,
    /// Why it reads none.
    problem: Option<String>,
}

impl Hints {
    /// Has the scheduler thread read the file at `path`, if it does not yet. `users` are those of the task's
    /// processes.
    pub fn look(&mut self, path: &Path, users: &[u32], task: TaskId, engine: &Postbox<Command>) {
        let there = Identity::of(path);
        if self.open.is_some() && self.open == there {
            return;
        }
        match Reader::open(path, users) {
            Ok(reader) => {
                self.open = Some(reader.identity());
                self.problem = None;
                // A scheduler thread that is gone reads no hints.
                let _ = engine.call(|reply| Command::Hints(task, Some(reader), reply));
            }
            Err(err) => {
                // The old file is gone, and what it says with it.
                self.close(task, engine);
                self.problem = Some(in_words(&err));
            }
        }
    }

    /// Has the scheduler thread read no page any more.
    pub fn close(&mut self, task: TaskId, engine: &Postbox<Command>) {
        self.problem = None;
        if self.open.take().is_some() {
            let _ = engine.call(|reply| Command::Hints(task, None, reply));
        }
    }

    /// Adds to the task's row of the status what the scheduler thread does not know.
    pub fn complete(&self, path: Option<&Path>, row: &mut TaskStatus) {
        let Some(path) = path else { return };
        let status = row.hints.get_or_insert_with(HintsStatus::default);
        status.page = path.display().to_string();
        if let Some(problem) = &self.problem {
            status.problem = Some(problem.clone());
        }
    }
}

fn in_words(err: &HintsError) -> String {
    match err {
        HintsError::Io(err) if err.kind() == std::io::ErrorKind::NotFound => {
            "its service has not made it".to_owned()
        }
        err => err.to_string(),
    }
}

/// A launch whose program finds the path of its page in the environment.
pub fn with_path(launch: &Launch, page: Option<&Path>) -> Launch {
    let mut launch = launch.clone();
    let page = page.map(|page| (PATH_VARIABLE.to_owned(), page.display().to_string()));
    launch.env.extend(page);
    launch
}
