//! Tries real-time scheduling in a child process, which leaves the host as it was.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};

/// How long a child may take to try; more means that its cgroup does not let it run.
const TRY_MAX: Duration = Duration::from_secs(2);

/// What became of a child that asked for real-time scheduling.
#[derive(Debug)]
pub enum RtTry {
    /// It got SCHED_FIFO.
    Granted,
    /// The kernel refused SCHED_FIFO.
    Refused(io::Error),
    /// It could not enter the cgroup.
    Shut(io::Error),
    /// It entered and was not run: the cgroup is frozen or has no time.
    Stuck,
    /// No child could be started.
    Untried(io::Error),
}

/// Lets a child process enter a cgroup, by its `cgroup.procs` file, and ask for the lowest SCHED_FIFO
/// priority. The child ends at once, so nothing stays.
pub fn try_fifo(procs: Option<&Path>) -> RtTry {
    let entry = match procs.map(|path| File::options().write(true).open(path)).transpose() {
        Ok(entry) => entry,
        Err(error) => return RtTry::Shut(error),
    };
    match fork_and_ask(entry.as_ref()) {
        Ok(answer) => answer,
        Err(error) => RtTry::Untried(error),
    }
}

fn fork_and_ask(entry: Option<&File>) -> io::Result<RtTry> {
    let (reader, writer) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?;
    let entry_fd = entry.map_or(-1, AsRawFd::as_raw_fd);
    // SAFETY: the child calls only async-signal-safe functions (write, sched_setscheduler, _exit) and
    // allocates nothing, so the state that other threads of this process left behind does not matter.
    let child = unsafe { libc::fork() };
    if child < 0 {
        return Err(io::Error::last_os_error());
    }
    if child == 0 {
        ask_and_exit(entry_fd, writer.as_raw_fd());
    }
    drop(writer);
    let answer = read_answer(&File::from(reader));
    reap(child, answer.is_none());
    Ok(match answer {
        None => RtTry::Stuck,
        Some((_, 0)) => RtTry::Granted,
        Some((STEP_ENTER, errno)) => RtTry::Shut(io::Error::from_raw_os_error(errno)),
        Some((_, errno)) => RtTry::Refused(io::Error::from_raw_os_error(errno)),
    })
}

const STEP_ENTER: i32 = 1;
const STEP_ASK: i32 = 2;

/// The child: reports {step, errno} on the pipe.
fn ask_and_exit(entry: i32, report: i32) -> ! {
    // SAFETY: the descriptors are open, the buffers live on this stack with the lengths given, and
    // `_exit` ends the child without running anything of the parent's.
    unsafe {
        let mut answer = [STEP_ENTER, 0];
        // "0" stands for the writer itself (Documentation/admin-guide/cgroup-v2.rst).
        if entry >= 0 && libc::write(entry, c"0".as_ptr().cast(), 1) < 0 {
            answer[1] = *libc::__errno_location();
        } else {
            answer[0] = STEP_ASK;
            let lowest = libc::sched_param { sched_priority: 1 };
            if libc::sched_setscheduler(0, libc::SCHED_FIFO, &lowest) < 0 {
                answer[1] = *libc::__errno_location();
            }
        }
        libc::write(report, answer.as_ptr().cast(), size_of_val(&answer));
        libc::_exit(0)
    }
}

fn read_answer(mut reader: &File) -> Option<(i32, i32)> {
    let timeout = rustix::event::Timespec::try_from(TRY_MAX).ok()?;
    let mut fds = [PollFd::new(reader, PollFlags::IN)];
    if poll(&mut fds, Some(&timeout)).ok()? == 0 {
        return None;
    }
    let mut bytes = [0; 8];
    reader.read_exact(&mut bytes).ok()?;
    let (step, errno) = bytes.split_at(4);
    Some((i32::from_ne_bytes(step.try_into().ok()?), i32::from_ne_bytes(errno.try_into().ok()?)))
}

/// Collects the child; one in a frozen v1 cgroup dies only when that thaws, so the wait is bounded.
fn reap(child: i32, kill: bool) {
    let end = Instant::now() + TRY_MAX;
    // SAFETY: `child` is a child of this process that nobody else waits for, so the number is its own
    // until waitpid has returned it.
    unsafe {
        if kill {
            libc::kill(child, libc::SIGKILL);
        }
        while libc::waitpid(child, std::ptr::null_mut(), libc::WNOHANG) == 0 && Instant::now() < end
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}
