//! Hint pages, written and read in Rust, C and C++.

mod header;
mod pages;
