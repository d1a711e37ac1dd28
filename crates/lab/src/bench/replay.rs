//! `quell bench replay`.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use quell_sim::Window;
use quell_study::replayed::{self, Row};
use quell_trace::import::Options;

/// Recorded hosts beside their replays: completion, wasted time and migrations under a model of their own kernel
///
/// Each trace is replayed on its own topology: those of `quell record` under a model of their own kernel, texts of ftrace and `perf`,
/// which do not tell their kernel, under `--model`. Exit status 1 if fewer than four in five are within a fifth of
/// the recorded completion and wasted time.
#[derive(clap::Args)]
pub struct Args {
    /// The traces
    #[arg(required = true, value_name = "TRACE")]
    traces: Vec<PathBuf>,
    /// Use this kernel model [default: the newest that is no newer than the recorded kernel, where the trace tells it]
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Write the rows as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

pub fn run(args: Args) -> Result<ExitCode> {
    if let Some(model) = &args.model {
        replayed::check_model(model)?;
    }
    let mut rows: Vec<Row> = Vec::new();
    let mut alike = 0;
    for path in &args.traces {
        let recording = replayed::load(path, Window::default())?;
        let model = replayed::model_of(path, &recording, args.model.as_deref())?;
        let input = BufReader::new(File::open(path)?);
        let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy();
        let topology = quell_trace::open(input, Options::default())?.meta().topology.clone();
        let row = replayed::compare(&name, &recording, &topology, model)?;
        alike += usize::from(row.is_alike());
        rows.push(row);
    }
    println!("{}", replayed::text(&rows));
    println!("{alike} of {} within a fifth of the recorded host", rows.len());
    if let Some(path) = &args.json {
        let text = serde_json::to_string_pretty(&rows)? + "\n";
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))?;
    }
    Ok(ExitCode::from(u8::from(5 * alike < 4 * rows.len())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `quell bench replay FILE [--model MODEL]` says that it cannot do.
    fn refused(file: &str, model: Option<&str>) -> String {
        let model = model.map(str::to_owned);
        let args = Args { traces: vec![file.into()], model, json: None };
        format!("{:#}", run(args).expect_err("it is refused"))
    }

    #[test]
    fn texts_need_a_model() {
        let text = concat!(env!("CARGO_MANIFEST_DIR"), "/../trace/tests/data/trace-cmd.txt");
        let error = refused(text, None);
        assert!(error.contains("trace-cmd.txt: the trace does not tell its kernel"), "{error}");
        assert!(error.contains("`--model linux-6.18`"), "{error}");
        let model = Some("linux-6.18".to_owned());
        assert!(run(Args { traces: vec![text.into()], model, json: None }).is_ok());
    }

    #[test]
    fn models_are_checked_before_traces_are_read() {
        let error = refused("/there/is/no/such/file", Some("nonsense"));
        assert!(error.starts_with("there is no kernel model `nonsense`"), "{error}");
        assert!(error.contains("linux-4.1") && error.contains("linux-6.18"), "{error}");
        assert!(!error.contains("toml"), "{error}");
    }
}
