//! Real programs whose threads are changed: a server, a fork loop, load, and some that chose a policy, a nice
//! value or cores of their own.

use std::path::Path;
use std::process::{Child, Command, Stdio};

/// Programs in sessions of their own, killed with all that they started when dropped.
pub struct Victims(Vec<Child>);

impl Victims {
    pub fn start(dir: &Path) -> Victims {
        let memcached = format!("exec memcached -u root -t 3 -s {}/memcached.sock", dir.display());
        // Each with the name of the program that it becomes.
        let commands = [
            (memcached.as_str(), "memcached"),
            ("while :; do sleep 0.02; done", "sh"),
            ("while :; do (sleep 0.03; sleep 0.01) & sleep 0.02 & wait; done", "sh"),
            ("exec stress-ng --quiet --cpu 2 --cpu-load 50", "stress-ng"),
            ("exec stress-ng --quiet --fork 1 --fork-max 2", "stress-ng"),
            ("exec nice -n 7 sleep infinity", "sleep"),
            ("exec taskset -c 0 sleep infinity", "sleep"),
            ("exec chrt -b 0 sleep infinity", "sleep"),
            ("exec chrt -f 1 sleep infinity", "sleep"),
            ("exec chrt -i 0 nice -n 3 sleep infinity", "sleep"),
        ];
        let victims = commands.map(|(command, _)| {
            // They end with the test, however it ends.
            Command::new("setsid")
                .args(["setpriv", "--pdeathsig", "KILL", "sh", "-c", command])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("setsid is part of util-linux")
        });
        // Programs that set themselves up change themselves; judged is what they are after that.
        let mut victims = Victims(victims.into());
        for (victim, (command, name)) in victims.0.iter().zip(commands) {
            let comm = format!("/proc/{}/comm", victim.id());
            let became = || std::fs::read_to_string(&comm).is_ok_and(|found| found.trim() == name);
            crate::host::wait_for(command, || became().then_some(()));
        }
        std::thread::sleep(std::time::Duration::from_millis(1500));
        for (victim, (command, _)) in victims.0.iter_mut().zip(commands) {
            assert!(victim.try_wait().unwrap().is_none(), "ended at once: {command}");
        }
        victims
    }

    pub fn pids(&self) -> Vec<String> {
        self.0.iter().map(|victim| victim.id().to_string()).collect()
    }
}

impl Drop for Victims {
    fn drop(&mut self) {
        let sessions: Vec<i32> = self.0.iter().map(|victim| victim.id() as i32).collect();
        // Fork loops may be quicker than one pass.
        for _ in 0..20 {
            let mut left = 0;
            for pid in crate::host::processes() {
                if crate::host::session(pid).is_some_and(|own| sessions.contains(&own)) {
                    crate::host::signal(pid, rustix::process::Signal::KILL);
                    left += 1;
                }
            }
            self.0.iter_mut().for_each(|victim| drop(victim.try_wait()));
            if left == 0 {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}
