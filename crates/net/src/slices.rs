//! Threads that wait for latency sockets run soon after they are woken.
//!
//! The fair class lets a thread go on for its slice (3 ms by default) before one that was woken: beside bulk data that is
//! the tail. A thread that asks for a shorter slice is let run at once, as long as it has had no more than its part of the
//! core (EEVDF with `PREEMPT_SHORT`, Linux 6.12). That takes no privilege, and costs others nothing that they have a right to.

use std::cell::Cell;

use quell_model::Nanos;
use quell_os::own;
use quell_os::sched::Policy;

use crate::threads;

/// Waits of a thread after which it asks: threads that it starts inherit its slice, so one that waits now and then does not.
const WAITS_MIN: u32 = 64;

thread_local! {
    /// Waits for latency sockets so far.
    static WAITS: Cell<u32> = const { Cell::new(0) };
}

/// The calling thread is about to wait for latency sockets.
pub(crate) fn note_wait(slice: Nanos) {
    let waits = WAITS.get().saturating_add(1);
    WAITS.set(waits);
    // Of a green thread the kernel sees the thread that many share.
    if waits == WAITS_MIN && slice > Nanos::ZERO && threads::own().is_none() {
        shorten(slice);
    }
}

/// Asks for a slice. Before Linux 6.12 that has no effect.
fn shorten(slice: Nanos) {
    let asked = own::attr().and_then(|attr| match attr.policy {
        Policy::Other if attr.slice > slice => {
            own::set_attr(&quell_os::sched::SchedAttr { slice, ..attr })
        }
        // Its owner has chosen another policy, or a shorter one.
        _ => Ok(()),
    });
    if let Err(error) = asked {
        tracing::debug!("a thread of latency sockets keeps its slice: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slice_is_asked_for_after_some_waits_and_no_longer_one_is() {
        let before = own::attr().expect("a thread").slice;
        std::thread::spawn(move || {
            for _ in 1..WAITS_MIN {
                note_wait(Nanos::from_micros(500));
            }
            assert_eq!(own::attr().expect("a thread").slice, before);
            note_wait(Nanos::from_micros(500));
            // A kernel without slices reports none.
            let after = own::attr().expect("a thread").slice;
            assert_eq!(after, before.min(Nanos::from_micros(500)));
            shorten(Nanos::from_millis(50));
            assert_eq!(own::attr().expect("a thread").slice, after);
        })
        .join()
        .expect("no panic");
    }
}
