//! Replay is exact over an hour under load, hotplug and task churn. The hour is simulated; `docs/tools/replay.md` tells
//! how to record a real one.

#![allow(clippy::unwrap_used, reason = "a test that cannot build its scene fails")]

use std::io::Cursor;

use crate::common::*;
use quell_decisions::{Clock, Meta, Options, Reader, Recorder, Window, replay};
use quell_model::*;
use quell_policy::{BadState, Config, Policy, Wake, by_name};
use quell_sim::workload::Service;
use quell_sim::{Change, Faults, Load, Scenario, Step, Task, run};

/// A policy whose decisions are recorded.
struct Recorded {
    policy: Box<dyn Policy>,
    recorder: Recorder<Vec<u8>>,
}

impl Policy for Recorded {
    fn name(&self) -> &'static str {
        self.policy.name()
    }

    fn decide(&mut self, now: Nanos, seen: &Snapshot, plan: &mut Plan) -> Wake {
        let wake = self.policy.decide(now, seen, plan);
        self.recorder.record(now, seen, plan, wake, self.policy.as_ref());
        wake
    }

    fn save(&self, state: &mut Vec<u8>) {
        self.policy.save(state);
    }

    fn restore(&mut self, state: &mut &[u8]) -> Result<(), BadState> {
        self.policy.restore(state)
    }
}

/// Minutes in which rates step, cores go and come back, tasks leave and join, and threads run away.
fn churn(shares: bool, minutes: u64) -> Scenario {
    let host = host(3, 2, shares);
    let mut scenario = scenario(host.clone());
    let minute = 60 * SECOND;
    scenario.length = Nanos(minutes * minute);
    scenario.tick = Nanos(30 * MS);
    scenario.costs = acting_within(50 * US);
    scenario.faults = Faults { refused: 20, lost: 20, ..Faults::default() };
    let steady = |guaranteed, mean_ms: [u64; 2]| {
        let steps = (0..60u64).map(|at| {
            let mean = mean_ms[(at % 2) as usize] * MS;
            Step::every(Nanos(at * minute), Nanos(mean))
        });
        let mut task = service(&host, guaranteed, 3, &[]);
        let service = Service::Exponential(Nanos(15 * MS));
        task.load = Load::Open { steps: steps.collect(), service };
        task
    };
    let batch = |threads| {
        // Sleeps between its jobs, so that BE comes and goes too.
        let steps = vec![Step::every(Nanos::ZERO, Nanos(80 * MS))];
        let service = Service::Exponential(Nanos(60 * MS));
        Task { load: Load::Open { steps, service }, ..hog(&host, threads) }
    };
    scenario.tasks = vec![steady(1, [40, 12]), steady(1, [90, 25]), batch(3), batch(2)];
    for at in 0..240u64 {
        let (now, then) = (Nanos(at * 15 * SECOND + SECOND), Nanos(at * 15 * SECOND + 9 * SECOND));
        let core = CoreId((at % 5) as u16 + 1);
        let task = (at % 4) as u32;
        scenario.changes.extend(match at % 3 {
            0 => [(now, Change::Online(core, false)), (then, Change::Online(core, true))],
            1 => [(now, Change::Alive(task, false)), (then, Change::Alive(task, true))],
            _ => [
                (now, Change::Spin(task % 2, true)),
                (now + Nanos(SECOND), Change::Spin(task % 2, false)),
            ],
        });
    }
    scenario
}

#[test]
fn hour_of_hotplug_and_churn_is_replayed_byte_for_byte() {
    for (name, shares, minutes) in [("quell", true, 60), ("quell", false, 10), ("static", true, 5)]
    {
        let scenario = churn(shares, minutes);
        let host = &scenario.host;
        let policy = by_name(name, host.clone(), Config::default()).unwrap();
        let meta = Meta {
            quell: String::new(),
            policy: name.to_owned(),
            config: Config::default(),
            topology: host.topology.clone(),
            managed: host.managed,
            caps: host.caps,
            clock: Clock { monotonic: Nanos::ZERO, unix_ns: 0 },
        };
        let recorder = Recorder::in_memory(meta, policy.as_ref());
        let mut recorded = Recorded { policy, recorder };
        let report = run(&scenario, &mut recorded);
        assert!(
            name == "static" || report.owner_changes > 10 * minutes,
            "cores did change hands: {}",
            report.owner_changes
        );

        let file = recorded.recorder.into_sink();
        let mut reader = Reader::new(Cursor::new(&file)).unwrap();
        let options = Options { window: Window::default(), kept: 3 };
        let replayed = replay(&mut reader, options).unwrap();
        assert_eq!(replayed.differences, [], "{name} on shared cores: {shares}");
        assert_eq!((replayed.decisions, replayed.lost), (report.ticks, 0));
        assert!(replayed.covers > Nanos((minutes * 60 - 5) * SECOND));
        assert!(reader.damage().is_empty(), "{:?}", reader.damage());
    }
}
