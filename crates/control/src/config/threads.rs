//! `[[task.threads]]`: roles that the operator gives to threads by their names.

use quell_model::{Class, Role};
use serde::Deserialize;
use toml::Spanned;

use super::raw::Place;
use super::{ConfigError, LaneConfig};

/// Rules of one task at most.
const RULES_MAX: usize = 64;
/// The kernel keeps so many bytes of a thread's name.
const COMM_BYTES_MAX: usize = 15;

/// Threads with names that fit have this role, whatever their bursts are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadRule {
    /// A name as `/proc/TID/comm` shows it; `*` stands for any bytes.
    name: String,
    /// The role.
    pub role: Role,
}

/// A rule as typed.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawThreadRule {
    name: Spanned<String>,
    role: TypedRole,
}

/// The roles that can be given.
#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum TypedRole {
    Event,
    LongEvent,
    Background,
}

impl ThreadRule {
    /// Whether a thread with this name is meant.
    pub fn fits(&self, name: &str) -> bool {
        fits(self.name.as_bytes(), name.as_bytes())
    }
}

/// Whether a pattern with `*` fits a whole name.
fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let mut parts = pattern.split(|&byte| byte == b'*');
    let first = parts.next().unwrap_or_default();
    let Some(mut rest) = name.strip_prefix(first) else { return false };
    let mut parts = parts.peekable();
    if parts.peek().is_none() {
        return rest.is_empty();
    }
    while let Some(part) = parts.next() {
        if parts.peek().is_none() {
            return rest.ends_with(part);
        }
        // The first place leaves most for the parts that follow.
        let found = (0..=rest.len()).find(|&at| rest[at..].starts_with(part));
        let Some(at) = found else { return false };
        rest = &rest[at + part.len()..];
    }
    true
}

/// The rules of a task. Batch work has no roles, and lanes order their members themselves.
pub(super) fn rules(
    place: &Place,
    task: &str,
    class: Class,
    lane: Option<&Spanned<LaneConfig>>,
    typed: Vec<RawThreadRule>,
) -> Result<Vec<ThreadRule>, ConfigError> {
    let count = typed.len();
    let mut rules = Vec::with_capacity(count.min(RULES_MAX));
    for RawThreadRule { name, role } in typed {
        let refuse = |what: String, remedy: &str| Err(place.error(&name, what, remedy));
        if class == Class::BestEffort || lane.is_some() {
            let what = format!("task `{task}` has no roles of threads");
            return refuse(what, "[[task.threads]] goes with class = \"lc\" and without a lane");
        }
        if rules.len() == RULES_MAX {
            let what = format!("task `{task}` has {count} rules for threads");
            return refuse(what, "at most 64; one name with `*` fits many threads");
        }
        let text = name.get_ref();
        let fixed = text.len() - text.matches('*').count();
        if text.is_empty() || fixed > COMM_BYTES_MAX || text.len() > 2 * COMM_BYTES_MAX + 1 {
            let what = format!("task `{task}`: `{}` is the name of no thread", text.escape_debug());
            return refuse(
                what,
                "1 to 15 bytes, as /proc/PID/task/TID/comm shows it; `*` stands for any",
            );
        }
        let role = match role {
            TypedRole::Event => Role::Event,
            TypedRole::LongEvent => Role::LongEvent,
            TypedRole::Background => Role::Background,
        };
        rules.push(ThreadRule { name: name.into_inner(), role });
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_star_stands_for_any_bytes() {
        for (pattern, name) in [
            ("GC Thread#0", "GC Thread#0"),
            ("GC*", "GC Thread#0"),
            ("*", ""),
            ("*#*", "GC Thread#0"),
            ("C*T*", "C2 CompilerThre"),
            ("*aba", "ababa"),
            ("a*b*a", "aba"),
        ] {
            assert!(fits(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
        for (pattern, name) in
            [("GC", "GC Thread#0"), ("*#1", "GC Thread#0"), ("a*a", "a"), ("", "a"), ("b*", "ab")]
        {
            assert!(!fits(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
    }

    #[test]
    fn a_rule_that_fits_nothing_is_refused_with_its_line() {
        let read = |class: &str, name: &str, role: &str| {
            let text = format!(
                "[[task]]\nname = \"web\"\nclass = \"{class}\"\npid = 7\n[[task.threads]]\n\
                 name = \"{name}\"\nrole = \"{role}\"\n"
            );
            super::super::Config::parse(&text, "a.toml").map_err(|err| err.to_string())
        };
        let rules = read("lc", "GC*", "long-event").unwrap().tasks.remove(0).threads;
        assert_eq!((rules.len(), rules[0].role), (1, Role::LongEvent));
        for (class, name, role, said) in [
            ("be", "a", "background", "class = \"lc\""),
            ("lc", "", "background", "name of no thread"),
            ("lc", "a-name-of-16-byte", "background", "name of no thread"),
            ("lc", "a", "fair", "unknown variant"),
        ] {
            let refused = read(class, name, role).unwrap_err();
            assert!(refused.contains("a.toml:") && refused.contains(said), "{refused}");
        }
    }

    proptest! {
        #[test]
        fn a_name_with_parts_left_out_fits(
            parts in proptest::collection::vec("[ab]{0,4}", 1..6), between in "[ab]{0,3}"
        ) {
            let (pattern, name) = (parts.join("*"), parts.join(&between));
            prop_assert!(fits(pattern.as_bytes(), name.as_bytes()), "{pattern} {name}");
        }
    }
}
