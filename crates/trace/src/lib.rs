//! What happened on a host, written down and read back.
//!
//! * [`decisions`]: Snapshots and Plans, recorded and replayed through the same or another policy.
//! * [`why`]: windows of time charged to what happened in them, from recorded transitions.
//! * [`stream`]: traces of events ([`quell_model::Event`]), whatever the format; [`perfetto`]: the format in which
//!   they are kept; [`import`] and [`export`]: the text of other programs. [`open()`] reads whichever it is.
//! * [`stats`]: figures of a trace.

pub mod decisions;
pub mod export;
mod host;
pub mod import;
mod kernel;
mod open;
pub mod perfetto;
pub mod stats;
pub mod stream;
pub mod why;

pub use open::open;
