//! What traces say of the load balancer.

#![allow(clippy::unwrap_used, reason = "a test that cannot build its scene fails")]

use std::collections::{BTreeMap, BTreeSet};

use quell_model::{
    CoreId, DomainTrees, Event, MoveCause, Nanos, Pass, PassEntry, PassOutcome, What,
};
use quell_policy::by_name;
use quell_sim::{Change, Fix, Kernel, KernelModel, Report, Scenario, run_traced};
use quell_trace::lint::{self, Inspection, Rule, Verdict};
use quell_trace::perfetto::{Reader, Writer};
use quell_trace::stream::Sink as _;

use crate::common::under;
use crate::linux::example;

/// Runs a scenario under plain Linux, with a trace.
fn traced(scenario: &Scenario, mut sink: impl FnMut(&Event)) -> Report {
    let config = quell_policy::Config::default();
    let mut policy = by_name("linux-default", scenario.host.clone(), config).unwrap();
    run_traced(scenario, policy.as_mut(), &mut |event: Event| sink(&event))
}

/// An example, for so many milliseconds, with other fixes.
fn example_with(name: &str, length_ms: u64, change: impl FnOnce(&mut KernelModel)) -> Scenario {
    let mut scenario = example(name).scenario;
    scenario.length = Nanos::from_millis(length_ms);
    if let Kernel::Linux(model) = &mut scenario.kernel {
        change(model);
    }
    scenario
}

/// Whether the pass looked at nodes, one of which had more threads than cores while the own one had an idle core.
fn could_help(pass: &Pass) -> bool {
    let Some((own, others)) = pass.groups.split_first() else { return false };
    let is_idle = matches!(pass.entry, PassEntry::Nohz | PassEntry::NewIdle) && own.idle > 0;
    let mut nodes = pass.groups.iter().map(|group| group.cores.len());
    let has_too_many = others.iter().any(|other| other.queued as usize > other.cores.len());
    is_idle && nodes.all(|cores| cores == 8) && has_too_many
}

/// The passes of idle cores on nodes where R runs that could help another node, by outcome; all those that the own node's average
/// ended are passed to `check`.
fn outcomes_beside_r(fix: Fix, mut check: impl FnMut(&Pass)) -> BTreeMap<PassOutcome, u64> {
    let scenario =
        example_with("wasted-cores-make.toml", 6_000, |model| model.fixes.group_imbalance = fix);
    let (mut running, mut outcomes) = (BTreeMap::new(), BTreeMap::new());
    traced(&scenario, |event| match &event.what {
        What::Switch { next, .. } => {
            running.insert(event.core, next.name.to_string());
        }
        What::Pass(pass) if could_help(pass) => {
            let has_r = |core: CoreId| running.get(&core).is_some_and(|name| name.starts_with('R'));
            if pass.groups[0].cores.iter().any(has_r) {
                *outcomes.entry(pass.outcome).or_default() += 1;
                check(pass);
            }
        }
        _ => {}
    });
    outcomes
}

/// Section 3.1 of "A Decade of Wasted Cores": the average of R's node is above that of an overloaded node, its least load is not.
#[test]
fn idle_cores_beside_r_take_nothing_since_the_average_is_high() {
    let outcomes = outcomes_beside_r(Fix::None, |pass| {
        if pass.outcome == PassOutcome::LocalIsBusier {
            let (own, others) = pass.groups.split_first().unwrap();
            let hides =
                others.iter().any(|other| own.mean >= other.mean && own.minimum < other.minimum);
            assert!(hides, "{pass:?}");
        }
    });
    let all: u64 = outcomes.values().sum();
    assert!(all > 50, "{outcomes:?}");
    assert!(10 * outcomes[&PassOutcome::LocalIsBusier] >= 9 * all, "{outcomes:?}");
    for fix in [Fix::Paper, Fix::Mainline] {
        let outcomes = outcomes_beside_r(fix, |_| {});
        let all: u64 = outcomes.values().sum();
        let busier = outcomes.get(&PassOutcome::LocalIsBusier).copied().unwrap_or_default();
        assert!(all > 20 && 10 * busier < all, "{fix:?}: {outcomes:?}");
    }
}

#[test]
fn passes_say_what_they_moved_and_a_trace_changes_nothing() {
    for (name, length_ms) in [("wasted-cores-make.toml", 2_000), ("wasted-cores-tpch.toml", 300)] {
        let scenario = example_with(name, length_ms, |_| {});
        let mut moved: BTreeMap<MoveCause, u64> = BTreeMap::new();
        let mut next = BTreeMap::new();
        let mut last = Nanos::ZERO;
        let report = traced(&scenario, |event| {
            assert!(event.at >= last, "{event:?} after {last}");
            last = event.at;
            let sequence = next.entry(event.core).or_insert(0);
            assert_eq!(event.sequence, *sequence, "core {}", event.core);
            *sequence += 1;
            if let What::Pass(pass) = &event.what {
                assert_eq!(
                    (event.core, pass.moved > 0),
                    (pass.core, pass.outcome == PassOutcome::Moved)
                );
                let is_own = pass.groups.first().is_none_or(|own| own.cores.contains(pass.core));
                assert!(is_own && pass.groups.len() <= Pass::GROUPS_MAX, "{pass:?}");
                let cause = match pass.entry {
                    PassEntry::Periodic | PassEntry::Nohz => MoveCause::Periodic,
                    PassEntry::NewIdle => MoveCause::NewIdle,
                    PassEntry::Active => MoveCause::Active,
                };
                *moved.entry(cause).or_default() += u64::from(pass.moved);
            }
        });
        for cause in [MoveCause::Periodic, MoveCause::NewIdle, MoveCause::Active] {
            let expected = report.migrations.get(&cause).copied().unwrap_or_default();
            assert_eq!(
                moved.get(&cause).copied().unwrap_or_default(),
                expected,
                "{name}: {cause:?}"
            );
        }
        assert!(report.migrations.contains_key(&MoveCause::NewIdle), "{name}: {report:?}");
        assert_eq!(report, under("linux-default", &scenario), "{name}: a trace changes nothing");
    }
}

#[test]
fn domains_are_in_the_trace_at_the_start_and_after_hotplug() {
    for (fix, has_nodes) in [(Fix::None, false), (Fix::Mainline, true)] {
        let scenario = example_with("wasted-cores-hotplug.toml", 4_000, |model| {
            model.fixes.missing_domains = fix;
        });
        let mut seen: Vec<(Nanos, DomainTrees)> = Vec::new();
        traced(&scenario, |event| {
            if let What::Domains(trees) = &event.what {
                seen.push((event.at, (**trees).clone()));
            }
        });
        let rebuilds =
            scenario.changes.iter().filter(|(_, change)| matches!(change, Change::Online(..)));
        let changes: Vec<Nanos> = rebuilds.map(|(at, _)| *at).collect();
        let times: Vec<Nanos> = seen.iter().map(|(at, _)| *at).collect();
        assert_eq!(times, [&[Nanos::ZERO][..], &changes].concat(), "{fix:?}");
        let top = |trees: &DomainTrees| trees.cores()[0].domains.last().unwrap().name.clone();
        let (first, last) = (&seen[0].1, &seen.last().unwrap().1);
        assert_eq!(
            (first.all(), last.all()),
            (scenario.host.topology.all(), scenario.host.topology.all())
        );
        assert_eq!((top(first) == "NUMA", top(last) == "NUMA"), (true, has_nodes), "{fix:?}");
    }
}

/// What a trace of the scenario holds once it was written and read.
fn written(scenario: &Scenario) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new());
    writer.meta(&scenario.meta("linux-default")).unwrap();
    let mut events = Vec::new();
    traced(scenario, |event| {
        writer.event(event).unwrap();
        events.push(event.clone());
    });
    writer.finish().unwrap();
    let bytes = writer.into_inner();
    let back: Vec<Event> = Reader::new(&bytes[..]).unwrap().map(Result::unwrap).collect();
    assert_eq!(back, events);
    bytes
}

/// Sections 3.2 and 3.4 of the paper: no thread runs, and the domains alone show it.
#[test]
fn lint_of_a_trace_finds_bugs_of_domains_without_load() {
    let rules = |name: &str, change: fn(&mut KernelModel)| {
        let bytes = written(&example_with(name, 2, change));
        let mut reader = Reader::new(&bytes[..]).unwrap();
        let inspection = Inspection::new(&lint::traced::read(&mut reader, "trace").unwrap());
        let reports = inspection.dumps.iter().chain(&inspection.changes);
        let findings = reports.flat_map(|one| &one.report.findings);
        let rules: BTreeSet<Rule> = findings.map(|finding| finding.rule).collect();
        (inspection.verdict, rules.into_iter().collect::<Vec<_>>(), inspection.dumps.len())
    };
    let lu = "wasted-cores-lu.toml";
    let groups = vec![Rule::OwnGroup, Rule::Separable];
    assert_eq!(rules(lu, |_| {}), (Verdict::Violated, groups, 1));
    let fixed = rules(lu, |model| model.fixes.group_construction = Fix::Paper);
    assert_eq!(fixed, (Verdict::Clean, vec![], 1));

    // The other bug would be found as well.
    let hotplug = |fix: fn(&mut KernelModel)| rules("wasted-cores-hotplug.toml", fix);
    let lost = hotplug(|model| model.fixes.group_construction = Fix::Paper);
    assert_eq!(lost, (Verdict::Violated, vec![Rule::Reach, Rule::Unchanged], 3));
    let fixed = hotplug(|model| {
        (model.fixes.group_construction, model.fixes.missing_domains) = (Fix::Paper, Fix::Mainline);
    });
    assert_eq!(fixed, (Verdict::Clean, vec![], 3));
}
