//! Findings: the episodes that fill their window, with waiters, causes and evidence.

use quell_model::{CoreId, Nanos, Permille};

use super::cause::Cause;
use super::episode::{Kind, WAITERS_MAX};
use super::{ALERTS_MAX, Checker, Evidence, Part, Waiter, WastedWait};
use crate::host::HostThread;
use crate::import::NOBODY_KNOWN;

impl Checker {
    /// Makes findings of the episodes that fill their window.
    pub(super) fn evaluate(&mut self, on: CoreId) {
        for kind in Kind::ALL {
            let Some(queue) = self.queues.get_mut(on.index()) else { return };
            let Part { episode, .. } = &mut queue.parts[kind as usize];
            if episode.found.is_some() {
                continue;
            }
            let mut over = episode.is_over(&self.options);
            if kind == Kind::Wasted {
                for (waiter, wait) in self.waiters.overdue(on, &self.options) {
                    episode.include(waiter, wait);
                    over = true;
                }
            }
            if over {
                let mut looks = Box::default();
                if let Some(idle) = episode.idle.first() {
                    self.log.look(&mut looks, (&self.host, &self.domains), idle, on);
                }
                episode.found = Some(looks);
                let finding = self.finding(on, kind);
                if self.alerts.len() < ALERTS_MAX {
                    self.alerts.extend(finding);
                }
            }
        }
    }

    /// The finding that an episode is, if it is one.
    pub(super) fn finding(&self, on: CoreId, kind: Kind) -> Option<WastedWait> {
        let episode = &self.queues.get(on.index())?.parts[kind as usize].episode;
        let (from, looks) = (episode.from?, episode.found.as_ref()?);
        let meanwhile = self.log.since(&episode.before, from, self.host.core(on)?);
        let evidence = Evidence {
            queues: looks.queues.clone(),
            domain: looks.domain,
            idle_group: looks.idle_group.clone(),
            busy_group: looks.busy_group.clone(),
            ..meanwhile
        };
        let present = self.waiters.names(on, kind, WAITERS_MAX);
        let waiters = episode.all_waiters(&present);
        let evident = (&evidence, self.log.compares_means);
        let (grade, label) = episode.verdict(kind, evident, &waiters);
        let named = waiters.iter().filter(|(thread, _)| **thread != NOBODY_KNOWN);
        let mut waiters: Vec<Waiter> =
            named.map(|(thread, (wasted, came))| self.waiter(*thread, *wasted, *came)).collect();
        waiters.sort_by(|a, b| b.wasted_ms.total_cmp(&a.wasted_ms));
        let span = episode.until.since(from);
        Some(WastedWait {
            core: on,
            from_ns: from.0,
            until_ns: episode.until.0,
            wasted_ms: episode.wasted.0 as f64 / 1e6,
            share_percent: f64::from(Permille::of(episode.wasted, span).0) / 10.0,
            waiters,
            idle: episode.idle,
            reach: grade,
            label,
            causes: episode.charges.shares(),
            evidence,
        })
    }

    fn waiter(&self, tid: i32, wasted: Nanos, came: Cause) -> Waiter {
        let thread = self.host.thread_by_tid(tid);
        let tgid = thread.map_or(0, HostThread::tgid);
        let plan = self.managed.of(tid, tgid);
        let affinity = thread.and_then(|thread| self.host.allowed(thread));
        Waiter {
            thread: tid,
            process: tgid,
            name: thread.map(|thread| thread.comm().to_string()).unwrap_or_default(),
            wasted_ms: wasted.0 as f64 / 1e6,
            came,
            allowed: plan.map(|plan| plan.original).or(affinity),
            plan: plan.map(|plan| plan.reason.clone()),
        }
    }
}
