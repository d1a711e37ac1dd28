//! Traces of any length, and files that lie about theirs, need little memory.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

#[path = "../../policy/tests/counting/mod.rs"]
mod counting;

use std::fs::File;
use std::io::{BufReader, BufWriter, Read};

use prost::encode_length_delimiter;
use quell_model::{
    CoreId, Event, Keyframe, Left, Meta, Nanos, Rank, Runner, Source, ThreadName, Topology, What,
};
use quell_trace::import::{Importer, Options};
use quell_trace::perfetto::{Reader, Writer};
use quell_trace::stream::Sink;

/// A text that is made while it is read: two threads take turns, and others come and go.
struct Endless {
    at: u64,
    lines: u64,
    line: Vec<u8>,
    used: usize,
}

impl Read for Endless {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.used == self.line.len() {
            if self.at == self.lines {
                return Ok(0);
            }
            self.at += 1;
            let (seconds, micros) = (self.at / 100_000, self.at % 100_000 * 10);
            let (prev, next) = (self.at % 4_000 + 1, (self.at + 1) % 4_000 + 1);
            self.line = format!(
                "worker-{prev} [000] d..2. {seconds}.{micros:06}: sched_switch: prev_comm=worker \
                 prev_pid={prev} prev_prio=120 prev_state=S ==> next_comm=worker next_pid={next} \
                 next_prio=120\n"
            )
            .into_bytes();
            self.used = 0;
        }
        let some = into.len().min(self.line.len() - self.used);
        into[..some].copy_from_slice(&self.line[self.used..self.used + some]);
        self.used += some;
        Ok(some)
    }
}

#[test]
fn memory_does_not_grow_with_a_text() {
    let lines = 150_000;
    let text = Endless { at: 0, lines, line: Vec::new(), used: 0 };
    let mut importer = Importer::new(BufReader::new(text), Options::default()).unwrap();
    let grown = growth(lines, |_| drop(importer.next().unwrap().unwrap()));
    assert!(grown < 64 << 10, "{grown} bytes more for ten times the text");
}

fn meta() -> Meta {
    Meta {
        source: Source::Simulator,
        topology: Topology::regular(1, 4, 1).unwrap(),
        kernel: String::new(),
        host: String::new(),
        hooks: vec![],
        absent: vec![],
        wall_offset_ns: 0,
    }
}

/// Takes so many events off `next`; how much more memory the last nine tenths needed at a time than the first.
fn growth(events: u64, mut next: impl FnMut(u64)) -> i64 {
    let mut early = 0;
    for at in 0..events {
        if at == events / 10 {
            early = counting::peak_bytes();
        }
        next(at);
    }
    counting::peak_bytes() - early
}

#[test]
fn memory_does_not_grow_with_a_trace() {
    // The first tenth has a keyframe in its midst, as every later one.
    const EVENTS: u64 = 400_000;
    let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
    let mut writer = Writer::new(BufWriter::new(File::create(&path).unwrap()));
    writer.meta(&meta()).unwrap();
    let written = growth(EVENTS, |at| {
        let thread = at as i32 % 5_000 + 1;
        let name = ThreadName::new(b"worker");
        let next = Runner { thread, process: 1, rank: Rank::FAIR, name };
        let what = match at % 25_000 {
            0 => What::Keyframe(Keyframe::default().into()),
            _ => What::Switch { next, left: 0, how: Left::Preempted, stolen: Nanos::ZERO },
        };
        let core = CoreId((at % 4) as u16);
        writer.event(&Event { at: Nanos(at * 10_000), core, sequence: at / 4, what }).unwrap();
    });
    writer.finish().unwrap();
    drop(writer);
    assert!(written < 64 << 10, "{written} bytes more to write ten times the trace");
    let mut reader = Reader::new(BufReader::new(File::open(&path).unwrap())).unwrap();
    let read = growth(EVENTS, |_| drop(reader.next().unwrap().unwrap()));
    assert!(reader.next().is_none());
    assert!(read < 64 << 10, "{read} bytes more to read ten times the trace");
}

/// A field of a message with these bytes.
fn field(number: u32, bytes: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    encode_length_delimiter((number << 3 | 2) as usize, &mut out).unwrap();
    encode_length_delimiter(bytes.len(), &mut out).unwrap();
    out.extend_from_slice(bytes);
    out
}

#[test]
fn a_file_that_lies_costs_little_more_than_its_bytes() {
    const MANY: usize = 1 << 20;
    let mut writer = Writer::new(Vec::new());
    writer.meta(&meta()).unwrap();
    writer.finish().unwrap();
    let head = writer.into_inner();
    // A group of 16,384 events, and then millions that have nothing.
    let group = field(1, &field(2000, &[0xa0, 0x01, 0x80, 0x80, 0x01]));
    let in_bundle = field(1, &field(1, &[&[0x08, 0x00], &[0x12, 0x00].repeat(MANY)[..]].concat()));
    let threads = field(1, &field(2000, &field(22, &[0x12, 0x00].repeat(MANY))));
    let notes = field(1, &field(11, &[0x22, 0x00].repeat(MANY)));
    for lie in [in_bundle, threads, notes] {
        let file = [&head[..], &group, &lie].concat();
        let before = counting::peak_bytes();
        let read: Vec<_> = Reader::new(&file[..]).unwrap().collect();
        assert!(read.last().is_none_or(|last| last.is_err()));
        let needed = counting::peak_bytes() - before;
        assert!(needed < 3 * file.len() as i64, "{needed} bytes for {}", file.len());
    }
}
