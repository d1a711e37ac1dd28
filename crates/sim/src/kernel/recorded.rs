//! Threads of a recorded host: how they begin, their classes, and the cores that they may use.

use quell_model::{CoreId, CoreSet};

use super::State;
use super::linux::SchedClass;
use super::programs::{recorded_thread, recording_of};
use crate::engine::{Engine, Timer};
use crate::workload::{ProgramStep, RecordedClass, RecordedStart, Task};

impl Engine<'_> {
    /// Starts the threads that a recording has from its begin. Those that are asleep come first, while all cores idle.
    pub(crate) fn begin_recording(&mut self, task: usize) {
        let scenario = self.scenario;
        let Some(recording) = recording_of(&scenario.tasks[task]) else { return };
        let cores = scenario.host.topology.cores();
        // A host with fewer cores has another one in its place.
        let here = |core: CoreId| cores[core.index() % cores.len()].id;
        self.programs[task].begin_again(recording);
        for (own, thread) in recording.threads.iter().enumerate() {
            if let RecordedStart::Asleep(core) = thread.start {
                self.begin_asleep(
                    task,
                    own,
                    here(core),
                    recording.program.kinds[own].steps.first(),
                );
            }
        }
        self.follow_linux();
        for (own, thread) in recording.threads.iter().enumerate() {
            if let RecordedStart::Runnable(core) = thread.start {
                self.start_thread(task, own, Some(here(core)));
            }
        }
    }

    /// A thread sleeps from the start, as its first step says. The kernel has seen it run on this core.
    fn begin_asleep(&mut self, task: usize, own: usize, core: CoreId, first: Option<&ProgramStep>) {
        let thread = self.tasks[task].first + own;
        let allowed = self.cores_of(thread).intersection(&self.online);
        if let Some(linux) = self.linux.as_mut().filter(|_| !allowed.is_empty()) {
            linux.set_allowed(thread, allowed, self.now);
            linux.fork(thread, core, Some(core), self.now);
            linux.sleep(thread, self.now);
        }
        match first {
            Some(ProgramStep::Take(sync)) => self.begin_first_step(task, own, Some(*sync as usize)),
            Some(ProgramStep::Sleep(time)) => {
                self.begin_first_step(task, own, None);
                let timer = self.layout.timer(Timer::Program(thread));
                self.timers.arm(timer, self.now + time.mean());
            }
            _ => self.start_thread(task, own, Some(core)),
        }
    }

    /// The thread may use other cores from now on; the one that it runs on may not be among them.
    pub(super) fn allow_recorded(&mut self, thread: usize, cores: u32) {
        let task = self.threads[thread].task;
        self.programs[task].set_allowed(thread - self.tasks[task].first, cores);
        self.tell_allowed(task);
        let allowed = self.cores_of(thread).intersection(&self.online);
        if let Some(linux) = &mut self.linux {
            linux.set_allowed(thread, allowed, self.now);
            return self.follow_linux();
        }
        let State::Running(at) = self.threads[thread].state else { return };
        if !allowed.contains(self.cores[at].id) {
            self.stop(at);
            self.went_idle.insert(self.cores[at].id);
            self.replace(thread);
            if self.cores[at].running.is_none() {
                self.arbitrate(at);
            }
        }
    }

    /// The cores that the recording lets a thread use, if it restricts it.
    pub(super) fn recorded_cores(&self, thread: usize) -> Option<&CoreSet> {
        let task = self.threads[thread].task;
        let recording = recording_of(&self.scenario.tasks[task])?;
        let own = thread - self.tasks[task].first;
        recording.cores.get(self.programs[task].allowed(own)? as usize)
    }

    /// The task replays a recorded host.
    pub(super) fn is_recorded(&self, task: usize) -> bool {
        recording_of(&self.scenario.tasks[task]).is_some()
    }
}

/// The class of a thread that Quell leaves alone, where a recording says so.
pub(super) fn recorded_class(task: &Task, own: usize) -> Option<SchedClass> {
    match recorded_thread(task, own)?.class {
        RecordedClass::RealTime(priority) => Some(SchedClass::RealTime(priority.min(99))),
        RecordedClass::Idle => Some(SchedClass::Idle),
        // With the nice value of its task.
        RecordedClass::Fair => None,
    }
}
