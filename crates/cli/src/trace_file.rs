//! The trace that a command reads.

use std::fs::File;
use std::io::{BufReader, Read, stdin};
use std::path::PathBuf;

use anyhow::{Context, Result};
use quell_trace::import::Options;
use quell_trace::stream::Source;

/// A trace, of whatever format.
#[derive(clap::Args)]
pub struct TraceFile {
    /// A trace: of `quell record`, or the text of ftrace, `trace-cmd report`, `perf sched script` or the
    /// Wasted Cores recorder; `-` for standard input
    trace: PathBuf,
    /// Of a text: how many cores the host has [default: as many as its first events name]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    cores: Option<u16>,
    /// Of a text: into how many nodes the cores fall, one behind the other [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    nodes: Option<u16>,
}

impl TraceFile {
    /// The trace of this name; the numbers are for texts.
    pub fn new(trace: PathBuf, cores: Option<u16>, nodes: Option<u16>) -> TraceFile {
        TraceFile { trace, cores, nodes }
    }

    /// Its name, for errors.
    pub fn name(&self) -> String {
        self.trace.display().to_string()
    }

    /// Begins to read it.
    pub fn open(&self) -> Result<Box<dyn Source>> {
        let input: Box<dyn Read> = match self.trace.as_os_str() == "-" {
            true => Box::new(stdin()),
            false => Box::new(File::open(&self.trace).with_context(|| self.name())?),
        };
        let options = Options { cores: self.cores, nodes: self.nodes };
        let input = BufReader::with_capacity(1 << 20, input);
        quell_trace::open(input, options).with_context(|| self.name())
    }
}
