//! What an endpoint says of itself.

use std::net::Shutdown;
use std::thread;
use std::time::Duration;

use quell_net::{ChannelStats, Class, Endpoint, Origin, SameHost};

use super::streams::{address, pair};

const BYTES: usize = 3_000_000;

fn of_class(endpoint: &Endpoint, class: Class) -> ChannelStats {
    let mut channels = endpoint.stats().channels.into_iter();
    channels.find(|channel| channel.class == class).expect("one of each class")
}

#[test]
fn stats_say_which_channel_has_carried_what_and_why_it_is_there() {
    let (server, listener, client) = pair(SameHost::Tcp);
    let reader = thread::spawn(move || {
        let stream = listener.accept().expect("a stream");
        let mut bytes = vec![0; 100_000];
        while stream.read(&mut bytes).expect("it lives") > 0 {}
    });
    let stream = client.connect(address(), Class::Throughput).expect("accepted");
    stream.write_all(&vec![1; BYTES]).expect("it reads");
    stream.shutdown(Shutdown::Write).expect("it lives");
    assert_eq!(stream.read(&mut [0]).expect("the end"), 0);
    let own = stream.stats().expect("it is not closed");
    reader.join().expect("no panic");

    let sent = of_class(&client, Class::Throughput);
    assert_eq!((sent.origin, sent.transport), (Origin::Configured, "tcp"));
    assert!(sent.sent.bytes >= BYTES as u64 && sent.sent.calls > 1, "{sent}");
    assert_eq!((own.channel, own.unsent_bytes), (Some(sent.number), 0));
    assert!(own.to_string().contains("the fewest bytes waited for it"), "{own}");
    assert!(sent.sent.time > Duration::ZERO, "calls take time");
    let received = of_class(&server, Class::Throughput);
    assert_eq!(received.origin, Origin::Peer);
    assert!(received.received.bytes >= BYTES as u64, "{received}");
    let latency = of_class(&client, Class::Latency);
    assert!(latency.sent.bytes < 10_000, "bulk data is apart: {latency}");
    let text = client.stats().to_string();
    assert!(text.contains("throughput over tcp, opened here by the configuration"), "{text}");
}
