//! Prepares a trace for the tree: names of foreign threads and of the host are replaced.
//!
//!     anonymise IN OUT NAME...
//!
//! Reads the trace IN (any format) and writes the Perfetto file OUT, or the text of the Wasted Cores recorder if OUT
//! ends in `.txt`. Threads keep their name if it is one of the NAMEs; `*` at the end of a NAME stands for any more
//! characters. All others become `other`.
#![allow(clippy::print_stderr, reason = "a program")]

use std::fs::File;
use std::io::{BufReader, BufWriter, Write as _};
use std::process::ExitCode;
use std::sync::Arc;

use quell_model::{Event, Keyframe, Runner, ThreadName, What};
use quell_trace::export::WastedCores;
use quell_trace::import::Options;
use quell_trace::perfetto::Writer;
use quell_trace::stream::Sink;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [from, to, kept @ ..] = arguments.as_slice() else {
        eprintln!("usage: anonymise IN OUT NAME...");
        return ExitCode::from(2);
    };
    match anonymise(from, to, kept) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("anonymise {from}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn anonymise(from: &str, to: &str, kept: &[String]) -> Result<(), Failure> {
    let out = BufWriter::new(File::create(to)?);
    let mut out = match to.ends_with(".txt") {
        true => {
            let mut sink = WastedCores::new(out);
            write(from, &mut sink, kept)?;
            sink.into_inner()
        }
        false => {
            let mut sink = Writer::new(out);
            write(from, &mut sink, kept)?;
            sink.into_inner()
        }
    };
    Ok(out.flush()?)
}

fn write(from: &str, sink: &mut impl Sink, kept: &[String]) -> Result<(), Failure> {
    let mut source = quell_trace::open(BufReader::new(File::open(from)?), Options::default())?;
    let mut meta = source.meta().clone();
    meta.host = "host".to_owned();
    sink.meta(&meta)?;
    for event in &mut source {
        let mut event = event?;
        rename(&mut event, kept);
        sink.event(&event)?;
    }
    Ok(sink.finish()?)
}

fn rename(event: &mut Event, kept: &[String]) {
    match &mut event.what {
        What::Switch { next: thread, .. }
        | What::Waking { thread, .. }
        | What::Woken { thread, .. }
        | What::Fork { child: thread, .. }
        | What::Exec { thread } => hide(thread, kept),
        What::Keyframe(keyframe) => {
            let mut frame = Keyframe::clone(keyframe);
            frame.threads.iter_mut().for_each(|state| hide(&mut state.thread, kept));
            *keyframe = Arc::new(frame);
        }
        _ => {}
    }
}

/// The idle thread has no name that says anything.
fn hide(thread: &mut Runner, kept: &[String]) {
    let name = thread.name.as_bytes();
    let is_kept = kept.iter().any(|pattern| match pattern.strip_suffix('*') {
        Some(begin) => name.starts_with(begin.as_bytes()),
        None => name == pattern.as_bytes(),
    });
    if thread.thread != 0 && !is_kept {
        thread.name = ThreadName::new(b"other");
    }
}
