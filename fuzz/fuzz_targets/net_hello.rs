//! The first bytes of a channel of virtual sockets.

#![no_main]

use libfuzzer_sys::fuzz_target;
use quell_net_engine::wire::{HELLO_BYTES, Hello};

fuzz_target!(|bytes: &[u8]| {
    let Some(bytes) = bytes.first_chunk::<HELLO_BYTES>() else { return };
    if let Ok(hello) = Hello::decode(bytes) {
        assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
    }
});
