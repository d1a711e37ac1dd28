//! The scenarios of the benchmark.

use anyhow::{Context as _, Result, ensure};
use quell_model::{CoreId, Event, Nanos, What};
use quell_sim::file::{FileError, Simulation};
use quell_sim::workload::papers::NAS;
use quell_sim::workload::tpch;
use quell_sim::{
    Fix, Fixes, Kernel, KernelModel, Load, Program, Scenario, Sink, Task, run, run_traced,
};

use super::kstep::{self, FAULTS};

/// A ready scenario: its name and its text.
macro_rules! scenario {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../examples/sim/", $name, ".toml")))
    };
}

const MAKE: (&str, &str) = scenario!("wasted-cores-make");
const LU: (&str, &str) = scenario!("wasted-cores-lu");
const HOTPLUG: (&str, &str) = scenario!("wasted-cores-hotplug");
const TPCH: (&str, &str) = scenario!("wasted-cores-tpch");

/// One program under one kernel.
pub(super) struct Arm {
    pub case: String,
    /// The kernel or fix.
    pub system: &'static str,
    /// The system that ratios are to.
    pub against: Option<&'static str>,
    scenario: Scenario,
}

/// Share of its iterations that each NAS program does, in thousandths: at least one of each, so that the time between two barriers
/// is that of the whole program, and for more than a second, so that what starts and spreads out is a small part.
const PERMILLE: [(&str, u32); 9] = [
    ("bt", 50),
    ("cg", 200),
    ("ep", 200),
    ("ft", 100),
    ("is", 100),
    ("lu", 60),
    ("mg", 100),
    ("sp", 100),
    ("ua", 60),
];

/// All arms.
pub(super) fn arms() -> Result<Vec<Arm>> {
    let mut arms = Vec::new();
    group_imbalance(&mut arms)?;
    group_construction(&mut arms)?;
    overload_on_wakeup(&mut arms)?;
    missing_domains(&mut arms)?;
    what_is_left(&mut arms)?;
    faults_of_kstep(&mut arms)?;
    Ok(arms)
}

fn parsed((name, text): (&str, &str)) -> Result<Scenario> {
    let other = |name: &str| {
        let what = "no other file is read".to_owned();
        Err(FileError { file: name.to_owned(), line: None, what, remedy: String::new() })
    };
    let file = format!("examples/sim/{name}.toml");
    Ok(Simulation::parse(text, &file, name, &other)?.scenario)
}

fn fixed(model: KernelModel, fixes: Fixes) -> Kernel {
    Kernel::Linux(KernelModel { fixes, ..model })
}

/// Section 3.1: make beside two heavy threads, and lu with 60 threads beside four of them.
fn group_imbalance(arms: &mut Vec<Arm>) -> Result<()> {
    let make = parsed(MAKE)?;
    for (name, fixed_name, model) in [
        ("linux-4.1", "linux-4.1+fix", KernelModel::LINUX_4_1),
        ("linux-4.3", "linux-4.3+fix", KernelModel::LINUX_4_3),
    ] {
        let fixes = Fixes { group_imbalance: Fix::Paper, ..model.fixes };
        let mut push = |system, against, kernel| {
            let scenario = Scenario { kernel, ..make.clone() };
            arms.push(Arm { case: "make-r".to_owned(), system, against, scenario });
        };
        push(name, None, Kernel::Linux(model));
        push(fixed_name, Some(name), fixed(model, fixes));
    }
    let model = KernelModel::LINUX_4_1;
    let fixes = Fixes { group_imbalance: Fix::Paper, ..model.fixes };
    let mut beside = make;
    let heavy = beside.tasks.last().context("a heavy thread")?.clone();
    beside.tasks.truncate(1);
    beside.tasks.extend((1..=4).map(|nth| Task { name: format!("R{nth}"), ..heavy.clone() }));
    nas_arms(arms, &beside, ("lu-r", "lu", 60, 16), model, fixes)
}

/// Section 3.2: NAS programs with 16 threads on nodes 1 and 2.
fn group_construction(arms: &mut Vec<Arm>) -> Result<()> {
    let lu = parsed(LU)?;
    for nas in &NAS {
        let model = KernelModel::LINUX_4_1;
        let fixes = Fixes { group_construction: Fix::Paper, ..model.fixes };
        let case = format!("two-nodes: {}", nas.name);
        nas_arms(arms, &lu, (&case, nas.name, 16, 8), model, fixes)?;
    }
    Ok(())
}

/// Section 3.3 and table 2: a database with either fix, and with both; where nothing is to be gained; and what figure 3 shows.
fn overload_on_wakeup(arms: &mut Vec<Arm>) -> Result<()> {
    let mut tpch = parsed(TPCH)?;
    let model = KernelModel::LINUX_4_1;
    let fixes = |group_imbalance, overload_on_wakeup| Fixes {
        group_imbalance,
        overload_on_wakeup,
        ..model.fixes
    };
    let none = fixes(Fix::None, Fix::None);
    let third = fixes(Fix::None, Fix::Paper);
    let mut push = |case: &str, system, model, base: &Scenario, fixes| {
        let scenario = Scenario { kernel: fixed(model, fixes), ..base.clone() };
        let against = (system != "none").then_some("none");
        arms.push(Arm { case: case.to_owned(), system, against, scenario });
    };
    // Parts of some quarter of a second, twice as long where each is followed by a small one.
    for (case, query, permille) in [("tpch", tpch::Q18, 100), ("tpch-all", tpch::ALL, 11)] {
        set_workers(&mut tpch, query.program(64, Some(CoreId(0)), permille))?;
        for (system, fixes) in [
            ("none", none),
            ("group-imbalance", fixes(Fix::Paper, Fix::None)),
            ("overload-on-wakeup", third),
            ("both", fixes(Fix::Paper, Fix::Paper)),
        ] {
            push(case, system, model, &tpch, fixes);
        }
    }
    set_workers(&mut tpch, tpch::Q18.program(64, Some(CoreId(0)), 100))?;
    let without_groups = KernelModel { autogroup: false, ..model };
    push("tpch-no-autogroup", "none", without_groups, &tpch, none);
    push("tpch-no-autogroup", "overload-on-wakeup", without_groups, &tpch, third);
    let deep = KernelModel { deep_idle: true, ..model };
    push("tpch-deep-idle", "none", deep, &tpch, none);
    push("tpch-deep-idle", "overload-on-wakeup", deep, &tpch, third);
    set_workers(&mut tpch, tpch::Q18.program(32, Some(CoreId(0)), 100))?;
    push("tpch-32-workers", "none", model, &tpch, none);
    push("tpch-32-workers", "overload-on-wakeup", model, &tpch, third);
    Ok(())
}

/// The first task does this.
fn set_workers(scenario: &mut Scenario, program: Program) -> Result<()> {
    let task = scenario.tasks.first_mut().context("a task")?;
    task.load = Load::Program(program);
    Ok(())
}

/// Section 3.4: NAS programs with 64 threads after a core was offline.
fn missing_domains(arms: &mut Vec<Arm>) -> Result<()> {
    let mut hotplug = parsed(HOTPLUG)?;
    let model = KernelModel::LINUX_4_1;
    let fixes = Fixes { missing_domains: Fix::Paper, ..model.fixes };
    for nas in &NAS {
        let case = format!("hotplug: {}", nas.name);
        nas_arms(arms, &hotplug, (&case, nas.name, 64, 0), model, fixes)?;
    }
    hotplug.machine.smt = false;
    nas_arms(arms, &hotplug, ("hotplug-whole-cores", "ep", 64, 0), model, fixes)
}

/// Each bug's workload on each kernel: as it is, and with the paper's fix of that bug alone.
fn what_is_left(arms: &mut Vec<Arm>) -> Result<()> {
    let make = parsed(MAKE)?;
    let mut tpch = parsed(TPCH)?;
    set_workers(&mut tpch, tpch::Q18.program(64, Some(CoreId(0)), 100))?;
    let mut two_nodes = parsed(LU)?;
    set_nas(&mut two_nodes, "cg", 16, 8)?;
    let mut hotplug = parsed(HOTPLUG)?;
    set_nas(&mut hotplug, "cg", 64, 0)?;
    for (name, model) in KernelModel::PRESETS {
        let own = model.fixes;
        for (bug, base, fixes) in [
            ("group-imbalance", &make, Fixes { group_imbalance: Fix::Paper, ..own }),
            ("group-construction", &two_nodes, Fixes { group_construction: Fix::Paper, ..own }),
            ("overload-on-wakeup", &tpch, Fixes { overload_on_wakeup: Fix::Paper, ..own }),
            ("missing-domains", &hotplug, Fixes { missing_domains: Fix::Paper, ..own }),
        ] {
            let case = format!("left: {bug}: {name}");
            let arm = |system, against, kernel| Arm {
                case: case.clone(),
                system,
                against,
                scenario: Scenario { kernel, ..base.clone() },
            };
            arms.push(arm("as-is", Some("paper"), Kernel::Linux(model)));
            arms.push(arm("paper", None, fixed(model, fixes)));
        }
    }
    Ok(())
}

/// What kSTEP found, on each kernel: as it is, and with its authors' fix of that fault alone.
fn faults_of_kstep(arms: &mut Vec<Arm>) -> Result<()> {
    for fault in &FAULTS {
        let base = parsed(fault.scenario)?;
        for (name, model) in KernelModel::PRESETS {
            let arm = |system, against, kernel| Arm {
                case: kstep::case(fault.name, name),
                system,
                against,
                scenario: Scenario { kernel, ..base.clone() },
            };
            arms.push(arm("as-is", Some("paper"), Kernel::Linux(model)));
            arms.push(arm("paper", None, fixed(model, (fault.fixed)(model.fixes))));
        }
    }
    Ok(())
}

/// A program without and with a fix.
fn nas_arms(
    arms: &mut Vec<Arm>,
    base: &Scenario,
    (case, name, threads, core): (&str, &str, u32, u16),
    model: KernelModel,
    fixes: Fixes,
) -> Result<()> {
    let mut scenario = base.clone();
    set_nas(&mut scenario, name, threads, core)?;
    for (system, against, kernel) in
        [("none", Some("paper"), Kernel::Linux(model)), ("paper", None, fixed(model, fixes))]
    {
        let scenario = Scenario { kernel, ..scenario.clone() };
        arms.push(Arm { case: case.to_owned(), system, against, scenario });
    }
    Ok(())
}

/// The first task is a program of NAS, and the scenario lasts up to 300 times as long as that without a bug.
fn set_nas(scenario: &mut Scenario, name: &str, threads: u32, core: u16) -> Result<()> {
    let nas = NAS.iter().find(|nas| nas.name == name).context("a NAS program")?;
    let permille = PERMILLE.iter().find(|(known, _)| *known == name).map_or(100, |(_, it)| *it);
    let task = scenario.tasks.first_mut().context("a task")?;
    task.load = Load::Program(nas.program(threads, Some(CoreId(core)), permille));
    task.threads = threads;
    let without = nas.on_16.max(nas.on_64).0 * u64::from(permille) / 1_000;
    scenario.length = Nanos((without * 300).clamp(10_000_000_000, 600_000_000_000));
    Ok(())
}

/// Events of the kinds that the paper's recorder has (section 4.2).
#[derive(Default)]
struct Noted {
    sizes: u64,
    loads: u64,
    searches: u64,
}

impl Sink for Noted {
    fn event(&mut self, event: Event) {
        match event.what {
            What::Queue { .. } => self.sizes += 1,
            What::Load { .. } => self.loads += 1,
            What::Considered { .. } => self.searches += 1,
            _ => {}
        }
    }
}

impl Arm {
    /// Runs it with a seed: metrics and values.
    pub fn measure(&self, seed: u64) -> Result<Vec<(&'static str, f64)>> {
        let scenario = Scenario { seed, ..self.scenario.clone() };
        let mut policy = quell_policy::by_name(
            "linux-default",
            scenario.host.clone(),
            quell_policy::Config::default(),
        )?;
        let mut noted = Noted::default();
        let report = match self.case == "tpch" {
            true => run_traced(&scenario, policy.as_mut(), &mut noted),
            false => run(&scenario, policy.as_mut()),
        };
        ensure!(report.broken.is_empty(), "{}: {:?}", self.case, report.broken);
        let seconds = |time: Nanos| time.0 as f64 / 1e9;
        // All programs of the arm have ended.
        let programs = scenario.tasks.iter().zip(&report.tasks);
        let programs = programs.filter(|(task, _)| matches!(task.load, Load::Program(_)));
        let ends: Option<Vec<Nanos>> = programs.map(|(_, result)| result.completed).collect();
        let completed = ends.and_then(|ends| ends.into_iter().max()).with_context(|| {
            format!("{} under {} did not end in {}", self.case, self.system, scenario.length)
        })?;
        // A program that joins late ran less long than the clock says.
        let joined = scenario.changes.iter().map(|(at, _)| *at).max().unwrap_or_default();
        let time = completed.since(joined);
        let mut metrics = vec![
            ("completed_s", seconds(time)),
            ("wasted_core_s", seconds(report.waste.cores)),
            ("migrations", report.migrations.values().sum::<u64>() as f64),
            ("node_migrations", report.node_migrations as f64),
        ];
        if report.waste.time > Nanos::ZERO {
            let idle = report.waste.idle.0 as f64 / report.waste.time.0 as f64;
            metrics.push(("idle_cores_in_violation", idle));
        }
        if self.case.starts_with("tpch") {
            let [pair, node, far] = report.waste.waits.map(seconds);
            metrics.extend([
                ("wait_beside_sibling_s", pair),
                ("wait_beside_node_s", node),
                ("wait_beside_other_node_s", far),
            ]);
        }
        if self.case == "tpch" {
            let per_second = |count: u64| count as f64 / seconds(time);
            metrics.extend([
                ("sizes_per_s", per_second(noted.sizes)),
                ("loads_per_s", per_second(noted.loads)),
                ("searches_per_s", per_second(noted.searches)),
            ]);
        }
        if self.case == "make-r" {
            let heavy = report.tasks.get(1).context("a heavy thread")?;
            metrics.push(("heavy_cores", heavy.ran.0 as f64 / scenario.length.0 as f64));
        }
        Ok(metrics)
    }
}
