//! What the kernel sees of the managed cores, the same way for every system.

use anyhow::{Context as _, Result};
use quell_linux::observe::bpf::{BpfConfig, BpfObserver};
use quell_linux::observe::{Children, Observer, procs};
use quell_model::{CoreSet, Nanos, TaskId};

use crate::host::Program;
use crate::stall::{Evidence, GAP_MIN, Gap};

const LC: TaskId = TaskId { index: 0, generation: 0 };

/// A passive observer of the service's threads and of the managed cores, besides any that a daemon
/// has. It costs every system alike.
pub struct CoreWatch {
    observer: BpfObserver,
    idle_before: Nanos,
}

/// What was seen in one measurement.
#[derive(Clone, Debug, Default)]
pub struct Watched {
    /// Hypervisor stalls of the managed cores.
    pub gaps: Vec<Gap>,
    /// Time during which a thread of the service waited although a managed core was idle.
    pub idle_while_lc_waits: Nanos,
}

impl CoreWatch {
    /// Watches the threads that the service has now.
    ///
    /// # Errors
    /// Without the right to load BPF programs, or where the kernel lacks what they need.
    pub fn start(managed: &CoreSet, lc: &Program) -> Result<CoreWatch> {
        let config = BpfConfig { stall_min: GAP_MIN, max_threads: 4_096, ..BpfConfig::default() };
        let mut observer = BpfObserver::new(&config).context("load the BPF observer")?;
        observer.manage(managed);
        for thread in procs::threads(lc.pid())? {
            observer.watch(thread, LC, true, Children::Leave)?;
        }
        observer.allow(LC, managed);
        Ok(CoreWatch { observer, idle_before: Nanos::ZERO })
    }

    /// A measurement begins.
    pub fn begin(&mut self) {
        self.observer.drain_stalls();
        self.idle_before = self.observer.idle_while_lc_waits();
    }

    /// It is over. A gap while a thread of `quell` ran is Quell's.
    pub fn end(&mut self, quell: &[i32]) -> Watched {
        let gaps = self.observer.drain_stalls().into_iter().map(|stall| Gap {
            start: stall.from,
            end: stall.to,
            evidence: Evidence::StealClock { stolen: stall.stolen },
            quell_ran: quell.contains(&stall.process.0),
        });
        Watched {
            gaps: gaps.collect(),
            idle_while_lc_waits: self.observer.idle_while_lc_waits() - self.idle_before,
        }
    }
}
