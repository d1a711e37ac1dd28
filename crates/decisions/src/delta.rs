//! Snapshots and Plans as what differs from the ones before.
//!
//! Of a table the entries that changed are written, of an entry a mask and the fields that changed, so that a
//! tick in which nothing moves costs a few bytes. The field lists are exhaustive: a new field that is not
//! listed does not compile.

use quell_model::{
    CORES_MAX, Class, CoreId, CoreMode, CorePlan, CoreSet, CoreView, Limits, Nanos, Plan, Reason,
    Rung, Signal, Snapshot, TaskId, TaskPlan, TaskReason, TaskView,
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

/// A table's entry that is written as what differs from another, `passed` ago.
trait Delta: Copy + PartialEq {
    /// What a new entry is compared with.
    fn blank() -> Self;
    fn write(&self, before: &Self, passed: Nanos, out: &mut Vec<u8>);
    fn read(&mut self, passed: Nanos, from: &mut &[u8]) -> Result<(), Malformed>;
}

/// A measured age that grew with the time: what is still waited for or still runs costs one bit a tick.
fn aged(signal: Signal<Nanos>, passed: Nanos) -> Signal<Nanos> {
    match signal {
        Signal::Measured(age) => Signal::Measured(Nanos(age.0.wrapping_add(passed.0))),
        other => other,
    }
}

macro_rules! delta_by_field {
    ($type:ident { $($field:ident),+ } ages { $($age:ident),* } blank $blank:expr) => {
        impl Delta for $type {
            fn blank() -> $type {
                $blank
            }

            fn write(&self, before: &$type, passed: Nanos, out: &mut Vec<u8>) {
                let $type { $($field,)+ $($age),* } = self;
                let _ = passed;
                let bits = [
                    $(*$age != before.$age && *$age == aged(before.$age, passed),)*
                    $(*$age != before.$age && *$age != aged(before.$age, passed),)*
                    $(*$field != before.$field),+
                ];
                let mask = bits.iter().rev().fold(0u32, |mask, &bit| mask << 1 | u32::from(bit));
                put(&mask, out);
                $(if *$age != before.$age && *$age != aged(before.$age, passed) { put($age, out); })*
                $(if *$field != before.$field { put($field, out); })+
            }

            fn read(&mut self, passed: Nanos, from: &mut &[u8]) -> Result<(), Malformed> {
                let _ = passed;
                let mut mask: u32 = take(from)?;
                let mut bit = || {
                    let bit = mask & 1 == 1;
                    mask >>= 1;
                    bit
                };
                $(if bit() { self.$age = aged(self.$age, passed); })*
                $(if bit() { self.$age = take(from)?; })*
                $(if bit() { self.$field = take(from)?; })+
                if mask == 0 { Ok(()) } else { Err(Malformed("a field that does not exist")) }
            }
        }
    };
}

const NOBODY: TaskId = TaskId { index: 0, generation: 0 };

delta_by_field!(CoreView {
    id, managed, online, running, idle_since, lc_busy, rt_share, burst, kernel_waits, outcome, request_start, serving,
    memory
} ages {} blank CoreView::new(CoreId(0)));
delta_by_field!(TaskView {
    id, alive, limits, running, waiting, sleeping, running_on, delay_caused, latency, load, reported, bandwidth,
    request_start
} ages { queueing_delay, longest_run } blank TaskView::new(NOBODY, Limits::NONE));
delta_by_field!(CorePlan { id, owner, mode, reason, yields } ages {}
    blank CorePlan { id: CoreId(0), owner: None, mode: CoreMode::Kernel, reason: Reason::Unwanted, yields: None });
delta_by_field!(TaskPlan { id, class, cap, rung, shared_cores, llc_ways, reason } ages {}
blank TaskPlan {
    id: NOBODY,
    class: Class::BestEffort,
    cap: 0,
    rung: Rung::Original,
    shared_cores: CoreSet::EMPTY,
    llc_ways: None,
    reason: TaskReason::NoCore,
});

/// Length, then for each entry that changed the distance to it (from 1) and its delta, then 0. Entries
/// past the old table's end are all written.
fn write_table<T: Delta>(before: &[T], now: &[T], passed: Nanos, out: &mut Vec<u8>) {
    put(&now.len(), out);
    let mut unchanged = 0u32;
    for (at, entry) in now.iter().enumerate() {
        unchanged += 1;
        if before.get(at) != Some(entry) {
            put(&unchanged, out);
            entry.write(before.get(at).unwrap_or(&T::blank()), passed, out);
            unchanged = 0;
        }
    }
    put(&0u32, out);
}

fn read_table<T: Delta>(
    table: &mut Vec<T>,
    most: usize,
    passed: Nanos,
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
        table[at].read(passed, from)?;
        next = at + 1;
    }
    if table.len() == length { Ok(()) } else { Err(Malformed("a table that lacks entries")) }
}

/// Appends a Snapshot as what differs from `before`.
pub(super) fn write_snapshot(before: &Snapshot, seen: &Snapshot, out: &mut Vec<u8>) {
    let Snapshot {
        now,
        cores,
        tasks,
        dirty,
        went_idle,
        elevated_background,
        bursts,
        locks,
        in_kernel,
        memory,
    } = seen;
    let passed = Nanos(now.0.wrapping_sub(before.now.0));
    put(&passed, out);
    write_table(&before.cores, cores, passed, out);
    write_table(&before.tasks, tasks, passed, out);
    put(dirty, out);
    put(went_idle, out);
    put(elevated_background, out);
    put(bursts, out);
    put(locks, out);
    put(in_kernel, out);
    put(memory, out);
}

/// Brings a Snapshot up to date.
pub(super) fn read_snapshot(seen: &mut Snapshot, from: &mut &[u8]) -> Result<(), Malformed> {
    let passed: Nanos = take(from)?;
    seen.now = Nanos(seen.now.0.wrapping_add(passed.0));
    read_table(&mut seen.cores, CORES_MAX, passed, from)?;
    read_table(&mut seen.tasks, TASKS_MAX, passed, from)?;
    seen.dirty = take(from)?;
    seen.went_idle = take(from)?;
    seen.elevated_background = take(from)?;
    seen.bursts = take(from)?;
    seen.locks = take(from)?;
    seen.in_kernel = take(from)?;
    seen.memory = take(from)?;
    Ok(())
}

/// Appends whether a Plan differs from `before`, and how.
pub(super) fn write_plan(before: &Plan, plan: &Plan, out: &mut Vec<u8>) {
    let Plan { cores, tasks, roles, reliefs } = plan;
    let changed = plan != before;
    put(&changed, out);
    if changed {
        write_table(&before.cores, cores, Nanos::ZERO, out);
        write_table(&before.tasks, tasks, Nanos::ZERO, out);
        put(roles, out);
        put(reliefs, out);
    }
}

/// Brings a Plan up to date.
pub(super) fn read_plan(plan: &mut Plan, from: &mut &[u8]) -> Result<(), Malformed> {
    if take(from)? {
        read_table(&mut plan.cores, CORES_MAX, Nanos::ZERO, from)?;
        read_table(&mut plan.tasks, TASKS_MAX, Nanos::ZERO, from)?;
        plan.roles = take(from)?;
        plan.reliefs = take(from)?;
    }
    Ok(())
}

/// Appends a time as the distance from another near it, in either direction.
pub(super) fn write_time(near: Nanos, time: Nanos, out: &mut Vec<u8>) {
    put(&(time.0.wrapping_sub(near.0) as i64), out);
}

/// The time that was written as a distance from `near`.
pub(super) fn read_time(near: Nanos, from: &mut &[u8]) -> Result<Nanos, Malformed> {
    let distance: i64 = take(from)?;
    Ok(Nanos(near.0.wrapping_add(distance as u64)))
}

// When the policy wants to be asked again: on a change, at the time that it named before, or at another.
const ON_CHANGE: u8 = 0;
const AS_BEFORE: u8 = 1;
const AT: u8 = 2;

/// Appends when the policy wants to be asked again.
pub(super) fn write_wake(before: Wake, now: Nanos, wake: Wake, out: &mut Vec<u8>) {
    match wake {
        Wake::OnChange => put(&ON_CHANGE, out),
        Wake::At(_) if wake == before => put(&AS_BEFORE, out),
        Wake::At(at) => {
            put(&AT, out);
            write_time(now, at, out);
        }
    }
}

/// When the policy wants to be asked again.
pub(super) fn read_wake(before: Wake, now: Nanos, from: &mut &[u8]) -> Result<Wake, Malformed> {
    match take(from)? {
        ON_CHANGE => Ok(Wake::OnChange),
        AS_BEFORE => Ok(before),
        AT => Ok(Wake::At(read_time(now, from)?)),
        _ => Err(Malformed("a wake of an unknown kind")),
    }
}
