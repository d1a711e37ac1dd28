//! A key-value server in the text protocol of memcached, but for how it waits: that is up to the program.

mod options;
mod session;
mod store;

pub use options::Options;
pub use session::{Next, Session};
pub use store::Store;
