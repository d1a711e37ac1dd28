//! What a turn on this core is made of: tried at the start of a lane in the shared pattern, with a member of its own that does
//! nothing but read the clock.
//!
//! The kernel counts a member's time from switch to switch. The rest of the switch that brings it, and the interrupt that ends
//! its turn, are in that: tenths of a microsecond on bare metal, several on a virtual machine. Only the member itself can
//! tell what it had.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use quell_model::{CoreId, CoreSet, Nanos};
use quell_observe::bpf::{LaneReader, LaneThread, SlotPlace};
use quell_os::own::place_scheduler;
use quell_os::sched::SchedAttr;
use quell_os::{ThreadRef, clock};
use rustix::event::{Timespec, poll};

use super::lead::Lead;

/// Turns that are tried.
const TURNS: usize = 150;
/// How long the scheduler sleeps in each: as in a lane, so that the switches are those of a lane.
const SLEEP: Nanos = Nanos::from_micros(30);
/// Between two readings of the clock lies less than this, unless something comes in between.
const GAP: Nanos = Nanos(1_000);
/// The member ends by itself after this, whatever happens.
const MOST: Nanos = Nanos::from_millis(200);

/// Tries turns on the calling thread's core, whose rung must be above the member's. `watch` has the member seen as a thread
/// of the lane. `None`: no turn could be tried, for example because others keep the core.
pub fn lead(
    reader: &LaneReader,
    core: CoreId,
    member: SchedAttr,
    watch: &mut dyn FnMut(ThreadRef) -> Option<SlotPlace>,
) -> Option<Lead> {
    let stop = Arc::new(AtomicBool::new(false));
    let own = Arc::clone(&stop);
    let (tell, told) = crossbeam_channel::bounded(1);
    let spins = std::thread::Builder::new().name("quell-probe".into()).spawn(move || {
        let placed = place_scheduler(&CoreSet::of(core), &member).is_ok();
        let _ = tell.send(ThreadRef::current().ok().filter(|_| placed));
        if placed { stretches(&own) } else { Vec::new() }
    });
    let spins = spins.ok()?;
    let thread = told.recv_timeout(Duration::from_nanos(MOST.0)).ok().flatten();
    let seen = thread.and_then(|thread| Some(LaneThread::new(thread, watch(thread)?)));
    let ran = seen.map(|member| turns(reader, &member));
    // Relaxed: the flag stands alone.
    stop.store(true, Relaxed);
    // One that never came to its core is left to end by itself.
    thread?;
    let had = median(spins.join().ok()?)?;
    let ran = median(ran?)?;
    Some(Lead::found(SLEEP.since(had), ran.since(had)))
}

/// Sleeps, again and again, and notes for how long the member was on the core meanwhile.
fn turns(reader: &LaneReader, member: &LaneThread) -> Vec<Nanos> {
    let sleep = Timespec { tv_sec: 0, tv_nsec: SLEEP.0 as i64 };
    let mut all = Vec::with_capacity(TURNS);
    let mut before = None;
    for _ in 0..=TURNS {
        // An interrupted sleep is one turn of many.
        let _ = poll(&mut [], Some(&sleep));
        let ran = reader.ran(member);
        all.extend(before.map(|before| ran.since(before)));
        before = Some(ran);
    }
    all
}

/// Reads the clock, and notes the stretches between gaps.
fn stretches(stop: &AtomicBool) -> Vec<Nanos> {
    let mut all = Vec::with_capacity(2 * TURNS);
    let begin = clock::now();
    let (mut first, mut last) = (begin, begin);
    while !stop.load(Relaxed) && last.since(begin) < MOST && all.len() < all.capacity() {
        let at = clock::now();
        if at.since(last) > GAP {
            all.push(last.since(first));
            first = at;
        }
        last = at;
    }
    all
}

/// The middle one: hypervisors stop cores, and what a turn had then is no rule.
fn median(mut all: Vec<Nanos>) -> Option<Nanos> {
    all.sort_unstable();
    // A few say nothing.
    (all.len() >= TURNS / 4).then(|| all[all.len() / 2])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_of_few_is_none() {
        let all = |count: u64| (0..count).map(Nanos).rev().collect::<Vec<_>>();
        assert_eq!(median(all(TURNS as u64 / 4 - 1)), None);
        assert_eq!(median(all(101)), Some(Nanos(50)));
    }

    #[test]
    fn who_reads_the_clock_stops_when_it_is_told_to() {
        assert!(stretches(&AtomicBool::new(true)).is_empty());
    }
}
