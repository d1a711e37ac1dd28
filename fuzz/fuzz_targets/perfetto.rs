//! Perfetto traces: whatever is read is written again and read the same.

#![no_main]

use libfuzzer_sys::fuzz_target;
use quell_trace::perfetto::{Reader, Writer};
use quell_trace::stream::{Sink, Source};

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut reader) = Reader::new(bytes) else { return };
    let mut writer = Writer::new(Vec::new());
    writer.meta(reader.meta()).expect("a Meta is written");
    let mut events = Vec::new();
    for event in reader.by_ref().map_while(Result::ok) {
        writer.event(&event).expect("an event that was read is written");
        events.push(event);
    }
    writer.finish().expect("a vector takes all");
    let written = writer.into_inner();
    let again: Result<Vec<_>, _> = Reader::new(&written[..]).expect("it is a trace").collect();
    assert_eq!(again.expect("it is whole"), events);
    let _ = Reader::resume(bytes, 0).map(|reader| reader.for_each(drop));
});
