//! Recording allocates nothing on the thread that decides once the buffers have their size.

#[path = "../../policy/tests/counting/mod.rs"]
mod counting;

#[path = "../../policy/tests/common/mod.rs"]
mod common;

use common::Scene;
use quell_decisions::{Clock, Meta, NewFile, Recorder};
use quell_model::*;
use quell_policy::{Config, by_name};

#[test]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
fn a_steady_state_allocates_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut scene = Scene::new(8, 2, true);
    let ids: Vec<TaskId> = (0..6).flat_map(|_| [scene.lc(1, 4), scene.be(8)]).collect();
    let mut policy = by_name("quell", scene.host.clone(), Config::default()).unwrap();
    let meta = Meta {
        quell: String::new(),
        policy: "quell".to_owned(),
        config: Config::default(),
        topology: scene.host.topology.clone(),
        managed: scene.host.managed,
        caps: scene.host.caps,
        clock: Clock { monotonic: Nanos::ZERO, unix_ns: 0 },
    };
    let file = NewFile::create(&dir.path().join("ring"), Some(2 << 20)).unwrap();
    let segment = file.segment_bytes();
    let (sink, spool) = file.start().unwrap();
    let mut recorder = Recorder::new(sink, meta, segment, policy.as_ref());
    ids.iter().for_each(|id| recorder.name(*id, "task"));
    let mut during = 0;
    for tick in 0..30_000u64 {
        for (at, id) in ids.iter().enumerate() {
            let roll = tick.wrapping_mul(2_654_435_761).wrapping_add(at as u64 * 40_503) >> 7;
            scene.demand(*id, (roll % 3) as u32, (roll / 3 % 4) as u32);
        }
        let wake = scene.tick(policy.as_mut(), Nanos::from_millis(1));
        let (now, seen, plan) = (scene.seen.now, &scene.seen, &scene.plan);
        let before = counting::allocations();
        recorder.record(now, seen, plan, wake, policy.as_ref());
        // Three keyframes and more than one segment lie behind by then.
        if tick >= 15_000 {
            during += counting::allocations() - before;
        }
    }
    assert_eq!(during, 0);
    let recorded = recorder.counts().recorded;
    drop(recorder);
    assert!(recorded > 15_000 && spool.finish().unwrap().bytes > 1 << 20);
}
