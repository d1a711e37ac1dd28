//! Recordings as input of [`quell_trace::why`]: their switches and wakings alone, as `quell why` records them live.
//!
//! Softirqs and interrupts are in none of these recordings. They are said to be, so that not all running time is
//! unknown.

use std::collections::{BTreeMap, BTreeSet};

use quell_model::{CoreId, Event, Meta, Nanos, Source, What};
use quell_trace::why::{Blame, Collector, Follow, Inquiry, Report, Window};
use serde::Serialize;

/// Waits of at least this time are the slow ones of the report.
const SLOW: Nanos = Nanos::from_micros(100);
/// Slow waits that are listed.
const LISTED: usize = 10;
/// Windows that stand for requests, spread evenly over the recording, and the length of each.
const WINDOWS: u64 = 500;
const WINDOW: Nanos = Nanos::from_micros(300);

/// What `why` says of a recording.
#[derive(Serialize)]
pub struct Expected {
    /// Processes whose threads are followed.
    processes: usize,
    /// As `quell why` prints it, of all threads.
    wake_ups: Report,
    /// All waits of all threads.
    waits: Charged,
    /// Windows charged as requests to the process with the most wake-ups.
    requests: Charged,
}

/// Windows charged to causes.
#[derive(Default, Serialize)]
pub struct Charged {
    count: usize,
    /// Nanoseconds by cause.
    by_cause: BTreeMap<String, u64>,
    /// CRC-32 of one line for each window: begin, end, and nanoseconds by cause.
    digest: String,
}

pub fn report(meta: &Meta, events: &[Event]) -> Expected {
    let processes: BTreeSet<i32> = wakings(events).into_keys().collect();
    let wakings = wakings(events).into_iter();
    let busiest = wakings.max_by_key(|(process, count)| (*count, -process));
    let all: Vec<i32> = processes.into_iter().collect();
    let lost = events.iter().map(|event| match event.what {
        What::Lost { count } => count,
        _ => 0,
    });
    let inquiry = inquiry(meta, events, &all);
    Expected {
        processes: all.len(),
        wake_ups: Report::of_wake_ups(&inquiry, SLOW, LISTED, lost.sum()),
        waits: charged(inquiry.waits(Nanos::ZERO)),
        requests: busiest
            .map_or_else(Charged::default, |(process, _)| requests(meta, events, process)),
    }
}

/// How often threads of each process were woken.
fn wakings(events: &[Event]) -> BTreeMap<i32, u64> {
    let mut processes = BTreeMap::new();
    for event in events {
        if let What::Waking { thread, .. } = &event.what
            && thread.process > 0
        {
            *processes.entry(thread.process).or_default() += 1;
        }
    }
    processes
}

fn inquiry(meta: &Meta, events: &[Event], processes: &[i32]) -> Inquiry {
    let hooks = ["sched_switch", "sched_waking", "softirq_entry", "irq_handler_entry"];
    let source = match meta.source {
        Source::Simulator => Source::Simulator,
        _ => Source::Recorder,
    };
    let hooks = hooks.map(str::to_owned).to_vec();
    let meta = Meta { source, hooks, ..meta.clone() };
    let follow = Follow::processes(processes.iter().copied());
    let mut collector = Collector::new(&meta, follow, Window::ALL);
    let mut numbers: BTreeMap<CoreId, u64> = BTreeMap::new();
    let number_of = |event: &Event| {
        let what = match &event.what {
            what @ (What::Switch { .. } | What::Waking { .. }) => what.clone(),
            // It says when the recording begins and ends.
            _ => What::Annotation("".into()),
        };
        let next = numbers.entry(event.core).or_default();
        *next += 1;
        Event { sequence: *next, what, ..event.clone() }
    };
    events.iter().map(number_of).for_each(|event| collector.push(&event));
    Inquiry::new(collector.finish().timeline, Vec::new(), Vec::new())
}

fn span(events: &[Event]) -> (Nanos, Nanos) {
    let at = |event: Option<&Event>| event.map_or(Nanos::ZERO, |event| event.at);
    (at(events.first()), at(events.last()))
}

fn requests(meta: &Meta, events: &[Event], process: i32) -> Charged {
    let (from, to) = span(events);
    let inquiry = inquiry(meta, events, &[process]);
    let step = to.since(from).0.saturating_sub(WINDOW.0) / WINDOWS;
    charged((0..WINDOWS).map(|number| {
        let sent = from + Nanos(number * step);
        (sent, sent + WINDOW, inquiry.request(sent, sent + WINDOW))
    }))
}

fn charged(windows: impl IntoIterator<Item = (Nanos, Nanos, Blame)>) -> Charged {
    let mut sum = Charged::default();
    let mut digest = crc32fast::Hasher::new();
    for (from, to, blame) in windows {
        sum.count += 1;
        let mut line = format!("{} {}", from.0, to.0);
        for (cause, time) in blame.causes() {
            *sum.by_cause.entry(cause.to_string()).or_default() += time.0;
            line += &format!(" {cause}={}", time.0);
        }
        digest.update(line.as_bytes());
        digest.update(b"\n");
    }
    sum.digest = format!("{:08x}", digest.finalize());
    sum
}
