//! The loop: sends what is due, takes what has come, and sleeps only where it may and nothing can come.
//!
//! The clock is read after each system call, so that every gap between two readings is either a
//! recorded stall or shorter than one. Nothing is allocated in steady state, and no request is
//! dropped: the [`Books`] hold each one's end.

use std::iter::Peekable;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use quell_model::Nanos;
use rand::SeedableRng;
use rustix::buffer::spare_capacity;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fd::OwnedFd;

use crate::arrivals::Schedule;
use crate::books::Books;
use crate::clock::{now, thread_cpu_time};
use crate::connection::{Connection, Flushed, Lost};
use crate::error::LoadError;
use crate::protocol::{Protocol, WorkloadRng};
use crate::report::GeneratorReport;
use crate::run::Mailbox;
use crate::sleep::{Idle, SLEEP_MAX, Sleeper};
use crate::spec::LoadSpec;
use crate::stall::{Activity, StallClock, Stalls};

/// Requests sent in one turn of the loop, so that replies do not wait behind a backlog.
const BATCH_MAX: usize = 64;
/// Sockets read in one turn.
const EVENTS_MAX: usize = 64;
/// Up to so many requests outstanding, their sockets are read without asking first which are ready: a reply is seen a
/// system call sooner.
const DIRECT_MAX: usize = 4;
/// One turn in so many asks all the same: the end of a connection that waits for nothing shows there alone.
const DIRECT_TURNS: u64 = 16;
/// How often progress is published.
const PUBLISH_EVERY: Nanos = Nanos::from_secs(1);
/// Keeps the workload's random numbers apart from the arrivals', so that a new mix leaves the
/// schedule alone.
const WORKLOAD_STREAM: u64 = 1;

/// What the loop hands back.
pub(crate) struct Raw {
    pub books: Books,
    /// When the loop ended.
    pub finish: Nanos,
    pub generator: GeneratorReport,
    pub stalls: Stalls,
    pub connections_lost: usize,
    pub connections_reopened: u64,
    pub ended_early: Option<String>,
}

#[derive(Default)]
struct Effort {
    turns_sending: u64,
    turns_late: u64,
    writes: u64,
    requests_written: u64,
    busy: Nanos,
}

pub(crate) struct Generator<'a> {
    protocol: Box<dyn Protocol>,
    addr: SocketAddr,
    /// Connections are virtual sockets, which no poller watches: they are looked at one by one.
    is_virtual: bool,
    rng: WorkloadRng,
    schedule: Peekable<Schedule>,
    start: Nanos,
    /// End of the measured window.
    end: Nanos,
    /// `None` where the connection was lost.
    connections: Vec<Option<Connection>>,
    alive: usize,
    turn: usize,
    /// Whether a connection may have several requests outstanding.
    pipelines: bool,
    /// Something is due, and each connection has as much as it may.
    waits_for_room: bool,
    /// Connections that the server ended and that were opened again.
    reopened: u64,
    last_loss: String,
    poller: OwnedFd,
    books: Books,
    effort: Effort,
    stop: &'a AtomicBool,
    mailbox: &'a Mailbox,
    next_publish: Nanos,
    idle: Idle,
    /// Time slept by [`Idle::Wait`].
    waited: Nanos,
    /// Connections that wait for a reply.
    waiting: Vec<usize>,
    /// Turns in which something was outstanding.
    turns: u64,
}

impl<'a> Generator<'a> {
    /// Prepares everything that allocates. `start` is when the schedule begins.
    pub fn new(
        spec: &LoadSpec,
        protocol: Box<dyn Protocol>,
        connections: Vec<Connection>,
        schedule: Schedule,
        start: Nanos,
        stop: &'a AtomicBool,
        mailbox: &'a Mailbox,
    ) -> Result<Generator<'a>, LoadError> {
        let poller = epoll::create(epoll::CreateFlags::CLOEXEC)
            .map_err(LoadError::system("epoll_create"))?;
        for (index, connection) in connections.iter().enumerate() {
            let Some(fd) = connection.fd() else { continue };
            epoll::add(&poller, fd, data(index), interest(connection))
                .map_err(LoadError::system("epoll_ctl"))?;
        }
        let mut rng = WorkloadRng::seed_from_u64(spec.seed);
        rng.set_stream(WORKLOAD_STREAM);
        Ok(Generator {
            pipelines: spec.pipelining && protocol.pipelines(),
            protocol,
            addr: spec.addr,
            is_virtual: spec.channels.is_some(),
            rng,
            books: Books::open(spec, samples_room(&schedule).min(spec.samples_max), start),
            schedule: schedule.peekable(),
            start,
            end: start + spec.warmup + spec.measured(),
            alive: connections.len(),
            connections: connections.into_iter().map(Some).collect(),
            turn: 0,
            waits_for_room: false,
            reopened: 0,
            last_loss: String::new(),
            poller,
            effort: Effort::default(),
            stop,
            mailbox,
            next_publish: start + PUBLISH_EVERY,
            idle: spec.idle,
            waited: Nanos::ZERO,
            waiting: Vec::with_capacity(spec.connections),
            turns: 0,
        })
    }

    /// Runs the whole schedule on the calling thread.
    pub fn run(mut self) -> Raw {
        let mut sleeper = (self.idle == Idle::Sleep).then(Sleeper::start);
        let mut clock = StallClock::start();
        let mut events = Vec::with_capacity(EVENTS_MAX);
        while clock.tick(Activity::Spin) < self.start {
            std::hint::spin_loop();
        }
        let (begun, cpu_start) = (clock.tick(Activity::Spin), thread_cpu_time());
        let (finish, ended_early) = loop {
            let at = clock.tick(Activity::Spin);
            self.books.advance(at);
            let sent = self.send_due(at, &mut clock);
            let received = self.receive(&mut events, &mut clock);
            if sent || received {
                self.effort.busy += clock.tick(Activity::Spin).since(at);
            }
            if at >= self.next_publish {
                self.publish(at);
            }
            if let Some(reason) = self.over(at) {
                break (at, reason);
            }
            if sent || received {
                continue;
            }
            match &mut sleeper {
                Some(sleeper) => self.doze(sleeper, at, &mut clock),
                None if self.idle == Idle::Wait => self.wait(at, &mut clock),
                None => {}
            }
        };
        let ratio = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        self.close_books(finish, ended_early.is_some());
        let elapsed = finish.since(begun);
        let (slept, wake_up_p99_ns) =
            sleeper.map_or((self.waited, Nanos::ZERO), |one| (one.slept, one.wake_up_p99));
        let cpu_ns = thread_cpu_time().since(cpu_start);
        let effort = &self.effort;
        let generator = GeneratorReport {
            busy_share: ratio(effort.busy.0, elapsed.0).min(1.0),
            running_share: ratio(cpu_ns.0, elapsed.since(slept).0).min(1.0),
            late_iterations_share: ratio(effort.turns_late, effort.turns_sending),
            requests_per_write: ratio(effort.requests_written, effort.writes),
            cpu_ns,
            slept_share: ratio(slept.0, elapsed.0),
            wake_up_p99_ns,
        };
        Raw {
            finish,
            generator,
            stalls: clock.finish(),
            connections_lost: self.connections.len() - self.alive,
            connections_reopened: self.reopened,
            ended_early,
            books: self.books,
        }
    }

    /// `Some` once the run is over, with the reason if that is before its time.
    fn over(&mut self, at: Nanos) -> Option<Option<String>> {
        if self.alive == 0 {
            return Some(Some(format!("every connection was lost; the last: {}", self.last_loss)));
        }
        // Relaxed: nothing else is published through the flag.
        if self.stop.load(Ordering::Relaxed) {
            return Some(Some("stopped on request".into()));
        }
        let drained = self.books.outstanding == 0 && self.schedule.peek().is_none();
        (at >= self.books.deadline || (at >= self.end && drained)).then_some(None)
    }

    /// Sleeps if nothing can come before it has to send, publish or end.
    fn doze(&mut self, sleeper: &mut Sleeper, at: Nanos, clock: &mut StallClock) {
        if self.books.outstanding > 0 {
            return;
        }
        let next = self.schedule.peek().map_or(self.end, |due| self.start + due.offset);
        if let Some(until) = sleeper.doze(at, next.min(self.next_publish)) {
            clock.woke(until);
        }
    }

    /// Sleeps until an answer comes, or it has to send, publish or end.
    fn wait(&mut self, at: Nanos, clock: &mut StallClock) {
        let next_send = match self.schedule.peek() {
            // An answer makes room.
            Some(_) if self.waits_for_room => self.books.deadline,
            Some(due) => self.start + due.offset,
            None if at < self.end => self.end,
            None => self.books.deadline,
        };
        let until = next_send.min(self.next_publish).min(at + SLEEP_MAX);
        let left = until.since(at);
        let timeout = Timespec {
            tv_sec: (left.0 / 1_000_000_000) as i64,
            tv_nsec: (left.0 % 1_000_000_000) as i64,
        };
        // Not `epoll_wait`, which counts in milliseconds. What came is taken in the next turn; a signal only ends the sleep.
        let _ = poll(&mut [PollFd::new(&self.poller, PollFlags::IN)], Some(&timeout));
        clock.woke(until);
        self.waited += now().since(at);
    }

    fn publish(&mut self, at: Nanos) {
        self.next_publish += PUBLISH_EVERY;
        self.books.tally.at = at;
        self.books.tally.outstanding = self.books.outstanding;
        self.mailbox.post(&mut self.books.tally);
    }

    /// Sends all that is due, up to a batch, in one write. Whether anything was.
    fn send_due(&mut self, at: Nanos, clock: &mut StallClock) -> bool {
        if !self.is_due(at) {
            return false;
        }
        let Some(index) = self.next_connection() else {
            // All that cannot take two requests have one.
            self.waits_for_room = true;
            return false;
        };
        let waited = std::mem::take(&mut self.waits_for_room);
        let batch_max = if self.pipelines { BATCH_MAX } else { 1 };
        let Some(connection) = self.connections[index].as_mut() else { return false };
        let was_blocked = connection.blocked;
        let mut count = 0;
        let mut late = false;
        while count < batch_max
            && let Some(due) = self.schedule.next_if(|due| self.start + due.offset <= at)
        {
            count += 1;
            let number = Books::number(due.phase);
            let due_at = self.start + due.offset;
            let (protocol, rng) = (&mut self.protocol, &mut self.rng);
            let encode = |out: &mut Vec<u8>| {
                let token = protocol.encode(rng, out);
                (token, protocol.is_long(token))
            };
            if !connection.queue(due_at, number as u32, encode) {
                self.books.refused(number, due_at);
            } else if was_blocked || waited {
                self.books.blocked(number);
            } else {
                late |= self.books.sending(number, due_at, at);
            }
        }
        if connection.pending() > 0 && !self.waiting.contains(&index) {
            self.waiting.push(index);
        }
        self.effort.turns_sending += 1;
        self.effort.turns_late += u64::from(late);
        if !was_blocked {
            self.effort.writes += 1;
            self.effort.requests_written += count as u64;
            self.flush(index, clock);
        }
        true
    }

    fn is_due(&mut self, at: Nanos) -> bool {
        self.schedule.peek().is_some_and(|due| self.start + due.offset <= at)
    }

    /// The next living connection in turn.
    fn next_connection(&mut self) -> Option<usize> {
        let count = self.connections.len();
        let next = (1..=count)
            .map(|step| (self.turn + step) % count)
            .find(|&index| self.connections[index].as_ref().is_some_and(|one| self.takes(one)))?;
        self.turn = next;
        Some(next)
    }

    /// Whether a request may be sent on a connection now.
    fn takes(&self, connection: &Connection) -> bool {
        connection.pending() == 0 || self.pipelines
    }

    /// Takes what has come; whether anything had.
    fn receive(&mut self, events: &mut Vec<epoll::Event>, clock: &mut StallClock) -> bool {
        if self.books.outstanding == 0 {
            return false;
        }
        self.turns += 1;
        let is_direct =
            self.books.outstanding <= DIRECT_MAX && !self.turns.is_multiple_of(DIRECT_TURNS);
        if is_direct || self.is_virtual {
            return self.receive_directly(clock);
        }
        events.clear();
        let no_wait = Timespec { tv_sec: 0, tv_nsec: 0 };
        // A poll that a signal interrupted found nothing; the next turn polls again.
        let ready = epoll::wait(&self.poller, spare_capacity(events), Some(&no_wait));
        clock.tick(Activity::Poll);
        for event in events.iter() {
            let index = event.data.u64() as usize;
            let flags = event.flags;
            if flags.contains(epoll::EventFlags::OUT) {
                self.flush(index, clock);
            }
            if flags != epoll::EventFlags::OUT {
                self.receive_from(index, clock);
            }
        }
        ready.is_ok_and(|count| count > 0)
    }

    /// Reads every socket that waits for a reply; whether any had come.
    fn receive_directly(&mut self, clock: &mut StallClock) -> bool {
        let before = self.books.outstanding;
        // From the back: one that waits no longer leaves the list.
        for place in (0..self.waiting.len()).rev() {
            let index = self.waiting[place];
            let is_open = |one: &Connection| !one.blocked;
            if self.connections[index].as_ref().is_some_and(is_open) {
                self.receive_from(index, clock);
            } else if self.is_virtual {
                self.flush(index, clock);
                self.receive_from(index, clock);
            }
        }
        clock.tick(Activity::Read);
        self.books.outstanding != before
    }

    fn receive_from(&mut self, index: usize, clock: &mut StallClock) {
        let Some(connection) = self.connections[index].as_mut() else { return };
        let books = &mut self.books;
        // One reading serves all replies of one read: they became visible together.
        let mut read_at = None;
        let received = connection.receive(&*self.protocol, |pending, status, stamp| {
            let at = *read_at.get_or_insert_with(|| clock.tick(Activity::Read));
            if let Some(stamp) = stamp {
                books.received(pending, stamp);
            }
            books.answered(pending, at, status);
        });
        let has_output = connection.has_output() && !connection.blocked;
        if connection.pending() == 0 {
            self.waits_no_longer(index);
        }
        match received {
            Err(lost) => self.lose(index, &lost),
            // The next step of a request.
            Ok(()) if has_output => self.flush(index, clock),
            Ok(()) => {}
        }
    }

    fn waits_no_longer(&mut self, index: usize) {
        if let Some(place) = self.waiting.iter().position(|&one| one == index) {
            self.waiting.swap_remove(place);
        }
    }

    /// Writes what is queued, and has the poller tell when a full socket has room again.
    fn flush(&mut self, index: usize, clock: &mut StallClock) {
        let Some(connection) = self.connections[index].as_mut() else { return };
        let flushed = connection.flush();
        clock.tick(Activity::Write);
        let watched = match flushed {
            Ok(flushed) => {
                let blocked = flushed == Flushed::Blocked;
                let changed = blocked != connection.blocked;
                connection.blocked = blocked;
                if changed { watch(&self.poller, index, connection) } else { Ok(()) }
            }
            Err(lost) => Err(lost),
        };
        if let Err(lost) = watched {
            self.lose(index, &lost);
        }
    }

    /// Opens a connection again if the server may have ended it for its own reasons, else gives it up,
    /// and with it all that waits there.
    fn lose(&mut self, index: usize, lost: &Lost) {
        let Some(mut connection) = self.connections[index].take() else { return };
        // The old socket is closed by now, which took it off the poller.
        if connection.reopen(self.addr, lost, &*self.protocol)
            && let Some(fd) = connection.fd()
            && epoll::add(&self.poller, fd, data(index), interest(&connection)).is_ok()
        {
            self.connections[index] = Some(connection);
            self.reopened += 1;
            return;
        }
        self.waits_no_longer(index);
        self.alive -= 1;
        self.last_loss = lost.to_string();
        for (pending, sent) in connection.abandon() {
            self.books.abandoned(pending, sent, true);
        }
    }

    /// The run is over: what has no reply stays without, and what was due stays unsent.
    fn close_books(&mut self, finish: Nanos, early: bool) {
        if early {
            self.books.deadline = finish;
        }
        for connection in self.connections.iter_mut().flatten() {
            for (pending, sent) in connection.abandon() {
                self.books.abandoned(pending, sent, false);
            }
        }
        while let Some(due) = self.schedule.next_if(|due| self.start + due.offset <= finish) {
            let (number, due_at) = (Books::number(due.phase), self.start + due.offset);
            match self.alive {
                0 => self.books.unsent(number, due_at),
                _ => self.books.missed(number, due_at),
            }
        }
    }
}

/// Room for the requests of the measured window, with five standard deviations to spare.
fn samples_room(schedule: &Schedule) -> usize {
    let mean: f64 = schedule.expected().iter().sum();
    (mean + 5.0 * mean.sqrt() + 16.0) as usize
}

/// How the poller names a connection.
fn data(index: usize) -> epoll::EventData {
    epoll::EventData::new_u64(index as u64)
}

/// What the poller is to tell of a connection: bytes that came, and room in a blocked socket.
fn interest(connection: &Connection) -> epoll::EventFlags {
    let mut flags = epoll::EventFlags::IN;
    flags.set(epoll::EventFlags::OUT, connection.blocked);
    flags
}

/// Has the poller watch for room in a blocked socket, and no longer in another.
fn watch(poller: &OwnedFd, index: usize, connection: &Connection) -> Result<(), Lost> {
    let Some(fd) = connection.fd() else { return Ok(()) };
    epoll::modify(poller, fd, data(index), interest(connection))
        .map_err(|errno| Lost::Io(errno.into()))
}
