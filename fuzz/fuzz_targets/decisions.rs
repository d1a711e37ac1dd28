//! Recordings of decisions.

#![no_main]

use std::io::Cursor;

use libfuzzer_sys::fuzz_target;
use quell_decisions::Reader;

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut reader) = Reader::new(Cursor::new(bytes)) else { return };
    // Built for fuzzing, the reader does not look at checksums: what they would stop must not panic either.
    for _ in reader.by_ref() {}
    let _ = (reader.extent(), reader.damage().len());
});
