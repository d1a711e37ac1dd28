//! Traces that are replayed: whatever is read has a replay that ends.

#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use quell_sim::Window;
use quell_study::replayed::{read, replay};
use quell_trace::import::Options;

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut source) = quell_trace::open(Cursor::new(bytes.to_vec()), Options::default()) else {
        return;
    };
    let topology = source.meta().topology.clone();
    let Ok(recording) = read(source.as_mut(), Window::default()) else { return };
    assert_eq!(recording.check(), Ok(()));
    let steps: usize = recording.program.kinds.iter().map(|kind| kind.steps.len()).sum();
    // A replay takes as long as there are ticks in it.
    let is_short = recording.figures.length.0 < 100_000_000;
    if recording.threads.is_empty() || steps > 500 || topology.len() > 16 || !is_short {
        return;
    }
    let report = replay(&recording, &topology, "linux-6.12").expect("it was checked");
    assert!(report.broken.is_empty(), "{:?}", report.broken);
    assert!(report.tasks[0].completed.is_some(), "threads wait for what never comes");
});
