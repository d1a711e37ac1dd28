//! An open-loop client of a ring. It polls, and does so wherever it is called: by a thread of its own, or, on a host
//! with no core left for it, within the loop of a dedicated scheduler.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use quell_load::now;
use quell_model::Nanos;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use super::ring::{Request, Ring};
use super::server::{bell, make_bell, open_bell, ring_bell};
use crate::stops;

/// Requests that a ring has room for.
const CAPACITY: usize = 1 << 12;
/// Requests in flight where as many as the server can do are wanted.
const FULL: u64 = 64;

/// What a client offers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// The file of the ring.
    pub ring: PathBuf,
    /// From which byte on it lies there: 0 but for a guest's, which has it in its memory.
    pub rings_at: usize,
    /// Requests a second, at random times (Poisson); `None`: as many as the server can do.
    pub rate_rps: Option<f64>,
    /// The work of most requests.
    pub service: Nanos,
    /// The work of a few.
    pub long: Nanos,
    /// How many of a thousand are long.
    pub long_per_mille: f64,
    /// Before anything is counted.
    pub warm_up: Nanos,
    /// How long is counted.
    pub duration: Nanos,
    /// Where the random numbers begin.
    pub seed: u64,
}

/// What a client saw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Seen {
    /// Answers a second.
    pub answered_rps: f64,
    /// Requests that were counted.
    pub count: u64,
    /// Requests without an answer half a second after the end.
    pub unanswered: u64,
    /// What the shortest request took the server from taking it to its end, where that says so.
    pub service_us: Option<f64>,
    /// The share of the time in which the client itself did not run. What was due then was not sent: it would tell of the
    /// client's core.
    pub stopped_percent: f64,
}

/// The requests that were counted, where they came at a rate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// Each of them.
    pub requests: Vec<stops::Request>,
    /// From when on they were.
    pub from: Nanos,
    /// Until when.
    pub to: Nanos,
}

/// A client at work.
pub struct Client {
    load: Load,
    ring: Ring,
    bell: File,
    random: ChaCha8Rng,
    start: Option<Nanos>,
    next: Request,
    in_flight: u64,
    count: u64,
    answered: u64,
    last: Nanos,
    stopped: Nanos,
    kept: Vec<stops::Request>,
    done: bool,
}

/// A client that polls again only after so long was stopped: by its hypervisor, or its kernel.
const STOPPED: Nanos = Nanos::from_micros(100);
/// How long answers are waited for after the end.
const PATIENCE: Nanos = Nanos::from_millis(500);

/// Makes the rings of a load, and the server's bell.
///
/// # Errors
/// When they cannot be made.
pub fn make(load: &Load) -> Result<()> {
    let made = match load.rings_at {
        0 => Ring::create(&load.ring, CAPACITY),
        first => Ring::create_at(&load.ring, first, CAPACITY),
    };
    made.with_context(|| format!("make {}", load.ring.display()))?;
    make_bell(&load.ring)?;
    Ok(())
}

impl Client {
    /// Opens what [`make`] made.
    ///
    /// # Errors
    /// When it is not there.
    pub fn open(load: Load) -> Result<Client> {
        let ring = Ring::open_at(&load.ring, load.rings_at)
            .with_context(|| format!("open {}", load.ring.display()))?;
        let bell = open_bell(&bell(&load.ring))?;
        let first = Request { id: 0, due: Nanos::ZERO, service: load.service };
        Ok(Client {
            random: ChaCha8Rng::seed_from_u64(load.seed),
            load,
            ring,
            bell,
            start: None,
            next: first,
            in_flight: 0,
            count: 0,
            answered: 0,
            last: Nanos::ZERO,
            stopped: Nanos::ZERO,
            kept: Vec::new(),
            done: false,
        })
    }

    /// The ring, for whoever starts the server.
    pub fn ring(&self) -> &Ring {
        &self.ring
    }

    /// Does what there is to do now. `true`: it is over.
    pub fn poll(&mut self) -> bool {
        let at = now();
        let start = match self.start {
            Some(start) => start,
            None if self.ring.is_ready() => {
                self.start = Some(at);
                self.next.due = at;
                self.last = at;
                at
            }
            None => return false,
        };
        let counts = start + self.load.warm_up;
        let end = counts + self.load.duration;
        self.take(counts, end);
        if at.since(self.last) > STOPPED {
            self.leave_out(at, counts);
        }
        self.last = at;
        if at < end {
            self.send(at);
        } else if self.in_flight == 0 || at > end + PATIENCE {
            self.done = true;
        }
        self.done
    }

    fn take(&mut self, counts: Nanos, end: Nanos) {
        while let Some(answer) = self.ring.answered() {
            self.in_flight = self.in_flight.saturating_sub(1);
            if answer.due >= counts {
                self.count += 1;
                if self.load.rate_rps.is_some() {
                    self.kept.push(stops::Request { due: answer.due, done: answer.done });
                }
            }
            if answer.done >= counts && answer.done < end {
                self.answered += 1;
            }
        }
    }

    /// The client was stopped until now: what was due meanwhile is not sent.
    fn leave_out(&mut self, at: Nanos, counts: Nanos) {
        if at > counts {
            self.stopped += at.since(self.last.max(counts));
        }
        // What was due before is held up by the server.
        while self.load.rate_rps.is_some() && self.next.due > self.last && self.next.due < at {
            self.next = self.draw(at);
        }
    }

    /// Sends what is due. What finds no room stays due, and its latency counts from then.
    fn send(&mut self, at: Nanos) {
        let mut sent = false;
        while self.is_due(at) && self.ring.ask(&self.next) {
            sent = true;
            self.in_flight += 1;
            self.next = self.draw(at);
        }
        if sent && self.ring.must_ring() {
            ring_bell(&self.bell);
        }
    }

    fn is_due(&mut self, at: Nanos) -> bool {
        match self.load.rate_rps {
            Some(_) => self.next.due <= at,
            None => {
                self.next.due = at;
                self.in_flight < FULL
            }
        }
    }

    fn draw(&mut self, at: Nanos) -> Request {
        let gap = self.load.rate_rps.map(|rate| {
            // An exponential gap, by the inverse of its distribution.
            let uniform: f64 = self.random.random();
            Nanos((-(1.0 - uniform).ln() / rate * 1e9) as u64)
        });
        let is_long = self.random.random::<f64>() * 1e3 < self.load.long_per_mille;
        Request {
            id: self.next.id + 1,
            due: gap.map_or(at, |gap| self.next.due + gap),
            service: if is_long { self.load.long } else { self.load.service },
        }
    }

    /// The requests that it counted.
    pub fn kept(&self) -> Kept {
        let from = self.start.unwrap_or_default() + self.load.warm_up;
        Kept { requests: self.kept.clone(), from, to: from + self.load.duration }
    }

    /// What it saw.
    pub fn seen(&self) -> Seen {
        let ran = self.load.duration.since(self.stopped);
        Seen {
            answered_rps: self.answered as f64 / (ran.0.max(1) as f64 / 1e9),
            count: self.count,
            unanswered: self.in_flight,
            service_us: self.ring.shortest().map(|time| time.0 as f64 / 1e3),
            stopped_percent: 100.0 * self.stopped.0 as f64 / self.load.duration.0 as f64,
        }
    }
}

/// Where a client within a scheduler's loop leaves what it saw.
pub fn report(ring: &Path) -> PathBuf {
    ring.with_extension("seen")
}

/// A client for the loop of a scheduler: offers the load of a file, and leaves what it saw in another.
///
/// # Errors
/// When the file does not read.
pub fn in_loop(file: &Path) -> Result<Box<dyn FnMut() + Send>> {
    let text = std::fs::read(file).with_context(|| format!("read {}", file.display()))?;
    let load: Load =
        serde_json::from_slice(&text).with_context(|| format!("read {}", file.display()))?;
    let path = report(&load.ring);
    let mut client = Client::open(load)?;
    Ok(Box::new(move || {
        if !client.done && client.poll() {
            let draft = path.with_extension("draft");
            // Without it, whoever waits for it says so.
            let _ = serde_json::to_vec(&(client.seen(), client.kept()))
                .map_err(std::io::Error::from)
                .and_then(|seen| std::fs::write(&draft, seen))
                .and_then(|()| std::fs::rename(&draft, &path));
        }
    }))
}

#[cfg(test)]
mod tests {
    use quell_testkit::host_lock;

    use super::super::server::{Waits, serve};
    use super::*;

    fn load(directory: &Path, rate_rps: Option<f64>) -> Load {
        Load {
            ring: directory.join("ring"),
            rings_at: 0,
            rate_rps,
            service: Nanos::from_micros(1),
            long: Nanos::from_micros(20),
            long_per_mille: 100.0,
            warm_up: Nanos::from_millis(5),
            duration: Nanos::from_millis(100),
            seed: 7,
        }
    }

    fn offer(rate_rps: Option<f64>) -> (Seen, Kept) {
        // Tests with lanes take both cores for longer than this waits.
        let _lock = host_lock().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let load = load(directory.path(), rate_rps);
        make(&load).unwrap();
        let mut client = Client::open(load).unwrap();
        let ring = client.load.ring.clone();
        let serves = std::thread::spawn(move || serve(&ring, Waits::Epoll).unwrap());
        while !client.poll() {
            std::thread::yield_now();
        }
        client.ring().stop();
        serves.join().unwrap();
        (client.seen(), client.kept())
    }

    #[test]
    fn every_request_of_a_load_is_answered() {
        let (seen, kept) = offer(Some(5_000.0));
        assert_eq!(seen.unanswered, 0);
        assert!((1..1_000).contains(&seen.count), "{seen:?}");
        let requests = kept.requests.iter();
        assert_eq!(
            requests.filter(|seen| seen.done - seen.due > Nanos(500)).count(),
            seen.count as usize
        );
    }

    #[test]
    fn without_a_rate_there_is_always_a_next_request_in_flight() {
        let (seen, kept) = offer(None);
        assert!(seen.count >= FULL && seen.answered_rps > 0.0, "{seen:?}");
        assert!(kept.requests.is_empty(), "they come at no rate");
        assert_eq!(seen.unanswered, 0);
    }

    #[test]
    fn in_a_loop_it_leaves_what_it_saw() {
        let _lock = host_lock().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let load = load(directory.path(), Some(5_000.0));
        let file = directory.path().join("load.json");
        std::fs::write(&file, serde_json::to_vec(&load).unwrap()).unwrap();
        make(&load).unwrap();
        let mut turn = in_loop(&file).unwrap();
        let ring = load.ring.clone();
        let serves = std::thread::spawn(move || serve(&ring, Waits::Polling).unwrap());
        let left = report(&load.ring);
        while !left.exists() {
            turn();
            std::thread::yield_now();
        }
        Ring::open(&load.ring).unwrap().stop();
        serves.join().unwrap();
        let (seen, kept): (Seen, Kept) =
            serde_json::from_slice(&std::fs::read(left).unwrap()).unwrap();
        assert!(seen.count > 0 && seen.unanswered == 0);
        assert_eq!(kept.requests.len() as u64, seen.count);
    }
}
