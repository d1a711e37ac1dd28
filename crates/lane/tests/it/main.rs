//! Lanes inside programs, in Rust, C, C++, Python and shell.

mod common;
mod examples;
mod header;
mod lane;
