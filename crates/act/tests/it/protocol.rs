//! Every interleaving of a daemon, its journal, two guardians, a later command and an administrator, with death
//! possible between any two steps.
//!
//! The model takes its decisions with the functions that the real code takes them with
//! ([`quell_act::protocol`]). It knows one value on the host, which is enough: slots do not touch each
//! other. A step is what nothing can come in between of: one store to the journal, one read or write of the
//! host, one lock operation.

use quell_act::protocol::{
    BeforeWrite, Restore, TakeoverStep, TakeoverView, before_write, free_entry, restore_decision,
    takeover_step,
};
use stateright::{Checker, Model, Property};

/// A value on the host. As found: 0. Quell writes 1 to 9, the administrator 10 and more.
type Value = u8;

const AS_FOUND: Value = 0;
const ADMIN: Value = 10;
/// The second value of a thread that is lent.
const SECOND: Value = 9;

/// How many times the daemon writes and the scheduler of a lane switches. Both at their highest would be too many states.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    writes: u8,
    switches: u8,
}

const WITHOUT_LANE: Bounds = Bounds { writes: 3, switches: 0 };
const WITH_LANE: Bounds = Bounds { writes: 2, switches: 2 };

/// How many times each of these may happen.
const ADMIN_WRITES: u8 = 2;
const RESPAWNS: u8 = 1;
const COMMANDS: u8 = 2;

/// The journal's one slot. An entry is `None` while it is being filled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Slot {
    original: Value,
    wrote: [Option<Value>; 2],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Daemon {
    Idle,
    /// The host showed what was believed.
    Looked,
    /// The entry to be filled is invalid.
    Emptied(usize),
    /// The entry is filled.
    Recorded(usize),
    /// The host is changed.
    Written(usize),
    /// Lends the thread: the entry for the second value is invalid.
    LendEmptied(usize),
    /// The entry for the second value is filled.
    LendRecorded(usize),
    /// Is to end: takes the switch handle back once no switch is under way.
    Revoking,
    /// Ends: has the lock.
    Closing(Restorer),
    Gone,
}

/// The scheduler of a lane, a thread of the daemon: dies and stops with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Switcher {
    /// Has no handle, or one that is revoked.
    Without,
    /// May switch from the first of these values to the second.
    Idle([Value; 2]),
    /// Has read the host, and is in the call that writes.
    Switching([Value; 2]),
}

/// Where somebody who restores is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Restorer {
    /// Has the lock, has read nothing.
    Begins,
    /// Has read the host and decided to write, or not.
    Decided {
        write: bool,
        seen: Value,
    },
    Restored,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Guardian {
    Watches,
    /// Has sent the signal.
    Killed,
    Restores(Restorer),
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Who {
    Daemon,
    /// Guardians 0 and 1; 2 is a later command.
    Guardian(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    host: Value,
    slot: Option<Slot>,
    closed: bool,
    lock: Option<Who>,
    daemon: Daemon,
    /// Hangs: takes no step, may go on at any time, its heartbeat is old.
    stopped: bool,
    /// The kernel will end it; until then it may still take the step that it is in.
    dying: bool,
    believed: Value,
    shown: Option<usize>,
    switcher: Switcher,
    restorers: [Guardian; 3],
    // What is left of the bounds.
    writes: u8,
    switches: u8,
    admin_writes: u8,
    respawns: u8,
    commands: u8,
    stops: u8,
    // What the properties are about.
    /// What the host has to be in the end.
    due: Value,
    /// The administrator came between a read and the write that it led to. No kernel call compares and
    /// swaps, so that change is lost.
    raced: bool,
    two_writers: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Action {
    Step(Who),
    /// The daemon lends the thread to its lane's scheduler.
    Lend,
    /// The scheduler of the lane takes a step.
    Switch,
    Kill(Who),
    /// The kernel carries out a kill.
    End,
    Stop,
    Continue,
    Administer,
    Respawn(usize),
    Command,
    /// The daemon is asked to end.
    Close,
}

/// A mistake to find: a checker that finds none proves nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    None,
    /// A guardian does not wait for the daemon's end.
    NoWait,
    /// The entry that the host shows is overwritten.
    OverwritesShown,
    /// The host is changed before the journal.
    WritesFirst,
    /// Whatever the host shows, the original is written.
    RestoresBlindly,
    /// Nobody takes the lock.
    NoLock,
    /// A foreign value is overwritten without becoming the original.
    NoRebase,
    /// A thread is lent although only one of its values is journaled.
    LendsUnrecorded,
    /// The daemon restores while the scheduler of the lane may still switch.
    RestoresBeforeRevoke,
}

struct Protocol {
    mistake: Mistake,
    bounds: Bounds,
}

impl State {
    fn new(bounds: Bounds) -> State {
        State {
            host: AS_FOUND,
            slot: None,
            closed: false,
            lock: None,
            daemon: Daemon::Idle,
            stopped: false,
            dying: false,
            believed: AS_FOUND,
            shown: None,
            switcher: Switcher::Without,
            restorers: [Guardian::Watches, Guardian::Watches, Guardian::Gone],
            writes: bounds.writes,
            switches: bounds.switches,
            admin_writes: ADMIN_WRITES,
            respawns: RESPAWNS,
            commands: COMMANDS,
            stops: 1,
            due: AS_FOUND,
            raced: false,
            two_writers: false,
        }
    }

    fn guarded(&self) -> bool {
        self.restorers[..2].iter().all(|guardian| *guardian != Guardian::Gone)
    }

    fn restoring(&self) -> usize {
        let of_guardians = self.restorers.iter().filter(
            |guardian| matches!(guardian, Guardian::Restores(at) if *at != Restorer::Restored),
        );
        of_guardians.count()
    }

    /// A write to the host, by somebody who expects it to show `seen`.
    fn write(&mut self, who: Who, value: Value, seen: Value) {
        self.raced |= self.host != seen;
        self.host = value;
        let daemon_lives = self.daemon != Daemon::Gone;
        let by_guardian = who != Who::Daemon;
        self.two_writers |= by_guardian && daemon_lives || self.restoring() > 1;
        self.two_writers |= who == Who::Daemon && self.restoring() > 0;
        // Its lane's scheduler beside its own restore.
        let switches = matches!(self.switcher, Switcher::Switching(_));
        self.two_writers |= switches && matches!(self.daemon, Daemon::Closing(_));
    }

    fn die(&mut self, who: Who) {
        match who {
            Who::Daemon => {
                self.daemon = Daemon::Gone;
                self.switcher = Switcher::Without;
                (self.stopped, self.dying) = (false, false);
            }
            Who::Guardian(at) => self.restorers[at] = Guardian::Gone,
        }
        if self.lock == Some(who) {
            self.lock = None;
        }
    }
}

impl Protocol {
    fn step_daemon(&self, state: &mut State) -> Option<()> {
        let wanted = self.bounds.writes - state.writes + 1;
        match state.daemon {
            Daemon::Idle => {
                // The gate, and a bound. A thread that is lent is switched and not written.
                let lent = state.switcher != Switcher::Without;
                if !state.guarded() || state.writes == 0 || lent {
                    return None;
                }
                match before_write(&state.believed, &state.host, |a, b| a == b) {
                    BeforeWrite::Rebase if self.mistake != Mistake::NoRebase => {
                        if let Some(slot) = &mut state.slot {
                            slot.original = state.host;
                        }
                        state.believed = state.host;
                        state.shown = None;
                    }
                    _ => {
                        state.believed = state.host;
                        state.daemon = Daemon::Looked;
                    }
                }
            }
            Daemon::Looked => {
                let mut entry = free_entry(state.shown);
                if self.mistake == Mistake::OverwritesShown {
                    entry = state.shown.unwrap_or(0);
                }
                if self.mistake == Mistake::WritesFirst {
                    state.write(Who::Daemon, wanted, state.believed);
                }
                if let Some(slot) = &mut state.slot {
                    slot.wrote[entry] = None;
                }
                state.daemon = Daemon::Emptied(entry);
            }
            Daemon::Emptied(entry) => {
                let original = state.believed;
                let slot = state.slot.get_or_insert(Slot { original, wrote: [None, None] });
                slot.wrote[entry] = Some(wanted);
                state.daemon = Daemon::Recorded(entry);
            }
            Daemon::Recorded(entry) => {
                if self.mistake != Mistake::WritesFirst {
                    state.write(Who::Daemon, wanted, state.believed);
                }
                state.daemon = Daemon::Written(entry);
            }
            Daemon::Written(entry) => {
                (state.shown, state.believed) = (Some(entry), wanted);
                state.writes -= 1;
                state.daemon = Daemon::Idle;
            }
            Daemon::LendEmptied(entry) => {
                if self.mistake != Mistake::LendsUnrecorded {
                    state.slot.as_mut()?.wrote[entry] = Some(SECOND);
                }
                state.daemon = Daemon::LendRecorded(entry);
            }
            Daemon::LendRecorded(_) => {
                state.switcher = Switcher::Idle([state.believed, SECOND]);
                state.daemon = Daemon::Idle;
            }
            Daemon::Revoking => {
                if matches!(state.switcher, Switcher::Switching(_))
                    && self.mistake != Mistake::RestoresBeforeRevoke
                {
                    return None;
                }
                if self.mistake != Mistake::RestoresBeforeRevoke {
                    state.switcher = Switcher::Without;
                }
                state.lock = Some(Who::Daemon);
                state.daemon = Daemon::Closing(Restorer::Begins);
            }
            Daemon::Closing(at) => {
                let next = self.step_restorer(state, Who::Daemon, at);
                state.daemon = next.map_or(Daemon::Gone, Daemon::Closing);
            }
            Daemon::Gone => return None,
        }
        Some(())
    }

    /// One step of the lane's scheduler: it looks, and then writes the other value if the host shows what it believes.
    fn step_switcher(&self, state: &mut State) -> Option<()> {
        match state.switcher {
            Switcher::Idle(values) => {
                state.switches = state.switches.checked_sub(1)?;
                if !state.guarded() || state.host != values[0] {
                    return None;
                }
                state.switcher = Switcher::Switching(values);
            }
            Switcher::Switching([from, to]) => {
                state.write(Who::Daemon, to, from);
                state.switcher = Switcher::Idle([to, from]);
            }
            Switcher::Without => return None,
        }
        Some(())
    }

    /// One step of whoever has the lock. `None`: closed and unlocked.
    fn step_restorer(&self, state: &mut State, who: Who, at: Restorer) -> Option<Restorer> {
        match at {
            Restorer::Begins => {
                let seen = state.host;
                let write = match (&state.slot, self.mistake) {
                    (None, _) => false,
                    (Some(_), Mistake::RestoresBlindly) => true,
                    (Some(slot), _) => {
                        let wrote = slot.wrote.iter().flatten();
                        restore_decision(&slot.original, wrote, &seen, |a, b| a == b)
                            == Restore::Write
                    }
                };
                Some(Restorer::Decided { write, seen })
            }
            Restorer::Decided { write, seen } => {
                if let (true, Some(slot)) = (write, state.slot) {
                    state.write(who, slot.original, seen);
                }
                Some(Restorer::Restored)
            }
            Restorer::Restored => {
                state.closed = true;
                if state.lock == Some(who) {
                    state.lock = None;
                }
                None
            }
        }
    }

    fn step_guardian(&self, state: &mut State, place: usize) -> Option<()> {
        let who = Who::Guardian(place);
        if let Guardian::Restores(at) = state.restorers[place] {
            let next = self.step_restorer(state, who, at);
            state.restorers[place] = next.map_or(Guardian::Gone, Guardian::Restores);
            return Some(());
        }
        let killed = state.restorers[place] == Guardian::Killed;
        let view = TakeoverView {
            closed: state.closed,
            daemon_gone: state.daemon == Daemon::Gone
                || (killed && self.mistake == Mistake::NoWait),
            daemon_stale: state.stopped,
            locked: false,
        };
        match takeover_step(&view) {
            TakeoverStep::Watch => return None,
            // Waiting is no step.
            TakeoverStep::Kill if killed => return None,
            TakeoverStep::Kill => {
                state.dying = true;
                state.restorers[place] = Guardian::Killed;
            }
            TakeoverStep::Lock => {
                if state.lock.is_some() && self.mistake != Mistake::NoLock {
                    return None;
                }
                state.lock = Some(who);
                // With the lock it looks again.
                let step = takeover_step(&TakeoverView { locked: true, ..view });
                assert_eq!(step, TakeoverStep::Restore);
                state.restorers[place] = Guardian::Restores(Restorer::Begins);
            }
            TakeoverStep::Leave => state.restorers[place] = Guardian::Gone,
            TakeoverStep::Restore => unreachable!("not locked"),
        }
        Some(())
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(self.bounds)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let guardians = (0..3).filter(|at| state.restorers[*at] != Guardian::Gone);
        let daemon = (state.daemon != Daemon::Gone).then_some(Who::Daemon);
        let everybody = daemon.into_iter().chain(guardians.map(Who::Guardian));
        for who in everybody {
            actions.extend([Action::Step(who), Action::Kill(who)]);
        }
        actions.extend([Action::End, Action::Stop, Action::Continue, Action::Administer]);
        actions.extend([Action::Respawn(0), Action::Respawn(1), Action::Command, Action::Close]);
        if self.bounds.switches > 0 {
            actions.extend([Action::Lend, Action::Switch]);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut state = last.clone();
        match action {
            Action::Step(Who::Daemon) => {
                // A dying process may complete the call that it is in, and begins no other.
                let in_call = matches!(
                    state.daemon,
                    Daemon::Recorded(_) | Daemon::Closing(Restorer::Decided { .. })
                );
                if state.dying && !in_call || state.stopped && !state.dying {
                    return None;
                }
                self.step_daemon(&mut state)?;
            }
            Action::Lend => {
                let may = state.daemon == Daemon::Idle && !state.stopped && !state.dying;
                let lent = state.switcher != Switcher::Without;
                // What the host shows has to be Quell's, or there is nothing to switch from.
                if !may || lent || !state.guarded() || state.shown.is_none() {
                    return None;
                }
                let entry = free_entry(state.shown);
                state.slot.as_mut()?.wrote[entry] = None;
                state.daemon = Daemon::LendEmptied(entry);
            }
            Action::Switch => {
                let in_call = matches!(state.switcher, Switcher::Switching(_));
                if state.dying && !in_call || state.stopped && !state.dying {
                    return None;
                }
                self.step_switcher(&mut state)?;
            }
            Action::Step(Who::Guardian(at)) => self.step_guardian(&mut state, at)?,
            Action::Kill(who) => state.die(who),
            Action::End => {
                if !state.dying {
                    return None;
                }
                state.die(Who::Daemon);
            }
            Action::Stop => {
                if state.stops == 0 || state.daemon == Daemon::Gone {
                    return None;
                }
                (state.stops, state.stopped) = (state.stops - 1, true);
            }
            Action::Continue => {
                if !state.stopped {
                    return None;
                }
                state.stopped = false;
            }
            Action::Administer => {
                state.admin_writes = state.admin_writes.checked_sub(1)?;
                state.host = ADMIN + state.admin_writes;
                state.due = state.host;
            }
            Action::Respawn(at) => {
                let alive = state.daemon == Daemon::Idle && !state.stopped && !state.dying;
                if !alive || state.restorers[at] != Guardian::Gone {
                    return None;
                }
                state.respawns = state.respawns.checked_sub(1)?;
                state.restorers[at] = Guardian::Watches;
            }
            Action::Command => {
                let all_gone = state.daemon == Daemon::Gone
                    && state.restorers.iter().all(|at| *at == Guardian::Gone);
                if !all_gone || state.closed {
                    return None;
                }
                // The last one is let live: somebody has to.
                state.commands = state.commands.saturating_sub(1);
                state.restorers[2] = Guardian::Watches;
            }
            Action::Close => {
                let may = state.daemon == Daemon::Idle && !state.stopped && !state.dying;
                if !may || state.lock.is_some() {
                    return None;
                }
                state.daemon = Daemon::Revoking;
            }
        }
        if action == Action::Kill(Who::Guardian(2)) && state.commands == 0 {
            return None;
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("never two writers", |_, state: &State| !state.two_writers),
            Property::always("closed means restored", |_, state: &State| {
                !state.closed || state.raced || state.host == state.due
            }),
            Property::always("nothing of Quell's is left", |_, state: &State| {
                !state.closed || state.host == AS_FOUND || state.host >= ADMIN
            }),
            Property::eventually("restored in the end", |_, state: &State| state.closed),
            Property::sometimes("a guardian restores", |_, state: &State| {
                matches!(state.restorers[1], Guardian::Restores(Restorer::Restored))
            }),
            Property::sometimes("a command restores", |_, state: &State| {
                matches!(state.restorers[2], Guardian::Restores(Restorer::Restored))
            }),
            Property::sometimes("a foreign value stays", |_, state: &State| {
                state.closed && !state.raced && state.host >= ADMIN
            }),
        ];
        if self.bounds.switches > 0 {
            properties.push(Property::sometimes(
                "a switched thread is restored",
                |model: &Protocol, state: &State| {
                    let switched = state.switches < model.bounds.switches;
                    state.closed && !state.raced && switched && state.host == AS_FOUND
                },
            ));
        }
        properties
    }
}

fn check(mistake: Mistake, bounds: Bounds) -> impl Checker<Protocol> {
    Protocol { mistake, bounds }.checker().threads(2).spawn_bfs().join()
}

#[test]
fn death_between_any_two_steps_leaves_the_host_as_it_was() {
    for bounds in [WITHOUT_LANE, WITH_LANE] {
        let checked = check(Mistake::None, bounds);
        checked.assert_properties();
        assert!(checked.is_done());
        println!("{bounds:?}: {} states", checked.unique_state_count());
    }
}

#[test]
fn each_safeguard_is_needed() {
    for (mistake, bounds) in [
        (Mistake::NoWait, WITHOUT_LANE),
        (Mistake::OverwritesShown, WITHOUT_LANE),
        (Mistake::WritesFirst, WITHOUT_LANE),
        (Mistake::RestoresBlindly, WITHOUT_LANE),
        (Mistake::NoLock, WITHOUT_LANE),
        (Mistake::NoRebase, WITHOUT_LANE),
        (Mistake::LendsUnrecorded, WITH_LANE),
        (Mistake::RestoresBeforeRevoke, WITH_LANE),
    ] {
        let found = check(mistake, bounds).discoveries();
        let broken = ["never two writers", "closed means restored", "nothing of Quell's is left"];
        assert!(
            broken.iter().any(|property| found.contains_key(property)),
            "{mistake:?} goes unnoticed"
        );
    }
}
