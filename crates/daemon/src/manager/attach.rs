//! Tasks that are there for as long as a connection is open: those of `quell lane run`.

use std::time::{Duration, Instant};

use quell_control::config::{Config, TaskConfig};

use super::Manager;
use super::task::Task;
use crate::boot::Lifetime;

/// How long a daemon that ends by itself waits for its first task.
const FIRST: Duration = Duration::from_secs(20);

impl Manager {
    /// Adds the tasks of a configuration until the connection is closed. Its `[host]` table is not read.
    ///
    /// # Errors
    /// A sentence; nothing was changed.
    pub(super) fn attach(
        &mut self,
        connection: u64,
        mut config: Config,
        file: &str,
    ) -> Result<Vec<String>, String> {
        config.host = self.ground.host.clone();
        config.check(&self.ground.topology, file).map_err(|err| err.to_string())?;
        let fresh: Vec<&TaskConfig> = config.tasks.iter().collect();
        if let Some(twice) = fresh.iter().find(|task| self.task(&task.name).is_ok()) {
            return Err(format!("{file}: there is a task `{}` already", twice.name));
        }
        self.preflight(&fresh, file, |_| true)?;
        let mut said = Vec::new();
        for (at, wanted) in config.tasks.iter().enumerate() {
            match self.start(wanted) {
                Ok(line) => said.push(line),
                Err(what) => {
                    for begun in &config.tasks[..at] {
                        // It was started a moment ago.
                        let _ = self.drain(&begun.name, false);
                    }
                    return Err(what);
                }
            }
        }
        self.attached.extend(config.tasks.into_iter().map(|task| (connection, task.name)));
        Ok(said)
    }

    /// A connection is closed: the tasks that it attached end.
    pub(super) fn detach(&mut self, connection: u64) {
        let (gone, kept) =
            std::mem::take(&mut self.attached).into_iter().partition(|(of, _)| *of == connection);
        self.attached = kept;
        let gone: Vec<(u64, String)> = gone;
        for (_, name) in gone {
            // One that was removed meanwhile is gone already.
            let _ = self.drain(&name, false);
        }
    }

    pub(super) fn is_attached(&self, task: &Task) -> bool {
        self.attached.iter().any(|(_, name)| name == task.name())
    }

    /// What ends the daemon by itself.
    pub fn live(&mut self, lifetime: Lifetime) {
        (self.lifetime, self.left_due) = (lifetime, Instant::now() + FIRST);
    }

    /// Whether the daemon's lifetime is over.
    pub(super) fn is_left(&mut self) -> bool {
        let wanted = match self.lifetime {
            Lifetime::UntilAsked => true,
            Lifetime::WhileAttached => !self.attached.is_empty(),
            // A scheduler thread that does not answer is no reason to end.
            Lifetime::WhileBusy => {
                self.status().map_or(true, |status| status.tasks.iter().any(|it| it.threads > 0))
            }
        };
        if wanted {
            self.left_due = Instant::now();
        }
        !wanted && Instant::now() >= self.left_due
    }
}
