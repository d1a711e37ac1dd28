//! What the programs `quell` and `quell-lab` share towards a terminal: quantities, tables, progress, Ctrl-C, logging,
//! man pages.

pub mod generate;
mod progress;
pub mod quantity;
pub mod renamed;
mod start;
pub mod table;

pub use progress::{Live, Progress, Silent, Stop};
pub use start::{end_quietly_on_closed_pipes, interrupted, start_logging};
