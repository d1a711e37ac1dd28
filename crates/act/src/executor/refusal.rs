//! Puts the kernel's refusals into words that help.

use std::io;
use std::path::{Path, PathBuf};

use super::threads::says_gone;
use crate::ActError;
use quell_os::ThreadRef;

/// The error of an attempt on a thread.
pub(crate) fn of(thread: &ThreadRef, attempt: &str, error: &io::Error) -> ActError {
    if says_gone(error) {
        return ActError::Gone(*thread);
    }
    let errno = error.raw_os_error().unwrap_or(libc::EIO);
    let what = format!("{attempt} for thread {} of process {}", thread.tid, thread.tgid);
    ActError::Refused { errno, what, remedy: remedy(thread, attempt, errno) }
}

fn remedy(thread: &ThreadRef, attempt: &str, errno: i32) -> String {
    let realtime = attempt.contains("SCHED_FIFO") || attempt.contains("SCHED_RR");
    match errno {
        libc::EPERM if realtime => match group_without_realtime(thread) {
            Some(group) => format!(
                "its cgroup {} allows no realtime (cpu.rt_runtime_us is 0): write a share of \
                 cpu.rt_period_us to that file, or set kernel.sched_rt_runtime_us to -1",
                group.display()
            ),
            None => "run as root, or with CAP_SYS_NICE".into(),
        },
        libc::EPERM => "run as root, or with CAP_SYS_NICE".into(),
        libc::EINVAL if attempt.contains("SCHED_") => {
            "the kernel does not take this priority; see `quell doctor`".into()
        }
        libc::EINVAL => "none of these cores is online and in the thread's cpuset".into(),
        libc::EBUSY => "its cgroup's realtime share is used up by deadline threads".into(),
        libc::EOPNOTSUPP => {
            "it runs under a policy that Quell leaves alone (deadline or sched_ext)".into()
        }
        _ => "see `quell doctor`".into(),
    }
}

/// The v1 `cpu` group of a thread, if it or a forebear of it has no realtime share.
fn group_without_realtime(thread: &ThreadRef) -> Option<PathBuf> {
    let groups =
        std::fs::read_to_string(format!("/proc/{}/task/{}/cgroup", thread.tgid, thread.tid))
            .ok()?;
    let path = groups.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        controllers.split(',').any(|name| name == "cpu").then(|| path.trim_start_matches('/'))
    })?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    let root = mounts.lines().find_map(|line| {
        let (mount, fs) = line.split_once(" - ")?;
        let is_cpu = fs.starts_with("cgroup ")
            && fs.rsplit(' ').next()?.split(',').any(|option| option == "cpu");
        is_cpu.then(|| mount.split(' ').nth(4))?
    })?;
    let group = Path::new(root).join(path);
    let share = std::fs::read_to_string(group.join("cpu.rt_runtime_us")).ok()?;
    (share.trim() == "0").then_some(group)
}
