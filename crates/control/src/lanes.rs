//! Lanes as typed: in a file, or on the command line.

use quell_model::{Children, renamed_in};
use serde::{Deserialize, Deserializer, de::Error as _};

use crate::config::{CONFIG_BYTES_MAX, ConfigError};

/// Keys of earlier releases, and their new names.
const RENAMED: [(&str, &str); 3] =
    [("budget", "quantum"), ("hung_after_ms", "watchdog_timeout_ms"), ("jobs", "edf")];

/// How the scheduler of a lane waits for the end of a turn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LanePattern {
    /// Asleep, on a timer, on the lane's own core.
    #[default]
    Shared,
    /// Spinning on another core, for all lanes.
    Dedicated,
}

/// A set of lanes as typed; what the texts mean is not checked yet.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LanesConfig {
    /// How schedulers wait.
    #[serde(default)]
    pub pattern: LanePattern,
    /// Where a dedicated scheduler spins; the lowest core without a lane if not said.
    pub scheduler_core: Option<u16>,
    /// What becomes of new processes of a member; never [`Children::Be`].
    #[serde(default, deserialize_with = "lane_children")]
    pub children: Children,
    /// After how long without a sign of life, in ms, the guardians end the lanes; 1000 if not said.
    pub watchdog_timeout_ms: Option<u64>,
    /// The lanes.
    pub lane: Vec<LaneConfig>,
}

/// One lane as typed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaneConfig {
    /// Its core.
    pub core: u16,
    /// The policy's name.
    pub policy: Option<String>,
    /// Length of a turn: round robin, table, fair.
    pub slice: Option<String>,
    /// Slots: `A,A,B,C`, or `A:50us,B:20us`.
    pub table: Option<String>,
    /// Time after which the running member must yield if others wait: preemptive.
    pub quantum: Option<String>,
    /// How long the preempted wait at most: preemptive.
    pub resume_after: Option<String>,
    /// EDF: period and runtime, `A:10ms/2ms`, or with a deadline `A:10ms/2ms/8ms`.
    pub edf: Option<String>,
    /// Fair: `A:3,B:1`.
    pub weights: Option<String>,
    /// Who runs there.
    #[serde(default)]
    pub member: Vec<MemberConfig>,
}

/// One member as typed: one of command, pid and tid.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MemberConfig {
    /// Its name; A, B, C and so on if not said.
    pub name: Option<String>,
    /// A program to start, for a shell.
    pub command: Option<String>,
    /// A process: all its threads.
    pub pid: Option<i32>,
    /// A thread alone.
    pub tid: Option<i32>,
}

fn lane_children<'de, D: Deserializer<'de>>(from: D) -> Result<Children, D::Error> {
    match Children::deserialize(from)? {
        Children::Be => Err(D::Error::custom("`children` of lanes is `adopt` or `leave`")),
        children => Ok(children),
    }
}

impl LanesConfig {
    /// Reads a file of lanes from TOML; `file` is only for messages.
    ///
    /// # Errors
    /// Names the file, the line and what is wrong.
    pub fn parse(text: &str, file: &str) -> Result<LanesConfig, ConfigError> {
        let error = |line, what: String| ConfigError {
            file: file.to_owned(),
            line,
            what,
            remedy: "see docs/reference/lanes.md".to_owned(),
        };
        if text.len() > CONFIG_BYTES_MAX {
            return Err(error(None, format!("longer than {CONFIG_BYTES_MAX} bytes")));
        }
        toml::from_str(text).map_err(|bad| {
            let before = bad.span().and_then(|span| text.get(..span.start));
            let line = before.map(|before| before.matches('\n').count() + 1);
            let notice = renamed_in(bad.message(), &RENAMED);
            error(line, notice.unwrap_or_else(|| bad.message().to_owned()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_file_of_lanes_reads_as_typed() {
        let text = "pattern = \"dedicated\"\n[[lane]]\ncore = 1\npolicy = \"table\"\nslice = \"50us\"\n\
                    table = \"A,B\"\n[[lane.member]]\ncommand = \"./a\"\n[[lane.member]]\npid = 7\n";
        let config = LanesConfig::parse(text, "lanes.toml").unwrap();
        assert_eq!(config.pattern, LanePattern::Dedicated);
        assert_eq!(config.lane[0].member[1].pid, Some(7));
    }

    #[test]
    fn what_is_unknown_is_named_with_its_line() {
        let error = LanesConfig::parse("[[lane]]\ncore = 1\nsclice = \"5us\"\n", "f").unwrap_err();
        assert_eq!(error.line, Some(3));
        assert!(error.to_string().contains("sclice"), "{error}");
    }

    #[test]
    fn children_of_lanes_are_adopted_or_left() {
        let parse = |value: &str| {
            LanesConfig::parse(&format!("\nchildren = \"{value}\"\n[[lane]]\ncore = 1\n"), "f")
        };
        assert_eq!(parse("leave").unwrap().children, Children::Leave);
        let error = parse("be").unwrap_err();
        assert_eq!((error.line, error.what.contains("`adopt` or `leave`")), (Some(2), true));
    }

    #[test]
    fn renamed_key_is_refused_with_its_new_name() {
        for (old, new) in RENAMED {
            let head = if old == "hung_after_ms" { "" } else { "[[lane]]\ncore = 1\n" };
            let error = LanesConfig::parse(&format!("{head}{old} = \"1\"\n"), "f").unwrap_err();
            assert_eq!(error.what, format!("`{old}` was renamed to `{new}`"));
            assert_eq!(error.line, Some(head.lines().count() + 1));
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,200}") {
            let _ = LanesConfig::parse(&text, "f");
        }
    }
}
