//! Texts of real programs.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;

use quell_model::{Event, Source as Origin, What};
use quell_trace::import::{Importer, Options};
use quell_trace::perfetto::{Reader, Writer};
use quell_trace::stream::{Sink, Source};

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

#[test]
fn an_imported_trace_is_kept_as_one_of_ours_without_loss() {
    for name in ["ftrace.txt", "trace-cmd.txt", "perf-sched.txt"] {
        let importer = sample(name);
        let mut writer = Writer::new(Vec::new());
        writer.meta(importer.meta()).unwrap();
        let events: Vec<Event> = importer.map(Result::unwrap).collect();
        events.iter().for_each(|event| writer.event(event).unwrap());
        writer.finish().unwrap();
        let trace = writer.into_inner();
        let back: Vec<Event> = Reader::new(&trace[..]).unwrap().map(Result::unwrap).collect();
        assert_eq!(back, events, "{name}");
    }
}
