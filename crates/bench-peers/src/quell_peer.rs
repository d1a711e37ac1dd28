//! Our runtime, alone.

use std::io;
use std::time::Duration;

use anyhow::{Context as _, Result};
use quell_runtime::net::{TcpListener, TcpStream};
use quell_runtime::sync::mpsc::{self, Receiver, SyncSender};
use quell_runtime::sync::{Condvar, Mutex, MutexGuard};
use quell_runtime::thread::{self, JoinHandle, Uthread};
use quell_runtime::{Daemon, Runtime};

use crate::green::{self, Green};
use crate::protocol::Request;

/// Runs a case.
///
/// # Errors
/// When the runtime cannot be built, or the case fails.
pub fn run(request: &Request) -> Result<()> {
    let builder = Runtime::builder().name("bench").daemon(Daemon::Never);
    let runtime = builder.max_cores(request.workers).build().context("build the runtime")?;
    let asked = request.clone();
    runtime.run(move || green::run::<Quell>(&asked))
}

struct Quell;

/// Why a lock is never poisoned.
const POISONED: &str = "nothing panics while it holds a lock";

#[allow(clippy::expect_used, reason = "nothing panics while it holds a lock")]
impl Green for Quell {
    type Handle<T: Send + 'static> = JoinHandle<T>;
    type Mutex<T: Send + 'static> = Mutex<T>;
    type Guard<'a, T: Send + 'static> = MutexGuard<'a, T>;
    type Condvar = Condvar;
    type Sender = SyncSender<u64>;
    type Receiver = Receiver<u64>;
    type Task = Uthread;
    type Listener = TcpListener;
    type Stream = TcpStream;

    fn spawn<T: Send + 'static>(task: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        thread::spawn(task)
    }
    fn join<T: Send + 'static>(handle: JoinHandle<T>) -> Option<T> {
        handle.join().ok()
    }
    fn yield_now() {
        thread::yield_now();
    }
    fn sleep(time: Duration) {
        thread::sleep(time);
    }
    fn mutex<T: Send + 'static>(value: T) -> Mutex<T> {
        Mutex::new(value)
    }
    fn lock<T: Send + 'static>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
        mutex.lock().expect(POISONED)
    }
    fn wait<'a, T: Send + 'static>(
        changed: &Condvar,
        guard: Self::Guard<'a, T>,
    ) -> Self::Guard<'a, T> {
        changed.wait(guard).expect(POISONED)
    }
    fn notify_one(changed: &Condvar) {
        changed.notify_one();
    }
    fn channel(holds: usize) -> (SyncSender<u64>, Receiver<u64>) {
        mpsc::sync_channel(holds)
    }
    fn send(sender: &SyncSender<u64>, message: u64) -> bool {
        sender.send(message).is_ok()
    }
    fn receive(receiver: &Receiver<u64>) -> Option<u64> {
        receiver.recv().ok()
    }
    fn current() -> Uthread {
        quell_runtime::current()
    }
    fn park() {
        thread::park();
    }
    fn unpark(task: &Uthread) {
        task.unpark();
    }
    fn listen() -> io::Result<(TcpListener, u16)> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        Ok((listener, port))
    }
    fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}
