//! Channels that come and go while streams use them.

use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use quell_model::Nanos;
use quell_net::scheduler::{ChannelCount, PeerLoad, Target};
use quell_net::{Class, Endpoint, EndpointConfig, SameHost, Stream};

use super::streams::{address, pattern};

/// As many channels as the test says.
struct Told(Arc<AtomicUsize>);

impl ChannelCount for Told {
    fn target(&mut self, _now: Nanos, _load: &PeerLoad) -> Target {
        // Relaxed: a number of its own.
        Target { channels: self.0.load(Ordering::Relaxed), reason: "the test says so" }
    }
}

/// Streams that keep nothing to be sent again: what a channel loses ends them.
fn config(same_host: SameHost) -> EndpointConfig {
    let mut config = EndpointConfig { same_host, ..EndpointConfig::default() };
    config.engine.has_recovery = false;
    config
}

fn write_until(stream: &Stream, is_over: &AtomicBool) -> usize {
    let bytes: Vec<u8> = (0..300_000).map(pattern).collect();
    let mut written = 0;
    while !is_over.load(Ordering::Relaxed) {
        stream.write_all(&bytes).expect("nothing is lost");
        written += bytes.len();
    }
    stream.shutdown(Shutdown::Write).expect("it lives");
    written
}

fn read_all(stream: &Stream) -> usize {
    let (mut bytes, mut read) = (vec![0; 100_000], 0);
    while let length @ 1.. = stream.read(&mut bytes).expect("nothing is lost") {
        let expected = (read..read + length).map(|offset| pattern(offset % 300_000));
        assert!(expected.eq(bytes[..length].iter().copied()), "at {read}");
        read += length;
    }
    read
}

/// Channels of the throughput class, those included that are being given up.
fn channels(endpoint: &Endpoint) -> usize {
    let channels = endpoint.stats().channels;
    channels.iter().filter(|channel| channel.class == Class::Throughput).count()
}

fn come_and_go(same_host: SameHost) {
    let wanted = Arc::new(AtomicUsize::new(1));
    let server = Endpoint::new(config(same_host)).expect("an endpoint");
    let port = server.take_channels("127.0.0.1:0".parse().expect("valid")).expect("a port");
    let listener = server.listen(address()).expect("a free address");
    let told = Arc::clone(&wanted);
    let client = Endpoint::new(EndpointConfig {
        channel_count: Some(Arc::new(move || Box::new(Told(Arc::clone(&told))))),
        ..config(same_host)
    });
    let client = client.expect("an endpoint");
    client.connect_peer(port).expect("the server is there");
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let streams = [(); 2].map(|()| listener.accept().expect("a stream"));
            thread::scope(|scope| {
                let readers = streams.each_ref().map(|stream| scope.spawn(|| read_all(stream)));
                readers.map(|reader| reader.join().expect("no panic"))
            })
        });
        let is_over = &is_over;
        let writers = [(); 2].map(|()| {
            let stream = client.connect(address(), Class::Throughput).expect("accepted");
            scope.spawn(move || {
                let written = write_until(&stream, is_over);
                assert_eq!(stream.read(&mut [0]).expect("the other side closes"), 0);
                written
            })
        });
        for count in [3, 1, 2, 1] {
            wanted.store(count, Ordering::Relaxed);
            let until = Instant::now() + Duration::from_secs(20);
            while [channels(&client), channels(&server)] != [count; 2] {
                assert!(Instant::now() < until, "not {count} channels: {}", client.stats());
                thread::sleep(Duration::from_millis(5));
            }
            let text = client.stats().to_string();
            assert!(
                text.contains(&format!("{count} channels for throughput: the test says so")),
                "{text}"
            );
        }
        is_over.store(true, Ordering::Relaxed);
        let mut written = writers.map(|writer| writer.join().expect("no panic"));
        let mut read = reader.join().expect("no panic");
        written.sort_unstable();
        read.sort_unstable();
        assert_eq!(read, written);
    });
}

#[test]
fn channels_over_tcp_come_and_go_and_lose_nothing() {
    come_and_go(SameHost::Tcp);
}

#[test]
fn channels_over_shared_memory_come_and_go_and_lose_nothing() {
    come_and_go(SameHost::SharedMemory);
}
