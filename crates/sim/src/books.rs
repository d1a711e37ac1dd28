//! Double-entry books of a simulation: time, requests and work are counted where they come from and where they go.
//!
//! The two sides share no code, so a slip of the engine shows as a sum that does not come out. Every run ends with
//! the comparison.

use std::fmt;

use quell_model::Nanos;

use crate::engine::Engine;
use crate::kernel::{Request, WORK_BITS, Work};
use crate::report::Report;

/// A sum that does not come out: a fault of the simulator, not of the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// All cores together: time run, lost in switches, idle and offline against time passed.
    Time {
        /// Nanoseconds accounted for.
        booked: u128,
        /// Nanoseconds that passed.
        passed: u128,
    },
    /// Requests of a task: answered, dropped and unanswered against arrived.
    Requests {
        /// The place of the task.
        task: usize,
        /// Accounted for.
        booked: u64,
        /// Arrived.
        arrived: u64,
    },
    /// Work of a task's requests, in 1/1,024 ns: done, dropped and left against asked for.
    Work {
        /// The place of the task.
        task: usize,
        /// Accounted for.
        booked: u128,
        /// Asked for.
        asked: u128,
    },
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Broken::Time { booked, passed } => {
                write!(f, "of {passed} ns of core time {booked} ns are accounted for")
            }
            Broken::Requests { task, booked, arrived } => {
                write!(f, "of {arrived} requests of task {task} {booked} are accounted for")
            }
            Broken::Work { task, booked, asked } => {
                let [booked, asked] = [booked, asked].map(|work| work >> WORK_BITS);
                write!(f, "of {asked} ns of work for task {task} {booked} ns are accounted for")
            }
        }
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct TaskBooks {
    pub arrived: u64,
    pub answered: u64,
    pub dropped: u64,
    /// Work that requests brought, and that they lost when they were dropped.
    pub asked: u128,
    pub dropped_work: u128,
    /// What rounding left of answered requests.
    pub residue: u64,
    /// Work done for requests, and endless work.
    pub served: u64,
    pub worked: u64,
    /// Time that its threads ran, and looked for work meanwhile.
    pub ran: Nanos,
    pub polled: Nanos,
}

impl TaskBooks {
    pub fn drop_request(&mut self, request: &Request) {
        self.dropped += 1;
        self.dropped_work += u128::from(request.left);
    }

    /// All work done, in nanoseconds of an idle host.
    pub fn work(&self) -> Nanos {
        Nanos((self.served + self.worked) >> WORK_BITS)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Books {
    pub tasks: Vec<TaskBooks>,
    /// Work done before counting began.
    before: Vec<Nanos>,
    /// Time in the queues of cores before that.
    queued_before: Vec<Nanos>,
}

impl Books {
    pub fn new(tasks: usize) -> Books {
        Books {
            tasks: vec![TaskBooks::default(); tasks],
            before: vec![Nanos::ZERO; tasks],
            queued_before: Vec::new(),
        }
    }

    /// Counting begins. Threads were in the queue of each core for so long before.
    pub fn warmed_up(&mut self, queued: Vec<Nanos>) {
        self.queued_before = queued;
        for (before, task) in self.before.iter_mut().zip(&self.tasks) {
            *before = task.work();
        }
    }
}

impl Engine<'_> {
    /// Compares both sides and hands over what came out.
    pub(crate) fn close_books(mut self) -> Report {
        let mut report = std::mem::take(&mut self.report);
        report.broken = self.unbalanced();
        report.deadlocks = self.deadlocks();
        for (task, result) in report.tasks.iter_mut().enumerate() {
            let books = &self.books.tasks[task];
            result.arrived = books.arrived;
            result.answered = books.answered;
            result.unanswered = books.arrived - books.answered;
            result.ran = books.ran;
            result.polled = books.polled;
            result.work = books.work() - self.books.before[task];
            result.completed = self.programs[task].completed;
        }
        let before = self.books.queued_before.iter().chain(std::iter::repeat(&Nanos::ZERO));
        let queued = self.queued_times().into_iter().zip(before);
        report.queued = queued.map(|(time, before)| time - *before).collect();
        let managed = &self.scenario.host.managed;
        let managed = self.cores.iter().filter(|core| managed.contains(core.id));
        report.idle = Nanos(managed.map(|core| core.idle.0).sum());
        report.memory_bytes = quell_model::Bytes(self.hardware.moved());
        report.timeline = std::mem::take(&mut self.timeline.samples);
        report.seal();
        report
    }

    fn unbalanced(&self) -> Vec<Broken> {
        let mut broken = Vec::new();
        let sum = |times: &mut dyn Iterator<Item = Nanos>| {
            times.map(|time| u128::from(time.0)).sum::<u128>()
        };
        let cores = self.cores.iter();
        let spent = |core: &crate::kernel::Core| {
            // A switch that the end cut short.
            let switching = core.switching - core.since.since(self.now);
            core.idle + core.offline + switching
        };
        let booked =
            sum(&mut cores.map(spent)) + sum(&mut self.books.tasks.iter().map(|task| task.ran));
        let passed = u128::from(self.now.0) * self.cores.len() as u128;
        if booked != passed {
            broken.push(Broken::Time { booked, passed });
        }
        for (task, books) in self.books.tasks.iter().enumerate() {
            let open = self.open_requests(task);
            let (mut count, mut left) = (0, 0);
            for request in open {
                count += 1;
                left += u128::from(request.left);
            }
            let booked = books.answered + books.dropped + count;
            if booked != books.arrived {
                broken.push(Broken::Requests { task, booked, arrived: books.arrived });
            }
            let booked = u128::from(books.served + books.residue) + books.dropped_work + left;
            // Rounding may leave one unit for each time that a request was slowed down or stopped.
            let rounded = books.residue > (books.served >> 10) + (books.answered << WORK_BITS);
            if booked != books.asked || rounded {
                broken.push(Broken::Work { task, booked, asked: books.asked });
            }
        }
        broken
    }

    pub(crate) fn open_requests(&self, task: usize) -> impl Iterator<Item = Request> {
        let state = &self.tasks[task];
        let threads = &self.threads[state.first..][..self.scenario.tasks[task].threads as usize];
        let on_threads = threads.iter().filter_map(|thread| match thread.work {
            Work::Request(request) => Some(request),
            _ => None,
        });
        state.waiting_requests().copied().chain(on_threads)
    }
}
