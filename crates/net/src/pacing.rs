//! Channels of bulk data that send a little less than the slowest link of their path carries.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use quell_model::Nanos;
use quell_net_engine::Key;
use quell_net_engine::scheduler::Pacer;

use crate::core::Core;
use crate::transport::Path;

/// The interval of samples.
const SAMPLE_EVERY: Nanos = Nanos::from_millis(1);

/// A rate changes by more than one part in so many, or it stays: each change is a system call.
const CHANGES_BY: u64 = 64;

/// The rates of an endpoint's channels.
#[derive(Default)]
pub(crate) struct Pacers(BTreeMap<Key, Paced>);

#[derive(Default)]
struct Paced {
    pacer: Pacer,
    rate: Option<u64>,
    /// No sample is taken before.
    next: Nanos,
    /// Its transport has refused: it may have ended.
    is_given_up: bool,
}

/// What is new of a channel's path.
pub(crate) struct Seen {
    key: Key,
    rtt: Nanos,
    rate: Option<u64>,
}

impl Pacers {
    /// Takes samples of channels that have just sent, and changes their rates.
    pub fn look(&mut self, paths: &[(Key, Arc<dyn Path>)], now: Nanos) -> Vec<Seen> {
        let mut seen = Vec::new();
        for (key, path) in paths {
            let paced = self.0.entry(*key).or_default();
            if paced.is_given_up || now < paced.next {
                continue;
            }
            paced.next = Nanos(now.0 + SAMPLE_EVERY.0);
            match paced.sample(&**path, now) {
                Ok(Some((rtt, rate))) => seen.push(Seen { key: *key, rtt, rate }),
                Ok(None) => {}
                Err(error) => {
                    paced.is_given_up = true;
                    tracing::debug!("channel {key:?} is not paced: {error}");
                }
            }
        }
        seen
    }

    /// A channel is gone.
    pub fn forget(&mut self, key: Key) {
        self.0.remove(&key);
    }
}

impl Paced {
    /// The round-trip time, and the rate.
    fn sample(&mut self, path: &dyn Path, now: Nanos) -> io::Result<Option<(Nanos, Option<u64>)>> {
        let Some(sample) = path.sample()? else { return Ok(None) };
        let rate = self.pacer.sample(now, &sample);
        if differs(self.rate, rate) {
            path.pace(rate)?;
            self.rate = rate;
        }
        Ok(Some((sample.rtt, self.rate)))
    }
}

fn differs(old: Option<u64>, new: Option<u64>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => old.abs_diff(new) > old / CHANGES_BY,
        (old, new) => old != new,
    }
}

impl Core {
    /// The endpoint's thread has asked for paths.
    pub fn note_paths(&mut self, seen: &[Seen]) {
        for Seen { key, rtt, rate } in seen {
            if let Some(channel) = self.channels.get_mut(*key) {
                (channel.rtt, channel.pace) = (*rtt, *rate);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicU64, Ordering};

    use quell_net_engine::scheduler::PathSample;

    use super::*;

    /// A path with a queue of which the length is given, and the rates that it was given.
    struct Scripted {
        queue: Mutex<Nanos>,
        /// In the milliseconds so far.
        delivered: AtomicU64,
        rates: Mutex<Vec<Option<u64>>>,
    }

    const BASE: Nanos = Nanos::from_micros(100);

    impl Path for Scripted {
        fn sample(&self) -> io::Result<Option<PathSample>> {
            let queue = *self.queue.lock().expect("no panic");
            let (rtt, min_rtt) = (Nanos(BASE.0 + queue.0), BASE);
            let delivered_bytes = self.delivered.fetch_add(125_000, Ordering::Relaxed);
            Ok(Some(PathSample { rtt, min_rtt, delivered_bytes, is_backlogged: true }))
        }

        fn pace(&self, bytes_per_second: Option<u64>) -> io::Result<()> {
            self.rates.lock().expect("no panic").push(bytes_per_second);
            Ok(())
        }
    }

    fn key() -> Key {
        quell_net_engine::Table::default().insert(())
    }

    #[test]
    fn queue_slows_a_channel_down_until_it_is_gone() {
        let path = Arc::new(Scripted {
            queue: Mutex::new(Nanos::from_millis(8)),
            delivered: AtomicU64::new(0),
            rates: Mutex::default(),
        });
        let paths = [(key(), Arc::clone(&path) as Arc<dyn Path>)];
        let mut pacers = Pacers::default();
        let mut look = |from: u64, to: u64| {
            let at = (from..to).map(|tenth| Nanos::from_micros(100 * tenth));
            at.map(|now| pacers.look(&paths, now).len()).sum::<usize>()
        };
        assert_eq!(look(1, 100), 10, "a sample a millisecond, however often it is asked");
        *path.queue.lock().expect("no panic") = Nanos::ZERO;
        look(100, 200);
        let rates = path.rates.lock().expect("no panic").clone();
        assert_eq!(rates, [Some(62_500_000), Some(121_093_750)], "half, then nearly all");
    }
}
