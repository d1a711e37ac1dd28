//! Decisions one by one.

use std::io::{Read, Seek};

use quell_model::{Nanos, Plan, Snapshot};
use serde::Serialize;

use super::read::{Event, Reader};
use super::replay::{Span, Window};
use super::words::{Names, changes};

/// A decision as it is shown.
#[derive(Debug, Serialize)]
pub struct Entry<'a> {
    /// Since the recording's first decision.
    pub after: Nanos,
    /// The time of day, in nanoseconds since 1970.
    pub unix_ns: u64,
    /// What was seen.
    pub seen: &'a Snapshot,
    /// What was decided.
    pub plan: &'a Plan,
    /// What that changed, a sentence each.
    pub changes: Vec<String>,
}

impl Entry<'_> {
    /// What was seen of the tasks, in words.
    pub fn seen_in_words(&self, names: &Names) -> String {
        let alive = self.seen.tasks.iter().filter(|task| task.alive);
        let words = alive.map(|task| {
            let delay = match task.queueing_delay.value() {
                Some(delay) if task.waiting > 0 => format!(" for {delay}"),
                _ => String::new(),
            };
            format!(
                "{} {} running {} waiting{delay}",
                names.of(task.id),
                task.running,
                task.waiting
            )
        });
        words.collect::<Vec<_>>().join(", ")
    }
}

/// Shows every decision of the window to `show`, until it says false.
pub fn list<R: Read + Seek>(
    reader: &mut Reader<R>,
    window: Window,
    mut show: impl FnMut(&Entry<'_>, &Names) -> bool,
) {
    let meta = reader.meta().clone();
    let mut clock = Span::default();
    let mut before = Plan::default();
    while let Some(event) = reader.next() {
        if event != Event::Decision {
            before.clone_from(&reader.decision().plan);
            continue;
        }
        let decision = reader.decision();
        clock.note(decision.now);
        if window.contains(clock.covers()) {
            let entry = Entry {
                after: clock.covers(),
                unix_ns: meta.unix_ns(decision.now),
                seen: &decision.seen,
                plan: &decision.plan,
                changes: changes(reader.names(), &before, &decision.plan),
            };
            if !show(&entry, reader.names()) {
                return;
            }
        }
        before.clone_from(&decision.plan);
    }
}
