//! A policy's memory as bytes. They come back from files, so nothing in them is trusted.

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Bytes that are not the saved state of this policy on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the state of this policy on this host: {0}")]
pub struct BadState(pub(crate) &'static str);

/// Appends a value.
pub(crate) fn put<T: Serialize>(value: &T, state: &mut Vec<u8>) {
    // Writing into memory cannot fail, and every table knows its length.
    let written = postcard::to_io(value, state);
    debug_assert!(written.is_ok());
}

/// Takes a value off the front. A length that lies costs no more memory than the bytes that follow.
pub(crate) fn take<T: DeserializeOwned>(state: &mut &[u8]) -> Result<T, BadState> {
    let (value, rest) =
        postcard::take_from_bytes(state).map_err(|_| BadState("it does not parse"))?;
    *state = rest;
    Ok(value)
}

/// An error unless it is so.
pub(crate) fn ensure(is_so: bool, what: &'static str) -> Result<(), BadState> {
    if is_so { Ok(()) } else { Err(BadState(what)) }
}
