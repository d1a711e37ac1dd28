//! What happened on a host, written down and read back.
//!
//! * [`check`]: whether threads waited while cores idled that they could have used.
//! * [`lint`]: scheduling domains that keep the balancer from balancing.
//! * [`why`]: windows of time charged to what happened in them, from recorded transitions.
//! * [`stream`]: traces of events ([`quell_model::Event`]), whatever the format; [`perfetto`]: the format in which
//!   they are kept; [`import`] and [`export`]: the text of other programs. [`open()`] reads whichever it is.
//! * [`stats`]: figures of a trace.

pub mod check;
pub mod export;
pub mod host;
pub mod import;
mod kernel;
pub mod lint;
mod open;
pub mod perfetto;
pub mod stats;
pub mod stream;
pub mod why;

pub use open::open;
