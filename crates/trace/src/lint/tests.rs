use proptest::prelude::*;
use quell_model::{
    CoreDomains, CoreId, CoreSet, DomainGroup, DomainRules, DomainTrees, NodeDistances,
};

use super::machines::{LOST, Machine};
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
    let trees = machine.trees(&DomainRules::LINUX_6_7);
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

/// What Debian's kernels tell at boot with `sched_verbose` (scripts/vm/domains.sh), the machine, and what is off line.
fn told() -> Vec<(&'static str, &'static str, Machine, CoreSet)> {
    let ring = Machine::of_file(include_str!("../../../../tests/vm/ring.distances"), 2, 1);
    let paper = || Machine::of_the_paper(2, 1);
    let mut told = Vec::new();
    macro_rules! told {
        ($name:literal, $machine:expr, $offline:expr) => {
            let dump = include_str!(concat!("golden/", $name, "-6.1.txt"));
            told.push((concat!($name, "-6.1"), dump, $machine, set($offline)));
            let dump = include_str!(concat!("golden/", $name, "-6.12.txt"));
            told.push((concat!($name, "-6.12"), dump, $machine, set($offline)));
        };
    }
    told!("paper-16", paper(), "");
    told!("paper-16-without-5", paper(), "5");
    told!("paper-64", Machine::of_the_paper(8, 1), "");
    told!(
        "siblings",
        Machine { distances: NodeDistances::uniform(2, 20).unwrap(), physical: 2, siblings: 2 },
        ""
    );
    told!("ring-6", ring.clone(), "");
    told
}

/// What the log of a kernel tells of a core's domains.
fn shape(core: &CoreDomains) -> Vec<(&str, CoreSet, &[DomainGroup])> {
    let mut levels = Vec::new();
    for domain in &core.domains {
        levels.push((&*domain.name, domain.span, &*domain.groups));
    }
    levels
}

#[test]
fn domains_are_built_as_real_kernels_build_them() {
    for (name, dump, machine, offline) in told() {
        let told = super::dump::read(dump.as_bytes()).unwrap();
        assert_eq!(lint(&told).verdict(), Verdict::Clean, "{name}: {}", lint(&told));
        let rules = match name.ends_with("-6.1") {
            true => DomainRules::LINUX_5_13,
            false => DomainRules::LINUX_6_7,
        };
        let built = machine.trees_without(&rules, &offline);
        assert_eq!(told.all(), built.all(), "{name}");
        for (told, built) in told.cores().iter().zip(built.cores()) {
            assert_eq!(told.root, built.root, "{name}");
            assert_eq!(shape(told), shape(built), "{name}, core {}", told.core);
        }
    }
}

#[test]
fn by_the_old_rule_all_cores_have_the_groups_of_core_0() {
    let trees = Machine::of_the_paper(8, 1).trees(&DomainRules::LINUX_4_1);
    let top = |core: &CoreDomains| {
        let groups = &core.domains.last().unwrap().groups;
        let mut cores: Vec<String> = groups.iter().map(|one| one.cores.to_string()).collect();
        cores.sort();
        cores
    };
    let first = top(&trees.cores()[0]);
    assert!(trees.cores().iter().all(|core| top(core) == first));
}

#[test]
fn groups_built_from_core_0_are_found_with_their_nodes() {
    let machine = Machine::of_the_paper(2, 1);
    let report = lint(&machine.trees(&DomainRules::LINUX_4_1));
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
    let lost = machine.trees(&LOST);
    let report = lint(&lost);
    assert_eq!(rules(&report), [Rule::Reach]);
    assert_eq!(report.findings.len(), 8, "one a node: {report}");
    let changed = compare(&machine.trees(&DomainRules::LINUX_6_7), &lost);
    assert_eq!(rules(&changed), [Rule::Unchanged]);
    assert!(changed.findings[0].expected.contains("NUMA"), "{changed}");
}

#[test]
fn host_without_domains_is_found_unless_isolated() {
    let machine = Machine::flat(4, 1);
    let trees = machine.trees(&DomainRules::LINUX_6_7);
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
    let machine = Machine::flat(2, 1);
    let trees = with(&machine.trees(&DomainRules::LINUX_6_7), 1, |core| core.root = None);
    let report = lint(&trees);
    assert_eq!(report.verdict(), Verdict::CouldNotTell);
    assert_eq!(report.undecided[0].cores, CoreSet::of(CoreId(1)));
}

#[test]
fn a_core_that_is_away_is_not_judged() {
    let machine = Machine::flat(3, 1);
    let before = machine.trees(&DomainRules::LINUX_6_7);
    let fewer = Machine { physical: 2, ..machine }.trees(&DomainRules::LINUX_6_7);
    let report = compare(&before, &fewer);
    assert_eq!((report.verdict(), report.findings.len()), (Verdict::CouldNotTell, 0));
    assert_eq!(compare(&before, &before).verdict(), Verdict::Clean);
}

#[test]
fn the_same_on_many_cores_is_said_once() {
    let report = lint(&Machine::of_the_paper(8, 1).trees(&LOST));
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
            let rows: Vec<Vec<u32>> = (0..nodes).map(row).collect();
            Machine { distances: NodeDistances::new(&rows).unwrap(), physical, siblings }
        })
    })
}

proptest! {
    #[test]
    fn domains_built_from_each_cores_view_are_always_clean(machine in machines()) {
        let report = lint(&machine.trees(&DomainRules::LINUX_6_7));
        prop_assert_eq!(report.verdict(), Verdict::Clean, "{}", report);
    }

    #[test]
    fn each_planted_defect_is_found_by_its_rule(machine in machines(), at in any::<prop::sample::Index>()) {
        let trees = machine.trees(&DomainRules::LINUX_6_7);
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
