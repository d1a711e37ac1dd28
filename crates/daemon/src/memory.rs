//! Memory traffic on its way to the scheduler thread: a thread of its own reads it every so often, since reading
//! may wait for locks of the kernel. It keeps to the unmanaged cores, as every thread of the daemon does.

use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::time::Duration;

use quell_control::config::{CheckedHost, MemoryConfig, MemorySource};
use quell_model::{CoreSet, Estimate, Nanos};
use quell_observe::memory::{Sources, Traffic, Wanted};
use quell_os::own;

/// The newest reading.
#[derive(Debug, Default)]
struct Newest {
    traffic: Traffic,
    /// Why the last attempt gave none.
    problem: Option<String>,
}

/// What the scheduler thread knows of memory traffic; the thread that reads it ends with this.
#[derive(Debug)]
pub struct Gauge {
    newest: Arc<Mutex<Newest>>,
    /// Between two readings.
    pub every: Nanos,
    /// What the total is derived from, if it is not measured itself.
    pub estimates_total: Option<Estimate>,
    /// Where it comes from, in words.
    pub source: String,
}

/// Sources that are not read yet.
pub struct Found {
    sources: Sources,
    every: Nanos,
    core_numbers: usize,
    /// Where the thread that reads may run.
    unmanaged: CoreSet,
}

impl Found {
    /// Looks for what is wanted on this host; `None`: nothing is.
    pub fn on_this_host(config: &MemoryConfig, host: &CheckedHost) -> Option<Found> {
        let wanted = match &config.source {
            MemorySource::None => return None,
            MemorySource::Auto => Wanted::Any,
            MemorySource::Resctrl => Wanted::Resctrl,
            MemorySource::Counters => Wanted::Counters,
            MemorySource::File(path) => Wanted::File(path.clone()),
        };
        let core_numbers = host.managed.iter().last().map_or(0, |core| core.index() + 1);
        let sources = Sources::find(&wanted, &host.managed);
        Some(Found { sources, every: config.every, core_numbers, unmanaged: host.unmanaged })
    }

    /// Whether both the total and each core's part can be had.
    pub fn is_whole(&self) -> bool {
        self.sources.counts() == (true, true)
    }

    /// What is missing, in a sentence.
    pub fn lacks(&self) -> String {
        format!("memory traffic is not measured ({})", self.sources.lacks.join("; "))
    }

    /// Begins to read.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn start(self) -> std::io::Result<Gauge> {
        let Found { mut sources, every, core_numbers, unmanaged } = self;
        let mut read = Traffic { by_core: vec![None; core_numbers], ..Traffic::default() };
        let newest = Arc::new(Mutex::new(Newest { traffic: read.clone(), problem: None }));
        let gauge = Gauge {
            newest: Arc::clone(&newest),
            every,
            estimates_total: sources.estimates_total(),
            source: sources.in_words(),
        };
        let newest = Arc::downgrade(&newest);
        std::thread::Builder::new().name("quell-memory".into()).spawn(move || {
            // It starts before the manager keeps itself, and what it creates, to these. If it may not, it disturbs
            // no more than any other bystander.
            let _ = own::keep_to(&unmanaged);
            while let Some(newest) = newest.upgrade() {
                let result = sources.read(&mut read);
                let mut newest = newest.lock().unwrap_or_else(PoisonError::into_inner);
                match result {
                    Ok(()) => {
                        newest.traffic.clone_from(&read);
                        newest.problem = None;
                    }
                    Err(err) => newest.problem = Some(err.to_string()),
                }
                drop(newest);
                std::thread::sleep(Duration::from_nanos(every.0));
            }
        })?;
        Ok(gauge)
    }
}

impl Gauge {
    /// Copies the newest reading, unless it is being written just now or is the one of `known`. True if it did.
    pub fn copy_newer(&self, known: &mut Traffic) -> bool {
        let newest = match self.newest.try_lock() {
            Ok(newest) => newest,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            // The next tick takes it.
            Err(TryLockError::WouldBlock) => return false,
        };
        let newer = newest.traffic.at > known.at;
        if newer {
            known.clone_from(&newest.traffic);
        }
        newer
    }

    /// Why the last attempt gave no reading.
    pub fn problem(&self) -> Option<String> {
        self.newest.lock().unwrap_or_else(PoisonError::into_inner).problem.clone()
    }
}
