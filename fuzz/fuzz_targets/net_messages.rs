//! Heads of messages over a virtual socket.

#![no_main]

use libfuzzer_sys::fuzz_target;
use quell_net::messages::{HEAD_BYTES, Head, PAYLOAD_MAX};

fuzz_target!(|bytes: &[u8]| {
    for bytes in bytes.as_chunks::<HEAD_BYTES>().0 {
        if let Ok(head) = Head::decode(bytes, PAYLOAD_MAX) {
            assert!(head.length <= PAYLOAD_MAX);
            assert_eq!(head.encode(), *bytes);
        }
    }
});
