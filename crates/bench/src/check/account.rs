//! What a tool takes from the host: its own CPU time, and that of its BPF programs in the time of others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context as _, Result};
use quell_model::Nanos;

use crate::host::Program;

/// Time taken so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// CPU time of the tool's processes.
    pub own: Nanos,
    /// Time in its BPF programs, counted while the kernel measures them. Iterators are left out: they run in the
    /// time of whoever reads them.
    pub bpf: Nanos,
}

impl Account {
    /// Of these programs.
    ///
    /// # Errors
    /// When one is gone.
    pub fn of(programs: &[Program]) -> Result<Account> {
        let mut sum = Account::default();
        for program in programs {
            sum.own += program.usage()?.cpu;
            sum.bpf += bpf(descriptors(program.pid())?);
        }
        Ok(sum)
    }

    /// What was taken since `earlier`.
    pub fn since(&self, earlier: &Account) -> Account {
        Account { own: self.own.since(earlier.own), bpf: self.bpf.since(earlier.bpf) }
    }
}

/// Whether one of these has BPF programs by now.
///
/// # Errors
/// When one is gone.
pub fn has_bpf(programs: &[Program]) -> Result<bool> {
    for program in programs {
        if descriptors(program.pid())?.iter().any(|info| info.contains("prog_type:")) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// What the kernel says of each descriptor of a process (Documentation/filesystems/proc.rst).
fn descriptors(pid: i32) -> Result<Vec<String>> {
    let directory = format!("/proc/{pid}/fdinfo");
    let entries = fs::read_dir(&directory).with_context(|| format!("read {directory}"))?;
    // A descriptor may be closed meanwhile.
    Ok(entries.flatten().filter_map(|entry| fs::read_to_string(entry.path()).ok()).collect())
}

fn bpf(descriptors: Vec<String>) -> Nanos {
    let mut times: BTreeMap<u64, u64> = BTreeMap::new();
    let mut iterators = BTreeSet::new();
    for text in &descriptors {
        let number = |name| field(text, name).and_then(|value| value.parse::<u64>().ok());
        let Some(program) = number("prog_id") else { continue };
        if field(text, "link_type") == Some("iter") {
            iterators.insert(program);
        }
        if let Some(time) = number("run_time_ns") {
            times.insert(program, time);
        }
    }
    Nanos(times.iter().filter(|(program, _)| !iterators.contains(program)).map(|(_, ns)| ns).sum())
}

fn field<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    let lines = text.lines().filter_map(|line| line.split_once(':'));
    lines.into_iter().find(|(found, _)| *found == name).map(|(_, value)| value.trim())
}

/// CPU time of all children that ended, to a tick of the kernel's accounting.
///
/// # Errors
/// When /proc does not read.
pub fn ended_children() -> Result<Nanos> {
    let stat = fs::read_to_string("/proc/self/stat").context("read /proc/self/stat")?;
    let ticks = ended_ticks(&stat).context("/proc/self/stat does not read")?;
    Ok(Nanos(ticks * 1_000_000_000 / rustix::param::clock_ticks_per_second().max(1)))
}

/// The 16th and 17th field, cutime and cstime; the second may hold anything, in parentheses.
fn ended_ticks(stat: &str) -> Option<u64> {
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace().skip(13);
    Some(fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn each_program_counts_once_and_iterators_do_not() {
        let program = |id: u64, ns: u64| {
            format!(
                "pos:\t0\nflags:\t02000002\nprog_type:\t26\nprog_id:\t{id}\nrun_time_ns:\t{ns}\nrun_cnt:\t3\n"
            )
        };
        let link =
            |kind: &str, id: u64| format!("link_type:\t{kind}\nlink_id:\t9\nprog_id:\t{id}\n");
        let all = vec![
            program(1, 100),
            program(1, 100),
            program(2, 20),
            link("tracing", 1),
            link("iter", 2),
            "pos:\t0\nflags:\t02\n".to_owned(),
        ];
        assert_eq!(bpf(all), Nanos(100));
    }

    #[test]
    fn the_time_of_ended_children_is_found_behind_any_name() {
        let stat = "7 (a) b) c) S 1 7 7 0 -1 4194304 80 0 0 0 1 2 30 12 20 0 1 0 99 1 1";
        assert_eq!(ended_ticks(stat), Some(42));
        assert_eq!(ended_ticks("7 (a"), None);
        ended_children().unwrap();
    }

    #[test]
    fn a_program_without_bpf_has_its_cpu_time() {
        let busy =
            Program::start("sh", Command::new("sh").args(["-c", "while :; do :; done"])).unwrap();
        let until = std::time::Instant::now() + std::time::Duration::from_secs(60);
        let busy = [busy];
        let account = loop {
            let account = Account::of(&busy).unwrap();
            if account.own > Nanos::ZERO {
                break account;
            }
            assert!(std::time::Instant::now() < until, "no CPU time is seen");
            std::thread::sleep(std::time::Duration::from_millis(10));
        };
        assert_eq!(account.bpf, Nanos::ZERO);
    }
}
