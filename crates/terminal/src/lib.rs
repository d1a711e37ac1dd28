//! What the programs `quell` and `quell-lab` share: the commit, and towards a terminal quantities, tables, progress, Ctrl-C,
//! logging, man pages.

pub mod generate;
mod progress;
pub mod quantity;
pub mod renamed;
mod start;
pub mod table;

pub use progress::{Live, Progress, Silent, Stop};
pub use start::{end_quietly_on_closed_pipes, interrupted, start_logging};

/// The commit that this program was built from, 12 digits; `-dirty` follows when its sources had changes. `unknown` without a
/// repository, `unknown-debug-build` of a debug build.
pub fn commit() -> &'static str {
    env!("QUELL_COMMIT")
}
