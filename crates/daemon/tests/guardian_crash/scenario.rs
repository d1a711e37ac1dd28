//! One run: start, stop at a point, act, wait, judge.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::process::Signal;

use crate::host::{Group, processes_with, signal, state, wait_for};
use crate::victims::Victims;

/// Where a process is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    BeforeJournal,
    JournalToSyscall,
    SyscallToAck,
    /// Of a thread that is lent to a lane one value is journaled.
    LendSecondValue,
    BeforeSwitch,
    AfterSwitch,
    /// While the daemon itself gives everything back.
    MidRestoreOfDaemon,
    /// While a guardian does, because the daemon is dead.
    MidRestoreOfGuardian,
    /// The successor of a guardian that died, with much changed already.
    GuardianStart,
}

impl Point {
    pub const ALL: [Point; 9] = [
        Point::BeforeJournal,
        Point::JournalToSyscall,
        Point::SyscallToAck,
        Point::LendSecondValue,
        Point::BeforeSwitch,
        Point::AfterSwitch,
        Point::MidRestoreOfDaemon,
        Point::MidRestoreOfGuardian,
        Point::GuardianStart,
    ];

    fn name(self) -> &'static str {
        match self {
            Point::BeforeJournal => "before-journal",
            Point::JournalToSyscall => "journal-to-syscall",
            Point::SyscallToAck => "syscall-to-ack",
            Point::LendSecondValue => "lend-second-value",
            Point::BeforeSwitch => "before-switch",
            Point::AfterSwitch => "after-switch",
            Point::MidRestoreOfDaemon | Point::MidRestoreOfGuardian => "mid-restore",
            Point::GuardianStart => "guardian-start",
        }
    }
}

/// What is done while it is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    KillDaemon,
    KillGuardian,
    KillBothKinds,
    /// Stops the daemon for three seconds, longer than its heartbeat may be old, and lets it go on; where it is
    /// dead already, the guardian.
    Stop,
    /// `cgroup.kill` of a group with all three.
    CgroupKill,
    /// The kernel kills them for lack of memory in their group.
    OutOfMemory,
}

impl Act {
    pub const ALL: [Act; 6] = [
        Act::KillDaemon,
        Act::KillGuardian,
        Act::KillBothKinds,
        Act::Stop,
        Act::CgroupKill,
        Act::OutOfMemory,
    ];

    /// Whether a guardian may be left to restore.
    fn spares_a_guardian(self) -> bool {
        !matches!(self, Act::CgroupKill | Act::OutOfMemory)
    }
}

/// All that the runs share.
pub struct Crash {
    dir: tempfile::TempDir,
    victims: Victims,
}

impl Crash {
    pub fn prepare() -> Crash {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let victims = Victims::start(dir.path());
        let crash = Crash { dir, victims };
        let mut dump = crash.judge("dump");
        assert!(dump.args(crash.victims.pids()).status().unwrap().success());
        crash.assert_as_before("the judge sees changes where nothing was changed");
        crash
    }

    pub fn run(&self, point: Point, act: Act, seed: u64) {
        // A daemon that got to change little may leave less to restore than so many passes, and on a busy host one has
        // changed nothing yet after so short a time.
        let tries = [(seed % 7, 40), (0, 40), (0, 400), (0, 4_000)];
        let reached = tries.into_iter().any(|(passes, millis)| {
            self.attempt(point, act, seed, passes, Duration::from_millis(millis))
        });
        assert!(reached, "{point:?} x {act:?}: the point is never reached\n{}", self.log());
    }

    /// `false` if the point was not reached. `ahead`: how long the daemon works before anything is done to it.
    fn attempt(&self, point: Point, act: Act, seed: u64, passes: u64, ahead: Duration) -> bool {
        let what = format!("{point:?} x {act:?}");
        let group = self.group_for(act);
        let mut daemon = self.start(seed, group.as_ref());
        std::thread::sleep(ahead);
        self.arm(point.name(), if point == Point::GuardianStart { 0 } else { passes });
        match point {
            Point::MidRestoreOfDaemon => daemon.signal(Signal::TERM),
            Point::MidRestoreOfGuardian => daemon.signal(Signal::KILL),
            Point::GuardianStart => signal(daemon.guardians()[0], Signal::KILL),
            _ => {}
        }
        let stopped = wait_for(&format!("{what}: the point is reached, or all ended"), || {
            let ended = daemon.is_dead() && daemon.living().is_empty();
            match fs::read_to_string(self.path("mark")) {
                Err(_) => ended.then_some(None),
                Ok(mark) => {
                    let pid: i32 = mark.trim().rsplit_once(' ')?.1.parse().ok()?;
                    (state(pid) == Some('T')).then_some(Some(pid))
                }
            }
        });
        if let Some(stopped) = stopped {
            self.act(act, &mut daemon, stopped, group.as_ref());
            let _ = fs::remove_file(self.path("order"));
            signal(stopped, Signal::CONT);
        } else {
            assert!(point.name() == "mid-restore", "{what}: all ended\n{}", self.log());
        }
        self.settle(daemon, act.spares_a_guardian() || stopped.is_none(), &what);
        drop(group);
        self.assert_as_before(&what);
        stopped.is_some()
    }

    fn act(&self, act: Act, daemon: &mut Daemon, stopped: i32, group: Option<&Group>) {
        let guardians = daemon.guardians();
        // The one that stands at the point, if a guardian does.
        let guardian = guardians.iter().copied().find(|pid| *pid == stopped);
        let guardian = guardian.or(guardians.first().copied());
        if matches!(act, Act::KillGuardian | Act::KillBothKinds) {
            // None is left only where a busy host looked so late that they took the stopped daemon for hung.
            assert!(guardian.is_some() || daemon.is_dead(), "no guardian, and the daemon lives");
        }
        match act {
            Act::KillDaemon => daemon.signal(Signal::KILL),
            Act::KillGuardian => guardian.iter().for_each(|pid| signal(*pid, Signal::KILL)),
            Act::KillBothKinds => {
                daemon.signal(Signal::KILL);
                guardian.iter().for_each(|pid| signal(*pid, Signal::KILL));
            }
            Act::Stop => {
                daemon.signal(Signal::STOP);
                std::thread::sleep(Duration::from_secs(3));
                daemon.signal(Signal::CONT);
            }
            Act::CgroupKill => match group {
                Some(group) => group.write("cgroup.kill", "1"),
                None => daemon.kill_all(),
            },
            Act::OutOfMemory => match group {
                Some(group) => run_out_of_memory(group, daemon),
                None => daemon.kill_all(),
            },
        }
    }

    pub fn run_random(&self, seed: u64) {
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
        let mut daemon = self.start(seed, None);
        std::thread::sleep(Duration::from_micros(dice.roll(120_000)));
        let mut targets = daemon.guardians();
        targets.push(daemon.pid());
        let (mut killed_guardians, mut what) = (0, format!("random {seed}:"));
        if dice.roll(20) == 0 {
            what += " stop daemon";
            daemon.signal(Signal::STOP);
            targets.pop();
        }
        for _ in 0..1 + dice.roll(targets.len() as u64) {
            let victim = targets.swap_remove(dice.roll(targets.len() as u64) as usize);
            let is_daemon = victim == daemon.pid();
            killed_guardians += usize::from(!is_daemon);
            what += if is_daemon { " kill daemon" } else { " kill guardian" };
            match is_daemon {
                true => daemon.signal(Signal::KILL),
                false => signal(victim, Signal::KILL),
            }
            if dice.roll(2) == 0 {
                std::thread::sleep(Duration::from_micros(dice.roll(6_000)));
            }
        }
        if killed_guardians == 2 {
            // Nobody is left to end it, so whoever stopped it lets it go on.
            daemon.signal(Signal::CONT);
        }
        self.settle(daemon, killed_guardians < 2, &what);
        self.assert_as_before(&what);
    }

    /// Waits until all processes are gone. Where nobody was left to restore, the next command does.
    fn settle(&self, mut daemon: Daemon, spared: bool, what: &str) {
        let mut asked = false;
        wait_for(&format!("{what}: all leave"), || {
            let living = daemon.living();
            let dead = daemon.is_dead();
            if !dead && !asked && daemon.guardians().len() == 2 {
                // It went on, and has both guardians: it may end in order.
                daemon.signal(Signal::TERM);
                asked = true;
            }
            (dead && living.is_empty()).then_some(())
        });
        let journal = self.path("run").join("journal");
        assert!(!(spared && journal.exists()), "{what}: no guardian restored\n{}", self.log());
        if journal.exists() {
            assert!(self.release().status().unwrap().success(), "{what}: release\n{}", self.log());
        }
        assert!(!journal.exists(), "{what}: the journal is left");
        let _ = fs::remove_file(self.path("mark"));
        let _ = fs::remove_file(self.path("order"));
    }

    fn assert_as_before(&self, what: &str) {
        let judged = self.judge("compare").output().unwrap();
        let found = String::from_utf8_lossy(&judged.stdout).into_owned();
        let last = fs::read_to_string(self.path("run").join("last-restore")).unwrap_or_default();
        assert!(
            judged.status.success(),
            "{what}: the host is not as it was:\n{found}last restore: {last}\n{}",
            self.log()
        );
    }

    fn start(&self, seed: u64, group: Option<&Group>) -> Daemon {
        let default = format!("{} run {{run}} {{seed}} {{pids}}", env!("CARGO_BIN_EXE_quell-rig"));
        let words = self.words("QUELL_CRASH_RUN", default, seed);
        // The shell joins the group before anything of Quell's runs, and becomes the daemon.
        let join = group.map_or(String::new(), |group| {
            format!("echo $$ > {}/cgroup.procs; ", group.0.display())
        });
        let log = fs::OpenOptions::new().create(true).append(true).open(self.path("log")).unwrap();
        let child = Command::new("sh")
            .args(["-c", &format!("{join}exec \"$@\""), "sh"])
            .args(words)
            .env("QUELL_KILL_POINT", self.path("order"))
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        let mark = format!("QUELL_KILL_POINT={}", self.path("order").display());
        let mut daemon = Daemon { child, mark };
        wait_for("the daemon and its guardians start", || {
            assert!(!daemon.is_dead(), "the daemon ended at its start\n{}", self.log());
            (self.path("run").join("journal").exists() && daemon.guardians().len() == 2)
                .then_some(())
        });
        daemon
    }

    fn release(&self) -> Command {
        let default = format!("{} release {{run}}", env!("CARGO_BIN_EXE_quell-rig"));
        let words = self.words("QUELL_CRASH_RELEASE", default, 0);
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).stdout(Stdio::null());
        command
    }

    fn words(&self, variable: &str, default: String, seed: u64) -> Vec<String> {
        let template = std::env::var(variable).unwrap_or(default);
        let run = self.path("run").display().to_string();
        template
            .split_whitespace()
            .flat_map(|word| match word {
                "{pids}" => self.victims.pids(),
                word => vec![word.replace("{run}", &run).replace("{seed}", &seed.to_string())],
            })
            .collect()
    }

    fn judge(&self, verb: &str) -> Command {
        let mut judge = Command::new(env!("CARGO_BIN_EXE_quell-judge"));
        judge.arg(verb).arg(self.path("dump"));
        judge
    }

    /// Stops the first process that passes the point so many times.
    fn arm(&self, name: &str, passes: u64) {
        let order = format!("{name} {passes} {}", self.path("mark").display());
        fs::write(self.path("order.new"), order).unwrap();
        fs::rename(self.path("order.new"), self.path("order")).unwrap();
    }

    fn group_for(&self, act: Act) -> Option<Group> {
        let name = format!("quell-kill-{}", std::process::id());
        match act {
            Act::CgroupKill => {
                Group::make(&["/sys/fs/cgroup", "/sys/fs/cgroup/unified"], &name, "cgroup.kill")
            }
            Act::OutOfMemory => {
                Group::make(&["/sys/fs/cgroup/memory"], &name, "memory.limit_in_bytes")
            }
            _ => None,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::join(self.dir.path(), name)
    }

    fn log(&self) -> String {
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        let last = log.lines().rev().take(8).collect::<Vec<_>>();
        format!("log: {}", last.into_iter().rev().collect::<Vec<_>>().join("\n     "))
    }
}

impl Drop for Crash {
    /// A test that failed has killed all that could restore.
    fn drop(&mut self) {
        if self.path("run").join("journal").exists() {
            let _ = self.release().status();
        }
    }
}

/// Lets the group's memory run out with the daemon and its guardians as first choice, until all are dead.
fn run_out_of_memory(group: &Group, daemon: &mut Daemon) {
    let all = daemon.living();
    for pid in &all {
        let _ = fs::write(format!("/proc/{pid}/oom_score_adj"), "1000");
    }
    let used: u64 = group.read("memory.usage_in_bytes").parse().unwrap();
    group.write("memory.limit_in_bytes", &(used + (4 << 20)).to_string());
    let mut hog = Command::new("sh")
        .args(["-c", "echo $$ > \"$1\"; exec tail -c 400m", "sh"])
        .arg(group.0.join("cgroup.procs"))
        .stdin(fs::File::open("/dev/zero").unwrap())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_for("the kernel kills for lack of memory", || {
        let ended = hog.try_wait().unwrap().is_some();
        (ended || (daemon.is_dead() && daemon.living().is_empty())).then_some(())
    });
    let _ = hog.kill();
    let _ = hog.wait();
}

/// The daemon and its guardians: all processes with the test's mark in their environment.
struct Daemon {
    child: Child,
    mark: String,
}

impl Daemon {
    fn pid(&self) -> i32 {
        self.child.id() as i32
    }

    fn living(&self) -> Vec<i32> {
        processes_with(&self.mark)
    }

    fn guardians(&self) -> Vec<i32> {
        let named = |pid: &i32| {
            fs::read_to_string(format!("/proc/{pid}/comm"))
                .is_ok_and(|name| name == "quell-guardian\n")
        };
        self.living().into_iter().filter(named).collect()
    }

    fn is_dead(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    fn signal(&mut self, what: Signal) {
        if !self.is_dead() {
            signal(self.pid(), what);
        }
    }

    fn kill_all(&mut self) {
        self.living().into_iter().for_each(|pid| signal(pid, Signal::KILL));
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        self.kill_all();
        let _ = self.child.wait();
    }
}

/// xorshift64*.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) % sides
    }
}
