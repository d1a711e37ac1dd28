//! One status and what follows from it and the one before: rates and shares.

use quell_control::protocol::{CoreStatus, Status, TaskStatus};

use crate::text;

/// What is shown of one moment.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// As the daemon told it.
    pub status: Status,
    /// Per second since the sample before; `None` for the first.
    pub ticks_per_s: Option<f64>,
    /// The daemon's CPU time, in percent of a core.
    pub daemon_percent: Option<f64>,
    /// By task, in the order of the status.
    pub tasks: Vec<TaskRates>,
    /// By core, in the order of the status.
    pub cores: Vec<CoreShares>,
}

/// What a task's threads did since the sample before, in percent of that time: of several cores more than 100.
#[derive(Clone, Copy, Debug, Default)]
pub struct TaskRates {
    /// On cores.
    pub cpu_percent: Option<f64>,
    /// Runnable without a core.
    pub wait_percent: Option<f64>,
}

/// Who had a core since the sample before, in percent of that time.
#[derive(Clone, Debug, Default)]
pub struct CoreShares {
    /// Tasks.
    pub tasks: Vec<(String, f64)>,
    /// Nobody.
    pub idle: Option<f64>,
    /// Threads that belong to no task: the rest.
    pub other: Option<f64>,
}

/// Shares below this are not worth a word, in percent.
const SHARE_MIN: f64 = 0.05;

impl Sample {
    /// A sample from a status and the sample before.
    pub fn new(status: Status, before: Option<&Sample>) -> Sample {
        // Another daemon's counters begin anew.
        let before = before.map(|before| &before.status).filter(|before| before.pid == status.pid);
        let elapsed = before.map(|before| status.at_us.saturating_sub(before.at_us));
        let Some((before, elapsed)) = before.zip(elapsed.filter(|&us| us > 0)) else {
            return Sample {
                tasks: vec![TaskRates::default(); status.tasks.len()],
                cores: vec![CoreShares::default(); status.cores.len()],
                status,
                ..Sample::default()
            };
        };
        let elapsed_ms = elapsed as f64 / 1e3;
        let share = |now: f64, before: f64| (now - before).max(0.0) / elapsed_ms * 100.0;
        let (counters, counted) = (&status.counters, &before.counters);
        Sample {
            ticks_per_s: Some(
                counters.ticks.saturating_sub(counted.ticks) as f64 / elapsed_ms * 1e3,
            ),
            daemon_percent: Some(share(counters.daemon_cpu_ms, counted.daemon_cpu_ms)),
            tasks: status.tasks.iter().map(|task| task_rates(task, before, &share)).collect(),
            cores: status.cores.iter().map(|core| core_shares(core, before, &share)).collect(),
            status,
        }
    }
}

fn task_rates(task: &TaskStatus, before: &Status, share: &dyn Fn(f64, f64) -> f64) -> TaskRates {
    let known = before.tasks.iter().find(|known| known.name == task.name);
    TaskRates {
        cpu_percent: known.map(|known| share(task.cpu_ms, known.cpu_ms)),
        wait_percent: known.map(|known| share(task.run_delay_ms, known.run_delay_ms)),
    }
}

fn core_shares(core: &CoreStatus, before: &Status, share: &dyn Fn(f64, f64) -> f64) -> CoreShares {
    let Some(known) = before.cores.iter().find(|known| known.core == core.core) else {
        return CoreShares::default();
    };
    let ran_before = |task: &str| {
        known.task_cpu.iter().find(|ran| ran.task == task).map_or(0.0, |ran| ran.cpu_ms)
    };
    let tasks: Vec<(String, f64)> = core
        .task_cpu
        .iter()
        .map(|ran| (ran.task.clone(), share(ran.cpu_ms, ran_before(&ran.task))))
        .collect();
    let idle = core.idle_ms.zip(known.idle_ms).map(|(now, before)| share(now, before));
    let taken: f64 = tasks.iter().map(|(_, share)| share).sum();
    CoreShares { tasks, idle, other: idle.map(|idle| (100.0 - idle - taken).max(0.0)) }
}

impl CoreShares {
    /// In words, the largest share first, idle time last: `batch 61% web 23% other 0.2% idle 16%`.
    pub fn in_words(&self) -> String {
        let busy = self.tasks.iter().map(|(name, share)| (name.as_str(), *share));
        let mut shares: Vec<(&str, f64)> =
            busy.chain(self.other.map(|share| ("other", share))).collect();
        shares.sort_by(|a, b| b.1.total_cmp(&a.1));
        shares.extend(self.idle.map(|share| ("idle", share)));
        let words: Vec<String> = shares
            .into_iter()
            .filter(|(_, share)| *share >= SHARE_MIN)
            .map(|(name, share)| format!("{name} {}%", text::share(share)))
            .collect();
        words.join(" ")
    }
}

#[cfg(test)]
mod tests {
    use quell_control::protocol::{Counters, TaskCpuTime};

    use super::*;

    fn status(at_us: u64, cpu_ms: f64, idle_ms: f64) -> Status {
        let ran = vec![TaskCpuTime { task: "web".into(), cpu_ms }];
        Status {
            at_us,
            pid: 1,
            counters: Counters {
                ticks: at_us / 1_000,
                daemon_cpu_ms: cpu_ms,
                ..Counters::default()
            },
            cores: vec![CoreStatus {
                task_cpu: ran,
                idle_ms: Some(idle_ms),
                ..CoreStatus::default()
            }],
            tasks: vec![TaskStatus { name: "web".into(), cpu_ms, ..TaskStatus::default() }],
            ..Status::default()
        }
    }

    #[test]
    fn rates_are_of_the_time_between_two_samples() {
        let first = Sample::new(status(1_000_000, 100.0, 0.0), None);
        assert!(first.ticks_per_s.is_none() && first.tasks[0].cpu_percent.is_none());
        let second = Sample::new(status(1_500_000, 225.0, 300.0), Some(&first));
        assert_eq!(second.tasks[0].cpu_percent, Some(25.0));
        assert_eq!(second.ticks_per_s, Some(1_000.0));
        assert_eq!(second.cores[0].in_words(), "web 25% other 15% idle 60%");
    }

    #[test]
    fn a_restarted_daemon_has_no_past() {
        let first = Sample::new(status(1_000_000, 100.0, 0.0), None);
        let other = Status { pid: 2, ..status(2_000_000, 1.0, 0.0) };
        assert!(Sample::new(other, Some(&first)).daemon_percent.is_none());
    }
}
