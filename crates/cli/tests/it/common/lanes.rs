//! `quell lane run` around a test.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::{FIFO, Ground, Program, QUELL, eventually, scheduling, start_bound};

/// SCHED_RR as in `stat`.
pub const RR: i32 = 2;

pub const SPIN: &str = "while :; do :; done";

/// Lanes that run, ended at the end.
pub struct Lanes<'a> {
    pub ground: &'a Ground,
    pub child: Child,
}

impl<'a> Lanes<'a> {
    /// Lanes on core 1, once all members are there.
    pub fn run(ground: &'a Ground, args: &[&str]) -> Lanes<'a> {
        let log = fs::File::create(ground.path().join("log")).unwrap();
        let child = Command::new(QUELL)
            .args(["lane", "run", "--quiet", "--json"])
            .args(args)
            .env("QUELL_RUN_DIR", ground.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        let mut lanes = Lanes { ground, child };
        eventually("the lanes run", || {
            let ended = lanes.child.try_wait().unwrap().is_some();
            assert!(
                !ended,
                "they ended: {}",
                fs::read_to_string(ground.path().join("log")).unwrap()
            );
            let status = lanes.status();
            let all = status["lanes"].as_array().unwrap();
            let full = |lane: &Value| {
                lane["threads"].as_u64().unwrap()
                    >= lane["members"].as_array().unwrap().len() as u64
            };
            !all.is_empty() && all.iter().all(full)
        });
        lanes
    }

    pub fn status(&self) -> Value {
        let out = self.ground.quell(&["lane", "status", "--json"]);
        serde_json::from_slice(&out.stdout).unwrap()
    }

    /// The process that schedules.
    pub fn daemon(&self) -> i32 {
        self.status()["pid"].as_i64().unwrap() as i32
    }

    pub fn lane(&self) -> Value {
        self.status()["lanes"][0].clone()
    }

    pub fn count(&self, what: &str) -> u64 {
        self.lane()[what].as_u64().unwrap()
    }

    pub fn turns(&self, member: usize) -> u64 {
        self.lane()["members"][member]["slices"].as_u64().unwrap()
    }

    /// Turns go on: each of these members gets one.
    pub fn go_on(&self, members: &[usize]) {
        for member in members {
            let before = self.turns(*member);
            eventually("it gets another turn", || self.turns(*member) > before);
        }
    }

    /// No turn changes for a while.
    pub fn stand_still(&self) {
        eventually("turns stand still", || {
            let before = self.count("switches");
            std::thread::sleep(Duration::from_millis(200));
            self.count("switches") == before
        });
    }

    /// Waits for their end by themselves; what they say they did.
    pub fn finish(mut self) -> Value {
        eventually("the lanes end", || self.child.try_wait().unwrap().is_some());
        let mut text = String::new();
        std::io::Read::read_to_string(self.child.stdout.as_mut().unwrap(), &mut text).unwrap();
        let log = fs::read_to_string(self.ground.path().join("log")).unwrap();
        assert!(self.child.wait().unwrap().success(), "{log}");
        serde_json::from_str(&text).unwrap()
    }

    /// Ends them as Ctrl-C does.
    pub fn interrupt(self) -> Value {
        kill_process(Pid::from_child(&self.child), Signal::INT).unwrap();
        self.finish()
    }
}

impl Drop for Lanes<'_> {
    fn drop(&mut self) {
        if self.child.try_wait().unwrap().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

pub fn spinner() -> Program {
    start_bound(&["sh", "-c", SPIN])
}

pub fn all(pid: i32, policy: i32, cores: &str) -> bool {
    let threads = scheduling(pid);
    !threads.is_empty() && threads.iter().all(|(found, _, mask)| *found == policy && mask == cores)
}

/// On one of a lane's rungs: SCHED_RR with the turn, SCHED_FIFO without.
pub fn elevated(pid: i32, cores: &str) -> bool {
    let threads = scheduling(pid);
    !threads.is_empty()
        && threads.iter().all(|(found, _, mask)| [FIFO, RR].contains(found) && mask == cores)
}

pub fn signal(program: &Program, signal: Signal) {
    kill_process(Pid::from_child(&program.0), signal).unwrap();
}
