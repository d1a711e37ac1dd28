//! What `quell lane` promises, with real programs.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::lanes::{Lanes, SPIN, all, elevated, signal, spinner};
use crate::common::{Ground, OTHER, eventually, scheduling, start_bound};
use quell_testkit::skipped;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// SCHED_BATCH as in `stat`.
const BATCH: i32 = 3;

/// A program that notes when it had a core: the stretches between gaps of more than a millisecond.
const NOTE: &str = r#"
import sys, time
now = time.monotonic_ns
notes, first = [], now()
last, end = first, first + int(float(sys.argv[2]) * 1e9)
while last < end:
    t = now()
    if t - last > 1_000_000:
        notes.append((first, last))
        first = t
    last = t
notes.append((first, last))
open(sys.argv[1], "w").write("".join(f"{a} {b}\n" for a, b in notes))
"#;

/// What three programs noted while all of them ran.
struct Noted {
    /// The members that had the core, in order.
    order: Vec<usize>,
    /// For how long each had it, in nanoseconds.
    shares: Vec<u64>,
}

impl Noted {
    fn read(notes: &[PathBuf]) -> Noted {
        let read = |path: &PathBuf| -> Vec<(u64, u64)> {
            let text = fs::read_to_string(path).unwrap();
            let pair = |line: &str| {
                let (from, to) = line.split_once(' ').unwrap();
                (from.parse().unwrap(), to.parse().unwrap())
            };
            text.lines().map(pair).collect()
        };
        let notes: Vec<Vec<(u64, u64)>> = notes.iter().map(read).collect();
        let begin = notes.iter().map(|stretches| stretches[0].0).max().unwrap();
        let end = notes.iter().map(|stretches| stretches.last().unwrap().1).min().unwrap();
        let mut all: Vec<(u64, u64, usize)> = Vec::new();
        for (member, stretches) in notes.iter().enumerate() {
            let whole = stretches.iter().filter(|(from, to)| *from > begin && *to < end);
            all.extend(whole.map(|(from, to)| (*from, *to, member)));
        }
        all.sort_unstable();
        let mut shares = vec![0; notes.len()];
        all.iter().for_each(|(from, to, member)| shares[*member] += to - from);
        let mut order: Vec<usize> = all.into_iter().map(|(_, _, member)| member).collect();
        order.dedup();
        Noted { order, shares }
    }

    /// Follows a cycle. A hypervisor that stops the core for a whole slot leaves its member out: that may happen now
    /// and then.
    fn follows(&self, cycle: &[usize]) -> bool {
        let is_next = |before: usize, at: usize, member: usize| {
            cycle[(at + cycle.len() - 1) % cycle.len()] == before && cycle[at] == member
        };
        let mut breaks = 0;
        let mut place = None;
        for pair in self.order.windows(2) {
            let expected = place.map(|at: usize| (at + 1) % cycle.len());
            place = expected.filter(|at| cycle[*at] == pair[1]).or_else(|| {
                breaks += 1;
                (0..cycle.len()).find(|at| is_next(pair[0], *at, pair[1]))
            });
        }
        // The first place has to be found, and is a guess where a member has several.
        self.order.len() > 30 && breaks <= 2 + self.order.len() / 20
    }
}

/// A table of three programs that note when they run, and what the lane says at the end.
fn table_of_three(ground: &Ground, table: &str, pattern: &str) -> (Noted, Value) {
    let script = ground.path().join("note.py");
    fs::write(&script, NOTE).unwrap();
    let notes: Vec<PathBuf> = ["a", "b", "c"].iter().map(|name| ground.path().join(name)).collect();
    let command =
        |notes: &PathBuf| format!("exec python3 {} {} 1.5", script.display(), notes.display());
    let commands: Vec<String> = notes.iter().map(command).collect();
    let mut args =
        vec!["--core", "1", "--table", table, "--slice", "5ms", "--pattern", pattern, "--"];
    args.extend(commands.iter().map(String::as_str));
    let status = Lanes::run(ground, &args).finish();
    (Noted::read(&notes), status["lanes"][0].clone())
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn a_table_of_three_busy_loops_is_run_in_order_and_each_gets_its_slots() {
    let ground = Ground::new();
    let (noted, lane) = table_of_three(&ground, "A,A,B,C", "shared");
    assert!(noted.follows(&[0, 1, 2]), "{:?}", noted.order);
    // Two slots to one of each other.
    let [a, b, c] = noted.shares[..] else { panic!("three members") };
    assert!(2 * a > 3 * b && 2 * a > 3 * c, "{:?}", noted.shares);
    let turns = |member: usize| lane["members"][member]["slices"].as_u64().unwrap() as usize;
    assert!((0..3).all(|member| turns(member) >= noted.order.len() / 4), "{lane}");
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn a_scheduler_that_spins_on_another_core_keeps_the_order_too() {
    let ground = Ground::new();
    let (noted, lane) = table_of_three(&ground, "A,B,A,C", "dedicated");
    assert!(noted.follows(&[0, 1, 0, 2]), "{:?}", noted.order);
    assert!(lane["switches"].as_u64().unwrap() > 30, "{lane}");
}

#[test]
fn busy_members_of_a_table_all_get_slices() {
    let ground = Ground::new();
    for (pattern, table) in [("shared", "A,A,B,C"), ("dedicated", "A,B,A,C")] {
        let args = ["--core", "1", "--table", table, "--slice", "5ms", "--pattern", pattern];
        let lanes = Lanes::run(&ground, &[&args[..], &["--", SPIN, SPIN, SPIN]].concat());
        eventually("each member gets ten slices", || {
            (0..3).all(|member| lanes.turns(member) >= 10) && lanes.count("switches") > 30
        });
        assert_eq!(lanes.lane()["members"].as_array().unwrap().len(), 3);
        lanes.interrupt();
    }
}

#[test]
fn a_sleeper_is_left_out_at_once_and_has_its_turn_when_it_wakes() {
    let ground = Ground::new();
    let spin = spinner();
    // A pipe's reader sleeps until somebody writes.
    let pipe = ground.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let reader = format!("exec 3<>{0}; while read -r line <&3; do :; done", pipe.display());
    let reader = start_bound(&["sh", "-c", &reader]);
    let (a, b) = (spin.pid().to_string(), reader.pid().to_string());
    let args = ["--core", "1", "--table", "A,B", "--slice", "20ms", "--pid", &a, "--pid", &b];
    let lanes = Lanes::run(&ground, &args);
    // The sleeper's slots take no time: nobody is switched to and fro for it.
    lanes.stand_still();
    assert_eq!(lanes.lane()["running"], "A");
    for _ in 0..3 {
        let before = lanes.turns(1);
        fs::write(&pipe, "go\n").unwrap();
        eventually("the reader has a turn", || lanes.turns(1) > before);
        lanes.stand_still();
        assert_eq!(lanes.lane()["running"], "A", "it sleeps again, and its slot is over");
    }
    lanes.interrupt();
    assert!(all(spin.pid(), OTHER, "0-1") && all(reader.pid(), OTHER, "0-1"));
}

#[test]
fn idle_lane_does_not_run_its_scheduler() {
    idle_lane_does_not_run_for(Duration::from_secs(1));
}

#[test]
#[ignore = "test-all: takes long"]
fn an_idle_lane_costs_its_scheduler_no_switch() {
    idle_lane_does_not_run_for(Duration::from_secs(10));
}

fn idle_lane_does_not_run_for(time: Duration) {
    let ground = Ground::new();
    let members = [start_bound(&["sleep", "1000"]), start_bound(&["sleep", "1000"])];
    let [a, b] = members.each_ref().map(|member| member.pid().to_string());
    let lanes = Lanes::run(&ground, &["--core", "1", "--slice", "50us", "--pid", &a, "--pid", &b]);
    let tid = lanes.lane()["scheduler"]["tid"].as_i64().unwrap();
    let switches = || {
        let path = format!("/proc/{}/task/{tid}/status", lanes.daemon());
        let status = fs::read_to_string(path).unwrap();
        let lines = status.lines().filter(|line| line.contains("ctxt_switches"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    eventually("it comes to rest", || {
        let before = switches();
        std::thread::sleep(Duration::from_millis(300));
        switches() == before
    });
    let cost = || lanes.lane()["scheduler"]["cpu_ns"].as_u64().unwrap();
    let before = (switches(), cost());
    std::thread::sleep(time);
    assert_eq!(before.0.len(), 2);
    assert_eq!((switches(), cost()), before, "it did not run at all");
    lanes.interrupt();
}

#[test]
fn scheduler_counts_its_switches_and_its_cpu_time() {
    let ground = Ground::new();
    let lanes = Lanes::run(&ground, &["--core", "1", "--slice", "200us", "--", SPIN, SPIN]);
    lanes.go_on(&[0, 1]);
    let read = || {
        let lane = lanes.lane();
        assert_eq!((&lane["core"], &lane["scheduling"]), (&1.into(), &true.into()));
        let count = |value: &Value| value.as_u64().unwrap();
        let scheduler = &lane["scheduler"];
        [&lane["switches"], &scheduler["cpu_ns"], &scheduler["uptime_ns"]].map(count)
    };
    let before = read();
    eventually("a thousand switches", || read()[0] >= before[0] + 1_000);
    let after = read();
    assert!(
        before.iter().zip(&after).all(|(before, after)| before < after),
        "{before:?} {after:?}"
    );
    let text = String::from_utf8(ground.quell(&["lane", "status"]).stdout).unwrap();
    assert!(text.contains(" % of its core, ") && text.contains(" a switch"), "{text}");
    let last = lanes.interrupt();
    assert!(last["lanes"][0]["scheduler"]["cpu_ns"].as_u64().unwrap() >= after[1], "{last}");
}

#[test]
#[ignore = "test-all: needs a quiet host"]
fn the_schedulers_own_cost_grows_with_its_switches() {
    let ground = Ground::new();
    let lanes = Lanes::run(&ground, &["--core", "1", "--slice", "200us", "--", SPIN, SPIN]);
    lanes.go_on(&[0, 1]);
    let read = || {
        let lane = lanes.lane();
        assert_eq!((&lane["core"], &lane["scheduling"]), (&1.into(), &true.into()));
        let count = |value: &Value| value.as_u64().unwrap();
        let scheduler = &lane["scheduler"];
        [&lane["switches"], &scheduler["cpu_ns"], &scheduler["uptime_ns"]].map(count)
    };
    let [switches, cpu, age] = read();
    eventually("a thousand switches", || read()[0] >= switches + 1_000);
    let [more_switches, more_cpu, more_age] = read();
    let (switches, cpu, age) = (more_switches - switches, more_cpu - cpu, more_age - age);
    // Each is two system calls at least, of which the fastest is known; a hypervisor that stole time is not charged.
    let least = lanes.lane()["switch_min_ns"].as_u64().unwrap();
    assert!(cpu >= switches * least / 2, "{cpu} ns for {switches} switches of {least} ns and more");
    assert!(cpu < age, "{cpu} ns in {age} ns");
    let text = String::from_utf8(ground.quell(&["lane", "status"]).stdout).unwrap();
    assert!(text.contains(" % of its core, ") && text.contains(" a switch"), "{text}");
    let last = lanes.interrupt();
    assert!(last["lanes"][0]["scheduler"]["cpu_ns"].as_u64().unwrap() >= more_cpu, "{last}");
}

#[test]
fn the_lane_goes_on_without_who_exits_is_stopped_or_changes_its_own_scheduling() {
    let ground = Ground::new();
    let mut members = [spinner(), spinner(), spinner(), spinner()];
    let pids: Vec<String> = members.iter().map(|member| member.pid().to_string()).collect();
    let mut args = vec!["--core", "1", "--slice", "2ms"];
    pids.iter().for_each(|pid| args.extend(["--pid", pid]));
    let lanes = Lanes::run(&ground, &args);
    lanes.go_on(&[0, 1, 2, 3]);
    assert!(members.iter().all(|member| elevated(member.pid(), "1")));

    signal(&members[0], Signal::STOP);
    lanes.go_on(&[1, 2, 3]);
    let stopped = lanes.turns(0);
    lanes.go_on(&[1, 2, 3]);
    assert_eq!(lanes.turns(0), stopped, "who is stopped has no turn");
    signal(&members[0], Signal::CONT);
    lanes.go_on(&[0, 1]);

    members[3].0.kill().unwrap();
    members[3].0.wait().unwrap();
    eventually("the lane knows that it ended", || lanes.count("threads") == 3);
    lanes.go_on(&[0, 1, 2]);

    // As it might do itself: its wish is respected. While it has no turn: no call looks at a policy and sets it, so one that
    // falls into a switch would be written over.
    signal(&members[2], Signal::STOP);
    lanes.go_on(&[0, 1]);
    let own = Command::new("chrt").args(["--batch", "-p", "0", &pids[2]]).status().unwrap();
    assert!(own.success());
    signal(&members[2], Signal::CONT);
    eventually("it left the lane", || lanes.count("threads") == 2);
    let kept = scheduling(members[2].pid());
    assert!(kept.iter().all(|(policy, _, cores)| *policy == BATCH && cores == "0-1"), "{kept:?}");
    assert!(lanes.lane()["notes"][0].as_str().unwrap().contains(&pids[2]), "{}", lanes.lane());
    lanes.go_on(&[0, 1]);

    lanes.interrupt();
    assert!(all(members[0].pid(), OTHER, "0-1") && all(members[1].pid(), OTHER, "0-1"));
}

/// Holds a thread like a debugger until a line comes.
const HOLD: &str = r#"
import ctypes, os, sys
SEIZE, INTERRUPT, DETACH, WALL = 0x4206, 0x4207, 17, 0x40000000
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long] * 4
pid = int(sys.argv[1])
for request in (SEIZE, INTERRUPT):
    if libc.ptrace(request, pid, 0, 0) != 0:
        sys.exit(os.strerror(ctypes.get_errno()))
os.waitpid(pid, WALL)
print("held", flush=True)
sys.stdin.readline()
libc.ptrace(DETACH, pid, 0, 0)
"#;

#[test]
fn the_lane_goes_on_without_whom_a_debugger_holds() {
    let ground = Ground::new();
    let members = [spinner(), spinner(), spinner()];
    let pids = members.each_ref().map(|member| member.pid().to_string());
    let mut args = vec!["--core", "1", "--slice", "2ms"];
    pids.iter().for_each(|pid| args.extend(["--pid", pid]));
    let lanes = Lanes::run(&ground, &args);
    lanes.go_on(&[0, 1, 2]);
    let mut python = Command::new("python3");
    python.args(["-c", HOLD, &pids[0]]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut debugger = python.spawn().unwrap();
    let mut said = [0; 5];
    debugger.stdout.take().unwrap().read_exact(&mut said).unwrap();
    assert_eq!(&said, b"held\n");
    lanes.go_on(&[1, 2]);
    let held = lanes.turns(0);
    lanes.go_on(&[1, 2]);
    assert_eq!(lanes.turns(0), held, "who is held has no turn");
    debugger.stdin.take().unwrap().write_all(b"go on\n").unwrap();
    assert!(debugger.wait().unwrap().success());
    lanes.go_on(&[0, 1, 2]);
    lanes.interrupt();
    assert!(members.iter().all(|member| all(member.pid(), OTHER, "0-1")));
}

#[test]
fn children_take_turns_with_their_creator_or_are_left_alone() {
    let ground = Ground::new();
    for children in ["adopt", "leave"] {
        let pid = ground.path().join(children);
        let parent =
            format!("sh -c '{SPIN}' & echo $! > {0}.new; mv {0}.new {0}; {SPIN}", pid.display());
        let args = ["--core", "1", "--slice", "2ms", "--children", children, "--", SPIN, &parent];
        let lanes = Lanes::run(&ground, &args);
        eventually("it has a child", || pid.exists());
        let child: i32 = fs::read_to_string(&pid).unwrap().trim().parse().unwrap();
        eventually("the child is where it belongs", || match children {
            "adopt" => elevated(child, "1"),
            _ => all(child, OTHER, "0-1"),
        });
        lanes.go_on(&[0, 1]);
        lanes.interrupt();
        eventually("what was started has ended", || {
            let gone = !Path::new(&format!("/proc/{child}")).exists();
            // Left alone, it is nobody's to end.
            if children == "leave" && !gone {
                let _ = kill_process(Pid::from_raw(child).unwrap(), Signal::KILL);
            }
            gone
        });
    }
}

#[test]
fn a_slice_shorter_than_a_hand_over_still_lets_each_member_run() {
    let ground = Ground::new();
    let folder = ground.path().display();
    let count =
        |name: &str| format!("i=0; while :; do i=$((i+1)); echo $i > {folder}/{name}; done");
    let (a, b) = (count("a"), count("b"));
    let lanes = Lanes::run(&ground, &["--core", "1", "--slice", "5us", "--", &a, &b]);
    for name in ["a", "b"] {
        let read = || fs::read_to_string(ground.path().join(name)).unwrap_or_default();
        eventually("it gets on", || {
            let before = read();
            std::thread::sleep(Duration::from_millis(50));
            read() != before
        });
    }
    lanes.interrupt();
}

#[test]
fn every_policy_runs_busy_members() {
    let ground = Ground::new();
    let policies: [&[&str]; 5] = [
        &["--policy", "round-robin", "--slice", "500us"],
        &["--policy", "preemptive", "--quantum", "500us", "--resume-after", "5ms"],
        &["--edf", "A:10ms/2ms,B:5ms/1ms/4ms"],
        &["--weights", "A:3,B:1", "--slice", "500us"],
        &["--table", "A:2ms,B:500us"],
    ];
    for policy in policies {
        let args = [&["--core", "1"], policy, &["--", SPIN, SPIN]].concat();
        let lanes = Lanes::run(&ground, &args);
        lanes.go_on(&[0, 1]);
        let status = lanes.interrupt();
        assert!(status["lanes"][0]["floor_ns"].as_u64().unwrap() > 0, "{status}");
    }
}

#[test]
fn fifo_serves_in_the_order_of_waking_up_and_takes_no_turn_away() {
    let ground = Ground::new();
    // In memory: a worker that slept in a write to a disk would rightly lose its turn.
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let directory = memory.path().display();
    // Woken by a line, each works until a file exists: nothing here depends on how long anything takes.
    let worker = |name: &str| {
        let pipe = memory.path().join(format!("{name}.pipe"));
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let script = format!(
            "exec 3<>{directory}/{name}.pipe; while read -r line <&3; do echo {name}+ >>{directory}/order; \
             until [ -e {directory}/{name}.go ]; do :; done; echo {name}- >>{directory}/order; done"
        );
        start_bound(&["sh", "-c", &script])
    };
    let workers = ["a", "b", "c"].map(worker);
    let pids = workers.each_ref().map(|worker| worker.pid().to_string());
    let mut args = vec!["--core", "1", "--policy", "fifo"];
    pids.iter().for_each(|pid| args.extend(["--pid", pid]));
    let lanes = Lanes::run(&ground, &args);
    let finish = |name: &str| fs::write(memory.path().join(format!("{name}.go")), "").unwrap();
    let order = || fs::read_to_string(memory.path().join("order")).unwrap_or_default();
    lanes.stand_still();
    for name in ["a", "c", "b"] {
        let looks = lanes.count("decisions");
        fs::write(memory.path().join(format!("{name}.pipe")), "go\n").unwrap();
        eventually("the lane knows that it waits", || lanes.count("decisions") > looks);
    }
    eventually("the first one works", || order() == "a+\n");
    lanes.stand_still();
    assert_eq!((lanes.lane()["running"].as_str(), order().as_str()), (Some("A"), "a+\n"));
    finish("a");
    eventually("who woke up next works", || order() == "a+\na-\nc+\n");
    lanes.stand_still();
    assert_eq!(lanes.lane()["running"], "C");
    finish("b");
    lanes.stand_still();
    assert_eq!(order(), "a+\na-\nc+\n", "it is not its turn");
    finish("c");
    eventually("all are done", || order() == "a+\na-\nc+\nc-\nb+\nb-\n");
    eventually("the lane falls idle", || lanes.lane()["running"].is_null());
    lanes.interrupt();
    assert!(workers.iter().all(|worker| all(worker.pid(), OTHER, "0-1")));
}

#[test]
fn one_spinning_scheduler_serves_several_lanes_and_each_keeps_to_its_core() {
    let ground = Ground::new();
    if !Path::new("/sys/devices/system/cpu/cpu2").exists() {
        return skipped("it takes three cores");
    }
    let members = [spinner(), spinner(), spinner(), spinner()];
    let before = members.each_ref().map(|member| scheduling(member.pid()));
    let lane = |core: usize| {
        let pids = members[2 * core - 2..2 * core].iter();
        let pids = pids.map(|member| format!("[[task.lane.member]]\npid = {}\n", member.pid()));
        format!(
            "[[task]]\nname = \"lane-{core}\"\nclass = \"be\"\ncores = \"{core}\"\n[task.lane]\n\
             pattern = \"dedicated\"\nslice = \"2ms\"\n{}",
            pids.collect::<String>()
        )
    };
    let file = ground.config(&format!("[host]\nmanaged = \"1-2\"\n{}{}", lane(1), lane(2)));
    let lanes = Lanes::run(&ground, &[file.to_str().unwrap()]);
    eventually("turns go on on both", || {
        let status = lanes.status();
        let switches = |lane: usize| status["lanes"][lane]["switches"].as_u64().unwrap();
        switches(0) > 10 && switches(1) > 10
    });
    let tid = |lane: usize| lanes.status()["lanes"][lane]["scheduler"]["tid"].clone();
    assert_eq!(tid(0), tid(1));
    for (at, member) in members.iter().enumerate() {
        assert!(elevated(member.pid(), &(at / 2 + 1).to_string()));
    }
    lanes.interrupt();
    assert_eq!(members.each_ref().map(|member| scheduling(member.pid())), before);
}

#[test]
fn what_cannot_be_done_is_said_and_nothing_is_changed() {
    let ground = Ground::new();
    let refused = |args: &[&str]| {
        let out = ground.quell(&[&["lane", "run"], args].concat());
        assert!(!out.status.success());
        String::from_utf8(out.stderr).unwrap()
    };
    assert!(refused(&["--core", "1"]).contains("name programs after `--`"));
    assert!(refused(&["--core", "99", "--", "true"]).contains("no core 99"));
    assert!(refused(&["--core", "1", "--slice", "1us", "--", "true"]).contains("out of range"));
    assert!(refused(&["--core", "1", "--pid", "1"]).contains("pid 1"));
    let me = std::process::id().to_string();
    assert!(refused(&["--core", "1", "--pid", &me]).contains("Quell itself or a parent"));
    let member = start_bound(&["sleep", "1000"]);
    let pid = member.pid().to_string();
    let lanes = Lanes::run(&ground, &["--core", "1", "--pid", &pid]);
    assert!(refused(&["--core", "1", "--", "true"]).contains("there is a task `lane-1` already"));
    let again = refused(&["--core", "1", "--name", "again", "--pid", &pid]);
    assert!(again.contains("belongs to task `lane-1`"), "{again}");
    let config = ground.config("");
    let out = ground.quell(&["run", config.to_str().unwrap()]);
    assert!(String::from_utf8_lossy(&out.stderr).contains("runs already"));
    lanes.interrupt();
    assert!(all(member.pid(), OTHER, "0-1"));
}
