//! Memory traffic: what moved between memory and caches so far, in total and by core.
//!
//! Where it comes from depends on the host. The total: the monitors of resctrl ([`resctrl`]), else the counters of
//! the memory controllers ([`controllers`]), else the misses of all cores added up. By core: misses in the
//! last-level cache, a line of 64 bytes each ([`misses`]). Or all of it from a file ([`scripted`]) that somebody
//! else writes, on hosts that have none of these.
//!
//! Reading may take locks of the kernel and interrupts other cores: it belongs on a thread of its own.

pub mod controllers;
pub mod misses;
pub mod resctrl;
pub mod scripted;

use std::io;
use std::path::{Path, PathBuf};

use quell_model::{Bytes, CoreSet, Estimate, Nanos};

use controllers::Controllers;
use misses::Misses;
use quell_os::clock;
use resctrl::Monitors;
use scripted::Scripted;

/// What an operator wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// The first source that this host has.
    Any,
    /// resctrl or nothing.
    Resctrl,
    /// Hardware counters or nothing.
    Counters,
    /// What this file says.
    File(PathBuf),
}

/// One reading. Counters start at any value and never run backwards while their source lives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// When it was read, or first seen.
    pub at: Nanos,
    /// In total.
    pub total: Option<Bytes>,
    /// By core number.
    pub by_core: Vec<Option<Bytes>>,
}

/// Where traffic is read, and where not.
#[derive(Debug)]
pub struct Sources {
    total: Option<Total>,
    cores: Option<Misses>,
    scripted: Option<Scripted>,
    /// What was tried and is not there, each in a sentence.
    pub lacks: Vec<String>,
}

#[derive(Debug)]
enum Total {
    Resctrl(Monitors),
    Controllers(Controllers),
    Misses,
}

impl Sources {
    /// Finds what this host has of what is wanted, for these cores.
    pub fn find(wanted: &Wanted, cores: &CoreSet) -> Sources {
        let mut found = Sources { total: None, cores: None, scripted: None, lacks: Vec::new() };
        if let Wanted::File(path) = wanted {
            found.scripted = Some(Scripted::new(path));
            return found;
        }
        let mut lacks = |tried: &str, err: io::Error| found.lacks.push(format!("{tried}: {err}"));
        if *wanted != Wanted::Counters {
            match Monitors::mounted(Path::new("/")) {
                Ok(monitors) => found.total = Some(Total::Resctrl(monitors)),
                Err(err) => lacks("resctrl", err),
            }
        }
        if *wanted != Wanted::Resctrl && found.total.is_none() {
            match Controllers::open(Path::new("/")) {
                Ok(controllers) => found.total = Some(Total::Controllers(controllers)),
                Err(err) => lacks("counters of memory controllers", err),
            }
        }
        match Misses::open(cores) {
            Ok(misses) => found.cores = Some(misses),
            Err(err) => lacks("counters of cache misses", err),
        }
        if found.total.is_none() && found.cores.is_some() && *wanted != Wanted::Resctrl {
            found.total = Some(Total::Misses);
        }
        found
    }

    /// Whether there is a source of the total, and one of each core's part.
    pub fn counts(&self) -> (bool, bool) {
        match self.scripted {
            Some(_) => (true, true),
            None => (self.total.is_some(), self.cores.is_some()),
        }
    }

    /// What the total is derived from, if it is not measured itself.
    pub fn estimates_total(&self) -> Option<Estimate> {
        matches!(self.total, Some(Total::Misses)).then_some(Estimate::CacheMisses)
    }

    /// Where the total and each core's part come from, in words.
    pub fn in_words(&self) -> String {
        if let Some(scripted) = &self.scripted {
            return format!("the file {}", scripted.path().display());
        }
        let total = match &self.total {
            Some(Total::Resctrl(_)) => "resctrl",
            Some(Total::Controllers(_)) => "counters of the memory controllers",
            Some(Total::Misses) => "cache misses of all cores",
            None => "nothing",
        };
        let cores = if self.cores.is_some() { "cache misses" } else { "nothing" };
        format!("the total from {total}, each core's part from {cores}")
    }

    /// Reads once; `into` keeps its room. What is not there is `None`.
    ///
    /// # Errors
    /// When the total cannot be read, or the file is none of the format.
    pub fn read(&mut self, into: &mut Traffic) -> io::Result<()> {
        if let Some(scripted) = &mut self.scripted {
            return scripted.read(into);
        }
        into.by_core.fill(None);
        if let Some(misses) = &mut self.cores {
            misses.read(&mut into.by_core);
        }
        into.total = match &mut self.total {
            Some(Total::Resctrl(monitors)) => Some(monitors.read()?),
            Some(Total::Controllers(controllers)) => Some(controllers.read()?),
            Some(Total::Misses) => {
                Some(Bytes(into.by_core.iter().flatten().fold(0, |sum, bytes| sum + bytes.0)))
            }
            None => None,
        };
        into.at = clock::now();
        Ok(())
    }
}

/// A file of the kernel or of an operator, bounded.
fn read_bounded(path: &Path, most: u64) -> io::Result<String> {
    use std::io::Read;
    use std::os::unix::fs::OpenOptionsExt;
    // Without NONBLOCK the open of a pipe would wait for its other end.
    let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
    let file = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut text = String::new();
    file.take(most + 1).read_to_string(&mut text)?;
    if text.len() as u64 > most {
        return Err(io::Error::other(format!("longer than {most} bytes")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_is_asked_for_every_source_and_what_it_lacks_is_said() {
        let cores: CoreSet = "0".parse().unwrap();
        for wanted in [Wanted::Any, Wanted::Resctrl, Wanted::Counters] {
            let mut found = Sources::find(&wanted, &cores);
            let (total, by_core) = found.counts();
            assert_eq!(by_core, !found.lacks.iter().any(|lack| lack.contains("cache misses")));
            assert!(total || !found.lacks.is_empty(), "{found:?}");
            let mut traffic = Traffic { by_core: vec![None; 1], ..Traffic::default() };
            found.read(&mut traffic).unwrap();
            assert_eq!((traffic.total.is_some(), traffic.by_core[0].is_some()), (total, by_core));
        }
    }
}
