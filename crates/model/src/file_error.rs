//! What people write by hand and is wrong.

/// What is wrong with a file, where, and how to mend it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{file}{}: {what}{}", at(.line), hint(.remedy))]
pub struct FileError {
    /// The file as named by the user.
    pub file: String,
    /// The line, from 1.
    pub line: Option<usize>,
    /// What is wrong.
    pub what: String,
    /// How to mend it; empty where nobody knows.
    pub remedy: String,
}

fn at(line: &Option<usize>) -> String {
    line.map_or(String::new(), |line| format!(":{line}"))
}

fn hint(remedy: &str) -> String {
    if remedy.is_empty() { String::new() } else { format!(" ({remedy})") }
}
