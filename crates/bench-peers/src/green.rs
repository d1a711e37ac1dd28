//! The cases for runtimes with std's blocking signatures: each case is written once.

use std::io::{self, Read, Write};
use std::ops::DerefMut;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

use anyhow::Result;
use quell_model::Nanos;

use crate::net;
use crate::protocol::{
    BURST, LONG_SLEEP, Measured, Meter, Request, SLEEP, SLEEPERS, STEAL_PATIENCE, compute, now,
};

/// A runtime whose tasks block.
pub trait Green: 'static {
    /// Waits for a task.
    type Handle<T: Send + 'static>;
    /// A mutex.
    type Mutex<T: Send + 'static>: Send + Sync + 'static;
    /// What a lock returns.
    type Guard<'a, T: Send + 'static>: DerefMut<Target = T>;
    /// A condition variable.
    type Condvar: Default + Send + Sync + 'static;
    /// Sends numbers.
    type Sender: Send + 'static;
    /// Receives numbers.
    type Receiver: Send + 'static;
    /// Makes a parked task ready.
    type Task: Send + 'static;
    /// A TCP listener.
    type Listener: Send + 'static;
    /// A TCP connection.
    type Stream: Read + Write + Send + 'static;

    /// Starts a task.
    fn spawn<T: Send + 'static>(task: impl FnOnce() -> T + Send + 'static) -> Self::Handle<T>;
    /// Waits for a task; `None` if it panicked.
    fn join<T: Send + 'static>(handle: Self::Handle<T>) -> Option<T>;
    /// Gives way to the next task.
    fn yield_now();
    /// Sleeps.
    fn sleep(time: Duration);
    /// A mutex.
    fn mutex<T: Send + 'static>(value: T) -> Self::Mutex<T>;
    /// Locks.
    fn lock<T: Send + 'static>(mutex: &Self::Mutex<T>) -> Self::Guard<'_, T>;
    /// Waits with the lock given back meanwhile.
    fn wait<'a, T: Send + 'static>(
        changed: &Self::Condvar,
        guard: Self::Guard<'a, T>,
    ) -> Self::Guard<'a, T>;
    /// Wakes one that waits.
    fn notify_one(changed: &Self::Condvar);
    /// A channel that holds so many, or more.
    fn channel(holds: usize) -> (Self::Sender, Self::Receiver);
    /// Sends; whether somebody may receive it.
    fn send(sender: &Self::Sender, message: u64) -> bool;
    /// Receives; `None` once nobody sends.
    fn receive(receiver: &Self::Receiver) -> Option<u64>;
    /// The calling task.
    fn current() -> Self::Task;
    /// Sleeps until [`Green::unpark`].
    fn park();
    /// Makes a parked task ready.
    fn unpark(task: &Self::Task);
    /// Listens on a free port of loopback, and tells which.
    ///
    /// # Errors
    /// The kernel's.
    fn listen() -> io::Result<(Self::Listener, u16)>;
    /// The next connection, without Nagle's delay.
    ///
    /// # Errors
    /// The kernel's.
    fn accept(listener: &Self::Listener) -> io::Result<Self::Stream>;
}

/// Runs a case as the runtime's first task.
///
/// # Errors
/// When nobody reads the answer.
pub fn run<G: Green>(request: &Request) -> Result<()> {
    if request.case == "echo" { echo::<G>() } else { measure::<G>(request).print() }
}

fn measure<G: Green>(request: &Request) -> Measured {
    let meter = Meter::start(request);
    match request.case.as_str() {
        "mutex" => mutex::<G>(meter),
        "yield" => yields::<G>(meter),
        "condvar" => condvar::<G>(meter),
        "spawn-join" => spawn_join::<G>(meter),
        "channel-stream" => stream::<G>(meter),
        "channel-ping-pong" => hand_over::<G>(meter),
        "park" => park::<G>(meter),
        "timer" => timer::<G>(meter),
        "sleepers" => sleepers::<G>(meter),
        _ => steal::<G>(meter, request),
    }
}

fn mutex<G: Green>(mut meter: Meter) -> Measured {
    let mutex = G::mutex(0u64);
    let mutex = std::hint::black_box(&mutex);
    while meter.goes_on(1_000) {
        for _ in 0..1_000 {
            *G::lock(mutex) += 1;
        }
    }
    meter.finish()
}

fn yields<G: Green>(mut meter: Meter) -> Measured {
    let (over, others) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (ends, counts) = (over.clone(), others.clone());
    let other = G::spawn(move || {
        // Relaxed: a flag and a count that guard nothing else; one writer each.
        while !ends.load(Relaxed) {
            G::yield_now();
            counts.store(counts.load(Relaxed) + 1, Relaxed);
        }
    });
    while meter.goes_on_with(100, &others) {
        (0..100).for_each(|_| G::yield_now());
    }
    let measured = meter.finish_with(&others);
    over.store(true, Relaxed);
    G::join(other);
    measured
}

/// Whose turn it is, and how to wait for it.
struct Turns<G: Green> {
    turn: G::Mutex<usize>,
    changed: [G::Condvar; 2],
}

/// No turn is taken any more.
const OVER: usize = 2;

impl<G: Green> Turns<G> {
    /// Waits for `mine` and gives the turn to the other; whether there was one.
    fn pass(&self, mine: usize) -> bool {
        let mut turn = G::lock(&self.turn);
        while *turn != mine {
            if *turn == OVER {
                return false;
            }
            turn = G::wait(&self.changed[mine], turn);
        }
        *turn = 1 - mine;
        G::notify_one(&self.changed[1 - mine]);
        true
    }

    fn end(&self) {
        *G::lock(&self.turn) = OVER;
        G::notify_one(&self.changed[1]);
    }
}

fn condvar<G: Green>(mut meter: Meter) -> Measured {
    let turns = Turns::<G> { turn: G::mutex(0), changed: Default::default() };
    let turns = Arc::new(turns);
    let shared = turns.clone();
    let other = G::spawn(move || while shared.pass(1) {});
    while meter.goes_on(200) {
        for _ in 0..100 {
            turns.pass(0);
        }
    }
    let measured = meter.finish();
    turns.end();
    G::join(other);
    measured
}

fn spawn_join<G: Green>(mut meter: Meter) -> Measured {
    while meter.goes_on(100) {
        for at in 0..100u64 {
            std::hint::black_box(G::join(G::spawn(move || at)));
        }
    }
    meter.finish()
}

fn stream<G: Green>(mut meter: Meter) -> Measured {
    let (send, receive) = G::channel(BURST);
    let (acknowledge, acknowledged) = G::channel(1);
    let other = G::spawn(move || {
        let mut seen = 0;
        while G::receive(&receive).is_some() {
            seen += 1;
            if seen % BURST == 0 && !G::send(&acknowledge, 0) {
                return;
            }
        }
    });
    while meter.goes_on(BURST as u64) {
        for message in 0..BURST as u64 {
            G::send(&send, message);
        }
        G::receive(&acknowledged);
    }
    let measured = meter.finish();
    drop(send);
    G::join(other);
    measured
}

fn hand_over<G: Green>(mut meter: Meter) -> Measured {
    let (ask, asked) = G::channel(1);
    let (answer, answered) = G::channel(1);
    let other = G::spawn(move || {
        while let Some(message) = G::receive(&asked) {
            if !G::send(&answer, message) {
                return;
            }
        }
    });
    while meter.goes_on(200) {
        for message in 0..100 {
            G::send(&ask, message);
            G::receive(&answered);
        }
    }
    let measured = meter.finish();
    drop(ask);
    G::join(other);
    measured
}

fn park<G: Green>(mut meter: Meter) -> Measured {
    // 0 and 1: whose turn it is; acquire and release pass it together with the parking itself.
    let turn = Arc::new(AtomicU64::new(0));
    let (shared, first) = (turn.clone(), G::current());
    let (tell, told) = G::channel(1);
    let until = |turn: &AtomicU64, mine: u64| {
        loop {
            match turn.load(Acquire) {
                seen if seen == mine => return true,
                seen if seen == OVER as u64 => return false,
                _ => G::park(),
            }
        }
    };
    let hears = Arc::new(G::mutex(None));
    let own = hears.clone();
    let other = G::spawn(move || {
        *G::lock(&own) = Some(G::current());
        G::send(&tell, 0);
        while until(&shared, 1) {
            shared.store(0, Release);
            G::unpark(&first);
        }
    });
    G::receive(&told);
    let Some(second) = G::lock(&hears).take() else { return meter.finish() };
    while meter.goes_on(200) {
        for _ in 0..100 {
            turn.store(1, Release);
            G::unpark(&second);
            until(&turn, 0);
        }
    }
    let measured = meter.finish();
    turn.store(OVER as u64, Release);
    G::unpark(&second);
    G::join(other);
    measured
}

fn timer<G: Green>(mut meter: Meter) -> Measured {
    while meter.goes_on(1) {
        let due = Instant::now() + SLEEP;
        G::sleep(SLEEP);
        meter.sample(Nanos(due.elapsed().as_nanos() as u64));
    }
    meter.finish()
}

fn sleepers<G: Green>(mut meter: Meter) -> Measured {
    let (over, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let each = (0..SLEEPERS).map(|_| {
        let (ends, counts) = (over.clone(), count.clone());
        G::spawn(move || {
            // Relaxed: as in `yields`.
            while !ends.load(Relaxed) {
                G::sleep(LONG_SLEEP);
                counts.fetch_add(1, Relaxed);
            }
        })
    });
    let each: Vec<_> = each.collect();
    while meter.goes_on_with(0, &count) {
        let due = Instant::now() + LONG_SLEEP;
        G::sleep(LONG_SLEEP);
        meter.sample(Nanos(due.elapsed().as_nanos() as u64));
    }
    let measured = meter.finish_with(&count);
    over.store(true, Relaxed);
    for sleeper in each {
        G::join(sleeper);
    }
    measured
}

fn steal<G: Green>(mut meter: Meter, request: &Request) -> Measured {
    while meter.goes_on(1) {
        compute(request.gap());
        let first = Arc::new(AtomicU64::new(0));
        let ready = now();
        // Two, as in tokio, whose worker keeps the last one to itself.
        let both: [_; 2] = std::array::from_fn(|_| {
            let first = first.clone();
            G::spawn(move || {
                // Relaxed: the time itself is all that is passed.
                let _ = first.compare_exchange(0, now().0, Relaxed, Relaxed);
            })
        });
        while first.load(Relaxed) == 0 && now().since(ready) < STEAL_PATIENCE {
            std::hint::spin_loop();
        }
        for one in both {
            G::join(one);
        }
        meter.sample(Nanos(first.load(Relaxed)).since(ready));
    }
    meter.finish()
}

fn echo<G: Green>() -> Result<()> {
    let (listener, port) = G::listen()?;
    net::announce(port)?;
    loop {
        let mut stream = G::accept(&listener)?;
        G::spawn(move || {
            let mut buffer = [0; net::BUFFER];
            loop {
                match stream.read(&mut buffer) {
                    Ok(taken) if taken > 0 => {
                        if stream.write_all(&buffer[..taken]).is_err() {
                            return;
                        }
                    }
                    _ => return,
                }
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
    use std::sync::{Condvar, Mutex, MutexGuard};
    use std::thread::{self, JoinHandle, Thread};

    use super::*;
    use crate::protocol::CASES;

    /// The cases themselves are tried out with std's threads.
    struct Threads;

    impl Green for Threads {
        type Handle<T: Send + 'static> = JoinHandle<T>;
        type Mutex<T: Send + 'static> = Mutex<T>;
        type Guard<'a, T: Send + 'static> = MutexGuard<'a, T>;
        type Condvar = Condvar;
        type Sender = SyncSender<u64>;
        type Receiver = Receiver<u64>;
        type Task = Thread;
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
            mutex.lock().unwrap()
        }
        fn wait<'a, T: Send + 'static>(
            changed: &Condvar,
            guard: Self::Guard<'a, T>,
        ) -> Self::Guard<'a, T> {
            changed.wait(guard).unwrap()
        }
        fn notify_one(changed: &Condvar) {
            changed.notify_one();
        }
        fn channel(holds: usize) -> (SyncSender<u64>, Receiver<u64>) {
            sync_channel(holds)
        }
        fn send(sender: &SyncSender<u64>, message: u64) -> bool {
            sender.send(message).is_ok()
        }
        fn receive(receiver: &Receiver<u64>) -> Option<u64> {
            receiver.recv().ok()
        }
        fn current() -> Thread {
            thread::current()
        }
        fn park() {
            thread::park();
        }
        fn unpark(task: &Thread) {
            task.unpark();
        }
        fn listen() -> io::Result<(TcpListener, u16)> {
            let listener = TcpListener::bind(("127.0.0.1", 0))?;
            let port = listener.local_addr()?.port();
            Ok((listener, port))
        }
        fn accept(listener: &TcpListener) -> io::Result<TcpStream> {
            Ok(listener.accept()?.0)
        }
    }

    #[test]
    fn every_case_counts_and_those_of_latency_note_latencies() {
        for case in CASES.into_iter().filter(|case| *case != "echo") {
            let measured = measure::<Threads>(&Request::parse(case, &["2", "1", "20"]).unwrap());
            assert!(measured.ops > 0 && measured.ns >= 20_000_000, "{case}: {measured:?}");
            let latency = ["timer", "sleepers", "steal-polling", "steal-parked"].contains(&case);
            assert_eq!(!measured.samples.is_empty(), latency, "{case}");
        }
    }
}
