//! Every parameter of the simulated experiments: its value from the code that uses it, and its source.

use quell_model::Nanos;
use quell_sim::Costs;
use quell_sim::machine::{Memory, preset};
use quell_sim::workload::models::{MODELS, Model};
use quell_sim::workload::{Phase, Service};

use super::client;
use quell_report::table::{Table, number};

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Published,
    /// Follows from published figures.
    Derived,
    /// From other measurements.
    Estimated,
    Assumed,
}

use Source::{Assumed, Derived, Estimated, Published};

/// Whose parameter it is, which, where it is from, why, and the targets that it was derived from or fitted to.
type Known = (&'static str, &'static str, Source, &'static str, &'static str);

const KNOWN: [Known; 43] = [
    ("machine", "cores", Published, "one socket of the testbed, 12 Broadwell cores", ""),
    ("machine", "cache", Published, "the same", ""),
    ("machine", "memory", Estimated, "four channels of DDR4: 60 GB/s of sequential reads", ""),
    ("memory", "latency", Estimated, "1 + k u / (1 - u) for Broadwell, k = 0.2", ""),
    ("memory", "worst latency", Estimated, "where controllers of that time saturate", ""),
    ("memory", "reaction", Estimated, "2 to 4 us, measured on another machine", ""),
    ("kernel module", "switch, migration", Assumed, "a context switch without system call", ""),
    (
        "kernel module",
        "grant, preempt, idle",
        Published,
        "2 to 5 us; an idle core that watches memory 1 us",
        "",
    ),
    ("Linux", "switch, actions", Estimated, "`quell bench mechanism`", ""),
    (
        "client",
        "network and client",
        Derived,
        "Shenango's memcached at 0.5 M/s as measured by others (Skyloft, SOSP'24), less the model's service",
        "",
    ),
    (
        "memcached",
        "service time",
        Derived,
        "12 M/s on 22 threads with busy siblings",
        "memcached_peak_mrps",
    ),
    ("memcached", "memory share", Derived, "six accesses of 85 ns, two at a time", ""),
    ("memcached", "traffic", Derived, "six lines in 1.25 us", ""),
    ("memcached", "cache", Assumed, "code, connections, the hot part of the index", ""),
    ("silo", "service time", Published, "20 us, high variance; sigma assumed", ""),
    ("silo", "memory share", Assumed, "dependent misses of index look-ups", ""),
    ("silo", "traffic", Assumed, "", ""),
    ("silo", "cache", Assumed, "", ""),
    (
        "storage",
        "service time",
        Derived,
        "0.52 M/s on 22 threads with busy siblings; sigma assumed",
        "storage_peak_mrps",
    ),
    ("storage", "memory share", Assumed, "mostly arithmetic", ""),
    ("storage", "traffic", Assumed, "", ""),
    ("storage", "cache", Assumed, "", ""),
    ("stream-dram", "memory share", Assumed, "bound by its core's share of bandwidth", ""),
    ("stream-dram", "traffic", Estimated, "10 to 12 GB/s a core", ""),
    ("stream-dram", "cache", Published, "4.49 MB a thread", ""),
    ("stream-l2", "memory share", Published, "75 KB of a 256 KB cache", ""),
    ("stream-l2", "traffic", Assumed, "", ""),
    ("stream-l2", "cache", Published, "75 KB a thread", ""),
    ("swaptions-gc", "memory share", Assumed, "", ""),
    (
        "swaptions-gc",
        "traffic",
        Estimated,
        "1 to 2 GB/s a core; collecting 25 GB/s and more in all",
        "",
    ),
    ("swaptions-gc", "cache", Assumed, "", ""),
    ("swaptions-gc", "phases", Derived, "collections of 100 to 200 ms on all threads", "pause_ms"),
    ("x264", "memory share", Assumed, "", ""),
    ("x264", "traffic", Estimated, "1 to 2 GB/s a core", ""),
    ("x264", "cache", Assumed, "", ""),
    ("x264", "phases", Estimated, "0.1 to 1 s", ""),
    ("streamcluster", "memory share", Assumed, "", ""),
    ("streamcluster", "traffic", Estimated, "6 to 8 GB/s a core", ""),
    ("streamcluster", "cache", Assumed, "", ""),
    ("streamcluster", "phases", Assumed, "calm parts between barriers", ""),
    ("hog", "memory share", Assumed, "arithmetic alone", ""),
    ("service", "memory share", Assumed, "arithmetic alone", ""),
    (
        "siblings",
        "slow-down",
        Estimated,
        "PARTIES' sibling row; 30 % more throughput of two lanes",
        "",
    ),
];

/// The table for the page.
pub fn table() -> Table {
    let mut table = Table::new(["of", "parameter", "value", "is", "because", "derived from"]);
    for (of, parameter, value) in values() {
        let known = KNOWN.iter().find(|known| (known.0, known.1) == (of, parameter));
        let Some((_, _, source, why, target)) = known else { continue };
        let source = format!("{source:?}").to_lowercase();
        let target = if target.is_empty() { "-".to_owned() } else { format!("`{target}`") };
        table.row([of.to_owned(), parameter.to_owned(), value, source, (*why).to_owned(), target]);
    }
    table
}

/// Whose, which, and its value.
fn values() -> Vec<(&'static str, &'static str, String)> {
    let mut all = Vec::new();
    if let Some(preset) = preset("caladan") {
        let (nodes, physical, smt) = preset.shape();
        let machine = preset.machine();
        all.push(("machine", "cores", format!("{nodes} × {physical} × {smt}")));
        let cache = machine.cache.map_or(0, |size| size.0);
        all.push(("machine", "cache", format!("{} MB", cache >> 20)));
        let memory = machine.memory.map_or(0, |memory| memory.capacity.0);
        all.push(("machine", "memory", format!("{} GB/s", memory / 1_000_000_000)));
    }
    all.push(("memory", "latency", format!("k = {}", Memory::KNEE as f64 / 1e3)));
    all.push(("memory", "worst latency", format!("{} ×", Memory::WORST)));
    all.push(("memory", "reaction", time(Memory::REACTION)));
    let Costs { switch, migrate, grant, preempt, idle, .. } = Costs::MODULE;
    all.push(("kernel module", "switch, migration", [switch, migrate].map(time).join(", ")));
    let actions = [grant, preempt, idle].map(time).join(", ");
    all.push(("kernel module", "grant, preempt, idle", actions));
    let Costs { switch, preempt, .. } = Costs::KERNEL;
    all.push(("Linux", "switch, actions", [switch, preempt].map(time).join(", ")));
    all.push(("siblings", "slow-down", "[table](../lab/sim.md#the-model)".to_owned()));
    let network = format!("lognormal, median {} us, sigma {}", client::MEDIAN_US, client::SIGMA);
    all.push(("client", "network and client", network));
    for model in MODELS.iter().filter(|model| !model.has_steps()) {
        of_model(model, &mut all);
    }
    all
}

fn of_model(model: &'static Model, all: &mut Vec<(&'static str, &'static str, String)>) {
    let mut push = |parameter, value| all.push((model.name, parameter, value));
    let each = |show: &dyn Fn(&Phase) -> String| {
        let mut values: Vec<String> = model.phases.iter().map(show).collect();
        values.dedup();
        values.join(", ")
    };
    match model.service {
        Some(Service::Lognormal { mean, sigma }) => push(
            "service time",
            format!("lognormal, {}, sigma {}", time(mean), f64::from(sigma) / 1e3),
        ),
        Some(other) => push("service time", format!("{other:?}")),
        None => {}
    }
    push("memory share", each(&|phase| format!("{} %", f64::from(phase.profile.memory) / 10.0)));
    if model.phases.iter().any(|phase| phase.profile.traffic_mb > 0) {
        let traffic = |phase: &Phase| {
            let weight = f64::from(phase.profile.weight) / 1e3;
            let gb = number(f64::from(phase.profile.traffic_mb) / 1e3);
            if weight == 1.0 { format!("{gb} GB/s") } else { format!("{gb} GB/s × {weight}") }
        };
        push("traffic", each(&traffic));
        let cache = |phase: &Phase| match phase.profile.working_set.0 >> 20 {
            mb if phase.profile.streams => format!("{mb} MB, streamed"),
            mb => format!("{mb} MB"),
        };
        push("cache", each(&cache));
    }
    if model.phases.len() > 1 {
        push("phases", each(&|phase| format!("{} core s", number(phase.work.0 as f64 / 1e9))));
    }
}

fn time(time: Nanos) -> String {
    format!("{} us", number(time.0 as f64 / 1e3))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::validation::{TARGETS, Use};

    #[test]
    fn every_parameter_has_a_source_and_every_source_a_parameter() {
        let values = values();
        for (of, parameter, _) in &values {
            let known = KNOWN.iter().filter(|known| (known.0, known.1) == (*of, *parameter));
            assert_eq!(known.count(), 1, "{of} {parameter}");
        }
        assert_eq!(values.len(), KNOWN.len());
    }

    #[test]
    fn nothing_is_fitted_to_a_target_that_is_held_out() {
        for (of, parameter, .., target) in KNOWN.iter().filter(|known| !known.4.is_empty()) {
            let target = TARGETS.iter().find(|it| it.name == *target).unwrap();
            assert_eq!(target.mark, Use::Fitted, "{of} {parameter}");
        }
    }
}
