//! A program whose output is a reading: bounded in time and in what it prints, ended with all it created.

use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process_group, pidfd_open};
use serde::Deserialize;

use crate::launch::in_words;

/// The longest output that is read.
const OUTPUT_BYTES_MAX: usize = 64 << 10;

/// What a program prints: a number of microseconds, or an object.
#[derive(Debug, PartialEq, Deserialize)]
#[serde(untagged)]
pub enum Printed {
    /// The latency.
    Latency(f64),
    /// One of them at least.
    Both {
        /// The latency in microseconds.
        latency_us: Option<f64>,
        /// Requests a second.
        load_rps: Option<f64>,
    },
}

/// Runs the program once and reads what it prints.
///
/// # Errors
/// A sentence: it cannot be started, takes longer than `patience`, fails, or prints something else.
pub fn ask(command: &[String], patience: Duration) -> Result<Printed, String> {
    let output = output(command, patience)?;
    let shown = |text: &str| text.trim().chars().take(40).collect::<String>();
    let text = String::from_utf8(output).map_err(|_| "it printed no text".to_owned())?;
    serde_json::from_str(text.trim()).map_err(|_| {
        format!(
            "it printed `{}`; wanted is a number of microseconds, or {{\"latency_us\": .., \"load_rps\": ..}}",
            shown(&text).escape_debug()
        )
    })
}

fn output(command: &[String], patience: Duration) -> Result<Vec<u8>, String> {
    let (program, arguments) = command.split_first().ok_or("no program is named")?;
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    // Its own group, so that it ends with all that it created.
    command.process_group(0);
    quell_os::own::end_with_this_thread(&mut command);
    let child = command.spawn().map_err(|err| format!("`{program}` does not start: {err}"))?;
    let mut run = Run { child };
    run.collect(Instant::now() + patience).map_err(|err| match err.kind() {
        io::ErrorKind::TimedOut => format!("it took longer than {patience:?} and was killed"),
        _ => err.to_string(),
    })
}

/// A running program; killed with its group and reaped when dropped.
struct Run {
    child: Child,
}

impl Drop for Run {
    fn drop(&mut self) {
        // The child is not reaped yet, so the number of its group is still its own.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}

impl Run {
    fn collect(&mut self, deadline: Instant) -> io::Result<Vec<u8>> {
        let end = pidfd_open(Pid::from_child(&self.child), PidfdFlags::empty())?;
        let mut pipe = self.child.stdout.take().ok_or(io::ErrorKind::BrokenPipe)?;
        rustix::fs::fcntl_setfl(&pipe, OFlags::NONBLOCK)?;
        let (mut output, mut open) = (Vec::new(), true);
        // What it created may hold the pipe open for longer than it lives itself.
        loop {
            let watched = open.then(|| pipe.as_fd());
            let ended = wait(end.as_fd(), watched, deadline)?;
            open = open && drain(&mut pipe, &mut output)?;
            if ended {
                break;
            }
        }
        drain(&mut pipe, &mut output)?;
        let group = Pid::from_child(&self.child);
        let _ = kill_process_group(group, Signal::KILL);
        match self.child.wait()? {
            status if status.success() => Ok(output),
            status => Err(io::Error::other(format!("program {}", in_words(status)))),
        }
    }
}

/// Waits for output or for the end of the program; true at its end.
fn wait(end: BorrowedFd<'_>, pipe: Option<BorrowedFd<'_>>, deadline: Instant) -> io::Result<bool> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
    let mut fds = [
        PollFd::from_borrowed_fd(end, PollFlags::IN),
        PollFd::from_borrowed_fd(pipe.unwrap_or(end), PollFlags::IN),
    ];
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(!fds[0].revents().is_empty()),
        Err(err) => Err(err.into()),
    }
}

/// Takes what is there; false once the pipe is closed.
fn drain(pipe: &mut ChildStdout, output: &mut Vec<u8>) -> io::Result<bool> {
    let mut bytes = [0; 4096];
    loop {
        match pipe.read(&mut bytes) {
            Ok(0) => return Ok(false),
            Ok(read) => output.extend_from_slice(&bytes[..read]),
            Err(err) if err.kind() == io::ErrorKind::WouldBlock => return Ok(true),
            Err(err) if err.kind() == io::ErrorKind::Interrupted => {}
            Err(err) => return Err(err),
        }
        if output.len() > OUTPUT_BYTES_MAX {
            return Err(io::Error::other(format!("it printed more than {OUTPUT_BYTES_MAX} bytes")));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Result<Printed, String> {
        let command = ["sh", "-c", script].map(str::to_owned);
        ask(&command, Duration::from_secs(20))
    }

    #[test]
    fn a_number_or_an_object_is_read() {
        assert_eq!(shell("echo 123.5"), Ok(Printed::Latency(123.5)));
        let both = Printed::Both { latency_us: Some(7.0), load_rps: Some(40_000.0) };
        assert_eq!(shell("echo '{\"latency_us\": 7, \"load_rps\": 4e4, \"x\": []}'"), Ok(both));
    }

    #[test]
    fn what_is_no_reading_is_told() {
        for (script, wanted) in [
            ("echo hello", "it printed `hello`; wanted is a number"),
            ("true", "it printed ``"),
            ("echo 5; exit 3", "program exited with status 3"),
            ("kill -9 $$", "program killed by signal 9"),
            ("head -c 100000 /dev/zero", "more than 65536 bytes"),
            ("printf '\\377\\376'", "it printed no text"),
            ("printf '[%.0s' $(seq 5000)", "it printed `[[["),
        ] {
            let told = shell(script).unwrap_err();
            assert!(told.contains(wanted), "{script}: {told}");
        }
        let absent = ask(&["no-such-program".to_owned()], Duration::from_secs(1)).unwrap_err();
        assert!(absent.contains("`no-such-program` does not start"), "{absent}");
    }

    #[test]
    fn what_takes_too_long_is_killed_with_all_it_created() {
        let dir = tempfile::tempdir().unwrap();
        let pids = dir.path().join("pids");
        let script = format!("sleep 600 & echo $! >{0}; echo $$ >>{0}; sleep 600", pids.display());
        let command = ["sh", "-c", &script].map(str::to_owned);
        let told = ask(&command, Duration::from_secs(4)).unwrap_err();
        assert!(told.contains("was killed"), "{told}");
        for pid in std::fs::read_to_string(&pids).unwrap().lines() {
            let pid: i32 = pid.parse().unwrap();
            let deadline = Instant::now() + Duration::from_secs(20);
            // Nobody may be there to reap the grandchild.
            while quell_observe::procs::exists(pid) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(10));
            }
            assert!(!quell_observe::procs::exists(pid), "{pid} is left");
        }
    }

    #[test]
    fn a_child_that_keeps_the_pipe_does_not_keep_us() {
        assert_eq!(shell("sleep 600 & echo 5"), Ok(Printed::Latency(5.0)));
    }
}
