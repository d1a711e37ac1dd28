//! Hints of tasks in the Snapshot: when the request on each core began.
//!
//! A page tells which thread serves since when; the observer tells where that thread runs. What does not fit
//! together is left out and counted: a thread that is not the task's (any more), a start in the future, a page that
//! was cut short. A request begins without any event of the kernel, so a task whose requests matter to the
//! policy is looked at as often as the shortest of its bounds: whatever is late is then seen in time.

use quell_control::protocol::HintsStatus;
use quell_model::{Absence, Class, Limits, Nanos, Signal, Snapshot, TaskId};
use quell_observe::{ThreadState, ThreadView};
use quell_os::clock;
use quell_shm::layout::SlotCopy;
use quell_shm::{Hint, Reader};

/// How long a page that could not be read is left alone, and a thread that was not found.
const RETRY: Nanos = Nanos::from_millis(100);

/// The pages of all tasks that hint.
#[derive(Default)]
pub struct Pages {
    pages: Vec<Page>,
    /// Whether any signal of the Snapshot is ours to clear.
    filled: bool,
}

struct Page {
    task: TaskId,
    reader: Reader,
    slots: Vec<Known>,
    retry: Nanos,
    problem: Option<String>,
    threads: u32,
    serving: u32,
    ignored: u64,
}

/// What is remembered of a slot between ticks.
#[derive(Clone, Copy, Default)]
struct Known {
    /// Where its thread was in the observer's list.
    at: usize,
    /// When a thread that was not found is looked for again, and which one.
    retry: Nanos,
    missing: i32,
    /// The start that was ignored last, so that it counts once.
    ignored: Nanos,
}

/// Why a hint is left out.
enum Ignored {
    /// Its thread is not one of the task's.
    Thread,
    /// It begins in the future.
    Future,
}

impl Pages {
    /// Reads the task's hints from this page from now on, or from none.
    pub fn set(&mut self, task: TaskId, reader: Option<Reader>) {
        self.pages.retain(|page| page.task.index != task.index);
        self.pages.extend(reader.map(|reader| Page {
            task,
            slots: vec![Known::default(); reader.slots() as usize],
            reader,
            retry: Nanos::ZERO,
            problem: None,
            threads: 0,
            serving: 0,
            ignored: 0,
        }));
    }

    /// Whether there are any, or signals of one that left have to be cleared.
    pub fn is_active(&self) -> bool {
        self.filled || !self.pages.is_empty()
    }

    /// Fills in when requests began, over what [`clear`] left, where `threads` tells who runs where as of the Snapshot. What went wrong
    /// with a task's page is told once.
    pub fn fill(
        &mut self,
        seen: &mut Snapshot,
        threads: &[ThreadView],
        mut tell: impl FnMut(TaskId, String),
    ) {
        for page in &mut self.pages {
            page.fill(seen, threads, &mut tell);
        }
        self.filled = !self.pages.is_empty();
    }

    /// How long the pages may be left unread at most, given the tasks' limits.
    pub fn poll_every(&self, seen: &Snapshot) -> Option<Nanos> {
        let limits = self.pages.iter().filter_map(|page| {
            let task = seen.tasks.get(page.task.at())?;
            (task.id == page.task && task.alive).then_some(&task.limits)
        });
        limits.filter_map(shortest_bound).min()
    }

    /// What is known of a task's hints.
    pub fn status(&self, task: TaskId) -> Option<HintsStatus> {
        let page = self.pages.iter().find(|page| page.task == task)?;
        Some(HintsStatus {
            page: String::new(),
            threads: page.threads,
            serving: page.serving,
            ignored: page.ignored,
            problem: page.problem.clone(),
        })
    }
}

/// The shortest time after which a request of the task matters.
fn shortest_bound(limits: &Limits) -> Option<Nanos> {
    let bounds = [limits.times.sibling_idle_after, limits.times.quantum];
    let lc = limits.class == Class::LatencyCritical;
    bounds.into_iter().filter(|&bound| lc && bound > Nanos::ZERO).min()
}

impl Page {
    fn fill(
        &mut self,
        seen: &mut Snapshot,
        threads: &[ThreadView],
        tell: &mut impl FnMut(TaskId, String),
    ) {
        let now = seen.now;
        if now < self.retry
            || seen.tasks.get(self.task.at()).is_none_or(|task| task.id != self.task)
        {
            return;
        }
        (self.threads, self.serving) = (0, 0);
        if let Err(err) = self.reader.read() {
            self.retry = now + RETRY;
            let what = format!("its hints cannot be read: {err}");
            if self.problem.as_ref() != Some(&what) {
                tell(self.task, what.clone());
                self.problem = Some(what);
            }
            return;
        }
        self.problem = None;
        // Not the Snapshot's time: a request may have begun since.
        let read_at = clock::now();
        for (slot, copy) in self.reader.copied() {
            let (SlotCopy::Of(hint), Some(known)) = (copy, self.slots.get_mut(slot)) else {
                continue;
            };
            self.threads += 1;
            let Some(start) = hint.request_start else {
                // Its queue is told by an idle thread, too.
                note_queue(seen, self.task, &hint, read_at);
                continue;
            };
            match known.place(&hint, self.task, threads, read_at) {
                Ok(view) => {
                    self.serving += 1;
                    note(seen, view, start.min(now));
                    note_queue(seen, self.task, &hint, read_at);
                }
                Err(_) if known.ignored == start => {}
                Err(_) => {
                    known.ignored = start;
                    self.ignored += 1;
                }
            }
        }
    }
}

impl Known {
    /// The thread of a hint, if it is the task's and the hint makes sense.
    fn place<'a>(
        &mut self,
        hint: &Hint,
        task: TaskId,
        threads: &'a [ThreadView],
        now: Nanos,
    ) -> Result<&'a ThreadView, Ignored> {
        if hint.request_start.is_some_and(|start| start > now) {
            return Err(Ignored::Future);
        }
        let is_it = |view: &&ThreadView| view.thread.tid.0 == hint.thread;
        let there = threads.get(self.at).filter(is_it);
        let view = match there {
            Some(view) => view,
            None if self.missing == hint.thread && now < self.retry => return Err(Ignored::Thread),
            None => match threads.iter().position(|view| is_it(&view)) {
                Some(at) => {
                    self.at = at;
                    &threads[at]
                }
                None => {
                    (self.missing, self.retry) = (hint.thread, now + RETRY);
                    return Err(Ignored::Thread);
                }
            },
        };
        match view.task == task && view.lc {
            true => Ok(view),
            false => Err(Ignored::Thread),
        }
    }
}

/// Clears what is noted of requests: pages and runtimes note it anew in each tick.
pub(super) fn clear(seen: &mut Snapshot) {
    let nothing = Signal::Absent(Absence::NotApplicable);
    for core in &mut seen.cores {
        (core.request_start, core.serving) = (nothing, None);
    }
    seen.tasks.iter_mut().for_each(|task| task.request_start = nothing);
}

/// A request of this thread began then. It stays its core's while a thread of no task interrupts it: kernel threads do so
/// for microseconds, and batch work would be let onto the sibling each time.
pub(super) fn note(seen: &mut Snapshot, view: &ThreadView, start: Nanos) {
    if let Some(task) = seen.tasks.get_mut(view.task.at()) {
        let oldest = task.request_start.value().map_or(start, |known| known.min(start));
        task.request_start = Signal::Measured(oldest);
    }
    let Some(core) = seen.cores.iter_mut().find(|core| core.id == view.core) else { return };
    // The core's entry is read by itself: where it tells of another task the thread was just switched.
    let serves = match (view.state, core.running) {
        (ThreadState::Running, Some(task)) => task == view.task,
        (ThreadState::Running | ThreadState::Waiting, None) => core.idle_since.is_none(),
        _ => false,
    };
    if serves && core.request_start.value().is_none_or(|known| start < known) {
        (core.request_start, core.serving) = (Signal::Measured(start), Some(view.task));
    }
}

/// Requests wait in the service's own queue: that is a wait as well, if none of its threads waits longer.
fn note_queue(seen: &mut Snapshot, task: TaskId, hint: &Hint, now: Nanos) {
    let Some(since) = hint.oldest_queued.filter(|&at| at <= now && hint.queue_depth > 0) else {
        return;
    };
    if let Some(task) = seen.tasks.get_mut(task.at()) {
        let known = task.queueing_delay.value().unwrap_or_default();
        task.queueing_delay = Signal::Measured(known.max(now.since(since)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_model::{CoreId, CoreSet, CoreView, TaskView, ThreadId, TimeLimits};
    use quell_os::{ThreadRef, Tid};
    use quell_shm::{Page as Writer, Slot};

    const TASK: TaskId = TaskId { index: 0, generation: 3 };

    struct Scene {
        _dir: tempfile::TempDir,
        _page: Writer,
        slot: Slot,
        pages: Pages,
        threads: Vec<ThreadView>,
        seen: Snapshot,
        told: Vec<String>,
        path: std::path::PathBuf,
    }

    impl Scene {
        /// This thread hints, and runs as the task's on core 1.
        fn new() -> Scene {
            let dir = tempfile::tempdir_in("/dev/shm").unwrap();
            let path = dir.path().join("hints");
            let page = Writer::open(&path, 4).unwrap();
            let slot = page.register().unwrap();
            let mut pages = Pages::default();
            let me = rustix::process::getuid().as_raw();
            pages.set(TASK, Some(Reader::open(&path, &[me]).unwrap()));
            let limits = Limits {
                class: Class::LatencyCritical,
                times: TimeLimits {
                    sibling_idle_after: Nanos::from_micros(700),
                    ..TimeLimits::ZERO
                },
                allowed: CoreSet::of(CoreId(1)),
                ..Limits::NONE
            };
            let mut cores = vec![CoreView::new(CoreId(0)), CoreView::new(CoreId(1))];
            cores[1].running = Some(TASK);
            let seen = Snapshot {
                now: clock::now(),
                cores,
                tasks: vec![TaskView::new(TASK, limits)],
                ..Snapshot::default()
            };
            let tid = rustix::thread::gettid().as_raw_nonzero().get();
            let threads = vec![view(tid + 100_000), view(tid)];
            Scene { _dir: dir, _page: page, slot, pages, threads, seen, told: Vec::new(), path }
        }

        fn fill(&mut self) {
            self.seen.now = clock::now();
            let told = &mut self.told;
            clear(&mut self.seen);
            self.pages.fill(&mut self.seen, &self.threads, |_, what| told.push(what));
        }

        fn status(&self) -> HintsStatus {
            self.pages.status(TASK).unwrap()
        }
    }

    fn view(tid: i32) -> ThreadView {
        ThreadView {
            id: ThreadId { index: tid as u32, generation: 0 },
            thread: ThreadRef { tid: Tid(tid), tgid: Tid(tid), start_ticks: 1 },
            task: TASK,
            member: 0,
            lc: true,
            state: ThreadState::Running,
            since: Nanos(1),
            awake_since: Nanos(1),
            core: CoreId(1),
            ran: Nanos::ZERO,
            waited: Nanos::ZERO,
            burst: Nanos::ZERO,
            burst_whole: Nanos::ZERO,
            transitions: 0,
        }
    }

    #[test]
    fn a_request_is_seen_on_the_core_where_its_thread_runs_until_it_ends() {
        let mut scene = Scene::new();
        scene.fill();
        assert_eq!(scene.seen.cores[1].request_start, Signal::Absent(Absence::NotApplicable));
        let start = clock::now();
        scene.slot.begin_at(start);
        scene.fill();
        assert_eq!(scene.seen.cores[1].request_start, Signal::Measured(start));
        assert_eq!(scene.seen.cores[0].request_start.value(), None);
        assert_eq!(scene.seen.tasks[0].request_start, Signal::Measured(start));
        assert_eq!((scene.status().threads, scene.status().serving), (1, 1));
        (scene.threads[1].state, scene.seen.cores[1].running) = (ThreadState::Waiting, None);
        scene.fill();
        assert_eq!(scene.seen.cores[1].serving, Some(TASK), "a kernel thread interrupts it");
        scene.seen.cores[1].running = Some(TaskId { index: 1, generation: 0 });
        scene.fill();
        assert_eq!(scene.seen.cores[1].serving, None, "another task runs");
        (scene.seen.cores[1].running, scene.seen.cores[1].idle_since) = (None, Some(Nanos(1)));
        scene.fill();
        assert_eq!(scene.seen.cores[1].serving, None, "the core is idle: it wakes up elsewhere");
        scene.threads[1].state = ThreadState::Sleeping;
        (scene.seen.cores[1].running, scene.seen.cores[1].idle_since) = (Some(TASK), None);
        scene.fill();
        assert_eq!(scene.seen.cores[1].request_start.value(), None, "it waits for something");
        assert_eq!(scene.seen.tasks[0].request_start, Signal::Measured(start));
        scene.slot.end();
        scene.fill();
        assert_eq!(scene.seen.tasks[0].request_start.value(), None);
        assert_eq!(scene.status().ignored, 0);
    }

    #[test]
    fn hints_that_cannot_be_are_left_out_and_counted_once_each() {
        let mut scene = Scene::new();
        scene.slot.begin_at(clock::now() + Nanos::from_secs(60));
        scene.fill();
        scene.fill();
        assert_eq!((scene.seen.tasks[0].request_start.value(), scene.status().ignored), (None, 1));
        scene.slot.begin();
        scene.threads[1].task = TaskId { index: 0, generation: 2 };
        scene.fill();
        assert_eq!((scene.seen.tasks[0].request_start.value(), scene.status().ignored), (None, 2));
        scene.threads[1].task = TASK;
        scene.threads[1].lc = false;
        scene.slot.begin();
        scene.fill();
        assert_eq!(scene.status().ignored, 3, "a process that counts as BE");
        let gone = scene.threads.pop().unwrap();
        scene.slot.begin();
        scene.fill();
        assert_eq!((scene.seen.cores[1].request_start.value(), scene.status().ignored), (None, 4));
        scene.threads.insert(0, ThreadView { lc: true, ..gone });
        std::thread::sleep(std::time::Duration::from_nanos(RETRY.0));
        scene.fill();
        assert!(scene.seen.cores[1].request_start.value().is_some(), "found where it is now");
    }

    #[test]
    fn a_page_cut_short_is_told_of_once_and_gives_nothing() {
        let mut scene = Scene::new();
        scene.slot.begin();
        scene.fill();
        let file = std::fs::OpenOptions::new().write(true).open(&scene.path).unwrap();
        file.set_len(64).unwrap();
        for _ in 0..2 {
            scene.fill();
            assert_eq!(scene.seen.tasks[0].request_start.value(), None);
            std::thread::sleep(std::time::Duration::from_nanos(RETRY.0));
        }
        assert_eq!(scene.told.len(), 1);
        assert!(scene.told[0].contains("shorter"), "{:?}", scene.told);
        assert!(scene.status().problem.is_some());
        // The slot's memory is gone with the file's end.
        std::mem::forget(scene.slot);
    }

    #[test]
    fn requests_in_a_queue_of_the_service_are_a_wait() {
        let mut scene = Scene::new();
        let since = clock::now();
        scene.slot.queue(2, Some(since));
        scene.fill();
        let delay = scene.seen.tasks[0].queueing_delay.value().unwrap();
        assert!(delay > Nanos::ZERO && delay <= clock::now().since(since));
    }

    #[test]
    fn pages_are_read_as_often_as_the_shortest_bound_of_a_task_says() {
        let mut scene = Scene::new();
        assert_eq!(scene.pages.poll_every(&scene.seen), Some(Nanos::from_micros(700)));
        scene.seen.tasks[0].limits.times.sibling_idle_after = Nanos::ZERO;
        assert_eq!(scene.pages.poll_every(&scene.seen), None);
        scene.slot.begin();
        scene.fill();
        assert!(scene.seen.tasks[0].request_start.value().is_some());
        scene.pages.set(TASK, None);
        scene.fill();
        assert_eq!(scene.seen.tasks[0].request_start, Signal::Absent(Absence::NotApplicable));
    }
}
