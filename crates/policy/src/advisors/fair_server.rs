//! Keeps BE off cores that LC leaves almost no idle time.
//!
//! Since 6.12 the kernel's fair server stops real-time threads for some 50 ms a second to run
//! starving fair-class work, SCHED_IDLE included. Measured: none of it where LC is busy 90 % or less;
//! four stalls of 52 ms in 5 s at 95 %. A core without any BE thread has nothing that starves.

use quell_model::{Nanos, Permille, Snapshot, TaskReason};

use crate::{Advice, Advisor, BanScope, Host};

/// BE goes when LC is busy this much of the window.
pub const LEAVE_AT: Permille = Permille(930);
/// BE may return when LC is busy less than this.
pub const RETURN_BELOW: Permille = Permille(850);
/// A ban lasts at least this long: two windows of the signal, so that a ban and its lifting never
/// rest on the same samples.
pub const HOLD: Nanos = Nanos::from_millis(200);
/// The share moves without any event; it is looked at this often while LC is busy.
const LOOK_EVERY: Nanos = Nanos::from_millis(50);

/// See the module.
pub struct FairServer {
    /// By core number: since when the ban holds.
    banned: Vec<Option<Nanos>>,
}

impl FairServer {
    /// The advisor for a host.
    pub fn new(host: &Host) -> FairServer {
        let numbers = host.topology.cores().last().map_or(0, |core| core.id.index() + 1);
        FairServer { banned: vec![None; numbers] }
    }
}

impl Advisor for FairServer {
    fn name(&self) -> &'static str {
        "fair_server"
    }

    fn advise(&mut self, now: Nanos, seen: &Snapshot, advice: &mut Advice) {
        for view in &seen.cores {
            let Some(banned) = self.banned.get_mut(view.id.index()) else { continue };
            let busy = view.lc_busy.value().unwrap_or_default();
            *banned = match *banned {
                _ if !view.managed || !view.online => None,
                None if busy >= LEAVE_AT => Some(now),
                Some(since) if busy < RETURN_BELOW && now.since(since) >= HOLD => None,
                unchanged => unchanged,
            };
            if let Some(since) = *banned {
                let (scope, reason) = (BanScope::BestEffort, TaskReason::FairServer);
                advice.ban(scope, view.id, view.id, reason);
                advice.revisit((since + HOLD).max(now + LOOK_EVERY));
            } else if busy > Permille(0) {
                advice.revisit(now + LOOK_EVERY);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use quell_model::{CoreId, CoreView, HostCaps, Outcome, Signal, Topology};

    use super::*;

    fn host() -> Host {
        let topology = Topology::regular(1, 1, 1).unwrap();
        let caps = HostCaps {
            shares_cores: true,
            idles_cores: true,
            places_threads: true,
            freezes_tasks: true,
            sees_threads: true,
            fair_server: true,
            acts_within: Nanos::from_micros(100),
        };
        Host { managed: topology.all(), topology, caps }
    }

    fn is_banned(advisor: &mut FairServer, at: u64, busy: Signal<Permille>) -> bool {
        let core = CoreView {
            id: CoreId(0),
            managed: true,
            online: true,
            running: None,
            idle_since: None,
            lc_busy: busy,
            outcome: Outcome::Done,
        };
        let now = Nanos::from_millis(at);
        let seen = Snapshot { now, cores: vec![core], ..Snapshot::default() };
        let mut advice = Advice::default();
        advice.clear(0, 1);
        advisor.advise(now, &seen, &mut advice);
        !advice.best_effort.is_empty()
    }

    #[test]
    fn be_leaves_a_full_core_and_returns_once_it_is_clearly_not_full() {
        let mut advisor = FairServer::new(&host());
        let busy = |permille| Signal::Measured(Permille(permille));
        assert!(!is_banned(&mut advisor, 0, busy(900)));
        assert!(is_banned(&mut advisor, 1, busy(940)));
        assert!(is_banned(&mut advisor, 2, busy(100)), "the hold");
        assert!(is_banned(&mut advisor, 300, busy(900)), "between the thresholds");
        assert!(!is_banned(&mut advisor, 301, busy(849)));
        assert!(!is_banned(&mut advisor, 302, busy(900)), "between the thresholds");
    }

    #[test]
    fn an_absent_share_bans_nobody() {
        let mut advisor = FairServer::new(&host());
        assert!(!is_banned(&mut advisor, 0, Signal::default()));
    }
}
