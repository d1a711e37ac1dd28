//! The exact tiles of a picture, unpacked as the page does it (`src/tile.rs` has the layout) and put together.

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;

use flate2::Crc;
use flate2::read::DeflateDecoder;
use quell_view::Picture;
use serde_json::Value;

/// Series of a core, as a tile numbers them.
#[derive(Clone, Copy)]
pub enum Series {
    Size,
    Load,
    Running,
    Marks,
}

const SERIES: [(Series, &str); 4] = [
    (Series::Size, "sizes"),
    (Series::Load, "loads"),
    (Series::Running, "running"),
    (Series::Marks, "marks"),
];

/// A wait of a thread on one core.
#[derive(Clone, Copy)]
pub struct Wait {
    pub thread: u64,
    pub core: usize,
    pub from: u64,
    pub to: u64,
}

/// All tiles as one.
pub struct Content {
    /// By core and series: (time, value) of each change.
    series: Vec<[Vec<(u64, u64)>; 4]>,
    /// Ordered by end, thread and core.
    pub waits: Vec<Wait>,
    /// (core, from, to)
    gaps: Vec<(u64, u64, u64)>,
    /// (time, thread, from, to, cause)
    moves: Vec<[u64; 5]>,
    /// (time, thread, core, idle core)
    bad_wakeups: Vec<[u64; 4]>,
    /// (time, core, search, ranges of cores)
    considered: Vec<(u64, u64, u64, Vec<u64>)>,
    /// Passes of the balancer.
    pub passes: Vec<TilePass>,
}

/// A pass of the balancer, as a tile has it.
#[derive(Clone, Debug, PartialEq)]
pub struct TilePass {
    pub at: u64,
    /// Core, level, entry, outcome, moved, and the four counts of skipped threads.
    pub numbers: [u64; 9],
    /// Of each group the ranges of its cores; sum, mean, minimum, queued, idle and kind.
    pub groups: Vec<(Vec<u64>, [u64; 6])>,
}

impl Content {
    pub fn of(picture: &Picture) -> Content {
        let mut content = Content {
            series: Vec::new(),
            waits: Vec::new(),
            gaps: Vec::new(),
            moves: Vec::new(),
            bad_wakeups: Vec::new(),
            considered: Vec::new(),
            passes: Vec::new(),
        };
        content.series.resize_with(picture.index.meta.topology.len(), Default::default);
        for tile in &picture.index.tiles {
            let bytes = unpacked(picture, tile.blob);
            let mut numbers = Numbers(&bytes);
            content.tile(&mut numbers);
            assert!(numbers.0.is_empty(), "{} bytes behind a tile", numbers.0.len());
        }
        content.join_waits();
        content
    }

    /// A series as spans (from, to, value) from 0 to `end`.
    pub fn spans(
        &self,
        series: Series,
        core: usize,
        end: u64,
    ) -> impl Iterator<Item = (u64, u64, u64)> {
        let changes = &self.series[core][series as usize];
        let ends = changes.iter().skip(1).map(|(at, _)| *at).chain([end]);
        changes.iter().zip(ends).map(|(&(from, value), to)| (from, to.max(from), value))
    }

    /// One digest for each kind of content.
    pub fn digests(&self, threads: &Threads) -> BTreeMap<&'static str, String> {
        let mut digests = BTreeMap::new();
        for (series, name) in SERIES {
            let mut digest = Digest::default();
            for (core, all) in self.series.iter().enumerate() {
                for (at, value) in &all[series as usize] {
                    match series {
                        Series::Running => {
                            digest.line(format_args!("{core} {at} {}", threads.id(*value)));
                        }
                        _ => digest.line(format_args!("{core} {at} {value}")),
                    }
                }
            }
            digests.insert(name, digest.finish());
        }
        let mut digest = Digest::default();
        let mut waits: Vec<_> = self.waits.iter().collect();
        waits.sort_by_key(|wait| (wait.to, wait.from, wait.core, threads.id(wait.thread)));
        for Wait { thread, core, from, to } in waits {
            digest.line(format_args!("{} {core} {from} {to}", threads.id(*thread)));
        }
        digests.insert("waits", digest.finish());
        digests.insert("gaps", Digest::of(&self.gaps));
        let mut digest = Digest::default();
        for [at, thread, from, to, cause] in &self.moves {
            digest.line(format_args!("{at} {} {from} {to} {cause}", threads.id(*thread)));
        }
        digests.insert("moves", digest.finish());
        let mut digest = Digest::default();
        for [at, thread, core, idle] in &self.bad_wakeups {
            digest.line(format_args!("{at} {} {core} {idle}", threads.id(*thread)));
        }
        digests.insert("bad_wakeups", digest.finish());
        digests.insert("considered", Digest::of(&self.considered));
        // No recorder of a host makes them.
        if !self.passes.is_empty() {
            digests.insert("passes", Digest::of(&self.passes));
        }
        digests
    }

    fn tile(&mut self, numbers: &mut Numbers) {
        let (from, _) = (numbers.next(), numbers.next());
        for all in &mut self.series {
            let mut values: [u64; 4] = std::array::from_fn(|_| numbers.next());
            let mut at = from;
            (0..4).for_each(|series| change(&mut all[series], at, values[series]));
            for _ in 0..numbers.next() {
                at += numbers.next();
                let which = numbers.next();
                for series in (0..4).filter(|series| which >> series & 1 == 1) {
                    values[series] = numbers.next();
                    change(&mut all[series], at, values[series]);
                }
            }
        }
        let mut ends = from;
        for _ in 0..numbers.next() {
            let (thread, core) = (numbers.next(), numbers.next() as usize);
            ends += numbers.next();
            self.waits.push(Wait { thread, core, from: ends - numbers.next(), to: ends });
        }
        for _ in 0..numbers.next() {
            let (core, begins) = (numbers.next(), from + numbers.next());
            self.gaps.push((core, begins, begins + numbers.next()));
        }
        let mut at = from;
        for _ in 0..numbers.next() {
            at += numbers.next();
            let [thread, from, to, cause] = std::array::from_fn(|_| numbers.next());
            self.moves.push([at, thread, from, to, cause]);
        }
        at = from;
        for _ in 0..numbers.next() {
            at += numbers.next();
            let [thread, core, idle] = std::array::from_fn(|_| numbers.next());
            self.bad_wakeups.push([at, thread, core, idle]);
        }
        at = from;
        for _ in 0..numbers.next() {
            at += numbers.next();
            let (core, search) = (numbers.next(), numbers.next());
            let ranges = (0..2 * numbers.next()).map(|_| numbers.next()).collect();
            self.considered.push((at, core, search, ranges));
        }
        at = from;
        for _ in 0..numbers.next() {
            at += numbers.next();
            let of_pass = std::array::from_fn(|_| numbers.next());
            let group = |numbers: &mut Numbers| {
                let ranges = (0..2 * numbers.next()).map(|_| numbers.next()).collect();
                (ranges, std::array::from_fn(|_| numbers.next()))
            };
            let groups = (0..numbers.next()).map(|_| group(numbers)).collect();
            self.passes.push(TilePass { at, numbers: of_pass, groups });
        }
    }

    /// The pieces of a wait in neighbouring tiles are one.
    fn join_waits(&mut self) {
        self.waits.sort_by_key(|wait| (wait.thread, wait.core, wait.from, wait.to));
        self.waits.dedup_by(|next, before| {
            let same = (next.thread, next.core) == (before.thread, before.core);
            let joins = same && next.from == before.to;
            if joins {
                before.to = next.to;
            }
            joins
        });
        self.waits.sort_by_key(|wait| (wait.to, wait.thread, wait.core));
    }
}

/// Each tile begins with the values that hold: what changes nothing is no change.
fn change(series: &mut Vec<(u64, u64)>, at: u64, value: u64) {
    if series.last().is_some_and(|(last, _)| *last == at) {
        series.pop();
    }
    if series.last().is_none_or(|(_, last)| *last != value) {
        series.push((at, value));
    }
}

/// The threads of a picture by their index in it.
pub struct Threads {
    /// As the page receives them.
    pub people: Vec<Value>,
    ids: Vec<String>,
}

impl Threads {
    pub fn of(picture: &Picture) -> Threads {
        let bytes = unpacked(picture, picture.index.people);
        let people: Vec<Value> = serde_json::from_slice(&bytes).unwrap();
        // A tid that is used again is another thread: they are told apart by their order.
        let mut uses: BTreeMap<i64, usize> = BTreeMap::new();
        let ids = people.iter().map(|person| {
            let tid = person["thread"].as_i64().unwrap();
            let earlier = uses.entry(tid).or_default();
            *earlier += 1;
            format!("{tid}#{earlier}")
        });
        Threads { ids: ids.collect(), people }
    }

    /// The tid, and how often it was used until then.
    fn id(&self, index: u64) -> &str {
        &self.ids[index as usize]
    }

    /// Of everything that is known of each thread.
    pub fn digest(&self) -> String {
        let mut lines: Vec<String> = self
            .people
            .iter()
            .zip(&self.ids)
            .map(|(person, id)| {
                let mut person = person.clone();
                let fields = person.as_object_mut().unwrap();
                fields.remove("index");
                let antagonists = fields["antagonists"].as_array().unwrap();
                let mut named: Vec<(u64, &str)> = antagonists
                    .iter()
                    .map(|one| (one[1].as_u64().unwrap(), self.id(one[0].as_u64().unwrap())))
                    .collect();
                named.sort_unstable();
                let named = serde_json::to_value(named).unwrap();
                fields.insert("antagonists".to_owned(), named);
                format!("{id} {person}")
            })
            .collect();
        lines.sort_unstable();
        let mut digest = Digest::default();
        lines.iter().for_each(|line| digest.line(format_args!("{line}")));
        digest.finish()
    }
}

fn unpacked(picture: &Picture, blob: usize) -> Vec<u8> {
    let packed = picture.blob(blob).unwrap().unwrap();
    let mut bytes = Vec::new();
    DeflateDecoder::new(&packed[..]).read_to_end(&mut bytes).unwrap();
    bytes
}

/// LEB128 numbers.
struct Numbers<'a>(&'a [u8]);

impl Numbers<'_> {
    fn next(&mut self) -> u64 {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let (byte, rest) = self.0.split_first().unwrap();
            self.0 = rest;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
        }
        number
    }
}

/// CRC-32 of lines, with their number.
#[derive(Default)]
pub struct Digest {
    crc: Crc,
    lines: u64,
}

impl Digest {
    fn of<T: fmt::Debug>(items: &[T]) -> String {
        let mut digest = Digest::default();
        items.iter().for_each(|item| digest.line(format_args!("{item:?}")));
        digest.finish()
    }

    pub fn line(&mut self, line: fmt::Arguments) {
        self.crc.update(format!("{line}\n").as_bytes());
        self.lines += 1;
    }

    pub fn finish(self) -> String {
        format!("{:08x} of {}", self.crc.sum(), self.lines)
    }
}
