//! Lists of requests: whatever is read is answered after it was sent, and read the same again.

#![no_main]

use std::fmt::Write as _;

use libfuzzer_sys::fuzz_target;
use quell_trace::why::read_requests;

fuzz_target!(|bytes: &[u8]| {
    let Ok(requests) = read_requests(bytes) else { return };
    let mut text = String::from("sent,answered\n");
    for (sent, answered) in &requests {
        assert!(sent <= answered);
        writeln!(text, "{},{}", sent.0, answered.0).expect("a string takes all");
    }
    assert_eq!(read_requests(text.as_bytes()).expect("it was just written"), requests);
});
