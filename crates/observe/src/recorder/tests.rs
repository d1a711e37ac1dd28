//! Recordings of this host, with real threads. Needs the right to use BPF.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Instant;

use quell_model::{Activity, Certainty, MoveCause};

use super::*;
use crate::workers::{Worker, crowded, pin};
use quell_testkit::host_lock;

/// Longer than anything here takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

fn options(events: Events) -> Options {
    Options { events, ..Options::default() }
}

/// Records until an event is found.
fn record_until(options: &Options, what: &str, found: impl Fn(&Event) -> bool) -> Vec<Event> {
    let mut recorder = Recorder::start(options).unwrap();
    let (mut events, start) = (Vec::new(), Instant::now());
    let mut seen = 0;
    while !events[seen..].iter().any(&found) {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        seen = events.len();
        std::thread::sleep(Duration::from_millis(5));
        recorder.drain(&mut events).unwrap();
    }
    recorder.finish(&mut events);
    events
}

/// Records while something happens.
fn record_while(options: &Options, act: impl FnOnce(&mut Recorder)) -> (Vec<Event>, Statistics) {
    let mut recorder = Recorder::start(options).unwrap();
    let mut events = Vec::new();
    act(&mut recorder);
    recorder.drain(&mut events).unwrap();
    let statistics = recorder.finish(&mut events);
    (events, statistics)
}

/// The stream's own promises: the order of time, and no gap in the numbers of a core but told losses.
fn assert_sound(events: &[Event], statistics: &Statistics) {
    assert!(matches!(events[0].what, What::Keyframe(_)), "{:?}", events[0]);
    assert!(events.is_sorted_by_key(|event| event.at));
    let mut numbers: BTreeMap<CoreId, u64> = BTreeMap::new();
    let mut lost = 0;
    for event in events {
        let next = numbers.entry(event.core).or_default();
        assert_eq!(event.sequence, *next, "{event:?}");
        *next += match event.what {
            What::Lost { count } => {
                lost += count;
                count
            }
            _ => 1,
        };
    }
    assert_eq!((statistics.events, statistics.lost), (events.len() as u64, lost));
}

/// Each switch takes the core from whom the one before gave it to, but across losses.
fn assert_switches_connect(events: &[Event]) -> usize {
    let mut running: BTreeMap<CoreId, i32> = BTreeMap::new();
    let mut switches = 0;
    for event in events {
        match &event.what {
            What::Switch { next, left, .. } => {
                switches += 1;
                let before = running.insert(event.core, next.thread);
                assert_eq!(before.unwrap_or(*left), *left, "{event:?}");
            }
            What::Lost { .. } => running.clear(),
            _ => {}
        }
    }
    switches
}

#[test]
fn each_switch_connects_to_the_one_before_it_on_its_core() {
    let _lock = host_lock().unwrap();
    let core = crowded();
    let workers: [Worker; 3] =
        std::array::from_fn(|_| Worker::napper(core, Duration::from_micros(200)));
    let _hog = Worker::spinner(core);
    let mut recorder = Recorder::start(&options(Events::ALL)).unwrap();
    let (mut events, start) = (Vec::new(), Instant::now());
    let runs_of = |events: &[Event], worker: &Worker| {
        let is_run = |event: &&Event| matches!(&event.what, What::Switch { next, .. } if next.thread == worker.thread.tid.0);
        events.iter().filter(is_run).count()
    };
    while workers.iter().any(|worker| runs_of(&events, worker) < 40) {
        assert!(start.elapsed() < PATIENCE, "the workers do not run");
        std::thread::sleep(Duration::from_millis(20));
        recorder.drain(&mut events).unwrap();
    }
    let statistics = recorder.finish(&mut events);
    assert_sound(&events, &statistics);
    assert_eq!(statistics.lost, 0);
    assert!(assert_switches_connect(&events) > 100);
    // Whoever is woken is queued and gets to run.
    for worker in &workers {
        let thread = worker.thread.tid.0;
        let story: Vec<&What> = events.iter().map(|event| &event.what).collect();
        let turns: Vec<char> = story
            .iter()
            .filter_map(|what| match what {
                What::Waking { thread: woken, .. } if woken.thread == thread => Some('w'),
                What::Woken { thread: woken, on, is_new: false } if woken.thread == thread => {
                    assert_eq!(*on, core);
                    Some('q')
                }
                What::Switch { next, .. } if next.thread == thread => Some('r'),
                _ => None,
            })
            .collect();
        let turns: String = turns.into_iter().collect();
        assert!(turns.matches("wqr").count() > 20, "{turns}");
    }
}

#[test]
fn a_thread_whose_affinity_changes_is_moved_for_that_and_its_cores_are_told() {
    let _lock = host_lock().unwrap();
    let cores: Vec<CoreId> = topology::online().unwrap().iter().collect();
    let (&[first, ..], &[.., last]) = (&*cores, &*cores) else { panic!("no core") };
    if first == last {
        return;
    }
    let mut aside = first;
    let worker = Worker::start(last, move || {
        aside = if aside == first { last } else { first };
        pin(aside);
        std::thread::sleep(Duration::from_millis(2));
    });
    let thread = worker.thread.tid.0;
    let events = record_until(&options(Events::ALL), "a move for an affinity", |event| {
        matches!(event.what, What::Migrate { thread: moved, cause, .. }
            if moved == thread && cause == MoveCause::Affinity)
    });
    let told: Vec<CoreSet> = events
        .iter()
        .filter_map(|event| match &event.what {
            What::Allowed { thread: told, cores } if *told == thread => Some(**cores),
            _ => None,
        })
        .collect();
    assert!(!told.is_empty());
    assert!(told.iter().all(|cores| [CoreSet::of(first), CoreSet::of(last)].contains(cores)));
    assert!(told.windows(2).all(|pair| pair[0] != pair[1]), "{told:?}");
}

#[test]
fn the_life_of_a_program_is_told_in_its_order() {
    let _lock = host_lock().unwrap();
    let mut process = 0;
    let (events, statistics) = record_while(&options(Events::ALL), |_| {
        let mut program = Command::new("true").spawn().unwrap();
        process = program.id() as i32;
        program.wait().unwrap();
    });
    assert_sound(&events, &statistics);
    let life: Vec<&str> = events
        .iter()
        .filter_map(|event| match &event.what {
            What::Fork { child, .. } if child.thread == process => Some("fork"),
            What::Woken { thread, is_new: true, .. } if thread.thread == process => Some("new"),
            What::Exec { thread } if thread.thread == process => {
                assert_eq!(thread.name.to_string(), "true");
                Some("exec")
            }
            What::Exit { thread } if *thread == process => Some("exit"),
            _ => None,
        })
        .collect();
    assert_eq!(life, ["fork", "new", "exec", "exit"]);
    let allowed =
        |event: &Event| matches!(event.what, What::Allowed { thread, .. } if thread == process);
    assert!(events.iter().any(allowed), "its cores are told when it is first seen");
}

#[test]
fn a_queue_grows_with_its_waiters_and_its_load_with_it() {
    let _lock = host_lock().unwrap();
    let core = crowded();
    let mut wanted = Events::NONE;
    (wanted.queues, wanted.load) = (true, true);
    let (events, statistics) = record_while(&options(wanted), |_| {
        let hogs: [Worker; 3] = std::array::from_fn(|_| Worker::spinner(core));
        std::thread::sleep(Duration::from_millis(100));
        drop(hogs);
        std::thread::sleep(Duration::from_millis(50));
    });
    assert_sound(&events, &statistics);
    let sizes: Vec<u32> = events
        .iter()
        .filter_map(|event| match event.what {
            What::Queue { of, queued, runnable } if of == core => {
                assert!(runnable <= queued);
                Some(runnable)
            }
            _ => None,
        })
        .collect();
    let most = sizes.iter().max().unwrap();
    assert!(*most >= 3, "{sizes:?}");
    assert!(sizes.last().unwrap() < most, "{sizes:?}");
    let loads = events.iter().filter(|event| {
        matches!(event.what, What::Load { of, weight, average } if of == core && weight > 0 && average > 0)
    });
    assert!(loads.count() > 0);
    let others = events.iter().find(|event| {
        !matches!(event.what, What::Queue { .. } | What::Load { .. } | What::Keyframe(_))
    });
    assert_eq!(others, None, "nothing else was asked for");
}

/// Whenever a core goes idle, nothing runnable was told of its queue, or is told in the same breath;
/// a switch that was missed may have left its queue's size behind.
fn assert_idle_cores_have_nothing_runnable(events: &[Event], unseen: u64) {
    let mut wrong = Vec::new();
    let mut told: BTreeMap<CoreId, u32> = BTreeMap::new();
    let mut idle: BTreeMap<CoreId, u32> = BTreeMap::new();
    for event in events {
        let own = match event.what {
            What::Queue { of, runnable, .. } => {
                told.insert(of, runnable);
                (of == event.core).then_some(runnable)
            }
            _ => None,
        };
        if let Some(before) = idle.remove(&event.core)
            && before != 0
            && own != Some(0)
        {
            wrong.push((before, event));
        }
        if matches!(event.what, What::Switch { next, .. } if next.thread == 0)
            && let Some(runnable) = told.get(&event.core)
        {
            idle.insert(event.core, *runnable);
        }
    }
    assert!(wrong.len() as u64 <= unseen, "{unseen} unseen switches: {wrong:?}");
}

#[test]
fn an_idle_core_has_nothing_runnable_whatever_its_queue_still_holds() {
    let _lock = host_lock().unwrap();
    let core = crowded();
    let _nappers: [Worker; 4] =
        std::array::from_fn(|_| Worker::napper(core, Duration::from_micros(300)));
    let (events, statistics) = record_while(&Options::default(), |_| {
        std::thread::sleep(Duration::from_millis(300));
        let hog = Worker::spinner(core);
        std::thread::sleep(Duration::from_millis(300));
        drop(hog);
    });
    assert_sound(&events, &statistics);
    assert_eq!(statistics.lost, 0);
    assert_idle_cores_have_nothing_runnable(&events, statistics.unseen);
    let mut sizes = events.iter().filter_map(|event| match event.what {
        What::Queue { queued, runnable, .. } => Some((queued, runnable)),
        _ => None,
    });
    if quell_testkit::kernel() >= (6, 12) {
        assert!(sizes.any(|(queued, runnable)| queued > runnable), "no dequeueing was delayed");
    }
}

#[test]
fn a_ring_that_is_too_small_loses_events_and_says_so() {
    let _lock = host_lock().unwrap();
    let core = crowded();
    let _napper = Worker::napper(core, Duration::from_micros(50));
    let small = Options { ring_bytes: 1, ..Options::default() };
    let (events, statistics) = record_while(&small, |recorder| {
        let mut some = Vec::new();
        for _ in 0..5 {
            std::thread::sleep(Duration::from_millis(40));
            recorder.drain(&mut some).unwrap();
        }
    });
    assert!(statistics.lost > 0);
    assert!(statistics.events > events.len() as u64);
    assert_switches_connect(&events);
}

#[test]
fn the_state_of_the_host_is_told_again_and_again() {
    let _lock = host_lock().unwrap();
    let hog = Worker::spinner(crowded());
    let options = Options {
        events: Events::NONE,
        keyframe_every: Some(Nanos::from_millis(20)),
        ..Options::default()
    };
    let mut events = Vec::new();
    let mut recorder = Recorder::start(&options).unwrap();
    for _ in 0..20 {
        std::thread::sleep(Duration::from_millis(10));
        recorder.drain(&mut events).unwrap();
    }
    let statistics = recorder.finish(&mut events);
    assert_sound(&events, &statistics);
    let keyframes: Vec<&Keyframe> = events
        .iter()
        .filter_map(|event| match &event.what {
            What::Keyframe(keyframe) => Some(&**keyframe),
            _ => None,
        })
        .collect();
    assert!(keyframes.len() >= 5, "{}", keyframes.len());
    let sleepers = |keyframe: &Keyframe| {
        keyframe.threads.iter().filter(|thread| thread.state == Activity::Sleeping).count()
    };
    assert!(sleepers(keyframes[0]) > 0);
    assert!(keyframes[1..].iter().all(|keyframe| sleepers(keyframe) == 0));
    let awake = |keyframe: &&Keyframe| {
        keyframe.threads.iter().any(|thread| thread.thread.thread == hog.thread.tid.0)
    };
    assert!(keyframes.iter().all(awake));
}

#[test]
fn a_pass_of_the_balancer_is_told_with_what_it_considered() {
    let _lock = host_lock().unwrap();
    if topology::online().unwrap().len() < 2 {
        return;
    }
    let _hogs: [Worker; 2] = std::array::from_fn(|_| Worker::spinner(crowded()));
    let events = record_until(&options(Events::ALL), "a pass", |event| {
        matches!(event.what, What::Considered { .. })
    });
    for pair in events.windows(2) {
        if let What::Considered { by, ref cores, certainty, .. } = pair[1].what {
            assert_eq!(pair[0].what, What::Softirq { vector: What::BALANCER, begins: true });
            assert_eq!((pair[0].core, certainty), (by, Certainty::Inferred));
            assert!(cores.contains(by));
        }
    }
}

#[test]
fn why_preset_records_only_what_attribution_needs() {
    let _lock = host_lock().unwrap();
    let core = crowded();
    let napper = Worker::napper(core, Duration::from_millis(1));
    let _other = Worker::napper(core, Duration::from_millis(1));
    let pid = std::process::id() as i32;
    let chosen = Options { processes: vec![Tid(pid)], ..options(Events::WHY) };
    let (events, statistics) = record_while(&chosen, |recorder| {
        let hooks: BTreeSet<&str> = recorder.meta().hooks.iter().map(String::as_str).collect();
        let expected = [
            "irq_handler_entry",
            "irq_handler_exit",
            "sched_switch",
            "sched_wakeup",
            "sched_wakeup_new",
            "sched_waking",
            "softirq_entry",
            "softirq_exit",
        ];
        let beside = ["cpuhp_exit"];
        let hooks: Vec<&str> = hooks.into_iter().filter(|hook| !beside.contains(hook)).collect();
        assert_eq!(hooks, expected);
        std::thread::sleep(Duration::from_millis(300));
    });
    assert_sound(&events, &statistics);
    let thread = napper.thread.tid.0;
    let mut woken = 0;
    let mut softirqs: BTreeSet<u8> = BTreeSet::new();
    for event in &events {
        match &event.what {
            What::Waking { thread: by, .. } | What::Woken { thread: by, .. } => {
                assert_eq!(by.process, pid, "{event:?}");
                woken += usize::from(by.thread == thread);
            }
            What::Softirq { vector, .. } => drop(softirqs.insert(*vector)),
            What::Switch { .. } | What::Interrupt { .. } | What::Keyframe(_) => {}
            What::Online { .. } | What::Lost { .. } => {}
            other => panic!("{other:?}"),
        }
    }
    assert!(woken > 20, "{woken}");
    assert!(softirqs.iter().any(|vector| *vector != What::BALANCER), "{softirqs:?}");
}

#[test]
fn each_wake_up_of_a_process_is_followed_by_the_switch_to_it() {
    let _lock = host_lock().unwrap();
    let mut program = Command::new("sh")
        .args(["-c", "while :; do sleep 0.01; done"])
        .stdin(std::process::Stdio::null())
        .spawn()
        .unwrap();
    let process = program.id() as i32;
    let chosen = Options { processes: vec![Tid(process)], ..options(Events::WHY_LIVE) };
    let woken = |event: &Event| matches!(event.what, What::Waking { thread, .. } if thread.thread == process);
    let runs =
        |event: &Event| matches!(event.what, What::Switch { next, .. } if next.thread == process);
    let mut recorder = Recorder::start(&chosen).unwrap();
    let (mut events, start) = (Vec::new(), Instant::now());
    while events.iter().filter(|event| woken(event)).count() <= 5 {
        assert!(start.elapsed() < PATIENCE, "{events:?}");
        std::thread::sleep(Duration::from_millis(50));
        recorder.drain(&mut events).unwrap();
    }
    let _ = program.kill();
    let _ = program.wait();
    let statistics = recorder.finish(&mut events);
    assert_eq!(statistics.lost, 0);
    let times = |of: &dyn Fn(&Event) -> bool| {
        events.iter().filter(|event| of(event)).map(|event| event.at).collect::<Vec<Nanos>>()
    };
    let (wakes, runs) = (times(&woken), times(&runs));
    for pair in wakes.windows(2) {
        assert!(runs.iter().any(|run| pair[0] <= *run && *run <= pair[1]), "{pair:?}: {runs:?}");
    }
}

#[test]
fn more_processes_than_can_be_chosen_are_refused() {
    let processes = vec![Tid(1); PROCESSES_MAX + 1];
    let err = Recorder::start(&Options { processes, ..options(Events::WHY) }).err().unwrap();
    assert!(err.to_string().contains("at most 16 can be chosen; choose fewer"), "{err}");
}

#[test]
fn only_the_programs_of_wanted_events_are_loaded_and_their_cost_is_known() {
    let _lock = host_lock().unwrap();
    let recorder = Recorder::start(&options(Events { lives: true, ..Events::NONE })).unwrap();
    let hooks = ["sched_process_fork", "sched_process_exec", "sched_process_exit"];
    assert_eq!(recorder.meta().hooks, hooks);
    let measurement = recorder.measure().unwrap();
    Command::new("true").status().unwrap();
    drop(measurement);
    let costs = recorder.cost();
    assert_eq!(costs.len(), 3);
    assert!(costs.iter().all(|cost| cost.runs > 0 && !cost.time.is_zero()), "{costs:?}");
}
