//! Threads of this process on a core of their own, for the observers' tests.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use quell_model::CoreId;

use super::topology;
use quell_os::ThreadRef;

/// The last online core: the one that tests crowd.
pub fn crowded() -> CoreId {
    topology::online().unwrap().iter().last().unwrap()
}

/// Keeps the calling thread on one core.
pub fn pin(core: CoreId) {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core.index());
    rustix::thread::sched_setaffinity(None, &set).unwrap();
}

/// A thread that runs until told to end.
pub struct Worker {
    pub thread: ThreadRef,
    stop: Arc<AtomicBool>,
    handle: Option<JoinHandle<()>>,
}

impl Worker {
    pub fn start(core: CoreId, mut step: impl FnMut() + Send + 'static) -> Worker {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (tell, told) = mpsc::channel();
        let handle = std::thread::spawn(move || {
            pin(core);
            tell.send(ThreadRef::current().unwrap()).unwrap();
            while !stopped.load(Ordering::Relaxed) {
                step();
            }
        });
        Worker { thread: told.recv().unwrap(), stop, handle: Some(handle) }
    }

    pub fn spinner(core: CoreId) -> Worker {
        Worker::start(core, std::hint::spin_loop)
    }

    pub fn sleeper(core: CoreId) -> Worker {
        Worker::start(core, || std::thread::park_timeout(Duration::from_secs(60)))
    }

    pub fn napper(core: CoreId, nap: Duration) -> Worker {
        Worker::start(core, move || std::thread::sleep(nap))
    }

    /// With it another thread ends the sleep of a [`Worker::sleeper`].
    pub fn waker(&self) -> std::thread::Thread {
        self.handle.as_ref().unwrap().thread().clone()
    }

    /// Ends the sleep of a [`Worker::sleeper`].
    pub fn wake(&self) {
        self.handle.as_ref().unwrap().thread().unpark();
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(handle) = self.handle.take() {
            handle.thread().unpark();
            handle.join().unwrap();
        }
    }
}
