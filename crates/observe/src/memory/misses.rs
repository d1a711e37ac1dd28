//! Each core's part: misses in the last-level cache, each of which fetches a line.

use std::io;

use quell_model::{Bytes, CoreId, CoreSet};

use crate::perf::{CACHE_MISSES, Counted, Counter, HARDWARE};

/// A cache line.
const LINE_BYTES: u64 = 64;

/// A counter on each core.
#[derive(Debug)]
pub struct Misses {
    counters: Vec<(CoreId, Option<Counter>)>,
}

impl Misses {
    /// Opens a counter on each of these cores.
    ///
    /// # Errors
    /// When none of them has one: the reason of the first.
    pub fn open(cores: &CoreSet) -> io::Result<Misses> {
        let event = Counted { unit: HARDWARE, config: CACHE_MISSES };
        let mut refused = None;
        let open = |core| match Counter::on_core(event, core) {
            Ok(counter) => (core, Some(counter)),
            Err(err) => {
                refused.get_or_insert(err);
                (core, None)
            }
        };
        let counters: Vec<_> = cores.iter().map(open).collect();
        match counters.iter().any(|(_, counter)| counter.is_some()) {
            true => Ok(Misses { counters }),
            false => Err(refused.unwrap_or_else(|| io::Error::other("no core is managed"))),
        }
    }

    /// What each core fetched so far, by its number; a core whose counter does not read is left as it is.
    pub fn read(&mut self, by_core: &mut [Option<Bytes>]) {
        for (core, counter) in &self.counters {
            let count = counter.as_ref().and_then(|counter| counter.read().ok());
            if let (Some(count), Some(bytes)) = (count, by_core.get_mut(core.index())) {
                *bytes = Some(Bytes(count.saturating_mul(LINE_BYTES)));
            }
        }
    }
}
