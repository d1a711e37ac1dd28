//! Aggregates over equal pieces of time: what a pixel shows while too many events lie under it.
//!
//! How long a recording is shows only at its end, so a grid starts with narrow buckets and folds pairs of them
//! together each time that it is full. It ends with between `limit` and twice as many, whatever the length.

/// What a core was like in one bucket. Sums are of a value times the nanoseconds for which it held.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cell {
    /// The largest run queue.
    pub size_max: u16,
    /// The largest load.
    pub load_max: u32,
    /// Size × time.
    pub size_sum: f32,
    /// Load × time.
    pub load_sum: f32,
    /// Time idle while overloaded.
    pub wasted: f32,
    /// Time that nothing is known of.
    pub lost: f32,
}

impl Cell {
    pub(crate) fn merge(self, other: Cell) -> Cell {
        Cell {
            size_max: self.size_max.max(other.size_max),
            load_max: self.load_max.max(other.load_max),
            size_sum: self.size_sum + other.size_sum,
            load_sum: self.load_sum + other.load_sum,
            wasted: self.wasted + other.wasted,
            lost: self.lost + other.lost,
        }
    }
}

/// What happened on the whole host in one bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// Moves of threads.
    pub moves: u32,
    /// Wake-ups onto a busy core while an allowed one idled.
    pub bad_wakeups: u32,
    /// The longest wake-up latency that ended here, in nanoseconds.
    pub latency_max: u64,
}

impl Counts {
    fn merge(self, other: Counts) -> Counts {
        Counts {
            moves: self.moves + other.moves,
            bad_wakeups: self.bad_wakeups + other.bad_wakeups,
            latency_max: self.latency_max.max(other.latency_max),
        }
    }
}

/// Cores × buckets, and the host's counts.
#[derive(Clone, Debug)]
pub struct Grid {
    width: u64,
    limit: usize,
    cores: Vec<Vec<Cell>>,
    host: Vec<Counts>,
}

/// The first width of buckets, in nanoseconds.
const NARROWEST: u64 = 256;

impl Grid {
    /// An empty grid that holds at least `limit` buckets once the recording is longer than that many of the
    /// narrowest.
    pub fn new(cores: usize, limit: usize) -> Grid {
        Grid { width: NARROWEST, limit, cores: vec![Vec::new(); cores], host: Vec::new() }
    }

    /// The width of a bucket, in nanoseconds.
    pub fn width(&self) -> u64 {
        self.width
    }

    /// Buckets in use.
    pub fn len(&self) -> usize {
        self.cores.iter().map(Vec::len).max().unwrap_or(0).max(self.host.len())
    }

    /// Whether nothing was added yet.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The buckets of a core; those past the end are as [`Cell::default`].
    pub fn core(&self, core: usize) -> &[Cell] {
        &self.cores[core]
    }

    /// The host's counts; those past the end are as [`Counts::default`].
    pub fn host(&self) -> &[Counts] {
        &self.host
    }

    /// Lets `add` take each bucket's share of a span of time, in nanoseconds.
    pub fn span(&mut self, core: usize, from: u64, to: u64, add: impl Fn(&mut Cell, f32)) {
        if to <= from {
            return;
        }
        self.reach(to - 1);
        let (first, last) = ((from / self.width) as usize, ((to - 1) / self.width) as usize);
        let cells = &mut self.cores[core];
        if cells.len() <= last {
            cells.resize(last + 1, Cell::default());
        }
        for (bucket, cell) in cells.iter_mut().enumerate().take(last + 1).skip(first) {
            let begins = bucket as u64 * self.width;
            let share = to.min(begins.saturating_add(self.width)) - from.max(begins);
            add(cell, share as f32);
        }
    }

    /// The host's counts at a time.
    pub fn at(&mut self, at: u64) -> &mut Counts {
        self.reach(at);
        let bucket = (at / self.width) as usize;
        if self.host.len() <= bucket {
            self.host.resize(bucket + 1, Counts::default());
        }
        &mut self.host[bucket]
    }

    /// The same with buckets `factor` times as wide.
    #[must_use]
    pub fn coarser(&self, factor: usize) -> Grid {
        let mut coarse = Grid { width: self.width * factor as u64, ..self.clone() };
        coarse.fold(factor);
        coarse
    }

    fn reach(&mut self, at: u64) {
        while at / self.width >= 2 * self.limit as u64 {
            self.width *= 2;
            self.fold(2);
        }
    }

    fn fold(&mut self, factor: usize) {
        for cells in &mut self.cores {
            fold(cells, factor, Cell::merge);
        }
        fold(&mut self.host, factor, Counts::merge);
    }
}

fn fold<T: Copy + Default>(cells: &mut Vec<T>, factor: usize, merge: impl Fn(T, T) -> T) {
    let folded = cells.len().div_ceil(factor);
    for at in 0..folded {
        let group = &cells[at * factor..cells.len().min((at + 1) * factor)];
        cells[at] = group.iter().fold(T::default(), |sum, one| merge(sum, *one));
    }
    cells.truncate(folded);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn folding_loses_no_time_and_no_maximum(
            spans in proptest::collection::vec((1u64..100_000, 0u32..9), 1..200),
        ) {
            let mut grid = Grid::new(1, 8);
            let (mut at, mut sum, mut max) = (0, 0.0, 0);
            for (length, size) in spans {
                grid.span(0, at, at + length, |cell, ns| {
                    cell.size_max = cell.size_max.max(size as u16);
                    cell.size_sum += ns * size as f32;
                });
                grid.at(at).moves += 1;
                at += length;
                sum += length as f64 * f64::from(size);
                max = max.max(size);
            }
            for grid in [grid.coarser(4), grid] {
                prop_assert!(grid.len() <= 16);
                prop_assert!(grid.len() as u64 * grid.width() >= at);
                let cells = grid.core(0);
                let total: f64 = cells.iter().map(|cell| f64::from(cell.size_sum)).sum();
                prop_assert!((total - sum).abs() <= sum * 1e-4, "{total} is not {sum}");
                prop_assert_eq!(cells.iter().map(|cell| u32::from(cell.size_max)).max(), Some(max));
            }
        }
    }
}
