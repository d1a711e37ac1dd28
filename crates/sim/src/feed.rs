//! What services tell of themselves: tail latency and rate of an interval, as a client reports them.

use quell_model::{Nanos, Reported, RequestsPerSec};

use crate::engine::Engine;

/// What a service told last.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Told {
    /// The 99th percentile.
    pub tail: Nanos,
    pub rate: RequestsPerSec,
    pub reported: Reported,
}

#[derive(Default)]
pub(crate) struct Feed {
    pub told: Vec<Option<Told>>,
    latencies: Vec<Vec<u64>>,
    arrived: Vec<u64>,
}

impl Feed {
    pub fn new(tasks: usize) -> Feed {
        Feed {
            told: vec![None; tasks],
            latencies: vec![Vec::new(); tasks],
            arrived: vec![0; tasks],
        }
    }

    pub fn answered(&mut self, task: usize, latency: Nanos) {
        self.latencies[task].push(latency.0);
    }
}

impl Engine<'_> {
    /// An interval ends. A service that answered nothing tells nothing new; what it told before grows old.
    pub(crate) fn report_latencies(&mut self) {
        let interval = self.scenario.feed;
        for task in 0..self.tasks.len() {
            let arrived = self.books.tasks[task].arrived;
            let came = arrived - std::mem::replace(&mut self.feed.arrived[task], arrived);
            let latencies = &mut self.feed.latencies[task];
            if latencies.is_empty() {
                continue;
            }
            let rank = (latencies.len() * 99).div_ceil(100) - 1;
            let (_, tail, _) = latencies.select_nth_unstable(rank);
            let per_second = u128::from(came) * 1_000_000_000 / u128::from(interval.0);
            self.feed.told[task] = Some(Told {
                tail: Nanos(*tail),
                rate: RequestsPerSec(per_second as u64),
                reported: Reported { at: self.now, until: self.now + interval + interval },
            });
            latencies.clear();
        }
    }
}
