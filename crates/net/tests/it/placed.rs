//! Channels that threads of the endpoint send and read, each on a core that a policy has chosen.

use std::collections::BTreeSet;
use std::io::{self, IoSlice};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use quell_model::{Core, CoreId, CoreSet, Topology};
use quell_net::scheduler::{Apart, ChannelPlace, Packed, Placement, RoundRobin};
use quell_net::transport::Outgoing;
use quell_net::{Class, Endpoint, EndpointConfig, Listener, SameHost, Side};
use quell_os::{Tid, sched};

use super::examples::transport::transport;
use super::streams::{address, pattern};

const BYTES: usize = 6_000_000;

/// Cores of this host that this thread may use: as few as one.
fn own_cores() -> CoreSet {
    sched::affinity(Tid(0)).expect("a thread has cores")
}

fn config(placement: impl Placement + 'static, same_host: SameHost) -> EndpointConfig {
    let placement: Option<Box<dyn Placement>> = Some(Box::new(placement));
    EndpointConfig { placement, same_host, throughput_channels: 2, ..EndpointConfig::default() }
}

fn pair(
    placement: impl Placement + Clone + 'static,
    same_host: SameHost,
) -> (Endpoint, Listener, Endpoint) {
    let server = Endpoint::new(config(placement.clone(), same_host)).expect("an endpoint");
    let port = server.take_channels("127.0.0.1:0".parse().expect("valid")).expect("a port");
    let listener = server.listen(address()).expect("a free address");
    let client = Endpoint::new(config(placement, same_host)).expect("an endpoint");
    client.connect_peer(port).expect("the server is there");
    (server, listener, client)
}

/// Waits until each thread that there is to be says where it is kept.
fn settled(endpoint: &Endpoint, channels: usize) -> quell_net::Stats {
    let until = Instant::now() + Duration::from_secs(20);
    loop {
        let stats = endpoint.stats();
        let runs = stats.placed_threads.iter().all(|thread| thread.is_kept.is_some());
        let placed = stats.channels.iter().filter(|channel| channel.core.is_some()).count();
        if runs && placed == channels {
            return stats;
        }
        assert!(Instant::now() < until, "{stats}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Sends a stream there and back, of which each byte is compared.
fn echo(listener: &Listener, client: &Endpoint, class: Class) {
    let sent: Vec<u8> = (0..BYTES).map(pattern).collect();
    let stream = client.connect(address(), class).expect("accepted");
    let answered = listener.accept().expect("a stream");
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut part = vec![0; 100_000];
            loop {
                let length = answered.read(&mut part).expect("it lives");
                if length == 0 {
                    break;
                }
                answered.write_all(&part[..length]).expect("it reads");
            }
            answered.shutdown(Shutdown::Write).expect("it lives");
        });
        scope.spawn(|| {
            // Large and small writes.
            for (index, part) in sent.chunks(70_000).enumerate() {
                let size = if index % 3 == 0 { 700 } else { 70_000 };
                part.chunks(size).for_each(|it| stream.write_all(it).expect("it reads"));
            }
            stream.shutdown(Shutdown::Write).expect("it lives");
        });
        let (mut received, mut part) = (Vec::new(), vec![0; 150_000]);
        while let length @ 1.. = stream.read(&mut part).expect("it lives") {
            received.extend_from_slice(&part[..length]);
        }
        assert!(received == sent, "{class:?}: {} bytes", received.len());
    });
}

fn carries(placement: impl Placement + Clone + 'static, same_host: SameHost) {
    let (server, listener, client) = pair(placement, same_host);
    settled(&client, 3);
    for class in [Class::Latency, Class::Throughput, Class::Latency] {
        echo(&listener, &client, class);
    }
    // Channels that are opened again are placed again, and nothing is lost.
    thread::scope(|scope| {
        let resets = scope.spawn(|| {
            for _ in 0..3 {
                client.reset_channels();
                thread::sleep(Duration::from_millis(5));
            }
        });
        echo(&listener, &client, Class::Throughput);
        resets.join().expect("no panic");
    });
    settled(&client, 3);
    drop((client, listener, server));
}

#[test]
fn placed_channels_of_tcp_carry_all() {
    carries(Apart, SameHost::Tcp);
}

#[test]
fn placed_channels_through_shared_memory_carry_all() {
    carries(Apart, SameHost::SharedMemory);
}

#[test]
fn placed_channels_of_udp_carry_all() {
    carries(Packed { per_core: 1 }, SameHost::Udp);
}

/// All channels on one core, another one for each new channel: those before it move.
#[derive(Clone)]
struct Wandering(CoreSet);

impl Placement for Wandering {
    fn place(
        &self,
        _topology: &Topology,
        _allowed: &CoreSet,
        channels: &[ChannelPlace],
    ) -> Option<Vec<CoreId>> {
        let cores: Vec<CoreId> = self.0.iter().collect();
        let core = cores[channels.len() % cores.len()];
        Some(vec![core; channels.len()])
    }
}

#[test]
fn channels_that_move_between_cores_lose_nothing() {
    carries(Wandering(own_cores()), SameHost::Tcp);
}

/// What the kernel says of the threads of this process with a name.
fn affinities(name: &str) -> Vec<CoreSet> {
    let own = quell_os::ThreadRef::current().expect("procfs").tgid;
    let threads = quell_os::ThreadRef::all_of(own).expect("procfs");
    let has_name = |tid: &Tid| {
        let path = format!("/proc/self/task/{tid}/comm");
        std::fs::read_to_string(path).is_ok_and(|comm| comm.trim() == name)
    };
    let tids = threads.into_iter().map(|thread| thread.tid).filter(has_name);
    tids.filter_map(|tid| sched::affinity(tid).ok()).collect()
}

#[test]
fn threads_are_where_the_policy_wants_them_and_stats_say_so() {
    let (_server, _listener, client) = pair(Apart, SameHost::Tcp);
    let stats = settled(&client, 3);
    let allowed = own_cores();
    let core_of = |class| -> BTreeSet<CoreId> {
        let of_class = stats.channels.iter().filter(|channel| channel.class == class);
        of_class.filter_map(|channel| channel.core).collect()
    };
    let (latency, throughput) = (core_of(Class::Latency), core_of(Class::Throughput));
    assert!(latency.union(&throughput).all(|core| allowed.contains(*core)), "{stats}");
    let has_siblings = quell_os::topology::read_at(quell_os::topology::SYSFS.as_ref())
        .expect("sysfs")
        .has_siblings();
    if allowed.iter().count() > 1 && !has_siblings {
        assert!(latency.is_disjoint(&throughput), "the classes are apart: {stats}");
    }
    for thread in &stats.placed_threads {
        assert_eq!(thread.is_kept, Some(true), "{stats}");
        assert!(!thread.channels.is_empty(), "{stats}");
        // Both endpoints have one. Those of other tests may be about to start or to end.
        let until = Instant::now() + Duration::from_secs(20);
        let are_kept = || {
            let kernel = affinities(&format!("quell-net-{}", thread.core));
            kernel.iter().filter(|cores| **cores == CoreSet::of(thread.core)).count() >= 2
        };
        while !are_kept() {
            assert!(Instant::now() < until, "core {}: fewer than two threads", thread.core);
            thread::sleep(Duration::from_millis(1));
        }
    }
    assert!(stats.to_string().contains("kept to core"), "{stats}");
}

/// The sending end of a channel that panics when it is used after the hello.
struct Panics(Box<dyn Outgoing>, bool);

impl Outgoing for Panics {
    fn enqueue(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        assert!(!std::mem::replace(&mut self.1, true), "a transport that a program has written");
        self.0.enqueue(bytes)
    }
}

#[test]
fn channel_of_a_thread_that_panics_is_lost_and_streams_go_on() {
    let (server, listener, _) = pair(Packed::default(), SameHost::Tcp);
    let mut config = config(Packed::default(), SameHost::Tcp);
    // Each channel for throughput has its turn.
    config.policies.choice[1] = Box::new(RoundRobin { run_bytes: 10_000 });
    let client = Endpoint::new(config).expect("an endpoint");
    let port = server.take_channels("127.0.0.1:0".parse().expect("valid")).expect("a port");
    client.connect_peer(port).expect("the server is there");
    settled(&client, 3);
    let (server_reader, client_writer) = io::pipe().expect("a pipe");
    let (client_reader, server_writer) = io::pipe().expect("a pipe");
    let theirs = transport(server_reader, server_writer).expect("a transport");
    let mut ours = transport(client_reader, client_writer).expect("a transport");
    ours.outgoing = Box::new(Panics(ours.outgoing, false));
    thread::scope(|scope| {
        scope.spawn(|| server.attach(theirs, Class::Throughput, Side::Acceptor, address()));
        client.attach(ours, Class::Throughput, Side::Opener, address()).expect("hello");
    });
    for _ in 0..3 {
        echo(&listener, &client, Class::Throughput);
    }
    let stats = client.stats();
    assert!(stats.channels.iter().all(|channel| channel.transport != "pipes"), "{stats}");
    assert_eq!(stats.placed_threads[0].is_kept, Some(false), "{stats}");
}

/// A policy that chooses a core which it may not use, and one that says nothing.
#[derive(Clone)]
struct Wrong(bool);

impl Placement for Wrong {
    fn place(
        &self,
        _topology: &Topology,
        _allowed: &CoreSet,
        channels: &[ChannelPlace],
    ) -> Option<Vec<CoreId>> {
        self.0.then(|| vec![CoreId(1_000); channels.len() + 1])
    }
}

#[test]
fn channels_without_a_place_are_the_programs_own() {
    for wrong in [Wrong(true), Wrong(false)] {
        let (_server, listener, client) = pair(wrong, SameHost::Tcp);
        echo(&listener, &client, Class::Throughput);
        let stats = client.stats();
        assert!(stats.placed_threads.is_empty(), "{stats}");
        assert!(stats.channels.iter().all(|channel| channel.core.is_none()), "{stats}");
    }
}

/// Threads that send on two channels at once meet here.
#[derive(Default)]
struct Meeting {
    inside: Mutex<usize>,
    has_met: AtomicBool,
    changed: Condvar,
}

impl Meeting {
    fn meet(&self) {
        let mut inside = self.inside.lock().expect("no panic");
        *inside += 1;
        if *inside == 2 {
            self.has_met.store(true, Ordering::Relaxed);
            self.changed.notify_all();
        }
        if !self.has_met.load(Ordering::Relaxed) {
            // Long enough for another thread to send as well, if there is one.
            let time = Duration::from_millis(20);
            inside = self.changed.wait_timeout(inside, time).expect("no panic").0;
        }
        *inside -= 1;
    }
}

/// The sending end of a channel, that meets the other one where it has bulk data.
struct Meets {
    outgoing: Box<dyn Outgoing>,
    meeting: Arc<Meeting>,
    threads: Arc<Mutex<BTreeSet<String>>>,
}

impl Outgoing for Meets {
    fn enqueue(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        if bytes.iter().map(|it| it.len()).sum::<usize>() > 30_000 {
            self.meeting.meet();
            let name = format!("{:?} {:?}", thread::current().id(), thread::current().name());
            self.threads.lock().expect("no panic").insert(name);
        }
        self.outgoing.enqueue(bytes)
    }
}

/// Endpoints with two channels for bulk data, whose ends meet; and the threads that have sent on each.
fn meeting_pair(
    cores: &CoreSet,
    meeting: &Arc<Meeting>,
) -> (Endpoint, Endpoint, [Arc<Mutex<BTreeSet<String>>>; 2]) {
    let topology = Topology::new(
        cores.iter().map(|id| Core { id, physical: id.0, llc: 0, node: 0 }).collect(),
    );
    let placed = |cores: &CoreSet| EndpointConfig {
        cores: Some(*cores),
        topology: Some(topology.clone().expect("a core")),
        ..config(Packed { per_core: 1 }, SameHost::Tcp)
    };
    let server = Endpoint::new(placed(cores)).expect("an endpoint");
    let client = Endpoint::new(placed(cores)).expect("an endpoint");
    let threads = [Arc::default(), Arc::default()];
    let channels =
        [(Class::Throughput, Some(0)), (Class::Throughput, Some(1)), (Class::Latency, None)];
    for (class, index) in channels {
        let (server_reader, client_writer) = io::pipe().expect("a pipe");
        let (client_reader, server_writer) = io::pipe().expect("a pipe");
        let theirs = transport(server_reader, server_writer).expect("a transport");
        let mut ours = transport(client_reader, client_writer).expect("a transport");
        if let Some(index) = index {
            let (meeting, threads) = (Arc::clone(meeting), Arc::clone(&threads[index]));
            ours.outgoing = Box::new(Meets { outgoing: ours.outgoing, meeting, threads });
        }
        thread::scope(|scope| {
            scope.spawn(|| server.attach(theirs, class, Side::Acceptor, address()).expect("hello"));
            client.attach(ours, class, Side::Opener, address()).expect("hello");
        });
    }
    (server, client, threads)
}

#[test]
fn two_threads_send_one_stream_on_two_channels_at_once() {
    // Also where this thread may use one core only, two threads are wanted.
    let mut cores = own_cores().lowest(2);
    for core in 0..2 {
        if cores.len() < 2 {
            cores.insert(CoreId(core));
        }
    }
    let meeting = Arc::<Meeting>::default();
    let (server, client, threads) = meeting_pair(&cores, &meeting);
    let listener = server.listen(address()).expect("a free address");
    for _ in 0..10 {
        echo(&listener, &client, Class::Throughput);
        if meeting.has_met.load(Ordering::Relaxed) {
            break;
        }
    }
    assert!(meeting.has_met.load(Ordering::Relaxed), "{}", client.stats());
    let [first, second] = threads.map(|threads| threads.lock().expect("no panic").clone());
    assert!(first.len() == 1 && second.len() == 1, "one thread each: {first:?} {second:?}");
    assert!(first.is_disjoint(&second), "{first:?}");
    assert!(first.iter().chain(&second).all(|name| name.contains("quell-net-")), "{first:?}");
}
