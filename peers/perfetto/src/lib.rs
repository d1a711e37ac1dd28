//! Quell's traces, decoded with the messages that are generated from Perfetto's own definitions: `tests/decode.rs`.
