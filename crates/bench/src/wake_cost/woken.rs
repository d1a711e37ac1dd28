//! The thread that is woken: real-time, on the hog's core, asleep until somebody wants something.

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;

use anyhow::{Context as _, Result};
use quell_model::{CoreId, CoreSet};
use rustix::event::{EventfdFlags, epoll, eventfd};

use crate::host::{Policy, pin, set_policy, this_thread};

/// Its priority: that of a service's threads in `quell bench services`.
const PRIORITY: i32 = 20;
/// A request and an answer, as large as a GET of memcached and its value.
const REQUEST_BYTES: usize = 40;
const ANSWER_BYTES: usize = 300;
/// What a request reads: so many lines of a table of so many bytes, far more than the caches hold.
const LINES: usize = 200;
const TABLE_BYTES: usize = 64 << 20;
const LINE_WORDS: usize = 8;

/// Memory in which requests read.
pub struct Table(Vec<u64>);

impl Table {
    /// One of 64 MiB, all of it in memory.
    pub fn new() -> Table {
        // Not zeros: the kernel would map one page of zeros everywhere, which a cache holds.
        Table(vec![1; TABLE_BYTES / size_of::<u64>()])
    }

    /// Reads lines at random. Their addresses do not depend on what is read, so misses overlap as far as the core can.
    fn read(&self, state: &mut u64) -> u64 {
        let lines = self.0.len() / LINE_WORDS;
        (0..LINES).fold(0, |sum, _| {
            *state ^= *state << 13;
            *state ^= *state >> 7;
            *state ^= *state << 17;
            sum + self.0[*state as usize % lines * LINE_WORDS]
        })
    }
}

/// How it is woken, and what it does then.
#[derive(Clone)]
pub enum Way {
    /// It reads an eventfd.
    Event,
    /// It waits for a request by epoll, reads it, reads in the table if there is one, and answers.
    Packet(Option<Arc<Table>>),
}

/// The thread, until dropped.
pub struct Woken {
    shared: Arc<Shared>,
    bell: Bell,
    thread: Option<JoinHandle<()>>,
    tid: i32,
}

#[derive(Default)]
struct Shared {
    /// Release by the thread, Acquire by the waker: it sees the answer of what was counted.
    handled: AtomicU64,
    quit: AtomicBool,
}

enum Bell {
    Event(Arc<OwnedFd>),
    Packet(TcpStream),
}

impl Woken {
    /// Starts it on a core.
    ///
    /// # Errors
    /// When it cannot be started or placed: SCHED_FIFO needs the right to it.
    pub fn start(core: CoreId, way: Way) -> Result<Woken> {
        let shared = Arc::new(Shared::default());
        let seen = shared.clone();
        let (bell, serve): (Bell, Box<dyn FnOnce() -> io::Result<()> + Send>) = match way {
            Way::Event => {
                let event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).context("eventfd")?);
                (Bell::Event(event.clone()), Box::new(move || read_events(&event, &seen)))
            }
            Way::Packet(table) => {
                let (near, far) = connected().context("connect over loopback")?;
                let serve = move || answer_packets(&far, table.as_deref(), &seen);
                (Bell::Packet(near), Box::new(serve))
            }
        };
        let (ready, is_ready) = sync_channel(1);
        let run = move || {
            let placed =
                pin(0, &CoreSet::of(core)).and_then(|()| set_policy(0, Policy::Fifo(PRIORITY)));
            let failed = placed.is_err();
            let _ = ready.send(placed.map(|()| this_thread()));
            if !failed {
                // One that fails handles nothing more, which the waker notices.
                let _ = serve();
            }
        };
        let thread = std::thread::Builder::new().name("woken".into()).spawn(run);
        let thread = thread.context("start the woken thread")?;
        let placed = is_ready.recv().context("the woken thread ended")?;
        let tid = placed.context("place the woken thread")?;
        Ok(Woken { shared, bell, thread: Some(thread), tid })
    }

    /// Its number.
    pub fn tid(&self) -> i32 {
        self.tid
    }

    /// How many calls it handled so far.
    pub fn handled(&self) -> u64 {
        self.shared.handled.load(Acquire)
    }

    /// Wakes it.
    ///
    /// # Errors
    /// The kernel's.
    pub fn call(&self) -> io::Result<()> {
        match &self.bell {
            Bell::Event(event) => rustix::io::write(event, &1u64.to_ne_bytes()).map(drop)?,
            Bell::Packet(stream) => (&*stream).write_all(&[1; REQUEST_BYTES])?,
        }
        Ok(())
    }

    /// Takes answers that came, without waiting for any.
    ///
    /// # Errors
    /// The kernel's.
    pub fn take_answers(&self) -> io::Result<()> {
        let Bell::Packet(stream) = &self.bell else { return Ok(()) };
        match (&*stream).read(&mut [0; 4 * ANSWER_BYTES]) {
            Err(err) if err.kind() == ErrorKind::WouldBlock => Ok(()),
            other => other.map(drop),
        }
    }
}

impl Drop for Woken {
    fn drop(&mut self) {
        self.shared.quit.store(true, Release);
        let _ = match &self.bell {
            Bell::Event(_) => self.call(),
            Bell::Packet(stream) => stream.shutdown(Shutdown::Both),
        };
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Both ends of a connection; the first one never blocks.
fn connected() -> io::Result<(TcpStream, TcpStream)> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let near = TcpStream::connect(listener.local_addr()?)?;
    // Another program may have come first.
    let own = near.local_addr()?;
    let far = loop {
        let (far, from) = listener.accept()?;
        if from == own {
            break far;
        }
    };
    near.set_nonblocking(true)?;
    near.set_nodelay(true)?;
    far.set_nodelay(true)?;
    Ok((near, far))
}

fn read_events(event: &OwnedFd, shared: &Shared) -> io::Result<()> {
    let mut count = [0; 8];
    while !shared.quit.load(Acquire) {
        rustix::io::read(event, &mut count)?;
        shared.handled.fetch_add(u64::from_ne_bytes(count), Release);
    }
    Ok(())
}

fn answer_packets(
    mut stream: &TcpStream,
    table: Option<&Table>,
    shared: &Shared,
) -> io::Result<()> {
    let events = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&events, stream, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
    let mut ready =
        [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }];
    let mut state = 0x9e37_79b9_7f4a_7c15;
    let (mut request, answer) = ([0; REQUEST_BYTES], [2; ANSWER_BYTES]);
    while !shared.quit.load(Acquire) {
        match epoll::wait(&events, &mut ready[..], None) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other.map(drop)?,
        }
        stream.read_exact(&mut request)?;
        if let Some(table) = table {
            std::hint::black_box(table.read(&mut state));
        }
        stream.write_all(&answer)?;
        shared.handled.fetch_add(1, Release);
    }
    Ok(())
}
