//! What ends a lane in disorder, and what is left then: nothing.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use crate::common::lanes::{Lanes, SPIN, all, elevated, signal, spinner};
use crate::common::{Ground, OTHER, Program, eventually, scheduling, start_bound};
use rustix::process::{Pid, Signal, kill_process};

fn send(pid: i32, what: Signal) {
    kill_process(Pid::from_raw(pid).unwrap(), what).unwrap();
}

#[test]
fn whatever_kills_the_scheduler_no_thread_stays_elevated() {
    let ground = Ground::new();
    // The command, whose daemon then gives all back; or the daemon, whose guardians do.
    for (pattern, daemon) in [("shared", true), ("dedicated", true), ("shared", false)] {
        let members = [spinner(), start_bound(&["sleep", "1000"]), spinner()];
        let before: Vec<_> = members.iter().map(|member| scheduling(member.pid())).collect();
        let pids: Vec<String> = members.iter().map(|member| member.pid().to_string()).collect();
        let mut args = vec!["--core", "1", "--slice", "100us", "--pattern", pattern];
        pids.iter().for_each(|pid| args.extend(["--pid", pid]));
        let mut lanes = Lanes::run(&ground, &args);
        lanes.go_on(&[0, 2]);
        match daemon {
            true => send(lanes.daemon(), Signal::KILL),
            false => lanes.child.kill().unwrap(),
        }
        lanes.child.wait().unwrap();
        eventually("everything is as it was found", || {
            members.iter().zip(&before).all(|(member, before)| scheduling(member.pid()) == *before)
        });
    }
}

/// The scheduler thread of the first lane never has its core again, but for what the kernel leaves ordinary threads: less often
/// than the lane below has to hear of it.
fn starve(lanes: &Lanes<'_>) {
    let tid = lanes.lane()["scheduler"]["tid"].to_string();
    let done = Command::new("chrt").args(["--idle", "--pid", "0", &tid]).status().unwrap();
    assert!(done.success());
}

#[test]
fn a_scheduler_that_hangs_is_ended_and_everything_is_given_back() {
    let ground = Ground::new();
    let stop = |lanes: &Lanes<'_>| send(lanes.daemon(), Signal::STOP);
    // All of it, or its scheduler thread alone, beside a process that goes on.
    for hang in [stop, starve] {
        let members = [spinner(), spinner()];
        let before = members.each_ref().map(|member| scheduling(member.pid()));
        let [a, b] = members.each_ref().map(Program::pid);
        let text = format!(
            "[host]\nmanaged = \"1\"\nwatchdog_timeout_ms = 250\n[[task]]\nname = \"lane\"\nclass = \"be\"\n\
             [task.lane]\nslice = \"2ms\"\n[[task.lane.member]]\npid = {a}\n[[task.lane.member]]\npid = {b}\n"
        );
        let file = ground.config(&text);
        let mut lanes = Lanes::run(&ground, &[file.to_str().unwrap()]);
        lanes.go_on(&[0, 1]);
        hang(&lanes);
        eventually("the guardians ended it", || lanes.child.try_wait().unwrap().is_some());
        eventually("everything is as it was found", || {
            members.iter().zip(&before).all(|(member, before)| scheduling(member.pid()) == *before)
        });
    }
}

/// xorshift64*: what happens next.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % sides
    }
}

/// The guardians of a process.
fn guardians(pid: i32) -> Vec<i32> {
    let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let is_one = |pid: &i32| {
        fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "quell-guardian\n")
    };
    children.split_whitespace().map(|pid| pid.parse().unwrap()).filter(is_one).collect()
}

#[test]
fn lanes_on_another_core_restore_what_dead_ones_left() {
    let ground = Ground::new();
    let members = [spinner(), spinner()];
    let pids = members.each_ref().map(|member| member.pid().to_string());
    let mut lanes = Lanes::run(
        &ground,
        &["--core", "1", "--slice", "2ms", "--pid", &pids[0], "--pid", &pids[1]],
    );
    lanes.go_on(&[0, 1]);
    let guardians = guardians(lanes.daemon());
    assert_eq!(guardians.len(), 2);
    // Stopped, they cannot do their work in the moment between the kills.
    guardians.iter().for_each(|pid| send(*pid, Signal::STOP));
    send(lanes.daemon(), Signal::KILL);
    guardians.iter().for_each(|pid| send(*pid, Signal::KILL));
    lanes.child.wait().unwrap();
    assert!(members.iter().all(|member| elevated(member.pid(), "1")), "nobody was left to restore");
    let others = Lanes::run(&ground, &["--core", "0", "--slice", "2ms", "--", SPIN]);
    assert!(members.iter().all(|member| all(member.pid(), OTHER, "0-1")));
    others.interrupt();
}

/// One round of random kills; `make test-all` runs more.
#[test]
fn lane_survives_a_round_of_kills_and_all_is_restored() {
    outlive_random_kills([5].into_iter());
}

/// Three rounds of random kills, or as many as fit into `QUELL_SOAK_SECONDS`.
#[test]
#[ignore = "test-all: takes long"]
fn the_lane_outlives_random_kills_and_everything_is_given_back_at_its_own() {
    let seconds = std::env::var("QUELL_SOAK_SECONDS").map_or(0, |text| text.parse().unwrap());
    let until = Instant::now() + Duration::from_secs(seconds);
    let seeds = (3..).step_by(2);
    outlive_random_kills(seeds.take_while(|seed| *seed <= 7 || Instant::now() <= until));
}

fn outlive_random_kills(seeds: impl Iterator<Item = u64>) {
    let ground = Ground::new();
    let busy = [SPIN, "while :; do /bin/true; done", "while :; do sleep 0.002; done", SPIN, SPIN];
    for seed in seeds {
        let last = if seed % 3 == 0 { Signal::INT } else { Signal::KILL };
        let mut dice = Dice(seed);
        let mut members: Vec<Program> =
            busy.iter().map(|loops| start_bound(&["sh", "-c", loops])).collect();
        let pids: Vec<String> = members.iter().map(|member| member.pid().to_string()).collect();
        let mut args = vec!["--core", "1", "--slice", "300us"];
        pids.iter().for_each(|pid| args.extend(["--pid", pid]));
        let mut lanes = Lanes::run(&ground, &args);
        for _ in 0..60 {
            let at = dice.roll(members.len());
            match dice.roll(8) {
                0..3 => signal(&members[at], Signal::STOP),
                3..6 => signal(&members[at], Signal::CONT),
                6 if members.len() > 3 => drop(members.swap_remove(at)),
                _ => {
                    let pid = guardians(lanes.daemon()).first().copied();
                    pid.map(|pid| kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL));
                }
            }
            std::thread::sleep(Duration::from_millis(dice.roll(30) as u64));
        }
        members.iter().for_each(|member| signal(member, Signal::CONT));
        assert!(lanes.child.try_wait().unwrap().is_none(), "the lane ended");
        // Nothing is refused: both guardians are ready again. Killing them and the lane at once leaves the rest to `quell restore`.
        eventually("all that are left take turns, guarded", || {
            let before = lanes.lane();
            std::thread::sleep(Duration::from_millis(50));
            let after = lanes.lane();
            let grew = |what: &str| after[what].as_u64().unwrap() > before[what].as_u64().unwrap();
            grew("switches")
                && !grew("writes_blocked")
                && after["threads"].as_u64().unwrap() >= members.len() as u64
        });
        match last {
            Signal::KILL => send(lanes.daemon(), last),
            _ => kill_process(Pid::from_child(&lanes.child), last).unwrap(),
        }
        eventually("the lane ended", || lanes.child.try_wait().unwrap().is_some());
        eventually("everything is as it was found", || {
            members.iter().all(|member| all(member.pid(), OTHER, "0-1"))
        });
    }
}
