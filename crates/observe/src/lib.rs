//! What the host does.
//!
//! Two observers fill the same Snapshot: [`bpf`] sees every wake-up and switch of a watched thread as it
//! happens; [`proc`] reads `/proc` once a tick where BPF is not allowed, and says so in each signal.
//! [`procs`] and [`topology`] find what there is to watch. [`keyframe`] tells who runs and
//! waits on the whole host, and [`recorder`] what happens there.

use quell_model::{Children, CoreId, Nanos, Role, Snapshot, TaskId, ThreadId};
use std::os::fd::BorrowedFd;

use quell_os::ThreadRef;

pub mod bpf;
pub mod domains;
pub mod kernel;
pub mod keyframe;
mod layout;
pub mod memory;
pub mod perf;
pub mod proc;
pub mod procs;
pub mod recorder;
pub mod settings;
pub mod topology;
#[cfg(test)]
mod workers;

/// What a watched thread does now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadState {
    /// On a core.
    Running,
    /// Runnable, on a core's queue, since `sched_waking` or since it was preempted.
    Waiting,
    /// Blocked.
    Sleeping,
    /// Not seen yet.
    Unknown,
}

/// A watched thread as last seen.
#[derive(Clone, Copy, Debug)]
pub struct ThreadView {
    /// Its index in the observer's table, as in Snapshot and Plan.
    pub id: ThreadId,
    /// Which thread.
    pub thread: ThreadRef,
    /// Whose.
    pub task: TaskId,
    /// Its member of a lane; 0 in a task that is no lane.
    pub member: u8,
    /// Whether it counts as LC: false for threads of a BE task, and for processes that an LC task
    /// created under [`Children::Be`].
    pub lc: bool,
    /// What it does.
    pub state: ThreadState,
    /// Since when.
    pub since: Nanos,
    /// Since when it has not slept; meaningless while it sleeps.
    pub awake_since: Nanos,
    /// The core it runs or waits on, or ran on last.
    pub core: CoreId,
    /// Total time on cores since it is watched.
    pub ran: Nanos,
    /// Total time waiting since it is watched.
    pub waited: Nanos,
    /// The length of its present burst ([`quell_model::Burst::weigh`]). Zero where the observer sees no bursts.
    pub burst: Nanos,
    /// All of it: CPU time since the thread last slept.
    pub burst_whole: Nanos,
    /// Counts its state changes: a decision taken at another count was taken on a stale state.
    pub transitions: u64,
}

/// Something that happened to watched threads or to the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostEvent {
    /// A watched thread created this one; it is watched already (or is `Leave`d alone).
    Forked {
        /// The creator.
        parent: ThreadRef,
        /// The new thread.
        child: ThreadRef,
        /// The task of the creator.
        task: TaskId,
        /// A process of its own rather than a thread of the creator's.
        new_process: bool,
        /// Whether it is watched as a member of `task`.
        watched: bool,
    },
    /// A watched thread is gone.
    Exited(ThreadRef),
    /// A watched process replaced its program; its other threads are gone.
    Execed(ThreadRef),
    /// An LC thread waits although each core that its task may use runs LC work.
    LcQueued(TaskId),
    /// A managed core fell idle.
    CoreIdle(CoreId),
    /// Events were lost: the watcher has to sweep /proc.
    Lost(u64),
}

/// Why observing failed.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// The kernel refused or lacks what this observer needs.
    #[error("{what}: {source}")]
    Kernel {
        /// What was attempted.
        what: String,
        /// The kernel's reason.
        source: std::io::Error,
    },
    /// The slot table is full.
    #[error("{limit} threads are watched already; raise `max_threads`")]
    Full {
        /// The size of the table.
        limit: usize,
    },
    /// A file of the kernel does not read as documented.
    #[error("{path}: {what}")]
    Format {
        /// The file.
        path: String,
        /// What is wrong.
        what: String,
    },
}

/// Fills Snapshots. One owner, the daemon's tick loop; nothing here blocks.
pub trait Observer {
    /// Begins to follow a thread as a member of a task. Following it twice changes its task.
    ///
    /// # Errors
    /// When the table is full or the kernel refuses.
    fn watch(
        &mut self,
        thread: ThreadRef,
        task: TaskId,
        lc: bool,
        children: Children,
    ) -> Result<(), ObserveError>;

    /// As [`Observer::watch`], for a thread of this member of a lane. Threads that it creates are of the same member.
    ///
    /// # Errors
    /// As [`Observer::watch`]; an observer that sees no single threads has no members.
    fn watch_member(
        &mut self,
        thread: ThreadRef,
        task: TaskId,
        member: u8,
        lc: bool,
        children: Children,
    ) -> Result<(), ObserveError>;

    /// Stops following a thread.
    fn unwatch(&mut self, thread: ThreadRef);

    /// Tells which cores are managed, for idle accounting and for [`HostEvent::CoreIdle`].
    fn manage(&mut self, cores: &quell_model::CoreSet);

    /// Reads the current state into the Snapshot's core and task entries (their observed fields; the
    /// caller keeps `limits`, `alive`, `managed`, `outcome`) and refreshes [`Observer::threads`].
    fn read(&mut self, seen: &mut Snapshot);

    /// The watched threads as of the last [`Observer::read`].
    fn threads(&self) -> &[ThreadView];

    /// Hands over what happened since the last call, oldest first.
    fn drain_events(&mut self, sink: &mut dyn FnMut(HostEvent));

    /// Readable when an event asks for a tick at once; `None` if this observer has no events.
    fn wake_fd(&self) -> Option<BorrowedFd<'_>>;

    /// Tells whether an LC task is without a core of its own, so that each wait of its threads is a
    /// [`HostEvent::LcQueued`], not only one behind other LC threads.
    fn note_unserved(&mut self, task: TaskId, unserved: bool);

    /// Tells the role of a thread, and how many short bursts in a row earn it a higher one
    /// ([`quell_model::ThreadPlan::needs`]). Returns whether the next [`Observer::read`] reports the end of the burst that
    /// cost the thread its role, which ended meanwhile. Observers that see no bursts ignore it.
    fn set_role(&mut self, thread: ThreadId, task: TaskId, role: Role, needs: u32) -> bool {
        let _ = (thread, task, role, needs);
        false
    }

    /// Tells whether threads in [`Role::Background`] are above the fair class: then [`quell_model::CoreView::rt_share`] counts
    /// them. Observers that see no bursts ignore it.
    fn note_elevated_background(&mut self, on: bool) {
        let _ = on;
    }

    /// Whether the observer judges the bursts of a thread by this role, as of the last [`Observer::read`]; true for threads
    /// that are gone.
    fn has_role(&self, thread: ThreadId, role: Role) -> bool {
        let _ = (thread, role);
        true
    }

    /// Asks for [`HostEvent::LcQueued`] and [`HostEvent::CoreIdle`] to make [`Observer::wake_fd`] readable.
    fn wake_on_events(&mut self, on: bool);
}
