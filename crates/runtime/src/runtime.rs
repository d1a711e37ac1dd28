//! A runtime: how it is built, run and ended.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_model::{Class, CoreId, CoreSet, Nanos};
use quell_shm::runtime::KTHREADS_MAX;

use crate::kthread::{Shared, local};
use crate::stats::Stats;
use crate::thread::{self, JoinHandle};

/// The shortest asynchronous quantum: below this, signals are most of what a core does.
const SHORTEST_TICK: Nanos = Nanos::from_micros(5);

/// Whether the runtime wants the daemon.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Daemon {
    /// Runs alone.
    Never,
    /// Runs under the daemon while there is one, else alone.
    #[default]
    IfThere,
    /// [`Builder::build`] fails without the daemon. One that dies later is waited for as with `IfThere`.
    Required,
}

/// How sockets and files are waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Io {
    /// io_uring where the kernel has it, else epoll.
    #[default]
    Auto,
    /// io_uring or an error.
    Uring,
    /// epoll.
    Epoll,
}

/// What a runtime is like.
#[derive(Clone, Debug)]
pub(crate) struct Config {
    pub(crate) name: String,
    pub(crate) class: Class,
    pub(crate) guaranteed: usize,
    pub(crate) max_cores: Option<usize>,
    pub(crate) quantum: Option<Nanos>,
    pub(crate) preempt_every: Option<Nanos>,
    pub(crate) stack_bytes: usize,
    pub(crate) poll_before_park: Nanos,
    pub(crate) delay_target: Nanos,
    pub(crate) sibling_idle_after: Nanos,
    pub(crate) daemon: Daemon,
    pub(crate) socket: Option<PathBuf>,
    pub(crate) cores: Option<CoreSet>,
    pub(crate) io: Io,
}

/// Builds a [`Runtime`].
#[derive(Clone, Debug)]
pub struct Builder {
    pub(crate) config: Config,
}

impl Default for Builder {
    fn default() -> Builder {
        Builder {
            config: Config {
                name: "runtime".to_owned(),
                class: Class::LatencyCritical,
                guaranteed: 0,
                max_cores: None,
                quantum: Some(Nanos::from_micros(100)),
                preempt_every: None,
                stack_bytes: 64 << 10,
                poll_before_park: Nanos::from_micros(20),
                delay_target: Nanos::from_micros(10),
                sibling_idle_after: Nanos::ZERO,
                daemon: Daemon::default(),
                socket: None,
                cores: None,
                io: Io::default(),
            },
        }
    }
}

impl Builder {
    /// The name under which the daemon and `quell top` show it.
    pub fn name(mut self, name: &str) -> Builder {
        name.clone_into(&mut self.config.name);
        self
    }

    /// Whether it answers users or does batch work. Latency-critical by default.
    pub fn class(mut self, class: Class) -> Builder {
        self.config.class = class;
        self
    }

    /// Cores that are its own whenever it wants them. None by default.
    pub fn guaranteed(mut self, cores: usize) -> Builder {
        self.config.guaranteed = cores;
        self
    }

    /// Cores that it uses at most; as many kthreads are made. All that it may use by default.
    pub fn max_cores(mut self, cores: usize) -> Builder {
        self.config.max_cores = Some(cores);
        self
    }

    /// How long a uthread may run while others wait until a call of this library makes it yield; `None`: as long as it
    /// likes. 100 us by default.
    pub fn quantum(mut self, quantum: Option<Nanos>) -> Builder {
        self.config.quantum = quantum;
        self
    }

    /// Bytes of a uthread's stack. 64 KiB by default.
    pub fn stack_bytes(mut self, bytes: usize) -> Builder {
        self.config.stack_bytes = bytes;
        self
    }

    /// How long a kthread looks for work before it parks. 20 us by default.
    pub fn poll_before_park(mut self, poll: Nanos) -> Builder {
        self.config.poll_before_park = poll;
        self
    }

    /// The queueing delay at which the daemon gives it another core. 10 us by default.
    pub fn delay_target(mut self, threshold: Nanos) -> Builder {
        self.config.delay_target = threshold;
        self
    }

    /// How long a request ([`request::begin`](crate::request::begin)) may take before the daemon keeps the siblings of its core idle,
    /// where its policy does so; zero: for ever. Best slightly above the median service time. Zero by default.
    pub fn sibling_idle_after(mut self, time: Nanos) -> Builder {
        self.config.sibling_idle_after = time;
        self
    }

    /// Whether it runs under the daemon.
    pub fn daemon(mut self, daemon: Daemon) -> Builder {
        self.config.daemon = daemon;
        self
    }

    /// The daemon's control socket, if not at its usual place.
    pub fn socket(mut self, path: impl AsRef<Path>) -> Builder {
        self.config.socket = Some(path.as_ref().to_owned());
        self
    }

    /// The cores that it uses alone. Those of the calling thread's affinity by default.
    pub fn cores(mut self, cores: CoreSet) -> Builder {
        self.config.cores = Some(cores);
        self
    }

    /// How it waits for sockets and files.
    pub fn io(mut self, io: Io) -> Builder {
        self.config.io = io;
        self
    }

    /// Interrupts a uthread that has run for about so long while others wait, wherever it is: code without a call of this library, too. Off
    /// by default. It is then *bound*: it goes on on the same kernel thread until it next blocks or yields by itself.
    ///
    /// # Safety
    /// Two uthreads of one kernel thread may then be in the same code at once, as a signal handler and what it interrupts. So
    /// [`preempt::Allocator`](crate::preempt::Allocator) must be the global allocator, and the application must turn preemption off
    /// ([`preempt::off`](crate::preempt::off)) around: functions of C that are not reentrant, `malloc` among them; what std locks
    /// by thread (`print!` and its kin, `stdout().lock()`); references into a `thread_local!`, a borrowed `RefCell` above all.
    /// Its signal, `SIGRTMIN + 7`, must not be blocked or handled by anyone else.
    /// `docs/reference/runtime-preemption.md` says what follows from this and why nothing else is needed.
    pub unsafe fn preempt_every(mut self, quantum: Nanos) -> Builder {
        self.config.preempt_every = Some(quantum);
        self
    }

    /// Makes the runtime and starts its kthreads.
    ///
    /// # Errors
    /// When the settings contradict each other, when there is no memory for it, or no daemon although it is required.
    pub fn build(self) -> Result<Runtime, BuildError> {
        let mut config = self.config;
        let permitted = permitted_cores(config.cores.as_ref())?;
        let kthreads = config.max_cores.unwrap_or(permitted.len());
        if !(1..=KTHREADS_MAX as usize).contains(&kthreads) {
            return Err(setting(format!(
                "max_cores is {kthreads}: 1 to {KTHREADS_MAX} are possible"
            )));
        }
        if config.guaranteed > kthreads {
            let guaranteed = config.guaranteed;
            return Err(setting(format!(
                "{guaranteed} cores are guaranteed, but {kthreads} the most"
            )));
        }
        crate::net::serve_virtual_sockets();
        config.stack_bytes = crate::stack::whole_pages(config.stack_bytes);
        config.cores = Some(permitted);
        if let Some(every) = config.preempt_every {
            if every < SHORTEST_TICK {
                return Err(setting(format!(
                    "{every} between preemptions: {SHORTEST_TICK} at least"
                )));
            }
            crate::preempt::tick::install().map_err(|source| BuildError::System {
                what: "handle the signal of preemption",
                source,
            })?;
        }
        crate::overflow::report();
        let shared = Shared::new(config, kthreads)?;
        let threads = shared.start()?;
        Ok(Runtime { shared, threads })
    }
}

/// Why there is no runtime.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A setting makes no sense.
    #[error("{0}")]
    Setting(String),
    /// The kernel refused something.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// What the kernel said.
        source: std::io::Error,
    },
    /// The daemon is required and cannot be had.
    #[error("no daemon: {0}")]
    Daemon(String),
}

fn setting(text: String) -> BuildError {
    BuildError::Setting(text)
}

/// The cores that the calling thread may use, of those wanted.
fn permitted_cores(wanted: Option<&CoreSet>) -> Result<CoreSet, BuildError> {
    let affinity = rustix::thread::sched_getaffinity(None)
        .map_err(|error| BuildError::System { what: "read the affinity", source: error.into() })?;
    let mut permitted = CoreSet::EMPTY;
    (0..rustix::thread::CpuSet::MAX_CPU.min(quell_model::CORES_MAX))
        .filter(|&core| affinity.is_set(core))
        .map(|core| CoreId(core as u16))
        .filter(|&core| wanted.is_none_or(|wanted| wanted.contains(core)))
        .for_each(|core| permitted.insert(core));
    if permitted.is_empty() {
        return Err(setting("none of the cores wanted may be used by this thread".to_owned()));
    }
    Ok(permitted)
}

/// A runtime. Dropping it ends its kthreads.
///
/// ```
/// use quell_runtime::{Daemon, Runtime, spawn};
///
/// let runtime = Runtime::builder().name("sums").daemon(Daemon::Never).build()?;
/// let sum = runtime.run(|| {
///     let parts: Vec<_> = (0..4u64).map(|part| spawn(move || (part * 25..(part + 1) * 25).sum::<u64>())).collect();
///     parts.into_iter().map(|part| part.join().unwrap()).sum::<u64>()
/// });
/// assert_eq!(sum, 4950);
/// # Ok::<(), quell_runtime::BuildError>(())
/// ```
#[derive(Debug)]
pub struct Runtime {
    shared: Arc<Shared>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

impl Runtime {
    /// Settings to start from.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// Runs `f` as a uthread and returns what it returns; if it panics, so does this. `f` may borrow, as this waits for
    /// it. Other uthreads that it started go on.
    pub fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        // SAFETY: it is waited for here, come what may: `join` returns or never does.
        let handle = match unsafe { thread::spawn_outside(&self.shared, f) } {
            Ok(handle) => handle,
            Err(error) => panic!("failed to spawn a uthread: {error}"),
        };
        handle.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    /// A handle by which other threads start uthreads.
    pub fn handle(&self) -> Handle {
        Handle { shared: Arc::clone(&self.shared) }
    }

    /// What its kthreads have done so far.
    pub fn stats(&self) -> Stats {
        Stats::of(&self.shared)
    }

    /// Uthreads that have not ended.
    pub fn live_uthreads(&self) -> u64 {
        self.shared.live_uthreads()
    }

    /// Ends its kthreads, as dropping it does. Uthreads that have not ended by then never run again and are not dropped;
    /// their memory stays, as other threads may know of what is on their stacks.
    pub fn shutdown(self) {
        drop(self);
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.shared.stop();
        let own = local::Local::with(|local| {
            local.is_some_and(|local| Arc::ptr_eq(local.shared(), &self.shared))
        });
        if own {
            // Dropped by a uthread of its own: the kthreads end after it, each by itself. What they share stays.
            std::mem::forget(Arc::clone(&self.shared));
            return;
        }
        for thread in self.threads.drain(..) {
            // Kthreads do not panic: uthreads catch what they run.
            let _ = thread.join();
        }
        self.shared.let_go();
    }
}

/// Starts uthreads from outside.
#[derive(Clone, Debug)]
pub struct Handle {
    shared: Arc<Shared>,
}

impl Handle {
    /// Starts a uthread. After the end of the runtime it never runs.
    ///
    /// # Panics
    /// When there is no memory for its stack.
    pub fn spawn<T: Send + 'static>(
        &self,
        f: impl FnOnce() -> T + Send + 'static,
    ) -> JoinHandle<T> {
        // SAFETY: it borrows nothing.
        match unsafe { thread::spawn_outside(&self.shared, f) } {
            Ok(handle) => handle,
            Err(error) => panic!("failed to spawn a uthread: {error}"),
        }
    }
}
