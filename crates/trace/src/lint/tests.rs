use proptest::prelude::*;
use quell_model::{CoreDomains, CoreId, CoreSet, Domain, DomainTrees};

use super::build::{How, Machine};
use super::{LintFinding, Report, Rule, Verdict, compare, lint};

fn set(list: &str) -> CoreSet {
    list.parse().unwrap()
}

fn of(rule: Rule, report: &Report) -> Vec<&LintFinding> {
    report.findings.iter().filter(|finding| finding.rule == rule).collect()
}

fn rules(report: &Report) -> Vec<Rule> {
    let mut rules: Vec<Rule> = report.findings.iter().map(|finding| finding.rule).collect();
    rules.dedup();
    rules
}

/// The trees with those of one core changed.
fn with(trees: &DomainTrees, core: usize, change: impl FnOnce(&mut CoreDomains)) -> DomainTrees {
    let mut cores = trees.cores().to_vec();
    change(&mut cores[core]);
    DomainTrees::new(cores, trees.isolated).unwrap()
}

#[test]
fn the_papers_machine_is_clean_when_built_from_each_cores_view() {
    let machine = Machine::of_the_paper(2, 1);
    let trees = machine.trees(How::Rightly);
    assert_eq!(lint(&trees).verdict(), Verdict::Clean, "{}", lint(&trees));
    // As a 6.1 guest with these distances says.
    let top = |node: usize| {
        let groups = &trees.cores()[2 * node].domains.last().unwrap().groups;
        groups.iter().map(|group| group.cores).collect::<Vec<CoreSet>>()
    };
    assert_eq!(top(0), [machine.of_nodes([0, 1, 2, 4, 6]), machine.of_nodes([1, 2, 3, 4, 5, 7])]);
    assert_eq!(top(1), [machine.of_nodes([0, 1, 3, 5, 7]), machine.of_nodes([0, 2, 3, 4, 5, 6])]);
    assert_eq!(top(6), [machine.of_nodes([0, 2, 4, 6, 7]), machine.of_nodes([0, 1, 3, 5, 7])]);
}

/// What Debian's 6.12 tells at boot, with `sched_verbose`, on 8 nodes with the distances of the paper's machine.
#[test]
fn a_real_kernel_builds_the_papers_machine_as_the_tests_do() {
    let told = super::dump::read(include_bytes!("golden/paper-6.12.txt").as_slice()).unwrap();
    assert_eq!(lint(&told).verdict(), Verdict::Clean, "{}", lint(&told));
    let built = Machine::of_the_paper(2, 1).trees(How::Rightly);
    assert_eq!(told.cores().len(), built.cores().len());
    for (told, built) in told.cores().iter().zip(built.cores()) {
        assert_eq!((told.core, told.root), (built.core, built.root));
        let shape = |core: &CoreDomains| {
            let groups = |domain: &Domain| domain.groups.iter().map(|one| one.cores).collect();
            let level = |domain: &Domain| (domain.name.clone(), domain.span, groups(domain));
            core.domains.iter().map(level).collect::<Vec<(String, CoreSet, Vec<CoreSet>)>>()
        };
        assert_eq!(shape(told), shape(built), "core {}", told.core);
    }
}

#[test]
fn groups_built_from_core_0_are_found_with_the_nodes_that_share_them_all() {
    let machine = Machine::of_the_paper(2, 1);
    let report = lint(&machine.trees(How::FromCoreZero));
    assert_eq!(rules(&report).iter().min(), Some(&Rule::OwnGroup));
    // Nodes 0 and 3 are those that the groups were built for; node 0 sees what it should.
    let wrong = of(Rule::OwnGroup, &report).iter().fold(set(""), |sum, one| sum.union(&one.cores));
    assert!(wrong.intersection(&machine.of_nodes([0])).is_empty(), "{report}");
    assert!(machine.of_nodes([1, 2, 4]).is_subset(&wrong), "{report}");
    // The pairs of the paper's experiment: hogs pinned to nodes 1 and 2 stay on one of them.
    for (here, there) in [(1, 2), (2, 1), (1, 4), (4, 1)] {
        let stuck = of(Rule::Separable, &report).into_iter().any(|finding| {
            machine.of_nodes([here]).is_subset(&finding.cores)
                && finding.seen.contains(&machine.of_nodes([there]).to_string())
        });
        assert!(stuck, "nodes {here} and {there}: {report}");
    }
}

#[test]
fn lost_levels_are_found_in_one_dump_and_between_two() {
    let machine = Machine::of_the_paper(4, 2);
    let lost = machine.trees(How::WithoutNodes);
    let report = lint(&lost);
    assert_eq!(rules(&report), [Rule::Reach]);
    assert_eq!(report.findings.len(), 8, "one a node: {report}");
    let changed = compare(&machine.trees(How::Rightly), &lost);
    assert_eq!(rules(&changed), [Rule::Unchanged]);
    assert!(changed.findings[0].expected.contains("NUMA"), "{changed}");
}

#[test]
fn a_host_without_domains_is_found_and_isolated_cores_are_wanted_so() {
    let machine = Machine { distances: vec![vec![10]], physical: 4, siblings: 1 };
    let trees = machine.trees(How::Rightly);
    let none: Vec<CoreDomains> =
        trees.cores().iter().map(|core| CoreDomains { domains: vec![], ..core.clone() }).collect();
    let report = lint(&DomainTrees::new(none.clone(), CoreSet::EMPTY).unwrap());
    assert_eq!((report.findings.len(), report.findings[0].cores), (1, set("0-3")));
    assert!(report.to_string().contains("sched_load_balance"));
    let isolated = lint(&DomainTrees::new(none, set("0-3")).unwrap());
    assert_eq!((isolated.verdict(), isolated.intended.len()), (Verdict::Clean, 1));
    assert!(isolated.to_string().contains("on purpose"));
}

#[test]
fn a_core_whose_root_domain_is_not_known_is_not_judged() {
    let machine = Machine { distances: vec![vec![10]], physical: 2, siblings: 1 };
    let trees = with(&machine.trees(How::Rightly), 1, |core| core.root = None);
    let report = lint(&trees);
    assert_eq!(report.verdict(), Verdict::CouldNotTell);
    assert_eq!(report.undecided[0].cores, CoreSet::of(CoreId(1)));
}

#[test]
fn a_core_that_is_away_is_not_judged() {
    let machine = Machine { distances: vec![vec![10]], physical: 3, siblings: 1 };
    let before = machine.trees(How::Rightly);
    let fewer = Machine { physical: 2, ..machine }.trees(How::Rightly);
    let report = compare(&before, &fewer);
    assert_eq!((report.verdict(), report.findings.len()), (Verdict::CouldNotTell, 0));
    assert_eq!(compare(&before, &before).verdict(), Verdict::Clean);
}

#[test]
fn the_same_on_many_cores_is_said_once() {
    let report = lint(&Machine::of_the_paper(8, 1).trees(How::WithoutNodes));
    let text = report.to_string();
    assert_eq!(text.matches("L1 on cores").count(), 8, "{text}");
    assert!(text.starts_with("violated: 64 cores (0-63), levels MC"), "{text}");
    assert!(serde_json::to_string(&report).unwrap().contains("\"rule\":\"L1\""));
}

/// Random machines: any symmetric distances.
fn machines() -> impl Strategy<Value = Machine> {
    (1usize..7, 1usize..4, 1usize..3).prop_flat_map(|(nodes, physical, siblings)| {
        let distance = prop_oneof![Just(12), Just(16), Just(22), Just(32)];
        proptest::collection::vec(distance, nodes * nodes).prop_map(move |numbers| {
            let distance = |a: usize, b: usize| match a == b {
                true => 10,
                false => numbers[a.min(b) * nodes + a.max(b)],
            };
            let row = |a| (0..nodes).map(|b| distance(a, b)).collect();
            Machine { distances: (0..nodes).map(row).collect(), physical, siblings }
        })
    })
}

proptest! {
    #[test]
    fn domains_built_from_each_cores_view_are_always_clean(machine in machines()) {
        let report = lint(&machine.trees(How::Rightly));
        prop_assert_eq!(report.verdict(), Verdict::Clean, "{}", report);
    }

    #[test]
    fn each_planted_defect_is_found_by_its_rule(machine in machines(), at in any::<prop::sample::Index>()) {
        let trees = machine.trees(How::Rightly);
        let core = at.index(trees.cores().len());
        prop_assume!(!trees.cores()[core].domains.is_empty());
        let level = at.index(trees.cores()[core].domains.len());
        let found = |rule, change: &dyn Fn(&mut CoreDomains)| {
            let report = lint(&with(&trees, core, change));
            let own = CoreSet::of(CoreId(core as u16));
            of(rule, &report).iter().any(|finding| finding.cores == own)
        };
        let reach = found(Rule::Reach, &|core| drop(core.domains.pop()));
        let own = found(Rule::OwnGroup, &|core| core.domains[level].groups.rotate_left(1));
        let cover = found(Rule::Cover, &|core| core.domains[level].groups.truncate(1));
        // Each group, the own one too, has all cores: nobody is apart from anybody.
        let separable = found(Rule::Separable, &|core| {
            for domain in &mut core.domains {
                domain.groups.iter_mut().for_each(|group| group.cores = domain.span);
            }
        });
        prop_assert_eq!([reach, own, cover, separable], [true; 4]);
        let changed = compare(&trees, &with(&trees, core, |core| drop(core.domains.pop())));
        prop_assert_eq!(rules(&changed), [Rule::Unchanged]);
    }
}
