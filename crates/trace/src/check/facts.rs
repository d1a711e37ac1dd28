//! What a kernel's release says about the rules of the checker.

/// Facts of a kernel that bear on waiting threads and idle cores, by its release (`6.12.43-amd64`). A model or a
/// release that does not read as one has none.
pub fn facts(release: &str) -> Vec<String> {
    let Some(version) = version(release) else { return Vec::new() };
    let since = |major, minor| version >= (major, minor);
    let mut facts = Vec::new();
    let mut fact = |holds: bool, text: &str| {
        if holds {
            facts.push(text.to_owned());
        }
    };
    fact(!since(6, 6), "picks by CFS (EEVDF since 6.6)");
    fact(since(6, 6), "picks by EEVDF (since 6.6)");
    fact(
        since(6, 12),
        "delays dequeueing (since 6.12): nr_running counts sleepers; runnable threads are counted here",
    );
    fact(
        since(6, 8) && !since(6, 17),
        "counts its fair server as a thread (6.8 to 6.16): nr_running is one too high at times",
    );
    fact(since(5, 5), "tolerates a small imbalance between NUMA nodes on purpose (since 5.5)");
    fact(since(4, 9), "Missing Scheduling Domains is fixed (4.9)");
    fact(!since(4, 9), "may have Missing Scheduling Domains (before 4.9)");
    fact(!since(4, 13), "may have Scheduling Group Construction (before 4.13)");
    fact(!since(5, 5), "balances groups by average load: Group Imbalance (before 5.5)");
    fact(true, "a wake-up looks for an idle core in the last-level cache only: Overload-on-Wakeup");
    facts
}

/// Whether the balancer of this release may leave a core idle because of the mean load of its group: before 5.5, and what does
/// not read as a release. Since then a group with an idle core takes threads by their number.
pub(super) fn compares_means(release: &str) -> bool {
    version(release).is_none_or(|version| version < (5, 5))
}

fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn facts_follow_the_release() {
        let has = |release: &str, text: &str| facts(release).iter().any(|fact| fact.contains(text));
        assert!(has("6.18.44", "EEVDF (since") && !has("6.18.44", "fair server"));
        assert!(has("6.12.43+deb13-amd64", "fair server"));
        assert!(has("6.1.0-40-amd64", "by CFS") && !has("6.1.0-40-amd64", "delays"));
        assert!(has("4.1.6", "Missing Scheduling Domains (before"));
        assert!(facts("cfs model 1").is_empty() && facts("").is_empty());
    }

    #[test]
    fn means_of_groups_count_before_5_5_and_where_nothing_is_known() {
        let counts = ["4.1.6", "5.4.0-200", "quell-sim 0.1.0", ""].map(compares_means);
        assert_eq!(counts, [true; 4]);
        assert_eq!(["5.5.0", "6.1.0-40-amd64", "6.18.44"].map(compares_means), [false; 3]);
    }
}
