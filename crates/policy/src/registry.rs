//! Policies by name.

use quell_model::Nanos;
use serde::{Deserialize, Serialize};

use crate::{Host, Policy, Quell, Static};

/// The names that [`by_name`] knows.
pub const NAMES: [&str; 2] = ["quell", "static"];

/// What an operator can set about a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Delay (99.9th percentile) that a BE task's kernel sections may cause LC threads before it is
    /// kept off their cores for a while.
    pub delay_bound: Nanos,
}

impl Default for Config {
    fn default() -> Self {
        Config { delay_bound: Nanos::from_micros(300) }
    }
}

/// No policy has this name.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no policy `{0}`; choose one of: {names}", names = NAMES.join(", "))]
pub struct UnknownPolicy(String);

/// Builds the policy of this name.
///
/// # Errors
/// When no policy has this name; the message lists those that exist.
pub fn by_name(name: &str, host: Host, config: Config) -> Result<Box<dyn Policy>, UnknownPolicy> {
    match name {
        "quell" => Ok(Box::new(Quell::new(host, config))),
        "static" => Ok(Box::new(Static::new(host))),
        other => Err(UnknownPolicy(other.to_owned())),
    }
}
