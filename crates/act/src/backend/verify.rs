//! The slow read-back: does the host still show what was written?
//!
//! All threads are read back about once a second, a few a tick, and those first that were seen to run
//! where they should not. A difference that the kernel made (hotplug) is repaired. Any other is a
//! wish of the task or of its administrator, and is left as it is: Quell does not fight its tasks.

use quell_model::{CoreSet, Nanos};

use super::engine::{Engine, Failure};
use super::record::Record;
use super::{ApplyReport, Host, Notice};
use crate::SchedAttr;

/// In what time every thread is read back once.
const ROUND: Nanos = Nanos::from_secs(1);
/// Read-backs in one tick at most.
const PER_TICK_MAX: u64 = 8;

/// Walks round all threads.
#[derive(Debug, Default)]
pub(super) struct Verifier {
    cursor: u32,
    /// Up to when the round has paid for its read-backs.
    paid_until: Option<Nanos>,
    hurried: Vec<u32>,
}

impl Verifier {
    /// Has a thread read back at once.
    pub fn hurry(&mut self, record: u32) {
        if self.hurried.len() < PER_TICK_MAX as usize {
            self.hurried.push(record);
        }
    }

    /// Reads back what is due.
    pub fn run(&mut self, engine: &mut Engine, host: &mut dyn Host, report: &mut ApplyReport) {
        while let Some(at) = self.hurried.pop() {
            verify(engine, at, host, report);
        }
        let now = host.now();
        let places = u64::from(engine.records.places());
        let from = *self.paid_until.get_or_insert(now);
        if places == 0 || now <= from {
            self.paid_until = Some(now.max(from));
            return;
        }
        let due = (places.saturating_mul(now.since(from).0) / ROUND.0).min(PER_TICK_MAX);
        if due == 0 {
            return;
        }
        self.paid_until = Some(now);
        for _ in 0..due {
            self.cursor = (self.cursor + 1) % engine.records.places().max(1);
            verify(engine, self.cursor, host, report);
        }
    }
}

fn verify(engine: &mut Engine, at: u32, host: &mut dyn Host, report: &mut ApplyReport) {
    let Some(record) = engine.records.get_mut(at) else { return };
    let info = engine.tasks.get(record.task.at()).and_then(Option::as_ref).map(|state| &state.info);
    let by_group =
        engine.style.places_by_group && info.is_some_and(|info| info.groups.cpuset.is_some());
    let rungs = info.and_then(|info| info.switched);
    let Some(original) = record.original.filter(|_| !record.gone) else { return };
    record.verified = host.now();
    report.verified += 1;

    let mut changed = [None, None];
    if !record.keeps_sched {
        match host.sched(&record.thread) {
            Ok(found)
                if rungs.is_some_and(|rungs| rungs.iter().any(|rung| rung.same_effect(&found))) => {
            }
            // A thread that is about to be lent is as it came.
            Ok(_) if rungs.is_some() && !host.is_lent(&record.thread) => {}
            Ok(found) if rungs.is_none() && found.same_effect(&record.present_sched(&original)) => {
            }
            Ok(found) => {
                record.keep_sched(found);
                changed[0] = Some("policy");
            }
            Err(error) => return note_error(record, Failure::of(&error), report),
        }
    }
    if !record.keeps_cores && !by_group {
        let quick = host.affinity_online(&record.thread);
        let found = match quick {
            Ok(found) if found != record.present_cores(&original) => host.affinity(&record.thread),
            as_written_or_failed => as_written_or_failed,
        };
        match found {
            Ok(found) if found == record.present_cores(&original) => record.doubted = false,
            Ok(found) => match judge(record, &record.present_cores(&original), &found, host) {
                Verdict::Same => {}
                Verdict::Kernel => {
                    // Without Quell the kernel would have widened it as well: what it shows is its
                    // own now. All is given back and done anew, so that the executor sees it too.
                    host.give_back(&[record.thread]);
                    record.reset();
                    report.repaired += 1;
                    return;
                }
                Verdict::Task => {
                    record.keeps_cores = true;
                    record.cores = Some(found);
                    changed[1] = Some("affinity");
                }
            },
            Err(error) => return note_error(record, Failure::of(&error), report),
        }
    }
    let (task, thread) = (record.task, record.thread);
    for what in changed.into_iter().flatten() {
        report.changed_by_task += 1;
        engine.notice(Notice::ChangedByTask { task, thread, what });
    }
}

fn note_error(record: &mut Record, failure: Failure, report: &mut ApplyReport) {
    match failure {
        Failure::Gone => {
            record.gone = true;
            report.gone += 1;
        }
        Failure::Raced => report.raced += 1,
        Failure::Halted => report.halted = true,
        // A policy that Quell does not handle (deadline, sched_ext) is the task's own choice too.
        Failure::Refused(libc::EOPNOTSUPP) => record.keeps_sched = true,
        Failure::Refused(_) => report.refused += 1,
    }
}

impl Record {
    fn keep_sched(&mut self, found: SchedAttr) {
        self.keeps_sched = true;
        self.sched = Some(found);
    }
}

enum Verdict {
    /// They differ in offline cores alone.
    Same,
    /// The kernel rewrote it, as a core went away.
    Kernel,
    /// The task or its administrator did.
    Task,
}

fn judge(record: &Record, written: &CoreSet, found: &CoreSet, host: &mut dyn Host) -> Verdict {
    let online = host.online();
    if written.intersection(&online) == found.intersection(&online) {
        return Verdict::Same;
    }
    match record.doubted || written.intersection(&online).is_empty() {
        true => Verdict::Kernel,
        false => Verdict::Task,
    }
}
