//! Whether a report is evidence: measured at a clean commit that is part of this history, by one run, and not changed since.

use std::path::Path;
use std::process::Command;

use crate::BenchReport;

/// The key of the checksum, which stands in the first line of a file.
const KEY: &str = "checksum";

/// Why the figures of a report may not be quoted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Distrust {
    /// The tree had changes that no commit has.
    Dirty,
    /// The commit is not known.
    Unknown,
    /// The commit is no ancestor of the current one.
    Foreign,
    /// The file has no checksum, or not that of its text: lines of several runs, or changed by hand.
    Changed,
}

impl std::fmt::Display for Distrust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Distrust::Dirty => {
                "measured with changes that no commit has: commit them and measure again"
            }
            Distrust::Unknown => {
                "the measured commit is unknown: measure again inside the repository"
            }
            Distrust::Foreign => {
                "the measured commit is no ancestor of HEAD: measure again on this branch"
            }
            Distrust::Changed => {
                "not as one run wrote it (no checksum, or another one): measure again"
            }
        })
    }
}

/// The text of a report with the checksum of all that follows it.
pub(crate) fn seal(text: &str) -> String {
    match text.strip_prefix("{\n") {
        Some(rest) => {
            format!("{{\n  \"{KEY}\": \"{:08x}\",\n{rest}", crc32fast::hash(rest.as_bytes()))
        }
        None => text.to_owned(),
    }
}

/// Whether a file is as [`seal`] made it.
fn is_sealed(text: &str) -> bool {
    let Some(rest) = text.strip_prefix(&format!("{{\n  \"{KEY}\": \"")) else { return false };
    let Some((sum, rest)) = rest.split_once("\",\n") else { return false };
    u32::from_str_radix(sum, 16) == Ok(crc32fast::hash(rest.as_bytes()))
}

/// Judges the text of a file and the report that it holds. `is_ancestor` says whether a commit leads to the current one.
///
/// # Errors
/// The first reason to distrust it.
pub fn judge(
    text: &str,
    report: &BenchReport,
    is_ancestor: impl Fn(&str) -> bool,
) -> Result<(), Distrust> {
    let commit = report.commit.as_str();
    if commit.ends_with("-dirty") {
        return Err(Distrust::Dirty);
    }
    if commit.len() < 12 || !commit.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Err(Distrust::Unknown);
    }
    if !is_ancestor(commit) {
        return Err(Distrust::Foreign);
    }
    if is_sealed(text) { Ok(()) } else { Err(Distrust::Changed) }
}

/// Whether a commit leads to the current one of the repository at `root`.
pub fn is_ancestor(root: &Path, commit: &str) -> bool {
    let mut git = Command::new("git");
    git.arg("-C").arg(root).args(["merge-base", "--is-ancestor", commit, "HEAD"]);
    git.output().is_ok_and(|output| output.status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(commit: &str) -> (String, BenchReport) {
        let mut report = BenchReport::new("sample", "quell bench sample");
        report.commit = commit.to_owned();
        report.push("stream", "quell", "p999_us", vec![110.25, 90.5]);
        (seal(&report.to_json().unwrap()), report)
    }

    const COMMIT: &str = "0123456789ab";

    #[test]
    fn what_one_run_wrote_at_an_ancestor_is_evidence() {
        let (text, report) = report(COMMIT);
        assert_eq!(judge(&text, &report, |commit| commit == COMMIT), Ok(()));
        assert_eq!(serde_json::from_str::<BenchReport>(&text).unwrap(), report);
    }

    #[test]
    fn changed_foreign_dirty_and_unknown_reports_are_refused() {
        for (commit, leads, expected) in [
            ("0123456789ab-dirty", true, Distrust::Dirty),
            ("unknown", true, Distrust::Unknown),
            ("0123", true, Distrust::Unknown),
            (COMMIT, false, Distrust::Foreign),
        ] {
            let (text, report) = report(commit);
            assert_eq!(judge(&text, &report, |_| leads), Err(expected), "{commit}");
        }
        let (text, report) = report(COMMIT);
        let changed = text.replace("90.5", "80.5");
        assert_ne!(changed, text);
        assert_eq!(judge(&changed, &report, |_| true), Err(Distrust::Changed));
        let bare = report.to_json().unwrap();
        assert_eq!(judge(&bare, &report, |_| true), Err(Distrust::Changed));
    }
}
