//! What a running daemon decided meanwhile.

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded, unbounded};
use quell_control::client::{Client, ClientError};
use quell_control::protocol::{Call, Decision, Reply};
use quell_model::Nanos;

/// How often the daemon is asked: a part of [`LATEST`].
const EVERY: Duration = Duration::from_millis(100);
/// How often a daemon that is not there is looked for.
const AGAIN: Duration = Duration::from_secs(1);
/// How long after it was taken a decision is known here.
pub(crate) const LATEST: Nanos = Nanos::from_millis(500);

/// Asks the daemon from a thread of its own, so that a daemon that is slow holds up no event.
pub(crate) struct Decisions {
    news: Receiver<(Nanos, Arc<str>)>,
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
    pub fn take(&self) -> impl Iterator<Item = (Nanos, Arc<str>)> {
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

fn follow(socket: &Path, from: Nanos, tell: &Sender<(Nanos, Arc<str>)>, stop: &Receiver<()>) {
    let (mut client, mut newest_us) = (None, from.0 / 1_000);
    loop {
        let pause = match decisions(&mut client, socket) {
            Ok(decisions) => {
                for decision in decisions.iter().filter(|decision| decision.at_us > newest_us) {
                    if tell.send((Nanos(decision.at_us * 1_000), in_words(decision))).is_err() {
                        return;
                    }
                }
                let last = decisions.iter().map(|decision| decision.at_us).max();
                newest_us = newest_us.max(last.unwrap_or(0));
                EVERY
            }
            Err(_) => {
                client = None;
                AGAIN
            }
        };
        if stop.recv_timeout(pause) != Err(RecvTimeoutError::Timeout) {
            return;
        }
    }
}

fn decisions(client: &mut Option<Client>, socket: &Path) -> Result<Vec<Decision>, ClientError> {
    let client = match client {
        Some(client) => client,
        None => client.insert(Client::connect(socket)?.with_patience(AGAIN)?),
    };
    match client.call(Call::Status)? {
        Reply::Status(status) => Ok(status.decisions),
        _ => Err(ClientError::Refused("the daemon answered out of turn".to_owned())),
    }
}

fn in_words(decision: &Decision) -> Arc<str> {
    let owner = |task: &Option<String>| task.clone().unwrap_or_else(|| "nobody".to_owned());
    let (from, to) = (owner(&decision.from), owner(&decision.to));
    format!("core {}: {from} -> {to}: {}", decision.core, decision.reason).into()
}
