//! Channels by io_uring: peers that have plain TCP, and what an endpoint says of them.

use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use quell_net::{Class, Endpoint, EndpointConfig, SameHost};

use super::streams::{address, config_of, pattern, read_to_end};

/// Bytes both ways in both classes between a server and a client of these transports.
fn carries_bytes(server: SameHost, client: SameHost) {
    let server = Endpoint::new(config_of(server)).expect("an endpoint");
    let port = server.take_channels("127.0.0.1:0".parse().expect("valid")).expect("a port");
    let listener = server.listen(address()).expect("a free address");
    let client = Endpoint::new(config_of(client)).expect("an endpoint");
    client.connect_peer(port).expect("the server is there");
    let echo = thread::spawn(move || {
        for _ in Class::ALL {
            let stream = listener.accept().expect("a stream");
            let all = read_to_end(&stream);
            stream.write_all(&all).expect("it reads");
        }
    });
    let sent: Vec<u8> = (0..3_000_000).map(pattern).collect();
    for class in Class::ALL {
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

#[test]
fn peers_with_plain_tcp_are_reached_and_reach() {
    carries_bytes(SameHost::Tcp, SameHost::TcpUring);
    carries_bytes(SameHost::TcpUring, SameHost::Tcp);
}

#[test]
fn stats_name_the_channels_and_count_what_they_carry() {
    let (_server, listener, client) = super::streams::pair(SameHost::TcpUring);
    let reader = thread::spawn(move || read_to_end(&listener.accept().expect("a stream")));
    let stream = client.connect(address(), Class::Throughput).expect("accepted");
    stream.write_all(&vec![1; 1_000_000]).expect("it reads");
    stream.shutdown(Shutdown::Write).expect("it lives");
    assert_eq!(reader.join().expect("no panic").len(), 1_000_000);
    let stats = client.stats();
    let bulk = stats.channels.iter().find(|channel| channel.class == Class::Throughput);
    let bulk = bulk.expect("one of each class");
    assert_eq!(bulk.transport, "tcp-uring");
    // A message that waits for the driver waits for a wake-up more.
    let latency = stats.channels.iter().find(|channel| channel.class == Class::Latency);
    assert_eq!(latency.expect("one of each class").transport, "tcp");
    assert!(bulk.sent.bytes >= 1_000_000 && bulk.sent.time > Duration::ZERO, "{bulk}");
}

#[test]
fn endpoints_come_and_go_with_their_threads() {
    for round in 0..20 {
        let (server, listener, client) = super::streams::pair(SameHost::TcpUring);
        let stream = client.connect(address(), Class::ALL[round % 2]).expect("accepted");
        stream.write_all(&[7; 10_000]).expect("there is room");
        stream.shutdown(Shutdown::Write).expect("it lives");
        // What was written arrives, though this side is gone.
        drop((stream, client));
        assert_eq!(read_to_end(&listener.accept().expect("a stream")).len(), 10_000);
        drop((listener, server));
    }
}

#[test]
fn addresses_of_this_host_keep_their_own_transport() {
    let config = EndpointConfig {
        same_host: SameHost::Tcp,
        other_hosts: quell_net::OtherHosts::TcpUring,
        ..EndpointConfig::default()
    };
    let client = Endpoint::new(config).expect("an endpoint");
    let server = Endpoint::new(config_of(SameHost::Tcp)).expect("an endpoint");
    let port = server.take_channels("127.0.0.1:0".parse().expect("valid")).expect("a port");
    client.connect_peer(port).expect("the server is there");
    assert!(client.stats().channels.iter().all(|channel| channel.transport == "tcp"));
}
