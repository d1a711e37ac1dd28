//! `may`: stackful coroutines with std's signatures.

use std::io;
use std::time::Duration;

use anyhow::{Context as _, Result};
use may::coroutine::{self, Coroutine, JoinHandle};
use may::go;
use may::net::{TcpListener, TcpStream};
use may::sync::mpsc::{self, Receiver, Sender};
use may::sync::{Condvar, Mutex, MutexGuard};

use crate::green::{self, Green};
use crate::protocol::Request;

/// Runs a case.
///
/// # Errors
/// When the case fails or panics.
pub fn run(request: &Request) -> Result<()> {
    may::config().set_workers(request.workers);
    let asked = request.clone();
    go!(move || green::run::<May>(&asked)).join().ok().context("a coroutine of may panicked")?
}

struct May;

/// A lock of a coroutine that panicked is an invariant broken: nothing here panics with a lock held.
const POISONED: &str = "nothing panics while it holds a lock";

#[allow(clippy::expect_used, reason = "nothing panics while it holds a lock")]
impl Green for May {
    type Handle<T: Send + 'static> = JoinHandle<T>;
    type Mutex<T: Send + 'static> = Mutex<T>;
    type Guard<'a, T: Send + 'static> = MutexGuard<'a, T>;
    type Condvar = Condvar;
    type Sender = Sender<u64>;
    type Receiver = Receiver<u64>;
    type Task = Coroutine;
    type Listener = TcpListener;
    type Stream = TcpStream;

    fn spawn<T: Send + 'static>(task: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
        go!(task)
    }
    fn join<T: Send + 'static>(handle: JoinHandle<T>) -> Option<T> {
        handle.join().ok()
    }
    fn yield_now() {
        coroutine::yield_now();
    }
    fn sleep(time: Duration) {
        coroutine::sleep(time);
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
    /// Its channels have no bound.
    fn channel(_: usize) -> (Sender<u64>, Receiver<u64>) {
        mpsc::channel()
    }
    fn send(sender: &Sender<u64>, message: u64) -> bool {
        sender.send(message).is_ok()
    }
    fn receive(receiver: &Receiver<u64>) -> Option<u64> {
        receiver.recv().ok()
    }
    fn current() -> Coroutine {
        coroutine::current()
    }
    fn park() {
        coroutine::park();
    }
    fn unpark(task: &Coroutine) {
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
