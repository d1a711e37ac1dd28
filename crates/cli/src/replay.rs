//! `quell replay FILE`: decide again what was recorded.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use quell_decisions::{
    Comparison, Difference, Options, Reader, Replayed, Window, compare, list, replay, utc,
};
use quell_model::Nanos;
use serde_json::json;

use quell_terminal::table;

/// Decide again what `quell run --record-decisions FILE` recorded, and compare
///
/// Every recorded Snapshot is put before the same policy again, and every Plan has to come out byte for byte.
/// Exit status 1 if one does not, or if the recording is damaged. With --policy, shows instead where another
/// policy would have decided otherwise. Needs no root and changes nothing.
#[derive(clap::Args)]
pub struct Args {
    /// The recording
    file: PathBuf,
    /// Compare with what this policy would have decided from the same Snapshots
    #[arg(long, value_name = "NAME", conflicts_with = "list")]
    policy: Option<String>,
    /// Print the recorded decisions instead
    #[arg(long)]
    list: bool,
    /// Begin here, in seconds from the first decision
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds)]
    from: Nanos,
    /// End here, in seconds from the first decision
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    to: Option<Nanos>,
    /// Show at most so many differences
    #[arg(long, value_name = "N", default_value_t = 10)]
    limit: usize,
    /// Print JSON; with --list one object a line
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args) -> Result<ExitCode> {
    let file = || args.file.display().to_string();
    let mut reader = Reader::open(&args.file).with_context(file)?;
    let window = Window { from: args.from, to: args.to.unwrap_or(Nanos::MAX) };
    let options = Options { window, kept: args.limit };
    if args.list {
        print_list(&mut reader, window, args.json)?;
        return Ok(tell_damage(&reader));
    }
    if let Some(policy) = &args.policy {
        let comparison = compare(&mut reader, policy, options).with_context(file)?;
        match args.json {
            true => println!("{}", serde_json::to_string_pretty(&comparison)?),
            false => print!("{}", comparison_in_words(&reader, &comparison)),
        }
        return Ok(tell_damage(&reader));
    }
    let replayed = replay(&mut reader, options).with_context(file)?;
    match args.json {
        true => println!("{}", serde_json::to_string_pretty(&summary(&reader, &replayed))?),
        false => print!("{}", replay_in_words(&reader, &replayed)),
    }
    let sound = tell_damage(&reader);
    Ok(if replayed.differing == 0 { sound } else { ExitCode::from(1) })
}

/// Says what could not be read.
fn tell_damage(reader: &Reader<File>) -> ExitCode {
    reader.damage().iter().for_each(|damage| eprintln!("{damage}"));
    ExitCode::from(u8::from(!reader.damage().is_empty()))
}

fn print_list(reader: &mut Reader<File>, window: Window, as_json: bool) -> Result<()> {
    let mut out = BufWriter::new(std::io::stdout().lock());
    let mut result = Ok(());
    list(reader, window, |entry, names| {
        result = match as_json {
            true => serde_json::to_writer(&mut out, entry)
                .map_err(Into::into)
                .and_then(|()| writeln!(out).map_err(Into::into)),
            false => {
                let (after, seen) = (at(entry.after), entry.seen_in_words(names));
                let line = writeln!(out, "{after}  {seen}");
                let mut changes = entry.changes.iter();
                line.and_then(|()| changes.try_for_each(|change| writeln!(out, "    {change}")))
                    .map_err(Into::into)
            }
        };
        result.is_ok()
    });
    result.and_then(|()| out.flush().map_err(Into::into))
}

fn summary(reader: &Reader<File>, replayed: &Replayed) -> serde_json::Value {
    let (meta, extent) = (reader.meta(), reader.extent());
    json!({
        "policy": meta.policy,
        "quell": meta.quell,
        "managed": meta.managed,
        "bytes": extent.bytes,
        "segments": extent.segments,
        "bytes_per_hour": per_hour(extent.bytes, replayed.covers),
        "replayed": replayed,
        "damage": reader.damage().iter().map(ToString::to_string).collect::<Vec<_>>(),
    })
}

fn replay_in_words(reader: &Reader<File>, replayed: &Replayed) -> String {
    let (meta, extent) = (reader.meta(), reader.extent());
    let ended = meta.unix_ns(reader.decision().now);
    let begun = utc(ended.wrapping_sub(replayed.covers.0));
    let mut out = format!(
        "{} decisions of policy {} over {}, from {begun}\n\
         recorded by Quell {} on {} cores, of which {} are managed\n\
         {} in {} segments; {} an hour\n",
        replayed.decisions,
        meta.policy,
        replayed.covers,
        meta.quell,
        meta.topology.len(),
        meta.managed,
        bytes(extent.bytes),
        extent.segments,
        per_hour(extent.bytes, replayed.covers)
            .map_or("too short to tell the size of".to_owned(), bytes),
    );
    if replayed.lost > 0 {
        out.push_str(&format!("{} decisions were left out by a slow writer\n", replayed.lost));
    }
    if replayed.breaks > 0 {
        out.push_str(&format!("it breaks off at {} places and goes on later\n", replayed.breaks));
    }
    match replayed.differing {
        0 if replayed.decisions > 0 => out.push_str("every plan reproduced\n"),
        0 => out.push_str("nothing to reproduce\n"),
        differing => {
            out.push_str(&format!("{differing} decisions came out differently; the first:\n"));
            out.push_str(&differences_in_words(&replayed.differences));
        }
    }
    out
}

fn comparison_in_words(reader: &Reader<File>, found: &Comparison) -> String {
    let share = |time: Nanos| match found.compared.0 {
        0 => "-".to_owned(),
        all => format!("{:.2} %", time.0 as f64 * 100.0 / all as f64),
    };
    let mut out = format!(
        "{} decisions over {}: {} would have decided otherwise than {} in {} of them, {} of the time\n\n",
        found.decisions,
        found.covers,
        found.other,
        found.recorded,
        found.differing,
        share(found.differed),
    );
    let cores = found.cores.iter().map(|core| {
        vec![core.core.to_string(), share(core.other_owner), core.other_owner.to_string()]
    });
    out.push_str(&table::render(&["CORE", "OTHER_OWNER", "FOR"], &cores.collect::<Vec<_>>()));
    let mean = |time: Nanos| match found.compared.0 {
        0 => "-".to_owned(),
        all => format!("{:.2}", time.0 as f64 / all as f64),
    };
    let tasks = found
        .tasks
        .iter()
        .map(|task| vec![task.task.clone(), mean(task.recorded), mean(task.other)]);
    let header = ["TASK", &format!("CORES_{}", found.recorded), &format!("CORES_{}", found.other)];
    out.push('\n');
    out.push_str(&table::render(&header, &tasks.collect::<Vec<_>>()));
    if !found.differences.is_empty() {
        let begun = reader.meta().unix_ns(reader.decision().now).wrapping_sub(found.covers.0);
        out.push_str(&format!("\nsince {}, first differences:\n", utc(begun)));
        out.push_str(&differences_in_words(&found.differences));
    }
    out
}

fn differences_in_words(differences: &[Difference]) -> String {
    let mut out = String::new();
    for Difference { after, unix_ns, what } in differences {
        out.push_str(&format!("{}  {}\n", at(*after), utc(*unix_ns)));
        what.iter().for_each(|what| out.push_str(&format!("    {what}\n")));
    }
    out
}

/// Seconds since the first decision.
fn at(after: Nanos) -> String {
    format!("+{:.6} s", after.0 as f64 / 1e9)
}

fn per_hour(bytes: u64, covers: Nanos) -> Option<u64> {
    let hour = Nanos::from_secs(3_600);
    let bytes = u128::from(bytes) * u128::from(hour.0);
    bytes.checked_div(u128::from(covers.0)).and_then(|bytes| u64::try_from(bytes).ok())
}

fn bytes(bytes: u64) -> String {
    match bytes {
        0..100_000 => format!("{bytes} bytes"),
        100_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.2} GB", bytes as f64 / 1e9),
    }
}

fn seconds(text: &str) -> Result<Nanos, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| *seconds >= 0.0 && seconds.is_finite());
    seconds
        .map(|seconds| Nanos((seconds * 1e9) as u64))
        .ok_or_else(|| format!("`{text}` is not a time in seconds; write it like 90 or 12.5"))
}
