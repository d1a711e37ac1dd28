//! What became of a Plan.

use serde::{Deserialize, Serialize};

/// What became of the last Plan for one core. Part of the next Snapshot: retry, repair and
/// explanation follow from it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The host is as planned.
    #[default]
    Done,
    /// Asked for, not yet seen.
    Pending,
    /// The host said no.
    Refused {
        /// The kernel's reason.
        errno: i32,
    },
    /// The state the decision was based on had moved; decided anew next tick.
    Raced,
}
