//! Settings of this host that keep threads from idle cores.

use std::fs;

/// Files, what they hold where nothing is set, and what it means otherwise.
const SETTINGS: [(&str, &[&str], &str); 4] = [
    (
        "/sys/fs/cgroup/cpuset/cpuset.sched_load_balance",
        &["1"],
        "the root cpuset does not balance (cpuset.sched_load_balance is 0): only cores of a cpuset that does \
         share a domain",
    ),
    (
        "/sys/devices/system/cpu/isolated",
        &["", "(null)"],
        "cores are isolated from balancing (isolcpus or a cpuset partition)",
    ),
    ("/sys/devices/system/cpu/nohz_full", &["", "(null)"], "cores run without a tick (nohz_full)"),
    ("/sys/devices/system/cpu/offline", &[""], "cores are off line"),
];

/// The settings that are not as on most hosts, each in a sentence with its value.
pub fn unusual() -> Vec<String> {
    let found = |(path, usual, meaning): &(&str, &[&str], &str)| {
        let value = fs::read_to_string(path).ok()?;
        let value = value.trim();
        (!usual.contains(&value)).then(|| format!("{meaning}: {value}"))
    };
    SETTINGS.iter().filter_map(found).collect()
}
