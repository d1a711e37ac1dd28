//! What a quantum costs a uthread that computes and that nobody waits for.

use std::ffi::OsStr;
use std::time::Duration;

use anyhow::Result;
use quell_model::CoreSet;

use super::RuntimeColocateSpec;
use super::bimodal::SYSTEMS as KINDS;
use super::programs::{output, start};
use crate::host;
use crate::runtime::Measured;
use quell_report::BenchReport;
use quell_terminal::{Progress, Stop};

/// Its name in reports.
const CASE: &str = "computing";
/// Time for as much work as takes an undisturbed core a microsecond.
const METRIC: &str = "ns_per_us";
/// How long the program may take beside its time.
const PATIENCE: Duration = Duration::from_secs(10);

/// Measures each kind of quantum.
pub fn measure(
    spec: &RuntimeColocateSpec,
    report: &mut BenchReport,
    progress: &mut dyn Progress,
    stop: &Stop,
) -> Result<()> {
    let kinds = &KINDS[..3];
    let mut found = vec![Vec::new(); kinds.len()];
    for round in 0..spec.rounds {
        progress.step(round, spec.rounds, CASE);
        for (values, (_, kind, _)) in found.iter_mut().zip(kinds) {
            values.push(one(spec, kind, stop)?.value(METRIC));
        }
    }
    for ((system, ..), values) in kinds.iter().zip(&found) {
        report.push(CASE, system, METRIC, values.clone());
    }
    for ((system, ..), values) in kinds.iter().zip(&found).skip(1) {
        report.compare(CASE, (system, values), (kinds[0].0, &found[0]), METRIC);
    }
    Ok(())
}

fn one(spec: &RuntimeColocateSpec, kind: &str, stop: &Stop) -> Result<Measured> {
    stop.check()?;
    let directory = host::directory()?;
    let out = output(directory.path(), "compute");
    let core = spec.managed.first().map_or(spec.managed, CoreSet::of);
    let time = spec.time.as_millis().to_string();
    let words = ["compute", kind, &time].map(OsStr::new);
    let program = start("compute", &spec.quantum, &words, &core, None, &out)?;
    program.finish(spec.time + PATIENCE, stop)?;
    Measured::parse(&std::fs::read_to_string(&out)?)
}
