//! Records who has each core, whom the threads of some processes wake up, and when interrupts run.
//!
//! For one who asks why something was slow. The programs of `bpf/transitions.bpf.c` write each transition of
//! the host into one ring, some 150 ns each; nobody is woken for it. What finds the ring full is counted.

use std::sync::{Arc, Mutex, PoisonError};

use libbpf_rs::{Link, MapHandle, Object, RingBuffer};
use quell_model::{
    CoreEvent, CoreId, Left, Nanos, Rank, Runner, ThreadName, Transition, Transitions,
};

use super::bpf::object::{self, refused};
use super::{ObserveError, topology};
use crate::{Tid, clock};

static CODE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/transitions.bpf.o"));
const SOURCE: &str = "bpf/transitions.bpf.c";

/// `QUELL_PROCESSES`: processes whose wake-ups can be recorded.
pub const PROCESSES_MAX: usize = 16;
/// The size of `struct transition`.
const BYTES: usize = 56;

/// Records from when it is made until it is dropped.
pub struct Recorder {
    ring: RingBuffer<'static>,
    inbox: Arc<Mutex<Vec<Transition>>>,
    lost: MapHandle,
    _links: Vec<Link>,
    _object: Object,
}

impl Recorder {
    /// Begins to record, into a ring of so many bytes (a power of two): between two calls of
    /// [`Recorder::drain`] it has to hold 56 bytes a transition, 10 MB a second on two busy cores.
    ///
    /// # Errors
    /// More than [`PROCESSES_MAX`] processes, or the kernel refuses.
    pub fn start(processes: &[Tid], ring_bytes: usize) -> Result<Recorder, ObserveError> {
        if processes.len() > PROCESSES_MAX {
            let what = format!("wake-ups of {PROCESSES_MAX} processes at most can be recorded");
            return Err(object::broken(SOURCE, what));
        }
        let mut open = object::open("transitions", CODE)?;
        let possible = topology::possible()?.iter().last().map_or(1, |core| core.index() + 1);
        object::size(&mut open, "steals", possible)?;
        object::size(&mut open, "transitions", ring_bytes.next_power_of_two())?;
        let chosen: Vec<u8> =
            processes.iter().flat_map(|process| process.0.to_ne_bytes()).collect();
        object::constants(&mut open, &chosen)?;
        let loaded = open.load().map_err(|error| refused("loading the BPF programs", &error))?;
        let inbox = Arc::new(Mutex::new(Vec::new()));
        let ring = object::ring(&object::map(&loaded, "transitions")?, {
            let to = Arc::clone(&inbox);
            move |bytes| to.lock().unwrap_or_else(PoisonError::into_inner).extend(parse(bytes))
        })?;
        let lost = object::map(&loaded, "lost")?;
        let links = object::attach(&loaded)?;
        Ok(Recorder { ring, inbox, lost, _links: links, _object: loaded })
    }

    /// What was recorded since the last call, in the order of time but for neighbours on different cores.
    pub fn drain(&mut self) -> Vec<Transition> {
        // An error would be one of the closure's, which has none.
        let _ = self.ring.consume();
        std::mem::take(&mut *self.inbox.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How many transitions found the ring full since the start.
    pub fn lost(&self) -> u64 {
        object::counter(&self.lost)
    }
}

/// Transitions that a [`Recording`] holds at most: some 400 MB, a minute and more of two busy cores.
const HELD_MAX: usize = 8 << 20;
/// The ring of a [`Recording`]: seconds of two busy cores.
const RING_BYTES: usize = 64 << 20;

/// A recorder with what it recorded so far.
pub struct Recording {
    recorder: Recorder,
    processes: Vec<Tid>,
    from: Nanos,
    held: Vec<Transition>,
}

impl Recording {
    /// Begins to record.
    ///
    /// # Errors
    /// As [`Recorder::start`].
    pub fn start(processes: &[Tid]) -> Result<Recording, ObserveError> {
        let recorder = Recorder::start(processes, RING_BYTES)?;
        let from = clock::now();
        Ok(Recording { recorder, processes: processes.to_vec(), from, held: Vec::new() })
    }

    /// Takes over what is in the ring. To be called every second or so; in a short run not at all, so that
    /// nothing is disturbed.
    pub fn collect(&mut self) {
        if !self.is_full() {
            self.held.append(&mut self.recorder.drain());
        }
    }

    /// Whether no more is taken over.
    pub fn is_full(&self) -> bool {
        self.held.len() >= HELD_MAX
    }

    /// Ends it.
    pub fn end(mut self) -> Transitions {
        self.collect();
        let to = self.held.last().map_or(self.from, |last| last.at);
        let lost = self.recorder.lost();
        let processes = self.processes.iter().map(|process| process.0).collect();
        Transitions { list: self.held, processes, from: self.from, to, lost }
    }
}

/// One `struct transition` of `bpf/transitions.h`.
fn parse(bytes: &[u8]) -> Option<Transition> {
    let bytes: &[u8; BYTES] = bytes.try_into().ok()?;
    let half = |at: usize| u16::from_ne_bytes([bytes[at], bytes[at + 1]]);
    let word =
        |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
    let thread = word(12) as i32;
    let runner = || Runner {
        thread,
        process: word(16) as i32,
        rank: rank(thread, half(28), half(30)),
        name: ThreadName::new(&bytes[40..]),
    };
    let event = match half(8) {
        1 => CoreEvent::Switched {
            next: runner(),
            left: word(20) as i32,
            how: left(word(24)),
            stolen: Nanos(word(32).into()),
        },
        2 => CoreEvent::Woken(runner()),
        kind @ (3 | 4) => CoreEvent::Softirq { begins: kind == 3 },
        kind @ (5 | 6) => CoreEvent::Interrupt { begins: kind == 5 },
        _ => return None,
    };
    let at = u64::from_ne_bytes(*bytes.first_chunk()?);
    Some(Transition { at: Nanos(at), core: CoreId(half(10)), event })
}

/// From the kernel's priority (include/linux/sched/prio.h) and policy (include/uapi/linux/sched.h).
pub(super) fn rank(thread: i32, priority: u16, policy: u16) -> Rank {
    match policy {
        _ if thread == 0 => Rank::NOBODY,
        1 | 2 => Rank::realtime(99u16.saturating_sub(priority) as u8),
        5 => Rank::BENEATH,
        6 => Rank::DEADLINE,
        _ => Rank::FAIR,
    }
}

/// From the state that `sched_switch` tells (include/linux/sched.h).
pub(super) fn left(state: u32) -> Left {
    const BLOCKED: u32 = 0x2;
    const STOPPED: u32 = 0x4 | 0x8;
    const DEAD: u32 = 0x10 | 0x20 | 0x80;
    match state {
        0 => Left::Preempted,
        state if state & DEAD != 0 => Left::Dead,
        state if state & STOPPED != 0 => Left::Stopped,
        state if state & BLOCKED != 0 => Left::Blocked,
        _ => Left::Sleeping,
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::Duration;

    use super::*;
    use crate::testing::host_lock;

    #[test]
    fn bytes_of_another_size_or_kind_are_left_out() {
        assert_eq!(parse(&[0; BYTES]), None);
        assert_eq!(parse(&[1; BYTES - 1]), None);
    }

    #[test]
    fn ranks_follow_policy_and_priority() {
        assert!(rank(5, 0, 1) < rank(5, 98, 2));
        assert_eq!(rank(5, 120, 0), Rank::FAIR);
        assert_eq!(rank(5, 120, 5), Rank::BENEATH);
        assert_eq!(rank(0, 120, 0), Rank::NOBODY);
    }

    #[test]
    fn each_wake_up_of_a_process_is_followed_by_the_switch_to_it() {
        let _lock = host_lock().unwrap();
        let mut program = Command::new("sh")
            .args(["-c", "while :; do sleep 0.01; done"])
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let process = Tid(program.id() as i32);
        let from = clock::now();
        let mut recorder = Recorder::start(&[process], 1 << 22).unwrap();
        let is_wake = |one: &Transition| matches!(one.event, CoreEvent::Woken(who) if who.thread == process.0);
        let mut seen = Vec::new();
        while seen.iter().filter(|one| is_wake(one)).count() <= 5 {
            assert!(clock::now().since(from) < Nanos::from_secs(20), "{seen:?}");
            std::thread::sleep(Duration::from_millis(50));
            seen.extend(recorder.drain());
        }
        let to = clock::now();
        let _ = program.kill();
        let _ = program.wait();
        assert_eq!(recorder.lost(), 0);
        assert!(seen.iter().all(|one| from <= one.at && one.at <= to));
        let own = |one: &Transition, woken: bool| match one.event {
            CoreEvent::Woken(who) => woken && who.thread == process.0,
            CoreEvent::Switched { next, .. } => !woken && next.thread == process.0,
            _ => false,
        };
        let times = |woken| {
            let own = seen.iter().filter(move |one| own(one, woken));
            own.map(|one| one.at).collect::<Vec<Nanos>>()
        };
        let (wakes, runs) = (times(true), times(false));
        for pair in wakes.windows(2) {
            assert!(
                runs.iter().any(|run| pair[0] <= *run && *run <= pair[1]),
                "{pair:?}: {runs:?}"
            );
        }
    }
}
