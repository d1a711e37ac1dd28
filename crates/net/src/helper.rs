//! The endpoint's own thread: what no thread of the program does, because none waits.
//!
//! It reads channels without a leader, sends what a program wrote and left, runs the engine's timers, takes new channels,
//! and opens lost ones again. While channels are in use it looks at them twice a millisecond; once they are quiet it
//! sleeps until one can be read.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, TcpStream};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::Duration;

use quell_model::Nanos;
use quell_net_engine::{Class, Key};
use rustix::event::{PollFlags, epoll};

use crate::channel::{Armed, Channel};
use crate::config::{OtherHosts, SameHost};
use crate::core::Core;
use crate::count::{Counts, NewCount};
use crate::error::Error;
use crate::handshake::{HANDSHAKES_MAX, Handshake, Port};
use crate::leading::Led;
use crate::opening::reopen;
use crate::pacing::Pacers;
use crate::placed;
use crate::shared::Shared;
use crate::tcp;
use crate::transport::{Path, Readiness, Transport};
use crate::udp::Grants;
use crate::uring::{self, Driver};
use crate::waiter::{Waiter, timespec};

/// The interval of looks at channels that are in use.
pub(crate) const LOOK: Nanos = Nanos::from_micros(500);

/// The longest one, where the program's threads do all by themselves.
const LOOK_MAX: Nanos = Nanos::from_millis(4);

/// Pause after a connection that could not be taken.
const ACCEPT_PAUSE: Duration = Duration::from_millis(1);
/// Reads of one channel in a row before others are looked at.
const READS_MAX: usize = 16;

/// Ports are reported once, and again after they were looked at.
const PORT_EVENTS: epoll::EventFlags = epoll::EventFlags::IN.union(epoll::EventFlags::ONESHOT);

/// What an epoll event is about.
#[derive(Clone, Copy, Debug)]
enum Token {
    Wake,
    Port(usize),
    Handshake(u64),
    Channel(Key),
}

/// What channels are opened and taken with.
pub(crate) struct Settings {
    pub congestion: String,
    pub same_host: SameHost,
    pub other_hosts: OtherHosts,
    pub grants: Arc<Grants>,
    /// Of channels over TCP by io_uring.
    pub uring: Option<Driver>,
    pub throughput_channels: usize,
    pub channel_count: Option<NewCount>,
    pub paces: bool,
    pub is_insecure: bool,
}

impl Settings {
    /// Whether channels may go over UDP.
    pub fn has_udp(&self) -> bool {
        self.other_hosts == OtherHosts::Udp || self.same_host == SameHost::Udp
    }

    /// Whether channels to an address go over UDP.
    pub fn has_udp_to(&self, address: IpAddr) -> bool {
        match tcp::leaves_host(address) {
            true => self.other_hosts == OtherHosts::Udp,
            false => self.same_host == SameHost::Udp,
        }
    }

    /// A connection to an address as a transport.
    pub fn tcp_transport(
        &self,
        connection: TcpStream,
        address: IpAddr,
        class: Class,
    ) -> io::Result<Transport> {
        let has_uring = match tcp::leaves_host(address) {
            true => self.other_hosts == OtherHosts::TcpUring,
            false => self.same_host == SameHost::TcpUring,
        };
        match self.uring.as_ref().filter(|_| has_uring && class == Class::Throughput) {
            Some(driver) => uring::transport(connection, driver, self.paces),
            None => tcp::transport(connection, self.paces),
        }
    }
}

/// See the module.
pub(crate) struct Helper {
    shared: Arc<Shared>,
    waiter: Arc<Waiter>,
    settings: Arc<Settings>,
    epoll: OwnedFd,
    tokens: BTreeMap<u64, Token>,
    next_token: u64,
    ports: Vec<(Port, u64)>,
    /// Ports that epoll is to report again once there is a place for a handshake.
    is_full: bool,
    new_ports: std::sync::mpsc::Receiver<Port>,
    handshakes: BTreeMap<u64, Handshake>,
    /// The interval of looks now.
    interval: Nanos,
    /// Channels that epoll knows.
    known: BTreeMap<Key, (u64, Arc<dyn Readiness>)>,
    pacers: Pacers,
    counts: Counts,
    /// Threads of placed channels.
    placed: Vec<JoinHandle<()>>,
}

/// A channel of which epoll is to tell once.
struct Arm {
    key: Key,
    readiness: Arc<dyn Readiness>,
    /// When something arrives.
    for_data: bool,
    /// When it has room.
    for_room: bool,
}

/// What a look found.
#[derive(Default)]
struct Look {
    is_closed: bool,
    /// Channels to read.
    led: Vec<Led>,
    /// Channels to arm.
    arm: Vec<Arm>,
    gone: Vec<Key>,
    /// Of channels that bulk data is sent on.
    paths: Vec<(Key, Arc<dyn Path>)>,
    missing: Vec<Key>,
    is_busy: bool,
    /// Something is left to the next looks.
    is_needed: bool,
}

impl Helper {
    pub fn new(
        shared: Arc<Shared>,
        waiter: Arc<Waiter>,
        settings: Arc<Settings>,
        new_ports: std::sync::mpsc::Receiver<Port>,
    ) -> Result<Helper, Error> {
        let failed =
            |source: rustix::io::Errno| Error::io("create an epoll instance", source.into());
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(failed)?;
        let data = epoll::EventData::new_u64(0);
        epoll::add(&epoll, waiter.as_fd(), data, epoll::EventFlags::IN).map_err(failed)?;
        Ok(Helper {
            shared,
            waiter,
            counts: Counts::new(settings.channel_count.clone()),
            settings,
            epoll,
            tokens: BTreeMap::from([(0, Token::Wake)]),
            next_token: 1,
            ports: Vec::new(),
            is_full: false,
            new_ports,
            handshakes: BTreeMap::new(),
            interval: LOOK,
            known: BTreeMap::new(),
            pacers: Pacers::default(),
            placed: Vec::new(),
        })
    }

    /// Works until the endpoint is closed.
    pub fn run(mut self) {
        loop {
            self.waiter.reset();
            self.add_ports();
            let mut look = self.shared.act(|core, now| self.look(core, now));
            if look.is_closed {
                // A panic of theirs was reported by the panic hook already.
                self.placed.drain(..).for_each(|thread| _ = thread.join());
                return;
            }
            self.start_placed();
            let has_read = self.read(std::mem::take(&mut look.led));
            self.pace(&look);
            let doubled = Nanos(self.interval.0 * 2).min(LOOK_MAX);
            self.interval = if has_read || look.is_needed { LOOK } else { doubled };
            look.is_busy |= self.arm(&look);
            look.missing.extend(self.count());
            look.missing.drain(..).for_each(|peer| self.reopen(peer));
            let until = self.plan(look.is_busy);
            self.sleep(until);
        }
    }

    /// Starts the threads of placed channels that are wanted.
    fn start_placed(&mut self) {
        let (wanted, _) = self.shared.with(|core, _| core.take_wanted_threads());
        for wanted in wanted {
            let index = wanted.0;
            match placed::start(&self.shared, wanted) {
                Ok(thread) => self.placed.push(thread),
                Err(error) => {
                    tracing::error!("a thread for placed channels cannot be started: {error}");
                    self.shared.act(|core, now| core.give_up_thread(index, now));
                }
            }
        }
    }

    /// Looks at all channels under the lock.
    fn look(&self, core: &mut Core, now: Nanos) -> Look {
        core.engine.timers(now);
        // Until it has planned its sleep, whatever changes wakes it, and no thread counts on its next look.
        core.is_helper_idle = true;
        core.helper_until = Nanos::ZERO;
        let mut look = Look { is_closed: core.is_closed, ..Look::default() };
        look.missing = std::mem::take(&mut core.missing);
        look.gone =
            self.known.keys().copied().filter(|key| core.channels.get(*key).is_none()).collect();
        let has_tasks = core.has_tasks;
        look.is_needed = std::mem::take(&mut core.needs_looks) || has_tasks;
        let is_used = |channel: &Channel| channel.was_led || channel.is_live || channel.was_sent_on;
        look.is_busy = core.channels.iter_mut().any(|(_, channel)| is_used(channel));
        for (key, channel) in core.channels.iter_mut() {
            let is_new = !self.known.contains_key(&key);
            let was_led = std::mem::take(&mut channel.was_led);
            let was_sent_on = std::mem::take(&mut channel.was_sent_on);
            // Bulk data gathers, and waits for looks.
            look.is_needed |= channel.class == Class::Throughput && (was_led || was_sent_on);
            look.is_needed |= channel.is_blocked;
            channel.is_live = false;
            let waits = channel.is_blocked || core.engine.waiting(key) > 0;
            channel.waits_since = waits.then(|| channel.waits_since.unwrap_or(now));
            let sends = was_sent_on || channel.is_blocked;
            look.paths
                .extend(channel.path.iter().filter(|_| sends).map(|it| (key, Arc::clone(it))));
            if channel.thread.is_some() {
                // A thread of its own does the rest.
                continue;
            }
            let is_free = channel.inbox.is_some() && !channel.is_paused;
            // While some channel is in use, the next look is near: a wake-up for each frame of the others would cost more. But
            // tasks have no thread that looks for them: they are woken at once.
            let for_data = is_free && (!look.is_busy || has_tasks);
            // A thread that has just sent waits for the room itself, or has more to send.
            let for_room = channel.is_blocked && channel.outbox.is_some() && !was_sent_on;
            let armed = channel.armed;
            if is_new || (for_data && !armed.for_data) || (for_room && !armed.for_room) {
                channel.armed = Armed { for_data, for_room };
                let readiness = Arc::clone(&channel.readiness);
                look.arm.push(Arm { key, readiness, for_data, for_room });
            }
            // A thread that has just read it will read it again.
            let is_left = is_free && (!was_led || has_tasks);
            if is_left && let Some(inbox) = channel.inbox.take() {
                look.led.push(Led::new(key, channel.class, inbox, &channel.readiness));
            }
        }
        look
    }

    /// Reads channels without a leader. Whether something has come.
    fn read(&self, mut led: Vec<Led>) -> bool {
        let mut has_read = false;
        led.iter_mut().for_each(|it| it.inbox.woken());
        for _ in 0..READS_MAX {
            led.iter_mut().for_each(|it| it.input = it.inbox.read());
            if led.iter().all(|it| it.input.is_empty()) {
                break;
            }
            has_read = true;
            self.shared.act(|core, now| {
                core.note_live(&led);
                core.parse(&mut led, now);
            });
        }
        self.shared.act(|core, _| core.give_back_to_followers(&mut led));
        has_read
    }

    /// Asks how many channels there should be, and gives up those that are too many. Returns peers that lack some.
    fn count(&mut self) -> Vec<Key> {
        let (shared, counts) = (&self.shared, &mut self.counts);
        if !counts.is_due(shared.now()) {
            return Vec::new();
        }
        shared.act(|core, now| counts.look(core, now))
    }

    /// Asks what the paths of bulk data are like, and slows channels down that fill a queue.
    fn pace(&mut self, look: &Look) {
        look.gone.iter().for_each(|key| self.pacers.forget(*key));
        let seen = self.pacers.look(&look.paths, self.shared.now());
        if !seen.is_empty() {
            self.shared.with(|core, _| core.note_paths(&seen));
        }
    }

    /// Has epoll report channels once. Whether one has something already.
    fn arm(&mut self, look: &Look) -> bool {
        for key in &look.gone {
            if let Some((token, readiness)) = self.known.remove(key) {
                self.tokens.remove(&token);
                // The channel's descriptors may be closed already.
                let _ = epoll::delete(&self.epoll, readiness.readable().0);
                let _ = epoll::delete(&self.epoll, readiness.writable().0);
            }
        }
        let mut has_some = false;
        for arm in &look.arm {
            let has_data = arm.for_data && arm.readiness.arm_readable();
            let has_room = arm.for_room && arm.readiness.arm_writable();
            if let Err(error) = self.watch(arm) {
                tracing::warn!("channel {:?} cannot be watched: {error}", arm.key);
            }
            if has_data || has_room {
                // No event comes for what is there already.
                self.shared.act(|core, _| core.told(arm.key));
                has_some = true;
            }
        }
        has_some
    }

    fn watch(&mut self, arm: &Arm) -> rustix::io::Result<()> {
        let is_new = !self.known.contains_key(&arm.key);
        if is_new {
            let token = self.token(Token::Channel(arm.key));
            self.known.insert(arm.key, (token, Arc::clone(&arm.readiness)));
        }
        let token = self.known.get(&arm.key).map_or(0, |(token, _)| *token);
        let data = epoll::EventData::new_u64(token);
        let once = epoll::EventFlags::ONESHOT;
        let (readable, writable) = (arm.readiness.readable(), arm.readiness.writable());
        let flags = |wanted: bool, flags: PollFlags| match wanted {
            false => epoll::EventFlags::empty(),
            true if flags.contains(PollFlags::OUT) => epoll::EventFlags::OUT,
            true => epoll::EventFlags::IN,
        };
        let for_data = flags(arm.for_data, readable.1);
        let for_room = flags(arm.for_room, writable.1);
        let is_one = readable.0.as_raw_fd() == writable.0.as_raw_fd();
        let first = if is_one { for_data | for_room } else { for_data };
        let set = |fd: BorrowedFd<'_>, flags| match is_new {
            true => epoll::add(&self.epoll, fd, data, flags | once),
            false => epoll::modify(&self.epoll, fd, data, flags | once),
        };
        set(readable.0, first)?;
        if is_one { Ok(()) } else { set(writable.0, for_room) }
    }

    fn token(&mut self, token: Token) -> u64 {
        let number = self.next_token;
        self.next_token += 1;
        self.tokens.insert(number, token);
        number
    }

    /// Decides when to look again.
    fn plan(&self, is_busy: bool) -> Option<Nanos> {
        let handshake = self.handshakes.values().map(|it| it.until).min();
        let (until, has_frames) = self.shared.with(|core, now| {
            let look = is_busy.then(|| Nanos(now.0 + self.interval.0));
            let count = self.counts.next_look(is_busy, now);
            let times = core.engine.next_timer().into_iter().chain(look).chain(handshake);
            let times = times.chain(count);
            let until = times.min();
            core.helper_until = until.unwrap_or(Nanos::MAX);
            // A thread that has used a channel meanwhile has woken it already.
            core.is_helper_idle &= !is_busy;
            until
        });
        if has_frames {
            self.shared.flush();
        }
        until
    }

    fn sleep(&mut self, until: Option<Nanos>) {
        let now = self.shared.now();
        let left = until.map(|until| Duration::from_nanos(until.since(now).0));
        let left = left.map(timespec);
        let mut events = Vec::with_capacity(64);
        let zero = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        let timeout = if self.waiter.begin_sleep() { left.as_ref() } else { Some(&zero) };
        let buffer = rustix::buffer::spare_capacity(&mut events);
        let result = epoll::wait(&self.epoll, buffer, timeout);
        let tokens: Vec<Token> = events
            .iter()
            .filter_map(|event: &epoll::Event| self.tokens.get(&event.data.u64()).copied())
            .collect();
        let is_signalled = tokens.iter().any(|token| matches!(token, Token::Wake));
        self.waiter.end_sleep(is_signalled);
        if let Err(error) = result.filter_interrupted() {
            tracing::error!("the helper thread cannot wait: {error}");
            std::thread::sleep(Duration::from_millis(1));
        }
        for token in tokens {
            self.handle(token);
        }
        self.end_handshakes();
    }

    fn handle(&mut self, token: Token) {
        match token {
            Token::Wake => {}
            Token::Port(index) => self.accept(index),
            Token::Handshake(number) => self.handshake(number),
            Token::Channel(key) => self.shared.act(|core, _| core.told(key)),
        }
    }
}

/// Errors of a wait without those that only mean that a signal came.
trait FilterInterrupted {
    fn filter_interrupted(self) -> io::Result<()>;
}

impl<T> FilterInterrupted for Result<T, rustix::io::Errno> {
    fn filter_interrupted(self) -> io::Result<()> {
        match self {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

impl Helper {
    /// Ports on which the endpoint takes channels from now on.
    fn add_ports(&mut self) {
        while let Ok(port) = self.new_ports.try_recv() {
            let token = self.token(Token::Port(self.ports.len()));
            let data = epoll::EventData::new_u64(token);
            match epoll::add(&self.epoll, port.as_fd(), data, PORT_EVENTS) {
                Ok(()) => self.ports.push((port, token)),
                Err(error) => tracing::error!("a channel port cannot be watched: {error}"),
            }
        }
    }

    /// Takes the connections that wait, as long as there are places for them.
    fn accept(&mut self, index: usize) {
        self.take_connections(index);
        self.is_full = self.handshakes.len() >= HANDSHAKES_MAX;
        if !self.is_full {
            self.watch_ports();
        }
    }

    fn watch_ports(&mut self) {
        for (port, token) in &self.ports {
            let data = epoll::EventData::new_u64(*token);
            if let Err(error) = epoll::modify(&self.epoll, port.as_fd(), data, PORT_EVENTS) {
                tracing::error!("a channel port cannot be watched: {error}");
            }
        }
    }

    fn take_connections(&mut self, index: usize) {
        // Some at a time: epoll reports those that are left.
        for _ in 0..HANDSHAKES_MAX {
            if self.handshakes.len() >= HANDSHAKES_MAX {
                return;
            }
            let until = Nanos(self.shared.now().0 + tcp::HANDSHAKE_TIME.as_nanos() as u64);
            let accepted = self.ports.get_mut(index).map(|it| it.0.accept(until, &self.settings));
            let accepted = match accepted {
                None | Some(Ok(None)) => return,
                Some(Ok(Some(accepted))) => accepted,
                Some(Err(error)) => {
                    // Descriptors may be used up: epoll reports the connection again.
                    tracing::warn!("{error}");
                    std::thread::sleep(ACCEPT_PAUSE);
                    return;
                }
            };
            if accepted.is_whole() {
                self.answer(accepted, Ok(true));
                continue;
            }
            let number = self.next_token;
            let token = self.token(Token::Handshake(number));
            let data = epoll::EventData::new_u64(token);
            let Some(fd) = accepted.as_fd() else { continue };
            match epoll::add(&self.epoll, fd, data, epoll::EventFlags::IN) {
                Ok(()) => _ = self.handshakes.insert(number, accepted),
                Err(error) => tracing::error!("a new channel cannot be watched: {error}"),
            }
        }
    }

    /// More of a hello.
    fn handshake(&mut self, number: u64) {
        let Some(it) = self.handshakes.get_mut(&number) else { return };
        let progress = it.proceed();
        if matches!(progress, Ok(false)) {
            return;
        }
        let Some(it) = self.handshakes.remove(&number) else { return };
        self.tokens.remove(&number);
        // Its descriptor stays open as the channel's.
        let _ = it.as_fd().map(|fd| epoll::delete(&self.epoll, fd));
        self.answer(it, progress);
    }

    fn answer(&self, handshake: Handshake, progress: Result<bool, Error>) {
        let from = handshake.from();
        if let Err(error) = progress.and_then(|_| handshake.answer(&self.shared, &self.settings)) {
            tracing::warn!("channel of {from}: {error}");
        }
    }

    /// Gives up those whose time is over, and takes others in their places.
    fn end_handshakes(&mut self) {
        let now = self.shared.now();
        let is_over = |it: &Handshake| it.until <= now;
        let over = self.handshakes.iter().filter(|(_, it)| is_over(it)).map(|(number, _)| *number);
        for number in over.collect::<Vec<u64>>() {
            if let Some(it) = self.handshakes.remove(&number) {
                tracing::debug!("channel of {}: it did not say hello", it.from());
            }
            self.tokens.remove(&number);
        }
        if self.is_full && self.handshakes.len() < HANDSHAKES_MAX {
            self.is_full = false;
            self.watch_ports();
        }
    }

    /// Opens lost channels again, if this side opened them, on a thread of its own: that takes as long as the peer lets it.
    fn reopen(&self, peer: Key) {
        let (address, _) = self.shared.with(|core, _| {
            let known = core.routes.values().flatten().find(|route| route.peer == peer);
            let address = known.and_then(|route| route.rendezvous)?;
            core.reopening.insert(peer).then_some(address)
        });
        let Some(address) = address else { return };
        let shared = Arc::downgrade(&self.shared);
        let settings = Arc::clone(&self.settings);
        let thread = std::thread::Builder::new().name("quell-net-open".to_owned());
        let spawned = thread.spawn(move || reopen(&shared, &settings, peer, address));
        if let Err(error) = spawned {
            tracing::error!("a lost channel to {address} cannot be opened again: {error}");
            self.shared.with(|core, _| core.reopening.remove(&peer));
        }
    }
}

/// Wakes the helper of an endpoint that is closed.
pub(crate) fn stop(shared: &Shared, waiter: &Arc<Waiter>) {
    shared.act(|core, _| {
        core.is_closed = true;
        core.wake_threads();
    });
    Waker::from(Arc::clone(waiter)).wake();
}
