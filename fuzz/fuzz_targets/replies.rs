//! Replies of servers, in every protocol of the load generator: none panics, and a whole one is as long as it says,
//! however the bytes are cut.

#![no_main]

use libfuzzer_sys::fuzz_target;
use quell_load::ProtocolSpec;
use quell_load::protocol::{Parsed, Token};

const PROTOCOLS: [&str; 6] = [
    r#"{"protocol": "memcached"}"#,
    r#"{"protocol": "memcached-binary"}"#,
    r#"{"protocol": "redis"}"#,
    r#"{"protocol": "http", "host": "localhost", "paths": ["/"]}"#,
    r#"{"protocol": "postgres"}"#,
    r#"{"protocol": "synthetic", "service": "fixed", "work_ns": 1000}"#,
];

fuzz_target!(|input: (u8, u64, Vec<u8>)| {
    let (which, token, bytes) = input;
    let spec = PROTOCOLS[usize::from(which) % PROTOCOLS.len()];
    let spec: ProtocolSpec = serde_json::from_str(spec).expect("a specification");
    let protocol = spec.build().expect("it makes sense");
    let token = Token(token);
    let Ok(Parsed::Reply { len, status }) = protocol.parse(&bytes, token) else { return };
    assert!((1..=bytes.len()).contains(&len));
    let cut = protocol.parse(&bytes[..len], token);
    assert_eq!(cut, Ok(Parsed::Reply { len, status }), "what follows changes no reply");
});
