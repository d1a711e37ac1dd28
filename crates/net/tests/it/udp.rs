//! Channels over UDP across a network that loses, repeats and reorders packets, and carries short ones alone.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::{Shutdown, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use quell_model::Nanos;
use quell_net::{Class, Endpoint, EndpointConfig, Error, SameHost};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};

use super::streams::{address, pattern};

/// The longest packet that the network carries.
const LONGEST: usize = 1_500;

/// What becomes of packets, in a thousandth each.
#[derive(Clone, Copy)]
struct Faults {
    lost: u32,
    twice: u32,
    /// Behind the next one.
    late: u32,
}

/// A network between clients and a server: each client's packets come from an address of its own.
struct Network {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    /// It carries nothing.
    is_cut: Arc<AtomicBool>,
    lost: Arc<AtomicU64>,
    thread: Option<thread::JoinHandle<()>>,
}

struct Way {
    out: UdpSocket,
    to: SocketAddr,
    held: Option<Vec<u8>>,
}

impl Way {
    fn carry(&mut self, packet: &[u8], faults: Faults, rng: &mut StdRng, lost: &AtomicU64) {
        let dice = rng.random_range(0..1_000);
        if packet.len() > LONGEST || dice < faults.lost {
            lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if dice < faults.lost + faults.late && self.held.is_none() {
            self.held = Some(packet.to_vec());
            return;
        }
        let times = if dice >= 1_000 - faults.twice { 2 } else { 1 };
        for _ in 0..times {
            // A port that is closed: the kernel answers to the sender.
            let _ = self.out.send_to(packet, self.to);
        }
        if let Some(held) = self.held.take() {
            let _ = self.out.send_to(&held, self.to);
        }
    }
}

impl Network {
    fn new(server: SocketAddr, faults: Faults, seed: u64) -> Network {
        let outside = socket();
        let address = outside.local_addr().expect("bound");
        let (is_over, lost) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let is_cut = Arc::new(AtomicBool::new(false));
        let (over, count, cut) = (Arc::clone(&is_over), Arc::clone(&lost), Arc::clone(&is_cut));
        let thread = thread::spawn(move || {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut ways: BTreeMap<SocketAddr, (Way, Way)> = BTreeMap::new();
            let mut packet = vec![0; 65_536];
            while !over.load(Ordering::Relaxed) {
                let faults = match cut.load(Ordering::Relaxed) {
                    true => Faults { lost: 1_000, ..faults },
                    false => faults,
                };
                let mut is_quiet = true;
                while let Ok((length, from)) = outside.recv_from(&mut packet) {
                    is_quiet = false;
                    let (there, _) = ways.entry(from).or_insert_with(|| {
                        let inside = socket();
                        let back = outside.try_clone().expect("a descriptor");
                        let there = Way { out: inside, to: server, held: None };
                        (there, Way { out: back, to: from, held: None })
                    });
                    there.carry(&packet[..length], faults, &mut rng, &count);
                }
                for (there, back) in ways.values_mut() {
                    while let Ok(length) = there.out.recv(&mut packet) {
                        is_quiet = false;
                        back.carry(&packet[..length], faults, &mut rng, &count);
                    }
                }
                if is_quiet {
                    thread::sleep(Duration::from_micros(50));
                }
            }
        });
        Network { address, is_over, is_cut, lost, thread: Some(thread) }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let thread = self.thread.take();
        assert!(thread.is_some_and(|thread| thread.join().is_ok()) || thread::panicking());
    }
}

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    socket.set_nonblocking(true).expect("a socket");
    socket
}

fn config() -> EndpointConfig {
    EndpointConfig { same_host: SameHost::Udp, ..EndpointConfig::default() }
}

fn bytes_there_and_back(faults: Faults, bytes: usize) {
    let server = Endpoint::new(config()).expect("an endpoint");
    let port = server.take_channels("127.0.0.1:0".parse().expect("valid")).expect("a port");
    let network = Network::new(port, faults, 7);
    let client = Endpoint::new(config()).expect("an endpoint");
    client.connect_peer(network.address).expect("requests are repeated");
    let listener = server.listen(address()).expect("a free address");
    let echo = thread::spawn(move || {
        for _ in Class::ALL {
            let stream = listener.accept().expect("a stream");
            let mut piece = vec![0; 30_000];
            loop {
                match stream.read(&mut piece).expect("it lives") {
                    0 => break,
                    length => stream.write_all(&piece[..length]).expect("it is read"),
                }
            }
            stream.shutdown(Shutdown::Write).expect("it lives");
        }
        listener
    });
    for class in Class::ALL {
        let stream = client.connect(address(), class).expect("accepted");
        let sent: Vec<u8> = (0..bytes).map(pattern).collect();
        let mut received = vec![0; bytes];
        thread::scope(|scope| {
            scope.spawn(|| {
                stream.write_all(&sent).expect("it is read");
                stream.shutdown(Shutdown::Write).expect("it lives");
            });
            (&stream).read_exact(&mut received).expect("all comes back");
        });
        assert!(received == sent, "other bytes than were sent");
        assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
    }
    let lost = network.lost.load(Ordering::Relaxed);
    assert!(lost > 0, "the network lost nothing");
    drop(echo.join().expect("no panic"));
    let text = client.stats().to_string();
    assert!(text.contains("udp"), "{text}");
}

#[test]
fn bytes_are_intact_where_one_packet_in_a_hundred_is_lost() {
    bytes_there_and_back(Faults { lost: 10, twice: 5, late: 10 }, 2_000_000);
}

#[test]
fn bytes_are_intact_where_one_packet_in_ten_is_lost() {
    bytes_there_and_back(Faults { lost: 100, twice: 20, late: 50 }, 500_000);
}

#[test]
fn many_clients_of_one_port_are_told_apart() {
    let server = Endpoint::new(config()).expect("an endpoint");
    let port = server.take_channels("127.0.0.1:0".parse().expect("valid")).expect("a port");
    let listener = server.listen(address()).expect("a free address");
    let clients: Vec<Endpoint> = (0..8)
        .map(|_| {
            let client = Endpoint::new(config()).expect("an endpoint");
            client.connect_peer(port).expect("the server is there");
            client
        })
        .collect();
    for (index, client) in clients.iter().enumerate() {
        let stream = client.connect(address(), Class::Latency).expect("accepted");
        stream.write_all(&[index as u8; 100]).expect("it lives");
        let accepted = listener.accept().expect("a stream");
        let mut bytes = [0; 100];
        (&accepted).read_exact(&mut bytes).expect("all comes");
        assert_eq!(bytes, [index as u8; 100]);
    }
}

#[test]
fn peer_that_takes_no_udp_is_named_at_once() {
    let tcp = EndpointConfig { same_host: SameHost::Tcp, ..EndpointConfig::default() };
    let server = Endpoint::new(tcp).expect("an endpoint");
    let port = server.take_channels("127.0.0.1:0".parse().expect("valid")).expect("a port");
    let client = Endpoint::new(config()).expect("an endpoint");
    let error = client.connect_peer(port).expect_err("its UDP port is closed");
    assert!(error.to_string().contains("UDP"), "{error}");
    // It does not wait for an answer.
    assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::ConnectionRefused);
}

#[test]
fn udp_without_recovery_is_refused() {
    let mut config = config();
    config.engine.has_recovery = false;
    let refused = Endpoint::new(config).err();
    assert!(matches!(refused, Some(Error::Config(_))), "{refused:?}");
}

#[test]
fn peer_that_has_started_anew_on_its_port_ends_the_channels_at_once() {
    let server = Endpoint::new(config()).expect("an endpoint");
    let port = server.take_channels("127.0.0.1:0".parse().expect("valid")).expect("a port");
    let listener = server.listen(address()).expect("a free address");
    // Nothing is heard of its end, as if it had been killed.
    let network = Network::new(port, Faults { lost: 0, twice: 0, late: 0 }, 1);
    // Silence alone does not end a channel.
    let mut config_of_client = config();
    config_of_client.engine.ping_after = Nanos::from_secs(3_600);
    let client = Endpoint::new(config_of_client).expect("an endpoint");
    client.connect_peer(network.address).expect("the server is there");
    let stream = client.connect(address(), Class::Latency).expect("accepted");
    network.is_cut.store(true, Ordering::Relaxed);
    drop((listener, server));
    let server = Endpoint::new(config()).expect("an endpoint");
    server.take_channels(port).expect("the port is free again");
    network.is_cut.store(false, Ordering::Relaxed);
    stream.set_read_timeout(Some(Duration::from_secs(60)));
    stream.write_all(b"lost").expect("nothing is known yet");
    let error = stream.read(&mut [0; 1]).expect_err("the server knows nothing of it");
    assert!(matches!(error, Error::Stream(_)), "{error}");
}
