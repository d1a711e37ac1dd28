//! The daemon, with parts of it in the test's own process.

mod guardian;
