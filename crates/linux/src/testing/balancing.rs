//! A host whose balancer is off.

use std::io::{self, Read as _};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::HostLock;

const FLAG: &str = "/sys/fs/cgroup/cpuset/cpuset.sched_load_balance";

/// While it lives, the root cpuset's `sched_load_balance` (cgroup v1) is off: no core has a scheduling domain.
///
/// A process that outlives this one puts the flag back: it waits for the end of its standard input.
pub struct Unbalanced {
    watcher: Child,
}

impl Unbalanced {
    /// Turns the balancer off; `None` where there is no such flag, or where somebody turned it off already.
    ///
    /// # Errors
    /// When the watcher cannot be started, or the flag not be written.
    pub fn begin(_: &HostLock) -> io::Result<Option<Unbalanced>> {
        if !Path::new(FLAG).exists() || std::fs::read_to_string(FLAG)?.trim() != "1" {
            return Ok(None);
        }
        let script = format!("trap '' HUP INT TERM; echo ready; read -r _; echo 1 >{FLAG}");
        let mut watcher = Command::new("sh")
            .args(["-c", &script])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        // Its traps are set once it says so.
        if let Some(output) = watcher.stdout.as_mut() {
            output.read_exact(&mut [0; 6])?;
        }
        let unbalanced = Unbalanced { watcher };
        std::fs::write(FLAG, "0")?;
        Ok(Some(unbalanced))
    }
}

impl Drop for Unbalanced {
    fn drop(&mut self) {
        // Closing its input ends the watcher, which puts the flag back; written here as well, should it be gone.
        drop(self.watcher.stdin.take());
        let _ = self.watcher.wait();
        let _ = std::fs::write(FLAG, "1");
    }
}
