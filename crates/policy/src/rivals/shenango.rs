//! Shenango (NSDI'19): a core allocator that looks every 5 us and knows nothing of interference.
//!
//! A task is congested when something that was queued at the last look is queued still; it then gets one
//! core. It is no matter whether it is LC or BE, only guarantees count: a task below its own may preempt one
//! above its own, nobody else preempts. Cores are chosen for the cache: the sibling of a core that the task
//! runs on, one that it had lately, any idle one, one to preempt. A core that its owner leaves goes to a
//! congested task, that on the sibling first, then one that was here lately. The look after a grant counts
//! for nothing, so that the core can start.
//!
//! Source: the paper's algorithm as in the `simple` policy of the published code.

use quell_model::{CoreId, Nanos, Plan, Reason, Snapshot, TaskId};
use serde::{Deserialize, Serialize};

use super::{Known, blank, give, is_idle, is_live, rung_owners, runs};
use crate::state::{ensure, put, take};
use crate::{BadState, Host, Policy, Wake};

/// Between two looks at the queues (NSDI'19, section 4.1).
pub const INTERVAL: Nanos = Nanos::from_micros(5);

/// Tasks that a core remembers.
const HISTORY: usize = 4;

/// See the module.
pub struct Shenango {
    host: Host,
    known: Known,
    state: State,
}

#[derive(Clone, Default, Serialize, Deserialize)]
struct State {
    looked: Option<Nanos>,
    /// By position in the topology.
    cores: Vec<Core>,
    /// By place.
    tasks: Vec<Task>,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Core {
    owner: Option<TaskId>,
    /// Who had it before, the last one first.
    before: [Option<TaskId>; HISTORY],
    reason: Option<Reason>,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Task {
    owned: u32,
    /// Its queue was not empty at the last look.
    queued: bool,
    congested: bool,
    /// It was granted a core since the last look.
    waking: bool,
}

impl Shenango {
    /// The policy for a host.
    pub fn new(host: Host) -> Shenango {
        let cores = vec![Core::default(); host.topology.len()];
        Shenango { host, known: Known::default(), state: State { cores, ..State::default() } }
    }

    /// Forgets who is gone, and counts what the others own.
    fn sync(&mut self, seen: &Snapshot) {
        self.state.tasks.resize(seen.tasks.len(), Task::default());
        self.state.tasks.iter_mut().for_each(|task| task.owned = 0);
        for (at, core) in self.state.cores.iter_mut().enumerate() {
            let id = self.host.topology.cores()[at].id;
            let keeps = |owner: &TaskId| {
                let task = seen.tasks.get(owner.at()).filter(|task| task.id == *owner);
                self.known.usable.contains(id)
                    && task.is_some_and(|task| {
                        is_live(owner.at(), task)
                            && task.limits.allowed.contains(id)
                            && self.state.tasks[owner.at()].owned < task.limits.core_limit()
                    })
            };
            core.owner = core.owner.filter(keeps);
            if let Some(owner) = core.owner {
                self.state.tasks[owner.at()].owned += 1;
            }
        }
    }

    /// Judges every queue; once an interval.
    fn look(&mut self, now: Nanos, seen: &Snapshot) {
        if self.state.looked.is_some_and(|looked| now.since(looked) < INTERVAL) {
            return;
        }
        self.state.looked = Some(now);
        for (place, view) in seen.tasks.iter().enumerate() {
            let task = &mut self.state.tasks[place];
            let queued = is_live(place, view) && view.waiting > 0;
            let stands = queued && (task.queued || task.owned == 0);
            task.congested = stands && !task.waking;
            (task.queued, task.waking) = (queued, false);
        }
    }

    fn release(&mut self, seen: &Snapshot) {
        for at in 0..self.state.cores.len() {
            let Some(owner) = self.state.cores[at].owner else { continue };
            let spare = self.state.tasks[owner.at()].owned > seen.tasks[owner.at()].runnable();
            if spare && is_idle(seen, at) {
                self.free(at);
                if let Some(next) = self.heir(at, seen) {
                    self.grant(at, next, Reason::HandedOver);
                }
            }
        }
    }

    /// Who gets a core that was left.
    fn heir(&self, at: usize, seen: &Snapshot) -> Option<TaskId> {
        let siblings = self.host.topology.siblings(self.id(at));
        let beside = siblings.iter().filter_map(|core| self.host.topology.position(core));
        let beside = beside.filter_map(|at| self.state.cores[at].owner);
        let before = self.state.cores[at].before.into_iter().flatten();
        let any = seen.tasks.iter().map(|task| task.id);
        beside.chain(before).chain(any).find(|task| self.wants(*task, at, seen))
    }

    /// Whether the task is congested and may use the core.
    fn wants(&self, id: TaskId, at: usize, seen: &Snapshot) -> bool {
        let Some(task) = seen.tasks.get(id.at()).filter(|task| task.id == id) else { return false };
        let state = &self.state.tasks[id.at()];
        is_live(id.at(), task)
            && state.congested
            && state.owned < task.limits.core_limit().min(task.runnable())
            && task.limits.allowed.contains(self.id(at))
            && self.known.usable.contains(self.id(at))
    }

    /// The core for a congested task.
    fn pick(&self, id: TaskId, seen: &Snapshot) -> Option<usize> {
        let open = |at: &usize| self.wants(id, *at, seen);
        let free = |at: &usize| open(at) && self.state.cores[*at].owner.is_none();
        let all = || 0..self.state.cores.len();
        let paired = |at: &usize| {
            let siblings = self.host.topology.siblings(self.id(*at));
            let mut beside = siblings.iter().filter_map(|core| self.host.topology.position(core));
            beside.any(|at| runs(seen, at) == Some(id))
        };
        let known = |at: &usize| self.state.cores[*at].before.contains(&Some(id));
        let own = &self.state.tasks[id.at()];
        let short = own.owned < seen.tasks[id.at()].limits.guaranteed;
        let preempts = |at: &usize| {
            short
                && open(at)
                && self.state.cores[*at].owner.is_some_and(|owner| {
                    let (state, view) = (&self.state.tasks[owner.at()], &seen.tasks[owner.at()]);
                    owner != id && state.owned > view.limits.guaranteed
                })
        };
        all()
            .find(|at| free(at) && paired(at))
            .or_else(|| all().find(|at| free(at) && known(at)))
            .or_else(|| all().find(free))
            .or_else(|| all().find(preempts))
    }

    fn id(&self, at: usize) -> CoreId {
        self.host.topology.cores()[at].id
    }

    fn free(&mut self, at: usize) {
        let core = &mut self.state.cores[at];
        if let Some(owner) = core.owner.take() {
            core.before.copy_within(..HISTORY - 1, 1);
            core.before[0] = Some(owner);
            self.state.tasks[owner.at()].owned -= 1;
        }
    }

    fn grant(&mut self, at: usize, task: TaskId, reason: Reason) {
        self.free(at);
        (self.state.cores[at].owner, self.state.cores[at].reason) = (Some(task), Some(reason));
        let task = &mut self.state.tasks[task.at()];
        task.owned += 1;
        (task.congested, task.waking) = (false, true);
    }
}

impl Policy for Shenango {
    fn name(&self) -> &'static str {
        "shenango"
    }

    fn decide(&mut self, now: Nanos, seen: &Snapshot, plan: &mut Plan) -> Wake {
        self.known.changed(&self.host, seen);
        self.sync(seen);
        self.look(now, seen);
        self.release(seen);
        for view in seen.tasks.iter().enumerate().filter(|(at, task)| is_live(*at, task)) {
            let (place, task) = view;
            if self.state.tasks[place].congested
                && let Some(at) = self.pick(task.id, seen)
            {
                let delay = task.queueing_delay.value().unwrap_or_default();
                self.grant(at, task.id, Reason::Congested(delay));
            }
        }
        blank(&self.host, seen, plan);
        for (at, core) in self.state.cores.iter().enumerate() {
            if let Some(owner) = core.owner {
                let reason = core.reason.unwrap_or(Reason::Kept);
                give(&self.host, plan, self.host.topology.cores()[at].id, owner, reason);
            }
        }
        rung_owners(&self.host, seen, plan);
        match seen.tasks.iter().any(|task| task.alive && task.waiting > 0) {
            true => Wake::At(self.state.looked.unwrap_or(now) + INTERVAL),
            false => Wake::OnChange,
        }
    }

    fn save(&self, state: &mut Vec<u8>) {
        put(&(&self.known, &self.state), state);
    }

    fn restore(&mut self, state: &mut &[u8]) -> Result<(), BadState> {
        let (known, saved): (Known, State) = take(state)?;
        ensure(saved.cores.len() == self.state.cores.len(), "cores of another host")?;
        (self.known, self.state) = (known, saved);
        Ok(())
    }
}
