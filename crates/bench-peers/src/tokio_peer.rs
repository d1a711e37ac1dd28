//! tokio. Where it has no primitive of the name its nearest one stands in: `Notify` parks, and with a mutex is a condition variable.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::*};
use std::time::Instant;

use anyhow::{Context as _, Result};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Mutex, Notify, mpsc};
use tokio::task;

use crate::net;
use crate::protocol::{
    BURST, LONG_SLEEP, Measured, Meter, Request, SLEEP, SLEEPERS, STEAL_PATIENCE, compute, now,
};

/// Its two schedulers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Worker threads that steal from each other.
    MultiThread,
    /// One thread.
    CurrentThread,
}

/// Runs a case.
///
/// # Errors
/// When the runtime cannot be built, or a task fails.
pub fn run(request: &Request, flavour: Flavour) -> Result<()> {
    let runtime = build(request, flavour)?;
    if request.case == "echo" {
        return runtime.block_on(echo());
    }
    let asked = request.clone();
    // On a worker, not on the thread that blocks until it is done.
    let measured = runtime.block_on(async { task::spawn(measure(asked)).await })?;
    measured.print()
}

fn build(request: &Request, flavour: Flavour) -> Result<Runtime> {
    let mut builder = match flavour {
        Flavour::MultiThread => Builder::new_multi_thread(),
        Flavour::CurrentThread => Builder::new_current_thread(),
    };
    builder.worker_threads(request.workers).enable_all().build().context("build tokio's runtime")
}

async fn measure(request: Request) -> Measured {
    let meter = Meter::start(&request);
    match request.case.as_str() {
        "mutex" => mutex(meter).await,
        "yield" => yields(meter).await,
        "condvar" => condvar(meter).await,
        "spawn-join" => spawn_join(meter).await,
        "channel-stream" => stream(meter).await,
        "channel-ping-pong" => hand_over(meter).await,
        "park" => park(meter).await,
        "timer" => timer(meter).await,
        "sleepers" => sleepers(meter).await,
        _ => steal(meter, &request).await,
    }
}

async fn mutex(mut meter: Meter) -> Measured {
    let mutex = Mutex::new(0u64);
    let mutex = std::hint::black_box(&mutex);
    while meter.goes_on(1_000) {
        for _ in 0..1_000 {
            *mutex.lock().await += 1;
        }
    }
    meter.finish()
}

async fn yields(mut meter: Meter) -> Measured {
    let (over, others) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let (ends, counts) = (over.clone(), others.clone());
    let other = task::spawn(async move {
        // Relaxed: a flag and a count that guard nothing else; one writer each.
        while !ends.load(Relaxed) {
            task::yield_now().await;
            counts.store(counts.load(Relaxed) + 1, Relaxed);
        }
    });
    while meter.goes_on_with(100, &others) {
        for _ in 0..100 {
            task::yield_now().await;
        }
    }
    let measured = meter.finish_with(&others);
    over.store(true, Relaxed);
    let _ = other.await;
    measured
}

/// Whose turn it is, and how to wait for it.
#[derive(Default)]
struct Turns {
    turn: Mutex<u32>,
    changed: [Notify; 2],
}

/// No turn is taken any more.
const OVER: u32 = 2;

impl Turns {
    /// Waits for `mine` and gives the turn to the other; whether there was one.
    async fn pass(&self, mine: u32) -> bool {
        let mut turn = self.turn.lock().await;
        while *turn != mine {
            if *turn == OVER {
                return false;
            }
            drop(turn);
            self.changed[mine as usize].notified().await;
            turn = self.turn.lock().await;
        }
        *turn = 1 - mine;
        self.changed[1 - mine as usize].notify_one();
        true
    }

    async fn end(&self) {
        *self.turn.lock().await = OVER;
        self.changed[1].notify_one();
    }
}

async fn condvar(mut meter: Meter) -> Measured {
    let turns = Arc::new(Turns::default());
    let shared = turns.clone();
    let other = task::spawn(async move { while shared.pass(1).await {} });
    while meter.goes_on(200) {
        for _ in 0..100 {
            turns.pass(0).await;
        }
    }
    let measured = meter.finish();
    turns.end().await;
    let _ = other.await;
    measured
}

async fn spawn_join(mut meter: Meter) -> Measured {
    while meter.goes_on(100) {
        for at in 0..100u64 {
            let _ = std::hint::black_box(task::spawn(async move { at }).await);
        }
    }
    meter.finish()
}

async fn stream(mut meter: Meter) -> Measured {
    let (send, mut receive) = mpsc::channel::<u64>(BURST);
    let (acknowledge, mut acknowledged) = mpsc::channel::<()>(1);
    let other = task::spawn(async move {
        let mut seen = 0;
        while receive.recv().await.is_some() {
            seen += 1;
            if seen % BURST == 0 && acknowledge.send(()).await.is_err() {
                return;
            }
        }
    });
    while meter.goes_on(BURST as u64) {
        for message in 0..BURST as u64 {
            let _ = send.send(message).await;
        }
        acknowledged.recv().await;
    }
    let measured = meter.finish();
    drop(send);
    let _ = other.await;
    measured
}

async fn hand_over(mut meter: Meter) -> Measured {
    let (ask, mut asked) = mpsc::channel::<u64>(1);
    let (answer, mut answered) = mpsc::channel::<u64>(1);
    let other = task::spawn(async move {
        while let Some(message) = asked.recv().await {
            if answer.send(message).await.is_err() {
                return;
            }
        }
    });
    while meter.goes_on(200) {
        for message in 0..100 {
            let _ = ask.send(message).await;
            answered.recv().await;
        }
    }
    let measured = meter.finish();
    drop(ask);
    let _ = other.await;
    measured
}

async fn park(mut meter: Meter) -> Measured {
    let bells = Arc::new([Notify::new(), Notify::new()]);
    let over = Arc::new(AtomicBool::new(false));
    let (ends, rings) = (over.clone(), bells.clone());
    let other = task::spawn(async move {
        loop {
            rings[1].notified().await;
            // Relaxed: the bell that was rung after it orders it.
            if ends.load(Relaxed) {
                return;
            }
            rings[0].notify_one();
        }
    });
    while meter.goes_on(200) {
        for _ in 0..100 {
            bells[1].notify_one();
            bells[0].notified().await;
        }
    }
    let measured = meter.finish();
    over.store(true, Relaxed);
    bells[1].notify_one();
    let _ = other.await;
    measured
}

async fn timer(mut meter: Meter) -> Measured {
    while meter.goes_on(1) {
        let due = Instant::now() + SLEEP;
        tokio::time::sleep_until(due.into()).await;
        meter.sample(quell_model::Nanos(due.elapsed().as_nanos() as u64));
    }
    meter.finish()
}

async fn sleepers(mut meter: Meter) -> Measured {
    let (over, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let each = (0..SLEEPERS).map(|_| {
        let (ends, counts) = (over.clone(), count.clone());
        task::spawn(async move {
            // Relaxed: as in `yields`.
            while !ends.load(Relaxed) {
                tokio::time::sleep(LONG_SLEEP).await;
                counts.fetch_add(1, Relaxed);
            }
        })
    });
    let each: Vec<_> = each.collect();
    while meter.goes_on_with(0, &count) {
        let due = Instant::now() + LONG_SLEEP;
        tokio::time::sleep_until(due.into()).await;
        meter.sample(quell_model::Nanos(due.elapsed().as_nanos() as u64));
    }
    let measured = meter.finish_with(&count);
    over.store(true, Relaxed);
    for sleeper in each {
        let _ = sleeper.await;
    }
    measured
}

async fn steal(mut meter: Meter, request: &Request) -> Measured {
    while meter.goes_on(1) {
        compute(request.gap());
        let first = Arc::new(AtomicU64::new(0));
        let ready = now();
        // Two: the last one that a worker creates is its own next one, which nobody may take.
        let both: [_; 2] = std::array::from_fn(|_| {
            let first = first.clone();
            task::spawn(async move {
                // Relaxed: the time itself is all that is passed.
                let _ = first.compare_exchange(0, now().0, Relaxed, Relaxed);
            })
        });
        while first.load(Relaxed) == 0 && now().since(ready) < STEAL_PATIENCE {
            std::hint::spin_loop();
        }
        for one in both {
            let _ = one.await;
        }
        meter.sample(quell_model::Nanos(first.load(Relaxed)).since(ready));
    }
    meter.finish()
}

async fn echo() -> Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    net::announce(listener.local_addr()?.port())?;
    let accepting = task::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            task::spawn(serve(stream));
        }
    });
    Ok(accepting.await?)
}

/// Sends back what comes until the client goes.
async fn serve(mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let mut buffer = [0; net::BUFFER];
    loop {
        match stream.read(&mut buffer).await {
            Ok(taken) if taken > 0 => {
                if stream.write_all(&buffer[..taken]).await.is_err() {
                    return;
                }
            }
            _ => return,
        }
    }
}
