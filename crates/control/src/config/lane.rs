//! `[task.lane]`: members that share one core by slices, as typed. What the texts mean, the daemon checks with its policies.

use quell_model::Children;
use serde::{Deserialize, Serialize};
use toml::Spanned;

use super::ConfigError;
use super::raw::Place;

/// How the scheduler of a lane waits for the end of a slice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LanePattern {
    /// Asleep, on a timer, on the lane's own core.
    #[default]
    Shared,
    /// Spinning on an unmanaged core, for all lanes that name it.
    Dedicated,
}

/// A lane as typed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaneConfig {
    /// How its scheduler waits.
    #[serde(default)]
    pub pattern: LanePattern,
    /// Where a dedicated scheduler spins; the lowest unmanaged core if not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scheduler_core: Option<u16>,
    /// The policy's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Length of a slice: round robin, table, fair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slice: Option<String>,
    /// Slots: `A,A,B,C`, or `A:50us,B:20us`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub table: Option<String>,
    /// Time after which the running member must yield if others wait: preemptive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub quantum: Option<String>,
    /// How long the preempted wait at most: preemptive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resume_after: Option<String>,
    /// EDF: period and runtime, `A:10ms/2ms`, or with a deadline `A:10ms/2ms/8ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub edf: Option<String>,
    /// Fair: `A:3,B:1`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weights: Option<String>,
    /// The members.
    #[serde(default)]
    pub member: Vec<MemberConfig>,
}

/// One member as typed: one of command, pid and tid.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberConfig {
    /// Its name; A, B, C and so on if not said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// A program to start, for a shell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub command: Option<String>,
    /// A process: all its threads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<i32>,
    /// A thread alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tid: Option<i32>,
}

/// Refuses what a task cannot be beside a lane.
pub(super) fn check(
    place: &Place,
    task: &str,
    lane: &Spanned<LaneConfig>,
    cores: u32,
    children: Children,
) -> Result<(), ConfigError> {
    let refuse = |what: String, remedy| Err(place.error(lane, what, remedy));
    if lane.get_ref().member.is_empty() {
        let remedy = "[[task.lane.member]] with one of `command`, `pid`, `tid`";
        return refuse(format!("the lane of task `{task}` has no member"), remedy);
    }
    if cores > 1 {
        let what = format!("task `{task}` is a lane that asks for {cores} cores");
        return refuse(what, "a lane has one core: leave `max` out");
    }
    if children == Children::Be {
        let what = format!("task `{task}` is a lane with children = \"be\"");
        return refuse(what, "`adopt` or `leave`: a process is a member or it is not");
    }
    let pattern = lane.get_ref().pattern;
    if lane.get_ref().scheduler_core.is_some() && pattern == LanePattern::Shared {
        let what = format!("the lane of task `{task}` names a `scheduler_core`");
        return refuse(what, "`scheduler_core` goes with pattern = \"dedicated\"");
    }
    Ok(())
}
