//! Endpoints, the channels between them, virtual time, and the applications' oracle.

mod wires;

use std::collections::BTreeMap;
use std::net::SocketAddr;

use quell_model::Nanos;
use quell_net_engine::wire::Open;
use quell_net_engine::{
    Class, EndpointId, EngineConfig, Key, Notice, OpenRefusal, Policies, StreamFailure,
};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::host::{Host, byte_of};
use super::link::{Link, LinkSpec};

pub use wires::Wire;

/// A socket as the oracle has it.
#[derive(Clone, Debug)]
pub struct End {
    pub host: usize,
    pub key: Key,
    /// Decides what is written here, and what is expected.
    pub writer: u64,
    /// That of the other end, once known.
    pub peer_writer: u64,
    pub written: u64,
    pub to_write: u64,
    pub read: u64,
    pub is_closed: bool,
    pub saw_end: bool,
    pub failed: bool,
    /// It reads nothing before.
    pub idle_until: Nanos,
    /// It got a notice that something may be possible. Applications look only then.
    is_awake: bool,
    /// The host at the other end.
    peer_host: usize,
    /// Something was done that may end it before its time.
    may_fail: bool,
}

impl End {
    pub fn expect_failure(&mut self) {
        self.may_fail = true;
    }

    fn is_between(&self, hosts: [usize; 2]) -> bool {
        hosts == [self.host, self.peer_host] || hosts == [self.peer_host, self.host]
    }
}

/// See the module.
pub struct World {
    pub rng: ChaCha8Rng,
    pub now: Nanos,
    pub hosts: Vec<Host>,
    pub wires: Vec<Wire>,
    pub ends: Vec<End>,
    pub spec: LinkSpec,
    /// Streams survive the loss of a channel.
    pub has_recovery: bool,
    pub listeners: BTreeMap<usize, Key>,
    /// Hosts whose applications accept nothing before.
    deaf: BTreeMap<usize, Nanos>,
    next_number: u32,
    next_endpoint: u128,
    /// Ends of the opener by its address: how the acceptor's end finds its peer.
    openers: BTreeMap<SocketAddr, usize>,
    /// What the acceptor is to write, by the same.
    answers: BTreeMap<SocketAddr, u64>,
}

/// Streams that wait to be accepted.
pub const BACKLOG: usize = 2;

pub fn address(host: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, host as u8 + 1], 80))
}

impl World {
    pub fn new(seed: u64, spec: LinkSpec) -> World {
        World {
            rng: ChaCha8Rng::seed_from_u64(seed),
            now: Nanos::from_millis(1),
            hosts: Vec::new(),
            wires: Vec::new(),
            ends: Vec::new(),
            spec,
            has_recovery: true,
            listeners: BTreeMap::new(),
            deaf: BTreeMap::new(),
            next_number: 1,
            next_endpoint: 1,
            openers: BTreeMap::new(),
            answers: BTreeMap::new(),
        }
    }

    pub fn add_host(&mut self, configure: impl FnOnce(&mut EngineConfig) -> Policies) -> usize {
        let host = self.hosts.len();
        let fresh = self.fresh_host(configure);
        self.hosts.push(fresh);
        self.listen(host);
        host
    }

    fn fresh_host(&mut self, configure: impl FnOnce(&mut EngineConfig) -> Policies) -> Host {
        // Not in the order of the hosts: which side has odd streams is to vary.
        let mixed = self.next_endpoint.wrapping_mul(0x9e37_79b9_7f4a_7c15_9e37_79b9_7f4a_7c15);
        self.next_endpoint += 1;
        let mut config = EngineConfig::new(EndpointId(mixed));
        let policies = configure(&mut config);
        Host::new(config, policies)
    }

    pub fn listen(&mut self, host: usize) {
        let listener = self.hosts[host].engine.listen(address(host), BACKLOG).expect("free");
        self.listeners.insert(host, listener);
    }

    /// A host restarts under another id: its sockets are gone, its channels break.
    pub fn restart(&mut self, host: usize, configure: impl FnOnce(&mut EngineConfig) -> Policies) {
        while let Some(index) =
            self.wires.iter().position(|wire| wire.ends.iter().any(|(end, _)| *end == host))
        {
            self.cut(index);
        }
        let old = self.hosts[host].id;
        self.hosts[host] = self.fresh_host(configure);
        self.listen(host);
        for end in self.ends.iter_mut().filter(|end| end.host == host) {
            (end.is_closed, end.failed) = (true, true);
        }
        let touched = self.ends.iter_mut().filter(|end| [end.host, end.peer_host].contains(&host));
        touched.for_each(End::expect_failure);
        for other in 0..self.hosts.len() {
            let now = self.now;
            if let Some(peer) = self.hosts[other].engine.peer(old) {
                self.hosts[other].engine.peer_gone(peer, now);
            }
        }
    }

    /// Opens a stream; both sides write so much.
    pub fn open(&mut self, from: usize, to: usize, class: Class, bytes: [u64; 2]) -> Option<usize> {
        let id = self.hosts[to].id;
        let index = self.ends.len();
        let source = SocketAddr::from(([10, 9, (index >> 8) as u8, index as u8], 1_000));
        let open = Open { source, destination: address(to), class };
        let now = self.now;
        let host = &mut self.hosts[from];
        let key = host.engine.open(host.engine.peer(id)?, open, now).ok()?;
        if index.is_multiple_of(3) {
            host.engine.open_early(key);
        }
        let writer = 2 * index as u64 + 1;
        host.writers.insert(key, writer);
        self.openers.insert(source, index);
        self.ends.push(End {
            host: from,
            key,
            writer,
            peer_writer: writer + 1,
            written: 0,
            to_write: bytes[0],
            read: 0,
            is_closed: false,
            saw_end: false,
            failed: false,
            idle_until: Nanos::ZERO,
            is_awake: true,
            peer_host: to,
            may_fail: false,
        });
        self.answers.insert(source, bytes[1]);
        Some(index)
    }
}

impl World {
    /// Everything that can happen at this time: applications, notices, frames.
    pub fn settle(&mut self) {
        self.end_cuts();
        self.end_deafness();
        for _ in 0..10_000 {
            let mut is_quiet = true;
            for host in 0..self.hosts.len() {
                let now = self.now;
                self.hosts[host].engine.timers(now);
                is_quiet &= !self.handle_notices(host);
            }
            is_quiet &= !self.apply();
            is_quiet &= !self.transmit();
            is_quiet &= !self.deliver();
            is_quiet &= !self.end_retired();
            if is_quiet {
                return;
            }
        }
        panic!("the world does not come to rest at {:?}", self.now);
    }

    fn handle_notices(&mut self, host: usize) -> bool {
        let notices = self.hosts[host].notices();
        for notice in &notices {
            match notice {
                Notice::Acceptable(listener) => self.accept(host, *listener),
                Notice::Gone(socket) => self.hosts[host].forget(*socket),
                Notice::Readable(socket) | Notice::Writable(socket) | Notice::Connected(socket) => {
                    let of = |end: &&mut End| (end.host, end.key) == (host, *socket);
                    self.ends.iter_mut().filter(of).for_each(|end| end.is_awake = true);
                }
                Notice::Send(channel) => {
                    self.with_end(host, *channel, |wire, side| wire.sendable[side] = true);
                }
                Notice::Pause(channel, pause) => {
                    self.with_end(host, *channel, |wire, side| wire.paused[side] = *pause);
                }
                Notice::Close(channel) => {
                    let of = |wire: &Wire| wire.ends.contains(&(host, *channel));
                    if let Some(index) = self.wires.iter().position(of) {
                        self.cut(index);
                    }
                }
                Notice::Freed(_) | Notice::Missing(..) | Notice::PeerGone(_) => {}
            }
        }
        !notices.is_empty()
    }

    fn with_end(&mut self, host: usize, channel: Key, act: impl FnOnce(&mut Wire, usize)) {
        for wire in &mut self.wires {
            if let Some(side) = wire.ends.iter().position(|end| *end == (host, channel)) {
                return act(wire, side);
            }
        }
    }

    /// The application of a host accepts nothing for a while.
    pub fn deafen(&mut self, host: usize, time: Nanos) {
        self.deaf.insert(host, Nanos(self.now.0 + time.0));
    }

    fn end_deafness(&mut self) {
        let is_over = |at: &Nanos| *at <= self.now;
        let over: Vec<usize> =
            self.deaf.iter().filter(|(_, at)| is_over(at)).map(|(host, _)| *host).collect();
        for host in over {
            self.deaf.remove(&host);
            let listener = self.listeners[&host];
            self.accept(host, listener);
        }
    }

    fn accept(&mut self, host: usize, listener: Key) {
        if self.deaf.contains_key(&host) {
            return;
        }
        while let Some((key, open)) = self.hosts[host].engine.accept(listener) {
            let opener = self.openers[&open.source];
            let writer = self.ends[opener].peer_writer;
            let to_write = self.answers[&open.source];
            self.hosts[host].writers.insert(key, writer);
            self.ends.push(End {
                host,
                key,
                writer,
                peer_writer: self.ends[opener].writer,
                written: 0,
                to_write,
                read: 0,
                is_closed: false,
                saw_end: false,
                failed: false,
                idle_until: Nanos::ZERO,
                is_awake: true,
                peer_host: self.ends[opener].host,
                may_fail: self.ends[opener].may_fail,
            });
        }
    }

    /// Applications read and write what they can. Whether any did.
    fn apply(&mut self) -> bool {
        let mut has_acted = false;
        for index in 0..self.ends.len() {
            has_acted |= self.act(index);
        }
        has_acted
    }

    /// The other end of a stream that has failed here.
    fn expect_failure_of_peer(&mut self, writer: u64) {
        let peer = self.ends.iter_mut().filter(|end| end.peer_writer == writer);
        peer.for_each(End::expect_failure);
    }

    /// The application of an end gives it up.
    pub fn abort(&mut self, index: usize) {
        let now = self.now;
        let end = &mut self.ends[index];
        if end.is_closed {
            return;
        }
        (end.is_closed, end.failed, end.may_fail) = (true, true, true);
        self.hosts[end.host].engine.abort(end.key, now);
        self.hosts[end.host].forget(end.key);
        let writer = end.writer;
        self.expect_failure_of_peer(writer);
    }

    fn act(&mut self, index: usize) -> bool {
        let now = self.now;
        let end = &mut self.ends[index];
        let is_up = end.idle_until <= now;
        if end.is_closed || !std::mem::take(&mut end.is_awake) {
            return false;
        }
        let host = &mut self.hosts[end.host];
        let Some(status) = host.engine.status(end.key) else {
            panic!("an open socket has no status")
        };
        if let Some(failure) = status.failure {
            (end.failed, end.is_closed) = (true, true);
            let is_refused = failure == StreamFailure::Refused(OpenRefusal::Busy);
            assert!(
                end.may_fail || is_refused,
                "a stream fails without a cause: {failure:?}, {end:?}"
            );
            host.engine.close(end.key, now);
            host.forget(end.key);
            let writer = end.writer;
            self.expect_failure_of_peer(writer);
            return true;
        }
        let mut has_acted = false;
        if !is_up {
            // It looks when it is up again, whatever notices it got meanwhile.
            end.is_awake = true;
        }
        if is_up && status.readable == 0 {
            host.engine.read(end.key, 0, now);
        }
        if is_up && status.readable > 0 {
            let most = self.rng.random_range(1..=status.readable);
            let (start, bytes) = host.read(end.key, most, now);
            assert_eq!(start, end.read, "bytes are skipped or come twice");
            for (at, byte) in bytes.iter().enumerate() {
                let expected = byte_of(end.peer_writer, start + at as u64);
                assert_eq!(
                    *byte,
                    expected,
                    "stream of {} at {}",
                    end.peer_writer,
                    start + at as u64
                );
            }
            end.read += bytes.len() as u64;
            has_acted = true;
        }
        let left = end.to_write - end.written;
        if left > 0 && status.writable > 0 {
            let bytes = self.rng.random_range(1..=left.min(status.writable));
            host.engine.written(end.key, bytes, now);
            end.written += bytes;
            // There may be room for more.
            end.is_awake = true;
            has_acted = true;
        } else if left > 0 {
            host.engine.wants_room(end.key);
        }
        if end.written == end.to_write {
            host.engine.end_writing(end.key, now);
        }
        let status = host.engine.status(end.key).expect("open");
        if status.is_at_end && end.written == end.to_write && !end.is_closed {
            (end.saw_end, end.is_closed) = (true, true);
            host.engine.end_writing(end.key, now);
            host.engine.close(end.key, now);
            host.forget(end.key);
            has_acted = true;
            let (read, peer_writer) = (end.read, end.peer_writer);
            let peer = self.ends.iter().find(|end| end.writer == peer_writer);
            // A test may have taken it away.
            let is_whole = peer.is_none_or(|peer| peer.to_write == read);
            assert!(is_whole, "a stream ends after {read} bytes of {peer:?}");
        }
        has_acted
    }

    fn transmit(&mut self) -> bool {
        let mut has_sent = false;
        let now = self.now;
        for wire in &mut self.wires {
            for side in 0..2 {
                let (host, key) = wire.ends[side];
                let host = &mut self.hosts[host];
                let link = &mut wire.links[side];
                while wire.sendable[side] && link.room() > 0 && !wire.closed[side] {
                    let Some(frame) = host.transmit(key, 4_096, now) else {
                        wire.sendable[side] = false;
                        break;
                    };
                    // The other end has lost it: nothing arrives.
                    if wire.dead.is_none() {
                        link.send(&frame, now, &mut self.rng);
                    }
                    has_sent = true;
                }
                let (backlog, is_full) = (link.backlog() as u64, link.room() == 0);
                host.engine.channel_load(key, backlog, is_full, Nanos::ZERO);
            }
        }
        has_sent
    }

    fn deliver(&mut self) -> bool {
        let now = self.now;
        let mut has_come = false;
        let mut broken = Vec::new();
        for (index, wire) in self.wires.iter_mut().enumerate() {
            for side in 0..2 {
                let (host, key) = wire.ends[1 - side];
                if wire.closed[1 - side] {
                    wire.links[side].lose_all();
                    continue;
                }
                while !wire.paused[1 - side] {
                    let Some(bytes) = wire.links[side].arrive(now) else { break };
                    has_come = true;
                    if !self.hosts[host].receive(key, &bytes, now) {
                        broken.push(index);
                        break;
                    }
                    // A pause counts at once.
                    if self.hosts[host].engine.has_notice() {
                        break;
                    }
                }
            }
        }
        broken.dedup();
        broken.into_iter().rev().for_each(|index| self.cut(index));
        has_come
    }

    /// Goes on to the next event, at most to `until`. False once it is there.
    pub fn step(&mut self, until: Nanos) -> bool {
        self.settle();
        let read = |wire: &Wire| {
            let sides = [0, 1].into_iter().filter(|side| !wire.paused[1 - side]);
            sides.filter_map(|side| wire.links[side].next()).min()
        };
        let links = self.wires.iter().filter_map(read);
        let cuts = self.wires.iter().filter_map(|wire| wire.dead).map(|(_, at)| at);
        let timers = self.hosts.iter().filter_map(|host| host.engine.next_timer());
        let idle = self.ends.iter().filter(|end| !end.is_closed).map(|end| end.idle_until);
        let deaf = self.deaf.values().copied();
        let next = links
            .chain(cuts)
            .chain(timers)
            .chain(idle)
            .chain(deaf)
            .filter(|at| *at > self.now)
            .min();
        match next.filter(|at| *at < until) {
            Some(at) => {
                self.now = at;
                true
            }
            None => {
                self.now = until;
                self.settle();
                false
            }
        }
    }

    pub fn run(&mut self, until: Nanos) {
        while self.step(until) {}
    }

    /// Whether every application is done.
    pub fn is_done(&self) -> bool {
        self.ends.iter().all(|end| end.is_closed)
    }

    /// Memory and credit balance, once all is closed and the grace time is over.
    pub fn assert_balanced(&self) {
        for host in &self.hosts {
            let engine = &host.engine;
            assert_eq!(engine.stream_count(), 0, "streams are left");
            assert_eq!(engine.receive_reserved(), 0, "credit is left");
            assert_eq!(engine.send_used(), 0, "send memory is left");
            assert_eq!(host.held(), 0, "bytes are left");
        }
    }
}
