//! The thread that sends and receives for all channels of an endpoint, with one ring.

use std::collections::BTreeSet;
use std::io;
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::link::{COPY_BELOW, Link, RECEIVE_MAX};
use super::ring::{BUFFERS, Event, Ring};
use crate::memory::{LARGE, Pool, Segment};
use crate::threads;
use crate::waiter::Waiter;

/// How long a channel that this side has ended goes on to send what was queued.
const LINGER: Duration = Duration::from_secs(1);
/// The interval of looks at such channels.
const LINGER_LOOK: Duration = Duration::from_millis(20);
/// Pause after the kernel has refused a call, which it should not.
const REFUSED_PAUSE: Duration = Duration::from_millis(1);

/// What the driver shares with the program's threads.
pub(super) struct Shared {
    waiter: Arc<Waiter>,
    kicked: Mutex<Kicked>,
    pub pool: Arc<Pool>,
    /// It takes no channels any more.
    is_stopping: AtomicBool,
}

/// Links that the driver is to look at.
#[derive(Default)]
struct Kicked {
    links: Vec<Arc<Link>>,
    /// The thread has ended: it looks at none.
    is_closed: bool,
}

impl Shared {
    /// Has the driver look at a link. One that comes after its end is ended here.
    pub(super) fn kick(&self, link: Arc<Link>) {
        let late = threads::hold(|| {
            let mut kicked = self.kicked.lock().unwrap_or_else(PoisonError::into_inner);
            if kicked.is_closed {
                return Some(link);
            }
            kicked.links.push(link);
            None
        });
        match late {
            Some(link) => give_up(&link, io::ErrorKind::NotConnected),
            None => Waker::from(Arc::clone(&self.waiter)).wake(),
        }
    }

    fn take_kicked(&self, closes: bool) -> Vec<Arc<Link>> {
        let mut kicked = self.kicked.lock().unwrap_or_else(PoisonError::into_inner);
        kicked.is_closed |= closes;
        std::mem::take(&mut kicked.links)
    }
}

/// See the module.
pub(crate) struct Driver {
    pub(super) shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Driver {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the kernel has no io_uring for this process, or no thread.
    pub(crate) fn start() -> io::Result<Driver> {
        let shared = Arc::new(Shared {
            waiter: Arc::new(Waiter::new()?),
            kicked: Mutex::default(),
            pool: Arc::default(),
            is_stopping: AtomicBool::new(false),
        });
        let (ready, is_ready) = sync_channel(1);
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("quell-net-uring".to_owned());
        let thread = thread.spawn(move || run(own, &ready))?;
        // A thread that ends without a word has panicked, which was reported.
        is_ready.recv().unwrap_or_else(|_| Err(io::Error::other("its thread ended")))?;
        Ok(Driver { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Whether it takes channels.
    pub(super) fn is_up(&self) -> bool {
        // Relaxed: a channel that comes too late is ended in `kick`.
        !self.shared.is_stopping.load(Ordering::Relaxed)
    }

    /// Ends all channels once what was queued is sent, and the thread with them.
    pub(crate) fn stop(&self) {
        // Relaxed: the waiter orders.
        self.shared.is_stopping.store(true, Ordering::Relaxed);
        Waker::from(Arc::clone(&self.shared.waiter)).wake();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // A panic was reported by the panic hook already.
        let _ = thread.map(JoinHandle::join);
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.stop();
    }
}

fn run(shared: Arc<Shared>, ready: &SyncSender<io::Result<()>>) {
    // Of this thread, as the kernel wants it.
    let ring = match Ring::new() {
        Ok(ring) => ring,
        Err(error) => {
            // The thread that has started this one waits for it.
            let _ = ready.send(Err(error));
            return;
        }
    };
    let _ = ready.send(Ok(()));
    Loop { ring, links: Links::default(), shared, ended: BTreeSet::new() }.run();
}

/// The links that the driver has, by their indices in the ring. They end with it, whatever ends it.
#[derive(Default)]
struct Links(Vec<Option<Arc<Link>>>);

impl Drop for Links {
    fn drop(&mut self) {
        self.0.iter().flatten().for_each(|link| give_up(link, io::ErrorKind::NotConnected));
    }
}

/// The driver does nothing more for a link.
fn give_up(link: &Link, why: io::ErrorKind) {
    link.with(|state| {
        state.is_over = true;
        state.queued.clear();
        (state.queued_bytes, state.sending_bytes) = (0, 0);
    });
    link.deliver(None, Some(Err(why)));
    // It fails where the connection has ended already.
    let _ = link.socket.shutdown(Shutdown::Both);
}

struct Loop {
    // Before the links: their memory is in use until it has ended.
    ring: Ring,
    links: Links,
    shared: Arc<Shared>,
    /// Channels that this side has ended.
    ended: BTreeSet<usize>,
}

impl Drop for Loop {
    fn drop(&mut self) {
        // Relaxed: as in `stop`, should this thread panic.
        self.shared.is_stopping.store(true, Ordering::Relaxed);
        let late = self.shared.take_kicked(true);
        late.iter().for_each(|link| give_up(link, io::ErrorKind::NotConnected));
    }
}

impl Loop {
    fn run(mut self) {
        let mut stops_at = None;
        loop {
            self.shared.waiter.reset();
            self.take_kicked();
            // Relaxed: the waiter orders.
            if self.shared.is_stopping.load(Ordering::Relaxed) {
                let until = *stops_at.get_or_insert_with(|| Instant::now() + LINGER);
                self.end_all();
                if self.links.0.iter().all(Option::is_none) || Instant::now() >= until {
                    return;
                }
            }
            self.ring.listen(self.shared.waiter.as_fd());
            let has_time = !self.ended.is_empty() || stops_at.is_some();
            let sleeps = self.shared.waiter.begin_sleep();
            let submitted = self.ring.submit(sleeps, has_time.then_some(LINGER_LOOK));
            let events = self.ring.events();
            let is_signalled = events.iter().any(|event| matches!(event, Event::Woken));
            self.shared.waiter.end_sleep(is_signalled);
            if let Err(error) = submitted {
                tracing::error!("io_uring refuses a call: {error}");
                std::thread::sleep(REFUSED_PAUSE);
            }
            self.handle(events);
            for index in self.ended.clone() {
                self.proceed(index);
            }
        }
    }

    fn take_kicked(&mut self) {
        for link in self.shared.take_kicked(false) {
            let is_over = link.with(|state| {
                state.is_kicked = false;
                state.is_over
            });
            // Its index, if it had one, may be another's.
            if is_over {
                continue;
            }
            match link.index.get().copied() {
                Some(index) => self.proceed(index),
                None => self.add(link),
            }
        }
    }

    fn add(&mut self, link: Arc<Link>) {
        let index = match self.ring.add(Arc::clone(&link.socket)) {
            Ok(index) => index,
            Err(error) => {
                tracing::error!("io_uring takes no further channel: {error}");
                return give_up(&link, error.kind());
            }
        };
        // It had none.
        let _ = link.index.set(index);
        if self.links.0.len() <= index {
            self.links.0.resize(index + 1, None);
        }
        self.links.0[index] = Some(link);
        self.proceed(index);
    }

    fn end_all(&mut self) {
        for link in self.links.0.iter().flatten() {
            link.with(|state| _ = state.ended_at.get_or_insert_with(Instant::now));
        }
        (0..self.links.0.len()).for_each(|index| self.proceed(index));
    }

    fn handle(&mut self, events: Vec<Event>) {
        let mut touched = Vec::new();
        for event in events {
            match event {
                Event::Woken => {}
                Event::Received { index, segment, bytes } => {
                    self.received(index, segment, bytes);
                    touched.push(index);
                }
                Event::Stopped { index, error } => {
                    if let (Some(error), Some(link)) = (error, self.link(index)) {
                        link.deliver(None, Some(Err(error.kind())));
                    }
                    touched.push(index);
                }
                Event::Sent { index, result } => {
                    if let Some(link) = self.link(index) {
                        link.has_sent();
                        if let Err(error) = result {
                            link.with(|state| {
                                state.queued.clear();
                                state.queued_bytes = 0;
                            });
                            link.deliver(None, Some(Err(error.kind())));
                        }
                    }
                    touched.push(index);
                }
            }
        }
        touched.sort_unstable();
        touched.dedup();
        touched.into_iter().for_each(|index| self.proceed(index));
    }

    fn link(&self, index: usize) -> Option<&Arc<Link>> {
        self.links.0.get(index)?.as_ref()
    }

    /// Bytes have arrived, or the end.
    fn received(&self, index: usize, segment: Option<Segment>, bytes: usize) {
        let Some(link) = self.links.0.get(index).and_then(Option::as_ref) else { return };
        match segment.filter(|_| bytes > 0) {
            None => link.deliver(None, Some(Ok(()))),
            // Its memory is provided again, if more may arrive.
            Some(mut segment) if bytes <= COPY_BELOW => {
                link.deliver_copy(&segment.free_mut()[..bytes]);
            }
            Some(mut segment) => {
                segment.fill(bytes);
                link.deliver(Some(segment.into_span()), None);
            }
        }
    }

    /// Begins what can be begun for a link, and ends it once it is over.
    fn proceed(&mut self, index: usize) {
        let Some(link) = self.links.0.get(index).and_then(Option::clone) else { return };
        let now = Instant::now();
        let provided = self.ring.provided(index);
        let (spans, wanted, receives, ended_at) = link.with(|state| {
            let mut spans = Vec::new();
            if state.sending_bytes == 0 && state.queued_bytes > 0 {
                spans = state.queued.drain(..).collect();
                state.sending_bytes = std::mem::take(&mut state.queued_bytes);
            }
            let room = RECEIVE_MAX.saturating_sub(state.received_bytes) / LARGE;
            let receives = !state.has_ended();
            let wanted = if receives { room.min(BUFFERS) } else { 0 };
            state.provided = wanted.max(provided);
            (spans, wanted, receives && state.provided > 0, state.ended_at)
        });
        for _ in provided..wanted {
            drop(self.ring.provide(index, self.shared.pool.segment(LARGE)));
        }
        if receives {
            self.ring.receive(index);
        }
        if !spans.is_empty() {
            self.ring.send(index, spans);
        }
        if let Some(ended_at) = ended_at {
            self.ended.insert(index);
            self.end(index, &link, now >= ended_at + LINGER);
        }
    }

    /// This side has ended a channel: it is freed once all is sent, or the time for that is over.
    fn end(&mut self, index: usize, link: &Arc<Link>, is_late: bool) {
        if link.with(|state| state.is_sent()) || is_late {
            // What the kernel does is completed by that. It fails where the connection has ended already.
            let _ = link.socket.shutdown(Shutdown::Both);
            self.ring.cancel_receive(index);
        }
        if self.ring.is_idle(index) && link.with(|state| state.queued_bytes == 0) {
            self.ring.remove(index);
            self.links.0[index] = None;
            self.ended.remove(&index);
            give_up(link, io::ErrorKind::NotConnected);
        }
    }
}
