//! Exact pieces of a picture: every change between two times, packed.
//!
//! A tile is self-contained: it opens with the state of each core. Numbers are LEB128, times are differences. Its
//! layout, as `page/decode.js` reads it:
//!
//! ```text
//! from, to
//! for each core: first size, load, running thread and marks; count, count × (Δt, which of the four, their values)
//! waits:      count × (thread, core, end - end before, length)
//! gaps:       count × (core, start - from, length)
//! moves:      count × (Δt, thread, from, to, cause)
//! bad wakes:  count × (Δt, thread, core, idle core)
//! considered: count × (Δt, by, search | observed << 3, ranges, ranges × (gap, length))
//! passes:     count × (Δt, core, level, entry, outcome, moved, skipped: running, pinned, warm, heavy,
//!             groups × (ranges, ranges × (gap, length), sum, mean, minimum, queued, idle, kind))
//! ```

use quell_model::{CoreSet, GroupKind, MoveCause, Pass, PassEntry, PassOutcome, Search};

use crate::replay::{ThreadIndex, Wait};

/// Changes after which a tile is closed: a browser unpacks that many within a frame.
pub(crate) const EVENTS: usize = 1 << 15;

/// Series of a core.
#[derive(Clone, Copy)]
pub(crate) enum Series {
    Size,
    Load,
    Running,
    Marks,
}

const SERIES: usize = 4;

/// A core in a tile.
#[derive(Clone, Default)]
struct Core {
    /// Values at the start of the tile.
    first: [u64; SERIES],
    now: [u64; SERIES],
    changes: Vec<Change>,
}

/// Series that changed at one instant: those whose bit is in `which`.
#[derive(Clone, Copy)]
struct Change {
    at: u64,
    which: u8,
    values: [u64; SERIES],
}

/// A tile being filled.
pub(crate) struct Tile {
    from: u64,
    events: usize,
    cores: Vec<Core>,
    waits: Vec<Wait>,
    gaps: Vec<(usize, u64, u64)>,
    moves: Vec<(u64, ThreadIndex, usize, usize, MoveCause)>,
    bad: Vec<(u64, ThreadIndex, usize, usize)>,
    considered: Vec<(u64, usize, u8, CoreSet)>,
    passes: Vec<(u64, usize, Box<Pass>)>,
}

impl Tile {
    pub fn new(cores: usize) -> Tile {
        Tile {
            from: 0,
            events: 0,
            cores: vec![Core::default(); cores],
            waits: Vec::new(),
            gaps: Vec::new(),
            moves: Vec::new(),
            bad: Vec::new(),
            considered: Vec::new(),
            passes: Vec::new(),
        }
    }

    /// Changes so far.
    pub fn events(&self) -> usize {
        self.events
    }

    pub fn from(&self) -> u64 {
        self.from
    }

    pub fn step(&mut self, series: Series, core: usize, at: u64, value: u64) {
        let (core, which) = (&mut self.cores[core], 1 << series as u8);
        core.now[series as usize] = value;
        match core.changes.last_mut() {
            // Of several values at one instant the last one stays. A missed switch may have been before the last change.
            Some(last) if last.at >= at => {
                last.which |= which;
                last.values = core.now;
            }
            _ => {
                core.changes.push(Change { at, which, values: core.now });
                self.events += 1;
            }
        }
    }

    /// A piece of waiting; what lies before the tile is in the tiles before it.
    pub fn wait(&mut self, wait: &Wait) {
        if wait.to > wait.from.max(self.from) {
            self.waits.push(Wait { from: wait.from.max(self.from), ..*wait });
            self.events += 1;
        }
    }

    pub fn gap(&mut self, core: usize, from: u64, to: u64) {
        if to > from.max(self.from) {
            self.gaps.push((core, from.max(self.from), to));
            self.events += 1;
        }
    }

    pub fn moved(
        &mut self,
        at: u64,
        thread: ThreadIndex,
        from: usize,
        to: usize,
        cause: MoveCause,
    ) {
        self.moves.push((at, thread, from, to, cause));
        self.events += 1;
    }

    pub fn bad_wakeup(&mut self, at: u64, thread: ThreadIndex, onto: usize, idle: usize) {
        self.bad.push((at, thread, onto, idle));
        self.events += 1;
    }

    pub fn considered(
        &mut self,
        at: u64,
        by: usize,
        search: Search,
        observed: bool,
        cores: CoreSet,
    ) {
        let kind = search as u8 | u8::from(observed) << 3;
        self.considered.push((at, by, kind, cores));
        self.events += 1;
    }

    /// A pass on behalf of the core at this position. Each group counts as a change: it is as long as one.
    pub fn passed(&mut self, at: u64, core: usize, pass: &Pass) {
        self.passes.push((at, core, Box::new(pass.clone())));
        self.events += 1 + pass.groups.len();
    }

    /// The tile up to `to`, packed; an empty one that begins there takes its place.
    pub fn close(&mut self, to: u64) -> Vec<u8> {
        let mut out = Pack(Vec::with_capacity(self.events * 6));
        let from = self.from;
        out.numbers(&[from, to]);
        for core in &mut self.cores {
            out.numbers(&core.first);
            out.number(core.changes.len() as u64);
            let mut last = from;
            for Change { at, which, values } in core.changes.drain(..) {
                out.numbers(&[at - last, u64::from(which)]);
                let changed = (0..SERIES).filter(|series| which >> series & 1 == 1);
                changed.for_each(|series| out.number(values[series]));
                last = at;
            }
            core.first = core.now;
        }
        out.number(self.waits.len() as u64);
        let mut last = from;
        // They come at their ends, but for those that a missed switch ended earlier.
        self.waits.sort_by_key(|wait| wait.to);
        for wait in self.waits.drain(..) {
            let since = wait.to - std::mem::replace(&mut last, wait.to);
            out.numbers(&[u64::from(wait.thread), wait.core as u64, since, wait.to - wait.from]);
        }
        out.number(self.gaps.len() as u64);
        for (core, begins, ends) in self.gaps.drain(..) {
            out.numbers(&[core as u64, begins - from, ends - begins]);
        }
        self.pack_instants(&mut out);
        (self.from, self.events) = (to, 0);
        out.0
    }

    fn pack_instants(&mut self, out: &mut Pack) {
        let mut last = self.from;
        let mut since = |at: u64| at - std::mem::replace(&mut last, at);
        out.number(self.moves.len() as u64);
        for (at, thread, from, to, cause) in self.moves.drain(..) {
            let (thread, cause) = (u64::from(thread), cause as u64);
            out.numbers(&[since(at), thread, from as u64, to as u64, cause]);
        }
        let mut last = self.from;
        let mut since = |at: u64| at - std::mem::replace(&mut last, at);
        out.number(self.bad.len() as u64);
        for (at, thread, onto, idle) in self.bad.drain(..) {
            out.numbers(&[since(at), u64::from(thread), onto as u64, idle as u64]);
        }
        let mut last = self.from;
        let mut since = |at: u64| at - std::mem::replace(&mut last, at);
        out.number(self.considered.len() as u64);
        for (at, by, kind, cores) in self.considered.drain(..) {
            out.numbers(&[since(at), by as u64, u64::from(kind)]);
            out.cores(&cores);
        }
        self.pack_passes(out);
    }

    fn pack_passes(&mut self, out: &mut Pack) {
        let mut last = self.from;
        out.number(self.passes.len() as u64);
        for (at, core, pass) in self.passes.drain(..) {
            let Pass { level, entry, groups, outcome, moved, skipped, .. } = *pass;
            let since = at - std::mem::replace(&mut last, at);
            let entry = place(&PassEntry::ALL, &entry);
            let outcome = place(&PassOutcome::ALL, &outcome);
            out.numbers(&[since, core as u64, level.into(), entry, outcome, moved.into()]);
            let counts = [skipped.running, skipped.pinned, skipped.warm, skipped.heavy];
            out.numbers(&counts.map(u64::from));
            out.number(groups.len() as u64);
            for group in &groups {
                out.cores(&group.cores);
                out.numbers(&[group.sum, group.mean, group.minimum, group.queued.into()]);
                out.numbers(&[group.idle.into(), place(&GroupKind::ALL, &group.kind)]);
            }
        }
    }
}

/// The place of an item in a table that has every value.
fn place<T: PartialEq>(table: &[T], of: &T) -> u64 {
    table.iter().position(|known| known == of).unwrap_or_default() as u64
}

/// A set as gaps and lengths of its ranges of core numbers.
fn ranges(cores: &CoreSet) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    let mut next = 0;
    for core in cores.iter().map(|core| u64::from(core.0)) {
        match ranges.last_mut() {
            Some(last) if core == next => last.1 += 1,
            _ => ranges.push((core - next, 1)),
        }
        next = core + 1;
    }
    ranges
}

/// Bytes being written.
pub(crate) struct Pack(pub Vec<u8>);

impl Pack {
    /// As LEB128: seven bits a byte, the lowest first.
    pub fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    /// A set: how many ranges, and these.
    fn cores(&mut self, cores: &CoreSet) {
        let ranges = ranges(cores);
        self.number(ranges.len() as u64);
        ranges.iter().for_each(|range| self.numbers(&[range.0, range.1]));
    }

    fn numbers(&mut self, numbers: &[u64]) {
        numbers.iter().for_each(|number| self.number(*number));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads numbers back.
    fn unpack(bytes: &[u8]) -> Vec<u64> {
        let mut numbers = vec![];
        let (mut number, mut shift) = (0, 0);
        for byte in bytes {
            number |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                numbers.push(number);
                (number, shift) = (0, 0);
            }
        }
        numbers
    }

    #[test]
    fn numbers_survive_packing() {
        let numbers = [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX];
        let mut pack = Pack(vec![]);
        pack.numbers(&numbers);
        assert_eq!(unpack(&pack.0), numbers);
    }

    #[test]
    fn a_tile_opens_with_the_state_that_the_one_before_left() {
        let mut tile = Tile::new(1);
        tile.step(Series::Size, 0, 5, 2);
        tile.step(Series::Size, 0, 5, 3);
        tile.step(Series::Marks, 0, 5, 1);
        tile.step(Series::Load, 0, 9, 77);
        let steps = [0, 0, 0, 0, 2, 5, 0b1001, 3, 1, 4, 0b10, 77];
        assert_eq!(unpack(&tile.close(10)), [&[0, 10][..], &steps, &[0; 6]].concat());
        tile.wait(&Wait { thread: 7, core: 0, from: 4, to: 16 });
        let (steps, waits) = ([3, 77, 0, 1, 0], [1, 7, 0, 6, 6]);
        assert_eq!(unpack(&tile.close(20)), [&[10, 20][..], &steps, &waits, &[0; 5]].concat());
    }

    #[test]
    fn sets_are_packed_as_ranges() {
        assert_eq!(ranges(&"0-3,8,10-11".parse().unwrap()), [(0, 4), (4, 1), (1, 2)]);
    }
}
