//! The reactors by themselves: bells, thieves, time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use quell_model::Nanos;

use super::Reactor;
use crate::kthread::now;
use crate::runtime::Io;

/// Each kind, by the name that a failure shows.
fn each(test: impl Fn(&Reactor, Io)) {
    for io in [Io::Uring, Io::Epoll] {
        test(&Reactor::new(io).unwrap(), io);
    }
}

#[test]
fn a_bell_that_rang_before_the_wait_ends_it() {
    each(|reactor, io| {
        for _ in 0..1_000 {
            reactor.bell().ring();
            // Would never return.
            reactor.wait(None);
        }
        assert!(reactor.is_idle(), "{io:?}");
    });
}

#[test]
fn no_ring_of_the_bell_is_lost_to_thieves() {
    const ROUNDS: u64 = 20_000;
    each(|reactor, _| {
        let (rung, heard, stop) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut ready = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    reactor.poll(false, now(), &mut ready);
                }
            });
            scope.spawn(|| {
                let mut ready = Vec::new();
                while heard.load(Ordering::Relaxed) < ROUNDS {
                    if heard.load(Ordering::Acquire) == rung.load(Ordering::Acquire) {
                        // For ever, if the ring that comes next is lost.
                        reactor.wait(None);
                    }
                    reactor.poll(true, now(), &mut ready);
                    heard.store(rung.load(Ordering::Acquire), Ordering::Release);
                }
            });
            for round in 1..=ROUNDS {
                rung.store(round, Ordering::Release);
                reactor.bell().ring();
                while heard.load(Ordering::Acquire) < round {
                    std::thread::yield_now();
                }
            }
            stop.store(true, Ordering::Relaxed);
        });
    });
}

#[test]
fn a_wait_ends_at_its_time_and_not_before() {
    each(|reactor, io| {
        for time in [Duration::from_micros(1), Duration::from_micros(300), Duration::from_millis(3)]
        {
            let until = Nanos(now().0 + time.as_nanos() as u64);
            while now() < until {
                reactor.wait(Some(until));
            }
        }
        // A time that is past, and one that never comes but for the bell.
        reactor.wait(Some(Nanos(1)));
        reactor.bell().ring();
        reactor.wait(Some(Nanos(u64::MAX)));
        assert_eq!(reactor.oldest(now()), None, "{io:?}");
    });
}
