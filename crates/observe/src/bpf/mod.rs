//! The BPF observer: sees every wake-up and switch of a watched thread as it happens.
//!
//! The programs of `bpf/quell.bpf.c` keep one slot for each watched thread and one entry for each core in
//! arrays that are mapped here. Reading is a matter of plain loads; system calls are made only to watch,
//! to unwatch, and to change which cores are managed.
//!
//! What is measured, and how it is defined:
//!
//! * A thread **waits** from `sched_waking` on, or from the switch at which it was preempted, until it runs.
//! * **Wake-to-run** ([`BpfObserver::wake_to_run`]) is the wait of an LC thread that a wake-up began. It is
//!   charged ([`BpfObserver::delays_caused`]) to the watched BE task that had the core on which the thread
//!   got to run, at the moment when the wait began; to nobody if no watched BE task had it.
//! * **idle while LC waits** ([`BpfObserver::idle_while_lc_waits`]) is the time during which at least one LC
//!   thread waited while at least one managed core that its task may use was idle. The wake-up of an idle
//!   core itself is part of it: the thread waits until the core has left its idle state. It needs nobody
//!   to manage anything: threads watched and cores named suffice.
//!
//! Invariants: a slot's content is coherent when its sequence word is even and unchanged; a core's entry is
//! written by that core alone; children of a watched thread are watched before they first run; a slot is
//! free again at its thread's last switch.

mod abi;
#[cfg(test)]
pub(crate) use self::abi::layouts;
pub(crate) mod calls;
mod cores;
mod events;
mod histogram;
mod lane;
mod lineage;
mod locks;
pub(crate) mod object;
mod programs;
mod recent;
mod sets;
mod shared;
mod table;
#[cfg(test)]
mod tests;
mod views;
mod watch;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::Duration;

use libbpf_rs::MapHandle;
use quell_model::{
    BurstState, Children, Class, CoreId, CoreSet, Nanos, Role, Snapshot, TaskId, ThreadId,
};

pub use self::histogram::Histogram;
pub use self::lane::{LaneReader, LaneThread, SlotPlace};
pub use self::lineage::lineage;

use self::abi::{KIND_BE, KIND_IDLE, KIND_LC, KIND_LC_FAIR, WatchArgs};
use self::cores::Cores;
use self::events::{Events, Raw};
use self::lane::LaneRings;
use self::locks::LockEvent;
use self::programs::Programs;
use self::recent::Delays;
use self::sets::Sets;
use self::views::Views;
use super::{HostEvent, ObserveError, Observer, ThreadView};
use quell_os::{ThreadRef, Tid, clock};

/// How many times the ring is emptied in one go: nothing here may take unbounded time.
const DRAIN_ROUNDS: u32 = 8;

/// How often the kernel is asked whether programs were left out, and what threads do of which nothing was told.
const MISSES_LOOK: Nanos = Nanos::from_millis(500);

/// The sizes of the observer's tables, and what it reports.
#[derive(Clone, Debug)]
pub struct BpfConfig {
    /// Threads that can be watched at once; 168 bytes each.
    pub max_threads: usize,
    /// Task places; 1.7 kB each, and 8 bytes more for each core.
    pub max_tasks: usize,
    /// The size of the event ring, in bytes; an event takes 112.
    pub ring_bytes: usize,
    /// Least time between two wake-ups for [`HostEvent::LcQueued`] or [`HostEvent::CoreIdle`].
    pub wake_gap: Nanos,
    /// A core that lost more than this to the hypervisor between two switches had a stall.
    pub stall_min: Nanos,
    /// Whether bursts, roles and locks are observed. Off, to measure what that costs.
    pub roles: bool,
}

impl Default for BpfConfig {
    fn default() -> Self {
        BpfConfig {
            max_threads: 32_768,
            max_tasks: 1_024,
            ring_bytes: 1 << 20,
            wake_gap: Nanos::from_micros(50),
            stall_min: Nanos::from_micros(100),
            roles: true,
        }
    }
}

/// A window of time in which the hypervisor ran something else than this core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The core that stood still.
    pub core: CoreId,
    /// The window: from one switch on this core to the next.
    pub from: Nanos,
    /// Its end.
    pub to: Nanos,
    /// How much of it was taken, by the kernel's steal clock.
    pub stolen: Nanos,
    /// The process whose thread had the core until the window's end; 0 if it was idle.
    pub process: Tid,
}

/// What one of the BPF programs cost while it was measured.
#[derive(Clone, Debug)]
pub struct ProgramCost {
    /// The tracepoint.
    pub event: String,
    /// How often it ran.
    pub runs: u64,
    /// The time that took.
    pub time: Duration,
}

/// What the threads that held a task's place did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskTimes {
    /// Time on each core, by its number, the stretch in progress included.
    pub ran_on: Vec<Nanos>,
    /// Waits that ended.
    pub waited: Nanos,
}

/// While this lives, the kernel times all BPF programs of the host (some 20 ns a run).
#[derive(Debug)]
pub struct Measurement {
    _statistics: OwnedFd,
}

impl Measurement {
    /// Begins; for programs of other processes, whose cost `/proc/PID/fdinfo` tells.
    ///
    /// # Errors
    /// Without the right to it (CAP_SYS_ADMIN).
    pub fn begin() -> io::Result<Measurement> {
        calls::measure()
    }
}

/// How well observing goes. Everything but `watched` should stay 0, and is worth a line in a status if not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Health {
    /// Threads watched now.
    pub watched: u64,
    /// New threads that found the table full.
    pub table_full: u64,
    /// New threads for which the kernel had no memory.
    pub storage_failed: u64,
    /// Events that found the ring full.
    pub events_dropped: u64,
    /// Runs of a program left out by the kernel, because it ran already on that CPU.
    pub recursion_misses: u64,
    /// Slots that a program found taken for so long that it gave up.
    pub contended: u64,
    /// Threads that ran without a wake-up having been seen.
    pub missed_wakes: u64,
    /// Threads that got or left a core without a switch having been seen: some guests have threads of their
    /// hypervisor's, the switch away from which no tracepoint tells.
    pub missed_switches: u64,
    /// Reads that were tried again because a writer was at it; harmless.
    pub retries: u64,
    /// Reads given up, tried again at the next tick.
    pub torn: u64,
    /// Tasks counted as if they may use all managed cores, for want of a set of their own.
    pub coarse_sets: u64,
}

impl Health {
    /// How many events were lost: threads may exist that are not watched.
    fn lost(&self) -> u64 {
        self.table_full + self.storage_failed + self.events_dropped + self.recursion_misses
    }
}

/// Sees every wake-up and switch of a watched thread.
pub struct BpfObserver {
    programs: Programs,
    slots: MapHandle,
    events: Events,
    views: Views,
    cores: Cores,
    sets: Sets,
    delays: Delays,
    lane_rings: LaneRings,
    idle_wanted: bool,
    recursion_misses: u64,
    misses_due: Nanos,
    lost_told: u64,
    idle_while_lc_waits: Nanos,
    /// Bursts that exceeded their budgets, and threads that proved themselves, since the last [`Observer::read`].
    overran: Vec<(ThreadId, Nanos)>,
    proved: Vec<ThreadId>,
    /// Background threads that began to wait while a thread whose sleeps they end sleeps.
    ends_sleep: Vec<ThreadId>,
    locks: Vec<LockEvent>,
}

impl BpfObserver {
    /// Loads the programs and attaches them. Nothing is watched yet.
    ///
    /// # Errors
    /// When the kernel refuses: without the right to use BPF, without BTF, or without memory.
    pub fn new(config: &BpfConfig) -> Result<BpfObserver, ObserveError> {
        let programs = Programs::load(config)?;
        let (slots, tasks) = (programs.slots.len(), programs.tasks.len());
        Ok(BpfObserver {
            slots: programs.map("slots")?,
            events: Events::new(programs.map("events")?)?,
            views: Views::new(slots, tasks),
            cores: Cores::new(programs.cores.len()),
            sets: Sets::new(tasks),
            delays: Delays::new(tasks),
            lane_rings: LaneRings::new(programs.map("lane_rings")?),
            idle_wanted: false,
            recursion_misses: 0,
            misses_due: Nanos::ZERO,
            lost_told: 0,
            idle_while_lc_waits: Nanos::ZERO,
            overran: Vec::new(),
            proved: Vec::new(),
            ends_sleep: Vec::new(),
            locks: Vec::new(),
            programs,
        })
    }

    /// Tells which cores a task may use, for [`BpfObserver::idle_while_lc_waits`] and
    /// [`HostEvent::LcQueued`]. [`Observer::read`] takes it from the Snapshot's limits; a passive observer
    /// may leave it: then it is all managed cores.
    pub fn allow(&mut self, task: TaskId, cores: &CoreSet) {
        self.sets.allow(task, cores, &self.programs);
    }

    /// Brings [`Observer::threads`] up to date without summing anything up.
    pub fn refresh(&mut self) {
        self.views.refresh(&self.programs.dirty, &self.programs.slots);
    }

    /// Makes a task a lane: what its scheduler sees it with. The task's threads are those watched under it.
    ///
    /// # Errors
    /// When there are as many lanes as there can be, or the kernel refuses a ring.
    pub fn open_lane(&mut self, task: TaskId) -> Result<LaneReader, ObserveError> {
        self.lane_rings.open(task, &self.programs)
    }

    /// The task is no lane any more: nothing wakes its scheduler.
    pub fn close_lane(&mut self, task: TaskId) {
        self.lane_rings.close(task, &self.programs);
    }

    /// Where the thread at this position of [`Observer::threads`] has its slot, for [`LaneReader`].
    pub fn slot_place(&self, position: usize) -> Option<SlotPlace> {
        self.views.place(position)
    }

    /// The time so far during which an LC thread waited while a managed core that it may use was idle.
    /// Never runs backwards.
    pub fn idle_while_lc_waits(&mut self) -> Nanos {
        let totals = &self.programs.totals[0];
        // An edge changes `active` and then the sum, and may do so between two loads here: such a reading
        // is off by the whole clock, and is recognised by that.
        for _ in 0..8 {
            let active = totals.active.load(Ordering::SeqCst);
            let sum = totals.idle_while_waiting.load(Ordering::SeqCst);
            let now = clock::now().0;
            if totals.active.load(Ordering::SeqCst) != active {
                continue;
            }
            let time = Nanos(if active > 0 { sum.wrapping_add(now) } else { sum });
            if time >= self.idle_while_lc_waits && time.0 <= now {
                self.idle_while_lc_waits = time;
                break;
            }
        }
        self.idle_while_lc_waits
    }

    /// Wake-to-run times of a task's LC threads, since the observer was made or the place was reused.
    pub fn wake_to_run(&mut self, task: TaskId) -> Histogram {
        self.delays.own(task, &self.programs.histograms)
    }

    /// Wake-to-run times of LC threads whose core this BE task had when their wait began.
    pub fn delays_caused(&mut self, task: TaskId) -> Histogram {
        self.delays.caused(task, &self.programs.histograms)
    }

    /// Wake-to-run times of a task's LC threads in the last second.
    pub fn recent_wake_to_run(&mut self, task: TaskId) -> Histogram {
        self.delays.own_recent(task, &self.programs.histograms)
    }

    /// What the threads of a task's place did since the observer was made, ended threads included.
    pub fn task_times(&self, task: TaskId) -> TaskTimes {
        let tasks = self.programs.tasks.len();
        if task.at() >= tasks {
            return TaskTimes::default();
        }
        let rows = self.programs.task_times.chunks_exact(tasks).map(|row| &row[task.at()]);
        let cores = self.programs.cores.iter().zip(rows.clone());
        TaskTimes {
            ran_on: cores.map(|(core, time)| cores::ran(core, task, &time.ran)).collect(),
            // Relaxed: sums that stand alone.
            waited: Nanos(rows.map(|time| time.waited.load(Ordering::Relaxed)).sum()),
        }
    }

    /// The time that a managed core spent on LC work, on BE work, and idle. The rest went to threads that
    /// are not watched.
    pub fn core_times(&self, core: CoreId) -> Option<[Nanos; 3]> {
        let copy = self.programs.cores.get(core.index())?.read().0?;
        let now = clock::now();
        let time_in = |kind| cores::time_in(&copy, kind, now);
        Some([time_in(KIND_LC) + time_in(KIND_LC_FAIR), time_in(KIND_BE), time_in(KIND_IDLE)])
    }

    /// The hypervisor's steal clock of a managed core, as of its last switch; it starts at boot. `None` where
    /// the kernel keeps none.
    pub fn steal_clock(&self, core: CoreId) -> Option<Nanos> {
        let steal = self.programs.cores.get(core.index())?.read().0?.steal;
        (steal > Nanos::ZERO).then_some(steal)
    }

    /// The stalls of managed cores since the last call, oldest first.
    pub fn drain_stalls(&mut self) -> Vec<Stall> {
        self.events.consume();
        self.events.take_stalls()
    }

    /// What a guardian holds so that descendants stay tracked after this process' end: the map of the
    /// slots first (see [`lineage`]), then the links.
    pub fn held_fds(&self) -> Vec<BorrowedFd<'_>> {
        std::iter::once(self.slots.as_fd()).chain(self.programs.links()).collect()
    }

    /// Begins to measure what the programs cost; [`BpfObserver::cost`] counts only meanwhile.
    ///
    /// # Errors
    /// Without the right to it (CAP_SYS_ADMIN).
    pub fn measure(&self) -> io::Result<Measurement> {
        calls::measure()
    }

    /// What each program cost while measured, since the observer was made.
    pub fn cost(&self) -> Vec<ProgramCost> {
        self.programs.costs()
    }

    /// How well observing goes. Asks the kernel: not for each tick.
    pub fn health(&self) -> Health {
        Health { recursion_misses: self.programs.recursion_misses(), ..self.counted() }
    }

    fn counted(&self) -> Health {
        let totals = &self.programs.totals[0];
        let load = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        Health {
            watched: load(&totals.watched),
            table_full: load(&totals.table_full),
            storage_failed: load(&totals.storage_failed),
            events_dropped: load(&totals.events_dropped),
            recursion_misses: self.recursion_misses,
            contended: load(&totals.contended),
            missed_wakes: load(&totals.missed_wakes),
            missed_switches: load(&totals.missed_switches),
            retries: self.views.retries + self.cores.retries,
            torn: self.views.torn,
            coarse_sets: self.sets.coarse,
        }
    }

    fn lost_since_told(&mut self) -> Option<HostEvent> {
        let now = clock::now();
        if now >= self.misses_due {
            self.misses_due = now + MISSES_LOOK;
            self.recursion_misses = self.programs.recursion_misses();
            self.ask_about_the_quiet(now);
        }
        let lost = self.counted().lost();
        let new = lost.saturating_sub(self.lost_told);
        self.lost_told = lost;
        (new > 0).then_some(HostEvent::Lost(new))
    }

    /// Of several events of one thread the longest burst counts.
    fn note_overrun(&mut self, thread: ThreadId, length: Nanos) {
        match self.overran.iter_mut().find(|(known, _)| *known == thread) {
            Some((_, known)) => *known = length.max(*known),
            None => self.overran.push((thread, length)),
        }
    }

    /// Hands over what is in the inbox.
    fn hand_over(&mut self, sink: &mut dyn FnMut(HostEvent)) {
        while let Some(event) = self.events.next() {
            match event {
                Raw::Host(event) => {
                    self.rearm(event);
                    sink(event);
                }
                Raw::Execed(thread, _) => sink(HostEvent::Execed(thread)),
                Raw::Stall(_) | Raw::Stopped => {}
                Raw::Overran(thread, length) => self.note_overrun(thread, length),
                Raw::Proved(thread) => self.proved.push(thread),
                Raw::EndsSleep(thread) => self.ends_sleep.push(thread),
                Raw::Lock(event) => self.locks.push(event),
            }
        }
    }

    /// The next event of this kind may be sent.
    fn rearm(&self, event: HostEvent) {
        match event {
            HostEvent::LcQueued(task) => {
                if let Some(task) = self.programs.tasks.get(task.at()) {
                    task.told_queued.store(0, Ordering::Relaxed);
                }
            }
            HostEvent::CoreIdle(core) => {
                if let Some(order) = self.programs.orders.get(core.index()) {
                    order.told_idle.store(0, Ordering::Relaxed);
                }
            }
            _ => {}
        }
    }
}

impl Observer for BpfObserver {
    fn watch(
        &mut self,
        thread: ThreadRef,
        task: TaskId,
        lc: bool,
        children: Children,
    ) -> Result<(), ObserveError> {
        self.watch_member(thread, task, 0, lc, children)
    }

    fn watch_member(
        &mut self,
        thread: ThreadRef,
        task: TaskId,
        member: u8,
        lc: bool,
        children: Children,
    ) -> Result<(), ObserveError> {
        if task.at() >= self.programs.tasks.len() {
            return Err(ObserveError::Full { limit: self.programs.tasks.len() });
        }
        self.watch_thread(WatchArgs {
            task: task.index,
            generation: task.generation,
            lc: lc.into(),
            children: children as u32,
            member: member.into(),
            ..WatchArgs::of(thread)
        })
    }

    fn unwatch(&mut self, thread: ThreadRef) {
        self.unwatch_thread(thread);
    }

    fn manage(&mut self, cores: &CoreSet) {
        self.sets.manage(cores, &self.programs);
    }

    fn read(&mut self, seen: &mut Snapshot) {
        for task in seen.tasks.iter().filter(|task| task.alive) {
            if task.limits.class == Class::LatencyCritical {
                self.sets.allow(task.id, &task.limits.allowed, &self.programs);
            }
        }
        self.views.refresh(&self.programs.dirty, &self.programs.slots);
        // Taken after the slots were read, so that no state is newer than the Snapshot.
        let now = clock::now();
        seen.now = now;
        // Relaxed: written by this thread.
        let elevated = self.programs.control[0].elevated_background.load(Ordering::Relaxed);
        seen.elevated_background = elevated != 0;
        let waits = self.views.summarise(now, seen);
        if waits != self.idle_wanted {
            self.idle_wanted = waits;
            self.programs.control[0].idle_wanted.store(waits.into(), Ordering::Relaxed);
        }
        let kthread_waits = |core: CoreId| {
            self.programs.cores.get(core.index()).is_some_and(|core| core.kernel_waits().is_some())
        };
        let bursts = self
            .overran
            .drain(..)
            .filter_map(|(thread, length)| self.views.overrun(thread, length, kthread_waits));
        seen.bursts.extend(bursts);
        let proved = self.proved.drain(..);
        seen.bursts
            .extend(proved.filter_map(|thread| self.views.burst_of(thread, BurstState::Proved)));
        let ends_sleep = self.ends_sleep.drain(..);
        seen.bursts.extend(ends_sleep.filter_map(|thread| self.views.ends_sleep(thread)));
        seen.bursts.extend(self.views.drain_exited());
        self.views.tell_locks(&mut self.locks, seen);
        self.cores.summarise(now, &self.programs.cores, &self.views, seen);
        self.delays.summarise(now, &self.programs.histograms, seen);
    }

    fn threads(&self) -> &[ThreadView] {
        self.views.all()
    }

    fn drain_events(&mut self, sink: &mut dyn FnMut(HostEvent)) {
        while let Some(gone) = self.views.take_renamed() {
            sink(HostEvent::Exited(gone));
        }
        for _ in 0..DRAIN_ROUNDS {
            self.events.consume();
            self.hand_over(sink);
            // Armed before the last look at the ring: an event sent before this is found by that look, and
            // one sent later wakes. Pairs with the exchange in `wake_flag`.
            self.programs.control[0].armed.store(1, Ordering::SeqCst);
            if self.events.consume() == 0 {
                break;
            }
        }
        self.hand_over(sink);
        if let Some(lost) = self.lost_since_told() {
            sink(lost);
        }
    }

    fn wake_fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.events.fd())
    }

    fn note_unserved(&mut self, task: TaskId, unserved: bool) {
        if let Some(shared) = self.programs.tasks.get(task.at()) {
            // Relaxed: a hint that stands alone; a wait that just misses it is seen by the next tick.
            shared.unserved.store(unserved.into(), Ordering::Relaxed);
        }
    }

    fn set_role(&mut self, thread: ThreadId, task: TaskId, role: Role, needs: u32) -> bool {
        self.change_role(thread, task, role, needs)
    }

    fn has_role(&self, thread: ThreadId, role: Role) -> bool {
        self.views.role_of(thread).is_none_or(|known| known.code() == role.code())
    }

    fn note_elevated_background(&mut self, on: bool) {
        // Relaxed: a switch that just misses it counts one stretch in the other kind.
        self.programs.control[0].elevated_background.store(on.into(), Ordering::Relaxed);
    }

    fn wake_on_events(&mut self, on: bool) {
        self.programs.control[0].wake_on_events.store(on.into(), Ordering::Relaxed);
    }
}
