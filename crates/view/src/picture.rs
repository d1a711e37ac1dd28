//! A recording as the pieces from which a page, a server and an image are made.

use std::io;
use std::sync::Arc;

use quell_model::{CoreId, CoreSet, Event, Meta, MoveCause, Nanos, Pass, Runner, Search};
use serde::Serialize;

use crate::findings::{Findings, IdleEpisode};
use crate::grid::Grid;
use crate::overlay::{Instants, Marks};
use crate::people::{People, Person, Rows};
use crate::replay::{
    ALLOWED, LOST, NOBODY, Note, OFFLINE, Replay, ThreadIndex, WASTED, Wait, Watch,
};
use crate::store::Store;
use crate::tile::{self, Pack, Series, Tile};

/// Cells of the finest grid: 24 bytes each while a recording is read.
const CELLS: usize = 1 << 20;
/// Buckets of the coarsest grid, at most: more than a screen has pixels.
const COARSE: usize = 4096;
/// Buckets in one blob of a grid.
const TILE_BUCKETS: usize = 2048;
/// Words of a recording that are kept.
const NOTES: usize = 2_000;

/// The part of a recording to show, in nanoseconds since its first event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// From here.
    pub from: Nanos,
    /// Up to here.
    pub to: Nanos,
}

impl Range {
    /// The whole recording.
    pub const ALL: Range = Range { from: Nanos::ZERO, to: Nanos::MAX };

    /// A time as a picture of this part counts it; what lies outside is at its edge.
    pub(crate) fn shown(&self, at: u64) -> u64 {
        at.clamp(self.from.0, self.to.0) - self.from.0
    }
}

/// A recording that was read.
pub struct Picture {
    /// What the page knows at once.
    pub index: Index,
    pub(crate) grid: Grid,
    /// What the marks asked for stand for.
    pub(crate) marks: Marks,
    pub(crate) instants: Instants,
    pub(crate) store: Store,
    /// The number in the store of each blob of the page, in the page's order.
    pub(crate) blobs: Vec<usize>,
}

/// The contents of a picture.
#[derive(Clone, Debug, Serialize)]
pub struct Index {
    /// Where the recording comes from, what of, and what it cannot tell.
    pub meta: Meta,
    /// CLOCK_MONOTONIC at the left edge, as text: a browser's numbers end at 2^53.
    pub begins_ns: String,
    /// The length of the picture.
    pub span_ns: u64,
    /// Events read.
    pub events: u64,
    /// Wasted cores × time.
    pub wasted_ns: u64,
    /// The same where a policy allows it.
    pub allowed_ns: u64,
    /// Moves of threads.
    pub moves: u64,
    /// Wake-ups onto a busy core while an allowed one idled.
    pub bad_wakeups: u64,
    /// Episodes of idling while overloaded; there may be more than are listed.
    pub episodes: usize,
    /// Those that wasted most, in order of time.
    pub findings: Vec<IdleEpisode>,
    /// What the recording says in words.
    pub notes: Vec<Words>,
    /// Words that did not fit.
    pub notes_left_out: u64,
    /// Grids, the coarsest first.
    pub levels: Vec<Level>,
    /// The blob that lists the threads.
    pub people: usize,
    /// The rows of those that waited longest.
    pub rows: RowsIndex,
    /// Exact tiles.
    pub tiles: Vec<TileIndex>,
}

/// A grid's blobs.
#[derive(Clone, Debug, Serialize)]
pub struct Level {
    /// The width of a bucket.
    pub width_ns: u64,
    /// Buckets in all.
    pub buckets: usize,
    /// Buckets in a blob.
    pub per_blob: usize,
    /// The first blob; the others follow.
    pub blob: usize,
}

/// The rows' blob.
#[derive(Clone, Debug, Serialize)]
pub struct RowsIndex {
    /// The width of a bucket.
    pub width_ns: u64,
    /// The blob.
    pub blob: usize,
}

/// An exact tile.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TileIndex {
    /// Its begin; it ends where the next one begins.
    pub from_ns: u64,
    /// Changes in it.
    pub events: usize,
    /// Its blob.
    pub blob: usize,
}

/// Something that the recording says.
#[derive(Clone, Debug, Serialize)]
pub struct Words {
    /// When, or since when.
    pub at_ns: u64,
    /// Until when.
    pub to_ns: u64,
    /// On which core.
    pub core: CoreId,
    /// `violation` or `decision`.
    pub kind: &'static str,
    /// What.
    pub text: String,
}

/// Reads events into a [`Picture`].
pub struct Builder {
    meta: Meta,
    replay: Replay,
    collector: Collector,
    events: u64,
}

impl Builder {
    /// Before the first event.
    ///
    /// # Errors
    /// When no temporary file can be made.
    pub fn new(meta: Meta, range: Range) -> io::Result<Builder> {
        let replay = Replay::new(&meta);
        Ok(Builder { collector: Collector::new(&meta, range)?, replay, meta, events: 0 })
    }

    /// With these marks, for an image.
    #[must_use]
    pub fn with_marks(mut self, marks: Marks) -> Builder {
        self.collector.marks = marks;
        self
    }

    /// Takes the next event, in order of time. Whether more are wanted: `false` past the end of the range.
    ///
    /// # Errors
    /// When the temporary file cannot be written.
    pub fn push(&mut self, event: &Event) -> io::Result<bool> {
        self.replay.push(event, &mut self.collector);
        self.events += 1;
        let now = self.replay.now();
        if self.collector.tile_is_full(now) {
            self.replay.cut(&mut self.collector);
            self.collector.close_tile(self.collector.shown(now))?;
        }
        Ok(now <= self.collector.range.to.0)
    }

    /// The picture of all events.
    ///
    /// # Errors
    /// When the temporary file cannot be written.
    pub fn finish(mut self) -> io::Result<Picture> {
        self.replay.finish(&mut self.collector);
        let origin = self.replay.origin().unwrap_or_default();
        let begins = origin + self.collector.range.from;
        self.collector.finish(self.meta, begins, self.replay.now(), self.events)
    }
}

/// The values of a core that hold now, and since when.
#[derive(Clone, Copy, Default)]
struct Now {
    size: (u64, u32),
    load: (u64, u64),
    marks: (u64, u8),
}

struct Collector {
    ids: Vec<CoreId>,
    range: Range,
    now: Vec<Now>,
    grid: Grid,
    tile: Tile,
    tiles: Vec<TileIndex>,
    store: Store,
    people: People,
    findings: Findings,
    allowed_ns: u64,
    notes: Vec<Words>,
    notes_left_out: u64,
    moves: u64,
    bad_wakeups: u64,
    marks: Marks,
    instants: Instants,
}

impl Collector {
    fn new(meta: &Meta, range: Range) -> io::Result<Collector> {
        let cores = meta.topology.len();
        Ok(Collector {
            ids: meta.topology.cores().iter().map(|core| core.id).collect(),
            range,
            now: vec![Now::default(); cores],
            grid: Grid::new(cores, (CELLS / cores).clamp(COARSE / 2, 4 * COARSE)),
            tile: Tile::new(cores),
            tiles: Vec::new(),
            store: Store::new()?,
            people: People::new(),
            findings: Findings::default(),
            allowed_ns: 0,
            notes: Vec::new(),
            notes_left_out: 0,
            moves: 0,
            bad_wakeups: 0,
            marks: Marks::default(),
            instants: Instants::default(),
        })
    }

    fn shown(&self, at: u64) -> u64 {
        self.range.shown(at)
    }

    /// The same for what has no length and is left out outside of the range.
    fn inside(&self, at: u64) -> Option<u64> {
        (self.range.from.0..=self.range.to.0).contains(&at).then(|| at - self.range.from.0)
    }

    fn tile_is_full(&self, now: u64) -> bool {
        self.tile.events() >= tile::EVENTS && self.shown(now) > self.tile.from()
    }

    fn close_tile(&mut self, to: u64) -> io::Result<()> {
        let (from_ns, events) = (self.tile.from(), self.tile.events());
        let blob = self.store.add(&self.tile.close(to))?;
        self.tiles.push(TileIndex { from_ns, events, blob });
        Ok(())
    }

    /// Adds to the grid what held up to now.
    fn flush_size(&mut self, core: usize, at: u64) {
        let (since, size) = self.now[core].size;
        self.grid.span(core, since, at, |cell, ns| {
            cell.size_max = cell.size_max.max(size.min(u32::from(u16::MAX)) as u16);
            cell.size_sum += size as f32 * ns;
        });
        self.now[core].size.0 = at;
    }

    fn flush_load(&mut self, core: usize, at: u64) {
        let (since, load) = self.now[core].load;
        self.grid.span(core, since, at, |cell, ns| {
            cell.load_max = cell.load_max.max(load.min(u64::from(u32::MAX)) as u32);
            cell.load_sum += load as f32 * ns;
        });
        self.now[core].load.0 = at;
    }

    fn flush_marks(&mut self, core: usize, at: u64) {
        let (since, marks) = self.now[core].marks;
        if marks != 0 {
            self.allowed_ns += if marks & ALLOWED != 0 { at - since } else { 0 };
            self.grid.span(core, since, at, |cell, ns| {
                cell.wasted += if marks & WASTED != 0 { ns } else { 0.0 };
                cell.lost += if marks & (LOST | OFFLINE) != 0 { ns } else { 0.0 };
            });
        }
        self.now[core].marks.0 = at;
    }

    fn finish(mut self, meta: Meta, begins: Nanos, end: u64, events: u64) -> io::Result<Picture> {
        let span = self.shown(end).max(1);
        for core in 0..self.ids.len() {
            self.flush_size(core, span);
            self.flush_load(core, span);
            self.flush_marks(core, span);
        }
        self.close_tile(span)?;
        let (findings, episodes, wasted_ns) = self.findings.finish(span);
        let (people, rows) = self.people.finish();
        let mut store = self.store;
        let mut blobs = Vec::new();
        // The index is the first blob and knows the numbers of the others.
        let mut next = 1;
        let mut levels = Vec::new();
        let grids = grids(&self.grid, events);
        for (at, grid) in grids.iter().enumerate() {
            levels.push(Level {
                width_ns: grid.width(),
                buckets: grid.len(),
                per_blob: TILE_BUCKETS,
                blob: next,
            });
            for from in (0..grid.len()).step_by(TILE_BUCKETS) {
                blobs.push(store.add(&pack_grid(grid, self.ids.len(), from, span))?);
                next += 1;
            }
            if at == 0 {
                blobs.push(store.add(&pack_people(&people)?)?);
                blobs.push(store.add(&pack_rows(&rows))?);
                next += 2;
            }
        }
        let people = levels[0].blob + levels[0].buckets.div_ceil(TILE_BUCKETS);
        for tile in &mut self.tiles {
            blobs.push(tile.blob);
            tile.blob = next;
            next += 1;
        }
        let index = Index {
            meta,
            begins_ns: begins.0.to_string(),
            span_ns: span,
            events,
            wasted_ns,
            allowed_ns: self.allowed_ns,
            moves: self.moves,
            bad_wakeups: self.bad_wakeups,
            episodes,
            findings,
            notes: self.notes,
            notes_left_out: self.notes_left_out,
            levels,
            people,
            rows: RowsIndex { width_ns: rows.width, blob: people + 1 },
            tiles: self.tiles,
        };
        blobs.insert(0, store.add(&serde_json::to_vec(&index)?)?);
        let (marks, instants) = (self.marks, self.instants);
        Ok(Picture { index, grid: self.grid, marks, instants, store, blobs })
    }
}

impl Watch for Collector {
    fn size(&mut self, core: usize, at: u64, size: u32) {
        let at = self.shown(at);
        self.flush_size(core, at);
        self.now[core].size.1 = size;
        self.tile.step(Series::Size, core, at, u64::from(size));
    }

    fn load(&mut self, core: usize, at: u64, weight: u64) {
        let at = self.shown(at);
        self.flush_load(core, at);
        self.now[core].load.1 = weight;
        self.tile.step(Series::Load, core, at, weight);
    }

    fn running(&mut self, core: usize, at: u64, thread: ThreadIndex) {
        self.tile.step(Series::Running, core, self.shown(at), u64::from(thread));
    }

    fn marks(&mut self, core: usize, at: u64, marks: u8) {
        let at = self.shown(at);
        self.flush_marks(core, at);
        self.now[core].marks.1 = marks;
        self.findings.core(self.ids[core], at, marks & WASTED != 0);
        self.tile.step(Series::Marks, core, at, u64::from(marks));
    }

    fn gap(&mut self, core: usize, from: u64, to: u64) {
        let (from, to) = (self.shown(from), self.shown(to));
        self.grid.span(core, from, to, |cell, ns| cell.lost += ns);
        self.tile.gap(core, from, to);
    }

    fn ran(&mut self, _core: usize, thread: ThreadIndex, from: u64, to: u64) {
        self.people.ran(thread, self.shown(from), self.shown(to));
    }

    fn waited(&mut self, wait: &Wait) {
        let wait = Wait { from: self.shown(wait.from), to: self.shown(wait.to), ..*wait };
        self.people.waited(wait.thread, wait.from, wait.to);
        self.tile.wait(&wait);
    }

    fn latency(&mut self, thread: ThreadIndex, at: u64, ns: u64) {
        if let Some(at) = self.inside(at) {
            self.people.latency(thread, ns);
            let counts = self.grid.at(at);
            counts.latency_max = counts.latency_max.max(ns);
        }
    }

    fn delayed(&mut self, thread: ThreadIndex, by: ThreadIndex, from: u64, to: u64) {
        self.people.delayed(thread, by, self.shown(to) - self.shown(from));
    }

    fn moved(&mut self, at: u64, thread: ThreadIndex, from: usize, to: usize, cause: MoveCause) {
        if let Some(at) = self.inside(at) {
            self.moves += 1;
            self.grid.at(at).moves += 1;
            self.tile.moved(at, thread, from, to, cause);
        }
    }

    fn bad_wakeup(&mut self, at: u64, thread: ThreadIndex, onto: usize, idle: usize) {
        if let Some(at) = self.inside(at) {
            self.bad_wakeups += 1;
            self.grid.at(at).bad_wakeups += 1;
            self.tile.bad_wakeup(at, thread, onto, idle);
            if self.marks.bad_wakeups {
                self.instants.bad_wakeup(at, onto);
            }
        }
    }

    fn considered(&mut self, at: u64, by: usize, search: Search, observed: bool, cores: &CoreSet) {
        if let Some(at) = self.inside(at) {
            self.tile.considered(at, by, search, observed, *cores);
            if self.marks.considered_by == Some(self.ids[by]) {
                self.instants.considered(at, *cores);
            }
        }
    }

    fn passed(&mut self, at: u64, core: usize, pass: &Pass) {
        if let Some(at) = self.inside(at) {
            self.tile.passed(at, core, pass);
        }
    }

    fn note(&mut self, (at, to): (u64, u64), core: usize, kind: Note, text: &Arc<str>) {
        if to < self.range.from.0 || at > self.range.to.0 {
            return;
        }
        let (at_ns, to_ns) = (self.shown(at), self.shown(to));
        if self.notes.len() >= NOTES {
            self.notes_left_out += 1;
            return;
        }
        let kind = match kind {
            Note::Violation => "violation",
            Note::Decision => "decision",
        };
        let (core, text) = (self.ids[core], text.to_string());
        self.notes.push(Words { at_ns, to_ns, core, kind, text });
    }

    fn named(&mut self, thread: ThreadIndex, runner: &Runner) {
        debug_assert_ne!(thread, NOBODY);
        self.people.named(thread, runner);
    }
}

/// The grids of a page, the coarsest first. One that is not much smaller than the exact tiles is left out.
fn grids(finest: &Grid, events: u64) -> Vec<Grid> {
    let mut grids = vec![finest.clone()];
    while grids[0].len() > COARSE {
        grids.insert(0, grids[0].coarser(4));
    }
    while grids.len() > 1 && (grids[grids.len() - 1].len() as u64) * 8 > events {
        grids.pop();
    }
    grids
}

/// Planes of one byte a bucket: of each core in turn the largest and mean size (in sixteenths), the largest and
/// mean load, the share wasted and lost; then the host's moves, bad wake-ups and longest latency.
fn pack_grid(grid: &Grid, cores: usize, from: usize, span: u64) -> Vec<u8> {
    let to = (from + TILE_BUCKETS).min(grid.len());
    let width = |bucket: usize| {
        let begins = bucket as u64 * grid.width();
        span.min(begins.saturating_add(grid.width())).saturating_sub(begins).max(1) as f32
    };
    let mut out = Vec::with_capacity((to - from) * (cores * 6 + 3));
    let plane = |out: &mut Vec<u8>, of: fn(&crate::grid::Cell, f32) -> u8| {
        for core in 0..cores {
            let cells = grid.core(core);
            out.extend(
                (from..to)
                    .map(|bucket| cells.get(bucket).map_or(0, |cell| of(cell, width(bucket)))),
            );
        }
    };
    plane(&mut out, |cell, _| cell.size_max.min(255) as u8);
    plane(&mut out, |cell, width| (cell.size_sum / width * 16.0).round() as u8);
    plane(&mut out, |cell, _| logarithm(f64::from(cell.load_max), LOAD_STEPS));
    plane(&mut out, |cell, width| logarithm(f64::from(cell.load_sum / width), LOAD_STEPS));
    plane(&mut out, |cell, width| share(cell.wasted, width));
    plane(&mut out, |cell, width| share(cell.lost, width));
    let host = |bucket| grid.host().get(bucket).copied().unwrap_or_default();
    out.extend((from..to).map(|at| logarithm(f64::from(host(at).moves), LOAD_STEPS)));
    out.extend((from..to).map(|at| logarithm(f64::from(host(at).bad_wakeups), LOAD_STEPS)));
    out.extend((from..to).map(|at| logarithm(host(at).latency_max as f64, LATENCY_STEPS)));
    out
}

/// Steps to each doubling, of loads and counts: a byte reaches two million.
const LOAD_STEPS: f64 = 12.0;
/// Of latencies in nanoseconds: a byte reaches an hour.
const LATENCY_STEPS: f64 = 6.0;

fn logarithm(value: f64, steps: f64) -> u8 {
    (value.ln_1p() / std::f64::consts::LN_2 * steps).round() as u8
}

/// In 255ths; what is not nothing shows.
fn share(part: f32, whole: f32) -> u8 {
    let share = (part / whole * 255.0).round().min(255.0) as u8;
    if part > 0.0 { share.max(1) } else { 0 }
}

fn pack_people(people: &[Person]) -> io::Result<Vec<u8>> {
    Ok(serde_json::to_vec(people)?)
}

/// For each row: thread, count, count × (buckets since the last, share on a core << 8 | share of waiting).
fn pack_rows(rows: &Rows) -> Vec<u8> {
    let mut out = Pack(Vec::new());
    out.number(rows.threads.len() as u64);
    for (thread, slots) in &rows.threads {
        out.number(u64::from(*thread));
        out.number(slots.len() as u64);
        let mut last = 0;
        for &(bucket, ran, waited) in slots {
            let width = rows.width as f32;
            out.number(u64::from(bucket - last));
            out.number(u64::from(share(ran, width)) << 8 | u64::from(share(waited, width)));
            last = bucket;
        }
    }
    out.0
}
