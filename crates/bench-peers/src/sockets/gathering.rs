//! A TCP connection whose writes are gathered in the program, as a careful one does: sent when there are enough of them, or
//! half a millisecond after the first.

use std::io::{self, Write as _};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Gathered bytes that are sent at once.
const ENOUGH: usize = 64 << 10;
/// How long they wait for more: as long as those of virtual sockets do.
const DELAY: Duration = Duration::from_micros(500);

/// See the module.
pub struct Gathering {
    shared: Arc<Shared>,
    waits: Sender<Arc<Shared>>,
}

struct Shared {
    stream: TcpStream,
    gathered: Mutex<Gathered>,
}

#[derive(Default)]
struct Gathered {
    bytes: Vec<u8>,
    /// Since when the first of them waits.
    since: Option<Instant>,
    /// The thread has it.
    is_watched: bool,
}

impl Shared {
    fn gathered(&self) -> MutexGuard<'_, Gathered> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, gathered: &mut Gathered) -> io::Result<()> {
        (&self.stream).write_all(&gathered.bytes)?;
        gathered.bytes.clear();
        gathered.since = None;
        Ok(())
    }

    /// Sends what has waited for long enough. When to look again; `None` where nothing waits.
    fn send_due(&self) -> Option<Instant> {
        let mut gathered = self.gathered();
        let due = gathered.since.map(|since| since + DELAY);
        if due.is_some_and(|due| due <= Instant::now()) {
            // A lost connection fails at its next read or write.
            let _ = self.send(&mut gathered);
        }
        let later = gathered.since.and(due);
        gathered.is_watched = later.is_some();
        later
    }
}

/// The thread that sends what has waited.
#[derive(Clone)]
pub struct Gatherer(Sender<Arc<Shared>>);

impl Gatherer {
    pub fn start() -> Gatherer {
        let (waits, waiting) = channel();
        // It ends with the last connection.
        thread::spawn(move || send_in_time(&waiting));
        Gatherer(waits)
    }

    pub fn gather(&self, stream: TcpStream) -> Gathering {
        let shared = Shared { stream, gathered: Mutex::default() };
        Gathering { shared: Arc::new(shared), waits: self.0.clone() }
    }
}

fn send_in_time(waiting: &Receiver<Arc<Shared>>) {
    let mut watched = Vec::new();
    loop {
        if watched.is_empty() {
            let Ok(first) = waiting.recv() else { return };
            watched.push(first);
            thread::sleep(DELAY);
        }
        watched.extend(waiting.try_iter());
        let mut next: Option<Instant> = None;
        watched.retain(|shared: &Arc<Shared>| {
            let later = shared.send_due();
            next = next.into_iter().chain(later).min();
            later.is_some()
        });
        if let Some(next) = next {
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
    }
}

impl Gathering {
    pub fn stream(&self) -> &TcpStream {
        &self.shared.stream
    }

    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut gathered = self.shared.gathered();
        gathered.bytes.extend_from_slice(bytes);
        if gathered.bytes.len() >= ENOUGH {
            self.shared.send(&mut gathered)?;
            return Ok(bytes.len());
        }
        gathered.since.get_or_insert_with(Instant::now);
        if !std::mem::replace(&mut gathered.is_watched, true) {
            // The thread lives as long as this.
            let _ = self.waits.send(Arc::clone(&self.shared));
        }
        Ok(bytes.len())
    }

    pub fn flush(&self) -> io::Result<()> {
        self.shared.send(&mut self.shared.gathered())
    }
}
