//! System calls that no safe crate offers, each behind a safe function.
