//! `quell why FILE`: causes in a trace.

use std::fs::File;
use std::io::BufReader;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use quell_model::{Meta, Nanos};
use quell_os::clock;
use quell_trace::stream::{ReadError, Source};
use quell_trace::why::{
    Bound, Collector, Evidence, Follow, Inquiry, Report, Window, read_requests,
};

use crate::trace_file::TraceFile;

/// What counts as a slow wake-up unless the user says otherwise.
pub const BOUND: Nanos = Nanos::from_micros(100);
/// Which requests count as slow unless the user says otherwise.
pub const SLOWEST: Bound = Bound::Slowest(0.001);

const DAY_NS: i128 = 86_400_000_000_000;

/// Flags for a trace.
#[derive(clap::Args)]
pub struct OfTrace {
    /// In a trace: the threads of this task of Quell
    #[arg(long, value_name = "NAME", conflicts_with_all = ["pid", "comm"])]
    task: Option<String>,
    /// In a trace: the threads with this name
    #[arg(long, value_name = "NAME", conflicts_with = "pid")]
    comm: Option<String>,
    /// In a trace: from this time of day (HH:MM or HH:MM:SS, local) or second of the trace on
    #[arg(long, value_name = "TIME", value_parser = moment)]
    since: Option<Moment>,
    /// In a trace: until then
    #[arg(long, value_name = "TIME", value_parser = moment)]
    until: Option<Moment>,
    /// In a trace: say why requests were slow: lines of `sent,answered` in nanoseconds of CLOCK_MONOTONIC, below a
    /// line with these two words (`quell load --requests-out` writes them)
    #[arg(long, value_name = "FILE")]
    requests: Option<PathBuf>,
    /// Of a text: how many cores the host has [default: as many as its first events name]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    cores: Option<u16>,
}

impl OfTrace {
    /// Whether any of them was given.
    pub fn is_asked(&self) -> bool {
        self.task.is_some()
            || self.comm.is_some()
            || self.since.is_some()
            || self.until.is_some()
            || self.requests.is_some()
            || self.cores.is_some()
    }

    fn follow(&self, pid: Option<i32>) -> Option<Follow> {
        match (&self.task, &self.comm, pid) {
            (Some(task), ..) => Some(Follow::task(task)),
            (_, Some(comm), _) => Some(Follow::comm(comm)),
            (_, _, Some(pid)) => Some(Follow::processes([pid])),
            _ => None,
        }
    }
}

/// A time as the user types it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Moment {
    /// Seconds since local midnight.
    OfDay(u32),
    /// Since the first event of the trace.
    OfTrace(Duration),
}

fn moment(text: &str) -> Result<Moment, String> {
    let wrong = || {
        format!(
            "`{text}` is not a time; write it like 02:10, 02:10:30, or in seconds of the trace like 12.5s"
        )
    };
    if text.contains(':') {
        let parts: Vec<Option<u32>> = text.split(':').map(two_digits).collect();
        return match parts[..] {
            [Some(hour @ 0..24), Some(minute @ 0..60)] => {
                Ok(Moment::OfDay((hour * 60 + minute) * 60))
            }
            [Some(hour @ 0..24), Some(minute @ 0..60), Some(second @ 0..60)] => {
                Ok(Moment::OfDay((hour * 60 + minute) * 60 + second))
            }
            _ => Err(wrong()),
        };
    }
    let seconds = text.strip_suffix('s').unwrap_or(text).parse::<f64>().ok();
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.map(Moment::OfTrace).ok_or_else(wrong)
}

fn two_digits(text: &str) -> Option<u32> {
    let is_plain = (1..=2).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    text.parse().ok().filter(|_| is_plain)
}

impl Moment {
    /// The time on the trace's clock: of a time of day the first one that is not before `earliest`.
    fn resolve(self, meta: &Meta, first: Nanos, earliest: Nanos) -> Result<Nanos> {
        let of_day = match self {
            Moment::OfTrace(time) => {
                return Ok(first + Nanos(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 2)));
            }
            Moment::OfDay(of_day) => i128::from(of_day) * 1_000_000_000,
        };
        if meta.wall_offset_ns == 0 {
            bail!("this trace has no time of day; give seconds of the trace, like --since 12.5s");
        }
        let wall = i128::from(earliest.0) + i128::from(meta.wall_offset_ns);
        let offset = clock::local_offset_s((wall / 1_000_000_000) as i64);
        let local = wall + i128::from(offset) * 1_000_000_000;
        let ahead = (of_day - local).rem_euclid(DAY_NS);
        Ok(Nanos(earliest.0.saturating_add(ahead as u64)))
    }
}

/// The report of a trace's slow wake-ups or requests, and the exit status: 1 if the trace is damaged.
pub fn run(
    file: &str,
    pid: Option<i32>,
    of_trace: &OfTrace,
    bound: Option<Nanos>,
    slowest: usize,
) -> Result<(Report, ExitCode)> {
    let requests = of_trace.requests.as_ref().map(|path| {
        let input = File::open(path).with_context(|| path.display().to_string())?;
        read_requests(BufReader::new(input)).with_context(|| path.display().to_string())
    });
    let requests = requests.transpose()?;
    let trace = TraceFile::new(file.into(), of_trace.cores, None);
    let mut source = trace.open()?;
    let follow = of_trace.follow(pid);
    let asked = follow.is_some();
    let (first, evidence, error) = collect(source.as_mut(), follow.unwrap_or_default(), of_trace)
        .with_context(|| file.to_owned())?;
    let names: Vec<&str> = evidence.tasks.iter().map(String::as_str).collect();
    let tasks = match names.is_empty() {
        true => "it has no tasks of Quell".to_owned(),
        false => format!("its tasks: {}", names.join(", ")),
    };
    if !asked {
        bail!("{file}: say which threads, with --task, --pid or --comm; {tasks}");
    }
    if !evidence.is_found {
        bail!(
            "{file}: none of these threads ran or was woken in that time; {tasks}; `quell stats` lists names"
        );
    }
    for remark in source.remarks() {
        eprintln!("{remark}");
    }
    let lost = evidence.lost;
    let explains_interrupts = evidence.timeline.explains_interrupts();
    let inquiry = Inquiry::new(evidence.timeline, Vec::new(), Vec::new());
    let mut report = match requests {
        Some(requests) => {
            let bound = bound.map_or(SLOWEST, Bound::AtLeast);
            Report::of_requests(&inquiry, requests, bound, slowest, lost)
        }
        None => Report::of_wake_ups(&inquiry, bound.unwrap_or(BOUND), slowest, lost),
    };
    report.origin_ns = first.0;
    if !explains_interrupts && report.shares.iter().any(|share| share.kind == "unknown") {
        eprintln!(
            "{file}: it has no softirqs or no interrupts, so time that nothing else explains is unknown; record with `quell record --events why`"
        );
    }
    Ok(match error {
        None => (report, ExitCode::SUCCESS),
        Some(err) => {
            eprintln!("{file}: {err}; the causes are of what came before");
            (report, ExitCode::from(1))
        }
    })
}

/// Reads the part of a trace that is asked about; with the time of the trace's first event.
fn collect(
    source: &mut dyn Source,
    follow: Follow,
    of_trace: &OfTrace,
) -> Result<(Nanos, Evidence, Option<ReadError>)> {
    let meta = source.meta().clone();
    let mut first = Nanos::ZERO;
    let mut collector: Option<Collector> = None;
    let mut error = None;
    for event in &mut *source {
        let event = match event {
            Ok(event) => event,
            Err(err) => {
                error = Some(err);
                break;
            }
        };
        let collector = match &mut collector {
            Some(collector) => collector,
            None => {
                first = event.at;
                let window = window(of_trace, &meta, event.at)?;
                collector.insert(Collector::new(&meta, follow.clone(), window))
            }
        };
        collector.push(&event);
        if collector.is_full() {
            bail!("more events than memory is kept for; choose a part with --since and --until");
        }
        if collector.is_over() {
            break;
        }
    }
    let collector = collector.unwrap_or_else(|| Collector::new(&meta, follow, Window::ALL));
    Ok((first, collector.finish(), error))
}

fn window(of_trace: &OfTrace, meta: &Meta, first: Nanos) -> Result<Window> {
    let from = of_trace.since.map(|since| since.resolve(meta, first, first)).transpose()?;
    let from = from.unwrap_or(first);
    let to = of_trace.until.map(|until| until.resolve(meta, first, from)).transpose()?;
    let to = to.unwrap_or(Nanos::MAX);
    if to <= from {
        bail!("--until is not later than --since");
    }
    Ok(Window { from, to })
}

#[cfg(test)]
mod tests {
    use quell_model::{Source as Origin, Topology};

    use super::*;

    fn meta(wall_offset_ns: i64) -> Meta {
        Meta {
            source: Origin::Recorder,
            topology: Topology::regular(1, 1, 1).unwrap(),
            kernel: String::new(),
            host: String::new(),
            hooks: vec![],
            absent: vec![],
            wall_offset_ns,
        }
    }

    #[test]
    fn times_are_of_the_day_or_of_the_trace() {
        assert_eq!(moment("02:10"), Ok(Moment::OfDay(7_800)));
        assert_eq!(moment("23:59:59"), Ok(Moment::OfDay(86_399)));
        for seconds in ["12.5", "12.5s"] {
            assert_eq!(moment(seconds), Ok(Moment::OfTrace(Duration::from_millis(12_500))));
        }
        for wrong in
            ["24:00", "1:60", "1:2:60", "1:2:3:4", ":", "+1:02", "-3", "soon", "1m", "nan", ""]
        {
            assert!(moment(wrong).unwrap_err().contains("is not a time; write"), "{wrong}");
        }
    }

    #[test]
    fn time_of_day_is_the_next_one_after_the_begin() {
        // Local midnight of a day lies `wall` after the trace's zero; the trace begins an hour later.
        let day = 1_700_000_000 / 86_400 * 86_400;
        let offset = clock::local_offset_s(day);
        let meta = meta((day - offset) * 1_000_000_000);
        let first = Nanos::from_secs(3_600);
        let at = |text| moment(text).unwrap().resolve(&meta, first, first).unwrap();
        assert_eq!(at("01:00"), first);
        assert_eq!(at("01:00:05"), Nanos::from_secs(3_605));
        assert_eq!(at("00:30"), Nanos::from_secs(86_400 + 1_800));
        assert_eq!(at("2.5"), first + Nanos::from_millis(2_500));
    }

    #[test]
    fn time_of_day_needs_a_wall_clock() {
        let err = moment("02:10").unwrap().resolve(&meta(0), Nanos(1), Nanos(1)).unwrap_err();
        assert!(err.to_string().contains("no time of day; give seconds"), "{err}");
    }
}
