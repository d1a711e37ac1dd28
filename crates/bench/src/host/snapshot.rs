//! What every thread and setting of the host is now, to prove afterwards that nothing stayed changed.

use std::collections::BTreeMap;
use std::fs;

use super::{nice, policy};

/// Settings that a scheduler may touch.
const SETTINGS: [&str; 4] = [
    "/proc/sys/kernel/sched_rt_runtime_us",
    "/proc/sys/kernel/sched_rt_period_us",
    "/proc/sys/kernel/sched_rr_timeslice_ms",
    "/proc/sys/kernel/sched_autogroup_enabled",
];

/// Identity of a thread: number and start time.
type Thread = (i32, u64);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Looks {
    pid: i32,
    name: String,
    policy: (i32, i32),
    nice: i32,
    allowed: String,
    cgroups: String,
}

/// Policy, priority, nice value, affinity and cgroups of every thread, and the host's settings.
#[derive(Clone, Debug)]
pub struct HostSnapshot {
    threads: BTreeMap<Thread, Looks>,
    settings: BTreeMap<&'static str, String>,
}

/// Something that is not as it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The thread or setting.
    pub subject: String,
    /// How it was.
    pub before: String,
    /// How it is.
    pub after: String,
}

impl HostSnapshot {
    /// Reads everything. Threads that end meanwhile are left out.
    pub fn take() -> HostSnapshot {
        let numbers = |path: &str| -> Vec<i32> {
            let Ok(directory) = fs::read_dir(path) else { return Vec::new() };
            directory
                .flatten()
                .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
                .collect()
        };
        let mut threads = BTreeMap::new();
        for pid in numbers("/proc") {
            for tid in numbers(&format!("/proc/{pid}/task")) {
                if let Some((start, looks)) = look(pid, tid) {
                    threads.insert((tid, start), looks);
                }
            }
        }
        let settings = SETTINGS
            .into_iter()
            .filter_map(|path| Some((path, fs::read_to_string(path).ok()?.trim().to_owned())))
            .collect();
        HostSnapshot { threads, settings }
    }

    /// What differs in a later snapshot: settings, and threads of the processes `pids` that live in
    /// both. Other processes change their own threads at will, so they prove nothing.
    pub fn differences(&self, later: &HostSnapshot, pids: &[i32]) -> Vec<Difference> {
        let mut differences = self.setting_differences(later);
        for (thread, before) in &self.threads {
            let Some(after) = later.threads.get(thread) else { continue };
            if before != after && pids.contains(&before.pid) {
                differences.push(Difference {
                    subject: format!("thread {} ({})", thread.0, before.name),
                    before: format!("{before:?}"),
                    after: format!("{after:?}"),
                });
            }
        }
        differences
    }

    /// Settings that differ in a later snapshot.
    pub fn setting_differences(&self, later: &HostSnapshot) -> Vec<Difference> {
        let settings = self.settings.iter().filter_map(|(&path, before)| {
            let after = later.settings.get(path).cloned().unwrap_or_default();
            (*before != after).then(|| Difference {
                subject: path.to_owned(),
                before: before.clone(),
                after,
            })
        });
        settings.collect()
    }
}

fn look(pid: i32, tid: i32) -> Option<(u64, Looks)> {
    let base = format!("/proc/{pid}/task/{tid}");
    let stat = fs::read_to_string(format!("{base}/stat")).ok()?;
    // The name may hold spaces and parentheses; field 3 follows its last closing one.
    let (head, rest) = stat.rsplit_once(')')?;
    let start = rest.split_whitespace().nth(19)?.parse().ok()?;
    let name = head.split_once('(')?.1.to_owned();
    let status = fs::read_to_string(format!("{base}/status")).ok()?;
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let looks = Looks {
        pid,
        name,
        policy: policy(tid).ok()?,
        nice: nice(tid).ok()?,
        allowed: allowed.trim().to_owned(),
        cgroups: fs::read_to_string(format!("{base}/cgroup")).ok()?,
    };
    Some((start, looks))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host::{Policy, Program};
    use std::process::Command;

    #[test]
    fn a_changed_policy_shows_until_it_is_put_back() {
        // Others that hold it may move each thread of the host.
        let _lock = quell_testkit::host_lock().unwrap();
        let program = Program::start("sleep", Command::new("sleep").arg("60")).unwrap();
        // Its name changes when it calls exec.
        let name = format!("/proc/{}/comm", program.pid());
        while std::fs::read_to_string(&name).unwrap() != "sleep\n" {
            std::thread::yield_now();
        }
        let of = |snapshot: &HostSnapshot, other: &HostSnapshot| {
            let differences = snapshot.differences(other, &[program.pid()]);
            let subject = format!("thread {} (sleep)", program.pid());
            differences.into_iter().filter(|one| one.subject == subject).count()
        };
        let before = HostSnapshot::take();
        program.set_policy(Policy::Idle, 0).unwrap();
        assert_eq!(of(&before, &HostSnapshot::take()), 1);
        program.set_policy(Policy::Other, 0).unwrap();
        assert_eq!(of(&before, &HostSnapshot::take()), 0);
    }
}
