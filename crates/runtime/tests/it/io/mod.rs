//! Sockets and files, waited for with io_uring and with epoll.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

mod files;

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use quell_runtime::net::{TcpListener, TcpStream, UdpSocket};
use quell_runtime::{Daemon, Io, Runtime, spawn, yield_now};

use files::{a_pipe_is_read_when_something_comes, files_are_what_std_would_have_written};

const HERE: &str = "127.0.0.1:0";

/// Each test once with each way to wait.
macro_rules! both {
    ($($name:ident),* $(,)?) => {
        mod uring {
            $(#[test]
            fn $name() {
                super::$name(super::runtime(quell_runtime::Io::Uring));
            })*
        }
        mod epoll {
            $(#[test]
            fn $name() {
                super::$name(super::runtime(quell_runtime::Io::Epoll));
            })*
        }
    };
}

both!(
    many_connections_each_get_their_own_bytes_back,
    a_half_closed_connection_still_answers,
    a_read_ends_at_its_time_out_and_loses_nothing,
    a_write_that_nobody_takes_ends_at_its_time_out,
    a_connection_that_is_refused_or_answered_by_nobody_ends,
    a_big_transfer_arrives_whole_and_in_order,
    a_shutdown_wakes_who_waits_to_read,
    a_number_that_is_used_again_wakes_nobody_else,
    reader_and_writer_of_one_stream_wait_at_once,
    clones_of_a_stream_are_one_connection,
    a_storm_of_connections_is_accepted,
    several_may_accept_at_once,
    datagrams_keep_their_bounds_and_their_senders,
    files_are_what_std_would_have_written,
    a_pipe_is_read_when_something_comes,
    more_waits_than_a_ring_holds,
    a_socket_outlives_the_runtime_that_waited_for_it,
    uthreads_that_compute_do_not_keep_input_from_others,
    a_uthread_reads_on_wherever_it_runs,
);

fn runtime(io: Io) -> Runtime {
    Runtime::builder().daemon(Daemon::Never).max_cores(2).io(io).build().unwrap()
}

/// A connection: who connected, who accepted.
fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind(HERE).unwrap();
    let there = listener.local_addr().unwrap();
    let connected = TcpStream::connect(there).unwrap();
    let (accepted, from) = listener.accept().unwrap();
    assert_eq!(from, connected.local_addr().unwrap());
    (connected, accepted)
}

/// Answers each connection with what it sends.
fn echo(listener: TcpListener) -> SocketAddr {
    let address = listener.local_addr().unwrap();
    spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            spawn(move || {
                let mut buffer = [0; 4_096];
                loop {
                    match stream.read(&mut buffer) {
                        Ok(0) | Err(_) => return,
                        Ok(bytes) => stream.write_all(&buffer[..bytes]).unwrap(),
                    }
                }
            });
        }
    });
    address
}

fn many_connections_each_get_their_own_bytes_back(runtime: Runtime) {
    runtime.run(|| {
        let address = echo(TcpListener::bind(HERE).unwrap());
        let clients: Vec<_> = (0..100_u32)
            .map(|me| {
                spawn(move || {
                    let mut stream = TcpStream::connect(address).unwrap();
                    for round in 0..50_u32 {
                        let sent: Vec<u8> = (0..64)
                            .flat_map(|i| (me ^ round << 8 ^ i << 16).to_ne_bytes())
                            .collect();
                        stream.write_all(&sent).unwrap();
                        let mut answer = vec![0; sent.len()];
                        stream.read_exact(&mut answer).unwrap();
                        assert_eq!(answer, sent);
                    }
                })
            })
            .collect();
        for client in clients {
            client.join().unwrap();
        }
    });
}

fn a_half_closed_connection_still_answers(runtime: Runtime) {
    runtime.run(|| {
        let (mut client, mut server) = pair();
        let server = spawn(move || {
            let mut request = String::new();
            server.read_to_string(&mut request).unwrap();
            server.write_all(request.to_uppercase().as_bytes()).unwrap();
        });
        client.write_all(b"all of it").unwrap();
        client.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "ALL OF IT");
        server.join().unwrap();
    });
}

fn a_read_ends_at_its_time_out_and_loses_nothing(runtime: Runtime) {
    runtime.run(|| {
        let (mut client, mut server) = pair();
        client.set_read_timeout(Some(Duration::from_millis(5))).unwrap();
        assert_eq!(client.read_timeout().unwrap(), Some(Duration::from_millis(5)));
        for round in 0..20_u8 {
            let error = client.read(&mut [0; 8]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
            let error = client.peek(&mut [0; 8]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
            server.write_all(&[round; 3]).unwrap();
            let mut three = [0; 3];
            assert_eq!(client.peek(&mut three).unwrap(), 3);
            client.read_exact(&mut three).unwrap();
            assert_eq!(three, [round; 3]);
        }
        assert!(client.set_read_timeout(Some(Duration::ZERO)).is_err());
        // A deadline that does not come leaves nothing behind either.
        client.set_read_timeout(Some(Duration::from_secs(3_600))).unwrap();
        let reader = spawn(move || {
            let mut byte = [0];
            for expected in 0..100_u8 {
                client.read_exact(&mut byte).unwrap();
                assert_eq!(byte[0], expected);
            }
        });
        for byte in 0..100_u8 {
            server.write_all(&[byte]).unwrap();
            yield_now();
        }
        reader.join().unwrap();
    });
}

fn a_write_that_nobody_takes_ends_at_its_time_out(runtime: Runtime) {
    runtime.run(|| {
        let (mut client, server) = pair();
        client.set_write_timeout(Some(Duration::from_millis(5))).unwrap();
        let chunk = vec![7; 1 << 20];
        let mut sent = 0;
        let error = loop {
            match client.write(&chunk) {
                Ok(bytes) => sent += bytes,
                Err(error) => break error,
            }
        };
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        assert!(sent > 0);
        drop(client);
        let mut received = Vec::new();
        (&server).read_to_end(&mut received).unwrap();
        assert_eq!(received.len(), sent);
    });
}

fn a_connection_that_is_refused_or_answered_by_nobody_ends(runtime: Runtime) {
    runtime.run(|| {
        let nobody = TcpListener::bind(HERE).unwrap().local_addr().unwrap();
        let error = TcpStream::connect(nobody).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
        // A listener whose backlog is full answers no more.
        let full = std::net::TcpListener::bind(HERE).unwrap();
        rustix::net::listen(&full, 0).unwrap();
        let there = full.local_addr().unwrap();
        let mut kept = Vec::new();
        let error = loop {
            match TcpStream::connect_timeout(&there, Duration::from_millis(30)) {
                Ok(stream) => kept.push(stream),
                Err(error) => break error,
            }
            assert!(kept.len() < 100, "the backlog is never full");
        };
        assert_eq!(error.kind(), ErrorKind::TimedOut);
        assert!(TcpStream::connect_timeout(&there, Duration::ZERO).is_err());
        let none: &[SocketAddr] = &[];
        assert_eq!(TcpStream::connect(none).unwrap_err().kind(), ErrorKind::InvalidInput);
    });
}

fn a_big_transfer_arrives_whole_and_in_order(runtime: Runtime) {
    const BYTES: usize = 32 << 20;
    let byte = |at: usize| (at.wrapping_mul(2_654_435_761) >> 13) as u8;
    runtime.run(move || {
        let (mut client, mut server) = pair();
        let writer = spawn(move || {
            let bytes: Vec<u8> = (0..BYTES).map(byte).collect();
            client.write_all(&bytes).unwrap();
        });
        let mut received = Vec::new();
        server.read_to_end(&mut received).unwrap();
        assert_eq!(received.len(), BYTES);
        assert!(received.iter().enumerate().all(|(at, &got)| got == byte(at)));
        writer.join().unwrap();
    });
}

fn a_shutdown_wakes_who_waits_to_read(runtime: Runtime) {
    runtime.run(|| {
        let (client, _server) = pair();
        let client = Arc::new(client);
        let reader = Arc::clone(&client);
        let reader = spawn(move || (&*reader).read(&mut [0; 8]));
        quell_runtime::sleep(Duration::from_millis(2));
        client.shutdown(Shutdown::Both).unwrap();
        assert_eq!(reader.join().unwrap().unwrap(), 0);
    });
}

fn a_number_that_is_used_again_wakes_nobody_else(runtime: Runtime) {
    use std::os::fd::AsRawFd;
    runtime.run(|| {
        // What is sent to a socket that is closed before it is read must not be found on, or wake, the next of its number.
        let mut reused = 0;
        for round in 0..200_u32 {
            let (mut old_client, old_server) = pair();
            old_server.set_read_timeout(Some(Duration::from_micros(200))).unwrap();
            assert!((&old_server).read(&mut [0; 8]).is_err());
            let number = old_server.as_raw_fd();
            old_client.write_all(b"stale").unwrap();
            drop((old_client, old_server));
            let (mut client, mut server) = pair();
            reused += usize::from([client.as_raw_fd(), server.as_raw_fd()].contains(&number));
            let woken = Arc::new(AtomicBool::new(false));
            let reader = {
                let woken = Arc::clone(&woken);
                spawn(move || {
                    let mut four = [0; 4];
                    server.read_exact(&mut four).unwrap();
                    woken.store(true, Ordering::SeqCst);
                    u32::from_ne_bytes(four)
                })
            };
            for _ in 0..20 {
                yield_now();
            }
            assert!(!woken.load(Ordering::SeqCst));
            client.write_all(&round.to_ne_bytes()).unwrap();
            assert_eq!(reader.join().unwrap(), round);
        }
        assert!(reused > 0, "no number was used again: nothing was tested");
    });
}

fn reader_and_writer_of_one_stream_wait_at_once(runtime: Runtime) {
    const BYTES: usize = 8 << 20;
    runtime.run(|| {
        let (one, other) = pair();
        let ends = [one, other].map(Arc::new);
        let tasks: Vec<_> = ends
            .iter()
            .flat_map(|end| {
                let (writer, reader) = (Arc::clone(end), Arc::clone(end));
                let writer = spawn(move || {
                    (&*writer).write_all(&vec![1; BYTES]).unwrap();
                    writer.shutdown(Shutdown::Write).unwrap();
                    BYTES
                });
                let reader = spawn(move || {
                    let mut received = Vec::new();
                    (&*reader).read_to_end(&mut received).unwrap()
                });
                [writer, reader]
            })
            .collect();
        for task in tasks {
            assert_eq!(task.join().unwrap(), BYTES);
        }
    });
}

fn clones_of_a_stream_are_one_connection(runtime: Runtime) {
    runtime.run(|| {
        let (client, mut server) = pair();
        let mut other = client.try_clone().unwrap();
        let reader = spawn(move || {
            let mut byte = [0];
            other.read_exact(&mut byte).unwrap();
            (other, byte[0])
        });
        quell_runtime::sleep(Duration::from_millis(1));
        // The one that waits is not the one that is closed.
        drop(client);
        server.write_all(&[42]).unwrap();
        let (mut other, byte) = reader.join().unwrap();
        assert_eq!(byte, 42);
        other.write_all(&[43]).unwrap();
        let mut byte = [0];
        server.read_exact(&mut byte).unwrap();
        assert_eq!(byte, [43]);
        drop(other);
        assert_eq!(server.read(&mut byte).unwrap(), 0);
    });
}

fn a_storm_of_connections_is_accepted(runtime: Runtime) {
    const CONNECTIONS: usize = 600;
    runtime.run(|| {
        let listener = TcpListener::bind(HERE).unwrap();
        let address = listener.local_addr().unwrap();
        let clients: Vec<_> = (0..CONNECTIONS)
            .map(|_| {
                spawn(move || {
                    let mut stream = TcpStream::connect(address).unwrap();
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    stream.read(&mut byte).unwrap()
                })
            })
            .collect();
        // Late, so that all of them are there at once.
        for _ in 0..50 {
            yield_now();
        }
        for _ in 0..CONNECTIONS {
            listener.accept().unwrap().0.write_all(&[1]).unwrap();
        }
        for client in clients {
            assert_eq!(client.join().unwrap(), 0);
        }
    });
}

fn several_may_accept_at_once(runtime: Runtime) {
    runtime.run(|| {
        let listener = Arc::new(TcpListener::bind(HERE).unwrap());
        let address = listener.local_addr().unwrap();
        let accepted = Arc::new(AtomicUsize::new(0));
        let servers: Vec<_> = (0..8)
            .map(|_| {
                let (listener, accepted) = (Arc::clone(&listener), Arc::clone(&accepted));
                spawn(move || {
                    for _ in 0..10 {
                        drop(listener.accept().unwrap());
                        accepted.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        for _ in 0..80 {
            TcpStream::connect(address).unwrap();
        }
        for server in servers {
            server.join().unwrap();
        }
        assert_eq!(accepted.load(Ordering::Relaxed), 80);
    });
}

fn datagrams_keep_their_bounds_and_their_senders(runtime: Runtime) {
    runtime.run(|| {
        let server = UdpSocket::bind(HERE).unwrap();
        let address = server.local_addr().unwrap();
        let server = spawn(move || {
            let mut buffer = [0; 2_048];
            for _ in 0..50 {
                let (bytes, from) = server.recv_from(&mut buffer).unwrap();
                assert_eq!(server.send_to(&buffer[..bytes], from).unwrap(), bytes);
            }
            server
        });
        let client = UdpSocket::bind(HERE).unwrap();
        client.connect(address).unwrap();
        assert_eq!(client.peer_addr().unwrap(), address);
        for size in 0..50 {
            client.send(&vec![size as u8; size]).unwrap();
            let mut buffer = [0; 2_048];
            assert_eq!(client.peek(&mut buffer).unwrap(), size);
            assert_eq!(client.recv(&mut buffer).unwrap(), size);
            assert!(buffer[..size].iter().all(|&byte| byte == size as u8));
        }
        let server = server.join().unwrap();
        server.set_read_timeout(Some(Duration::from_millis(2))).unwrap();
        let error = server.recv_from(&mut [0; 8]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
    });
}

fn more_waits_than_a_ring_holds(runtime: Runtime) {
    // Nor its queue of completions.
    const WAITS: usize = 5_000;
    runtime.run(|| {
        let (client, server) = pair();
        let (client, server) = (Arc::new(client), Arc::new(server));
        let waiting = Arc::new(AtomicUsize::new(0));
        let wait = |peek: bool| {
            let (socket, waiting) = (Arc::clone(&client), Arc::clone(&waiting));
            spawn(move || {
                waiting.fetch_add(1, Ordering::Relaxed);
                match peek {
                    true => socket.peek(&mut [0; 8]).unwrap(),
                    false => (&*socket).read(&mut [0; 8]).unwrap(),
                }
            })
        };
        let readers: Vec<_> = (0..WAITS).map(|at| wait(at % 2 == 0)).collect();
        while waiting.load(Ordering::Relaxed) < WAITS {
            yield_now();
        }
        quell_runtime::sleep(Duration::from_millis(2));
        server.shutdown(Shutdown::Write).unwrap();
        for reader in readers {
            assert_eq!(reader.join().unwrap(), 0);
        }
    });
}

fn a_socket_outlives_the_runtime_that_waited_for_it(first: Runtime) {
    let (mut client, server) = first.run(|| {
        let (client, server) = pair();
        server.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        assert!((&server).read(&mut [0; 1]).is_err());
        server.set_read_timeout(None).unwrap();
        (client, server)
    });
    drop(first);
    let mut server = server;
    // On an ordinary thread.
    client.write_all(b"a").unwrap();
    let mut byte = [0];
    server.read_exact(&mut byte).unwrap();
    server.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    assert_eq!(server.read(&mut byte).unwrap_err().kind(), ErrorKind::WouldBlock);
    server.set_read_timeout(None).unwrap();
    // In another runtime, of each kind.
    for io in [Io::Uring, Io::Epoll] {
        let (mut there, mut here) = (server.try_clone().unwrap(), client.try_clone().unwrap());
        let old = server;
        server = runtime(io).run(move || {
            let old = Arc::new(old);
            let reader = {
                let old = Arc::clone(&old);
                spawn(move || {
                    let mut byte = [0];
                    (&*old).read_exact(&mut byte).unwrap();
                    byte[0]
                })
            };
            quell_runtime::sleep(Duration::from_millis(1));
            here.write_all(b"b").unwrap();
            assert_eq!(reader.join().unwrap(), b'b');
            here.write_all(b"c").unwrap();
            let mut byte = [0];
            there.read_exact(&mut byte).unwrap();
            assert_eq!(byte, *b"c");
            Arc::into_inner(old).unwrap()
        });
    }
}

fn uthreads_that_compute_do_not_keep_input_from_others(runtime: Runtime) {
    runtime.run(|| {
        let stop = Arc::new(AtomicBool::new(false));
        let busy: Vec<_> = (0..4)
            .map(|_| {
                let stop = Arc::clone(&stop);
                spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        std::hint::black_box((0..1_000).sum::<u64>());
                        yield_now();
                    }
                })
            })
            .collect();
        let address = echo(TcpListener::bind(HERE).unwrap());
        let mut stream = TcpStream::connect(address).unwrap();
        for round in 0..100_u32 {
            stream.write_all(&round.to_ne_bytes()).unwrap();
            let mut answer = [0; 4];
            stream.read_exact(&mut answer).unwrap();
            assert_eq!(u32::from_ne_bytes(answer), round);
        }
        stop.store(true, Ordering::Relaxed);
        for uthread in busy {
            uthread.join().unwrap();
        }
    });
}

fn a_uthread_reads_on_wherever_it_runs(runtime: Runtime) {
    runtime.run(|| {
        let until = Instant::now() + Duration::from_secs(120);
        let (mut client, mut server) = pair();
        let (mut moves, mut kthread) = (0, rustix::thread::gettid());
        let mut round = 0_u32;
        while moves < 5 {
            round += 1;
            let writer = spawn(move || {
                client.write_all(&round.to_ne_bytes()).unwrap();
                client
            });
            let mut four = [0; 4];
            server.read_exact(&mut four).unwrap();
            assert_eq!(u32::from_ne_bytes(four), round);
            client = writer.join().unwrap();
            // Whoever has this kthread keeps it until the other one has stolen what waits here: this uthread.
            let stolen = Arc::new(AtomicBool::new(false));
            let keeper = {
                let stolen = Arc::clone(&stolen);
                let end = Instant::now() + Duration::from_millis(500);
                spawn(move || {
                    while !stolen.load(Ordering::Relaxed) && Instant::now() < end {
                        std::hint::spin_loop();
                    }
                })
            };
            yield_now();
            let here = rustix::thread::gettid();
            moves += usize::from(here != kthread);
            kthread = here;
            stolen.store(true, Ordering::Relaxed);
            assert!(Instant::now() < until, "{moves} moves in {round} rounds");
            drop(keeper);
        }
    });
}

#[test]
fn on_an_ordinary_thread_the_calls_block_it() -> io::Result<()> {
    let listener = TcpListener::bind(HERE)?;
    let address = listener.local_addr()?;
    let server = std::thread::spawn(move || -> io::Result<()> {
        let (mut stream, _) = listener.accept()?;
        let mut four = [0; 4];
        stream.read_exact(&mut four)?;
        stream.write_all(&four)
    });
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    assert!(stream.nodelay()?);
    stream.write_all(b"ping")?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    assert_eq!(answer, b"ping");
    server.join().unwrap()
}
