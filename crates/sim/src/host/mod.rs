//! The host's side of the contract: Plans into rights, the state into Snapshots.

mod backend;
mod observe;

pub(crate) use backend::Backend;
pub(crate) use observe::{RtShare, room};
