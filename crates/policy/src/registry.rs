//! Policies by name.

use quell_model::{BytesPerSec, Nanos};
use serde::{Deserialize, Serialize};

use crate::rivals::{Elfen, Kernel, Parties, PerfIso, Shenango, Static};
use crate::{Host, Policy, Quell};

/// The names that [`by_name`] knows.
pub const NAMES: [&str; 9] = [
    "quell",
    "caladan",
    "static",
    "shenango",
    "elfen",
    "perfiso",
    "parties-star",
    "linux-default",
    "sched-idle",
];

/// What an operator can set about a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Delay (99.9th percentile) that a BE task's kernel sections may cause LC threads before it is
    /// kept off their cores for a while.
    pub delay_bound: Nanos,
    /// `caladan`: memory traffic beyond which BE loses cores; 0: no bandwidth controller.
    pub bandwidth_limit: BytesPerSec,
    /// `caladan`: the least time between two steps of the bandwidth controller, for a host whose counters show
    /// only after a while what was done.
    pub bandwidth_step: Nanos,
    /// `caladan`: whether siblings of cores with a late request are idled.
    pub hyperthread: bool,
    /// `caladan`: whether requests that had their quantum let others go first.
    pub quantum: bool,
    /// Whether threads go first for a moment that hold in the kernel what LC threads wait for.
    pub lock_relief: bool,
    /// `perfiso`: cores that are kept idle; 0: a sixth of the managed ones.
    pub idle_buffer: u32,
}

impl Default for Config {
    fn default() -> Self {
        Config {
            delay_bound: Nanos::from_micros(300),
            bandwidth_limit: BytesPerSec(25_000_000_000),
            bandwidth_step: Nanos::ZERO,
            hyperthread: true,
            quantum: true,
            lock_relief: true,
            idle_buffer: 0,
        }
    }
}

/// Why there is no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// No policy has this name.
    #[error("there is no policy `{0}`; choose one of: {names}", names = NAMES.join(", "))]
    Unknown(String),
    /// A search over the whole scenario, which no policy could make while it decides.
    #[error("`oracle` is no policy but a search; use `quell sim oracle FILE`")]
    Search,
    /// The host lacks what the policy cannot do without.
    #[error("the policy `{policy}` cannot run here: it needs {needs}")]
    Host {
        /// The policy.
        policy: &'static str,
        /// What the host lacks.
        needs: &'static str,
    },
}

/// Builds the policy of this name.
///
/// # Errors
/// When no policy has this name (the message lists those that exist), or the host lacks what it needs.
pub fn by_name(name: &str, host: Host, config: Config) -> Result<Box<dyn Policy>, PolicyError> {
    check(name, &host)?;
    Ok(match name {
        "quell" => Box::new(Quell::new(host, config)),
        "caladan" => Box::new(Quell::caladan(host, config)),
        "static" => Box::new(Static::new(host)),
        "shenango" => Box::new(Shenango::new(host)),
        "elfen" => Box::new(Elfen::new(host)),
        "perfiso" => Box::new(PerfIso::new(host, config.idle_buffer)),
        "parties-star" => Box::new(Parties::new(host)),
        "linux-default" => Box::new(Kernel::untouched(host)),
        "sched-idle" => Box::new(Kernel::be_idle(host)),
        _ => return Err(PolicyError::Unknown(name.to_owned())),
    })
}

/// Whether [`by_name`] would build the policy.
///
/// # Errors
/// As [`by_name`].
pub fn check(name: &str, host: &Host) -> Result<(), PolicyError> {
    if name == "oracle" {
        return Err(PolicyError::Search);
    }
    let known = NAMES.into_iter().find(|known| *known == name);
    let policy = known.ok_or_else(|| PolicyError::Unknown(name.to_owned()))?;
    match lacks(policy, host) {
        Some(needs) => Err(PolicyError::Host { policy, needs }),
        None => Ok(()),
    }
}

/// The names of the policies that this host can run.
pub fn names_for(host: &Host) -> impl Iterator<Item = &'static str> {
    NAMES.into_iter().filter(|name| lacks(name, host).is_none())
}

/// What the policy cannot do without and the host does not have.
fn lacks(policy: &str, host: &Host) -> Option<&'static str> {
    let caps = host.caps;
    match policy {
        "shenango" if caps.shares_cores => Some(
            "a back end that gives a core to one task alone and takes it back within microseconds \
             (a runtime or a kernel module); this one shares cores by priority",
        ),
        "elfen" if !host.has_siblings() => {
            Some("two siblings of one physical core among the managed cores")
        }
        "elfen" if !caps.idles_cores => Some("a way to keep a core idle"),
        "perfiso" if !caps.idles_cores => Some("a way to keep batch work off cores"),
        "perfiso" | "linux-default" | "sched-idle" if !caps.shares_cores => {
            Some("a kernel that shares cores among tasks; here a core serves its owner alone")
        }
        _ => None,
    }
}
