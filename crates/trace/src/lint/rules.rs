//! The rules.

use quell_model::{CoreDomains, CoreSet, Domain, DomainGroup, DomainTrees};

use super::{LintFinding, Report, Rule};

/// Judges one host by the rules L1 to L4.
pub fn lint(trees: &DomainTrees) -> Report {
    let mut report = empty(trees);
    trees.cores().iter().for_each(|core| reach(core, &trees.isolated, &mut report));
    for rule in [cover, own_group, separable] {
        trees.cores().iter().for_each(|core| rule(core, &mut report));
    }
    report
}

/// Judges by L5 whether a host is what it was, after cores went off line and came back.
pub fn compare(before: &DomainTrees, after: &DomainTrees) -> Report {
    let mut report = empty(after);
    let (was, is) = (before.all(), after.all());
    for (cores, when) in [(was.difference(&is), "after"), (is.difference(&was), "before")] {
        if !cores.is_empty() {
            let why =
                format!("their domains are not known {when}: bring them on line and look again");
            report.add_undecided(Rule::Unchanged, cores, why);
        }
    }
    for core in after.cores() {
        let same = before.cores().iter().find(|one| one.core == core.core);
        // The spans without a core that is off line differ as they should.
        if let Some(was) = same.filter(|was| !was.same_shape(core) && report.undecided.is_empty()) {
            report.add(unlike(was, core));
        }
    }
    report
}

fn empty(trees: &DomainTrees) -> Report {
    let longest = trees.cores().iter().map(|core| &core.domains).max_by_key(|levels| levels.len());
    let levels = longest.into_iter().flatten().map(|level| level.name.clone()).collect();
    let (findings, intended, undecided) = (Vec::new(), Vec::new(), Vec::new());
    Report { cores: trees.all(), levels, findings, intended, undecided }
}

fn reach(core: &CoreDomains, isolated: &CoreSet, report: &mut Report) {
    let cores = CoreSet::of(core.core);
    let Some(root) = core.root.filter(|root| root.contains(core.core)) else {
        let why = "the root domain is not known: the core may be off line, or left out".to_owned();
        return report.add_undecided(Rule::Reach, cores, why);
    };
    let reach = core.reach();
    if reach == root {
        return;
    }
    let intended = isolated.contains(core.core);
    let (consequence, remedy) = match core.domains.last() {
        _ if intended => (
            "the balancer brings no thread here and takes none away",
            "none, if that is the purpose; else take the core out of isolcpus= or of its isolated cpuset partition",
        ),
        None => (
            "the balancer moves no thread to or from these cores: threads wait while cores that they may use idle",
            "set cpuset.sched_load_balance of the root cpuset to 1 (cgroup v1), or end the isolated partition (v2)",
        ),
        Some(_) => (
            "threads that start in this span stay there, whatever idles elsewhere (Missing Scheduling Domains)",
            "reboot to get the levels back; kernels before 4.9 lose them when a core goes off line: update",
        ),
    };
    let seen = match core.domains.last() {
        None => "no scheduling domain".to_owned(),
        Some(top) => format!("the highest domain ({}) spans {}", top.name, top.span),
    };
    let expected = format!("a domain that spans {root}");
    let finding = LintFinding { rule: Rule::Reach, cores, seen, expected, consequence, remedy };
    match intended {
        true => report.add_intended(finding),
        false => report.add(finding),
    }
}

fn cover(core: &CoreDomains, report: &mut Report) {
    for domain in &core.domains {
        let none = CoreSet::EMPTY;
        let union = domain.groups.iter().fold(none, |sum, group| sum.union(&group.cores));
        if union != domain.span {
            report.add(LintFinding {
                rule: Rule::Cover,
                cores: CoreSet::of(core.core),
                seen: format!("the groups of {} hold {{{union}}}", domain.name),
                expected: format!("{{{}}}, its span", domain.span),
                consequence: "the balancer does not see the load of the cores that are in no group",
                remedy: "a kernel bug: report it with this output, and update the kernel",
            });
        }
    }
}

fn own_group(core: &CoreDomains, report: &mut Report) {
    let own = CoreSet::of(core.core);
    let lower = std::iter::once(own).chain(core.domains.iter().map(|domain| domain.span));
    for (domain, lower) in core.domains.iter().zip(lower) {
        let first = domain.groups.first().map_or(CoreSet::EMPTY, |group| group.cores);
        if first != lower {
            report.add(LintFinding {
                rule: Rule::OwnGroup,
                cores: own,
                seen: format!("the first group of {} is {{{first}}}", domain.name),
                // What is expected below the lowest level differs from core to core; in words it does not.
                expected: match lower == own {
                    true => "the core itself".to_owned(),
                    false => format!("{{{lower}}}, its next lower domain"),
                },
                consequence: "the balancer takes the load of others for its own (Scheduling Group Construction)",
                remedy: "Linux 4.13 or later builds groups from each core's view (5.13 where nodes are three hops apart)",
            });
        }
    }
}

/// The core itself, and those that some level of its domains has in another group than the core's own (rule L4).
pub(crate) fn separable_cores(core: &CoreDomains) -> CoreSet {
    let own = CoreSet::of(core.core);
    let separated = |domain: &Domain| {
        let (local, others): (Vec<&DomainGroup>, Vec<&DomainGroup>) =
            domain.groups.iter().partition(|group| group.cores.contains(core.core));
        let local = local.first().map_or(own, |group| group.cores);
        others.iter().fold(CoreSet::EMPTY, |sum, group| sum.union(&group.cores)).difference(&local)
    };
    core.domains.iter().fold(own, |sum, domain| sum.union(&separated(domain)))
}

fn separable(core: &CoreDomains, report: &mut Report) {
    let own = CoreSet::of(core.core);
    let stuck = core.reach().difference(&separable_cores(core));
    if !stuck.is_empty() {
        report.add(LintFinding {
            rule: Rule::Separable,
            cores: own,
            seen: format!("at every level that has {{{stuck}}}, they are in these cores' own group"),
            expected: "a level at which they are in another one".to_owned(),
            consequence: "their load counts as these cores' own: threads that wait there are not pulled by idle cores here",
            remedy: "Linux 4.13 or later; until then do not pin a program to exactly these cores and those",
        });
    }
}

/// What differs between two trees of one core.
fn unlike(was: &CoreDomains, is: &CoreDomains) -> LintFinding {
    let (mut seen, mut expected) = (levels(is), levels(was));
    if seen == expected {
        let mut levels = is.domains.iter().zip(&was.domains).rev();
        let level = levels.find(|(is, was)| is.groups != was.groups);
        let texts =
            level.map(|(is, was)| (format!("groups of {}: {}", is.name, groups(is)), groups(was)));
        (seen, expected) = texts.unwrap_or_else(|| {
            ("another root domain, or other flags".to_owned(), "those of before".to_owned())
        });
    }
    LintFinding {
        rule: Rule::Unchanged,
        cores: CoreSet::of(is.core),
        seen,
        expected,
        consequence: "what balanced before no longer does (Missing Scheduling Domains, if levels are gone)",
        remedy: "reboot to get them back; kernels before 4.9 lose levels so: update",
    }
}

fn levels(core: &CoreDomains) -> String {
    let levels: Vec<String> =
        core.domains.iter().map(|domain| format!("{} {}", domain.name, domain.span)).collect();
    match levels.is_empty() {
        true => "no scheduling domain".to_owned(),
        false => levels.join(" < "),
    }
}

fn groups(domain: &Domain) -> String {
    let groups = domain.groups.iter().map(|group| match group.balance == group.cores {
        true => format!("{{{}}}", group.cores),
        false => format!("{{{} balanced by {}}}", group.cores, group.balance),
    });
    groups.collect::<Vec<_>>().join(" ")
}
