//! Findings as text for people.

use std::fmt::Write;

use super::{Finding, Status, Topic};

/// How findings are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Table {
    /// Columns of the terminal.
    pub width: usize,
    /// Whether statuses are coloured (ANSI escapes).
    pub colour: bool,
    /// Whether the file or system call behind each finding is shown.
    pub evidence: bool,
}

const INDENT: usize = 12;
const WIDTH_MIN: usize = 40;

impl Table {
    /// Fits the terminal of standard output. No colours where it is none, or where `NO_COLOR` is set.
    pub fn for_stdout() -> Table {
        let stdout = std::io::stdout();
        let size = rustix::termios::tcgetwinsize(&stdout).ok();
        let terminal = rustix::termios::isatty(&stdout);
        let colour = terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let width = size.map(|size| size.ws_col.into()).filter(|&width| width > 0).unwrap_or(100);
        Table { width, colour, evidence: false }
    }

    /// The findings by topic, each with consequence and, unless it passed, remedy; a count at the end.
    pub fn render(&self, findings: &[Finding]) -> String {
        let mut out = String::new();
        let mut topics: Vec<Topic> = findings.iter().map(|finding| finding.topic).collect();
        topics.sort();
        topics.dedup();
        for topic in topics {
            out.push_str(&self.paint("1", &topic.to_string()));
            out.push('\n');
            for finding in findings.iter().filter(|finding| finding.topic == topic) {
                self.finding(&mut out, finding);
            }
            out.push('\n');
        }
        let count = |status| findings.iter().filter(|finding| finding.status == status).count();
        let [pass, degraded, absent] = [Status::Pass, Status::Degraded, Status::Absent].map(count);
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{pass} pass, {degraded} degraded, {absent} absent");
        out
    }

    fn finding(&self, out: &mut String, finding: &Finding) {
        let colour = match finding.status {
            Status::Pass => "32",
            Status::Degraded => "33",
            Status::Absent => "31",
        };
        let status = self.paint(colour, &format!("  {:<9} ", finding.status));
        let head = format!("{}: {}", finding.title, finding.found);
        self.wrap(out, &status, &head);
        self.wrap(out, &" ".repeat(INDENT), &finding.consequence);
        if finding.status != Status::Pass {
            self.wrap(out, &" ".repeat(INDENT), &format!("Remedy: {}", finding.remedy));
        }
        for seen in finding.evidence.iter().filter(|_| self.evidence) {
            self.wrap(out, &" ".repeat(INDENT), &format!("[{}: {}]", seen.source, seen.value));
        }
    }

    /// Appends `text` behind `first`, which fills the indent; later lines are indented alike.
    fn wrap(&self, out: &mut String, first: &str, text: &str) {
        let room = self.width.max(WIDTH_MIN) - INDENT;
        out.push_str(first);
        let mut used = 0;
        for word in text.split_whitespace() {
            let length = word.chars().count();
            if used > 0 && used + 1 + length > room {
                out.push('\n');
                out.push_str(&" ".repeat(INDENT));
                used = 0;
            } else if used > 0 {
                out.push(' ');
                used += 1;
            }
            out.push_str(word);
            used += length;
        }
        out.push('\n');
    }

    fn paint(&self, code: &str, text: &str) -> String {
        if self.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Check;

    const CHECK: Check = Check { id: "a.b", topic: Topic::Cores, title: "A thing" };
    const PLAIN: Table = Table { width: 60, colour: false, evidence: false };

    #[test]
    fn lines_fit_the_terminal() {
        let long = "words that go on and on ".repeat(10);
        let findings = [CHECK.degraded(long.clone(), long.clone(), long)];
        let table = PLAIN.render(&findings);
        assert!(table.lines().all(|line| line.chars().count() <= 60), "{table}");
        assert!(table.lines().count() > 10);
    }

    #[test]
    fn a_remedy_is_shown_unless_none_is_needed() {
        let pass = PLAIN.render(&[CHECK.pass("there", "good")]);
        assert!(pass.contains("pass      A thing: there\n            good\n"), "{pass}");
        assert!(!pass.contains("Remedy"));
        let absent = PLAIN.render(&[CHECK.absent("not there", "bad", "get one")]);
        assert!(absent.contains("Remedy: get one"), "{absent}");
        assert!(absent.ends_with("0 pass, 0 degraded, 1 absent\n"), "{absent}");
    }

    #[test]
    fn colours_and_evidence_only_when_asked_for() {
        let findings = [CHECK.pass("there", "good").seen("/a/file", "its value")];
        let plain = PLAIN.render(&findings);
        assert!(!plain.contains('\x1b') && !plain.contains("/a/file"));
        let all = Table { colour: true, evidence: true, ..PLAIN }.render(&findings);
        assert!(all.contains("\x1b[32m") && all.contains("[/a/file: its value]"), "{all}");
    }
}
