//! Answers that leave together.
//!
//! A thread that gets several ready sockets at once answers one after the other. Each answer but the last may wait for the
//! next, as long as they follow at once: then one system call sends them all.

use std::cell::Cell;

use quell_model::Nanos;

use crate::shared::Shared;
use crate::threads;

/// Calls that are further apart are of a program that works on each answer: none waits for the next.
const APART: Nanos = Nanos::from_micros(20);

#[derive(Clone, Copy)]
struct Batch {
    /// Of the endpoint: its address identifies it.
    shared: *const Shared,
    /// Sockets that were not answered.
    left: usize,
    /// Of the last call.
    at: Nanos,
}

thread_local! {
    static BATCH: Cell<Option<Batch>> = const { Cell::new(None) };
}

/// The thread got so many ready sockets. Green threads share kernel threads: none of their answers waits.
pub(crate) fn begin(shared: &Shared, sockets: usize, now: Nanos) {
    if threads::own().is_some() {
        return;
    }
    let batch = Batch { shared, left: sockets, at: now };
    BATCH.set((sockets > 1).then_some(batch));
}

/// The thread has read, or done something else that is part of an answer.
pub(crate) fn note(shared: &Shared, now: Nanos) {
    if let Some(batch) = BATCH.get()
        && std::ptr::eq(batch.shared, shared)
    {
        let is_over = now.since(batch.at) > APART;
        BATCH.set((!is_over).then_some(Batch { at: now, ..batch }));
    }
}

/// Whether answers of the thread wait for further ones.
pub(crate) fn holds(shared: &Shared) -> bool {
    BATCH.get().is_some_and(|batch| std::ptr::eq(batch.shared, shared))
}

/// The thread answers: whether that may wait for further answers.
pub(crate) fn may_hold(shared: &Shared, now: Nanos) -> bool {
    note(shared, now);
    let Some(batch) = BATCH.get().filter(|batch| std::ptr::eq(batch.shared, shared)) else {
        return false;
    };
    let left = batch.left.saturating_sub(1);
    BATCH.set((left > 0).then_some(Batch { left, ..batch }));
    left > 0
}
