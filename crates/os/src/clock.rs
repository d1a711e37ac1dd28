//! The one clock of every contract: CLOCK_MONOTONIC, which equals BPF's `bpf_ktime_get_ns`.

use std::io;

use quell_model::Nanos;
use rustix::time::{ClockId, clock_gettime};

use crate::{Tid, thread_clock};

/// The time on CLOCK_MONOTONIC.
pub fn now() -> Nanos {
    read(ClockId::Monotonic)
}

/// CPU time of the calling thread.
pub fn thread_cpu() -> Nanos {
    read(ClockId::ThreadCPUTime)
}

/// CPU time of a thread of this process, by the kernel's account.
///
/// # Errors
/// When this process has no such thread.
pub fn thread_cpu_of(tid: Tid) -> io::Result<Nanos> {
    thread_clock::thread_cpu(tid)
}

/// CPU time of the calling process.
pub fn process_cpu() -> Nanos {
    read(ClockId::ProcessCPUTime)
}

/// CLOCK_REALTIME minus CLOCK_MONOTONIC, in nanoseconds.
pub fn wall_offset_ns() -> i64 {
    read(ClockId::Realtime).0 as i64 - now().0 as i64
}

/// Seconds that local time is ahead of UTC at a time in seconds since 1970.
pub fn local_offset_s(at: i64) -> i64 {
    thread_clock::local_offset_s(at)
}

fn read(clock: ClockId) -> Nanos {
    let now = clock_gettime(clock);
    Nanos(now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_threads_cpu_time_is_its_own_and_another_processs_is_not_told() {
        let (send, work) = std::sync::mpsc::channel::<()>();
        let (tell, told) = std::sync::mpsc::channel();
        let worker = std::thread::spawn(move || {
            let tid = Tid(rustix::thread::gettid().as_raw_nonzero().get());
            tell.send((tid, thread_cpu())).unwrap();
            work.recv().unwrap();
            let begun = thread_cpu();
            while thread_cpu() < begun + Nanos::from_millis(30) {}
            tell.send((tid, begun)).unwrap();
            work.recv().unwrap();
        });
        let (tid, earlier) = told.recv().unwrap();
        let before = thread_cpu_of(tid).unwrap();
        send.send(()).unwrap();
        let (_, later) = told.recv().unwrap();
        // Between two readings of the thread itself: no other thread's time is in it.
        assert!((earlier..=later).contains(&before), "{earlier} {before} {later}");
        assert!(thread_cpu_of(tid).unwrap() >= before + Nanos::from_millis(30));
        send.send(()).unwrap();
        worker.join().unwrap();
        assert!(thread_cpu_of(Tid(1)).is_err(), "pid 1 is another process");
    }
}
