//! Sockets and files of uthreads that are interrupted anywhere, and of those that wait while others compute.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quell_runtime::net::{TcpListener, TcpStream};
use quell_runtime::preempt::Allocator;
use quell_runtime::sync::Mutex;
use quell_runtime::{Builder, Daemon, Io, Nanos, Runtime, fs, spawn};

#[global_allocator]
static ALLOCATOR: Allocator = Allocator::SYSTEM;

fn echo(mut stream: TcpStream) {
    let mut buffer = [0; 1_024];
    loop {
        let bytes = stream.read(&mut buffer).unwrap();
        if bytes == 0 {
            return;
        }
        stream.write_all(&buffer[..bytes]).unwrap();
    }
}

fn talk(address: std::net::SocketAddr, me: u32) {
    let mut stream = TcpStream::connect(address).unwrap();
    for round in 0..25 {
        // Long enough to be interrupted in.
        let sent: Vec<u8> = (0..5_000_u32).map(|at| (at * me + round) as u8).collect();
        let mut writer = stream.try_clone().unwrap();
        let copy = sent.clone();
        let writer = spawn(move || writer.write_all(&copy).unwrap());
        let mut answer = vec![0; sent.len()];
        stream.read_exact(&mut answer).unwrap();
        assert!(answer == sent, "round {round} of {me}");
        writer.join().unwrap();
    }
}

#[test]
fn every_byte_arrives_although_its_uthread_is_interrupted() {
    let folder = tempfile::tempdir().unwrap();
    for io in [Io::Uring, Io::Epoll] {
        let builder = Runtime::builder().daemon(Daemon::Never).max_cores(2).io(io);
        // SAFETY: the allocator is above, and nothing here calls C but through the runtime and std.
        let builder = unsafe { builder.preempt_every(Nanos::from_micros(50)) };
        let runtime = builder.build().unwrap();
        let folder = folder.path().to_owned();
        runtime.run(move || {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let address = listener.local_addr().unwrap();
            spawn(move || {
                for stream in listener.incoming() {
                    spawn(move || echo(stream.unwrap()));
                }
            });
            let mut clients: Vec<_> = (0..10).map(|me| spawn(move || talk(address, me))).collect();
            clients.extend((0..4_u8).map(|me| {
                let path = folder.join(me.to_string());
                spawn(move || {
                    for size in (0..40).map(|at| at * 1_000) {
                        let contents = vec![me; size];
                        fs::write(&path, &contents).unwrap();
                        assert!(fs::read(&path).unwrap() == contents);
                    }
                })
            }));
            for client in clients {
                client.join().unwrap();
            }
        });
        assert!(runtime.stats().total().preemptions > 0, "{io:?}: nothing was interrupted");
    }
}

/// A uthread that computes on the one kthread there is, until another one has received what was sent before it began.
fn a_long_uthread_lets_in_who_has_received(builder: Builder, io: Io, work: fn()) {
    let runtime = builder.daemon(Daemon::Never).max_cores(1).io(io).build().unwrap();
    runtime.run(move || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let received = Arc::new(AtomicBool::new(false));
        let theirs = Arc::clone(&received);
        let reader = spawn(move || {
            server.read_exact(&mut [0]).unwrap();
            theirs.store(true, Ordering::SeqCst);
        });
        // It waits by now, and nothing is ready: that there is something is known to the kernel alone.
        quell_runtime::sleep(Duration::from_millis(1));
        client.write_all(b"x").unwrap();
        let give_up = Instant::now() + Duration::from_secs(20);
        while !received.load(Ordering::SeqCst) {
            assert!(Instant::now() < give_up, "{io:?}: it was never looked at");
            work();
        }
        reader.join().unwrap();
    });
}

#[test]
fn a_uthread_whose_quantum_is_over_lets_in_who_has_received_meanwhile() {
    for io in [Io::Uring, Io::Epoll] {
        a_long_uthread_lets_in_who_has_received(Runtime::builder(), io, || {
            drop(Mutex::new(()).lock().unwrap());
        });
    }
}

#[test]
fn a_uthread_that_makes_no_call_lets_in_who_has_received_meanwhile() {
    for io in [Io::Uring, Io::Epoll] {
        // SAFETY: the allocator is above, and nothing here calls C but through the runtime and std.
        let builder = unsafe { Runtime::builder().preempt_every(Nanos::from_micros(100)) };
        a_long_uthread_lets_in_who_has_received(builder, io, std::hint::spin_loop);
    }
}
