//! A subscription that is read by a thread of its own.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::{Subscription, Update};
use crate::client::ClientError;

/// Updates that wait to be taken. Beyond that the thread stops reading, and the daemon counts lost lines.
const WAITING_MAX: usize = 4096;
/// Interval at which the thread checks whether to end.
const PATIENCE: Duration = Duration::from_millis(50);
/// Interval at which a daemon that is not there is looked for, in units of [`PATIENCE`].
const CONNECT_EVERY: u32 = 20;

/// Keeps a subscription at the daemon that listens on a socket, whenever one does.
pub struct Follower {
    /// `None` only while dropped.
    news: Option<Receiver<Result<Update, ClientError>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Follower {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(socket: &Path) -> io::Result<Follower> {
        let (send, news) = sync_channel(WAITING_MAX);
        let stop = Arc::new(AtomicBool::new(false));
        let (socket, stopped) = (socket.to_owned(), Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name("quell-decisions".to_owned())
            .spawn(move || follow(&socket, &send, &stopped))?;
        Ok(Follower { news: Some(news), stop, thread: Some(thread) })
    }

    /// What came since the last call, without waiting. An error ends a connection: what was known of the daemon no
    /// longer holds, and its state comes again with the next connection.
    pub fn take(&self) -> impl Iterator<Item = Result<Update, ClientError>> {
        self.news.iter().flat_map(Receiver::try_iter)
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        // Relaxed: a flag alone, nothing is published by it.
        self.stop.store(true, Ordering::Relaxed);
        // A thread that waits for room ends by this.
        drop(self.news.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn follow(socket: &Path, news: &SyncSender<Result<Update, ClientError>>, stop: &AtomicBool) {
    // It works little, and a recorder waits for its updates. Without the right to it they come later, no more.
    let _ = quell_os::own::go_before_others();
    // Relaxed: pairs with the store in `drop`, and orders nothing.
    let stopped = || stop.load(Ordering::Relaxed);
    while !stopped() {
        let ended = match Subscription::open(socket, PATIENCE) {
            Ok(subscription) => relay(subscription, news, &stopped),
            Err(ClientError::NotRunning(_)) => None,
            Err(err) => Some(err),
        };
        if ended.is_some_and(|err| news.send(Err(err)).is_err()) {
            return;
        }
        (0..CONNECT_EVERY).take_while(|_| !stopped()).for_each(|_| std::thread::sleep(PATIENCE));
    }
}

/// Reads until the connection ends, for the reason returned, or nothing is wanted any more.
fn relay(
    mut subscription: Subscription,
    news: &SyncSender<Result<Update, ClientError>>,
    stopped: &impl Fn() -> bool,
) -> Option<ClientError> {
    while !stopped() {
        match subscription.next_update() {
            Ok(Some(update)) => news.send(Ok(update)).ok()?,
            Ok(None) => {}
            Err(err) => return Some(err),
        }
    }
    None
}
