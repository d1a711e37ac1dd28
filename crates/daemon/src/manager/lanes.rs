//! Lanes of the manager: their scheduler threads, and the members that they begin with.

use std::sync::Arc;

use quell_control::config::{LaneConfig, LanePattern, Launch};
use quell_model::{CoreId, CoreSet, TaskId};
use quell_observe::procs;
use quell_os::sched::SchedAttr;
use quell_os::{ThreadRef, own};
use rtrb::RingBuffer;

use super::no_answer;
use crate::command::Command;
use crate::engine::Link;
use crate::lane::{
    Companion, Counters, Lane, LaneRequest, MemberSource, Order, Place, Scheduler, Seat, probe,
};
use crate::launch::Launched;
use crate::mailbox::Postbox;

/// How often a process is looked through for threads that are born while the others are put on a lane; later ones are
/// followed where they are created.
const LOOKS: usize = 4;

/// Orders of the engine that wait for a lane's scheduler; what finds no room is told again.
const ORDERS: usize = 64;
/// Departures that wait for a tick of the engine; what finds no room its read-back finds.
const DEPARTURES: usize = 256;

/// The rungs of lanes on this host.
#[derive(Clone, Copy, Debug)]
pub struct LaneRungs {
    /// Of scheduler threads.
    pub switcher: SchedAttr,
    /// Of members: parked, and with the slice.
    pub members: [SchedAttr; 2],
}

/// The scheduler threads of all lanes.
pub struct Schedulers {
    /// `None` where the back end elevates nobody.
    pub rungs: Option<LaneRungs>,
    /// Where a scheduler may spin.
    unmanaged: CoreSet,
    /// Runs within the loop of the first that spins.
    companion: Option<Companion>,
    shared: Vec<(TaskId, Scheduler)>,
    /// By core, with the lanes of each.
    dedicated: Vec<(CoreId, Scheduler, Vec<TaskId>)>,
    /// How the calling thread was scheduled before it rose beside a scheduler that spins.
    before: Option<SchedAttr>,
}

impl Schedulers {
    /// None yet.
    pub fn new(
        rungs: Option<LaneRungs>,
        unmanaged: CoreSet,
        companion: Option<Companion>,
    ) -> Schedulers {
        Schedulers {
            rungs,
            unmanaged,
            companion,
            shared: Vec::new(),
            dedicated: Vec::new(),
            before: None,
        }
    }

    /// Starts the scheduler of a lane, or has one that spins take it as well. Returns what the operator should know of it.
    ///
    /// # Errors
    /// A sentence: this host has no lanes, or the thread cannot have its place.
    pub fn open(
        &mut self,
        id: TaskId,
        config: &LaneConfig,
        request: &LaneRequest,
        allowed: &CoreSet,
        engine: &Postbox<Command>,
    ) -> Result<Option<String>, String> {
        let reader = engine.call(|reply| Command::OpenLane(id, reply)).map_err(no_answer)??;
        let (sender, orders) = RingBuffer::new(ORDERS);
        let (departures, departed) = RingBuffer::new(DEPARTURES);
        let counters = Arc::new(Counters::new(request.members.len()));
        let policy = request.policy.build(request.members.len()).map_err(|err| err.to_string())?;
        let lane = Lane::new(id, reader, policy, Arc::clone(&counters), orders, departures);
        let scheduler = match config.pattern {
            LanePattern::Shared => self.open_shared(id, lane, allowed, engine)?,
            LanePattern::Dedicated => self.open_dedicated(id, lane, self.spins_on(config)?)?,
        };
        let link = Link {
            task: id,
            scheduler: scheduler.postbox.line(sender),
            departures: departed,
            pulse: Arc::clone(&scheduler.pulse),
            counters,
            names: request.names(),
            policy: request.policy.name(),
            pattern: config.pattern,
            seat: Seat::Waits,
            core: None,
            lent: Vec::new(),
        };
        engine.call(|reply| Command::Lane(Box::new(link), reply)).map_err(no_answer)?;
        let spins = config.pattern == LanePattern::Dedicated && self.unmanaged.len() == 1;
        Ok(spins.then(|| {
            format!(
                "its scheduler spins on core {}, the only unmanaged one: everything else on this host has what the kernel's fair server or its throttling leaves of that core",
                self.unmanaged
            )
        }))
    }

    fn open_shared(
        &mut self,
        id: TaskId,
        mut lane: Lane,
        allowed: &CoreSet,
        engine: &Postbox<Command>,
    ) -> Result<&Scheduler, String> {
        let (Some(rungs), Some(core)) = (self.rungs, allowed.first()) else {
            return Err("no core is left for a lane".to_owned());
        };
        let engine = engine.clone();
        let place = Place { core, rung: rungs.switcher, spins: false };
        let first = move || {
            let mut watched = None;
            let found =
                probe::lead(lane.reader(), core, rungs.members[crate::lane::RUNS], &mut |it| {
                    watched = Some(it);
                    engine.call(|reply| Command::Probe(id, it, reply)).ok().flatten()
                });
            watched.map(|thread| engine.tell(Command::EndProbe(thread)));
            // Without it, lanes learn from their members alone.
            if let Some(found) = found {
                tracing::debug!("core {core}: {found:?}");
                lane.set_lead(found);
            }
            Some(lane)
        };
        let scheduler = Scheduler::start(place, first, None).map_err(|err| no_place(core, &err))?;
        self.shared.push((id, scheduler));
        Ok(&self.shared[self.shared.len() - 1].1)
    }

    /// Where a dedicated scheduler is to spin.
    fn spins_on(&self, config: &LaneConfig) -> Result<CoreId, String> {
        let core = config.scheduler_core.map(CoreId).or(self.unmanaged.first());
        core.filter(|core| self.unmanaged.contains(*core)).ok_or_else(|| {
            let typed = config.scheduler_core.unwrap_or_default();
            format!(
                "the scheduler cannot spin on core {typed}: the unmanaged cores are {}",
                self.unmanaged
            )
        })
    }

    fn open_dedicated(
        &mut self,
        id: TaskId,
        lane: Lane,
        core: CoreId,
    ) -> Result<&Scheduler, String> {
        let known = self.dedicated.iter().position(|(spins_on, ..)| *spins_on == core);
        let at = match (known, self.rungs) {
            (Some(at), _) => at,
            (None, None) => return Err("no rung is left for the scheduler of a lane".to_owned()),
            (None, Some(rungs)) => {
                let place = Place { core, rung: rungs.switcher, spins: true };
                let started = Scheduler::start(place, || None, self.companion.take());
                let scheduler = started.map_err(|err| no_place(core, &err))?;
                self.dedicated.push((core, scheduler, Vec::new()));
                self.rise(&rungs.switcher);
                self.dedicated.len() - 1
            }
        };
        let (_, scheduler, lanes) = &mut self.dedicated[at];
        lanes.push(id);
        match scheduler.postbox.tell(Order::Open(Box::new(lane))) {
            true => Ok(scheduler),
            false => Err("the scheduler of a lane does not answer".to_owned()),
        }
    }

    /// Puts the calling thread, which manages the tasks, beside the schedulers that spin: they let it run when it has work.
    /// Where they have the only unmanaged core it would otherwise wait a second for each of its steps.
    fn rise(&mut self, rung: &SchedAttr) {
        if self.before.is_none() {
            self.before = own::attr().ok().filter(|_| own::set_attr(rung).is_ok());
        }
    }

    /// Ends the switches of a lane; its threads stay on their rungs until the engine gives them back.
    pub fn close(&mut self, id: TaskId) {
        if let Some(at) = self.shared.iter().position(|(lane, _)| *lane == id) {
            self.shared.swap_remove(at).1.close(id);
        }
        let Some(at) = self.dedicated.iter().position(|(.., lanes)| lanes.contains(&id)) else {
            return;
        };
        let (core, scheduler, mut lanes) = self.dedicated.swap_remove(at);
        lanes.retain(|lane| *lane != id);
        let left = scheduler.close(id);
        debug_assert_eq!(left.is_none(), lanes.is_empty(), "a scheduler ends with its last lane");
        if let Some(scheduler) = left {
            self.dedicated.push((core, scheduler, lanes));
        }
        if self.dedicated.is_empty()
            && let Some(before) = self.before.take()
            && let Err(err) = own::set_attr(&before)
        {
            tracing::warn!("the thread that manages tasks stays on its rung: {err}");
        }
    }
}

fn no_place(core: CoreId, err: &std::io::Error) -> String {
    format!("the scheduler on core {core} cannot have its rung: {err}")
}

/// Starts the programs that are members, each stopped before its first instruction, in the order of the members.
///
/// # Errors
/// Names the member.
pub fn launch(request: &LaneRequest) -> Result<Vec<Launched>, String> {
    let mut programs: Vec<Launched> = Vec::new();
    for member in &request.members {
        let MemberSource::Command(command) = &member.source else { continue };
        let launch = Launch {
            command: vec!["sh".into(), "-c".into(), command.clone()],
            cwd: None,
            env: Vec::new(),
            output: None,
        };
        match Launched::spawn(&launch) {
            Ok(program) => programs.push(program),
            Err(err) => {
                for program in &mut programs {
                    program.end(&Vec::new);
                }
                return Err(format!("member {}: cannot start `{command}`: {err}", member.name));
            }
        }
    }
    Ok(programs)
}

/// Has the engine follow the members of a lane. `programs` are those of [`launch`]. Returns the processes.
///
/// # Errors
/// Names the member, and the thread that cannot be on the lane.
pub fn watch(
    id: TaskId,
    request: &LaneRequest,
    programs: &[Launched],
    engine: &Postbox<Command>,
) -> Result<Vec<i32>, String> {
    let mut launched = programs.iter().map(Launched::pid);
    let mut processes = Vec::new();
    for (at, member) in request.members.iter().enumerate() {
        let process = match member.source {
            MemberSource::Command(_) => launched.next(),
            MemberSource::Process(pid) => Some(pid),
            MemberSource::Thread(_) => None,
        };
        let threads = || match (process, &member.source) {
            (Some(pid), _) => procs::threads(pid),
            (None, MemberSource::Thread(tid)) => Ok(vec![procs::thread(*tid)?]),
            (None, _) => Ok(Vec::new()),
        };
        let watch = |new: &[ThreadRef]| {
            let new = new.to_vec();
            engine.call(|reply| Command::WatchMember(id, at as u8, new, reply)).map_err(no_answer)
        };
        let found = watch_member(threads, watch)
            .map_err(|what| format!("member {}: {what}", member.name))?;
        processes.extend(found.first().map(|thread| thread.tgid.0));
    }
    Ok(processes)
}

fn watch_member(
    threads: impl Fn() -> std::io::Result<Vec<ThreadRef>>,
    watch: impl Fn(&[ThreadRef]) -> Result<Vec<String>, String>,
) -> Result<Vec<ThreadRef>, String> {
    let mut known: Vec<ThreadRef> = Vec::new();
    for _ in 0..LOOKS {
        let mut new = threads().map_err(|err| format!("it is gone: {err}"))?;
        new.retain(|thread| !known.contains(thread));
        if new.is_empty() {
            break;
        }
        if let Some(problem) = watch(&new)?.into_iter().next() {
            return Err(problem);
        }
        known.extend(new);
    }
    Ok(known)
}
