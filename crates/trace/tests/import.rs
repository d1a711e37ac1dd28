//! Texts of real programs, and of any length.

mod counting;

use std::fs::File;
use std::io::{BufReader, Read};
use std::path::PathBuf;

use quell_model::{Event, Source as Origin, What};
use quell_trace::import::{Importer, Options};
use quell_trace::stream::Source;

fn sample(name: &str) -> Importer<BufReader<File>> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    Importer::new(BufReader::new(File::open(path).unwrap()), Options::default()).unwrap()
}

fn count(events: &[Event], of: impl Fn(&What) -> bool) -> usize {
    events.iter().filter(|event| of(&event.what)).count()
}

/// Every program's sample is whole, in order, of two cores, and its queues end where its switches say.
#[test]
fn samples_of_real_programs_are_read_to_their_end() {
    for (name, source) in [
        ("ftrace.txt", Origin::Ftrace),
        ("trace-cmd.txt", Origin::Ftrace),
        ("perf-sched.txt", Origin::Perf),
    ] {
        let importer = sample(name);
        assert_eq!((importer.meta().source, importer.meta().topology.len()), (source, 2), "{name}");
        let events: Vec<Event> = importer.map(Result::unwrap).collect();
        assert!(events.is_sorted_by_key(|event| event.at), "{name}");
        let text = std::fs::read_to_string(
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name),
        );
        let lines = text.unwrap().lines().filter(|line| line.contains("sched_switch:")).count();
        assert!(lines > 10);
        assert_eq!(count(&events, |what| matches!(what, What::Switch { .. })), lines, "{name}");
        assert!(count(&events, |what| matches!(what, What::Waking { .. })) > 10, "{name}");
        assert!(count(&events, |what| matches!(what, What::Fork { .. })) > 0, "{name}");
    }
}

#[test]
fn kinds_that_are_none_of_ours_are_counted() {
    let mut importer = sample("perf-sched.txt");
    importer.by_ref().for_each(drop);
    let remarks = importer.remarks();
    assert!(remarks.iter().any(|remark| remark.contains("`sched_stat_runtime`")), "{remarks:?}");
}

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
fn memory_does_not_grow_with_the_text() {
    let lines = 300_000;
    let text = Endless { at: 0, lines, line: Vec::new(), used: 0 };
    let importer = Importer::new(BufReader::new(text), Options::default()).unwrap();
    let (mut seen, mut peak_early) = (0u64, 0);
    for event in importer {
        event.unwrap();
        seen += 1;
        if seen == lines / 10 {
            peak_early = counting::peak_bytes();
        }
    }
    assert!(seen > lines);
    let grown = counting::peak_bytes() - peak_early;
    assert!(grown < 64 << 10, "{grown} bytes more for ten times the text");
}
