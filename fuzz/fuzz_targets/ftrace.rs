//! Texts of ftrace, `trace-cmd report` and `perf sched script`, and the figures of what is read.

#![no_main]

use std::io::Read;

use libfuzzer_sys::fuzz_target;
use quell_trace::import::{Importer, Options};
use quell_trace::stats;

/// So that the format is known.
const FIRST: &str = "a-1 [000] d..2. 1.000000: sched_process_exit: comm=a pid=1 prio=120\n";

fuzz_target!(|bytes: &[u8]| {
    let text = std::io::BufReader::new(FIRST.as_bytes().chain(bytes));
    let mut importer = Importer::new(text, Options::default()).expect("its first line is one");
    let (report, _) = stats::read(&mut importer);
    let _ = report.to_string();
});
