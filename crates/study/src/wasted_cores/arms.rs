//! The scenarios of the benchmark.

use anyhow::{Context as _, Result, ensure};
use quell_model::{CoreId, Nanos};
use quell_sim::file::{FileError, Simulation};
use quell_sim::workload::papers::NAS;
use quell_sim::{Fix, Fixes, Kernel, KernelModel, Load, Scenario, run};

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

/// Section 3.1: make beside two heavy threads, in all kernels.
fn group_imbalance(arms: &mut Vec<Arm>) -> Result<()> {
    let make = parsed(MAKE)?;
    let mut push = |system, against, kernel| {
        let scenario = Scenario { kernel, ..make.clone() };
        arms.push(Arm { case: "make-r".to_owned(), system, against, scenario });
    };
    for (name, model) in KernelModel::PRESETS {
        push(name, None, Kernel::Linux(model));
        let fixes = Fixes { group_imbalance: Fix::Paper, ..model.fixes };
        match name {
            "linux-4.1" => push("linux-4.1+fix", Some(name), fixed(model, fixes)),
            "linux-4.3" => push("linux-4.3+fix", Some(name), fixed(model, fixes)),
            _ => {}
        }
    }
    Ok(())
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

/// Section 3.3 and table 2: a database with either fix, and with both.
fn overload_on_wakeup(arms: &mut Vec<Arm>) -> Result<()> {
    let tpch = parsed(TPCH)?;
    let model = KernelModel::LINUX_4_1;
    let fixes = |group_imbalance, overload_on_wakeup| Fixes {
        group_imbalance,
        overload_on_wakeup,
        ..model.fixes
    };
    for (system, fixes) in [
        ("none", fixes(Fix::None, Fix::None)),
        ("group-imbalance", fixes(Fix::Paper, Fix::None)),
        ("overload-on-wakeup", fixes(Fix::None, Fix::Paper)),
        ("both", fixes(Fix::Paper, Fix::Paper)),
    ] {
        let scenario = Scenario { kernel: fixed(model, fixes), ..tpch.clone() };
        let against = (system != "none").then_some("none");
        arms.push(Arm { case: "tpch".to_owned(), system, against, scenario });
    }
    Ok(())
}

/// Section 3.4: NAS programs with 64 threads after a core was offline.
fn missing_domains(arms: &mut Vec<Arm>) -> Result<()> {
    let hotplug = parsed(HOTPLUG)?;
    for nas in &NAS {
        let model = KernelModel::LINUX_4_1;
        let fixes = Fixes { missing_domains: Fix::Paper, ..model.fixes };
        let case = format!("hotplug: {}", nas.name);
        nas_arms(arms, &hotplug, (&case, nas.name, 64, 0), model, fixes)?;
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
    let nas = NAS.iter().find(|nas| nas.name == name).context("a NAS program")?;
    let permille = PERMILLE.iter().find(|(known, _)| *known == name).map_or(100, |(_, it)| *it);
    let program = nas.program(threads, Some(CoreId(core)), permille);
    let without = nas.on_16.max(nas.on_64).0 * u64::from(permille) / 1_000;
    for (system, against, kernel) in
        [("none", Some("paper"), Kernel::Linux(model)), ("paper", None, fixed(model, fixes))]
    {
        let mut scenario = Scenario { kernel, ..base.clone() };
        let task = scenario.tasks.first_mut().context("a task")?;
        task.load = Load::Program(program.clone());
        task.threads = threads;
        // Up to 300 times as long as without the bug.
        scenario.length = Nanos((without * 300).clamp(10_000_000_000, 600_000_000_000));
        arms.push(Arm { case: case.to_owned(), system, against, scenario });
    }
    Ok(())
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
        let report = run(&scenario, policy.as_mut());
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
        ];
        if let Some(heavy) = report.tasks.get(1).filter(|_| self.case == "make-r") {
            metrics.push(("heavy_cores", heavy.ran.0 as f64 / scenario.length.0 as f64));
        }
        Ok(metrics)
    }
}
