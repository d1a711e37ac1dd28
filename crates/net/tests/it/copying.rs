//! Large reads and writes that several threads copy.

use std::net::Shutdown;
use std::thread;

use quell_model::{Core, CoreId, CoreSet, Topology};
use quell_net::scheduler::{CopyPolicy, CopyWork, PerCoreCopy, WorkerLoad};
use quell_net::{Class, Endpoint, EndpointConfig, Listener, SameHost};
use quell_os::{Tid, sched};

use super::streams::{address, pattern};

const BYTES: usize = 5_000_000;

/// Workers on this host's cores, and parts for them whatever the calling thread's core is.
struct Scattered(PerCoreCopy);

impl CopyPolicy for Scattered {
    fn workers(&self, topology: &Topology, allowed: &CoreSet) -> Vec<CoreId> {
        self.0.workers(topology, allowed)
    }

    fn has_workers(&self) -> bool {
        true
    }

    fn split(
        &self,
        _topology: &Topology,
        work: &CopyWork,
        workers: &[WorkerLoad],
        parts: &mut Vec<(u64, Option<usize>)>,
    ) {
        // Uneven parts, one in three for the calling thread; and less and more than all.
        let mut left = work.bytes;
        for index in 0.. {
            let bytes = (7_001 + 1_000 * (index % 9) as u64).min(left);
            parts.push((bytes, (index % 3 > 0).then(|| index % (workers.len() + 1))));
            left -= bytes;
            if left < 5_000 {
                break;
            }
        }
        parts.push((work.bytes % 3 * 10_000, Some(0)));
    }
}

fn endpoint(copying: Box<dyn CopyPolicy>) -> Endpoint {
    let config = EndpointConfig { copying, same_host: SameHost::Tcp, ..EndpointConfig::default() };
    Endpoint::new(config).expect("an endpoint")
}

fn pair(copying: impl Fn() -> Box<dyn CopyPolicy>) -> (Endpoint, Listener, Endpoint) {
    let server = endpoint(copying());
    let port = server.take_channels("127.0.0.1:0".parse().expect("valid")).expect("a port");
    let listener = server.listen(address()).expect("a free address");
    let client = endpoint(copying());
    client.connect_peer(port).expect("the server is there");
    (server, listener, client)
}

/// Several streams at a time, each there and back.
fn echo(listener: &Listener, client: &Endpoint) {
    let sent: Vec<u8> = (0..BYTES).map(pattern).collect();
    thread::scope(|scope| {
        for class in [Class::Latency, Class::Throughput, Class::Throughput] {
            let (stream, answered) =
                (client.connect(address(), class).expect("accepted"), listener.accept());
            let answered = answered.expect("a stream");
            scope.spawn(move || {
                let mut part = vec![0; 300_000];
                while let length @ 1.. = answered.read(&mut part).expect("it lives") {
                    answered.write_all(&part[..length]).expect("it reads");
                }
                answered.shutdown(Shutdown::Write).expect("it lives");
            });
            let sent = &sent;
            scope.spawn(move || {
                thread::scope(|scope| {
                    scope.spawn(|| {
                        stream.write_all(sent).expect("it reads");
                        stream.shutdown(Shutdown::Write).expect("it lives");
                    });
                    let (mut received, mut part) = (Vec::new(), vec![0; 400_000]);
                    while let length @ 1.. = stream.read(&mut part).expect("it lives") {
                        received.extend_from_slice(&part[..length]);
                    }
                    assert!(received == *sent, "{class:?}: {} bytes", received.len());
                });
            });
        }
    });
}

#[test]
fn bytes_that_workers_copy_arrive_in_order_at_both_ends() {
    let cores = sched::affinity(Tid(0)).expect("a thread has cores");
    let (server, listener, client) =
        pair(|| Box::new(Scattered(PerCoreCopy { queue_max: 100_000, ..PerCoreCopy::new(cores) })));
    let has_copied = |endpoint: &Endpoint| {
        let workers = endpoint.stats().copy_workers;
        assert_eq!(workers.len(), cores.len(), "one on each core");
        workers.iter().any(|it| it.parts > 0 && it.bytes >= it.parts && it.is_kept)
    };
    // The calling thread copies what no worker has begun: on a busy host that may be all for a while.
    for _ in 0..20 {
        echo(&listener, &client);
        if has_copied(&client) && has_copied(&server) {
            return;
        }
    }
    panic!("no worker has copied anything: {} {}", client.stats(), server.stats());
}

#[test]
fn small_calls_and_the_default_policy_wake_no_worker() {
    let cores = sched::affinity(Tid(0)).expect("a thread has cores");
    let (_server, listener, client) = pair(|| Box::new(PerCoreCopy::new(cores)));
    let stream = client.connect(address(), Class::Throughput).expect("accepted");
    let answered = listener.accept().expect("a stream");
    for _ in 0..50 {
        stream.write_all(&[1; 40_000]).expect("it reads");
        let mut left = 40_000;
        while left > 0 {
            left -= answered.read(&mut vec![0; left]).expect("it lives");
        }
    }
    assert!(client.stats().copy_workers.iter().all(|worker| worker.parts == 0));
    let default = Endpoint::new(EndpointConfig::default()).expect("an endpoint");
    assert!(default.stats().copy_workers.is_empty());
}

#[test]
fn cores_that_are_not_allowed_have_no_worker() {
    let core = |id| Core { id: CoreId(id), physical: id, llc: 0, node: 0 };
    let topology = Topology::new((0..32).map(core).collect()).expect("a topology");
    let config = EndpointConfig {
        copying: Box::new(PerCoreCopy::new(topology.all())),
        topology: Some(topology),
        cores: Some(CoreSet::of(CoreId(0))),
        ..EndpointConfig::default()
    };
    let endpoint = Endpoint::new(config).expect("an endpoint");
    let cores: Vec<CoreId> = endpoint.stats().copy_workers.iter().map(|it| it.core).collect();
    assert_eq!(cores, [CoreId(0)]);
}
