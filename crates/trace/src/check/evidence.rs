//! What happened around a violation: evidence first, then the label that it supports.

use std::collections::{BTreeMap, VecDeque};

use quell_model::{
    Core, CoreId, CoreSet, Event, Meta, MoveCause, Nanos, ThreadName, Topology, What,
};
use serde::{Deserialize, Serialize};

use super::cause::Cause;
use super::changes::BusyWakeup;
use super::domains::Domains;
use super::facts::compares_means;
use super::passes;
use crate::host::{HostCore, HostState, Occupant};

/// Moves that are remembered one by one.
const MOVES_KEPT: usize = 1024;
/// Moves that a report lists one by one.
const MOVES_LISTED: usize = 16;
/// What has happened so far; evidence is the difference of two of these.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Totals {
    moves: [u64; MoveCause::ALL.len()],
    /// Passes of the balancer on idle cores, and on others.
    passes: [u64; 2],
    /// The same as softirqs.
    softirqs: [u64; 2],
    /// Wake-ups onto this queue's core while another one of the same cache idled, or only others.
    pub(super) busy_wakeups: [u64; 2],
    forks: u64,
    execs: u64,
    exits: u64,
    stolen: Nanos,
}

/// A thread that went from one core's queue to another's.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Move {
    /// When, in nanoseconds.
    pub at_ns: u64,
    /// Which thread.
    pub thread: i32,
    /// Its name.
    pub name: String,
    /// From this core.
    pub from: CoreId,
    /// To this core.
    pub to: CoreId,
    /// Who moved it.
    pub cause: MoveCause,
}

/// The load of a group of cores, as averages and as the paper's remedy (the minimum) sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupLoad {
    /// The group.
    pub cores: CoreSet,
    /// Mean of its cores' load averages.
    pub mean: u64,
    /// The least of them.
    pub minimum: u64,
}

/// What happened meanwhile.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Evidence {
    /// Migrations of threads between queues, on the whole host, by cause.
    #[serde(rename = "migrations")]
    pub moves: BTreeMap<MoveCause, u64>,
    /// The last migrations to or from the queue of the violation.
    #[serde(rename = "migrations_here")]
    pub moves_here: Vec<Move>,
    /// Wake-ups onto this core while it was busy, although a core in the same last-level cache was idle and allowed.
    pub busy_wakeups_inside_llc: u64,
    /// Wake-ups onto this core while it was busy, although a core was idle and allowed, and only outside that cache.
    pub busy_wakeups_outside_llc: u64,
    /// Passes of the load balancer on idle cores; null when the source does not tell passes.
    pub balance_passes_on_idle: Option<u64>,
    /// Passes on other cores; null as above.
    pub balance_passes_elsewhere: Option<u64>,
    /// Threads born, programs begun, threads ended.
    pub forks: u64,
    /// See `forks`.
    pub execs: u64,
    /// See `forks`.
    pub exits: u64,
    /// Time that the hypervisor took from the host's cores, in milliseconds.
    pub stolen_ms: f64,
    /// Threads in each core's queue when the violation was found, the running one included.
    pub queues: BTreeMap<CoreId, u32>,
    /// The cores that balance with the violation's core: the span of its top domain; null when not known.
    pub domain: Option<CoreSet>,
    /// The scheduling group of an idle core at the lowest level that it shares with the waiter's core, where it is another
    /// than the waiter's. Its node or last-level cache where groups are not known.
    pub idle_group: Option<GroupLoad>,
    /// The waiter's group then.
    pub busy_group: Option<GroupLoad>,
}

/// A migration that is remembered.
#[derive(Clone, Copy, Debug)]
struct LoggedMove {
    at: Nanos,
    tid: i32,
    name: ThreadName,
    from: CoreId,
    to: CoreId,
    cause: MoveCause,
}

/// Remembers what may become evidence, in bounded memory.
#[derive(Clone, Debug)]
pub(super) struct Log {
    totals: Totals,
    moves: VecDeque<LoggedMove>,
    /// The kernel compares means of groups beside an idle core ([`compares_means`]).
    pub(super) compares_means: bool,
    passes_told: bool,
    softirqs_told: bool,
    /// By core index: wake-ups onto it while it was busy, as in [`Totals`].
    busy_wakeups: Vec<[u64; 2]>,
    /// The cores that share a last-level cache with each core, by its index.
    llc: Vec<CoreSet>,
}

impl Log {
    pub(super) fn new(meta: &Meta) -> Log {
        let cores = meta.topology.cores();
        let llc = |core: &Core| {
            let sharing = cores.iter().filter(|other| other.llc == core.llc);
            sharing.map(|other| other.id).collect()
        };
        Log {
            totals: Totals::default(),
            moves: VecDeque::new(),
            compares_means: compares_means(&meta.kernel),
            passes_told: false,
            softirqs_told: false,
            busy_wakeups: vec![[0; 2]; cores.len()],
            llc: cores.iter().map(llc).collect(),
        }
    }

    /// What has happened so far, seen from one core's queue.
    pub(super) fn totals(&self, on: Option<usize>) -> Totals {
        let busy_wakeups = on.map(|on| self.busy_wakeups[on]).unwrap_or_default();
        Totals { busy_wakeups, ..self.totals }
    }

    /// What has happened so far, of the whole host.
    pub(super) fn host_totals(&self) -> &Totals {
        &self.totals
    }

    /// Takes an event before the host does.
    pub(super) fn event(&mut self, at: Nanos, event: &Event, host: &HostState) {
        match &event.what {
            What::Switch { stolen, .. } => self.totals.stolen += *stolen,
            What::Migrate { thread, from, to, cause } => {
                self.totals.moves[*cause as usize] += 1;
                if self.moves.len() == MOVES_KEPT {
                    self.moves.pop_front();
                }
                let name = host.thread_by_tid(*thread).map(|thread| thread.comm());
                self.moves.push_back(LoggedMove {
                    at,
                    tid: *thread,
                    name: name.unwrap_or_default(),
                    from: *from,
                    to: *to,
                    cause: *cause,
                });
            }
            What::Softirq { vector: What::BALANCER, begins } => {
                self.softirqs_told = true;
                let is_elsewhere = !host.idle().contains(event.core);
                self.totals.softirqs[usize::from(is_elsewhere)] += u64::from(*begins);
            }
            What::Pass(pass) => {
                self.passes_told = true;
                self.totals.passes[usize::from(!passes::is_of_idle_core(pass))] += 1;
            }
            What::Fork { .. } => self.totals.forks += 1,
            What::Exec { .. } => self.totals.execs += 1,
            What::Exit { .. } => self.totals.exits += 1,
            _ => {}
        }
    }

    /// Counts a wake-up onto a busy core although others were idle and allowed.
    pub(super) fn busy_wakeup(&mut self, wakeup: &BusyWakeup) {
        let is_outside = self.cause_of(wakeup) == Cause::WokenOutsideLlc;
        if let Some(counts) = self.busy_wakeups.get_mut(wakeup.onto) {
            counts[usize::from(is_outside)] += 1;
        }
    }

    /// Where the idle cores of such a wake-up are.
    pub(super) fn cause_of(&self, wakeup: &BusyWakeup) -> Cause {
        let shared = self.llc.get(wakeup.onto).copied().unwrap_or_default();
        match wakeup.idle.is_disjoint(&shared) {
            true => Cause::WokenOutsideLlc,
            false => Cause::WokenInsideLlc,
        }
    }

    /// What happened since `before`, seen from one core's queue.
    pub(super) fn since(&self, before: &Totals, from: Nanos, on: &HostCore) -> Evidence {
        let (now, on) = (&self.totals(Some(on.index)), on.id);
        let here = |moved: &&LoggedMove| moved.at >= from && (moved.from == on || moved.to == on);
        let latest = self.moves.iter().rev().filter(here).take(MOVES_LISTED);
        let mut moves_here: Vec<Move> = latest.map(LoggedMove::listed).collect();
        moves_here.reverse();
        let [inside, outside] =
            std::array::from_fn(|at| now.busy_wakeups[at] - before.busy_wakeups[at]);
        let passes = |at: usize| match (self.passes_told, self.softirqs_told) {
            (true, _) => Some(now.passes[at] - before.passes[at]),
            (_, true) => Some(now.softirqs[at] - before.softirqs[at]),
            _ => None,
        };
        Evidence {
            moves: self.moves_since(now, before),
            moves_here,
            busy_wakeups_inside_llc: inside,
            busy_wakeups_outside_llc: outside,
            balance_passes_on_idle: passes(0),
            balance_passes_elsewhere: passes(1),
            forks: now.forks - before.forks,
            execs: now.execs - before.execs,
            exits: now.exits - before.exits,
            stolen_ms: (now.stolen - before.stolen).0 as f64 / 1e6,
            ..Evidence::default()
        }
    }

    /// Moves between two instants, by cause.
    pub(super) fn moves_since(&self, now: &Totals, before: &Totals) -> BTreeMap<MoveCause, u64> {
        let counts = now.moves.iter().zip(before.moves).map(|(now, before)| now - before);
        MoveCause::ALL.into_iter().zip(counts).filter(|(_, count)| *count > 0).collect()
    }

    /// Adds how the host looks now: queues, and the loads of the groups of an idle core and of the waiter's.
    pub(super) fn look(
        &self,
        evidence: &mut Evidence,
        (host, domains): (&HostState, &Domains),
        idle: CoreId,
        on: CoreId,
    ) {
        let queue = |core: &HostCore| {
            let running = match host.occupant(core.index) {
                Occupant::Unknown => return None,
                Occupant::Idle => 0,
                Occupant::Thread(_) => 1,
            };
            Some((core.id, core.waiting + running))
        };
        evidence.queues = host.cores().iter().filter_map(queue).collect();
        let shown = host.core(on).and_then(|core| core.domain);
        evidence.domain = domains.reach(on).copied().or(shown);
        let own = || (self.group(host.topology(), idle), self.group(host.topology(), on));
        let (idle, busy) = domains.groups(idle, on).unwrap_or_else(own);
        if idle != busy {
            evidence.idle_group = group_load(host, idle);
            evidence.busy_group = group_load(host, busy);
        }
    }

    /// The core's node, or its last-level cache where there is but one node.
    fn group(&self, topology: &Topology, core: CoreId) -> CoreSet {
        let cores = topology.cores();
        let Some(at) = topology.position(core) else { return CoreSet::EMPTY };
        let node = cores[at].node;
        if cores.iter().all(|other| other.node == node) {
            return self.llc[at];
        }
        cores.iter().filter(|other| other.node == node).map(|other| other.id).collect()
    }
}

impl LoggedMove {
    fn listed(&self) -> Move {
        Move {
            at_ns: self.at.0,
            thread: self.tid,
            name: self.name.to_string(),
            from: self.from,
            to: self.to,
            cause: self.cause,
        }
    }
}

fn group_load(host: &HostState, cores: CoreSet) -> Option<GroupLoad> {
    let loads = || cores.iter().filter_map(|core| host.core(core)).map(|core| core.load_avg);
    let count = loads().count() as u64;
    // Averages may come from a file.
    let sum = loads().fold(0, u64::saturating_add);
    Some(GroupLoad { cores, mean: sum.checked_div(count)?, minimum: loads().min()? })
}
