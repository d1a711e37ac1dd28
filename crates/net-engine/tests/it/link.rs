//! A channel between two simulated endpoints: one direction of it.

use std::collections::VecDeque;

use quell_model::Nanos;
use rand::RngExt as _;
use rand_chacha::ChaCha8Rng;

/// How a link behaves.
#[derive(Clone, Copy, Debug)]
pub struct LinkSpec {
    /// Shortest time from end to end.
    pub delay: Nanos,
    /// What may be added to it.
    pub jitter: Nanos,
    /// Bytes that it takes before it is full.
    pub room: usize,
    /// It carries datagrams: of each thousand so many are lost, come twice, or are overtaken.
    pub lossy: Option<Loss>,
}

/// Of a thousand datagrams.
#[derive(Clone, Copy, Debug)]
pub struct Loss {
    pub lost: u32,
    pub twice: u32,
    pub late: u32,
}

/// Bytes on their way. A stream link delivers them in order, cut anywhere; a lossy one in whole datagrams.
#[derive(Debug)]
pub struct Link {
    spec: LinkSpec,
    on_way: VecDeque<(Nanos, Vec<u8>)>,
    bytes: usize,
    /// Nothing arrives before.
    stalled_until: Nanos,
    last: Nanos,
}

impl Link {
    pub fn new(spec: LinkSpec) -> Link {
        let (on_way, last) = (VecDeque::new(), Nanos::ZERO);
        Link { spec, on_way, bytes: 0, stalled_until: Nanos::ZERO, last }
    }

    pub fn room(&self) -> usize {
        self.spec.room.saturating_sub(self.bytes)
    }

    pub fn backlog(&self) -> usize {
        self.bytes
    }

    pub fn stall(&mut self, until: Nanos) {
        self.stalled_until = self.stalled_until.max(until);
    }

    pub fn send(&mut self, frame: &[u8], now: Nanos, rng: &mut ChaCha8Rng) {
        let jitter = rng.random_range(0..=self.spec.jitter.0);
        let at = Nanos(now.0 + self.spec.delay.0 + jitter);
        match self.spec.lossy {
            None => self.send_cut(frame, at, rng),
            Some(loss) => self.send_whole(frame, at, loss, rng),
        }
    }

    /// In pieces, each later than the one before.
    fn send_cut(&mut self, frame: &[u8], mut at: Nanos, rng: &mut ChaCha8Rng) {
        let mut rest = frame;
        while !rest.is_empty() {
            at = at.max(self.last);
            self.last = at;
            let cut = if rng.random_range(0..4) == 0 {
                rng.random_range(1..=rest.len())
            } else {
                rest.len()
            };
            self.push(at, &rest[..cut]);
            rest = &rest[cut..];
            at = Nanos(at.0 + rng.random_range(0..=self.spec.jitter.0));
        }
    }

    fn send_whole(&mut self, frame: &[u8], at: Nanos, loss: Loss, rng: &mut ChaCha8Rng) {
        if rng.random_range(0..1_000) < loss.lost {
            return;
        }
        let late = rng.random_range(0..1_000) < loss.late;
        let at = if late { Nanos(at.0 + 4 * self.spec.delay.0) } else { at };
        self.push(at, frame);
        if rng.random_range(0..1_000) < loss.twice {
            self.push(Nanos(at.0 + self.spec.delay.0), frame);
        }
    }

    fn push(&mut self, at: Nanos, bytes: &[u8]) {
        self.bytes += bytes.len();
        let index = self.on_way.partition_point(|(other, _)| *other <= at);
        self.on_way.insert(index, (at, bytes.to_vec()));
    }

    /// All that is on its way is lost.
    pub fn lose_all(&mut self) {
        self.on_way.clear();
        self.bytes = 0;
    }

    /// When something arrives next.
    pub fn next(&self) -> Option<Nanos> {
        self.on_way.front().map(|(at, _)| (*at).max(self.stalled_until))
    }

    /// What arrives until now.
    pub fn arrive(&mut self, now: Nanos) -> Option<Vec<u8>> {
        self.next().filter(|at| *at <= now)?;
        let (_, bytes) = self.on_way.pop_front()?;
        self.bytes -= bytes.len();
        Some(bytes)
    }
}
