//! Latency and load of tasks in the Snapshot: noted as they are read, dropped when they are too old.

use quell_model::{Absence, Nanos, Reported, Signal, TaskId};

use super::Engine;
use crate::latency::Reading;

impl Engine {
    /// Notes what was read of a task, if it is still there.
    pub fn note_reading(&mut self, id: TaskId, reading: &Reading) {
        let view = self.seen.tasks.get_mut(id.at()).filter(|view| view.id == id && view.alive);
        let Some(view) = view else { return };
        let until = reading.until();
        (view.latency, view.load) = (reading.latency, reading.load);
        view.reported = Some(Reported { at: reading.at, until });
        self.stale_due = self.stale_due.min(until);
    }

    /// Nobody acts on what is too old. One comparison a tick until something is.
    pub(super) fn drop_stale_readings(&mut self, now: Nanos) {
        if now < self.stale_due {
            return;
        }
        self.stale_due = Nanos::MAX;
        for view in &mut self.seen.tasks {
            let Some(reported) = view.reported else { continue };
            if reported.until > now {
                self.stale_due = self.stale_due.min(reported.until);
                continue;
            }
            drop_value(&mut view.latency);
            drop_value(&mut view.load);
        }
    }
}

fn drop_value<T: Copy>(signal: &mut Signal<T>) {
    if signal.value().is_some() {
        *signal = Signal::Absent(Absence::Stale);
    }
}
