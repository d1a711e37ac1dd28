//! Scheduler threads: how one waits for the end of a turn.
//!
//! *Shared*: asleep on the lane's own core, above its members; the timer that ends its sleep takes the core from
//! them. Where nothing has to end, no timer runs, and only an event of the kernel or a command ends the sleep.
//! *Dedicated*: spinning on another core, for several lanes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;

use crossbeam_channel::Sender;
use quell_model::{CoreId, CoreSet, Nanos};
use quell_observe::Observer;
use quell_os::own::place_scheduler;
use quell_os::sched::SchedAttr;
use quell_os::{ThreadRef, Tid, clock};
use quell_policy::lanes::Member;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::crew::Crew;
use crate::mailbox::{Mailbox, Postbox, pair};

/// How often a spinning scheduler looks for what changes no slot: new processes that are left alone, lost events.
const EVENTS_EVERY: Nanos = Nanos::from_micros(500);

/// What a turn in the shared pattern has at least, counted from the scheduler's call to sleep: the shortest slice there is.
/// With less, a scheduler that is slow to fall asleep would find its time passed each time, and nobody would ever run.
const TURN_MIN: Nanos = Nanos::from_micros(5);

/// What a scheduler thread is asked.
pub enum Command {
    /// Put threads on a lane: its number in the crew, the member, the threads. Answers what went wrong.
    Join(usize, Member, Vec<ThreadRef>, Sender<Vec<String>>),
    /// A thread changed its own scheduling: it is the lane's no more.
    Lose(ThreadRef),
    /// End, with every thread as it is.
    Stop(Sender<()>),
}

/// What everybody may see of a scheduler thread.
#[derive(Debug)]
pub struct Pulse {
    /// When it has to run next at the latest: [`Nanos::MAX`] while nothing has to end.
    due: AtomicU64,
    tid: AtomicI32,
    began: Nanos,
}

impl Pulse {
    /// How late it is.
    pub fn late(&self, now: Nanos) -> Nanos {
        now.since(Nanos(self.due.load(Relaxed)))
    }

    /// Its number.
    pub fn tid(&self) -> i32 {
        self.tid.load(Relaxed)
    }

    /// For how long it has run.
    pub fn age(&self, now: Nanos) -> Nanos {
        now.since(self.began)
    }

    /// Its CPU time; `None` once it ended.
    pub fn cpu(&self) -> Option<Nanos> {
        clock::thread_cpu_of(Tid(self.tid())).ok()
    }

    /// To be said before whatever may hang: each look, and each sleep.
    fn due(&self, at: Nanos) {
        // Relaxed: a time alone, nothing is published by it.
        self.due.store(at.0, Relaxed);
    }
}

/// A running scheduler thread.
pub struct SchedulerThread {
    /// How to ask it.
    pub postbox: Postbox<Command>,
    /// Whether it lives.
    pub pulse: Arc<Pulse>,
    handle: JoinHandle<Crew>,
}

/// Something else that runs within the loop of a dedicated scheduler, again and again: short, and without sleeping.
pub type Companion = Box<dyn FnMut() + Send>;

/// Where a scheduler thread runs, and how it waits.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// Its core.
    pub core: CoreId,
    /// Its rung.
    pub rung: SchedAttr,
    /// It spins.
    pub spins: bool,
}

impl SchedulerThread {
    /// Starts a scheduler thread for these lanes.
    ///
    /// # Errors
    /// When it cannot be made or not be given its place.
    pub fn start(
        crew: Crew,
        place: Place,
        companion: Option<Companion>,
    ) -> io::Result<SchedulerThread> {
        let (postbox, mailbox) = pair()?;
        let (due, tid) = (AtomicU64::new(u64::MAX), AtomicI32::new(0));
        let pulse = Arc::new(Pulse { due, tid, began: clock::now() });
        let own = Arc::clone(&pulse);
        let (ready, started) = crossbeam_channel::bounded(1);
        let name = format!("quell-lane-{}", place.core);
        let mut crew = crew;
        let mut companion: Companion = companion.unwrap_or_else(|| Box::new(|| {}));
        let handle = std::thread::Builder::new().name(name).spawn(move || {
            let placed = place_scheduler(&CoreSet::of(place.core), &place.rung);
            let failed = placed.is_err();
            own.tid.store(rustix::thread::gettid().as_raw_nonzero().get(), Relaxed);
            if !failed && !place.spins {
                crew.try_turns(0);
            }
            let _ = ready.send(placed);
            match (failed, place.spins) {
                (true, _) => {}
                (false, true) => spin(&mut crew, &mailbox, &own, &mut companion),
                (false, false) => sleep(&mut crew, &mailbox, &own),
            }
            // Whoever ends has nothing due any more.
            own.due(Nanos::MAX);
            crew
        })?;
        match started.recv() {
            Ok(Ok(())) => Ok(SchedulerThread { postbox, pulse, handle }),
            Ok(Err(err)) => Err(err),
            Err(_) => Err(io::Error::other("a lane's scheduler thread ended at its start")),
        }
    }

    /// Ends it. The threads of its lanes stay on their rungs until they are given back; the crew follows their
    /// children until it is dropped.
    pub fn stop(self) -> Option<Crew> {
        // One that does not answer is gone.
        let _ = self.postbox.call(Command::Stop);
        self.handle.join().ok()
    }
}

/// Carries out a command. Whether it was the last.
fn obey(crew: &mut Crew, command: Command) -> bool {
    match command {
        Command::Join(lane, member, threads, reply) => {
            let _ = reply.send(crew.join(lane, member, &threads));
            false
        }
        Command::Lose(thread) => {
            crew.lose(thread, "it changed its own scheduling");
            false
        }
        Command::Stop(reply) => {
            let _ = reply.send(());
            true
        }
    }
}

/// The shared pattern: one lane.
fn sleep(crew: &mut Crew, mailbox: &Mailbox<Command>, pulse: &Pulse) {
    let mut due = None;
    loop {
        while let Some(command) = mailbox.take() {
            if obey(crew, command) {
                return;
            }
        }
        crew.take_events();
        crew.refresh();
        if due.is_some() {
            crew.learn(0);
        }
        crew.attend(0, due.take());
        crew.ask_to_be_told(0);
        crew.refresh();
        if crew.has_news(0) {
            continue;
        }
        let begins = crew.let_run(0);
        let at = crew.lanes()[0].due();
        pulse.due(at.unwrap_or(Nanos::MAX));
        wait(crew, mailbox, at, if begins { TURN_MIN } else { Nanos::ZERO });
        let now = clock::now();
        // Woken by an event it may be awake long before what it slept for: from now on it counts as late.
        pulse.due(now);
        if let Some(at) = crew.lanes()[0].look().at().filter(|at| *at <= now) {
            due = Some(at);
            crew.note_late(0, now.since(at));
        }
    }
}

/// Sleeps until a time, an event or a command; by time not shorter than `least`.
fn wait(crew: &Crew, mailbox: &Mailbox<Command>, at: Option<Nanos>, least: Nanos) {
    let timeout = at.map(|at| {
        let left = at.since(clock::now()).max(least);
        Timespec {
            tv_sec: (left.0 / 1_000_000_000) as i64,
            tv_nsec: (left.0 % 1_000_000_000) as i64,
        }
    });
    let bell = mailbox.bell();
    let events = crew.observer().wake_fd().unwrap_or(bell);
    let mut fds = [
        PollFd::from_borrowed_fd(bell, PollFlags::IN),
        PollFd::from_borrowed_fd(events, PollFlags::IN),
    ];
    // An interrupted sleep is a look that comes early.
    let _ = poll(&mut fds, timeout.as_ref());
}

/// The dedicated pattern: several lanes.
fn spin(crew: &mut Crew, mailbox: &Mailbox<Command>, pulse: &Pulse, companion: &mut Companion) {
    let mut events_at = Nanos::ZERO;
    loop {
        let now = clock::now();
        pulse.due(now);
        crew.refresh();
        let news = |crew: &Crew| (0..crew.lanes().len()).any(|lane| crew.has_news(lane));
        if now >= events_at || news(crew) {
            events_at = now + EVENTS_EVERY;
            while let Some(command) = mailbox.take() {
                if obey(crew, command) {
                    return;
                }
            }
            crew.take_events();
        }
        for lane in 0..crew.lanes().len() {
            let due = crew.lanes()[lane].look().at().filter(|at| *at <= now);
            if let Some(at) = due {
                crew.note_late(lane, now.since(at));
            }
            let by_time = crew.lanes()[lane].due().is_some_and(|at| at <= now);
            if by_time || crew.has_news(lane) {
                crew.attend(lane, due);
            }
        }
        companion();
        std::hint::spin_loop();
    }
}
