//! Channels that cross a network: one whose path has a queue is slowed down.

use std::io;
use std::net::Shutdown;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use quell_model::Nanos;
use quell_net::transport::{Path, PathSample};
use quell_net::{Class, Endpoint, EndpointConfig, Side};

use super::examples::transport::transport;
use super::streams::address;

/// A path on which bytes wait for 8 ms, whatever is sent.
#[derive(Default)]
struct Queued {
    delivered: AtomicU64,
    rates: Mutex<Vec<Option<u64>>>,
}

impl Path for Queued {
    fn sample(&self) -> io::Result<Option<PathSample>> {
        // Relaxed: a number of its own.
        let delivered_bytes = self.delivered.fetch_add(100_000, Ordering::Relaxed);
        let (rtt, min_rtt) = (Nanos::from_millis(8), Nanos::from_micros(100));
        Ok(Some(PathSample { rtt, min_rtt, delivered_bytes, is_backlogged: true }))
    }

    fn pace(&self, bytes_per_second: Option<u64>) -> io::Result<()> {
        self.rates.lock().expect("no panic").push(bytes_per_second);
        Ok(())
    }
}

#[test]
fn bulk_data_is_paced_where_its_path_has_a_queue() {
    let server = Endpoint::new(EndpointConfig::default()).expect("an endpoint");
    let client = Endpoint::new(EndpointConfig::default()).expect("an endpoint");
    let path = Arc::new(Queued::default());
    for class in Class::ALL {
        let (server_reader, client_writer) = io::pipe().expect("a pipe");
        let (client_reader, server_writer) = io::pipe().expect("a pipe");
        let theirs = transport(server_reader, server_writer).expect("a transport");
        let mut ours = transport(client_reader, client_writer).expect("a transport");
        ours.path = Some(Arc::clone(&path) as Arc<dyn Path>);
        thread::scope(|scope| {
            scope.spawn(|| server.attach(theirs, class, Side::Acceptor, address()).expect("hello"));
            client.attach(ours, class, Side::Opener, address()).expect("hello");
        });
    }
    let listener = server.listen(address()).expect("a free address");
    let reader = thread::spawn(move || {
        let stream = listener.accept().expect("a stream");
        let mut bytes = vec![0; 100_000];
        while stream.read(&mut bytes).expect("it lives") > 0 {}
    });
    let stream = client.connect(address(), Class::Throughput).expect("accepted");
    let until = Instant::now() + Duration::from_secs(20);
    while path.rates.lock().expect("no panic").is_empty() {
        assert!(Instant::now() < until, "it is never paced: {}", client.stats());
        stream.write_all(&[1; 100_000]).expect("it is read");
    }
    let first = path.rates.lock().expect("no panic")[0];
    assert!(first.is_some_and(|rate| rate > 0), "{first:?}");
    let text = client.stats().to_string();
    assert!(text.contains("round trips of 8000 us"), "{text}");
    stream.shutdown(Shutdown::Write).expect("it lives");
    reader.join().expect("no panic");
}
