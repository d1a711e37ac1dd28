//! How long threads of a service wait from a wake-up until they run, by BPF: a second, quieter measure than its answers.

use anyhow::{Context as _, Result};
use quell_model::{Children, CoreSet, Nanos, TaskId};
use quell_observe::bpf::{BpfConfig, BpfObserver, Histogram};
use quell_observe::{ObserveError, Observer, procs};

use crate::host::Group;

/// The one task that is observed.
pub(crate) const SERVICE: TaskId = TaskId { index: 0, generation: 0 };
/// Quantiles of the waits that are reported, in permille.
const TOLD: [u32; 3] = [500, 990, 999];

/// A passive observer of one service after the other. It costs every system alike.
pub struct Wakeups {
    observer: BpfObserver,
    before: Option<Histogram>,
}

/// An observer that sees threads of [`SERVICE`] on these cores and changes nothing.
///
/// # Errors
/// Without the right to load BPF programs, or where the kernel lacks what they need.
pub(crate) fn passive_observer(managed: &CoreSet) -> Result<BpfObserver> {
    let config = BpfConfig { max_threads: 4_096, ..BpfConfig::default() };
    let mut observer = BpfObserver::new(&config).context("load the BPF observer")?;
    observer.manage(managed);
    observer.allow(SERVICE, managed);
    Ok(observer)
}

impl Wakeups {
    /// Loads it.
    ///
    /// # Errors
    /// Without the right to load BPF programs, or where the kernel lacks what they need.
    pub fn start(managed: &CoreSet) -> Result<Wakeups> {
        Ok(Wakeups { observer: passive_observer(managed)?, before: None })
    }

    /// A measurement begins: threads that the service has now, and their children from now on.
    ///
    /// # Errors
    /// When the kernel refuses to watch a thread that lives.
    pub fn begin(&mut self, group: &Group) -> Result<()> {
        for pid in group.processes()? {
            for thread in procs::threads(pid).unwrap_or_default() {
                match self.observer.watch(thread, SERVICE, true, Children::Adopt) {
                    // Gone since it was listed, or a zombie, which still has its files.
                    Err(ObserveError::Kernel { source, .. })
                        if source.raw_os_error() == Some(libc::ESRCH) => {}
                    other => other?,
                }
            }
        }
        self.before = Some(self.observer.wake_to_run(SERVICE));
        Ok(())
    }

    /// It is over: these parts of the waits were no longer.
    pub fn end(&mut self) -> [Option<Nanos>; 3] {
        let waits = self.observer.wake_to_run(SERVICE);
        let waits = self.before.take().map_or(waits.clone(), |before| waits.since(&before));
        TOLD.map(|permille| waits.quantile(permille))
    }
}
