//! Findings as text for people.

use std::fmt;

use super::{Finding, Status, Topic};

/// Findings by topic, each with consequence and, unless it passed, remedy; a count at the end.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    findings: &'a [Finding],
    width: usize,
    colour: bool,
    evidence: bool,
}

const INDENT: usize = 12;
const WIDTH_MIN: usize = 40;
/// Where there is no terminal to ask.
const WIDTH: usize = 100;

impl<'a> Table<'a> {
    /// Fits the terminal that standard output is, if it is one. No colours where it is none, or where
    /// `NO_COLOR` is set.
    pub fn new(findings: &'a [Finding], terminal: bool) -> Table<'a> {
        let size =
            terminal.then(|| rustix::termios::tcgetwinsize(std::io::stdout()).ok()).flatten();
        let width = size.map_or(WIDTH, |size| size.ws_col.into());
        let colour = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        // A serial console says that it has no columns.
        Table { findings, width: if width == 0 { WIDTH } else { width }, colour, evidence: false }
    }

    /// Shows the file or system call behind each finding as well.
    #[must_use]
    pub fn with_evidence(self) -> Table<'a> {
        Table { evidence: true, ..self }
    }

    fn finding(&self, f: &mut fmt::Formatter<'_>, finding: &Finding) -> fmt::Result {
        let colour = match finding.status {
            Status::Pass => "32",
            Status::Degraded => "33",
            Status::Absent => "31",
        };
        let status = self.paint(colour, &format!("  {:<9} ", finding.status));
        self.wrap(f, &status, &format!("{}: {}", finding.title, finding.found))?;
        let indent = " ".repeat(INDENT);
        self.wrap(f, &indent, &finding.consequence)?;
        if finding.status != Status::Pass {
            self.wrap(f, &indent, &format!("Remedy: {}", finding.remedy))?;
        }
        finding.evidence.iter().filter(|_| self.evidence).try_for_each(|seen| {
            self.wrap(f, &indent, &format!("[{}: {}]", seen.source, seen.value))
        })
    }

    /// Writes `text` behind `first`, which fills the indent; later lines are indented alike.
    fn wrap(&self, f: &mut fmt::Formatter<'_>, first: &str, text: &str) -> fmt::Result {
        let room = self.width.max(WIDTH_MIN) - INDENT;
        f.write_str(first)?;
        let mut used = 0;
        for word in text.split_whitespace() {
            let length = word.chars().count();
            if used > 0 && used + 1 + length > room {
                write!(f, "\n{:INDENT$}", "")?;
                used = 0;
            } else if used > 0 {
                f.write_str(" ")?;
                used += 1;
            }
            f.write_str(word)?;
            used += length;
        }
        f.write_str("\n")
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

impl fmt::Display for Table<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut topics: Vec<Topic> = self.findings.iter().map(|finding| finding.topic).collect();
        topics.sort();
        topics.dedup();
        for topic in topics {
            writeln!(f, "{}", self.paint("1", &topic.to_string()))?;
            let about = self.findings.iter().filter(|finding| finding.topic == topic);
            about.into_iter().try_for_each(|finding| self.finding(f, finding))?;
            writeln!(f)?;
        }
        let count =
            |status| self.findings.iter().filter(|finding| finding.status == status).count();
        let [pass, degraded, absent] = [Status::Pass, Status::Degraded, Status::Absent].map(count);
        writeln!(f, "{pass} pass, {degraded} degraded, {absent} absent")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Check;

    const CHECK: Check = Check { id: "a.b", topic: Topic::Cores, title: "A thing" };

    fn plain(findings: &[Finding]) -> Table<'_> {
        Table { findings, width: 60, colour: false, evidence: false }
    }

    #[test]
    fn lines_fit_the_terminal() {
        let long = "words that go on and on ".repeat(10);
        let findings = [CHECK.degraded(long.clone(), long.clone(), long)];
        let table = plain(&findings).to_string();
        assert!(table.lines().all(|line| line.chars().count() <= 60), "{table}");
        assert!(table.lines().count() > 10);
    }

    #[test]
    fn a_remedy_is_shown_unless_none_is_needed() {
        let pass = plain(&[CHECK.pass("there", "good")]).to_string();
        assert!(pass.contains("pass      A thing: there\n            good\n"), "{pass}");
        assert!(!pass.contains("Remedy"));
        let absent = plain(&[CHECK.absent("not there", "bad", "get one")]).to_string();
        assert!(absent.contains("Remedy: get one"), "{absent}");
        assert!(absent.ends_with("0 pass, 0 degraded, 1 absent\n"), "{absent}");
    }

    #[test]
    fn colours_and_evidence_only_when_asked_for() {
        let findings = [CHECK.pass("there", "good").seen("/a/file", "its value")];
        let bare = plain(&findings).to_string();
        assert!(!bare.contains('\x1b') && !bare.contains("/a/file"));
        let all = Table { colour: true, ..plain(&findings) }.with_evidence().to_string();
        assert!(all.contains("\x1b[32m") && all.contains("[/a/file: its value]"), "{all}");
    }
}
