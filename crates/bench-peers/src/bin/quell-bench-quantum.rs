//! The server of the bimodal part of `quell bench runtime-colocate`: its clients choose how long it works, a uthread serves each, and
//! the one kthread has a quantum of one kind or none. Or no server, but one uthread that computes: what the quantum costs it.
//!
//! A program of its own, since the asynchronous quantum wants an allocator that holds preemption off; it is there without that
//! quantum as well, so that all kinds are compared with the same.

use std::io::{Read as _, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use quell_load::protocol::synthetic::{FRAME_BYTES, Op, Reply, Request};
use quell_load::serve::Calibration;
use quell_model::Nanos;
use quell_runtime::net::{TcpListener, TcpStream};
use quell_runtime::sync::Mutex;
use quell_runtime::{Daemon, Runtime, preempt, thread};

#[path = "../net.rs"]
#[allow(dead_code, reason = "it takes whole frames")]
mod net;

#[global_allocator]
static ALLOCATOR: preempt::Allocator = preempt::Allocator::SYSTEM;

/// The quantum, of either kind.
const QUANTUM: Nanos = Nanos::from_micros(100);
/// After so much work a request takes a lock, as real ones do: there the cooperative quantum is looked at.
const SLICE_NS: u64 = 5_000;

/// What keeps a long request from holding up short ones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Never,
    Cooperative,
    /// Requests make no call of the runtime while they work.
    Asynchronous,
}

impl Kind {
    fn named(name: &str) -> Option<Kind> {
        match name {
            "never" => Some(Kind::Never),
            "cooperative" => Some(Kind::Cooperative),
            "asynchronous" => Some(Kind::Asynchronous),
            _ => None,
        }
    }
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let done = match words[..] {
        [kind] => Kind::named(kind).map(serve),
        ["compute", kind, millis] => Kind::named(kind)
            .zip(millis.parse().ok())
            .map(|(kind, millis)| compute(kind, Duration::from_millis(millis))),
        _ => None,
    };
    let Some(done) = done else {
        eprintln!(
            "usage: quell-bench-quantum never|cooperative|asynchronous\n       \
             quell-bench-quantum compute never|cooperative|asynchronous MILLISECONDS"
        );
        return ExitCode::from(2);
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn runtime(kind: Kind) -> Result<Runtime> {
    let builder = Runtime::builder().name("serve").daemon(Daemon::Never).max_cores(1);
    let mut builder = builder.quantum((kind == Kind::Cooperative).then_some(QUANTUM));
    if kind == Kind::Asynchronous {
        // SAFETY: the allocator is above; uthreads compute, allocate and use sockets of the runtime; the one that prints
        // has preemption off meanwhile. Nothing here uses thread-locals or calls C.
        builder = unsafe { builder.preempt_every(QUANTUM) };
    }
    builder.build().context("build the runtime")
}

/// Computes on one uthread, and says how many microseconds of undisturbed work were done in which time.
fn compute(kind: Kind, time: Duration) -> Result<()> {
    let speed = Calibration::measure();
    let (ops, spent) = runtime(kind)?.run(move || {
        let begun = Instant::now();
        let mut done_us = 0u64;
        while begun.elapsed() < time {
            speed.work(50_000);
            done_us += 50;
        }
        (done_us, begun.elapsed())
    });
    println!("{}", serde_json::json!({ "ops": ops, "ns": spent.as_nanos() as u64, "cpu_ns": 0 }));
    Ok(())
}

fn serve(kind: Kind) -> Result<()> {
    let runtime = runtime(kind)?;
    let speed = Calibration::measure();
    let slice = if kind == Kind::Asynchronous { u64::MAX } else { SLICE_NS };
    runtime.run(move || -> Result<()> {
        let listener = TcpListener::bind(("127.0.0.1", 0))?;
        let port = listener.local_addr()?.port();
        preempt::off(|| net::announce(port))?;
        loop {
            let (stream, _) = listener.accept()?;
            thread::spawn(move || {
                // A client that goes, or sends something else, is of no interest.
                let _ = answer(stream, speed, slice);
            });
        }
    })
}

/// Does the work of each request; takes a lock after each `slice_ns` of it.
fn answer(mut stream: TcpStream, speed: Calibration, slice_ns: u64) -> Result<()> {
    stream.set_nodelay(true)?;
    let touched = Mutex::new(0u64);
    let mut frame = [0; FRAME_BYTES];
    loop {
        stream.read_exact(&mut frame)?;
        let request = Request::from_bytes(&frame).map_err(|error| anyhow::anyhow!("{error:?}"))?;
        let Op::Work { work_ns } = request.op else { bail!("no runaways here") };
        let begun = Instant::now();
        let mut left = work_ns;
        while left > 0 {
            let some = left.min(slice_ns);
            speed.work(some);
            left -= some;
            if let Ok(mut touched) = touched.lock() {
                *touched += some;
            }
        }
        let spent_ns = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        let reply = Reply { id: request.id, done: true, spent_ns };
        stream.write_all(&reply.to_bytes())?;
    }
}
