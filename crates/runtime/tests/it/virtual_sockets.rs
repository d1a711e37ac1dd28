//! Virtual sockets on uthreads: they wait as uthreads, on one kthread with others.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use quell_net::{Class, Endpoint, EndpointConfig, SameHost};
use quell_runtime::net::{VirtualListener, VirtualStream};
use quell_runtime::{Daemon, Io, Nanos, Runtime, spawn, thread};

/// A runtime with one kthread: what blocked it would block all.
fn runtime(io: Io) -> Runtime {
    let builder = Runtime::builder().daemon(Daemon::Never).max_cores(1).io(io);
    builder.quantum(Some(Nanos::from_micros(100))).build().unwrap()
}

/// Two endpoints with channels between them.
fn endpoints(same_host: SameHost) -> (Endpoint, Endpoint) {
    let config = || EndpointConfig { same_host, ..EndpointConfig::default() };
    let [server, client] = [(); 2].map(|()| Endpoint::new(config()).unwrap());
    let channels = server.take_channels("127.0.0.1:0".parse().unwrap()).unwrap();
    client.connect_peer(channels).unwrap();
    (server, client)
}

fn address() -> SocketAddr {
    "127.0.0.1:80".parse().unwrap()
}

/// Each stream is answered by a uthread of its own, until its client ends.
fn serve_echo(server: &Endpoint) {
    let listener = VirtualListener::bind(server, address()).unwrap();
    spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            spawn(move || {
                let mut buffer = [0; 4 << 10];
                while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
                    stream.write_all(&buffer[..bytes]).unwrap();
                }
            });
        }
    });
}

#[test]
fn many_streams_are_served_by_uthreads_of_one_kthread() {
    for (io, same_host) in [
        (Io::Auto, SameHost::SharedMemory),
        (Io::Epoll, SameHost::SharedMemory),
        (Io::Epoll, SameHost::Tcp),
        (Io::Auto, SameHost::Tcp),
    ] {
        let (server, client) = endpoints(same_host);
        runtime(io).run(|| {
            serve_echo(&server);
            let clients: Vec<_> = (0..32_u32)
                .map(|number| {
                    let endpoint = client.clone();
                    spawn(move || {
                        let mut stream =
                            VirtualStream::connect(&endpoint, address(), Class::Latency).unwrap();
                        for message in 0..50_u32 {
                            let sent = [number.to_be_bytes(), message.to_be_bytes()].concat();
                            stream.write_all(&sent).unwrap();
                            let mut answer = [0; 8];
                            stream.read_exact(&mut answer).unwrap();
                            assert_eq!(answer[..], sent);
                        }
                    })
                })
                .collect();
            clients.into_iter().for_each(|client| client.join().unwrap());
        });
    }
}

#[test]
fn uthread_that_waits_for_bytes_leaves_its_kthread_to_others() {
    let (server, client) = endpoints(SameHost::SharedMemory);
    runtime(Io::Auto).run(|| {
        serve_echo(&server);
        let mut stream = VirtualStream::connect(&client, address(), Class::Latency).unwrap();
        let has_come = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&has_come);
        // Nothing is sent until this one has run.
        let reader = spawn(move || {
            let mut byte = [0];
            stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
            assert_eq!(stream.read(&mut byte).unwrap_err().kind(), ErrorKind::WouldBlock);
            stream.set_read_timeout(None).unwrap();
            assert_eq!(
                stream.set_read_timeout(Some(Duration::ZERO)).unwrap_err().kind(),
                ErrorKind::InvalidInput
            );
            flag.store(true, Ordering::Relaxed);
            stream.write_all(b"x").unwrap();
            stream.read_exact(&mut byte).unwrap();
            byte
        });
        let mut turns = 0_u64;
        while !has_come.load(Ordering::Relaxed) {
            thread::yield_now();
            turns += 1;
        }
        assert!(turns > 1, "it waited on the kthread");
        assert_eq!(reader.join().unwrap(), *b"x");
    });
}

#[test]
fn bulk_data_both_ways_between_uthreads_of_one_kthread_is_whole() {
    const BYTES: u32 = 4 << 20;
    let data = |seed: u32| -> Vec<u8> {
        (0..BYTES).map(|at| (at.wrapping_mul(2_654_435_761 + seed) >> 24) as u8).collect()
    };
    for (io, same_host) in [
        (Io::Auto, SameHost::SharedMemory),
        (Io::Epoll, SameHost::SharedMemory),
        (Io::Auto, SameHost::Tcp),
        (Io::Epoll, SameHost::Tcp),
        (Io::Auto, SameHost::TcpUring),
        (Io::Epoll, SameHost::TcpUring),
    ] {
        let (server, client) = endpoints(same_host);
        runtime(io).run(|| {
            let listener = VirtualListener::bind(&server, address()).unwrap();
            let accepted = spawn(move || listener.accept().unwrap().0);
            let near = VirtualStream::connect(&client, address(), Class::Throughput).unwrap();
            let streams = [near, accepted.join().unwrap()].map(Arc::new);
            let writers = [0, 2].map(|seed| {
                let stream = Arc::clone(&streams[seed as usize / 2]);
                spawn(move || (&*stream).write_all(&data(seed)).unwrap())
            });
            let readers = [2, 0].map(|seed| {
                let stream = Arc::clone(&streams[1 - seed as usize / 2]);
                spawn(move || {
                    let mut received = vec![0; BYTES as usize];
                    (&*stream).read_exact(&mut received).unwrap();
                    assert!(received == data(seed), "other bytes than were sent");
                })
            });
            writers.into_iter().chain(readers).for_each(|uthread| uthread.join().unwrap());
        });
    }
}

#[test]
fn uthread_that_never_has_to_wait_for_bytes_lets_others_run() {
    const BYTES: u64 = 15_000;
    let (server, client) = endpoints(SameHost::SharedMemory);
    let listener = server.listen(address()).unwrap();
    let writer = std::thread::spawn(move || {
        let stream = listener.accept().unwrap();
        stream.write_all(&[7; BYTES as usize]).unwrap();
        stream
    });
    runtime(Io::Auto).run(|| {
        let mut stream = VirtualStream::connect(&client, address(), Class::Latency).unwrap();
        while stream.get().status().unwrap().readable < BYTES {
            thread::sleep(Duration::from_millis(1));
        }
        let (turns, is_over) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (own_turns, until) = (Arc::clone(&turns), Arc::clone(&is_over));
        let other = spawn(move || {
            while !until.load(Ordering::Relaxed) {
                own_turns.fetch_add(1, Ordering::Relaxed);
                thread::yield_now();
            }
        });
        let before = turns.load(Ordering::Relaxed);
        let mut byte = [0];
        for _ in 0..BYTES {
            stream.read_exact(&mut byte).unwrap();
        }
        assert!(turns.load(Ordering::Relaxed) > before, "it had the kthread for all of them");
        is_over.store(true, Ordering::Relaxed);
        other.join().unwrap();
    });
    drop(writer.join().unwrap());
}
