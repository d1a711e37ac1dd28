//! What a test leaves behind is put right, however the test ends.

use std::io::{self, Read as _};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

/// A process that outlives this one and runs a script once this is dropped, or this process is gone: it waits for the
/// end of its standard input.
pub struct Undo {
    watcher: Child,
}

impl Undo {
    /// `script` is for `sh`.
    ///
    /// # Errors
    /// When the process cannot be started.
    pub fn with(script: &str) -> io::Result<Undo> {
        let script = format!("trap '' HUP INT TERM; echo ready; read -r _; {script}");
        let mut watcher = Command::new("sh")
            .args(["-c", &script])
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        // Its traps are set once it says so.
        if let Some(output) = watcher.stdout.as_mut() {
            output.read_exact(&mut [0; 6])?;
        }
        Ok(Undo { watcher })
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        // Closing its input ends the wait.
        drop(self.watcher.stdin.take());
        let _ = self.watcher.wait();
    }
}
