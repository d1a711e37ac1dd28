//! What an administrator does while the load is offered, again and again.

use std::process::Stdio;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, anyhow};

use super::service::Service;

/// Commands under way, until dropped.
pub struct Meanwhile<'scope> {
    /// Dropping it ends the thread.
    end: Sender<()>,
    thread: std::thread::ScopedJoinHandle<'scope, Result<u64>>,
}

impl<'scope> Meanwhile<'scope> {
    /// Runs the service's commands from now on, the first of each after half of its time.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start<'env: 'scope>(
        scope: &'scope std::thread::Scope<'scope, 'env>,
        service: &'env Service,
    ) -> Result<Meanwhile<'scope>> {
        let (end, ended) = channel();
        let thread = std::thread::Builder::new().name("meanwhile".into());
        let thread = thread.spawn_scoped(scope, move || {
            let start = Instant::now();
            let all = &service.definition.during;
            let mut due: Vec<Duration> = all.iter().map(|one| one.every / 2).collect();
            let mut done = 0;
            while let Some((at, next)) = due.iter().copied().enumerate().min_by_key(|(_, due)| *due)
            {
                match ended.recv_timeout(next.saturating_sub(start.elapsed())) {
                    Err(RecvTimeoutError::Timeout) => {}
                    _ => return Ok(done),
                }
                let mut command = service.command(&all[at].command);
                command.stdout(Stdio::null()).stderr(Stdio::null());
                let name = all[at].command.join(" ");
                let status = command.status().with_context(|| name.clone())?;
                if !status.success() {
                    return Err(anyhow!("{name}: {status}"));
                }
                due[at] += all[at].every;
                done += 1;
            }
            let _ = ended.recv();
            Ok(done)
        });
        Ok(Meanwhile { end, thread: thread.context("start a thread")? })
    }

    /// Ends it; how many commands ran.
    ///
    /// # Errors
    /// When one failed.
    pub fn finish(self) -> Result<u64> {
        drop(self.end);
        self.thread.join().map_err(|_| anyhow!("the thread of meanwhile panicked"))?
    }
}
