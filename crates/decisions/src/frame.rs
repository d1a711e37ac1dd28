//! Frames: how records lie in a file.
//!
//! ```text
//! length (varint)   kind (1 byte)   payload   CRC-32 of kind and payload (4 bytes, little endian)
//! └─ of kind and payload together
//! ```
//!
//! In a ring a segment ends with a length of 0 and a checksum, elsewhere with the file.
//!
//! The checksum starts from the segment's number, so that what an earlier round left in a ring is not taken
//! for this round's.

use std::io::{self, Read};

use super::read::ReadError;

/// The most that kind and payload may have; a longer record is not written and not believed.
pub(super) const BODY_MAX: usize = 8 << 20;

/// What a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// [`super::Meta`]: the first record of each segment.
    Meta = 1,
    /// Names, the policy's state, the last Snapshot and Plan; and how many decisions are missing before it.
    Keyframe = 2,
    /// One decision.
    Decision = 3,
    /// A task's name.
    Name = 4,
}

impl Kind {
    fn of(byte: u8) -> Option<Kind> {
        [Kind::Meta, Kind::Keyframe, Kind::Decision, Kind::Name]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

fn checksum(segment: u32, body: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new_with_initial(segment);
    hasher.update(body);
    hasher.finalize()
}

/// Bytes of [`end_mark`].
pub(super) const END_MARK_BYTES: usize = 5;

/// What ends a segment in a ring.
pub(super) fn end_mark(segment: u32) -> [u8; END_MARK_BYTES] {
    let [a, b, c, d] = checksum(segment, &[0]).to_le_bytes();
    [0, a, b, c, d]
}

/// Appends a frame whose payload `fill` appends to what it is given. `scratch` is for its use.
pub(super) fn append(
    out: &mut Vec<u8>,
    scratch: &mut Vec<u8>,
    segment: u32,
    kind: Kind,
    fill: impl FnOnce(&mut Vec<u8>),
) {
    scratch.clear();
    scratch.push(kind as u8);
    fill(scratch);
    let mut length = scratch.len();
    while length >= 0x80 {
        out.push(length as u8 | 0x80);
        length >>= 7;
    }
    out.push(length as u8);
    out.extend_from_slice(scratch);
    out.extend_from_slice(&checksum(segment, scratch).to_le_bytes());
}

/// The kind of the first of these well-formed frames, and its length with everything.
pub(super) fn first(frames: &[u8]) -> Option<(Kind, usize)> {
    let (mut body, mut at) = (0, 0);
    loop {
        let byte = *frames.get(at)?;
        body |= usize::from(byte & 0x7f) << (7 * at);
        at += 1;
        if byte & 0x80 == 0 {
            break;
        }
    }
    Some((Kind::of(*frames.get(at)?)?, at + body + 4))
}

/// Reads frame after frame.
pub(super) struct Frames<R> {
    from: R,
    /// Where the next byte lies in the file.
    at: u64,
    /// Where the segment ends at the latest.
    end: u64,
    pub(super) segment: u32,
    /// Whether the segment ends with a mark, or where `end` says.
    pub(super) marked: bool,
    body: Vec<u8>,
}

impl<R: Read> Frames<R> {
    /// The frames from `at` to `end`, where `from` stands at `at`. The first one is checked as of segment 0:
    /// it tells which segment it is.
    pub(super) fn new(from: R, at: u64, end: u64) -> Frames<R> {
        Frames { from, at, end, segment: 0, marked: false, body: Vec::new() }
    }

    /// What the frames are read from.
    pub(super) fn into_inner(self) -> R {
        self.from
    }

    /// Where the next frame begins.
    pub(super) fn at(&self) -> u64 {
        self.at
    }

    /// The next frame; `None` at the segment's end.
    pub(super) fn next(&mut self) -> Result<Option<(Kind, &[u8])>, ReadError> {
        let start = self.at;
        let damaged = |what| ReadError::Damaged { offset: start, what };
        if self.at == self.end && !self.marked {
            return Ok(None);
        }
        let length = self.length(start)?;
        if length > BODY_MAX {
            return Err(damaged("a record longer than any that is written"));
        }
        if (length as u64).saturating_add(4) > self.end.saturating_sub(self.at) {
            return Err(damaged("a record that ends after its segment"));
        }
        // In steps: a length that lies costs no memory that the file does not have.
        self.body.clear();
        let read = (&mut self.from).take(length as u64).read_to_end(&mut self.body);
        let read = read.map_err(|source| ReadError::Io { offset: start, source })?;
        let mut sum = [0; 4];
        if read < length || self.read(&mut sum, start)? < sum.len() {
            return Err(damaged("the file ends within a record"));
        }
        self.at += length as u64 + 4;
        if self.marked && length == 0 {
            self.body.push(0);
        }
        // A fuzzer would hardly ever get past a checksum.
        if !cfg!(fuzzing) && checksum(self.segment, &self.body) != u32::from_le_bytes(sum) {
            return Err(damaged("the checksum does not match"));
        }
        if self.marked && length == 0 {
            return Ok(None);
        }
        let kind = self.body.first().copied().and_then(Kind::of);
        let kind = kind.ok_or(damaged("a record of an unknown kind"))?;
        Ok(Some((kind, &self.body[1..])))
    }

    /// The varint at the front.
    fn length(&mut self, start: u64) -> Result<usize, ReadError> {
        let mut length = 0;
        for shift in [0, 7, 14, 21, 28] {
            let mut byte = [0];
            if self.at == self.end || self.read(&mut byte, start)? == 0 {
                break;
            }
            self.at += 1;
            length |= usize::from(byte[0] & 0x7f) << shift;
            if byte[0] & 0x80 == 0 {
                return Ok(length);
            }
        }
        Err(ReadError::Damaged { offset: start, what: "a length that does not end" })
    }

    /// As many bytes as there are, up to all asked for.
    fn read(&mut self, bytes: &mut [u8], start: u64) -> Result<usize, ReadError> {
        let mut read = 0;
        while read < bytes.len() {
            match self.from.read(&mut bytes[read..]) {
                Ok(0) => break,
                Ok(more) => read += more,
                Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(ReadError::Io { offset: start, source }),
            }
        }
        Ok(read)
    }
}
