//! Keeps BE off cores that LC leaves almost no idle time.
//!
//! Since 6.12 the kernel's fair server stops real-time threads for some 50 ms a second to run
//! starving fair-class work, SCHED_IDLE included. Measured: none of it where LC is busy 90 % or less;
//! four stalls of 52 ms in 5 s at 95 %. A core without any BE thread has nothing that starves.
//!
//! The server waits until fair work has starved for 950 ms, so what counts is a mean over a good part of
//! that: a burst, or the backlog of a hypervisor stall, fills a window of 100 ms and harms nobody.

use quell_model::{Nanos, Permille, Snapshot, TaskReason};
use serde::{Deserialize, Serialize};

use crate::state::{ensure, put, take};
use crate::{Advice, Advisor, BadState, BanScope, Host};

/// BE goes when LC is busy this much of the time.
pub const LEAVE_AT: Permille = Permille(930);
/// BE may return when LC is busy less than this.
pub const RETURN_BELOW: Permille = Permille(900);
/// A ban lasts at least this long: two windows of the signal, so that a ban and its lifting never
/// rest on the same samples.
pub const HOLD: Nanos = Nanos::from_millis(200);
/// Time constant of the mean: a core that LC fills from idle is left after 665 ms and two looks.
pub const MEAN_OVER: Nanos = Nanos::from_millis(250);
/// What one value of the signal tells of. After a long rest it speaks for no more than this.
const WINDOW: Nanos = Nanos::from_millis(100);
/// The share moves without any event; it is looked at this often while LC is busy.
const LOOK_EVERY: Nanos = WINDOW;

/// See the module.
pub struct FairServer {
    /// By core number.
    cores: Vec<Record>,
}

#[derive(Clone, Copy, Default, Serialize, Deserialize)]
struct Record {
    /// Since when the ban holds.
    banned: Option<Nanos>,
    /// How busy LC keeps the core, in millionths.
    mean: u64,
    looked: Nanos,
}

impl Record {
    fn look(&mut self, now: Nanos, busy: Permille) {
        let passed = now.since(self.looked).min(WINDOW).0;
        self.looked = now;
        let (old, new) = (self.mean, u64::from(busy.0) * 1_000);
        self.mean = (old * (MEAN_OVER.0 - passed) + new * passed) / MEAN_OVER.0;
    }

    fn mean(&self) -> Permille {
        Permille((self.mean / 1_000) as u16)
    }
}

impl FairServer {
    /// The advisor for a host.
    pub fn new(host: &Host) -> FairServer {
        let numbers = host.topology.cores().last().map_or(0, |core| core.id.index() + 1);
        FairServer { cores: vec![Record::default(); numbers] }
    }
}

impl Advisor for FairServer {
    fn name(&self) -> &'static str {
        "fair_server"
    }

    fn advise(&mut self, now: Nanos, seen: &Snapshot, advice: &mut Advice) {
        for view in &seen.cores {
            let Some(core) = self.cores.get_mut(view.id.index()) else { continue };
            let busy = view.lc_busy.value().unwrap_or_default();
            core.look(now, busy);
            let mean = core.mean();
            core.banned = match core.banned {
                _ if !view.managed || !view.online => None,
                None if mean >= LEAVE_AT => Some(now),
                Some(since) if mean < RETURN_BELOW && now.since(since) >= HOLD => None,
                unchanged => unchanged,
            };
            if let Some(since) = core.banned {
                let (scope, reason) = (BanScope::BestEffort, TaskReason::FairServer);
                advice.ban(scope, view.id, view.id, reason);
                advice.revisit((since + HOLD).max(now + LOOK_EVERY));
            } else if busy.max(mean) > Permille(0) {
                advice.revisit(now + LOOK_EVERY);
            }
        }
    }

    fn save(&self, state: &mut Vec<u8>) {
        put(&self.cores, state);
    }

    fn restore(&mut self, state: &mut &[u8]) -> Result<(), BadState> {
        let cores: Vec<Record> = take(state)?;
        ensure(cores.len() == self.cores.len(), "a mean of LC's share for other cores")?;
        // The highest that a signal of this type can raise it to.
        let most = u64::from(u16::MAX) * 1_000;
        ensure(cores.iter().all(|core| core.mean <= most), "a share beyond the whole")?;
        self.cores = cores;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use quell_model::{CoreId, CoreView, HostCaps, Signal, Topology};

    use super::*;

    fn host() -> Host {
        let topology = Topology::regular(1, 1, 1).unwrap();
        let caps = HostCaps {
            shares_cores: true,
            idles_cores: true,
            places_threads: true,
            freezes_tasks: true,
            per_thread_state: true,
            fair_server: true,
            actuation_delay: Nanos::from_micros(100),
            ..HostCaps::default()
        };
        Host { managed: topology.all(), topology, caps }
    }

    fn is_banned(advisor: &mut FairServer, at: u64, busy: Signal<Permille>) -> bool {
        let core = CoreView { lc_busy: busy, ..CoreView::new(CoreId(0)) };
        let now = Nanos::from_millis(at);
        let seen = Snapshot { now, cores: vec![core], ..Snapshot::default() };
        let mut advice = Advice::default();
        advice.clear(0, 1);
        advisor.advise(now, &seen, &mut advice);
        !advice.best_effort.is_empty()
    }

    /// Whether BE is banned after `busy` for so many looks from `at` on, and when that is.
    fn after(advisor: &mut FairServer, at: u64, looks: u64, busy: u16) -> (bool, u64) {
        let signal = Signal::Measured(Permille(busy));
        let banned = (1..=looks).map(|look| is_banned(advisor, at + look * 100, signal));
        (banned.last().unwrap_or_default(), at + looks * 100)
    }

    #[test]
    fn be_leaves_a_full_core_and_returns_once_it_is_clearly_not_full() {
        let mut advisor = FairServer::new(&host());
        let (banned, at) = after(&mut advisor, 0, 20, 920);
        assert!(!banned);
        let (banned, at) = after(&mut advisor, at, 7, 960);
        assert!(banned, "before fair work has starved for 950 ms");
        let (banned, at) = after(&mut advisor, at, 40, 910);
        assert!(banned, "between the thresholds");
        let (banned, at) = after(&mut advisor, at, 20, 800);
        assert!(!banned);
        assert!(!after(&mut advisor, at, 40, 910).0, "between the thresholds");
    }

    #[test]
    fn a_core_that_fills_up_from_idle_is_left_in_time() {
        let mut advisor = FairServer::new(&host());
        let (_, at) = after(&mut advisor, 0, 40, 0);
        assert!(after(&mut advisor, at, 8, 1_000).0, "800 ms of the 950 ms");
    }

    #[test]
    fn the_backlog_of_a_stall_bans_nobody() {
        let mut advisor = FairServer::new(&host());
        let (_, at) = after(&mut advisor, 0, 40, 830);
        let (banned, at) = after(&mut advisor, at, 1, 1_000);
        assert!(!banned && !after(&mut advisor, at, 2, 830).0);
    }

    #[test]
    fn the_first_burst_after_a_long_rest_bans_nobody() {
        let mut advisor = FairServer::new(&host());
        assert!(!is_banned(&mut advisor, 60_000, Signal::Measured(Permille(1_000))));
    }

    #[test]
    fn an_absent_share_bans_nobody() {
        let mut advisor = FairServer::new(&host());
        assert!(!is_banned(&mut advisor, 0, Signal::default()));
    }
}
