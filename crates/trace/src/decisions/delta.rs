//! Snapshots and Plans as what differs from the ones before.
//!
//! Of a table the entries that changed are written, of an entry a mask and the fields that changed, so that a
//! tick in which nothing moves costs a few bytes. The field lists are exhaustive: a new field that is not
//! listed does not compile.

use quell_model::{
    CORES_MAX, Class, CoreId, CoreMode, CorePlan, CoreSet, CoreView, Limits, Nanos, Plan, Reason,
    Rung, Snapshot, TaskId, TaskPlan, TaskReason, TaskView,
};
use quell_policy::Wake;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Task places at most, in what is read.
const TASKS_MAX: usize = 1 << 16;

/// Why bytes are not a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

/// Appends a value.
pub(super) fn put<T: Serialize>(value: &T, out: &mut Vec<u8>) {
    // Writing into memory cannot fail, and every table knows its length.
    let written = postcard::to_io(value, out);
    debug_assert!(written.is_ok());
}

/// Takes a value off the front.
pub(super) fn take<T: DeserializeOwned>(from: &mut &[u8]) -> Result<T, Malformed> {
    let (value, rest) =
        postcard::take_from_bytes(from).map_err(|_| Malformed("a value that does not parse"))?;
    *from = rest;
    Ok(value)
}

/// A table's entry that is written as what differs from another.
trait Delta: Copy + PartialEq {
    /// What a new entry is compared with.
    fn blank() -> Self;
    fn write(&self, before: &Self, out: &mut Vec<u8>);
    fn read(&mut self, from: &mut &[u8]) -> Result<(), Malformed>;
}

macro_rules! delta_by_field {
    ($type:ident { $($field:ident),+ } blank $blank:expr) => {
        impl Delta for $type {
            fn blank() -> $type {
                $blank
            }

            fn write(&self, before: &$type, out: &mut Vec<u8>) {
                let $type { $($field),+ } = self;
                let changed = [$(*$field != before.$field),+];
                let mask = changed.iter().rev().fold(0u32, |mask, &changed| mask << 1 | u32::from(changed));
                put(&mask, out);
                $(if *$field != before.$field { put($field, out); })+
            }

            fn read(&mut self, from: &mut &[u8]) -> Result<(), Malformed> {
                let mut mask: u32 = take(from)?;
                $(
                    if mask & 1 == 1 { self.$field = take(from)?; }
                    mask >>= 1;
                )+
                if mask == 0 { Ok(()) } else { Err(Malformed("a field that does not exist")) }
            }
        }
    };
}

const NOBODY: TaskId = TaskId { index: 0, generation: 0 };
const NO_LIMITS: Limits = Limits {
    class: Class::BestEffort,
    guaranteed: 0,
    max: 0,
    delay_target: Nanos::ZERO,
    runaway_after: Nanos::ZERO,
    allowed: CoreSet::EMPTY,
};

delta_by_field!(CoreView { id, managed, online, running, idle_since, lc_busy, outcome }
    blank CoreView::new(CoreId(0)));
delta_by_field!(TaskView {
    id, alive, limits, running, waiting, sleeping, running_on, queueing_delay, longest_run, delay_caused,
    latency, load, bandwidth, request_start
} blank TaskView::new(NOBODY, NO_LIMITS));
delta_by_field!(CorePlan { id, owner, mode, reason }
    blank CorePlan { id: CoreId(0), owner: None, mode: CoreMode::Kernel, reason: Reason::Unwanted });
delta_by_field!(TaskPlan { id, class, cap, rung, beneath, reason }
blank TaskPlan {
    id: NOBODY,
    class: Class::BestEffort,
    cap: 0,
    rung: Rung::Own,
    beneath: CoreSet::EMPTY,
    reason: TaskReason::NoCore,
});

/// Length, then for each entry that changed the distance to it (from 1) and its delta, then 0. Entries
/// past the old table's end are all written.
fn write_table<T: Delta>(before: &[T], now: &[T], out: &mut Vec<u8>) {
    put(&now.len(), out);
    let mut unchanged = 0u32;
    for (at, entry) in now.iter().enumerate() {
        unchanged += 1;
        if before.get(at) != Some(entry) {
            put(&unchanged, out);
            entry.write(before.get(at).unwrap_or(&T::blank()), out);
            unchanged = 0;
        }
    }
    put(&0u32, out);
}

fn read_table<T: Delta>(
    table: &mut Vec<T>,
    most: usize,
    from: &mut &[u8],
) -> Result<(), Malformed> {
    let length: usize = take(from)?;
    if length > most {
        return Err(Malformed("a table longer than any"));
    }
    table.truncate(length);
    let mut next = 0;
    loop {
        let distance: u32 = take(from)?;
        if distance == 0 {
            break;
        }
        let at = next + distance as usize - 1;
        if at >= length || at > table.len() {
            return Err(Malformed("an entry outside its table"));
        }
        if at == table.len() {
            table.push(T::blank());
        }
        table[at].read(from)?;
        next = at + 1;
    }
    if table.len() == length { Ok(()) } else { Err(Malformed("a table that lacks entries")) }
}

/// Appends a Snapshot as what differs from `before`.
pub(super) fn write_snapshot(before: &Snapshot, seen: &Snapshot, out: &mut Vec<u8>) {
    let Snapshot { now, cores, tasks, dirty, went_idle } = seen;
    put(&now.0.wrapping_sub(before.now.0), out);
    write_table(&before.cores, cores, out);
    write_table(&before.tasks, tasks, out);
    put(dirty, out);
    put(went_idle, out);
}

/// Brings a Snapshot up to date.
pub(super) fn read_snapshot(seen: &mut Snapshot, from: &mut &[u8]) -> Result<(), Malformed> {
    seen.now = Nanos(seen.now.0.wrapping_add(take(from)?));
    read_table(&mut seen.cores, CORES_MAX, from)?;
    read_table(&mut seen.tasks, TASKS_MAX, from)?;
    seen.dirty = take(from)?;
    seen.went_idle = take(from)?;
    Ok(())
}

/// Appends a Plan as what differs from `before`.
pub(super) fn write_plan(before: &Plan, plan: &Plan, out: &mut Vec<u8>) {
    let Plan { cores, tasks } = plan;
    write_table(&before.cores, cores, out);
    write_table(&before.tasks, tasks, out);
}

/// Brings a Plan up to date.
pub(super) fn read_plan(plan: &mut Plan, from: &mut &[u8]) -> Result<(), Malformed> {
    read_table(&mut plan.cores, CORES_MAX, from)?;
    read_table(&mut plan.tasks, TASKS_MAX, from)
}

/// Appends a time as the distance from another near it, in either direction.
pub(super) fn write_time(before: Nanos, time: Nanos, out: &mut Vec<u8>) {
    put(&(time.0.wrapping_sub(before.0) as i64), out);
}

/// The time that was written as a distance from `before`.
pub(super) fn read_time(before: Nanos, from: &mut &[u8]) -> Result<Nanos, Malformed> {
    let distance: i64 = take(from)?;
    Ok(Nanos(before.0.wrapping_add(distance as u64)))
}

/// Appends when the policy wants to be asked again.
pub(super) fn write_wake(now: Nanos, wake: Wake, out: &mut Vec<u8>) {
    let later = match wake {
        Wake::At(at) => Some(at.0.wrapping_sub(now.0) as i64),
        Wake::OnChange => None,
    };
    put(&later, out);
}

/// When the policy wants to be asked again.
pub(super) fn read_wake(now: Nanos, from: &mut &[u8]) -> Result<Wake, Malformed> {
    let later: Option<i64> = take(from)?;
    Ok(later.map_or(Wake::OnChange, |later| Wake::At(Nanos(now.0.wrapping_add(later as u64)))))
}
