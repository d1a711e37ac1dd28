//! A process that stops itself.

/// Stops this process, for the crash tests. On return it was continued.
pub(crate) fn stop() {
    // To this thread: a signal for the process may go to another one, which may wait for a core while this one goes on.
    // SAFETY: `raise` takes a number and touches no memory of ours; SIGSTOP has no handler.
    unsafe { libc::raise(libc::SIGSTOP) };
}
