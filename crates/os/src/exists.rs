//! Whether a thread is there, without a look into /proc.

use crate::Tid;

/// Whether the kernel knows the thread: signal 0 (`tgkill(2)`), which checks and sends nothing. Who may not signal it
/// knows that it is there.
///
/// To be asked before its entry in /proc is opened by anybody with a real-time priority. The kernel removes the entry of a
/// thread after the thread itself (`release_task`), and whoever opens it in between loops until that is done
/// (`d_invalidate`): for ever, if the remover is beneath the opener on the same core.
pub fn exists(tgid: Tid, tid: Tid) -> bool {
    // SAFETY: no memory is passed.
    let status = unsafe { libc::syscall(libc::SYS_tgkill, tgid.0, tid.0, 0) };
    status == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_was_waited_for_is_not_there() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = Tid(child.id() as i32);
        assert!(exists(pid, pid));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!exists(pid, pid));
    }
}
