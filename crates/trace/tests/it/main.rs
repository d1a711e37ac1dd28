//! Traces and recordings, written and read.

mod import;
mod perfetto;
