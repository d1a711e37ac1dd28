//! Datagrams that come to a channel of virtual sockets over UDP.

#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    quell_net::fuzzing::packets(bytes);
});
