//! The scheduler thread: when it ticks, and how it waits between ticks.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread::JoinHandle;

use quell_model::{CoreSet, Nanos};
use quell_os::clock;
use quell_os::own::place_scheduler;
use quell_os::sched::SchedAttr;
use quell_policy::Wake;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Engine, Parts};
use crate::command::Command;
use crate::feed::{self, FeedReader};
use crate::mailbox::{Mailbox, Postbox, pair};

/// The longest sleep while an LC task holds a core that others are owed.
const SLEEP_MAX: Nanos = Nanos::from_millis(10);
/// The longest sleep at rest: heartbeats for the guardians and the read-back of what was written go on. No
/// shorter than they need, since a tick after such a sleep finds cold caches and takes some 50 us from
/// whoever works on the scheduler's core.
const REST_MAX: Nanos = Nanos::from_millis(100);

/// How the scheduler thread waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Sleeps until its tick, an event or a command.
    Shared,
    /// Spins.
    Dedicated,
}

/// How the scheduler thread runs.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// How it waits.
    pub pace: Pace,
    /// Between two ticks by time.
    pub tick: Nanos,
    /// Whether events of the kernel call a tick.
    pub events: bool,
    /// How long an LC task may be congested before the plan counts as unable to relieve it.
    pub congestion_after: Nanos,
    /// The rungs of members of lanes, parked and with the slice; `None`: this back end elevates nobody.
    pub lane_rungs: Option<[SchedAttr; 2]>,
    /// Guardians end a daemon without a sign of life for so long.
    pub watchdog_timeout: Nanos,
    /// How long a runtime's kernel thread has to leave a core that is revoked.
    pub revoke_deadline: Nanos,
    /// Where it runs: the unmanaged cores.
    pub cores: CoreSet,
    /// RT throttling goes off once there is a lane.
    pub lanes_unthrottle: bool,
    /// Its rung.
    pub rung: SchedAttr,
}

/// The running scheduler thread.
pub struct EngineThread {
    /// How to ask it.
    pub postbox: Postbox<Command>,
    /// Set when events were lost: somebody has to look for threads that nobody told of.
    pub sweep_due: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl EngineThread {
    /// Starts the thread. What it decides comes out of the [`FeedReader`].
    ///
    /// # Errors
    /// When it cannot be made or not be given its place.
    pub fn start(mut parts: Parts, settings: Settings) -> io::Result<(EngineThread, FeedReader)> {
        let (postbox, mailbox) = pair()?;
        let (writer, feed) = feed::pair();
        parts.feed = Some(writer);
        let sweep_due = Arc::new(AtomicBool::new(false));
        let lost = Arc::clone(&sweep_due);
        let (ready, started) = crossbeam_channel::bounded(1);
        let thread = std::thread::Builder::new().name("quell-sched".into()).spawn(move || {
            let placed = place_scheduler(&settings.cores, &settings.rung);
            let failed = placed.is_err();
            let _ = ready.send(placed);
            if !failed {
                Engine::new(parts, settings, lost).run(mailbox);
            }
        })?;
        match started.recv() {
            Ok(Ok(())) => Ok((EngineThread { postbox, sweep_due, thread }, feed)),
            Ok(Err(err)) => Err(err),
            Err(_) => Err(io::Error::other("the scheduler thread ended at its start")),
        }
    }

    /// Waits for the thread's end, after [`Command::Shutdown`].
    pub fn join(self) {
        let _ = self.thread.join();
    }
}

impl Engine {
    /// Ticks until a command ends it.
    fn run(mut self, mut mailbox: Mailbox<Command>) {
        let mut due = clock::now();
        let mut by_event = false;
        loop {
            while let Some(command) = mailbox.take() {
                if self.obey(command).is_break() {
                    return;
                }
                due = Nanos::ZERO;
            }
            let now = clock::now();
            if now >= due || by_event {
                let wake = self.tick(now, by_event);
                self.ticks.took(clock::now().since(now).0);
                due = self.next_due(now, wake);
            }
            by_event = match self.settings.pace {
                Pace::Dedicated => {
                    std::hint::spin_loop();
                    false
                }
                Pace::Shared => self.sleep(&mailbox, due),
            };
        }
    }

    /// Never sooner than a tick; in the shared pattern not much later than the policy asks, since
    /// heartbeats and verification go on.
    fn next_due(&mut self, now: Nanos, wake: Wake) -> Nanos {
        let tick = now + self.settings.tick;
        if std::mem::take(&mut self.hurry) {
            return tick;
        }
        if self.settings.pace == Pace::Dedicated || self.settings.tick > SLEEP_MAX {
            return tick;
        }
        let rest = if self.at_rest { REST_MAX } else { SLEEP_MAX };
        let hints = Some(()).filter(|()| self.parts.policy.reads().requests);
        let poll = hints.and_then(|()| self.hints.poll_every(&self.seen)).unwrap_or(rest);
        let mut latest = now + poll.clamp(self.settings.tick, rest);
        if let Some(lend) = self.lanes.due() {
            latest = latest.min(lend.max(tick));
        }
        if let Some(runtimes) = self.runtimes.poll_every(now, self.settings.tick) {
            latest = latest.min(now + runtimes);
            // A core that has to be left in time is looked at in time: a tick more for each revoke.
            return latest;
        }
        match wake {
            Wake::At(at) => at.clamp(tick, latest),
            // Without events nobody would call: keep the tick.
            Wake::OnChange if !self.settings.events => tick,
            Wake::OnChange => latest,
        }
    }

    /// Sleeps until `due`, an event or a command; true if an event ended the sleep.
    fn sleep(&mut self, mailbox: &Mailbox<Command>, due: Nanos) -> bool {
        let now = clock::now();
        let deaf = self.runtimes.deaf_until(now, self.settings.tick);
        let left = deaf.map_or(due, |until| due.min(until)).since(now);
        if left == Nanos::ZERO {
            return false;
        }
        let timeout = Timespec {
            tv_sec: (left.0 / 1_000_000_000) as i64,
            tv_nsec: (left.0 % 1_000_000_000) as i64,
        };
        let bell = mailbox.bell();
        let events = self.parts.sight.seen().wake_fd().filter(|_| self.settings.events);
        let asks = self.runtimes.asks_fd(now, self.settings.tick);
        let mut fds = [
            PollFd::new(&bell, PollFlags::IN),
            PollFd::from_borrowed_fd(events.unwrap_or(bell), PollFlags::IN),
            PollFd::from_borrowed_fd(asks.unwrap_or(bell), PollFlags::IN),
        ];
        // An interrupted poll is a tick that comes early.
        let _ = poll(&mut fds, Some(&timeout));
        let rang = |at: usize| fds[at].revents().contains(PollFlags::IN);
        if rang(0) {
            mailbox.hush();
        }
        let (event, ask) = (events.is_some() && rang(1), asks.is_some() && rang(2));
        if ask {
            self.runtimes.take_asks(now);
        }
        event || ask
    }

    fn obey(&mut self, command: Command) -> std::ops::ControlFlow<()> {
        // A sender that gave up waiting is gone; its command was still carried out.
        match command {
            Command::Join(newcomer, reply) => {
                let _ = reply.send(self.join(newcomer));
            }
            Command::Admit(info, reply) => {
                self.admit(info);
                let _ = reply.send(());
            }
            Command::SetLimits(id, limits, reply) => {
                self.set_limits(id, limits);
                let _ = reply.send(());
            }
            Command::Watch(id, threads, reply) => {
                let _ = reply.send(self.watch(id, &threads));
            }
            Command::OpenLane(id, reply) => {
                let _ = reply.send(self.lanes.open(id, &mut self.parts.sight));
            }
            Command::Lane(link, reply) => {
                self.lanes.add(*link);
                let _ = reply.send(());
            }
            Command::WatchMember(id, member, threads, reply) => {
                let _ = reply.send(self.watch_member(id, member, &threads));
            }
            Command::Probe(id, thread, reply) => {
                let _ = reply.send(self.watch_probe(id, thread));
            }
            Command::EndProbe(thread) => self.parts.sight.observer().unwatch(thread),
            Command::Leave(id, reply) => {
                let _ = reply.send(self.leave(id));
            }
            Command::Groups(call, reply) => {
                let _ = reply.send(self.groups(call));
            }
            Command::Joined(joining, true) => self.parts.executor.end_join(&joining),
            Command::Joined(joining, false) => self.parts.executor.cancel_join(&joining),
            Command::Ungroup(groups, reply) => {
                self.ungroup(&groups);
                let _ = reply.send(());
            }
            Command::Unthrottle(reply) => {
                let _ = reply.send(self.unthrottle());
            }
            Command::Weigh(file, least, reply) => {
                let _ = reply.send(self.weigh(&file, least));
            }
            Command::ElevateBackground(on) => {
                self.parts.back_end.elevate_background(on);
                self.parts.sight.observer().note_elevated_background(on);
            }
            Command::Threads(id, reply) => {
                let _ = reply.send(self.threads_of(id));
            }
            Command::AssignRoles(id, roles, reply) => {
                let _ = reply.send(self.assign_roles(id, &roles));
            }
            Command::Hints(id, page, reply) => {
                self.hints.set(id, page);
                let _ = reply.send(());
            }
            Command::Runtime(id, contract, reply) => {
                let _ = reply.send(self.set_runtime(id, contract));
            }
            Command::Reading(id, reading) => self.note_reading(id, &reading),
            Command::FeedState(reply) => {
                let _ = reply.send(Box::new(self.feed_state()));
            }
            Command::Status(reply) => {
                let _ = reply.send(Box::new(self.status()));
            }
            Command::Congestion(reply) => {
                let _ = reply.send(self.congestion_report());
            }
            Command::Why(subject, reply) => {
                let _ = reply.send(self.why(&subject));
            }
            Command::Shutdown(reply) => {
                let _ = reply.send(self.shut_down());
                return std::ops::ControlFlow::Break(());
            }
        }
        std::ops::ControlFlow::Continue(())
    }
}
