//! A recording, read back. Nothing in the file is trusted: lengths are bounded, checksums checked, tables held
//! against the host that the recording itself describes.

use std::fs::File;
use std::io::{self, BufReader, Read, Seek, SeekFrom};
use std::path::Path;

use quell_model::{Nanos, Plan, Snapshot, TaskId};
use quell_policy::Wake;

use super::delta::{Malformed, read_plan, read_snapshot, read_time, read_wake, take};
use super::format::{FORMAT, Meta, NotOurs, Preamble, read_meta};
use super::frame::{Frames, Kind};
use super::words::Names;

/// A name's bytes at most; configuration allows 32.
const NAME_MAX: usize = 64;

/// Why a recording cannot be read, and where.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It does not begin as one.
    #[error("this is not a recording of decisions; `quell run --record-decisions FILE` makes one")]
    NotARecording,
    /// Another version wrote it.
    #[error(
        "it has format {0}, this Quell reads format {FORMAT}; replay it with the version that recorded it"
    )]
    Format(u32),
    /// Bytes changed or are missing.
    #[error("damaged at byte {offset}: {what}")]
    Damaged {
        /// Where the damaged record begins.
        offset: u64,
        /// What is wrong there.
        what: &'static str,
    },
    /// The file cannot be read.
    #[error("reading at byte {offset}: {source}")]
    Io {
        /// Where.
        offset: u64,
        /// What went wrong.
        source: io::Error,
    },
}

/// One recorded decision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    /// The time that the policy was told.
    pub now: Nanos,
    /// What was seen.
    pub seen: Snapshot,
    /// What was decided.
    pub plan: Plan,
    /// When the policy wanted to be asked again.
    pub wake: Wake,
}

/// What comes next in a recording.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// What the policy knew.
    Keyframe {
        /// As [`quell_policy::Policy::save`] wrote it.
        state: Vec<u8>,
        /// Decisions that are missing right before.
        lost: u64,
        /// More may be missing: the recording begins here, or what came before is damaged or overwritten.
        cut: bool,
    },
    /// [`Reader::decision`] is another one.
    Decision,
}

/// How much was read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Segments.
    pub segments: u64,
    /// Bytes of records, without a ring's unused space.
    pub bytes: u64,
}

/// A segment's place in the file.
#[derive(Clone, Copy, Debug)]
struct Segment {
    number: u32,
    at: u64,
    end: u64,
    /// Whether it ends with a mark, or with the file.
    marked: bool,
}

/// Reads a recording from its oldest segment on.
pub struct Reader<R> {
    /// `None` between two segments.
    frames: Option<Frames<BufReader<R>>>,
    file: Option<R>,
    /// Segments to come, the newest first.
    segments: Vec<Segment>,
    meta: Meta,
    decision: Decision,
    names: Names,
    damage: Vec<ReadError>,
    extent: Extent,
    /// The last segment that was read to its end.
    complete: Option<u32>,
    cut: bool,
}

impl Reader<File> {
    /// Opens a recording.
    ///
    /// # Errors
    /// When the file cannot be read, is no recording, or has no segment that can be read.
    pub fn open(path: &Path) -> Result<Reader<File>, ReadError> {
        let file = File::open(path).map_err(|source| ReadError::Io { offset: 0, source })?;
        Reader::new(file)
    }
}

impl<R: Read + Seek> Reader<R> {
    /// Reads a recording.
    ///
    /// # Errors
    /// When it is none, or has no segment that can be read.
    pub fn new(mut file: R) -> Result<Reader<R>, ReadError> {
        let bytes = seek(&mut file, SeekFrom::End(0), 0)?;
        seek(&mut file, SeekFrom::Start(0), 0)?;
        let mut head = [0; Preamble::BYTES];
        file.read_exact(&mut head).map_err(|_| ReadError::NotARecording)?;
        let preamble = Preamble::try_from(&head).map_err(|why| match why {
            NotOurs::Magic => ReadError::NotARecording,
            NotOurs::Format(found) => ReadError::Format(found),
            NotOurs::Damaged => ReadError::Damaged {
                offset: 0,
                what: "the checksum of its first bytes does not match",
            },
        })?;
        let (segments, mut damage) = survey(&mut file, preamble, bytes)?;
        let Some(oldest) = segments.last() else {
            let nothing =
                ReadError::Damaged { offset: Preamble::BYTES as u64, what: "it holds nothing" };
            return Err(damage.pop().unwrap_or(nothing));
        };
        let (_, _, meta) = open_segment(&mut file, oldest.at, oldest.end)?;
        Ok(Reader {
            frames: None,
            file: Some(file),
            segments,
            meta,
            decision: blank(),
            names: Names::default(),
            damage,
            extent: Extent { segments: 0, bytes: Preamble::BYTES as u64 },
            complete: None,
            cut: true,
        })
    }

    /// What the recording says of itself.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// The last decision that was read.
    pub fn decision(&self) -> &Decision {
        &self.decision
    }

    /// What the operator called the tasks.
    pub fn names(&self) -> &Names {
        &self.names
    }

    /// Damage so far. What follows it, up to the next segment, is not read.
    pub fn damage(&self) -> &[ReadError] {
        &self.damage
    }

    /// How much was read.
    pub fn extent(&self) -> Extent {
        self.extent
    }

    /// The next event of this segment, or `None` at its end.
    fn read_on(&mut self) -> Result<Option<Event>, ReadError> {
        if self.frames.is_none() && !self.begin_segment()? {
            return Ok(None);
        }
        loop {
            let Some(frames) = &mut self.frames else { return Ok(None) };
            let offset = frames.at();
            let Some((kind, payload)) = frames.next()? else {
                self.complete = Some(frames.segment);
                self.close();
                return Ok(None);
            };
            let mut payload = payload;
            let (decision, names) = (&mut self.decision, &mut self.names);
            let read = read_record(kind, &mut payload, decision, names);
            let read = read.and_then(|event| match payload.is_empty() {
                true => Ok(event),
                false => Err(Malformed("a record with something behind it")),
            });
            self.extent.bytes += frames.at() - offset;
            match read.map_err(|Malformed(what)| ReadError::Damaged { offset, what })? {
                Some(Event::Keyframe { state, lost, .. }) => {
                    let cut = std::mem::take(&mut self.cut);
                    return Ok(Some(Event::Keyframe { state, lost, cut }));
                }
                Some(Event::Decision) if self.cut => {
                    let what = "a decision before the first keyframe";
                    return Err(ReadError::Damaged { offset, what });
                }
                Some(event) => return Ok(Some(event)),
                None => {}
            }
        }
    }

    fn begin_segment(&mut self) -> Result<bool, ReadError> {
        let Some(segment) = self.segments.pop() else { return Ok(false) };
        let Some(mut file) = self.file.take() else { return Ok(false) };
        let opened = open_segment(&mut file, segment.at, segment.end);
        let (at, _, meta) = match opened {
            Ok(opened) => opened,
            Err(damage) => {
                self.file = Some(file);
                return Err(damage);
            }
        };
        if meta != self.meta {
            self.file = Some(file);
            let what = "a segment of another recording";
            return Err(ReadError::Damaged { offset: segment.at, what });
        }
        seek(&mut file, SeekFrom::Start(at), at)?;
        let mut frames = Frames::new(BufReader::with_capacity(1 << 16, file), at, segment.end);
        (frames.segment, frames.marked) = (segment.number, segment.marked);
        self.frames = Some(frames);
        self.cut = self.complete.is_none_or(|last| last.wrapping_add(1) != segment.number);
        self.extent.segments += 1;
        self.extent.bytes += at - segment.at;
        Ok(true)
    }

    fn close(&mut self) {
        if let Some(frames) = self.frames.take() {
            self.file = Some(frames.into_inner().into_inner());
        }
    }
}

/// Damage is noted, and reading goes on with the next segment.
impl<R: Read + Seek> Iterator for Reader<R> {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        loop {
            match self.read_on() {
                Ok(Some(event)) => return Some(event),
                Ok(None) if self.segments.is_empty() => return None,
                Ok(None) => {}
                Err(damage) => {
                    self.damage.push(damage);
                    self.close();
                    self.complete = None;
                }
            }
        }
    }
}

fn blank() -> Decision {
    Decision {
        now: Nanos::ZERO,
        seen: Snapshot::default(),
        plan: Plan::default(),
        wake: Wake::OnChange,
    }
}

fn seek(file: &mut impl Seek, to: SeekFrom, offset: u64) -> Result<u64, ReadError> {
    file.seek(to).map_err(|source| ReadError::Io { offset, source })
}

/// The segments of a file, the newest first, and what is wrong with those that cannot be read.
fn survey<R: Read + Seek>(
    file: &mut R,
    preamble: Preamble,
    bytes: u64,
) -> Result<(Vec<Segment>, Vec<ReadError>), ReadError> {
    let start = Preamble::BYTES as u64;
    if preamble.slots == 0 {
        let (_, number, _) = open_segment(file, start, bytes)?;
        return Ok((vec![Segment { number, at: start, end: bytes, marked: false }], Vec::new()));
    }
    let (mut segments, mut damage) = (Vec::new(), Vec::new());
    for slot in 0..preamble.slots {
        let at = preamble.slot_at(slot);
        if at >= bytes || preamble.slot_bytes == 0 {
            break;
        }
        let end = preamble.slot_at(slot + 1).min(bytes);
        match open_segment(file, at, end) {
            Ok((_, number, _)) => segments.push(Segment { number, at, end, marked: true }),
            Err(what) => damage.push(what),
        }
    }
    segments.sort_by_key(|segment| std::cmp::Reverse(segment.number));
    Ok((segments, damage))
}

/// Reads a segment's Meta: where the records after it begin, the segment's number, and the Meta.
fn open_segment<R: Read + Seek>(
    file: &mut R,
    at: u64,
    end: u64,
) -> Result<(u64, u32, Meta), ReadError> {
    seek(file, SeekFrom::Start(at), at)?;
    let damaged = |what| ReadError::Damaged { offset: at, what };
    let mut frames = Frames::new(file, at, end);
    let (kind, mut payload) = frames.next()?.ok_or(damaged("it holds nothing"))?;
    if kind != Kind::Meta {
        return Err(damaged("a segment that does not say what it is of"));
    }
    let (number, meta) = read_meta(&mut payload).map_err(|Malformed(what)| damaged(what))?;
    Ok((frames.at(), number, meta))
}

/// Reads a record into what it changes. An event whose `cut` is still to be told, or none.
fn read_record(
    kind: Kind,
    from: &mut &[u8],
    decision: &mut Decision,
    names: &mut Names,
) -> Result<Option<Event>, Malformed> {
    match kind {
        Kind::Meta => Err(Malformed("a second beginning within a segment")),
        Kind::Name => {
            let (task, name): (TaskId, String) = take(from)?;
            if name.len() > NAME_MAX {
                return Err(Malformed("a name longer than any"));
            }
            names.insert(task, name);
            Ok(None)
        }
        Kind::Keyframe => {
            let lost = take(from)?;
            let known: Vec<Option<(TaskId, String)>> = take(from)?;
            if known.iter().flatten().any(|(_, name)| name.len() > NAME_MAX) {
                return Err(Malformed("a name longer than any"));
            }
            known.into_iter().flatten().for_each(|(task, name)| names.insert(task, name));
            let state: Vec<u8> = take(from)?;
            *decision = blank();
            read_snapshot(&mut decision.seen, from)?;
            read_plan(&mut decision.plan, from)?;
            decision.now = decision.seen.now;
            decision.wake = read_wake(Wake::OnChange, decision.now, from)?;
            Ok(Some(Event::Keyframe { state, lost, cut: false }))
        }
        Kind::Decision => {
            read_snapshot(&mut decision.seen, from)?;
            decision.now = read_time(decision.seen.now, from)?;
            read_plan(&mut decision.plan, from)?;
            decision.wake = read_wake(decision.wake, decision.now, from)?;
            Ok(Some(Event::Decision))
        }
    }
}
