//! The report of congestion that the plan cannot relieve, in words for people and fields for programs.

use std::io;

use quell_control::protocol::{CongestedTask, CongestionCause, CongestionReport};
use quell_model::{CoreSet, TaskId, TaskView};

use super::{CongestionDetail, Lasting, Turn};
use crate::engine::Engine;

impl Engine {
    /// Looks for congestion that the plan just made cannot relieve.
    pub(in crate::engine) fn watch_congestion(&mut self) {
        let (members, events) = (&self.members, &mut self.events);
        self.congestion.look(&self.seen, &self.plan, &mut |turn| match turn {
            Turn::Began(id, finding) => events.tell(format!(
                "task {}: congestion that the plan cannot relieve: {}",
                members.name(id),
                finding.cause.label()
            )),
            Turn::Ended(id, lasted) => events
                .tell(format!("task {}: no longer congested, after {lasted}", members.name(id))),
        });
    }

    /// Congestion that the plan cannot relieve, with causes and remedies.
    pub fn congestion_report(&self) -> CongestionReport {
        CongestionReport {
            now_ns: self.seen.now.0,
            threshold_ms: self.congestion.bound().0 as f64 / 1e6,
            tasks: self.congestion.lasting().map(|lasting| self.congested_task(&lasting)).collect(),
        }
    }

    fn congested_task(&self, lasting: &Lasting) -> CongestedTask {
        let CongestionDetail { cause, cores, errno } = lasting.finding;
        let view = &self.seen.tasks[lasting.id.at()];
        let owned = self.plan.owned(lasting.id);
        let owners = self.owners(&cores, lasting.id);
        CongestedTask {
            task: self.members.name(lasting.id),
            since_ns: lasting.since.0,
            duration_s: self.seen.now.since(lasting.since).0 as f64 / 1e9,
            queueing_delay_us: view.queueing_delay.value().map(|delay| delay.0 as f64 / 1e3),
            runnable: view.runnable(),
            owned: owned.to_string(),
            cause,
            cores: cores.to_string(),
            explanation: self.explanation(&lasting.finding, view, &owners),
            remedy: remedy(cause, &cores, &owners, self.is_at_max(view, &owned)),
            owners,
            errno,
        }
    }

    fn owners(&self, cores: &CoreSet, except: TaskId) -> Vec<String> {
        let owned = self.plan.cores.iter().filter(|core| cores.contains(core.id));
        let mut owners: Vec<TaskId> = owned.filter_map(|core| core.owner).collect();
        owners.sort_unstable();
        owners.dedup();
        owners.retain(|id| *id != except);
        owners.into_iter().map(|id| self.members.name(id)).collect()
    }

    /// `max` is what limits it, rather than which cores it may use.
    fn is_at_max(&self, view: &TaskView, owned: &CoreSet) -> bool {
        let spare = view.limits.allowed.intersection(&self.parts.host.managed).difference(owned);
        view.limits.core_limit() as usize <= owned.len() && !spare.is_empty()
    }

    fn explanation(
        &self,
        finding: &CongestionDetail,
        view: &TaskView,
        owners: &[String],
    ) -> String {
        let CongestionDetail { cause, cores, errno } = finding;
        let owned = self.plan.owned(view.id);
        match cause {
            CongestionCause::AtMaximum if self.is_at_max(view, &owned) => {
                format!("it owns core {owned}, as many as its `max` lets it")
            }
            CongestionCause::AtMaximum => {
                format!("it owns every core that it may use (core {owned})")
            }
            CongestionCause::LcOwned => {
                let other = if owned.is_empty() { "every" } else { "every other" };
                format!("{other} core that it may use ({cores}) is owned by {}", owners.join(", "))
            }
            CongestionCause::Advice => format!("advice keeps it off core {cores}"),
            CongestionCause::Refused => {
                let why = io::Error::from_raw_os_error(errno.unwrap_or_default());
                format!("the host refuses it core {cores}: {why}")
            }
            CongestionCause::NoCore => {
                format!("none of the cores that it may use ({cores}) is managed and online")
            }
            CongestionCause::RanAway => {
                "one of its threads ran past `runaway_ms` without sleeping, so it counts as BE"
                    .to_owned()
            }
            CongestionCause::EnoughCores => format!(
                "it owns core {cores}, one for each of its runnable threads, and yet they wait"
            ),
            CongestionCause::Policy => {
                format!("the policy `{}` gives it no more", self.parts.policy.name())
            }
        }
    }
}

/// What would help.
fn remedy(cause: CongestionCause, cores: &CoreSet, owners: &[String], at_max: bool) -> String {
    match cause {
        CongestionCause::AtMaximum if at_max => "raise its `max`, or send it less load".to_owned(),
        CongestionCause::AtMaximum => {
            "allow it more cores (its `cores`, or `managed` of the host), or send it less load"
                .to_owned()
        }
        CongestionCause::LcOwned => format!(
            "guarantee it a core, move it or {} to other cores or another host, or send them less load",
            owners.join(" or ")
        ),
        CongestionCause::Advice => {
            "`quell status --explain` of the task and of the core names the advice".to_owned()
        }
        CongestionCause::Refused => {
            "`quell doctor` tells what stands against it; the task's own cpuset may".to_owned()
        }
        CongestionCause::NoCore => format!("bring core {cores} online, or allow it another"),
        CongestionCause::RanAway => {
            "if it polls by design, set its `runaway_ms` to 0; else it has a loop to mend"
                .to_owned()
        }
        CongestionCause::EnoughCores => format!(
            "look for threads with an affinity of their own, interrupts on core {cores}, and time taken by the hypervisor"
        ),
        CongestionCause::Policy => format!("with `policy = \"quell\"` it could have core {cores}"),
    }
}
