//! Which policy and priority a rung has on this host.
//!
//! Only the order of rungs is fixed. Where a default priority is in use already, its rung moves to a free
//! one between its neighbours: two FIFO threads of one priority wait for each other. Threads of the kernel that
//! serve devices (interrupt threads are at FIFO 50) stay above LC; those at 99 (migration, watchdog) do not count.

use std::fmt;
use std::io;

use quell_model::Rung;

use super::{Policy, SchedAttr};
use quell_os::Tid;

/// A thread under FIFO or RR that is not Quell's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InUse {
    /// Its priority.
    pub priority: u8,
    /// Its number.
    pub tid: Tid,
    /// Its name.
    pub name: String,
    /// Whether it belongs to the kernel.
    pub kernel: bool,
}

impl fmt::Display for InUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` (thread {}) at priority {}", self.name, self.tid, self.priority)
    }
}

/// Why no ladder fits.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LadderError {
    /// Each priority that a rung may have is in use.
    #[error(
        "no realtime priority is free for the rung {rung:?}: it needs one from {low} to {high}, and {clash} \
         is among those there; give that thread another priority"
    )]
    NoRoom {
        /// The rung.
        rung: Rung,
        /// The lowest priority that would do.
        low: u8,
        /// The highest.
        high: u8,
        /// One of the threads in the way.
        clash: InUse,
    },
}

/// The rungs that have a priority, highest first, with their defaults.
const DEFAULTS: [(Rung, u8); 13] = [
    (Rung::Guardian, 96),
    (Rung::Scheduler, 90),
    (Rung::Softirq, 80),
    (Rung::Switcher, 40),
    (Rung::LcReleased, 34),
    (Rung::LcBoosted, 32),
    (Rung::Lc, 30),
    (Rung::LcLong, 26),
    (Rung::LcOverflow, 20),
    (Rung::LcOverflowLong, 14),
    (Rung::Dispatcher, 10),
    (Rung::LcBackground, 3),
    (Rung::FifoLow, 2),
];

/// How the names of Quell's own threads begin.
const OWN_NAMES: &str = "quell-";

/// Priorities that do not count: the kernel's own last word.
const KERNEL_TOP: u8 = 99;

/// A priority for each rung.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ladder {
    priorities: [u8; DEFAULTS.len()],
}

impl Default for Ladder {
    /// The ladder of a host where nothing is in the way.
    fn default() -> Self {
        Ladder { priorities: DEFAULTS.map(|(_, priority)| priority) }
    }
}

impl Ladder {
    /// A ladder for this host as it is now.
    ///
    /// # Errors
    /// [`LadderError`], as text, or when /proc cannot be read.
    pub fn for_this_host() -> io::Result<Ladder> {
        Ladder::fit(&in_use()?).map_err(io::Error::other)
    }

    /// A ladder that shares no priority with these threads.
    ///
    /// # Errors
    /// [`LadderError`] names a rung without room and a thread in its way.
    pub fn fit(others: &[InUse]) -> Result<Ladder, LadderError> {
        let at = |priority: u8| {
            others.iter().find(|other| other.priority == priority && priority < KERNEL_TOP)
        };
        // LC and all below it stay under the kernel's service threads.
        let service = others.iter().filter(|other| other.kernel && other.priority > DEFAULTS[4].1);
        let floor_of_service =
            service.map(|other| other.priority).min().unwrap_or(KERNEL_TOP).min(KERNEL_TOP);
        let mut priorities = [0; DEFAULTS.len()];
        let mut above = KERNEL_TOP;
        for (place, (rung, default)) in DEFAULTS.into_iter().enumerate() {
            let below = DEFAULTS.get(place + 1).map_or(0, |(_, priority)| *priority);
            let mut high = above - 1;
            if place >= 3 {
                high = high.min(floor_of_service.saturating_sub(1)).max(below + 1);
            }
            let low = below + 1;
            let down = (low..=default.min(high)).rev();
            let up = default.min(high) + 1..=high;
            let free = down.chain(up).find(|&priority| at(priority).is_none());
            let Some(priority) = free else {
                let clash = (low..=high).find_map(at).cloned();
                let clash = clash.unwrap_or_else(|| InUse {
                    priority: high,
                    tid: Tid(0),
                    name: "the rung above".into(),
                    kernel: false,
                });
                return Err(LadderError::NoRoom { rung, low, high, clash });
            };
            priorities[place] = priority;
            above = priority;
        }
        Ok(Ladder { priorities })
    }

    /// Policy and priority of a rung; `None` for [`Rung::Original`] and [`Rung::LcFair`], which depend on what was found.
    pub fn attr(&self, rung: Rung) -> Option<SchedAttr> {
        match rung {
            Rung::Original | Rung::LcFair => None,
            Rung::SchedIdle => Some(SchedAttr::IDLE),
            // Long bursts share the core in time, by the kernel's slice of 100 ms.
            Rung::LcBackground => {
                let fifo = self.priority(rung).map(SchedAttr::fifo)?;
                Some(SchedAttr { policy: Policy::Rr, ..fifo })
            }
            _ => self.priority(rung).map(SchedAttr::fifo),
        }
    }

    /// The real-time priority of a rung, where it has one.
    pub fn priority(&self, rung: Rung) -> Option<u8> {
        let place = DEFAULTS.iter().position(|(own, _)| *own == rung)?;
        Some(self.priorities[place])
    }
}

/// All threads of this host under FIFO or RR that are not Quell's own: its guardians and its scheduler thread
/// run already when a ladder is asked for.
///
/// # Errors
/// When /proc cannot be read.
pub fn in_use() -> io::Result<Vec<InUse>> {
    let mut found = Vec::new();
    for process in std::fs::read_dir("/proc")?.flatten() {
        if !process.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit) {
            continue;
        }
        let Ok(threads) = std::fs::read_dir(process.path().join("task")) else { continue };
        for thread in threads.flatten() {
            found.extend(
                std::fs::read(thread.path().join("stat")).ok().and_then(|stat| parse(&stat)),
            );
        }
    }
    Ok(found)
}

/// The fields of proc(5) that matter here, if the thread is under FIFO or RR.
fn parse(stat: &[u8]) -> Option<InUse> {
    /// The thread belongs to the kernel (`include/linux/sched.h`).
    const PF_KTHREAD: u64 = 0x0020_0000;
    let text = String::from_utf8_lossy(stat);
    let (tid, rest) = text.split_once(" (")?;
    let (name, rest) = rest.rsplit_once(") ")?;
    // The first field here is number 3.
    let mut fields = rest.split(' ');
    let ended = matches!(fields.next()?, "Z" | "X");
    let flags: u64 = fields.nth(5)?.parse().ok()?;
    let priority = fields.nth(30)?.parse().ok()?;
    let policy = Policy::from_kernel(fields.next()?.parse().ok()?)?;
    let counts = policy.is_realtime() && !ended && !name.starts_with(OWN_NAMES);
    counts.then(|| InUse {
        priority,
        tid: Tid(tid.parse().unwrap_or(0)),
        name: name.to_owned(),
        kernel: flags & PF_KTHREAD != 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn thread(priority: u8, kernel: bool) -> InUse {
        InUse { priority, tid: Tid(77), name: "jackd".into(), kernel }
    }

    #[test]
    fn the_defaults_hold_beside_interrupt_threads() {
        let others = [thread(99, true), thread(50, true)];
        assert_eq!(Ladder::fit(&others).unwrap(), Ladder::default());
    }

    #[test]
    fn lc_stays_below_the_kernels_service_threads() {
        let ladder = Ladder::fit(&[thread(36, true)]).unwrap();
        assert!(ladder.priority(Rung::Switcher).unwrap() < 36);
    }

    #[test]
    fn a_clash_is_named() {
        let others: Vec<_> = (21..=40).map(|priority| thread(priority, false)).collect();
        let error = Ladder::fit(&others).unwrap_err().to_string();
        assert!(error.contains("Lc") && error.contains("jackd"), "{error}");
    }

    #[test]
    fn own_is_not_a_priority_and_idle_is_below_all() {
        let ladder = Ladder::default();
        assert_eq!(ladder.attr(Rung::Original), None);
        assert_eq!(ladder.attr(Rung::SchedIdle), Some(SchedAttr::IDLE));
        assert!(ladder.attr(Rung::Lc).unwrap().reset_on_fork);
    }

    #[test]
    fn quells_own_threads_and_dead_ones_are_in_nobodys_way() {
        let stat = |name: &str, state: &str| {
            let between = "0 ".repeat(37);
            parse(format!("7 ({name}) {state} {}96 1 0", &between[..between.len() - 2]).as_bytes())
        };
        assert_eq!(stat("jackd", "S").map(|other| other.priority), Some(96));
        assert_eq!((stat("jackd", "Z"), stat("quell-guardian", "S")), (None, None));
    }

    #[test]
    fn this_hosts_realtime_threads_are_seen() {
        for other in in_use().unwrap() {
            assert!((1..=99).contains(&other.priority), "{other}");
        }
    }

    proptest! {
        #[test]
        fn a_ladder_descends_and_shares_no_priority(
            others in proptest::collection::vec((1u8..=99, any::<bool>()), 0..40)
        ) {
            let others: Vec<_> = others.into_iter().map(|(at, kernel)| thread(at, kernel)).collect();
            if let Ok(ladder) = Ladder::fit(&others) {
                prop_assert!(ladder.priorities.is_sorted_by(|above, below| above > below));
                for priority in ladder.priorities {
                    prop_assert!((1..KERNEL_TOP).contains(&priority));
                    prop_assert!(others.iter().all(|other| other.priority != priority));
                }
            }
        }

        #[test]
        fn reading_never_panics(stat in proptest::collection::vec(any::<u8>(), 0..120)) {
            let _ = parse(&stat);
        }
    }
}
