//! Runtimes under a real daemon: those that behave, and those that do not.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use crate::common::feign::{self, Feigned, Running};
use crate::common::{Daemon, FIFO, Ground, IDLE, OTHER, eventually, scheduling};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// A machine that others use as well stands still for longer than a guardian has patience.
const HOST: &str = "version = 1\n[host]\nmanaged = \"1\"\nwatchdog_timeout_ms = 60000\n";

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is no number"))
}

fn switches(daemon: &Daemon, name: &str) -> u64 {
    number(&daemon.task(name)["runtime"]["switches"])
}

/// It runs uthreads under grants of the daemon.
fn goes_on(daemon: &Daemon, name: &str) {
    eventually("it has a core", || daemon.task(name)["runtime"]["granted"] == "1");
    let before = switches(daemon, name);
    eventually("its uthreads go on", || switches(daemon, name) > before);
}

/// Daemon and witness are as they were: one goes on to decide by its rules, the other to run on its own core.
fn unharmed(daemon: &Daemon) {
    let before = daemon.status();
    goes_on(daemon, "witness");
    std::thread::sleep(Duration::from_millis(300));
    goes_on(daemon, "witness");
    let after = daemon.status();
    assert_eq!(after["pid"], before["pid"]);
    assert_eq!(after["guardians"], 2);
    let counters = &after["counters"];
    assert!(number(&counters["ticks"]) > number(&before["counters"]["ticks"]));
    for rule in ["guarantee", "lc_first", "malformed"] {
        assert_eq!(counters[format!("violations_{rule}")], 0, "{rule}: {}", after["events"]);
    }
    assert_eq!(daemon.task("witness")["owned"], "1");
}

/// A service whose one guaranteed core is the only managed one.
fn witness(ground: &Ground) -> Running {
    let witness = Feigned { guaranteed: 1, kthreads: 1, ..Feigned::new("witness", "lc", "gentle") };
    feign::start(ground, &witness)
}

fn signal(running: &Running, signal: Signal) {
    kill_process(Pid::from_child(&running.program.0), signal).unwrap();
}

fn is_gone(daemon: &Daemon, name: &str) -> bool {
    daemon.task(name) == Value::Null
}

#[test]
fn a_runtime_gets_cores_for_its_kthreads_runs_there_on_its_rung_and_leaves_as_it_came() {
    let ground = Ground::new();
    let daemon = ground.run(HOST);
    let service = feign::start(
        &ground,
        &Feigned { guaranteed: 1, kthreads: 2, ..Feigned::new("service", "lc", "gentle") },
    );
    goes_on(&daemon, "service");
    let task = daemon.task("service");
    assert_eq!((&task["class"], &task["owned"]), (&"LC".into(), &"1".into()));
    assert_eq!(task["runtime"]["kthreads"], 2);
    assert_eq!(task["source"], format!("registered by process {}", service.pid()));
    eventually("its kernel threads are on their rung, and the others out of their way", || {
        let threads = scheduling(service.pid());
        let (kthreads, helpers): (Vec<_>, Vec<_>) =
            threads.iter().partition(|(policy, ..)| *policy == FIFO);
        kthreads.len() == 2
            && kthreads.iter().all(|(_, _, cores)| cores == "1")
            && !helpers.is_empty()
            && helpers.iter().all(|(policy, _, cores)| *policy == OTHER && !cores.contains('1'))
    });
    let cores = daemon.status()["cores"].clone();
    assert_eq!(cores[1]["mode"], "runtime");
    let why = ground.quell(&["status", "--explain", "service"]);
    let why = String::from_utf8(why.stdout).unwrap();
    assert!(why.contains("it is a runtime: ") && why.contains("granted"), "{why}");
    let status = String::from_utf8(ground.quell(&["status"]).stdout).unwrap();
    assert!(status.contains("KTHREADS") && status.contains("STEALS"), "{status}");

    let out = ground.quell(&["remove", "service"]);
    assert!(out.status.success(), "{out:?}");
    service.says("alone");
    let line = service.says("refused");
    assert!(line.contains("quell remove"), "{line}");
    let threads = scheduling(service.pid());
    assert!(threads.iter().all(|(policy, ..)| *policy == OTHER), "{threads:?}");
    daemon.stop();
}

#[test]
fn a_runtime_without_a_core_gets_one_when_its_timer_is_due() {
    let ground = Ground::new();
    let daemon = ground.run(HOST);
    let sleepy =
        feign::start(&ground, &Feigned { kthreads: 1, ..Feigned::new("timer", "lc", "sleepy") });
    let line = sleepy.says("granted");
    assert!(line.starts_with("granted 1 to "), "{line}");
    eventually("the daemon knows that it asked", || {
        number(&daemon.task("timer")["runtime"]["grants"]) >= 1
    });
    daemon.stop();
}

#[test]
fn a_killed_runtime_leaves_nothing_and_its_core_goes_to_others() {
    let ground = Ground::new();
    let daemon = ground.run(HOST);
    let victim =
        feign::start(&ground, &Feigned { guaranteed: 1, ..Feigned::new("victim", "lc", "busy") });
    goes_on(&daemon, "victim");
    signal(&victim, Signal::KILL);
    eventually("its task is gone", || is_gone(&daemon, "victim"));
    let _witness = witness(&ground);
    unharmed(&daemon);
    daemon.stop();
}

#[test]
fn a_stopped_runtime_holds_up_nobody_and_goes_on_when_it_is_continued() {
    let ground = Ground::new();
    let daemon = ground.run(HOST);
    let stopped = feign::start(&ground, &Feigned::new("stopped", "lc", "busy"));
    goes_on(&daemon, "stopped");
    signal(&stopped, Signal::STOP);
    let witness = witness(&ground);
    unharmed(&daemon);
    signal(&stopped, Signal::CONT);
    drop(witness);
    let before = switches(&daemon, "stopped");
    eventually("it runs on", || switches(&daemon, "stopped") > before);
    daemon.stop();
}

#[test]
fn a_runtime_that_writes_garbage_over_all_that_is_shared_hurts_only_itself() {
    let ground = Ground::new();
    let daemon = ground.run(HOST);
    let _witness = witness(&ground);
    for class in ["lc", "be"] {
        let liar =
            feign::start(&ground, &Feigned { kthreads: 8, ..Feigned::new("liar", class, "liar") });
        unharmed(&daemon);
        signal(&liar, Signal::KILL);
        eventually("it is gone", || is_gone(&daemon, "liar"));
    }
    daemon.stop();
}

#[test]
fn a_deadlocked_runtime_waits_by_itself() {
    let ground = Ground::new();
    let daemon = ground.run(HOST);
    let _witness = witness(&ground);
    let _deadlocked = feign::start(&ground, &Feigned::new("deadlocked", "lc", "deadlocked"));
    eventually("its delay is seen", || {
        daemon.task("deadlocked")["runtime"]["queueing_delay_us"].as_f64().unwrap() > 1e5
    });
    unharmed(&daemon);
    daemon.stop();
}

#[test]
fn a_runtime_that_never_yields_nor_leaves_its_core_is_below_who_owns_it() {
    let ground = Ground::new();
    let daemon = ground.run(HOST);
    for class in ["lc", "be"] {
        let stubborn = feign::start(&ground, &Feigned::new("stubborn", class, "stubborn"));
        goes_on(&daemon, "stubborn");
        let witness = witness(&ground);
        unharmed(&daemon);
        signal(&stubborn, Signal::KILL);
        signal(&witness, Signal::KILL);
        eventually("both are gone", || is_gone(&daemon, "stubborn") && is_gone(&daemon, "witness"));
    }
    daemon.stop();
}

#[test]
fn a_runtime_that_forks_without_end_fills_no_table_and_its_children_are_left_alone() {
    let ground = Ground::new();
    let daemon = ground.run(HOST);
    let _witness = witness(&ground);
    let bomb = feign::start(&ground, &Feigned::new("bomb", "be", "bomb"));
    unharmed(&daemon);
    bomb.says("exploded");
    unharmed(&daemon);
    assert!(number(&daemon.task("bomb")["threads"]) < 20, "{}", daemon.task("bomb"));
    daemon.stop();
}

#[test]
fn two_four_and_sixteen_runtimes_share_what_there_is() {
    let ground = Ground::new();
    let daemon = ground.run(HOST);
    for count in [2, 4, 16] {
        let name = |at: usize| format!("one{at}");
        // A service, Quell's own runtime, and batch work.
        let kind = |at| match at {
            0 => ("lc", "gentle"),
            1 => ("be", "real"),
            _ => ("be", "gentle"),
        };
        let start = |at| {
            let (class, mode) = kind(at);
            feign::start(&ground, &Feigned::new(&name(at), class, mode))
        };
        let runtimes: Vec<Running> = (0..count).map(start).collect();
        for at in 0..count {
            goes_on(&daemon, &name(at));
        }
        drop(runtimes);
        eventually("all are gone", || (0..count).all(|at| is_gone(&daemon, &name(at))));
    }
    let counters = &daemon.status()["counters"];
    assert_eq!(
        (&counters["violations_malformed"], &counters["violations_lc_first"]),
        (&0.into(), &0.into())
    );
    daemon.stop();
}

#[test]
fn a_runtime_outlives_its_daemon_as_it_was_and_registers_with_the_next() {
    let ground = Ground::new();
    let service = {
        let mut daemon = ground.run(HOST);
        let service = feign::start(
            &ground,
            &Feigned { guaranteed: 1, ..Feigned::new("service", "lc", "gentle") },
        );
        goes_on(&daemon, "service");
        daemon.child.kill().unwrap();
        daemon.child.wait().unwrap();
        service
    };
    service.says("alone");
    eventually("its guardians gave back what it had", || {
        scheduling(service.pid()).iter().all(|(policy, ..)| *policy == OTHER)
    });
    let daemon = ground.run(HOST);
    service.says("registered");
    goes_on(&daemon, "service");
    daemon.stop();
    service.says("alone");
}

#[test]
fn a_runtime_of_a_configured_task_has_the_limits_that_the_operator_set() {
    let ground = Ground::new();
    let socket = ground.path().join("control.sock");
    let service = feign::start_by(
        &[],
        &socket,
        &Feigned { guaranteed: 1, ..Feigned::new("mine", "lc", "gentle") },
    );
    service.says("refused");
    let text =
        format!("{HOST}[[task]]\nname = \"batch\"\nclass = \"be\"\npid = {}\n", service.pid());
    let daemon = ground.run(&text);
    service.says("registered");
    goes_on(&daemon, "batch");
    assert!(is_gone(&daemon, "mine"));
    assert_eq!(daemon.task("batch")["class"], "BE");
    eventually("it is beneath", || {
        scheduling(service.pid()).iter().all(|(policy, ..)| *policy == IDLE)
    });
    daemon.stop();
}

#[test]
fn who_may_only_read_registers_batch_work_and_nothing_before_others() {
    const GROUP: [&str; 4] = ["--reuid=65534", "--regid=65534", "--groups=games", "--no-new-privs"];
    let ground = Ground::new();
    let daemon = ground.run(&format!("{HOST}control_group = \"games\"\n"));
    let socket = ground.path().join("control.sock");
    for it in [
        Feigned::new("service", "lc", "once"),
        Feigned { guaranteed: 1, ..Feigned::new("batch", "be", "once") },
    ] {
        let line = feign::start_by(&GROUP, &socket, &it).says("refused");
        assert!(line.contains("may register best-effort work"), "{line}");
    }
    let batch = feign::start_by(&GROUP, &socket, &Feigned::new("batch", "be", "gentle"));
    batch.says("registered");
    goes_on(&daemon, "batch");
    daemon.stop();
}

#[test]
fn what_cannot_be_is_refused_in_words_and_changes_nothing() {
    let ground = Ground::new();
    let daemon = ground.run(HOST);
    let _witness = witness(&ground);
    let socket = ground.path().join("control.sock");
    let refused = |it: Feigned| feign::start_by(&[], &socket, &it).says("refused");
    let twice = refused(Feigned::new("witness", "be", "once"));
    assert!(twice.contains("there is a task `witness` already"), "{twice}");
    let greedy = refused(Feigned { guaranteed: 1, ..Feigned::new("greedy", "lc", "once") });
    assert!(greedy.contains("0 are left"), "{greedy}");
    for (change, named) in [
        (("\"layout\":1", "\"layout\":9"), "version 9"),
        (("\"name\":\"x\"", "\"name\":\"../x\""), "name"),
        (("\"max_cores\":1", "\"max_cores\":4000000000"), "max_cores"),
        (("\"signal\":null", "\"signal\":9"), "signal 9"),
        (("\"signal\":null", "\"sibling_idle_after_us\":10000001"), "sibling_idle_after_us"),
        (("\"class\":\"be\"", "\"class\":\"root\""), "not a request"),
    ] {
        let call = "{\"v\":2,\"id\":1,\"call\":{\"register\":{\"layout\":1,\"name\":\"x\",\"class\":\"be\",\"guaranteed\":0,\"max_cores\":1,\"delay_target_us\":10,\"quantum_us\":0,\"signal\":null}}}\n";
        let mut stream = UnixStream::connect(&socket).unwrap();
        stream.write_all(call.replace(change.0, change.1).as_bytes()).unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        assert!(line.contains("error") && line.contains(named), "{line}");
    }
    unharmed(&daemon);
    daemon.stop();
}

/// Green threads of a real runtime that were done by its last word.
fn done(running: &Running) -> u64 {
    let line = running.says("done ");
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

fn does_more(running: &Running) {
    let before = done(running);
    eventually("its green threads go on", || done(running) > before);
}

#[test]
fn green_threads_run_under_the_daemon_alone_and_under_the_next_daemon() {
    let ground = Ground::new();
    let it = Feigned { guaranteed: 1, ..Feigned::new("green", "lc", "real") };
    let mut daemon = ground.run(HOST);
    let green = feign::start(&ground, &it);
    goes_on(&daemon, "green");
    green.says("on 1 cores");
    does_more(&green);
    daemon.child.kill().unwrap();
    daemon.child.wait().unwrap();
    drop(daemon);
    eventually("its guardians gave back what it had", || {
        scheduling(green.pid()).iter().all(|(policy, ..)| *policy == OTHER)
    });
    does_more(&green);
    let daemon = ground.run(HOST);
    goes_on(&daemon, "green");
    does_more(&green);
    daemon.stop();
    does_more(&green);
}

#[test]
fn a_green_thread_that_naps_wakes_although_its_runtime_has_no_core_meanwhile() {
    let ground = Ground::new();
    let daemon = ground.run(HOST);
    let naps = feign::start(&ground, &Feigned::new("naps", "lc", "real-naps"));
    let _witness = witness(&ground);
    for _ in 0..3 {
        does_more(&naps);
    }
    unharmed(&daemon);
    daemon.stop();
}

#[test]
fn green_threads_of_batch_work_and_of_a_service_share_a_core_by_class() {
    let ground = Ground::new();
    let daemon = ground.run(HOST);
    let _witness = witness(&ground);
    let batch = feign::start(&ground, &Feigned::new("batch", "be", "real"));
    does_more(&batch);
    unharmed(&daemon);
    does_more(&batch);
    eventually("they are beneath", || {
        scheduling(batch.pid()).iter().all(|(policy, ..)| *policy == IDLE)
    });
    daemon.stop();
}
