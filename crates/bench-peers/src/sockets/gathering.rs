//! A TCP connection whose writes are gathered in the program, as a careful one does: sent when there are enough of them, or
//! half a millisecond after the first.

use std::io::{self, Write as _};
use std::net::TcpStream;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

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
    gathered: Mutex<Vec<u8>>,
}

impl Shared {
    fn gathered(&self) -> MutexGuard<'_, Vec<u8>> {
        self.gathered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn send(&self, gathered: &mut Vec<u8>) -> io::Result<()> {
        (&self.stream).write_all(gathered)?;
        gathered.clear();
        Ok(())
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
    while let Ok(first) = waiting.recv() {
        thread::sleep(DELAY);
        for shared in std::iter::once(first).chain(waiting.try_iter()) {
            // A lost connection fails at its next read or write.
            let _ = shared.send(&mut shared.gathered());
        }
    }
}

impl Gathering {
    pub fn stream(&self) -> &TcpStream {
        &self.shared.stream
    }

    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut gathered = self.shared.gathered();
        gathered.extend_from_slice(bytes);
        if gathered.len() >= ENOUGH {
            self.shared.send(&mut gathered)?;
        } else if gathered.len() == bytes.len() {
            // The thread lives as long as this.
            let _ = self.waits.send(Arc::clone(&self.shared));
        }
        Ok(bytes.len())
    }

    pub fn flush(&self) -> io::Result<()> {
        self.shared.send(&mut self.shared.gathered())
    }
}
