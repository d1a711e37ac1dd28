//! Streams that keep nothing to be sent again: large writes go to the channel from the application's memory.

use std::net::Shutdown;
use std::thread;

use quell_net::{Class, Endpoint, EndpointConfig, SameHost};

use super::streams::address;

/// Sizes of writes: below and above those that are copied, and more than a window.
const SIZES: [usize; 6] = [1, 5_000, 16_385, 200_000, 1_000_000, 65_536];
const WRITERS: usize = 6;
const ROUNDS: usize = 8;

fn endpoint(same_host: SameHost, throughput_channels: usize) -> Endpoint {
    let mut config = EndpointConfig { same_host, throughput_channels, ..EndpointConfig::default() };
    config.engine.has_recovery = false;
    Endpoint::new(config).expect("an endpoint")
}

/// What a writer writes at a place: another in each.
fn fill(writer: usize, from: usize, into: &mut [u8]) {
    for (index, byte) in into.iter_mut().enumerate() {
        *byte = ((from + index).wrapping_mul(0x9e37_79b9) >> 23) as u8 ^ writer as u8;
    }
}

fn read_all(stream: &quell_net::Stream, slowly: bool) -> usize {
    let mut writer = [0];
    assert_eq!(stream.read(&mut writer).expect("its number"), 1);
    let (mut part, mut expected) = (vec![0; 150_000], vec![0; 150_000]);
    let mut total = 0;
    loop {
        let length = stream.read(&mut part).expect("it lives");
        if length == 0 {
            return total;
        }
        fill(writer[0].into(), total, &mut expected[..length]);
        assert!(part[..length] == expected[..length], "other bytes from {total} on");
        total += length;
        if slowly && total.is_multiple_of(7) {
            // Channels fill meanwhile.
            thread::yield_now();
        }
    }
}

fn writers_take_turns_and_nothing_is_lost(same_host: SameHost, channels: usize) {
    let server = endpoint(same_host, channels);
    let port = server.take_channels("127.0.0.1:0".parse().expect("valid")).expect("a port");
    let listener = server.listen(address()).expect("a free address");
    let client = endpoint(same_host, channels);
    client.connect_peer(port).expect("the server is there");
    let readers: Vec<_> = thread::scope(|scope| {
        for writer in 0..WRITERS {
            let stream = client.connect(address(), Class::Throughput).expect("accepted");
            scope.spawn(move || {
                stream.write_all(&[writer as u8]).expect("it reads");
                let mut at = 0;
                for round in 0..ROUNDS * SIZES.len() {
                    let mut bytes = vec![0; SIZES[(round + writer) % SIZES.len()]];
                    fill(writer, at, &mut bytes);
                    stream.write_all(&bytes).expect("it reads");
                    at += bytes.len();
                }
                stream.shutdown(Shutdown::Write).expect("it lives");
                assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
            });
        }
        let accepted: Vec<_> = (0..WRITERS).map(|_| listener.accept().expect("a stream")).collect();
        let readers = accepted
            .into_iter()
            .enumerate()
            .map(|(index, stream)| scope.spawn(move || read_all(&stream, index % 2 == 0)));
        let readers: Vec<_> = readers.collect();
        readers.into_iter().map(|reader| reader.join().expect("no panic")).collect()
    });
    let expected = ROUNDS * SIZES.iter().sum::<usize>();
    assert_eq!(readers, vec![expected; WRITERS]);
}

#[test]
fn over_tcp() {
    writers_take_turns_and_nothing_is_lost(SameHost::Tcp, 1);
}

#[test]
fn over_two_channels_of_tcp() {
    writers_take_turns_and_nothing_is_lost(SameHost::Tcp, 2);
}

#[test]
fn through_shared_memory() {
    writers_take_turns_and_nothing_is_lost(SameHost::SharedMemory, 1);
}
