//! A Linux version as a row of parts, each of which can be set apart from the others.

use quell_model::{DomainRules, GroupWalk, Nanos};

/// How one Linux version schedules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelModel {
    /// Order of the fair threads of one core.
    pub picker: Picker,
    /// How the load of a thread follows from its past.
    pub load: LoadMetric,
    /// What one pass of the load balancer compares.
    pub balancer: Balancer,
    /// Where a wake-up looks for an idle core.
    pub wake_search: WakeSearch,
    /// Wake-ups treat a core that runs only SCHED_IDLE threads as idle (`sched_idle_cpu`, Linux 5.4).
    pub sched_idle_counts_as_idle: bool,
    /// Each session is a task group of its own (`CONFIG_SCHED_AUTOGROUP`); otherwise all threads without a cgroup are
    /// in the root group.
    pub autogroup: bool,
    /// What keeps real-time threads from starving fair ones.
    pub rt_limit: RtLimit,
    /// A core balances before it idles only if it usually does so for half a millisecond (until Linux 5.15).
    pub new_idle_needs_half_a_ms: bool,
    /// Passes look first at the threads that ran longest ago (`rq->cfs_tasks` in the order of runs, Linux 4.15); before, at
    /// those that came last.
    pub moves_least_recent: bool,
    /// Groups of siblings with several threads give some to idle cores, busy cores do not even out groups, and a core of which all
    /// siblings idle balances first (`group_smt_balance`, `sibling_imbalance`, `should_we_balance`, Linux 6.6).
    pub balances_siblings: bool,
    /// Idle cores have no tick; a busy core's tick has one of them balance for all (`nohz_balancer_kick`).
    pub nohz: bool,
    /// Only the lowest of the cores without a tick is asked to balance, though it may have become busy (until Linux 5.1).
    pub kicks_lowest_tickless: bool,
    /// Idle cores enter deep idle states, which the policy wants kept: the paper's third fix is off then.
    pub deep_idle: bool,
    /// Time between two ticks: 1 / `CONFIG_HZ`.
    pub tick: Nanos,
    /// Levels and groups of the scheduling domains, before [`KernelModel::fixes`].
    pub domains: DomainRules,
    /// Parameters of the levels.
    pub levels: LevelRules,
    /// Which fix each of the paper's four bugs has.
    pub fixes: Fixes,
}

/// Parameters of the levels of domains (`sd_init`, kernel/sched/topology.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LevelRules {
    /// Balancing intervals of a busy core are so many times as long (`sd->busy_factor`).
    pub busy_factor: u64,
    /// A group of nodes has to be so much busier than the own one, in percent (`sd->imbalance_pct`).
    pub imbalance_pct: u64,
    /// Threads spread over caches before they share one (`SD_PREFER_SIBLING`, Linux 4.20).
    pub caches_prefer_siblings: bool,
    /// Levels of cores of different capacities have rules of their own (`SD_ASYM_CPUCAPACITY`, Linux 4.20).
    pub asymmetry: bool,
}

/// Order of the fair threads of one core.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Picker {
    /// The least virtual runtime (until Linux 6.5).
    Cfs,
    /// The earliest virtual deadline among those with lag (Linux 6.6).
    Eevdf {
        /// A thread that sleeps with negative lag stays in its queue until the lag is gone (Linux 6.12).
        delayed_dequeue: bool,
    },
}

/// How the load of a thread follows from its past. Both decay by half in 32 ms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
pub enum LoadMetric {
    /// Weight times the share of its life that a thread was runnable (`__update_task_entity_contrib`, Linux 3.8 to 4.2).
    #[serde(rename = "4.1")]
    Contribution,
    /// Weight times the decayed average, full for a new thread (`__update_load_avg`, Linux 4.3).
    #[serde(rename = "4.3")]
    Average,
}

/// What a pass of the load balancer compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Balancer {
    /// Average loads of groups (`find_busiest_group` until Linux 5.4).
    Averages,
    /// Types of groups; counts of threads and idle cores where the own group has spare capacity (Linux 5.5).
    GroupTypes,
}

/// Where a wake-up looks for an idle core; always within one last-level cache (`select_idle_sibling`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WakeSearch {
    /// The first group below the cache's level of which all cores idle (until Linux 4.7).
    IdleGroups,
    /// A physical core that idles, then a scan bounded by the cache's mean idle time (`SIS_PROP`, Linux 4.8).
    IdleTime,
    /// The same with a bound that follows the cache's utilisation (`SIS_UTIL`, Linux 6.0).
    Utilisation,
}

/// What keeps real-time threads from starving fair ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RtLimit {
    /// Nothing.
    None,
    /// Real-time threads have 950 ms of each second (`sched_rt_runtime_us`).
    Throttling,
    /// Fair threads that starve get 50 ms of each second (`fair_server`, Linux 6.12).
    FairServer,
}

/// What is done about a bug.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Fix {
    /// The kernel has it.
    #[default]
    None,
    /// The fix that the text of the paper describes, or its authors published.
    Paper,
    /// What later kernels do instead.
    Mainline,
}

/// A fix for each of the four bugs of "The Linux Scheduler: a Decade of Wasted Cores" (EuroSys'16, section 3), and of the two that
/// kSTEP (OSDI'26) found in balancers of [`Balancer::GroupTypes`]. No release is known to have a fix of these two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fixes {
    /// 3.1. Paper: groups are compared by their least loaded core. Mainline: [`Balancer::GroupTypes`].
    pub group_imbalance: Fix,
    /// 3.2. Both: groups are built from the view of each core (mainline since 4.13).
    pub group_construction: Fix,
    /// 3.3. Paper: the core idle for longest, if the previous one does not idle. Mainline:
    /// [`WakeSearch::Utilisation`], which still ends at the cache.
    pub overload_on_wakeup: Fix,
    /// 3.4. Both: the levels between nodes are built again after a core went offline (mainline since 4.9).
    pub missing_domains: Fix,
    /// "Even idle CPU": the difference of idle cores, 1, is halved to nothing, though the busiest group has waiting threads. Paper: of
    /// a group that is overloaded or imbalanced a difference of 1 counts as 2.
    pub even_idle: Fix,
    /// "Local group imbalance": a group whose threads may not run everywhere is taken for overloaded, so that its idle core takes
    /// nothing from another overloaded group. Paper: it is imbalanced first, and an idle core of an imbalanced group takes a thread.
    pub imbalanced_group: Fix,
}

impl KernelModel {
    /// Linux 4.1, for which the paper's patches are.
    pub const LINUX_4_1: KernelModel = KernelModel {
        picker: Picker::Cfs,
        load: LoadMetric::Contribution,
        balancer: Balancer::Averages,
        wake_search: WakeSearch::IdleGroups,
        sched_idle_counts_as_idle: false,
        autogroup: true,
        rt_limit: RtLimit::Throttling,
        new_idle_needs_half_a_ms: true,
        moves_least_recent: false,
        balances_siblings: false,
        nohz: true,
        kicks_lowest_tickless: true,
        deep_idle: false,
        tick: Nanos::from_millis(4),
        domains: DomainRules::LINUX_4_1,
        levels: LevelRules {
            busy_factor: 32,
            imbalance_pct: 125,
            caches_prefer_siblings: false,
            asymmetry: false,
        },
        fixes: Fixes {
            group_imbalance: Fix::None,
            group_construction: Fix::None,
            overload_on_wakeup: Fix::None,
            missing_domains: Fix::None,
            even_idle: Fix::None,
            imbalanced_group: Fix::None,
        },
    };
    /// Linux 4.3: another load metric, the same four bugs.
    pub const LINUX_4_3: KernelModel =
        KernelModel { load: LoadMetric::Average, ..KernelModel::LINUX_4_1 };
    /// Linux 5.4.
    pub const LINUX_5_4: KernelModel = KernelModel {
        wake_search: WakeSearch::IdleTime,
        sched_idle_counts_as_idle: true,
        moves_least_recent: true,
        kicks_lowest_tickless: false,
        domains: DomainRules::LINUX_4_13,
        levels: LevelRules {
            caches_prefer_siblings: true,
            asymmetry: true,
            ..KernelModel::LINUX_4_1.levels
        },
        fixes: Fixes {
            group_construction: Fix::Mainline,
            missing_domains: Fix::Mainline,
            ..KernelModel::LINUX_4_1.fixes
        },
        ..KernelModel::LINUX_4_3
    };
    /// Linux 6.1.
    pub const LINUX_6_1: KernelModel = KernelModel {
        balancer: Balancer::GroupTypes,
        wake_search: WakeSearch::Utilisation,
        new_idle_needs_half_a_ms: false,
        domains: DomainRules::LINUX_5_13,
        // Since 5.10.
        levels: LevelRules { busy_factor: 16, imbalance_pct: 117, ..KernelModel::LINUX_5_4.levels },
        fixes: Fixes { group_imbalance: Fix::Mainline, ..KernelModel::LINUX_5_4.fixes },
        ..KernelModel::LINUX_5_4
    };
    /// Linux 6.12.
    pub const LINUX_6_12: KernelModel = KernelModel {
        picker: Picker::Eevdf { delayed_dequeue: true },
        rt_limit: RtLimit::FairServer,
        balances_siblings: true,
        domains: DomainRules::LINUX_6_7,
        ..KernelModel::LINUX_6_1
    };
    /// Linux 6.18. No source of it was at hand: the parts are those of 6.12.
    pub const LINUX_6_18: KernelModel = KernelModel::LINUX_6_12;

    /// Names in scenario files, and what they stand for.
    pub const PRESETS: [(&str, KernelModel); 6] = [
        ("linux-4.1", KernelModel::LINUX_4_1),
        ("linux-4.3", KernelModel::LINUX_4_3),
        ("linux-5.4", KernelModel::LINUX_5_4),
        ("linux-6.1", KernelModel::LINUX_6_1),
        ("linux-6.12", KernelModel::LINUX_6_12),
        ("linux-6.18", KernelModel::LINUX_6_18),
    ];

    /// What a pass compares, the fix of the first bug included.
    pub(super) fn compares(&self) -> Comparison {
        match (self.fixes.group_imbalance, self.balancer) {
            (Fix::Paper, _) => Comparison::LeastLoads,
            (Fix::Mainline, _) | (Fix::None, Balancer::GroupTypes) => Comparison::Types,
            (Fix::None, Balancer::Averages) => Comparison::Averages,
        }
    }

    /// How domains are built, once some core has been offline or not, the fixes of the second and fourth bug included.
    pub(super) fn domain_rules(&self, after_hotplug: bool) -> DomainRules {
        let mut rules = self.domains;
        if self.fixes.group_construction != Fix::None {
            rules.walk = GroupWalk::FromOwnCore;
        }
        rules.between_nodes = !after_hotplug || self.fixes.missing_domains != Fix::None;
        rules
    }

    /// Where a wake-up looks, the mainline fix of the third bug included.
    pub(super) fn searches(&self) -> WakeSearch {
        match self.fixes.overload_on_wakeup {
            Fix::Mainline => WakeSearch::Utilisation,
            Fix::None | Fix::Paper => self.wake_search,
        }
    }

    /// A wake-up takes the core that idles for longest (the paper's third fix).
    pub(super) fn takes_longest_idle(&self) -> bool {
        self.fixes.overload_on_wakeup == Fix::Paper && !self.deep_idle
    }
}

/// What decides which group is the busiest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Comparison {
    Averages,
    LeastLoads,
    Types,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_have_the_bugs_of_their_time() {
        for (name, model) in KernelModel::PRESETS {
            let is_old = name.starts_with("linux-4.");
            let lost = !model.domain_rules(true).between_nodes;
            assert_eq!(lost, is_old, "{name} loses levels at hotplug");
            let from_lowest = model.domain_rules(false).walk == GroupWalk::FromLowestCore;
            assert_eq!(from_lowest, is_old, "{name} builds all groups from one core");
            let averages = model.compares() == Comparison::Averages;
            assert_eq!(averages, is_old || name == "linux-5.4", "{name} compares averages");
            assert!(!model.takes_longest_idle(), "{name}");
        }
    }

    #[test]
    fn a_fix_changes_its_bug_alone() {
        let fixed = |fixes| KernelModel { fixes, ..KernelModel::LINUX_4_1 };
        let imbalance = fixed(Fixes { group_imbalance: Fix::Paper, ..Fixes::default() });
        assert_eq!(imbalance.compares(), Comparison::LeastLoads);
        assert_eq!(imbalance.domain_rules(true), KernelModel::LINUX_4_1.domain_rules(true));
        let wakeup = fixed(Fixes { overload_on_wakeup: Fix::Paper, ..Fixes::default() });
        assert!(wakeup.takes_longest_idle());
        assert!(!KernelModel { deep_idle: true, ..wakeup }.takes_longest_idle());
    }
}
