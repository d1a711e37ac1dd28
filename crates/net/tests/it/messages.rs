//! Requests and answers.

use std::thread;
use std::time::Duration;

use quell_net::messages::{Client, Server};
use quell_net::{Class, Error, SameHost};

use super::streams::{address, pair};

/// A client, and a server that answers each request on a thread of its own, by `work`.
fn served(
    work: impl Fn(quell_net::messages::Request) + Send + Copy + 'static,
) -> (Client, thread::JoinHandle<usize>, quell_net::Endpoint) {
    let (server, listener, client) = pair(SameHost::default());
    let thread = thread::spawn(move || {
        let mut requests = Server::new(listener.accept().expect("a stream"));
        let mut count = 0;
        thread::scope(|scope| {
            while let Some(request) = requests.receive().expect("good requests") {
                count += 1;
                scope.spawn(move || work(request));
            }
        });
        drop(server);
        count
    });
    let stream = client.connect(address(), Class::Latency).expect("accepted");
    (Client::new(stream), thread, client)
}

#[test]
fn answers_find_their_requests_whatever_their_order() {
    let (client, server, _endpoint) = served(|request| {
        let number = request.payload()[0];
        thread::sleep(Duration::from_micros(u64::from(number % 7) * 300));
        let answer = vec![number; usize::from(number) * 1_000];
        request.answer(&answer).expect("the client lives");
    });
    thread::scope(|scope| {
        for first in [0_u8, 60, 120] {
            let client = &client;
            scope.spawn(move || {
                for number in first..first + 40 {
                    let answer = client.ask(&[number], None).expect("an answer");
                    assert!(answer == vec![number; usize::from(number) * 1_000]);
                }
            });
        }
    });
    drop(client);
    assert_eq!(server.join().expect("no panic"), 120);
}

#[test]
fn request_whose_time_is_over_is_cancelled_at_the_server() {
    let (client, server, _endpoint) = served(|request| {
        if request.payload() == b"slow" {
            while !request.is_cancelled() {
                thread::sleep(Duration::from_micros(100));
            }
        }
        request.answer(b"done").expect("the client lives");
    });
    let soon = Some(Duration::from_millis(10));
    assert!(matches!(client.ask(b"slow", soon), Err(Error::TimedOut)));
    client.send(b"slow", None).expect("sent").cancel();
    assert_eq!(client.ask(b"fast", None).expect("an answer"), b"done");
    drop(client);
    assert_eq!(server.join().expect("no panic"), 3);
}
