//! What threads go through: woken, started, slowed down, stopped, asleep.

use quell_model::{Class, Nanos, Role};

use super::place::Next;
use super::{Request, State, Thread, WORK_BITS, Work, slice_of};
use crate::engine::{Engine, Timer};
use crate::machine::{Kind, ONE, smt};
use crate::workload::Style;

impl Engine<'_> {
    /// A request reaches its task.
    pub(crate) fn accept(&mut self, task: usize, request: Request) {
        self.books.tasks[task].arrived += 1;
        if self.scenario.tasks[task].is_runtime() {
            return self.enqueue(task, request);
        }
        if self.scenario.tasks[task].own_connections {
            return self.accept_on_connection(task, request);
        }
        if self.tasks[task].held > 0 {
            return self.tasks[task].backlog.push_back(request);
        }
        match self.tasks[task].sleepers.pop() {
            Some(thread) => self.wake(thread, Work::Request(request)),
            None => self.tasks[task].backlog.push_back(request),
        }
    }

    /// The request is for one thread, and no other takes it.
    fn accept_on_connection(&mut self, task: usize, request: Request) {
        let state = &mut self.tasks[task];
        let nth = state.chance.below(state.inboxes.len() as u64) as usize;
        state.inboxes[nth].push_back(request);
        self.wake_for_own(task, nth);
    }

    /// A thread that sleeps wakes for what waits on its connections.
    pub(super) fn wake_for_own(&mut self, task: usize, nth: usize) {
        let state = &mut self.tasks[task];
        let thread = state.first + nth;
        let Some(at) = state.sleepers.iter().position(|other| *other == thread) else { return };
        if state.held > 0 {
            return;
        }
        let Some(request) = state.inboxes[nth].pop_front() else { return };
        state.sleepers.remove(at);
        self.wake(thread, Work::Request(request));
    }

    /// A runtime's thread that looks for work takes it; else it waits for one, and wakes one where a core is free.
    fn enqueue(&mut self, task: usize, request: Request) {
        if let Some(core) = self.tasks[task].polling_on.first() {
            let at = self.at(core);
            self.account(at);
            return self.take_up(at, request);
        }
        self.tasks[task].backlog.push_back(request);
        if self.tasks[task].sleepers.is_empty()
            && self.scenario.tasks[task].limits.times.quantum > Nanos::ZERO
        {
            // No core could help, but whoever has had its quantum can make way.
            return self.ring();
        }
        self.feed(task);
    }

    /// Starts a sleeping thread of a runtime that has requests waiting, where there is a core for it.
    pub(super) fn feed(&mut self, task: usize) {
        let state = &self.tasks[task];
        if state.backlog.is_empty() || state.sleepers.is_empty() {
            return;
        }
        if self.linux.is_some() {
            return self.feed_linux(task);
        }
        match self.find_core(&self.tasks[task].allowed, self.tasks[task].rung, None) {
            Some(at) => {
                let victim = self.cores[at].running;
                if victim.is_some() {
                    self.stop(at);
                }
                if let Some(next) = self.next_of(task, at) {
                    self.start_next(next, at);
                }
                if let Some(victim) = victim {
                    self.replace(victim);
                }
            }
            None => self.ring(),
        }
    }

    /// Gives a sleeping thread, which is in no list, work, and a core if it finds one.
    pub(crate) fn wake(&mut self, thread: usize, work: Work) {
        let waker = self.acting.filter(|waker| *waker != thread);
        let state = &mut self.threads[thread];
        (state.work, state.waker) = (work, waker);
        state.state = State::Waiting { since: self.now };
        let task = state.task;
        self.tasks[task].waiting.push_back(thread);
        self.count_transition(thread);
        self.tell_waking(thread);
        let wake = self.scenario.costs.wake;
        if wake == Nanos::ZERO || self.scenario.tasks[task].is_runtime() {
            return self.place(thread);
        }
        let timer = self.layout.timer(Timer::Wake(task));
        self.timers.arm(timer, self.timers.time(timer).min(self.now + wake));
    }

    /// The cores hear of the threads of a task that were woken long enough ago.
    pub(crate) fn heard_of(&mut self, task: usize) {
        let wake = self.scenario.costs.wake;
        let mut next = Nanos::MAX;
        for thread in self.tasks[task].waiting.clone() {
            match self.threads[thread].state {
                State::Waiting { since } if since + wake > self.now => {
                    next = next.min(since + wake)
                }
                State::Waiting { .. } => self.place(thread),
                State::Sleeping | State::Running(_) => {}
            }
        }
        let timer = self.layout.timer(Timer::Wake(task));
        self.timers.arm(timer, self.timers.time(timer).min(next));
    }

    /// Ends what a thread does, whatever that was.
    pub(crate) fn sleep(&mut self, thread: usize) {
        let task = self.threads[thread].task;
        let core = match self.threads[thread].state {
            State::Sleeping => return,
            State::Waiting { .. } => {
                self.unqueue_thread(thread);
                self.forget_waiting(thread);
                self.tell_waking(thread);
                None
            }
            State::Running(at) => {
                // Perhaps since this very step, so that no trace has shown it there.
                self.tell_waking(thread);
                self.leave(at);
                self.unqueue_thread(thread);
                Some(at)
            }
        };
        self.end_burst(thread);
        let state = &mut self.threads[thread];
        (state.state, state.work, state.ran) = (State::Sleeping, Work::Nothing, Nanos::ZERO);
        let helper = state.helper;
        if helper.is_none() {
            self.tasks[task].sleepers.push(thread);
        }
        if let Some(at) = core {
            self.fill(at);
        }
        if let Some(nth) = helper {
            self.helper_sleeps(nth as usize);
        }
    }

    /// Puts a thread that waits on a free core.
    pub(super) fn start(&mut self, thread: usize, at: usize) {
        self.note_kernel_wait(thread);
        self.forget_waiting(thread);
        self.run_on(thread, at);
    }

    pub(super) fn run_on(&mut self, thread: usize, at: usize) {
        let costs = &self.scenario.costs;
        let state = &mut self.threads[thread];
        let mut lost = costs.switch;
        if state.last_core.is_some_and(|last| last != at) {
            lost += costs.migrate;
        }
        state.state = State::Running(at);
        state.last_core = Some(at);
        let task = state.task;
        let (id, rung) = (self.cores[at].id, self.rung_of(thread));
        self.count_transition(thread);
        self.tasks[task].running += 1;
        self.tasks[task].running_on.insert(id);
        self.idle.remove(id);
        self.checks_armed.remove(id);
        self.on_rung[rung as usize].insert(id);
        if self.tasks[task].class == Class::BestEffort && !self.tasks[task].is_kernel {
            self.on_be.insert(id);
        }
        let core = &mut self.cores[at];
        debug_assert_eq!(
            core.running, None,
            "core {id} gets thread {thread} while it runs another"
        );
        debug_assert!(core.online, "core {id} is offline and gets thread {thread}");
        core.book_idle(self.now);
        core.running = Some(thread);
        core.switching += lost;
        core.since = self.now + lost;
        core.slice = match &self.linux {
            Some(linux) => linux.next_tick(core.since),
            None => core.since + slice_of(rung, &self.scenario.tasks[task]),
        };
        self.begin(at);
        self.touch(at);
    }

    /// A running thread begins what it has to do: a request, a burst, a look for work. Its slice goes on.
    pub(super) fn begin(&mut self, at: usize) {
        let Some(thread) = self.cores[at].running else { return };
        if let Work::Spin(_) = self.threads[thread].work {
            self.poll(thread);
        }
        let Thread { task, work, .. } = self.threads[thread];
        let core = &mut self.cores[at];
        core.began = matches!(work, Work::Request(_)).then_some(core.since);
        let id = core.id;
        let kind = match work {
            Work::Polling(_) => {
                self.tasks[task].polling_on.insert(id);
                Kind::Poll
            }
            Work::Spin(_) => Kind::Poll,
            _ => {
                self.tasks[task].polling_on.remove(id);
                self.hardware.profile(task).kind
            }
        };
        self.occupy(at, kind);
        self.rearm(at);
    }

    /// Takes the thread off its core; it waits from now on, or its request does if it is a runtime's.
    pub(super) fn stop(&mut self, at: usize) {
        let Some(thread) = self.cores[at].running else { return };
        self.leave(at);
        let task = self.threads[thread].task;
        if !self.scenario.tasks[task].is_runtime()
            || matches!(self.threads[thread].work, Work::Endless)
            || self.linux.is_some()
        {
            self.threads[thread].state = State::Waiting { since: self.now };
            self.tasks[task].waiting.push_back(thread);
            self.count_transition(thread);
            return;
        }
        let state = &mut self.threads[thread];
        let work = std::mem::replace(&mut state.work, Work::Nothing);
        (state.state, state.ran) = (State::Sleeping, Nanos::ZERO);
        self.tasks[task].sleepers.push(thread);
        if let Work::Request(request) = work {
            self.tasks[task].backlog.push_front(request);
        }
    }

    /// Frees the core of its thread and books what it had.
    fn leave(&mut self, at: usize) {
        self.account(at);
        let Some(thread) = self.cores[at].running.take() else { return };
        let task = self.threads[thread].task;
        let (id, rung) = (self.cores[at].id, self.rung_of(thread));
        let state = &mut self.tasks[task];
        debug_assert!(state.running_on.contains(id), "task {task} leaves core {id}");
        state.running -= 1;
        state.running_on.remove(id);
        state.polling_on.remove(id);
        self.on_rung[rung as usize].remove(id);
        self.on_be.remove(id);
        let core = &mut self.cores[at];
        // What is left of the switch was not lost: it did not come to it.
        core.switching = core.switching - core.since.since(self.now);
        (core.since, core.idle_since) = (self.now, self.now);
        (core.finish, core.slice, core.began) = (Nanos::MAX, Nanos::MAX, None);
        if core.online {
            self.idle.insert(id);
        }
        self.timers.arm(self.layout.end(at), Nanos::MAX);
        self.uncount(at, task);
        self.occupy(at, Kind::Idle);
        self.touch(at);
    }

    /// The core's timer went off: the request, the look for work or the slice is over.
    pub(crate) fn ended(&mut self, at: usize) {
        let Some(thread) = self.cores[at].running else { return self.tick_linux(at) };
        self.acting = Some(thread);
        self.account(at);
        if self.cores[at].finish > self.now {
            return self.slice_ended(thread, at);
        }
        let task = self.threads[thread].task;
        match self.threads[thread].work {
            Work::Request(request) => self.answer(task, request),
            Work::Burst(_) => return self.sleep(thread),
            Work::Step(_) => return self.next_steps(thread, at),
            Work::Spin(_) => return self.has_polled_enough(thread, at),
            Work::Endless | Work::Polling(_) | Work::Nothing => {}
        }
        let next = self.tasks[task].next_request(thread);
        match (next, self.scenario.tasks[task].style) {
            (Some(request), _) => self.take_up(at, request),
            (None, Style::Runtime { polls }) if polls > Nanos::ZERO && !self.has_polled(thread) => {
                self.threads[thread].work = Work::Polling(self.now + polls);
                self.cores[at].since = self.now;
                self.begin(at);
            }
            _ => self.sleep(thread),
        }
    }

    fn has_polled(&self, thread: usize) -> bool {
        matches!(self.threads[thread].work, Work::Polling(_))
    }

    /// A running thread goes on to a request without a switch.
    fn take_up(&mut self, at: usize, request: Request) {
        let Some(thread) = self.cores[at].running else { return };
        self.note_input(thread, at);
        self.threads[thread].work = Work::Request(request);
        // One that is still switched in begins when it is in.
        self.cores[at].since = self.cores[at].since.max(self.now);
        self.begin(at);
    }

    /// The request that began then has had its quantum: it goes to the end of the queue, if others wait.
    pub(crate) fn yield_request(&mut self, at: usize, began: Nanos) {
        let Some(thread) = self.cores[at].running else { return };
        let task = self.threads[thread].task;
        if self.cores[at].began != Some(began) || !self.scenario.tasks[task].is_runtime() {
            return;
        }
        self.account(at);
        let Work::Request(request) = self.threads[thread].work else { return };
        if let Some(next) = self.tasks[task].backlog.pop_front() {
            self.tasks[task].backlog.push_back(request);
            self.cores[at].switching += self.scenario.costs.switch;
            self.cores[at].since = self.now + self.scenario.costs.switch;
            self.take_up(at, next);
        }
    }

    fn slice_ended(&mut self, thread: usize, at: usize) {
        if self.linux.is_some() {
            return self.tick_linux(at);
        }
        let task = self.threads[thread].task;
        let rung = self.rung_of(thread);
        let slice = slice_of(rung, &self.scenario.tasks[task]);
        // The scheduler of a lane lends the core to members of its own alone, and a lower rung has no turn.
        let is_lane = self.scenario.tasks[task].is_lane();
        let has_turn = |next: &Next| next.rung <= rung && (!is_lane || next.task == task);
        let next = self.next_for(at).filter(has_turn);
        if slice == Nanos::MAX || next.is_none() {
            self.cores[at].slice = self.now + slice;
            return self.rearm(at);
        }
        self.stop(at);
        self.fill(at);
        // Who took over may have no other core; the one that made way may have an idle one.
        self.replace(thread);
    }

    /// Books what the thread of a core had since it was last booked.
    pub(crate) fn account(&mut self, at: usize) {
        let core = &mut self.cores[at];
        let Some(thread) = core.running else { return };
        let had = self.now.since(core.since);
        if had == Nanos::ZERO {
            return;
        }
        core.since = self.now;
        let thread = &mut self.threads[thread];
        thread.ran += had;
        let task = thread.task;
        let is_above_fair = thread.role < Role::Background;
        let done = work_done(had, core.speed);
        let books = &mut self.books.tasks[task];
        books.ran += had;
        match &mut thread.work {
            Work::Request(request) => {
                let done = done.min(request.left);
                request.left -= done;
                books.served += done;
            }
            Work::Burst(left) | Work::Step(left) => {
                let done = done.min(*left);
                *left -= done;
                books.worked += done;
            }
            Work::Endless => books.worked += done,
            Work::Polling(_) => books.polled += had,
            Work::Spin(left) if *left < Nanos::MAX => *left = left.since(had),
            Work::Nothing | Work::Spin(_) => {}
        }
        if self.tasks[task].class == Class::LatencyCritical {
            core.roll(self.now);
            core.lc_ran[1] += had;
            if is_above_fair {
                core.rt_ran += had;
            }
        }
        if core.counted > 0 && self.hardware.contends() {
            core.moved += self.hardware.traffic_of(core.domain, task, core.counted) * had.0;
        }
    }

    /// The core's execution units go over to something else.
    pub(crate) fn occupy(&mut self, at: usize, kind: Kind) {
        let before = self.cores[at].kind;
        self.cores[at].kind = kind;
        let siblings = self.cores[at].siblings.len();
        if (before == Kind::Idle) != (kind == Kind::Idle) {
            let alone = (0..siblings)
                .all(|nth| self.cores[self.cores[at].siblings[nth]].kind == Kind::Idle);
            if alone {
                let node = self.cores[at].node;
                self.hardware.count_active(node, kind != Kind::Idle);
            }
        }
        self.restretch(at);
        if before == kind || !self.hardware.has_smt() {
            return;
        }
        for nth in 0..siblings {
            let sibling = self.cores[at].siblings[nth];
            if self.cores[sibling].running.is_some() {
                self.slow(sibling);
            }
        }
    }

    /// What surrounds a running thread changed: books it so far and lets it go on at its new speed.
    pub(crate) fn slow(&mut self, at: usize) {
        self.account(at);
        self.restretch(at);
        self.rearm(at);
    }

    /// Works out anew how fast the thread of a core is.
    fn restretch(&mut self, at: usize) {
        let (kind, domain, node) = {
            let core = &self.cores[at];
            (core.kind, core.domain, core.node)
        };
        let task = self.cores[at].running.map(|thread| self.threads[thread].task);
        let works = task.filter(|_| !matches!(kind, Kind::Idle | Kind::Poll));
        let slow = ONE * ONE / self.cores[at].capacity;
        let mut beside = slow;
        if works.is_some() && self.hardware.has_smt() {
            let others = self.cores[at].siblings.iter();
            let slowest = others.map(|other| smt::stretch(kind, self.cores[*other].kind)).max();
            beside = slow * slowest.unwrap_or(ONE) / ONE;
        }
        let counted = if works.is_some() { ONE * ONE / beside } else { 0 };
        let last = std::mem::replace(&mut self.cores[at].counted, counted);
        // Who left is no longer known here; it was counted out in `uncount`.
        if let Some(task) = task
            && last != counted
            && self.hardware.add(domain, task, counted as i64 - last as i64)
        {
            self.settle_soon(node);
        }
        let stretch = works.map_or(ONE, |task| self.hardware.base(domain, task) * beside / ONE);
        let core = &mut self.cores[at];
        core.stretch = stretch.max(1);
        let before = core.speed;
        core.speed = (1 << 30) / core.stretch;
        if let Some(task) = works {
            let (counted_before, now) = (if last > 0 { before } else { 0 }, core.speed);
            self.change_pace(task, counted_before, now);
        } else if let Some(task) = task.filter(|_| last > 0) {
            self.change_pace(task, before, 0);
        }
    }

    /// The thread of a task that leaves a core no longer counts there.
    fn uncount(&mut self, at: usize, task: usize) {
        let core = &mut self.cores[at];
        let counted = std::mem::take(&mut core.counted);
        let (domain, node, speed) = (core.domain, core.node, core.speed);
        if counted > 0 {
            self.change_pace(task, speed, 0);
            if self.hardware.add(domain, task, -(counted as i64)) {
                self.settle_soon(node);
            }
        }
    }

    /// One thread of the task goes from one speed to another; its phase ends sooner or later.
    fn change_pace(&mut self, task: usize, from: u64, to: u64) {
        if from == to || self.scenario.tasks[task].phases.len() < 2 {
            return;
        }
        self.advance(task);
        let progress = &mut self.tasks[task].progress;
        progress.speed = progress.speed + to - from;
        self.arm_phase(task);
    }

    /// Books the work of a task's phase.
    pub(crate) fn advance(&mut self, task: usize) {
        let now = self.now;
        let progress = &mut self.tasks[task].progress;
        let done = work_done(now.since(progress.since), progress.speed);
        progress.left = progress.left.saturating_sub(done);
        progress.since = now;
    }

    pub(crate) fn arm_phase(&mut self, task: usize) {
        let progress = &self.tasks[task].progress;
        let at = match progress.speed {
            0 => Nanos::MAX,
            speed => self.now + Nanos((progress.left << 10).div_ceil(speed)),
        };
        self.timers.arm(self.layout.timer(Timer::Phase(task)), at);
    }

    /// Arms the core's timer for what ends first.
    pub(crate) fn rearm(&mut self, at: usize) {
        let core = &mut self.cores[at];
        let Some(thread) = core.running else { return };
        core.finish = match self.threads[thread].work {
            Work::Request(Request { left, .. }) | Work::Burst(left) | Work::Step(left) => {
                core.since + Nanos((left * core.stretch).div_ceil(ONE << WORK_BITS))
            }
            Work::Polling(until) => until.max(core.since),
            Work::Spin(left) if left < Nanos::MAX => core.since + left,
            Work::Endless | Work::Nothing | Work::Spin(_) => Nanos::MAX,
        };
        let due = core.finish.min(core.slice);
        self.timers.arm(self.layout.end(at), due);
    }
}

/// Work done in a time at a speed, in 1/1,024 ns.
fn work_done(time: Nanos, speed: u64) -> u64 {
    // A speed is at most some 2^22; times up to an hour stay within 64 bits.
    match time.0.checked_mul(speed) {
        Some(product) => product >> 10,
        None => ((u128::from(time.0) * u128::from(speed)) >> 10) as u64,
    }
}
