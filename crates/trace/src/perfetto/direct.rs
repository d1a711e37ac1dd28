//! The events that most of a trace is made of, written field by field into the file's bytes.
//!
//! The messages of [`wire`](super::wire) describe the same fields, and a test compares both byte by byte. To build a message, with
//! texts of its own, takes several times as long as to write it.

use std::io::Write as _;

use prost::encoding::{encode_varint, encoded_len_varint};
use quell_model::{
    CoreId, CoreSet, Event, GroupKind, Pass, PassEntry, PassGroup, PassOutcome, Runner, Skipped,
    What,
};

use super::balance::{SHOWN_MAX, index};
use super::convert::{CAUSES, CERTAINTIES, LEFT, SEARCHES, Track, code};
use super::wire::{BUNDLE_EVENT, COUNTER, INSTANT, MONOTONIC, PACKET, PRIVATE};
use super::write::SEQUENCE;
use crate::kernel;

/// What [`Private`](super::wire::Private) says of an event's place among the others.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    pub skip: Option<u32>,
    pub sequence: Option<u64>,
}

impl Place {
    fn is_usual(self) -> bool {
        self.skip.is_none() && self.sequence.is_none()
    }

    fn put(self, out: &mut Vec<u8>) {
        if let Some(skip) = self.skip {
            number(out, 1, u64::from(skip));
        }
        if let Some(sequence) = self.sequence {
            number(out, 2, sequence);
        }
    }
}

/// Whether [`put`] writes the event, and if so, whether it belongs to the bundle of its core. `ran` had the core until then.
pub fn is_bundled(what: &What, ran: Option<&Runner>) -> Option<bool> {
    let is_text = |runner: &Runner| std::str::from_utf8(runner.name.as_bytes()).is_ok();
    match what {
        What::Switch { next, .. } => (is_text(next) && ran.is_none_or(is_text)).then_some(true),
        What::Waking { thread, .. } | What::Woken { thread, .. } => is_text(thread).then_some(true),
        What::Migrate { .. } => Some(true),
        What::Queue { .. } | What::Load { .. } | What::Considered { .. } | What::Pass(_) => {
            Some(false)
        }
        _ => None,
    }
}

/// Appends an event of which [`is_bundled`] says that it can.
pub fn put(out: &mut Vec<u8>, event: &Event, ran: Option<&Runner>, place: Place) {
    match &event.what {
        What::Switch { .. } | What::Waking { .. } | What::Woken { .. } | What::Migrate { .. } => {
            nested(out, BUNDLE_EVENT, |out| put_ftrace(out, event, ran, place));
        }
        _ => nested(out, PACKET, |out| put_packet(out, event, place)),
    }
}

/// Appends a packet with the events of a core, which lie behind the head of their bundle.
pub fn put_bundle(out: &mut Vec<u8>, head: &[u8], events: &[u8]) {
    const SEQUENCE_BYTES: usize = 2;
    let length = head.len() + events.len();
    let of_length = encoded_len_varint(length as u64);
    varint(out, u64::from(PACKET << 3 | 2));
    varint(out, (1 + of_length + length + SEQUENCE_BYTES) as u64);
    bytes_field(out, 1, length);
    out.extend_from_slice(head);
    out.extend_from_slice(events);
    let before = out.len();
    number(out, 10, u64::from(SEQUENCE));
    debug_assert_eq!(out.len() - before, SEQUENCE_BYTES);
}

/// A number in seven bits a byte. Nearly all are small.
#[inline]
fn varint(out: &mut Vec<u8>, value: u64) {
    match u8::try_from(value) {
        Ok(byte) if byte < 0x80 => out.push(byte),
        _ => encode_varint(value, out),
    }
}

/// A field of a number.
#[inline]
fn number(out: &mut Vec<u8>, field: u32, value: u64) {
    varint(out, u64::from(field << 3));
    varint(out, value);
}

/// A field of type `int32`: negative ones take ten bytes.
#[inline]
fn int32(out: &mut Vec<u8>, field: u32, value: i32) {
    number(out, field, i64::from(value) as u64);
}

/// A field that is left out if it is zero.
#[inline]
fn unless_zero(out: &mut Vec<u8>, field: u32, value: u64) {
    if value != 0 {
        number(out, field, value);
    }
}

/// What comes before so many bytes of a field.
#[inline]
fn bytes_field(out: &mut Vec<u8>, field: u32, length: usize) {
    varint(out, u64::from(field << 3 | 2));
    varint(out, length as u64);
}

/// A field of bytes or a text.
#[inline]
fn bytes(out: &mut Vec<u8>, field: u32, value: &[u8]) {
    bytes_field(out, field, value.len());
    out.extend_from_slice(value);
}

/// A field of a message, or of a text that is made meanwhile. Most are shorter than 128 bytes, so that their length takes one byte.
#[inline]
fn nested(out: &mut Vec<u8>, field: u32, fill: impl FnOnce(&mut Vec<u8>)) {
    varint(out, u64::from(field << 3 | 2));
    let at = out.len();
    out.push(0);
    fill(out);
    let length = out.len() - at - 1;
    if length < 0x80 {
        out[at] = length as u8;
        return;
    }
    let mut prefix = [0; 10];
    let mut rest = &mut prefix[..];
    encode_varint(length as u64, &mut rest);
    let more = 9 - rest.len();
    out.resize(out.len() + more, 0);
    out.copy_within(at + 1..at + 1 + length, at + 1 + more);
    out[at..=at + more].copy_from_slice(&prefix[..=more]);
}

/// `FtraceEvent`.
fn put_ftrace(out: &mut Vec<u8>, event: &Event, ran: Option<&Runner>, place: Place) {
    let (pid, thread) = match &event.what {
        What::Switch { left, next, .. } => (*left, Some(next)),
        What::Waking { by, thread, .. } => (*by, Some(thread)),
        What::Woken { thread, .. } => (ran.map_or(0, |ran| ran.thread), Some(thread)),
        _ => (ran.map_or(0, |ran| ran.thread), None),
    };
    number(out, 1, event.at.0);
    number(out, 2, u64::from(pid as u32));
    match &event.what {
        What::Switch { next, left, how, .. } => nested(out, 4, |out| {
            let before = ran.filter(|ran| ran.thread == *left);
            if let Some(before) = before {
                bytes(out, 1, before.name.as_bytes());
            }
            int32(out, 2, *left);
            if let Some(before) = before {
                int32(out, 3, kernel::prio(before.rank));
            }
            number(out, 4, code(&LEFT, *how) as u64);
            bytes(out, 5, next.name.as_bytes());
            int32(out, 6, next.thread);
            int32(out, 7, kernel::prio(next.rank));
        }),
        What::Woken { thread, on, is_new } => {
            put_wakeup(out, if *is_new { 114 } else { 17 }, thread, *on);
        }
        What::Waking { thread, target, .. } => put_wakeup(out, 20, thread, *target),
        What::Migrate { thread, from, to, .. } => nested(out, 491, |out| {
            int32(out, 2, *thread);
            int32(out, 4, i32::from(from.0));
            int32(out, 5, i32::from(to.0));
        }),
        _ => {}
    }
    put_private(out, event, thread, place);
}

/// What the fields of an ftrace event cannot hold.
fn put_private(out: &mut Vec<u8>, event: &Event, thread: Option<&Runner>, place: Place) {
    let stolen = match &event.what {
        What::Switch { stolen, .. } => stolen.0,
        _ => 0,
    };
    let cause = match &event.what {
        What::Migrate { cause, .. } => index(&CAUSES, cause),
        _ => 0,
    };
    let process = thread.map(|it| it.process).filter(|it| thread.map(|it| it.thread) != Some(*it));
    let rank = thread.filter(|it| kernel::rank(kernel::prio(it.rank), it.thread) != it.rank);
    if place.is_usual() && stolen == 0 && cause == 0 && process.is_none() && rank.is_none() {
        return;
    }
    nested(out, PRIVATE, |out| {
        place.put(out);
        if let Some(process) = process {
            // A `sint32`.
            number(out, 4, u64::from(((process << 1) ^ (process >> 31)) as u32));
        }
        if let Some(thread) = rank {
            number(out, 5, u64::from(thread.rank.number()));
        }
        unless_zero(out, 7, stolen);
        unless_zero(out, 8, u64::from(cause));
    });
}

fn put_wakeup(out: &mut Vec<u8>, kind: u32, thread: &Runner, target: CoreId) {
    nested(out, kind, |out| {
        bytes(out, 1, thread.name.as_bytes());
        int32(out, 2, thread.thread);
        int32(out, 3, kernel::prio(thread.rank));
        int32(out, 4, 1);
        int32(out, 5, i32::from(target.0));
    });
}

/// `TracePacket` with a `TrackEvent`.
fn put_packet(out: &mut Vec<u8>, event: &Event, place: Place) {
    number(out, 8, event.at.0);
    number(out, 10, u64::from(SEQUENCE));
    nested(out, 11, |out| match &event.what {
        What::Queue { of, runnable, .. } => {
            put_counter(out, Track::Queue, *of, u64::from(*runnable));
        }
        What::Load { of, weight, .. } => put_counter(out, Track::Load, *of, *weight),
        What::Considered { by, search, cores, certainty } => {
            number_detail(out, "by", u64::from(by.0));
            text_detail(out, "search", code(&SEARCHES, *search));
            detail(out, "cores", |out| put_list(out, cores));
            text_detail(out, "certainty", code(&CERTAINTIES, *certainty));
            put_instant(out, Track::Considered, |out| {
                text(out, "core ");
                decimal(out, u64::from(by.0));
                text(out, " looked at ");
                put_list(out, cores);
            });
        }
        What::Pass(pass) => put_pass_shown(out, pass),
        _ => {}
    });
    number(out, 58, u64::from(MONOTONIC));
    nested(out, PRIVATE, |out| {
        place.put(out);
        number(out, 3, u64::from(event.core.0));
        match &event.what {
            What::Queue { queued, runnable, .. } if queued != runnable => {
                number(out, 9, u64::from(*queued));
            }
            What::Load { average, .. } => number(out, 10, *average),
            What::Pass(pass) => nested(out, 16, |out| put_pass(out, pass)),
            _ => {}
        }
    });
}

fn put_counter(out: &mut Vec<u8>, track: Track, of: CoreId, value: u64) {
    number(out, 9, COUNTER as u64);
    number(out, 11, track.uuid(Some(of.0)));
    number(out, 30, value);
}

fn put_instant(out: &mut Vec<u8>, track: Track, name: impl FnOnce(&mut Vec<u8>)) {
    number(out, 9, INSTANT as u64);
    number(out, 11, track.uuid(None));
    nested(out, 23, name);
}

/// `DebugAnnotation`.
fn number_detail(out: &mut Vec<u8>, name: &str, value: u64) {
    nested(out, 4, |out| {
        number(out, 4, value);
        bytes(out, 10, name.as_bytes());
    });
}

fn text_detail(out: &mut Vec<u8>, name: &str, value: &str) {
    detail(out, name, |out| text(out, value));
}

fn detail(out: &mut Vec<u8>, name: &str, value: impl FnOnce(&mut Vec<u8>)) {
    nested(out, 4, |out| {
        nested(out, 6, value);
        bytes(out, 10, name.as_bytes());
    });
}

/// A pass as Perfetto's UI shows it.
fn put_pass_shown(out: &mut Vec<u8>, pass: &Pass) {
    number_detail(out, "level", u64::from(pass.level));
    text_detail(out, "entry", pass.entry.name());
    text_detail(out, "outcome", pass.outcome.name());
    if pass.moved > 0 {
        number_detail(out, "moved", u64::from(pass.moved));
    }
    let is_skipped = pass.skipped != Skipped::default();
    if is_skipped {
        detail(out, "skipped", |out| formatted(out, format_args!("{}", pass.skipped)));
    }
    let mut left = SHOWN_MAX;
    for (at, group) in shown_groups(pass).iter().enumerate() {
        let before = out.len();
        let mut length = 0;
        nested(out, 4, |out| {
            nested(out, 6, |out| {
                let begins = out.len();
                put_group_text(out, group);
                length = out.len() - begins;
            });
            nested(out, 10, |out| match at {
                0 => text(out, "own group"),
                _ => {
                    text(out, "group ");
                    decimal(out, at as u64);
                }
            });
        });
        if length > left {
            out.truncate(before);
            break;
        }
        left -= length;
    }
    put_instant(out, Track::Passes, |out| {
        text(out, "core ");
        decimal(out, u64::from(pass.core.0));
        text(out, ", level ");
        decimal(out, u64::from(pass.level));
        for part in [", ", pass.entry.name(), ": ", pass.outcome.name()] {
            text(out, part);
        }
        if pass.moved > 0 {
            text(out, " ");
            decimal(out, u64::from(pass.moved));
        }
        if is_skipped {
            formatted(out, format_args!(" (skipped {})", pass.skipped));
        }
    });
}

fn shown_groups(pass: &Pass) -> &[PassGroup] {
    &pass.groups[..pass.groups.len().min(Pass::GROUPS_MAX)]
}

/// As `PassGroup`'s `Display`.
fn put_group_text(out: &mut Vec<u8>, group: &PassGroup) {
    text(out, "{");
    put_list(out, &group.cores);
    for (name, value) in
        [("}: sum ", group.sum), (", mean ", group.mean), (", minimum ", group.minimum)]
    {
        text(out, name);
        decimal(out, value);
    }
    text(out, ", ");
    decimal(out, u64::from(group.queued));
    text(out, " queued, ");
    decimal(out, u64::from(group.idle));
    text(out, " idle, ");
    text(out, group.kind.name());
}

/// A pass with its exact values: `WirePass`.
fn put_pass(out: &mut Vec<u8>, pass: &Pass) {
    number(out, 1, u64::from(pass.core.0));
    number(out, 2, u64::from(pass.level));
    number(out, 3, u64::from(index(&PassEntry::ALL, &pass.entry)));
    number(out, 4, u64::from(index(&PassOutcome::ALL, &pass.outcome)));
    let Skipped { running, pinned, warm, heavy } = pass.skipped;
    for (field, count) in [(5, pass.moved), (6, running), (7, pinned), (8, warm), (9, heavy)] {
        unless_zero(out, field, u64::from(count));
    }
    for group in shown_groups(pass) {
        nested(out, 10, |out| {
            nested(out, 1, |out| put_mask(out, &group.cores));
            unless_zero(out, 2, group.sum);
            unless_zero(out, 3, group.mean);
            unless_zero(out, 4, group.minimum);
            unless_zero(out, 5, u64::from(group.queued));
            unless_zero(out, 6, u64::from(group.idle));
            unless_zero(out, 7, u64::from(index(&GroupKind::ALL, &group.kind)));
        });
    }
}

/// As [`put_set`](super::convert::put_set).
fn put_mask(out: &mut Vec<u8>, cores: &CoreSet) {
    let words = cores.words();
    let Some(last) = words.iter().rposition(|word| *word != 0) else { return };
    for word in &words[..last] {
        out.extend_from_slice(&word.to_le_bytes());
    }
    let used = 8 - words[last].leading_zeros() as usize / 8;
    out.extend_from_slice(&words[last].to_le_bytes()[..used]);
}

#[inline]
fn text(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
}

#[expect(clippy::expect_used, reason = "a vector takes whatever it is given")]
fn formatted(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a vector grows");
}

#[inline]
fn decimal(out: &mut Vec<u8>, mut value: u64) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            return out.extend_from_slice(&digits[at..]);
        }
    }
}

/// As `CoreSet`'s `Display`: `0-3,8`.
fn put_list(out: &mut Vec<u8>, cores: &CoreSet) {
    // The runs of each word; one that reaches the end of a word may go on in the next.
    let mut open: Option<(u64, u64)> = None;
    let mut separator = "";
    let mut close = |out: &mut Vec<u8>, (first, last): (u64, u64)| {
        text(out, std::mem::replace(&mut separator, ","));
        decimal(out, first);
        if last > first {
            text(out, "-");
            decimal(out, last);
        }
    };
    for (at, word) in cores.words().iter().enumerate() {
        let (base, mut rest) = (at as u64 * 64, *word);
        while rest != 0 {
            let begins = rest.trailing_zeros();
            let length = (rest >> begins).trailing_ones();
            let (first, last) = (base + u64::from(begins), base + u64::from(begins + length - 1));
            open = match open {
                Some((start, end)) if end + 1 == first => Some((start, last)),
                Some(run) => {
                    close(out, run);
                    Some((first, last))
                }
                None => Some((first, last)),
            };
            let done = begins + length;
            rest = if done == 64 { 0 } else { rest >> done << done };
        }
    }
    if let Some(run) = open {
        close(out, run);
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_nested_field_of_any_length_has_its_length_before_it() {
        for length in [0, 1, 127, 128, 16_383, 16_384, 3_000_000] {
            let content = vec![7; length];
            let (mut ours, mut theirs) = (vec![1], vec![1]);
            nested(&mut ours, 2000, |out| out.extend_from_slice(&content));
            bytes(&mut theirs, 2000, &content);
            assert_eq!(ours, theirs, "{length} bytes");
        }
    }

    proptest! {
        #[test]
        fn lists_and_masks_of_cores_are_as_others_write_them(
            runs in vec((0u16..1024, 1u16..200), 0..6),
            value in any::<u64>(),
        ) {
            let of_run = |(first, length): (u16, u16)| (first..(first + length).min(1024)).map(CoreId);
            let cores: CoreSet = runs.into_iter().flat_map(of_run).collect();
            let mut list = Vec::new();
            put_list(&mut list, &cores);
            prop_assert_eq!(String::from_utf8(list).unwrap(), cores.to_string());
            let mut mask = Vec::new();
            put_mask(&mut mask, &cores);
            prop_assert_eq!(mask, super::super::convert::put_set(&cores));
            let mut digits = Vec::new();
            decimal(&mut digits, value);
            prop_assert_eq!(String::from_utf8(digits).unwrap(), value.to_string());
        }
    }
}
