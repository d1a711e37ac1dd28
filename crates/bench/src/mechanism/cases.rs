//! What is measured: each case prepares its actors, acts, and waits until the act took effect.
//!
//! Priorities below: the occupant holds the target's core, the target has to get it, and the driver
//! stands above both so that nothing delays its clock. The driver sleeps between two samples.

use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use quell_load::now;
use quell_model::{CoreId, CoreSet, Nanos};

use super::actors::{Act, Actor, Call, await_spinning};
use super::freezer::Freezer;
use super::signal::StampingSignal;
use crate::host::{Policy, pin, set_policy};

const LOWERED: i32 = 5;
const OCCUPANT: i32 = 10;
const TARGET: i32 = 20;
/// The driver's own priority.
pub const DRIVER: i32 = 30;
const ABOVE_DRIVER: i32 = 40;
/// Between two samples: the driver's core is free for others.
const PAUSE: Duration = Duration::from_micros(100);
/// How many samples may fail, to a stall or a foreign thread, before a case does.
const FAILURES_MAX: usize = 20;

/// One act: what it cost its caller, and how long until it took effect.
#[derive(Clone, Copy, Debug)]
pub struct Sample {
    /// Time of the call, or of all calls of a batch.
    pub call: Nanos,
    /// From the start of the (first) call until the (last) target felt it.
    pub delay: Nanos,
}

/// The cores that a case uses.
#[derive(Clone, Debug)]
pub struct Place {
    /// The driver's core.
    pub driver: CoreId,
    /// The cores of the targets; more than one only in batches.
    pub targets: Vec<CoreId>,
}

impl Place {
    fn target(&self) -> CoreId {
        self.targets.first().copied().unwrap_or(self.driver)
    }
}

/// Something to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// Wakes a sleeping target on an idle core.
    WakeIdle(Call),
    /// Wakes a target that preempts an occupant of this policy.
    WakeOver(Call, Policy),
    /// Wakes as many targets, spread over the cores, over a FIFO occupant on each.
    WakeBatch(usize),
    /// Raises a runnable target above the occupant.
    Raise(Policy),
    /// Raises as many targets, spread over the cores, above a FIFO occupant on each.
    RaiseBatch(usize),
    /// Lowers the occupant below a runnable target.
    Lower,
    /// Signals a running target.
    Signal,
    /// Moves a running target to the driver's core.
    MoveRunning,
    /// Moves a target that waits on the driver's core to its idle own one.
    MoveWaiting,
    /// Freezes a running target.
    Freeze,
    /// Thaws a frozen target.
    Thaw,
}

impl Mechanism {
    /// The name of the case, and of the means by which it is done.
    pub fn names(self) -> (String, &'static str) {
        let by = |call| match call {
            Call::Futex => "futex",
            Call::Eventfd => "eventfd",
        };
        match self {
            Mechanism::WakeIdle(call) => ("wake on idle core".into(), by(call)),
            Mechanism::WakeOver(call, policy) => (format!("wake over {}", class(policy)), by(call)),
            Mechanism::WakeBatch(count) => (format!("wake batch of {count}"), "futex"),
            Mechanism::Raise(policy) => (format!("wake over {}", class(policy)), "setscheduler"),
            Mechanism::RaiseBatch(count) => (format!("wake batch of {count}"), "setscheduler"),
            Mechanism::Lower => ("preempt".into(), "setscheduler"),
            Mechanism::Signal => ("preempt".into(), "tgkill"),
            Mechanism::MoveRunning => ("migrate running".into(), "setaffinity"),
            Mechanism::MoveWaiting => ("migrate waiting".into(), "setaffinity"),
            Mechanism::Freeze => ("idle".into(), "cgroup-freezer"),
            Mechanism::Thaw => ("wake frozen".into(), "cgroup-freezer"),
        }
    }

    /// Takes this many samples. Called on the driver's thread.
    ///
    /// # Errors
    /// When the kernel refuses, or the act has no effect within the bound again and again.
    pub fn measure(self, place: &Place, count: usize) -> Result<Vec<Sample>> {
        match self {
            Mechanism::WakeIdle(call) => wake(place, count, 1, call, None),
            Mechanism::WakeOver(call, policy) => wake(place, count, 1, call, Some(policy)),
            Mechanism::WakeBatch(size) => {
                wake(place, count, size, Call::Futex, Some(Policy::Fifo(OCCUPANT)))
            }
            Mechanism::Raise(policy) => raise(place, count, 1, policy),
            Mechanism::RaiseBatch(size) => raise(place, count, size, Policy::Fifo(OCCUPANT)),
            Mechanism::Lower => lower(place, count),
            Mechanism::Signal => signal(place, count),
            Mechanism::MoveRunning => move_running(place, count),
            Mechanism::MoveWaiting => move_waiting(place, count),
            Mechanism::Freeze => freeze(place, count, |frozen, _| frozen),
            Mechanism::Thaw => freeze(place, count, |_, thawed| thawed),
        }
    }
}

fn class(policy: Policy) -> &'static str {
    match policy {
        Policy::Other | Policy::Batch => "SCHED_OTHER",
        Policy::Idle => "SCHED_IDLE",
        Policy::Fifo(_) | Policy::Rr(_) => "SCHED_FIFO",
    }
}

/// Collects samples; forgives a few that a stall or a foreign thread spoiled.
fn collect(count: usize, mut sample: impl FnMut() -> Result<Sample>) -> Result<Vec<Sample>> {
    let mut samples = Vec::with_capacity(count);
    let mut failures = 0;
    while samples.len() < count {
        match sample() {
            Ok(one) => samples.push(one),
            Err(error) => {
                failures += 1;
                if failures > FAILURES_MAX {
                    return Err(error);
                }
            }
        }
        std::thread::sleep(PAUSE);
    }
    Ok(samples)
}

/// One occupant for each core of the targets.
fn occupants(place: &Place, policy: Policy) -> Result<Vec<Actor>> {
    place.targets.iter().map(|&core| Actor::start(core, policy, Call::Futex, Act::Spin)).collect()
}

fn targets(place: &Place, size: usize, policy: Policy, call: Call) -> Result<Vec<Actor>> {
    let cores = place.targets.iter().cycle().take(size);
    cores.map(|&core| Actor::start(core, policy, call, Act::Stamp)).collect()
}

fn occupy(occupants: &mut [Actor]) -> Result<()> {
    for occupant in &mut *occupants {
        occupant.arm();
        occupant.ring();
    }
    await_spinning("an occupant running", || occupants.iter().all(Actor::has_entered))
}

fn vacate(occupants: &[Actor]) -> Result<()> {
    occupants.iter().for_each(Actor::release);
    await_spinning("an occupant stopping", || occupants.iter().all(Actor::is_done))
}

/// Lets a wake-up that was sent before arrive: an interrupt on another core.
fn settle() {
    let since = now();
    while now() - since < Nanos::from_micros(20) {
        std::hint::spin_loop();
    }
}

fn last_stamp(targets: &[Actor], start: Nanos) -> Result<Nanos> {
    let stamps = targets.iter().map(|target| target.stamp().filter(|at| *at >= start));
    stamps.max().flatten().context("a target ran before it was let to")
}

fn wake(
    place: &Place,
    count: usize,
    size: usize,
    call: Call,
    over: Option<Policy>,
) -> Result<Vec<Sample>> {
    let mut occupants = over.map_or(Ok(Vec::new()), |policy| occupants(place, policy))?;
    let mut targets = targets(place, size, Policy::Fifo(TARGET), call)?;
    collect(count, || {
        occupy(&mut occupants)?;
        targets.iter_mut().for_each(Actor::arm);
        let start = now();
        targets.iter().for_each(Actor::ring);
        let call = now() - start;
        let ran = await_spinning("a wake-up", || targets.iter().all(Actor::is_done));
        vacate(&occupants)?;
        ran?;
        Ok(Sample { call, delay: last_stamp(&targets, start)? - start })
    })
}

fn raise(place: &Place, count: usize, size: usize, over: Policy) -> Result<Vec<Sample>> {
    let mut occupants = occupants(place, over)?;
    // What waits beneath must not get the core before it is raised.
    let beneath = if over == Policy::Other { Policy::Idle } else { Policy::Other };
    let mut targets = targets(place, size, beneath, Call::Futex)?;
    collect(count, || {
        occupy(&mut occupants)?;
        for target in &mut targets {
            target.arm();
            target.ring();
        }
        settle();
        let start = now();
        let raised: std::io::Result<()> =
            targets.iter().try_for_each(|target| set_policy(target.tid(), Policy::Fifo(TARGET)));
        let call = now() - start;
        let ran = await_spinning("a raise", || targets.iter().all(Actor::is_done));
        for target in &targets {
            set_policy(target.tid(), beneath)?;
        }
        vacate(&occupants)?;
        raised?;
        ran?;
        Ok(Sample { call, delay: last_stamp(&targets, start)? - start })
    })
}

fn lower(place: &Place, count: usize) -> Result<Vec<Sample>> {
    let mut occupants =
        [Actor::start(place.target(), Policy::Fifo(TARGET), Call::Futex, Act::Spin)?];
    let mut targets = targets(place, 1, Policy::Fifo(OCCUPANT), Call::Futex)?;
    collect(count, || {
        occupy(&mut occupants)?;
        targets[0].arm();
        targets[0].ring();
        settle();
        let start = now();
        set_policy(occupants[0].tid(), Policy::Fifo(LOWERED))?;
        let call = now() - start;
        let ran = await_spinning("a preemption", || targets[0].is_done());
        set_policy(occupants[0].tid(), Policy::Fifo(TARGET))?;
        vacate(&occupants)?;
        ran?;
        Ok(Sample { call, delay: last_stamp(&targets, start)? - start })
    })
}

fn signal(place: &Place, count: usize) -> Result<Vec<Sample>> {
    let signal = StampingSignal::install()?;
    let mut occupants =
        [Actor::start(place.target(), Policy::Fifo(OCCUPANT), Call::Futex, Act::Spin)?];
    collect(count, || {
        occupy(&mut occupants)?;
        signal.arm();
        let start = now();
        signal.send(occupants[0].tid())?;
        let call = now() - start;
        let handled = await_spinning("a signal", || signal.stamp().is_some());
        vacate(&occupants)?;
        handled?;
        Ok(Sample { call, delay: signal.stamp().unwrap_or(Nanos::MAX) - start })
    })
}

fn move_running(place: &Place, count: usize) -> Result<Vec<Sample>> {
    let (here, there) = (CoreSet::of(place.driver), CoreSet::of(place.target()));
    let policy = Policy::Fifo(ABOVE_DRIVER);
    let mut target = Actor::start(place.target(), policy, Call::Futex, Act::StampOnArrival)?;
    collect(count, || {
        target.arm();
        target.ring();
        await_spinning("the target running", || target.has_entered())?;
        let start = now();
        pin(target.tid(), &here)?;
        let call = now() - start;
        let arrived = await_spinning("a migration", || target.is_done());
        target.release();
        pin(target.tid(), &there)?;
        arrived?;
        Ok(Sample { call, delay: target.stamp().context("the target never arrived")? - start })
    })
}

fn move_waiting(place: &Place, count: usize) -> Result<Vec<Sample>> {
    let (here, there) = (CoreSet::of(place.driver), CoreSet::of(place.target()));
    let mut targets = [Actor::start(place.driver, Policy::Fifo(TARGET), Call::Futex, Act::Stamp)?];
    collect(count, || {
        let target = &mut targets[0];
        target.arm();
        target.ring();
        settle();
        let start = now();
        pin(target.tid(), &there)?;
        let call = now() - start;
        let ran = await_spinning("a migration", || target.is_done());
        pin(target.tid(), &here)?;
        ran?;
        Ok(Sample { call, delay: last_stamp(&targets, start)? - start })
    })
}

fn freeze(
    place: &Place,
    count: usize,
    which: impl Fn(Sample, Sample) -> Sample,
) -> Result<Vec<Sample>> {
    let mut occupants = [Actor::start(place.target(), Policy::Other, Call::Futex, Act::Spin)?];
    let freezer = Freezer::with(occupants[0].tid())?;
    collect(count, || {
        occupy(&mut occupants)?;
        let start = now();
        freezer.freeze()?;
        let call = now() - start;
        // The last stamp before silence tells when it stopped.
        std::thread::sleep(Duration::from_millis(1));
        let stopped = occupants[0].stamp().unwrap_or(start);
        let again = now();
        freezer.thaw()?;
        let thaw_call = now() - again;
        let goes_on =
            await_spinning("a thaw", || occupants[0].stamp().is_some_and(|at| at > again));
        let went_on = occupants[0].stamp().unwrap_or(again);
        vacate(&occupants)?;
        goes_on?;
        if stopped > again {
            bail!("a freeze did not take effect within a millisecond");
        }
        let frozen = Sample { call, delay: stopped - start };
        Ok(which(frozen, Sample { call: thaw_call, delay: went_on - again }))
    })
}
