//! Every measurement of a run, one a line: what a run that was stopped goes on from, and all that a report is made of.

use std::fs::{File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};

use super::measure::Values;

/// Longest log that is read, in lines.
const LINES_MAX: usize = 1 << 20;

/// Where and of what a run is: a log goes on only where all of this is the same.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// The commit that is measured; `-dirty` when the work tree had changes.
    pub commit: String,
    /// The kernel's name for this boot.
    pub boot: String,
    /// What was asked for.
    pub command: String,
    /// Seed of orders and arrivals.
    pub seed: u64,
}

/// What a measurement is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// To choose rivals and numbers of rounds; in no figure.
    Pilot,
    /// To be reported.
    Measured,
}

/// One line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", tag = "line")]
pub enum Line {
    /// The first one.
    Header(Header),
    /// The highest load that a service sustains.
    Peak {
        /// The service.
        service: String,
        /// Requests a second.
        peak_rps: f64,
    },
    /// A measurement.
    Run(Box<Run>),
    /// Something that a reader has to know.
    Note {
        /// A sentence.
        text: String,
    },
}

/// One measurement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// What it is for.
    pub phase: Phase,
    /// What was measured.
    pub cell: Cell,
    /// The round, from 0; those of one round have the same arrivals.
    pub round: usize,
    /// Its place in the order of its round.
    pub place: usize,
    /// How service and batch work shared the core.
    pub system: String,
    /// What was measured.
    pub values: Values,
}

/// A service at a load beside batch work.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Cell {
    /// The service.
    pub service: String,
    /// Percent of its peak.
    pub load: u32,
    /// Batch work beside it.
    pub batch: String,
}

impl Cell {
    /// Its name as the case of a report: one word, as markers in the documentation need it.
    pub fn name(&self) -> String {
        format!("{}-{}-{}", self.service, self.load, self.batch)
    }
}

impl Header {
    /// Of a run that begins now.
    pub fn new(command: &str, seed: u64) -> Header {
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Header {
            commit: quell_terminal::commit().to_owned(),
            boot: boot.trim().to_owned(),
            command: command.to_owned(),
            seed,
        }
    }
}

/// A log that is written to.
pub struct Log {
    file: File,
    /// All lines so far, but for the header.
    pub lines: Vec<Line>,
}

impl Log {
    /// Opens a log to go on with, or begins one.
    ///
    /// # Errors
    /// When it cannot be read or written, or is of another commit, boot or question.
    pub fn open(path: &Path, header: &Header) -> Result<Log> {
        let shown = path.display();
        let lines = if path.exists() { read(path)? } else { Vec::new() };
        let lines = match lines.split_first() {
            Some((Line::Header(found), rest)) if found == header => rest.to_vec(),
            Some((Line::Header(found), _)) => {
                let differs = [
                    ("commit", &found.commit, &header.commit),
                    ("boot", &found.boot, &header.boot),
                    ("command", &found.command, &header.command),
                ];
                let what = differs.into_iter().find(|(_, found, own)| found != own);
                let what = what.map_or("seed".to_owned(), |(name, found, own)| {
                    format!("{name}: `{found}` there, `{own}` now")
                });
                bail!("{shown} is of another run ({what}): give --log another name, or remove it")
            }
            Some(_) => bail!("{shown} does not begin with a header"),
            None => Vec::new(),
        };
        let file = OpenOptions::new().create(true).append(true).open(path);
        let file = file.with_context(|| format!("write {shown}"))?;
        cut_off_part(path, &file).with_context(|| format!("write {shown}"))?;
        let mut log = Log { file, lines };
        if log.file.metadata().map_or(0, |looks| looks.len()) == 0 {
            log.append(&Line::Header(header.clone()))?;
        }
        Ok(log)
    }

    /// Adds a line; it is on its way to the disk when this returns.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn push(&mut self, line: Line) -> Result<()> {
        self.append(&line)?;
        self.lines.push(line);
        Ok(())
    }

    fn append(&mut self, line: &Line) -> Result<()> {
        let mut text = serde_json::to_string(line).context("a line as JSON")?;
        text.push('\n');
        self.file.write_all(text.as_bytes()).context("write the log")
    }

    /// The measurements of a phase.
    pub fn runs(&self, phase: Phase) -> impl Iterator<Item = &Run> {
        let runs = self.lines.iter().filter_map(|line| match line {
            Line::Run(run) => Some(&**run),
            _ => None,
        });
        runs.filter(move |run| run.phase == phase)
    }

    /// The peak of a service, if it was found already.
    pub fn peak_rps(&self, name: &str) -> Option<f64> {
        self.lines.iter().find_map(|line| match line {
            Line::Peak { service, peak_rps } if service == name => Some(*peak_rps),
            _ => None,
        })
    }
}

/// Takes away a last line that the machine stopped in: the next one would go on in it.
fn cut_off_part(path: &Path, file: &File) -> std::io::Result<()> {
    let text = std::fs::read(path)?;
    let whole = text.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    if whole < text.len() { file.set_len(whole as u64) } else { Ok(()) }
}

/// Reads a log. A last line that was cut off as the machine stopped is left out.
///
/// # Errors
/// When it cannot be read, or a line is none of a log: names it.
pub fn read(path: &Path) -> Result<Vec<Line>> {
    let file = File::open(path).with_context(|| format!("read {}", path.display()))?;
    let mut lines = Vec::new();
    let mut texts = BufReader::new(file).lines().take(LINES_MAX).enumerate().peekable();
    while let Some((at, text)) = texts.next() {
        let text = text.with_context(|| format!("read {}", path.display()))?;
        match serde_json::from_str(&text) {
            Ok(line) => lines.push(line),
            Err(_) if texts.peek().is_none() => {}
            Err(err) => bail!("{}:{}: not a line of a log: {err}", path.display(), at + 1),
        }
    }
    Ok(lines)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            commit: "c".into(),
            boot: "b".into(),
            command: "quell bench services".into(),
            seed: 1,
        }
    }

    fn note(text: &str) -> Line {
        Line::Note { text: text.into() }
    }

    #[test]
    fn a_log_goes_on_where_it_ended() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let mut log = Log::open(&path, &header()).unwrap();
        log.push(note("one")).unwrap();
        log.push(Line::Peak { service: "go".into(), peak_rps: 3.0 }).unwrap();
        drop(log);
        // The machine stopped while a line was written.
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"{\"line\":\"no").unwrap();
        let mut log = Log::open(&path, &header()).unwrap();
        assert_eq!(log.lines[0], note("one"));
        assert_eq!(log.peak_rps("go"), Some(3.0));
        log.push(note("two")).unwrap();
        assert_eq!(read(&path).unwrap().last(), Some(&note("two")));
    }

    #[test]
    fn a_log_of_another_commit_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        drop(Log::open(&path, &header()).unwrap());
        let other = Header { commit: "d".into(), ..header() };
        let refused = Log::open(&path, &other).err().unwrap().to_string();
        assert!(refused.contains("commit: `c` there, `d` now"), "{refused}");
    }

    #[test]
    fn damage_is_named_by_its_line() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        std::fs::write(&path, "{}\n{\"line\":\"note\",\"text\":\"x\"}\n").unwrap();
        assert!(read(&path).unwrap_err().to_string().contains("log:1: not a line"));
    }
}
