//! The simulated recordings in the tests of `trace` are what the simulator makes of their scenario.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

#[path = "../../trace/tests/recorded/mod.rs"]
mod recorded;

use std::sync::Arc;

use quell_model::{CoreId, Event, Meta, Nanos, PlanReason, Planned, TaskNames, What};
use quell_policy::by_name;
use quell_sim::file::Simulation;
use quell_sim::run_traced;

#[test]
fn simulated_recordings_are_what_the_simulator_makes() {
    for (name, policy) in [("sim-64-cores", "quell"), ("sim-64-cores-static", "static")] {
        let (meta, events) = simulated(policy);
        let recorded = recorded::named(name).open();
        assert_eq!(*recorded.meta(), meta, "{name}");
        let recorded: Vec<Event> = recorded.map(Result::unwrap).collect();
        let (recorded, made) = (in_old_form(recorded), in_old_form(events));
        for (number, found) in recorded.iter().enumerate() {
            assert_eq!(Some(found), made.get(number), "{name}: event {number}");
        }
        assert_eq!(recorded.len(), made.len(), "{name}");
    }
}

/// Events as the version that made the recordings has them: no tasks, decisions of one instant in one text, and a
/// plan's reason as text. Tasks and single decisions take numbers of their own, so numbers are left out.
fn in_old_form(events: Vec<Event>) -> Vec<(Nanos, CoreId, What)> {
    let mut names = TaskNames::default();
    let mut old: Vec<(Nanos, CoreId, What)> = Vec::new();
    let mut decisions: Option<(Nanos, CoreId, String)> = None;
    for Event { at, core, what, .. } in events {
        names.take(&what);
        if let What::Decision(made) = &what {
            let owner = made.to.map_or_else(|| "nobody".to_owned(), |id| names.name(id));
            let text = format!("core {}: {owner}, {}", made.core, made.reason);
            match &mut decisions {
                Some((.., before)) => *before += &format!("; {text}"),
                None => decisions = Some((at, core, text)),
            }
            continue;
        }
        if let Some((at, core, text)) = decisions.take() {
            old.push((at, core, What::Annotation(text.into())));
        }
        match what {
            What::Task(_) => {}
            What::Planned(plan) => {
                let reason = PlanReason::Text(names.plan_reason(&plan.reason).into());
                old.push((
                    at,
                    core,
                    What::Planned(Arc::new(Planned { reason, ..(*plan).clone() })),
                ));
            }
            what => old.push((at, core, what)),
        }
    }
    old
}

fn simulated(policy: &str) -> (Meta, Vec<Event>) {
    let file = recorded::directory().join("sim-64-cores.toml");
    let Simulation { scenario, config, .. } = Simulation::load(&file).unwrap();
    let mut policy = by_name(policy, scenario.host.clone(), config).unwrap();
    let mut events = Vec::new();
    let meta = scenario.meta(policy.name());
    run_traced(&scenario, policy.as_mut(), &mut |event| events.push(event));
    (meta, events)
}
