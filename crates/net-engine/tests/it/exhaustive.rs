//! Every life of one stream over two channels, at small bounds: two hosts, a few bytes each way, frames in every order that two
//! channels allow, the end of one of them at any time, which each side learns when it may.
//!
//! A state is what led to it, and counts as another one where the engines or what is on its way differ.

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};

use quell_model::Nanos;
use quell_net_engine::scheduler::RoundRobin;
use quell_net_engine::wire::Open;
use quell_net_engine::{
    ChannelCaps, ChannelId, Class, EndpointId, Engine, EngineConfig, Key, Policies, StreamFailure,
};
use stateright::{Checker, Model, Property};

use super::host::{Host, byte_of};
use super::world::address;

/// Time passes up to what is due so soon: answers that wait a little. What is due later ends nothing here.
const SOON: Nanos = Nanos::from_millis(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Accept,
    Write(usize),
    End(usize),
    Read(usize),
    Close(usize),
    /// A side hands the next frame to a channel.
    Send(usize, usize),
    /// It arrives at the other.
    Deliver(usize, usize),
    /// A channel ends with what is on its way.
    Break(usize),
    /// A side learns that.
    Learn(usize, usize),
    Wait,
}

/// Two hosts, of which the first has opened a stream.
struct Pair {
    hosts: [Host; 2],
    listener: Key,
    /// By side, by channel; `None` once the side has lost it.
    channels: [[Option<Key>; 2]; 2],
    /// What is on its way from a side.
    wires: [[VecDeque<Vec<u8>>; 2]; 2],
    is_broken: [bool; 2],
    sockets: [Option<Key>; 2],
    is_closed: [bool; 2],
    has_ended: [bool; 2],
    written: [u64; 2],
    /// Bytes that a side has read of what the other wrote, and whether it saw its end.
    read: [u64; 2],
    saw_end: [bool; 2],
    failure: [Option<StreamFailure>; 2],
    now: Nanos,
    /// Bytes that each side writes at most, one at a time.
    writes: [u64; 2],
}

/// An engine's state. Of two that differ by times alone the same becomes: what waits for a time is in a list of its own.
fn without_times(engine: &Engine) -> String {
    let state = format!("{engine:?}");
    let mut parts = state.split("Nanos(");
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        kept.push_str(part.trim_start_matches(|it: char| it.is_ascii_digit()));
    }
    kept
}

/// What a writer of a side writes: see [`byte_of`].
fn writer(side: usize) -> u64 {
    side as u64 + 1
}

fn policies() -> Policies {
    let by_turns = || Box::new(RoundRobin { run_bytes: 1 });
    Policies { choice: [by_turns(), by_turns()], ..Policies::default() }
}

impl Pair {
    fn new(writes: [u64; 2]) -> Pair {
        let now = Nanos::ZERO;
        let mut hosts = [1, 2].map(|id| Host::new(EngineConfig::new(EndpointId(id)), policies()));
        let listener = hosts[1].engine.listen(address(1), 1).expect("free");
        let mut channels = [[None; 2]; 2];
        for (channel, class) in [Class::Throughput; 2].into_iter().enumerate() {
            let number = ChannelId(channel as u32 + 1);
            let hellos = [0, 1].map(|side: usize| hosts[side].engine.hello(number, class));
            let caps = ChannelCaps { is_lossy: false, max_frame: 4_096 };
            for side in 0..2 {
                let key = hosts[side].engine.channel_up(&hellos[1 - side], side == 0, caps, now);
                channels[side][channel] = Some(key.expect("taken"));
            }
        }
        let open = Open { source: address(0), destination: address(1), class: Class::Throughput };
        let peer = hosts[0].engine.peer(EndpointId(2)).expect("connected");
        let socket = hosts[0].engine.open(peer, open, now).expect("opened");
        hosts[0].writers.insert(socket, writer(0));
        Pair {
            hosts,
            listener,
            channels,
            wires: Default::default(),
            is_broken: [false; 2],
            sockets: [Some(socket), None],
            is_closed: [false; 2],
            has_ended: [false; 2],
            written: [0; 2],
            read: [0; 2],
            saw_end: [false; 2],
            failure: [None; 2],
            now,
            writes,
        }
    }

    /// Does an action; false if it cannot be done.
    fn act(&mut self, action: Action) -> bool {
        let now = self.now;
        match action {
            Action::Accept => {
                let accepted = self.hosts[1].engine.accept(self.listener);
                let Some((socket, _)) = accepted.filter(|_| self.sockets[1].is_none()) else {
                    return false;
                };
                self.hosts[1].writers.insert(socket, writer(1));
                self.sockets[1] = Some(socket);
            }
            Action::Write(side) => {
                let Some(socket) = self.writable(side) else { return false };
                if self.written[side] == self.writes[side] {
                    return false;
                }
                self.written[side] += 1;
                self.hosts[side].engine.written(socket, 1, now);
            }
            Action::End(side) => {
                let Some(socket) = self.writable(side) else { return false };
                self.has_ended[side] = true;
                self.hosts[side].engine.end_writing(socket, now);
            }
            Action::Read(side) => return self.read(side),
            Action::Close(side) => {
                let Some(socket) = self.open_socket(side) else { return false };
                self.is_closed[side] = true;
                self.hosts[side].engine.close(socket, now);
                self.hosts[side].forget(socket);
            }
            Action::Send(side, channel) => {
                let Some(key) = self.channels[side][channel] else { return false };
                let wire = &mut self.wires[side][channel];
                if !wire.is_empty() {
                    return false;
                }
                let Some(frame) = self.hosts[side].transmit(key, 1, now) else { return false };
                if !self.is_broken[channel] {
                    wire.push_back(frame);
                }
            }
            Action::Deliver(side, channel) => {
                let Some(frame) = self.wires[side][channel].pop_front() else { return false };
                let other = 1 - side;
                if let Some(key) = self.channels[other][channel] {
                    assert!(self.hosts[other].receive(key, &frame, now), "the channel is up");
                }
            }
            Action::Break(channel) => {
                if self.is_broken != [false; 2] {
                    return false;
                }
                self.is_broken[channel] = true;
                self.wires.iter_mut().for_each(|of| of[channel].clear());
            }
            Action::Learn(side, channel) => {
                let known = self.channels[side][channel].filter(|_| self.is_broken[channel]);
                let Some(key) = known else { return false };
                self.channels[side][channel] = None;
                self.hosts[side].lose(key, now);
            }
            Action::Wait => {
                let due = self.hosts.iter().filter_map(|host| host.engine.next_timer()).min();
                let Some(due) = due.filter(|due| due.since(now) <= SOON) else { return false };
                self.now = due;
                self.hosts.iter_mut().for_each(|host| host.engine.timers(due));
            }
        }
        self.look();
        true
    }

    /// A socket that its application has.
    fn open_socket(&self, side: usize) -> Option<Key> {
        self.sockets[side].filter(|_| !self.is_closed[side])
    }

    fn writable(&self, side: usize) -> Option<Key> {
        self.open_socket(side).filter(|_| !self.has_ended[side] && self.failure[side].is_none())
    }

    fn read(&mut self, side: usize) -> bool {
        let Some(socket) = self.open_socket(side) else { return false };
        let (start, bytes) = self.hosts[side].read(socket, 1, self.now);
        if bytes.is_empty() {
            return false;
        }
        assert_eq!(start, self.read[side], "bytes of another place");
        assert_eq!(bytes[0], byte_of(writer(1 - side), start), "another byte than was written");
        self.read[side] += 1;
        self.look();
        true
    }

    /// Notes what applications learn.
    fn look(&mut self) {
        for side in 0..2 {
            let _ = self.hosts[side].notices();
            let status = self.open_socket(side).and_then(|it| self.hosts[side].engine.status(it));
            let Some(status) = status else { continue };
            self.saw_end[side] |= status.is_at_end;
            self.failure[side] = self.failure[side].or(status.failure);
        }
    }

    fn digest(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        let engines = self.hosts.each_ref().map(|host| without_times(&host.engine));
        let app = (self.sockets, self.is_closed, self.has_ended, self.written, self.read);
        (engines, app, self.saw_end, self.is_broken).hash(&mut hasher);
        (self.channels, &self.wires).hash(&mut hasher);
        hasher.finish()
    }

    /// What is wrong.
    fn fault(&self) -> Option<&'static str> {
        for side in 0..2 {
            let other = 1 - side;
            let is_over = self.has_ended[other] || self.is_closed[other];
            if self.saw_end[side] && (!is_over || self.read[side] != self.written[other]) {
                return Some("a side sees the end before all was read that the other wrote");
            }
            if self.failure[side].is_some() && !self.is_closed[other] {
                return Some("a stream fails that its peer has not closed");
            }
        }
        None
    }

    /// Something of a stream is left that both sides have closed.
    fn is_left(&self) -> bool {
        let is_left = |host: &Host| host.engine.stream_count() > 0 || host.engine.send_used() > 0;
        self.is_closed == [true; 2] && self.hosts.iter().any(is_left)
    }

    /// Whether nothing moves but by its applications, and by time.
    fn is_idle(&mut self) -> bool {
        let pairs = SIDES.into_iter().flat_map(|side| SIDES.map(|channel| (side, channel)));
        let mut moves = pairs.flat_map(|(side, channel)| {
            [
                Action::Learn(side, channel),
                Action::Deliver(side, channel),
                Action::Send(side, channel),
            ]
        });
        !moves.any(|action| self.act(action))
    }
}

#[derive(Clone, Debug)]
struct State {
    history: Vec<Action>,
    digest: u64,
    fault: Option<&'static str>,
    /// Each side has seen the end, and closed.
    is_whole: bool,
    has_reset: bool,
    /// Nothing moves but by applications, and by time.
    is_idle: bool,
}

impl State {
    fn new(history: Vec<Action>, mut pair: Pair) -> State {
        let (digest, mut fault, is_left) = (pair.digest(), pair.fault(), pair.is_left());
        let is_whole = pair.saw_end == [true; 2] && pair.is_closed == [true; 2];
        let has_reset = pair.failure.iter().any(Option::is_some);
        let is_idle = pair.is_idle();
        if is_idle && is_left && !pair.act(Action::Wait) {
            fault = Some("a stream is left that both sides have closed");
        }
        State { history, digest, fault, is_whole, has_reset, is_idle }
    }
}

impl PartialEq for State {
    fn eq(&self, other: &State) -> bool {
        self.digest == other.digest
    }
}

impl Eq for State {}

impl Hash for State {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        self.digest.hash(hasher);
    }
}

struct Lives {
    writes: [u64; 2],
    breaks: bool,
}

fn replay(writes: [u64; 2], history: &[Action]) -> Pair {
    let mut pair = Pair::new(writes);
    for action in history {
        assert!(pair.act(*action), "what was done once can be done again");
    }
    pair
}

const SIDES: [usize; 2] = [0, 1];

impl Model for Lives {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(Vec::new(), Pair::new(self.writes))]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let applications = SIDES.into_iter().flat_map(|side| {
            [Action::Write(side), Action::End(side), Action::Read(side), Action::Close(side)]
        });
        let pairs = SIDES.into_iter().flat_map(|side| SIDES.map(|channel| (side, channel)));
        let frames = pairs.clone().flat_map(|(side, channel)| {
            [Action::Send(side, channel), Action::Deliver(side, channel)]
        });
        let ends = pairs.map(|(side, channel)| Action::Learn(side, channel));
        actions.push(Action::Accept);
        actions.extend(applications.chain(frames).chain(ends));
        actions.extend(SIDES.map(Action::Break).into_iter().filter(|_| self.breaks));
        // Time is long against all else.
        actions.extend(state.is_idle.then_some(Action::Wait));
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut pair = replay(self.writes, &last.history);
        if !pair.act(action) {
            return None;
        }
        let history = [&last.history[..], &[action]].concat();
        Some(State::new(history, pair))
    }

    fn properties(&self) -> Vec<Property<Lives>> {
        let mut properties = vec![
            Property::always("nothing is wrong", |_, state: &State| state.fault.is_none()),
            Property::sometimes("both see the end and close", |_, state: &State| state.is_whole),
        ];
        if self.writes != [0; 2] {
            let closes_early = "a side closes before it has read all";
            properties.push(Property::sometimes(closes_early, |_, state: &State| state.has_reset));
        }
        properties
    }
}

fn check(writes: [u64; 2], breaks: bool) {
    let checker = Lives { writes, breaks }.checker().threads(2).spawn_bfs().join();
    println!(
        "{} states, {} of them different",
        checker.state_count(),
        checker.unique_state_count()
    );
    checker.assert_properties();
}

#[test]
fn every_life_of_a_stream_over_two_channels_is_right() {
    check([1, 0], false);
}

#[test]
fn every_life_of_an_empty_stream_of_which_a_channel_breaks_is_right() {
    check([0, 0], true);
}

#[test]
#[ignore = "takes minutes: `make test-all` runs it"]
fn every_longer_life_is_right() {
    check([1, 0], true);
    check([2, 1], false);
}
