//! Records that are well framed and false inside: their checksums are right, so that they reach the parsers and
//! the policies.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::io::Cursor;

use proptest::prelude::*;
use quell_model::{Nanos, Plan};
use quell_policy::{Config, by_name};

use super::common::{Dice, host, snapshots};
use super::format::Preamble;
use super::frame::{Kind, append, first};
use super::*;

/// The recording with each payload changed by `change`, and framed again.
fn forged(file: &[u8], mut change: impl FnMut(Kind, &mut Vec<u8>)) -> Vec<u8> {
    let mut out = file[..Preamble::BYTES].to_vec();
    let (mut at, mut scratch) = (Preamble::BYTES, Vec::new());
    while let Some((kind, length)) = first(&file[at..]) {
        let prefix = file[at..].iter().take_while(|byte| **byte & 0x80 != 0).count() + 2;
        let mut payload = file[at + prefix..at + length - 4].to_vec();
        change(kind, &mut payload);
        let segment = u32::from(kind != Kind::Meta);
        append(&mut out, &mut scratch, segment, kind, |body| body.extend_from_slice(&payload));
        at += length;
    }
    out
}

fn recorded(rolls: &[u16]) -> Vec<u8> {
    let mut dice = Dice::new(rolls);
    let host = host(&mut dice);
    let mut policy = by_name("quell", host.clone(), Config::default()).unwrap();
    let meta = Meta {
        quell: "0.0.0".to_owned(),
        policy: "quell".to_owned(),
        config: Config::default(),
        topology: host.topology.clone(),
        managed: host.managed,
        caps: host.caps,
        clock: Clock { monotonic: Nanos::ZERO, unix_ns: 0 },
    };
    let mut recorder = Recorder::in_memory(meta, policy.as_ref());
    let mut plan = Plan::default();
    for seen in snapshots(&mut dice, &host) {
        let wake = policy.decide(seen.now, &seen, &mut plan);
        recorder.record(seen.now, &seen, &plan, wake, policy.as_ref());
    }
    recorder.into_sink()
}

const ALL: Options = Options { window: Window { from: Nanos::ZERO, to: Nanos::MAX }, kept: 4 };

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn forged_records_are_refused_or_told_and_never_panic(
        rolls in proptest::collection::vec(any::<u16>(), 0..1500),
        flips in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..24),
    ) {
        let file = recorded(&rolls);
        let mut flips = flips.into_iter().cycle();
        let mut turn = 0u32;
        let forged = forged(&file, |kind, payload| {
            turn += 1;
            // Meta only now and then: a false one ends everything early.
            if payload.is_empty() || (kind == Kind::Meta && rolls.len() % 4 != 0) || turn.is_multiple_of(3) {
                return;
            }
            let (at, byte) = flips.next().unwrap();
            let at = at.index(payload.len());
            payload[at] = byte;
        });
        if let Ok(mut reader) = Reader::new(Cursor::new(&forged)) {
            let _ = replay(&mut reader, ALL);
            let _ = compare(&mut Reader::new(Cursor::new(&forged)).unwrap(), "static", ALL);
            list(&mut Reader::new(Cursor::new(&forged)).unwrap(), Window::default(), |entry, names| {
                entry.seen_in_words(names);
                true
            });
        }
    }

    #[test]
    fn framing_again_without_a_change_gives_the_same_file(rolls in proptest::collection::vec(any::<u16>(), 0..400)) {
        let file = recorded(&rolls);
        prop_assert_eq!(forged(&file, |_, _| {}), file);
    }
}
