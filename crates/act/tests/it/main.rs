//! The executor on a whole host, and the exhaustive model of its protocol.

mod executor_host;
mod protocol;
