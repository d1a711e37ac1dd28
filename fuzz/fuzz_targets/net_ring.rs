//! Memory that is shared with a process that writes anything into it.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| quell_net::fuzzing::ring(bytes));
