//! What programs do with streams.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use quell_model::Nanos;
use quell_net::{
    Class, Endpoint, EndpointConfig, Error, Listener, OpenRefusal, SameHost, Selector,
    StreamFailure,
};

use super::process::ServerProcess;

/// Each of these on each transport of one host.
macro_rules! on_each_transport {
    ($($name:ident,)*) => {
        mod shared_memory {
            $(#[test]
            fn $name() {
                super::$name(super::SameHost::SharedMemory);
            })*
        }

        mod tcp {
            $(#[test]
            fn $name() {
                super::$name(super::SameHost::Tcp);
            })*
        }

        mod tcp_uring {
            $(#[test]
            fn $name() {
                super::$name(super::SameHost::TcpUring);
            })*
        }

        mod udp {
            $(#[test]
            fn $name() {
                super::$name(super::SameHost::Udp);
            })*
        }
    };
}

on_each_transport! {
    both_classes_carry_bytes_both_ways,
    request_and_answer_of_every_size,
    chunks_and_reservations_carry_bytes_without_copies,
    unsent_bytes_do_not_depend_on_the_next_call,
    many_sockets_share_the_channels_of_two_endpoints,
    peer_that_dies_resets_its_streams,
    lost_channel_comes_back_and_loses_nothing,
    closed_stream_delivers_what_it_wrote,
    early_stream_carries_its_first_bytes_and_learns_of_refusal,
    selector_serves_many_sockets_on_one_thread,
    thread_that_never_waits_reads_and_writes_what_it_can,
}

const ADDRESS: &str = "127.0.0.1:80";

pub fn address() -> SocketAddr {
    ADDRESS.parse().expect("an address")
}

/// A server with a listener, and a client that is connected to it.
pub fn pair(same_host: SameHost) -> (Endpoint, Listener, Endpoint) {
    let server = Endpoint::new(config_of(same_host)).expect("an endpoint");
    let port = server.take_channels("127.0.0.1:0".parse().expect("valid")).expect("a port");
    let listener = server.listen(address()).expect("a free address");
    let client = Endpoint::new(config_of(same_host)).expect("an endpoint");
    client.connect_peer(port).expect("the server is there");
    (server, listener, client)
}

pub fn config_of(same_host: SameHost) -> EndpointConfig {
    EndpointConfig { same_host, ..EndpointConfig::default() }
}

/// What a stream carries at an offset: another in each place.
pub fn pattern(offset: usize) -> u8 {
    (offset.wrapping_mul(0x9e37_79b9) >> 24) as u8
}

fn filled(bytes: usize) -> Vec<u8> {
    (0..bytes).map(pattern).collect()
}

pub fn read_to_end(mut stream: &quell_net::Stream) -> Vec<u8> {
    let mut all = Vec::new();
    stream.read_to_end(&mut all).expect("the stream lives");
    all
}

fn both_classes_carry_bytes_both_ways(same_host: SameHost) {
    let (_server, listener, client) = pair(same_host);
    let echo = thread::spawn(move || {
        for _ in Class::ALL {
            let stream = listener.accept().expect("a stream");
            let all = read_to_end(&stream);
            stream.write_all(&all).expect("it reads");
        }
    });
    for class in Class::ALL {
        let sent = filled(1_000_000);
        let stream = client.connect(address(), class).expect("accepted");
        let received = thread::scope(|scope| {
            let reader = scope.spawn(|| read_to_end(&stream));
            stream.write_all(&sent).expect("it reads");
            stream.shutdown(Shutdown::Write).expect("it lives");
            reader.join().expect("no panic")
        });
        assert!(received == sent, "{class:?}: {} bytes", received.len());
    }
    echo.join().expect("no panic");
}

fn thread_that_never_waits_reads_and_writes_what_it_can(same_host: SameHost) {
    let (server, listener, client) = pair(same_host);
    let echo = thread::spawn(move || {
        let stream = listener.accept().expect("a stream");
        let mut buffer = [0; 1_000];
        while let Ok(bytes @ 1..) = stream.read(&mut buffer) {
            stream.write_all(&buffer[..bytes]).expect("it reads");
        }
    });
    let stream = client.connect(address(), Class::Latency).expect("accepted");
    let sent = filled(2_000_000);
    let (mut written, mut received) = (0, Vec::new());
    let until = Instant::now() + Duration::from_secs(60);
    let mut buffer = [0; 700];
    assert!(matches!(stream.try_read(&mut buffer), Ok(None)), "nothing was asked");
    while received.len() < sent.len() {
        assert!(Instant::now() < until, "{written} written, {} read", received.len());
        if written < sent.len() {
            let bytes = stream.try_write(&sent[written..]).expect("the stream lives");
            written += bytes.unwrap_or(0);
        }
        if let Some(bytes) = stream.try_read(&mut buffer).expect("the stream lives") {
            received.extend_from_slice(&buffer[..bytes]);
        }
    }
    assert!(received == sent, "other bytes than were sent");
    stream.shutdown(Shutdown::Write).expect("it lives");
    echo.join().expect("no panic");
    // A thread that never waits learns of the end, too.
    drop(server);
    while !matches!(stream.try_read(&mut buffer), Ok(Some(0)) | Err(_)) {
        assert!(Instant::now() < until, "the end is never seen");
    }
}

fn request_and_answer_of_every_size(same_host: SameHost) {
    let (_server, listener, client) = pair(same_host);
    let server = thread::spawn(move || {
        let mut stream = listener.accept().expect("a stream");
        let mut length = [0; 4];
        while stream.read_exact(&mut length).is_ok() {
            let mut body = vec![0; u32::from_le_bytes(length) as usize];
            stream.read_exact(&mut body).expect("the rest");
            stream.write_all(&body).expect("it reads");
        }
    });
    let mut stream = client.connect(address(), Class::Latency).expect("accepted");
    for size in [1, 63, 4_000, 4_096, 16_385, 65_536, 65_537, 300_000] {
        let body = filled(size);
        stream.write_all(&(size as u32).to_le_bytes()).expect("it reads");
        stream.write_all(&body).expect("it reads");
        let mut answer = vec![0; size];
        stream.read_exact(&mut answer).expect("an answer");
        assert!(answer == body, "{size} bytes");
    }
    drop(stream);
    server.join().expect("no panic");
}

fn chunks_and_reservations_carry_bytes_without_copies(same_host: SameHost) {
    let (_server, listener, client) = pair(same_host);
    let sent = filled(700_001);
    let expected = sent.clone();
    let writer = thread::spawn(move || {
        let stream = client.connect(address(), Class::Throughput).expect("accepted");
        let mut at = 0;
        while at < sent.len() {
            let mut reservation = stream.reserve(sent.len() - at).expect("room");
            let memory = reservation.bytes_mut();
            let bytes = memory.len();
            memory.copy_from_slice(&sent[at..at + bytes]);
            reservation.commit(bytes).expect("it lives");
            at += bytes;
        }
        stream.shutdown(Shutdown::Write).expect("it lives");
        assert_eq!(stream.read(&mut [0; 1]).expect("the end"), 0);
    });
    let stream = listener.accept().expect("a stream");
    let mut seen = Vec::new();
    loop {
        let chunks = stream.chunks(100_000).expect("it lives");
        if chunks.is_empty() {
            break;
        }
        // A part is taken, and comes no more.
        let taken = chunks.len().div_ceil(2);
        let all: Vec<u8> = chunks.iter().flatten().copied().collect();
        seen.extend_from_slice(&all[..taken]);
        stream.consume(taken);
    }
    drop(stream);
    assert!(seen == expected, "{} bytes", seen.len());
    writer.join().expect("no panic");
}

fn unsent_bytes_do_not_depend_on_the_next_call(same_host: SameHost) {
    let (_server, listener, client) = pair(same_host);
    for class in Class::ALL {
        let stream = client.connect(address(), class).expect("accepted");
        let other = listener.accept().expect("a stream");
        other.set_read_timeout(Some(Duration::from_secs(10)));
        for round in 0..20 {
            stream.write_all(&[round; 100]).expect("it reads");
            let mut bytes = [0; 100];
            (&other).read_exact(&mut bytes).expect("they come without a further call");
            assert_eq!(bytes, [round; 100]);
        }
    }
}

fn many_sockets_share_the_channels_of_two_endpoints(same_host: SameHost) {
    const SOCKETS: usize = 64;
    let (_server, listener, client) = pair(same_host);
    let server = thread::spawn(move || {
        let streams: Vec<_> = (0..SOCKETS).map(|_| listener.accept().expect("a stream")).collect();
        thread::scope(|scope| {
            for chunk in streams.chunks(SOCKETS / 4) {
                scope.spawn(move || {
                    for stream in chunk {
                        let all = read_to_end(stream);
                        stream.write_all(&all).expect("it reads");
                        stream.shutdown(Shutdown::Write).expect("it lives");
                    }
                });
            }
        });
        // Until the client has read it.
        streams.iter().for_each(|stream| stream.set_read_timeout(Some(Duration::from_secs(5))));
        streams
    });
    let streams: Vec<_> = (0..SOCKETS)
        .map(|index| client.connect(address(), Class::ALL[index % 2]).expect("accepted"))
        .collect();
    for (index, stream) in streams.iter().enumerate() {
        stream.write_all(&filled(1_000 * index)).expect("it reads");
        stream.shutdown(Shutdown::Write).expect("it lives");
    }
    for (index, stream) in streams.iter().enumerate() {
        assert!(read_to_end(stream) == filled(1_000 * index), "socket {index}");
    }
    server.join().expect("no panic");
}

#[test]
fn address_without_listener_or_peer_is_refused() {
    let (_server, listener, client) = pair(SameHost::default());
    let other = "127.0.0.1:81".parse().expect("an address");
    let refused = client.connect(other, Class::Latency).err().expect("no listener");
    let expected = StreamFailure::Refused(OpenRefusal::NoListener);
    assert!(matches!(refused, Error::Stream(failure) if failure == expected), "{refused}");
    let far = "10.1.2.3:80".parse().expect("an address");
    let unknown = client.connect(far, Class::Latency).err().expect("no route");
    assert!(unknown.to_string().contains("10.1.2.3:80"), "{unknown}");
    drop(listener);
    assert!(client.connect(address(), Class::Latency).is_err());
}

#[test]
fn channels_that_leave_the_host_need_the_word_insecure() {
    let endpoint = Endpoint::new(EndpointConfig::default()).expect("an endpoint");
    let any = "0.0.0.0:0".parse().expect("an address");
    let error = endpoint.take_channels(any).expect_err("refused");
    assert!(error.to_string().contains("insecure"), "{error}");
    let far = "10.1.2.3:7117".parse().expect("an address");
    assert!(endpoint.connect_peer(far).is_err_and(|error| error.to_string().contains("insecure")));
    let config = EndpointConfig { insecure: true, ..EndpointConfig::default() };
    assert!(Endpoint::new(config).expect("an endpoint").take_channels(any).is_ok());
}

fn peer_that_dies_resets_its_streams(same_host: SameHost) {
    let server = ServerProcess::start();
    let mut config = config_of(same_host);
    config.engine.grace = Nanos::from_millis(200);
    let client = Endpoint::new(config).expect("an endpoint");
    client.connect_peer(server.port).expect("it is there");
    let stream = client.connect(address(), Class::Latency).expect("accepted");
    stream.write_all(b"held").expect("it reads");
    let reader = thread::spawn(move || stream.read(&mut [0; 10]));
    drop(server);
    let error = reader.join().expect("no panic").expect_err("never the end of the stream");
    assert!(matches!(error, Error::Stream(StreamFailure::Reset(_))), "{error}");
}

fn lost_channel_comes_back_and_loses_nothing(same_host: SameHost) {
    let (server, listener, client) = pair(same_host);
    let sent = filled(30_000_000);
    let expected = sent.clone();
    let writer = thread::spawn(move || {
        let stream = client.connect(address(), Class::Throughput).expect("accepted");
        stream.write_all(&sent).expect("it reads");
        stream.shutdown(Shutdown::Write).expect("it lives");
        assert_eq!(stream.read(&mut [0; 1]).expect("the end"), 0);
    });
    let stream = listener.accept().expect("a stream");
    let mut received = Vec::new();
    let mut part = vec![0; 100_000];
    let mut cuts = 0;
    loop {
        let bytes = stream.read(&mut part).expect("it lives");
        if bytes == 0 {
            break;
        }
        received.extend_from_slice(&part[..bytes]);
        if received.len() > 5_000_000 * (cuts + 1) {
            cuts += 1;
            server.reset_channels();
        }
    }
    assert!(cuts >= 4, "{cuts} cuts");
    assert!(received == expected, "{} bytes", received.len());
    drop(stream);
    writer.join().expect("no panic");
}

#[test]
fn reads_and_accepts_give_up_in_time() {
    let (_server, listener, client) = pair(SameHost::default());
    let soon = Instant::now() + Duration::from_millis(20);
    assert!(matches!(listener.accept_until(Some(soon)), Err(Error::TimedOut)));
    let stream = client.connect(address(), Class::Latency).expect("accepted");
    stream.set_read_timeout(Some(Duration::from_millis(20)));
    assert!(matches!(stream.read(&mut [0; 1]), Err(Error::TimedOut)));
}

fn closed_stream_delivers_what_it_wrote(same_host: SameHost) {
    let (_server, listener, client) = pair(same_host);
    let mut stream = client.connect(address(), Class::Throughput).expect("accepted");
    stream.write_all(&filled(10_000)).expect("it reads");
    stream.flush().expect("sent");
    drop(stream);
    drop(client);
    let accepted = listener.accept().expect("a stream");
    assert!(read_to_end(&accepted) == filled(10_000));
}

fn early_stream_carries_its_first_bytes_and_learns_of_refusal(same_host: SameHost) {
    let (_server, listener, client) = pair(same_host);
    let server = thread::spawn(move || {
        for _ in 0..50 {
            let stream = listener.accept().expect("a stream");
            let request = read_to_end(&stream);
            stream.write_all(&request).expect("it reads");
        }
    });
    for round in 0..50 {
        let stream = client.connect_early(address(), Class::Latency).expect("a route");
        let request = filled(1 + round * 3_000);
        stream.write_all(&request).expect("it reads");
        stream.shutdown(Shutdown::Write).expect("it lives");
        assert!(read_to_end(&stream) == request);
    }
    server.join().expect("no panic");
    let other = "127.0.0.1:81".parse().expect("an address");
    let refused = client.connect_early(other, Class::Latency).expect("a route");
    let error = refused.read(&mut [0]).expect_err("no listener");
    let expected = StreamFailure::Refused(OpenRefusal::NoListener);
    assert!(matches!(error, Error::Stream(failure) if failure == expected), "{error}");
}

fn selector_serves_many_sockets_on_one_thread(same_host: SameHost) {
    const SOCKETS: usize = 20;
    const ROUNDS: usize = 50;
    let (server, listener, client) = pair(same_host);
    let echo = thread::spawn(move || {
        let mut selector = Selector::new(&server);
        let streams: Vec<_> = (0..SOCKETS).map(|_| listener.accept().expect("a stream")).collect();
        for (token, stream) in streams.iter().enumerate() {
            selector.add(token as u64, stream);
        }
        let mut open = SOCKETS;
        let mut bytes = [0; 1_000];
        while open > 0 {
            for token in selector.wait(None).expect("some can be read") {
                let stream = &streams[token as usize];
                match stream.read(&mut bytes).expect("it lives") {
                    0 => {
                        selector.remove(token);
                        open -= 1;
                    }
                    length => stream.write_all(&bytes[..length]).expect("it reads"),
                }
            }
        }
    });
    let streams: Vec<_> = (0..SOCKETS)
        .map(|_| client.connect(address(), Class::Latency).expect("accepted"))
        .collect();
    let mut bytes = [0; 100];
    for round in 0..ROUNDS {
        for (index, stream) in streams.iter().enumerate() {
            stream.write_all(&[(round + index) as u8; 100]).expect("it reads");
        }
        for (index, mut stream) in streams.iter().enumerate() {
            stream.read_exact(&mut bytes).expect("an answer");
            assert_eq!(bytes, [(round + index) as u8; 100]);
        }
    }
    streams.iter().for_each(|stream| stream.shutdown(Shutdown::Write).expect("it lives"));
    echo.join().expect("no panic");
}
