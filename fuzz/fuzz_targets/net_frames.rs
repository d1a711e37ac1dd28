//! Frames of a channel of virtual sockets.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| quell_net::fuzzing::frames(bytes));
