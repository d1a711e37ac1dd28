//! Finds the times in which a core did not run at all.

use std::io;

use quell_model::{CoreId, Nanos};

use super::perf::PerfRing;

/// A timer that interrupts one core while this lives. An interrupt comes in user code, in system
/// calls and in softirqs alike, so one that comes late means that the core itself stood still: the
/// hypervisor ran something else. (Or the kernel had interrupts off, for far shorter times.)
pub struct Canary {
    ring: PerfRing,
    period: Nanos,
    last: Option<Nanos>,
}

/// A time in which a core stood still.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Standstill {
    /// The last interrupt before.
    pub from: Nanos,
    /// The first one after.
    pub to: Nanos,
    /// Whether the core idled at the latter: waking a halted one takes its time, and delays nobody by itself.
    pub idle: bool,
}

impl Canary {
    /// How often a timer may interrupt a core whose work takes milliseconds. It is not free, in a virtual machine least of all
    /// (14 us each time on the one where this was written): canaries rest while nothing is measured that needs them.
    pub const OFTEN: Nanos = Nanos::from_micros(200);

    /// Puts a canary on a core, whose timer interrupts it this often.
    ///
    /// # Errors
    /// Where perf events are not allowed or not in this kernel.
    pub fn start(core: CoreId, period: Nanos) -> io::Result<Canary> {
        let ring = PerfRing::start(core, period)?;
        ring.set_enabled(false)?;
        Ok(Canary { ring, period, last: None })
    }

    /// From now on interrupts come; time before is no gap.
    ///
    /// # Errors
    /// Never, for a canary that was started.
    pub fn begin(&mut self) -> io::Result<()> {
        self.ring.drain();
        self.last = None;
        self.ring.set_enabled(true)
    }

    /// Interrupts come no more; the standstills of at least `least` since [`Canary::begin`].
    ///
    /// # Errors
    /// Never, for a canary that was started.
    pub fn end(&mut self, least: Nanos) -> io::Result<Vec<Standstill>> {
        self.ring.set_enabled(false)?;
        let mut found = Vec::new();
        for record in self.ring.drain() {
            if let Some(from) = self.last.replace(record.at) {
                let late = (record.at - from) - self.period;
                if late >= least {
                    found.push(Standstill { from, to: record.at, idle: record.pid == 0 });
                }
            }
        }
        Ok(found)
    }
}
