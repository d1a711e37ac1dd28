//! A lane beside a service and batch work: one file, one daemon.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::common::lanes::{all, elevated, spinner};
use crate::common::{Daemon, Ground, OTHER, Program, eventually, rt_limit, scheduling};
use serde_json::Value;

const PORT: &str = "22329";

fn memcached() -> Program {
    let args = ["-u", "nobody", "-l", "127.0.0.1", "-p", PORT, "-t", "1", "-U", "0"];
    let memcached = Program::start("memcached", &args);
    eventually("memcached listens", || TcpStream::connect(format!("127.0.0.1:{PORT}")).is_ok());
    memcached
}

/// Asks again and again until it is ended.
struct Client {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<()>,
}

impl Client {
    fn start() -> Client {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let own = (Arc::clone(&stop), Arc::clone(&answered));
        let thread = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(format!("127.0.0.1:{PORT}")).unwrap();
            while !own.0.load(Ordering::Relaxed) {
                stream.write_all(b"version\r\n").unwrap();
                let mut answer = [0; 64];
                assert!(stream.read(&mut answer).unwrap() > 0);
                own.1.fetch_add(1, Ordering::Relaxed);
            }
        });
        Client { stop, answered, thread }
    }

    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

fn file(web: &Program, members: &[Program; 3], hog: &Program) -> String {
    let mut text = format!(
        "[host]\nmanaged = \"1\"\n\
         [[task]]\nname = \"web\"\nclass = \"lc\"\npid = {}\n\
         [[task]]\nname = \"hog\"\nclass = \"be\"\npid = {}\n\
         [[task]]\nname = \"lane\"\nclass = \"be\"\n[task.lane]\ntable = \"A,B,A,C\"\nslice = \"2ms\"\n",
        web.pid(),
        hog.pid(),
    );
    for member in members {
        text += &format!("[[task.lane.member]]\npid = {}\n", member.pid());
    }
    text
}

fn core(daemon: &Daemon) -> (String, String) {
    let status = daemon.status();
    let core = &status["cores"].as_array().unwrap()[1];
    (
        core["owner"].as_str().unwrap_or_default().to_owned(),
        core["mode"].as_str().unwrap().to_owned(),
    )
}

/// How often core 1 went from one task to the other, by the decisions that the status lists.
fn handed_over(status: &Value, from: &str, to: &str) -> usize {
    let decisions = status["decisions"].as_array().unwrap();
    let meant = |it: &&Value| it["core"] == 1 && it["from"] == from && it["to"] == to;
    decisions.iter().filter(meant).count()
}

fn slices(daemon: &Daemon) -> [u64; 3] {
    let lane = daemon.task("lane")["lane"].clone();
    [0, 1, 2].map(|member| lane["members"][member]["slices"].as_u64().unwrap())
}

#[test]
fn service_takes_the_core_of_a_lane_and_returns_it() {
    let ground = Ground::new();
    let (web, hog) = (memcached(), spinner());
    let members = [spinner(), spinner(), spinner()];
    let before: Vec<_> = members.iter().map(|member| scheduling(member.pid())).collect();
    let daemon = ground.run(&file(&web, &members, &hog));
    eventually("the lane has the core", || core(&daemon) == ("lane".into(), "lane".into()));
    eventually("its members are on its rungs", || {
        members.iter().all(|member| elevated(member.pid(), "1"))
    });

    // Under load the service has the core whenever it wants it; then the lane goes on.
    let client = Client::start();
    eventually("the service takes the core, and returns it", || {
        let status = daemon.status();
        let answered = client.answered.load(Ordering::Relaxed);
        let over = |from, to| handed_over(&status, from, to) > 0;
        answered > 0 && over("lane", "web") && over("web", "lane")
    });
    client.end();
    eventually("the lane has it again", || core(&daemon) == ("lane".into(), "lane".into()));

    // The table: A has as many slices as B and C together, but for those that a wake-up of the service cut short.
    let plans = |status: &Value| status["counters"]["plans"].as_u64().unwrap();
    let (first, plans_before) = (slices(&daemon), plans(&daemon.status()));
    eventually("many slices", || slices(&daemon)[0] >= first[0] + 100);
    let (last, plans_after) = (slices(&daemon), plans(&daemon.status()));
    let [a, b, c] = [0, 1, 2].map(|at| last[at] - first[at]);
    assert!(a.abs_diff(b + c) <= 2 + 2 * (plans_after - plans_before), "{a} {b} {c}");

    // The service has the core for a moment whenever a timer of its own is due.
    eventually("the slices are explained", || {
        let said = ground.quell(&["status", "--explain", "lane"]);
        String::from_utf8_lossy(&said.stdout).contains("share core 1 by slices (table)")
    });
    daemon.stop();
    assert!(members.iter().map(|member| scheduling(member.pid())).eq(before));
    assert!(all(hog.pid(), OTHER, "0-1") && all(web.pid(), OTHER, "0-1"));
}

#[test]
fn lane_comes_and_goes_with_apply_and_with_its_command() {
    let ground = Ground::new();
    let (web, hog) = (memcached(), spinner());
    let members = [spinner(), spinner(), spinner()];
    let text = file(&web, &members, &hog);
    let without = &text[..text.find("[[task]]\nname = \"lane\"").unwrap()];
    let limit = rt_limit();
    let daemon = ground.run(without);
    assert_eq!(rt_limit(), limit);
    let apply = |text: &str| {
        let path = ground.path().join("next.toml");
        std::fs::write(&path, text).unwrap();
        let out = ground.quell(&["apply", path.to_str().unwrap()]);
        (out.status.success(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    assert!(apply(&text).0);
    eventually("it has slices", || slices(&daemon)[2] > 5);
    // With real-time budgets of cgroups every kernel throttles real-time threads.
    if std::fs::exists("/sys/fs/cgroup/cpu/cpu.rt_runtime_us").unwrap() {
        assert_eq!(rt_limit(), "-1", "the lane may fill its core");
    }
    // What cannot be changes nothing.
    let odd = text.replace("slice =", "slyce =");
    assert!(apply(&odd).1.contains("slyce"), "{}", apply(&odd).1);
    let unmanaged =
        text.replace("class = \"be\"\n[task.lane]", "class = \"be\"\ncores = \"0\"\n[task.lane]");
    assert!(apply(&unmanaged).1.contains("not all managed"), "{}", apply(&unmanaged).1);
    let pid = members[0].pid().to_string();
    let others = ground.quell(&["lane", "run", "--name", "second", "--core", "1", "--pid", &pid]);
    let said = String::from_utf8_lossy(&others.stderr).into_owned();
    assert!(!others.status.success() && said.contains("belongs to task `lane`"), "{said}");
    let before = slices(&daemon);
    eventually("it goes on", || slices(&daemon)[2] > before[2]);
    assert!(apply(without).0);
    assert!(members.iter().all(|member| all(member.pid(), OTHER, "0-1")));
    // A process goes from a task that leaves to a lane.
    let alone = format!("{without}[[task]]\nname = \"alone\"\nclass = \"be\"\npid = {pid}\n");
    assert!(apply(&alone).0);
    let both = format!("{alone}{}", &text[without.len()..]);
    assert!(apply(&both).1.contains("belongs to task `alone`"), "{}", apply(&both).1);
    assert!(apply(&text).0);
    eventually("it has slices again", || slices(&daemon)[2] > 5);
    assert!(apply(without).0);
    // Not one that ends with its task.
    let launched =
        "[[task]]\nname = \"launched\"\nclass = \"be\"\ncommand = [\"sleep\", \"1000\"]\n";
    assert!(apply(&format!("{without}{launched}")).0);
    let launched = daemon.task("launched")["processes"][0].to_string();
    let taken = text.replace(&format!("pid = {pid}\n"), &format!("pid = {launched}\n"));
    assert!(apply(&taken).1.contains("belongs to task `launched`"), "{}", apply(&taken).1);
    assert_eq!(daemon.task("launched")["processes"][0].to_string(), launched, "nothing changed");
    assert!(apply(without).0);

    // The command's lane is a task for as long as the command runs.
    let mut lanes = crate::common::lanes::Lanes::run(&ground, &["--core", "1", "--pid", &pid]);
    assert_eq!(lanes.daemon(), daemon.child.id() as i32);
    assert!(apply(without).0, "a configuration does not remove what is attached");
    lanes.go_on(&[0]);
    lanes.child.kill().unwrap();
    lanes.child.wait().unwrap();
    eventually("it is restored", || all(members[0].pid(), OTHER, "0-1"));
    assert!(daemon.task("lane-1").is_null());
    daemon.stop();
    assert_eq!(rt_limit(), limit);
}
