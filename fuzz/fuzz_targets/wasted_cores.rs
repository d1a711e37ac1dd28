//! Texts of the Wasted Cores recorder, and the figures of what is read.

#![no_main]

use std::io::Read;

use libfuzzer_sys::fuzz_target;
use quell_trace::import::{Importer, Options};
use quell_trace::stats;

/// So that the format is known.
const FIRST: &str = "1 nsecs RQ 0 1\n";

fuzz_target!(|bytes: &[u8]| {
    let text = std::io::BufReader::new(FIRST.as_bytes().chain(bytes));
    let mut importer = Importer::new(text, Options::default()).expect("its first line is one");
    let (report, _) = stats::read(&mut importer);
    let _ = report.to_string();
});
