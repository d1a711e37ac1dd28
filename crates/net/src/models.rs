//! Models of how threads hand channels to each other, in every interleaving: the library's own state and decisions, with loom's
//! lock around them, a kernel of two system calls, and a transport that is a queue.

use std::collections::VecDeque;
use std::io::{self, IoSlice, IoSliceMut};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::task::{Wake, Waker};

use loom::sync::atomic::AtomicU64;
use loom::sync::{Condvar, Mutex};
use loom::thread;
use quell_model::{CoreId, Nanos};
use quell_net_engine::wire::{Features, Header, Hello, Open, PAYLOAD_MAX};
use quell_net_engine::{
    Body, ChannelCaps, ChannelId, Class, EndpointId, Engine, EngineConfig, Key, Policies,
};

use crate::core::{Addresses, Core};
use crate::leading::{Interest, Led, Step, Waiting};
use crate::meet::WakeState;
use crate::placing::Placing;
use crate::shared::{Locked, read_all, send_due, send_placed};
use crate::stats::Origin;
use crate::stream::register_reader;
use crate::transport::{Incoming, Outgoing, PollFlags, Readiness, Transport};

const NOW: Nanos = Nanos::from_millis(5);
const THREADS: usize = 4;
/// The thread that does what no other does.
const HELPER: usize = 3;

/// What the kernel has: bytes that have arrived, bytes that were sent, and events.
#[derive(Default)]
struct Kernel {
    state: Mutex<KernelState>,
    changed: Condvar,
}

#[derive(Default)]
struct KernelState {
    arrived: VecDeque<Vec<u8>>,
    sent: Vec<u8>,
    events: [bool; THREADS],
}

impl Kernel {
    fn arrive(&self, bytes: Vec<u8>) {
        self.state.lock().unwrap().arrived.push_back(bytes);
        self.changed.notify_all();
    }

    fn signal(&self, thread: usize) {
        self.state.lock().unwrap().events[thread] = true;
        self.changed.notify_all();
    }

    /// `poll(2)`. Whether there is something to read.
    fn poll(&self, thread: usize, wants_data: bool) -> bool {
        let mut state = self.state.lock().unwrap();
        loop {
            let has_data = wants_data && !state.arrived.is_empty();
            if has_data || state.events[thread] {
                state.events[thread] = false;
                return has_data;
            }
            state = self.changed.wait(state).unwrap();
        }
    }
}

struct Pipe(Arc<Kernel>);

impl Incoming for Pipe {
    fn dequeue(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let bytes = self.0.state.lock().unwrap().arrived.pop_front();
        let bytes = bytes.ok_or(io::ErrorKind::WouldBlock)?;
        into[0][..bytes.len()].copy_from_slice(&bytes);
        Ok(bytes.len())
    }

    fn is_asked_by_poll(&self) -> bool {
        true
    }
}

impl Outgoing for Pipe {
    fn enqueue(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut state = self.0.state.lock().unwrap();
        bytes.iter().for_each(|it| state.sent.extend_from_slice(it));
        Ok(bytes.iter().map(|it| it.len()).sum())
    }
}

impl Readiness for Pipe {
    fn readable(&self) -> (BorrowedFd<'_>, PollFlags) {
        unreachable!("the model has a poll of its own")
    }

    fn writable(&self) -> (BorrowedFd<'_>, PollFlags) {
        unreachable!("the model has a poll of its own")
    }

    fn end(&self) {}
}

/// What a thread sleeps on.
struct Sleeper {
    state: WakeState<AtomicU64>,
    kernel: Arc<Kernel>,
    number: usize,
}

impl Wake for Sleeper {
    fn wake(self: Arc<Sleeper>) {
        if self.state.wake() {
            self.kernel.signal(self.number);
        }
    }
}

impl Sleeper {
    /// As a waiter of the library sleeps.
    fn sleep(&self, wants_data: bool) -> bool {
        let has_data = self.state.begin_sleep() && self.kernel.poll(self.number, wants_data);
        self.state.end_sleep();
        has_data
    }
}

/// An endpoint with a channel, and two streams over it.
struct Scene {
    core: Mutex<Core>,
    kernel: Arc<Kernel>,
    sleepers: Vec<Arc<Sleeper>>,
    streams: Vec<Key>,
    peer: Key,
    channel: Key,
    /// Frames of the peer: a byte for each stream.
    data: Vec<Vec<u8>>,
}

impl Locked for Scene {
    fn locked<T>(&self, act: impl FnOnce(&mut Core, Nanos) -> T) -> (T, bool) {
        let mut core = self.core.lock().unwrap();
        let result = act(&mut core, NOW);
        let (wakes, has_frames) = core.dispatch();
        drop(core);
        wakes.into_iter().flatten().for_each(Waker::wake);
        (result, has_frames)
    }
}

fn hello(endpoint: u128) -> Hello {
    Hello {
        endpoint: EndpointId(endpoint),
        channel: ChannelId(1),
        class: Class::Latency,
        features: Features::RECOVERY,
        max_frame: PAYLOAD_MAX,
        first_window: 16 << 10,
    }
}

/// What a peer sends: the opening of two streams, then a byte for each.
fn frames_of_peer() -> (Vec<u8>, Vec<Vec<u8>>) {
    let mut engine = Engine::new(EngineConfig::new(EndpointId(2)), Policies::default());
    let caps = ChannelCaps { is_lossy: false, max_frame: PAYLOAD_MAX };
    let channel = engine.channel_up(&hello(1), true, caps, NOW).expect("a channel");
    let peer = engine.peer(EndpointId(1)).expect("a peer");
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 80));
    let (mut opens, mut data) = (Vec::new(), Vec::new());
    for _ in 0..2 {
        let open = Open { source: address, destination: address, class: Class::Latency };
        let stream = engine.open(peer, open, NOW).expect("a stream");
        engine.open_early(stream);
        engine.written(stream, 1, NOW);
        while let Some(frame) = engine.transmit(channel, PAYLOAD_MAX, NOW) {
            let mut bytes = frame.header.encode().to_vec();
            match frame.body {
                Body::Data(_) => bytes.push(7),
                Body::Open(body) => bytes.extend(body),
                Body::Update(body) => bytes.extend(body),
                Body::Empty => {}
            }
            if frame.header.kind.is_data() { data.push(bytes) } else { opens.extend(bytes) }
        }
    }
    assert_eq!(data.len(), 2);
    (opens, data)
}

impl Scene {
    fn new(is_placed: bool, (opens, data): &(Vec<u8>, Vec<Vec<u8>>)) -> Arc<Scene> {
        let kernel = Arc::<Kernel>::default();
        let sleeper = |number| {
            let state = WakeState::new();
            Arc::new(Sleeper { state, kernel: Arc::clone(&kernel), number })
        };
        let sleepers: Vec<Arc<Sleeper>> = (0..THREADS).map(sleeper).collect();
        let waker = Waker::from(Arc::clone(&sleepers[HELPER]));
        let engine = Engine::new(EngineConfig::new(EndpointId(1)), Policies::default());
        let mut core = Core::new(engine, waker.clone());
        core.placing = is_placed.then(|| Placing::of_thread(CoreId(0), waker));
        let pipe = || Box::new(Pipe(Arc::clone(&kernel)));
        let transport = Transport {
            outgoing: pipe(),
            incoming: pipe(),
            readiness: Arc::new(Pipe(Arc::clone(&kernel))),
            path: None,
            caps: ChannelCaps { is_lossy: false, max_frame: PAYLOAD_MAX },
            name: "model",
        };
        let own = IpAddr::from(Ipv4Addr::LOCALHOST);
        let address = SocketAddr::new(own, 80);
        let listener = core.engine.listen(address, 8).expect("a free address");
        let addresses =
            Addresses { peer: address, rendezvous: None, own, origin: Origin::Attached };
        let channel =
            core.add_channel(&hello(2), false, transport, addresses, NOW).expect("a channel");
        kernel.arrive(opens.clone());
        let it = core.channels.get_mut(channel).expect("it is up");
        let inbox = it.inbox.take().expect("no thread reads it");
        let mut led = vec![Led::new(channel, Class::Latency, inbox, &it.readiness)];
        read_all(&mut led);
        core.parse(&mut led, NOW);
        core.give_back(&mut led);
        let accept = |core: &mut Core| core.engine.accept(listener).map(|(key, _)| key);
        let streams: Vec<Key> = std::iter::from_fn(|| accept(&mut core)).collect();
        assert_eq!(streams.len(), 2);
        for key in &streams {
            core.sockets.of(*key);
            assert_eq!(core.engine.status(*key).map(|it| it.readable), Some(0));
        }
        core.dispatch();
        // What the opening made due is sent.
        while let Some(mut sending) = match is_placed {
            true => core.next_sending_of(0, NOW),
            false => core.next_sending(false, NOW),
        } {
            let result = sending.outbox.send();
            core.sent(sending, result, NOW);
            core.dispatch();
        }
        core.wakes.clear();
        let peer = core.engine.peer(EndpointId(2)).expect("it said hello");
        let core = Mutex::new(core);
        Arc::new(Scene { core, kernel, sleepers, streams, peer, channel, data: data.clone() })
    }

    /// Waits for a byte of a stream, as a thread of a program does.
    fn read(&self, thread: usize, key: Key) {
        let sleeper = &self.sleepers[thread];
        let waker = Waker::from(Arc::clone(sleeper));
        let interests = [Interest {
            peer: self.peer,
            class: Class::Latency,
            wants_control: false,
            is_weak: false,
        }];
        let mut led = Vec::new();
        loop {
            sleeper.state.reset();
            let waiting = Waiting {
                interests: &interests,
                waker: &waker,
                is_over: false,
                is_in_the_way: false,
            };
            let check = |core: &mut Core, now| {
                let readable = core.engine.status(key).map_or(0, |it| it.readable);
                core.engine.read(key, readable, now);
                (readable > 0).then_some(())
            };
            let register = |core: &mut Core, waker: &Waker, waits| {
                register_reader(core, key, waker, waits);
            };
            let step = |core: &mut Core, now| core.step(&waiting, &mut led, check, register, now);
            let (step, has_frames) = self.locked(step);
            if has_frames {
                send_due(self, true);
            }
            match step {
                Step::Done(_) => return,
                Step::Wait(blocked) => assert!(blocked.is_empty()),
                Step::Yield => unreachable!("no green threads here"),
            }
            if !read_all(&mut led) && sleeper.sleep(!led.is_empty()) {
                led.iter_mut().for_each(|it| it.inbox.woken());
                read_all(&mut led);
            }
        }
    }

    /// What the helper does, but for its clock: a look that a timer makes in the end is made at once.
    fn help(&self) {
        let sleeper = &self.sleepers[HELPER];
        loop {
            sleeper.state.reset();
            let look = |core: &mut Core, _| {
                core.is_helper_idle = true;
                core.needs_looks = false;
                let it = core.channels.get_mut(self.channel).expect("it is up");
                it.armed.for_data = it.inbox.is_some();
                let led = it
                    .inbox
                    .take()
                    .map(|inbox| Led::new(self.channel, Class::Latency, inbox, &it.readiness));
                (core.is_closed, led.into_iter().collect::<Vec<Led>>())
            };
            let ((is_closed, mut led), _) = self.locked(look);
            let is_armed = !led.is_empty();
            led.iter_mut().for_each(|it| it.inbox.woken());
            while read_all(&mut led) {
                self.locked(|core, now| core.parse(&mut led, now));
            }
            let (_, has_frames) = self.locked(|core, _| core.give_back_to_followers(&mut led));
            if has_frames {
                send_due(self, false);
            }
            if is_closed {
                return;
            }
            sleeper.sleep(is_armed);
        }
    }

    /// The thread of a placed channel.
    fn serve(&self) {
        let (sleeper, mut led) = (&self.sleepers[HELPER], Vec::new());
        loop {
            sleeper.state.reset();
            send_placed(self, 0);
            let (look, has_frames) = self.locked(|core, now| core.look_of_thread(0, &mut led, now));
            if has_frames {
                send_due(self, false);
            }
            if look.is_closed && !look.has_more {
                self.locked(|core, _| core.end_thread(&mut led));
                return;
            }
            if !look.has_more && !read_all(&mut led) {
                sleeper.sleep(!led.is_empty());
                led.iter_mut().for_each(|it| it.inbox.woken());
                read_all(&mut led);
            }
        }
    }

    fn write(&self, key: Key) {
        let write = |core: &mut Core, now| {
            let (_, end) = core.engine.send_range(key).expect("it is open");
            core.sockets.of(key).written.copy(&core.pool, end, &[1]);
            core.engine.written(key, 1, now);
        };
        if self.locked(write).1 {
            send_due(self, false);
        }
    }

    /// Readers have read for each other just now: from one to the other the channel goes without the helper.
    fn was_shared(&self) {
        self.locked(|core, now| core.note_shared(&[self.channel], now));
    }

    fn close(&self) {
        self.locked(|core, _| {
            core.is_closed = true;
            core.wake_threads();
            core.wake_helper();
        });
    }

    /// Bytes of streams that have been sent.
    fn sent(&self) -> u32 {
        let (state, mut bytes) = (self.kernel.state.lock().unwrap(), 0);
        let mut rest = &state.sent[..];
        while let Some((head, behind)) = rest.split_first_chunk() {
            let header = Header::decode(head, PAYLOAD_MAX).expect("a frame");
            bytes += if header.kind.is_data() { header.length } else { 0 };
            rest = &behind[header.length as usize..];
        }
        bytes
    }
}

/// Runs a model in all schedules with at most so many preemptions.
fn check(preemptions: usize, is_placed: bool, model: impl Fn(&Arc<Scene>) + Send + Sync + 'static) {
    let frames = frames_of_peer();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || model(&Scene::new(is_placed, &frames)));
}

fn spawn(scene: &Arc<Scene>, act: impl FnOnce(&Scene) + 'static) -> thread::JoinHandle<()> {
    let scene = Arc::clone(scene);
    thread::spawn(move || act(&scene))
}

/// Two threads wait for a stream each, over one channel: one reads for both, and it changes which. Loom fails where one
/// sleeps although its byte has come.
fn reader_that_leaves_passes_the_channel_on(preemptions: usize, has_helper: bool) {
    check(preemptions, false, move |scene| {
        scene.was_shared();
        let helper = has_helper.then(|| spawn(scene, Scene::help));
        let [first, second] = [0, 1]
            .map(|thread| spawn(scene, move |scene| scene.read(thread, scene.streams[thread])));
        for bytes in &scene.data {
            scene.kernel.arrive(bytes.clone());
        }
        first.join().unwrap();
        second.join().unwrap();
        scene.close();
        helper.into_iter().for_each(|helper| helper.join().unwrap());
    });
}

/// A thread that has asked for the channel often is made to read it next.
fn successor_takes_the_channel_over(preemptions: usize) {
    check(preemptions, false, |scene| {
        let waker = Waker::from(Arc::clone(&scene.sleepers[1]));
        scene.locked(|core, _| {
            let channel = core.channels.get_mut(scene.channel).expect("it is up");
            while channel.askers.count(&waker) < 3 {}
        });
        let helper = spawn(scene, Scene::help);
        let first = spawn(scene, |scene| scene.read(0, scene.streams[0]));
        let second = spawn(scene, |scene| scene.read(1, scene.streams[1]));
        scene.kernel.arrive(scene.data[1].clone());
        second.join().unwrap();
        scene.kernel.arrive(scene.data[0].clone());
        first.join().unwrap();
        scene.close();
        helper.join().unwrap();
    });
}

#[test]
fn loom_reader_that_leaves_passes_the_channel_on() {
    reader_that_leaves_passes_the_channel_on(1, true);
    reader_that_leaves_passes_the_channel_on(2, false);
}

#[test]
fn loom_successor_takes_the_channel_over() {
    successor_takes_the_channel_over(1);
}

#[test]
#[ignore = "test-all: takes minutes"]
fn loom_readers_change_in_more_schedules() {
    reader_that_leaves_passes_the_channel_on(2, true);
    successor_takes_the_channel_over(2);
}

/// Two threads write: one that finds the channel in use leaves its bytes to the other. None is left over.
#[test]
fn loom_bytes_left_to_a_sender_are_sent() {
    check(3, false, |scene| {
        let other = spawn(scene, |scene| scene.write(scene.streams[1]));
        scene.write(scene.streams[0]);
        scene.write(scene.streams[0]);
        other.join().unwrap();
        assert_eq!(scene.sent(), 3);
    });
}

/// A program's threads leave what they write to the thread of a placed channel, and wait for what that reads.
#[test]
fn loom_placed_thread_sends_and_reads_for_others() {
    check(2, true, |scene| {
        let placed = spawn(scene, Scene::serve);
        let reader = spawn(scene, |scene| scene.read(0, scene.streams[0]));
        scene.kernel.arrive(scene.data[0].clone());
        scene.write(scene.streams[1]);
        reader.join().unwrap();
        scene.close();
        placed.join().unwrap();
        assert_eq!(scene.sent(), 1, "before the thread ends");
    });
}
