//! What a channel by io_uring does with bytes, one end of which is a plain socket.

use std::io::{IoSlice, IoSliceMut, Read as _, Write as _};
use std::net::{Shutdown, TcpListener};
use std::time::{Duration, Instant};

use super::*;
use crate::memory::LARGE;
use crate::transport::{Filled, Kept};

const PATIENCE: Duration = Duration::from_secs(20);

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let one = TcpStream::connect(listener.local_addr().expect("bound")).expect("up");
    let (other, _) = listener.accept().expect("it waits");
    other.set_read_timeout(Some(PATIENCE)).expect("a socket");
    (one, other)
}

fn filled(bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at.wrapping_mul(0x9e37_79b9) >> 24) as u8).collect()
}

fn channel(driver: &Driver) -> (Transport, TcpStream) {
    let (transport, peer, _) = channel_and_link(driver);
    (transport, peer)
}

fn channel_and_link(driver: &Driver) -> (Transport, TcpStream, Arc<Link>) {
    let (own, peer) = pair();
    let link = Link::new(Arc::new(own), &driver.shared).expect("descriptors");
    link.kick();
    (of_link(Arc::clone(&link), None), peer, link)
}

fn wait((fd, flags): (std::os::fd::BorrowedFd<'_>, crate::transport::PollFlags)) {
    crate::attach::wait((fd, flags), Instant::now() + PATIENCE).expect("it comes");
}

/// Sends all, as an endpoint does.
fn send(transport: &mut Transport, bytes: &[u8]) {
    let mut sent = 0;
    while sent < bytes.len() {
        // In two pieces.
        let middle = sent + (bytes.len() - sent) / 3;
        let pieces = [IoSlice::new(&bytes[sent..middle]), IoSlice::new(&bytes[middle..])];
        match transport.outgoing.enqueue(&pieces) {
            Ok(count) => sent += count,
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                if !transport.readiness.arm_writable() {
                    wait(transport.readiness.writable());
                }
            }
        }
    }
}

/// What arrives next; nothing at the end.
fn receive(transport: &mut Transport) -> io::Result<Vec<u8>> {
    loop {
        let taken = transport.incoming.take_filled().expect("it fills its own memory");
        match taken {
            Ok(Filled(spans)) => {
                return Ok(spans.iter().flat_map(|span| span.bytes().to_vec()).collect());
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if !transport.readiness.arm_readable() {
                    wait(transport.readiness.readable());
                }
            }
            Err(error) => return Err(error),
        }
    }
}

#[test]
fn sends_in_parts_lose_nothing() {
    let driver = Driver::start().expect("io_uring");
    let (mut transport, mut peer) = channel(&driver);
    let sent = filled(20_000_000);
    let expected = sent.clone();
    let reader = std::thread::spawn(move || {
        let (mut all, mut piece) = (Vec::new(), vec![0; 77_777]);
        while let Ok(bytes @ 1..) = peer.read(&mut piece) {
            all.extend_from_slice(&piece[..bytes]);
            if all.len() % 5 == 0 {
                std::thread::sleep(Duration::from_micros(300));
            }
        }
        all
    });
    send(&mut transport, &sent);
    // The rest of it is sent all the same.
    drop(transport);
    assert!(reader.join().expect("no panic") == expected);
}

#[test]
fn kept_memory_is_sent_from_where_it_is() {
    let driver = Driver::start().expect("io_uring");
    let (mut transport, mut peer) = channel(&driver);
    assert!(transport.outgoing.takes_kept());
    let bytes = filled(3 * LARGE);
    let spans = crate::memory::spans_of(&Arc::default(), &bytes);
    let head = [9; 21];
    // The first was sent in part, and a small piece is before each.
    let parts = [&spans[0].bytes()[10_000..], spans[1].bytes(), &spans[2].bytes()[LARGE - 100..]];
    let (mut slices, mut kept, mut expected) = (Vec::new(), Vec::new(), Vec::new());
    for (span, part) in spans.iter().zip(parts) {
        slices.extend([IoSlice::new(&head), IoSlice::new(part)]);
        kept.extend([Kept(None), Kept(Some(span.clone()))]);
        expected.extend(head.iter().chain(part));
    }
    let taken = transport.outgoing.enqueue_kept(&slices, &kept).expect("there is room");
    assert_eq!(taken, expected.len());
    drop(slices);
    drop((kept, spans, transport));
    let mut all = Vec::new();
    peer.read_to_end(&mut all).expect("all comes");
    assert!(all == expected, "{} bytes", all.len());
}

#[test]
fn reader_that_does_not_read_holds_bounded_memory() {
    let driver = Driver::start().expect("io_uring");
    let (mut transport, mut peer, link) = channel_and_link(&driver);
    let sent = filled(30_000_000);
    let expected = sent.clone();
    let writer = std::thread::spawn(move || {
        peer.write_all(&sent).expect("it is read at last");
        peer.shutdown(Shutdown::Write).expect("it lives");
        peer
    });
    // Until the kernel has no memory any more that it may fill.
    let until = Instant::now() + PATIENCE;
    let held = || link.with(|state| state.received_bytes);
    while held() + LARGE <= link::RECEIVE_MAX && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    let is_full = |held| held + LARGE > link::RECEIVE_MAX && held <= link::RECEIVE_MAX;
    assert!(is_full(held()), "{} bytes", held());
    assert!(!writer.is_finished(), "it waits for the reader");
    let mut all = Vec::new();
    loop {
        let part = receive(&mut transport).expect("it lives");
        if part.is_empty() {
            break;
        }
        all.extend(part);
    }
    assert!(all == expected, "{} bytes", all.len());
    drop(writer.join().expect("no panic"));
}

#[test]
fn small_pieces_share_memory_and_come_in_order() {
    let driver = Driver::start().expect("io_uring");
    let (mut transport, mut peer) = channel(&driver);
    let sent = filled(50_000);
    let expected = sent.clone();
    let writer = std::thread::spawn(move || {
        peer.set_nodelay(true).expect("a socket");
        for piece in sent.chunks(7) {
            peer.write_all(piece).expect("it is read");
        }
    });
    writer.join().expect("no panic");
    let (mut all, mut bytes) = (Vec::new(), [0; 100]);
    loop {
        let (first, second) = bytes.split_at_mut(33);
        let mut into = [IoSliceMut::new(first), IoSliceMut::new(second)];
        match transport.incoming.dequeue(&mut into) {
            Ok(0) => break,
            Ok(count) => all.extend_from_slice(&bytes[..count]),
            Err(error) => {
                assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                if !transport.readiness.arm_readable() {
                    wait(transport.readiness.readable());
                }
            }
        }
    }
    assert!(all == expected, "{} bytes", all.len());
}

#[test]
fn peer_that_resets_is_an_error_or_the_end_for_both_directions() {
    let driver = Driver::start().expect("io_uring");
    let (mut transport, peer) = channel(&driver);
    rustix::net::sockopt::set_socket_linger(&peer, Some(Duration::ZERO)).expect("a socket");
    // More than all buffers hold: the driver has a send that waits.
    let mut room = 100_000_000_usize;
    loop {
        while let Ok(count) = transport.outgoing.enqueue(&[IoSlice::new(&[1; 65_536])]) {
            room = room.checked_sub(count).expect("it is full at last");
        }
        // Else the driver has sent meanwhile.
        if !transport.readiness.arm_writable() {
            break;
        }
    }
    drop(peer);
    wait(transport.readiness.writable());
    // Whichever of the two the kernel says it to first takes the error away.
    match receive(&mut transport) {
        Ok(part) => assert!(part.is_empty(), "the end"),
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset),
    }
    // What is sent goes nowhere, and the reader has learned of it.
    assert_eq!(transport.outgoing.enqueue(&[IoSlice::new(&[1; 10])]).expect("no second error"), 10);
}

#[test]
fn channel_that_is_dropped_while_it_sends_is_freed_in_time() {
    let driver = Driver::start().expect("io_uring");
    let (mut transport, peer, link) = channel_and_link(&driver);
    let socket = Arc::downgrade(&link.socket);
    drop(link);
    while transport.outgoing.enqueue(&[IoSlice::new(&[1; 65_536])]).is_ok() {}
    drop(transport);
    let until = Instant::now() + PATIENCE;
    while socket.strong_count() > 0 {
        assert!(Instant::now() < until, "the kernel has it still");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(peer);
}

#[test]
fn driver_that_stops_while_it_sends_ends_its_channels() {
    let driver = Driver::start().expect("io_uring");
    let (mut transport, peer) = channel(&driver);
    while transport.outgoing.enqueue(&[IoSlice::new(&[1; 65_536])]).is_ok() {}
    driver.stop();
    assert!(receive(&mut transport).is_err(), "it has ended");
    assert!(transport.outgoing.enqueue(&[IoSlice::new(&[1])]).is_err(), "it has ended");
    let (late, _) = pair();
    assert!(super::transport(late, &driver, false).is_err(), "it takes no more");
    drop(peer);
}

#[test]
fn refusal_of_the_kernel_names_the_remedy() {
    for (errno, word) in [
        (libc::EPERM, "kernel.io_uring_disabled"),
        (libc::ENOSYS, "Linux 6.1"),
        (libc::EINVAL, "Linux 6.1"),
        (libc::ENOMEM, "ulimit"),
    ] {
        let text = crate::Error::uring(io::Error::from_raw_os_error(errno)).to_string();
        assert!(text.contains(word), "{text}");
    }
}
