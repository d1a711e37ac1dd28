//! A program that runs under the daemon where there is one, alone elsewhere, and tells what it gets.
//!
//! ```text
//! cargo run -p quell-runtime --example under_daemon -- NAME lc|be GUARANTEED MAX WORK
//!   busy       two green threads a core compute for ever
//!   naps       one green thread sleeps for 50 ms at a time
//!   echo:PORT  one green thread answers datagrams that come to this port of 127.0.0.1
//!   FILE       300 green threads, all started by one of them, compute until there is this file; then the program ends
//! under_daemon NAME ask PORT MESSAGES
//!   an ordinary program: sends so many messages there, one by one, and tells which were answered
//! ```

use std::io::{ErrorKind, Write};
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use quell_runtime::net::UdpSocket;
use quell_runtime::{Class, KthreadStats, Runtime, load, sleep, spawn, yield_now};

type Failure = Box<dyn std::error::Error>;

/// Green threads that compute until there is a file.
const BATCH: u64 = 300;
/// Between two messages: who answers has nothing to do meanwhile, and leaves its core to others.
const PAUSE: Duration = Duration::from_millis(50);
/// How long an answer may take: an emulated machine stands still for seconds.
const PATIENCE: Duration = Duration::from_secs(50);

/// The runtime, for its green threads.
static RUNTIME: OnceLock<Runtime> = OnceLock::new();

/// What the green threads have done.
#[derive(Default)]
struct Done {
    work: AtomicU64,
    /// Times that a green thread of [`batch`] waited on a kernel thread when that lost its core, and went on on another.
    moved: AtomicU64,
}

fn main() -> Result<(), Failure> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [name, "ask", port, messages] => ask(name, port.parse()?, messages.parse()?),
        [name, class, guaranteed, max, work] => {
            let class = if class == "lc" { Class::LatencyCritical } else { Class::BestEffort };
            let max = max.parse()?;
            let runtime = Runtime::builder()
                .name(name)
                .class(class)
                .guaranteed(guaranteed.parse()?)
                .max_cores(max)
                .build()?;
            live(name, RUNTIME.get_or_init(|| runtime), max, work)
        }
        _ => {
            Err("NAME lc|be GUARANTEED MAX busy|naps|echo:PORT|FILE, or NAME ask PORT MESSAGES"
                .into())
        }
    }
}

/// Works, and tells of it ten times a second.
fn live(name: &str, runtime: &Runtime, max: usize, work: &str) -> Result<(), Failure> {
    let done = Arc::new(Done::default());
    let counted = Arc::clone(&done);
    let echoes = work.strip_prefix("echo:").map(str::parse).transpose()?;
    let ended = match (work, echoes) {
        // Whoever reads the log finds why nothing is answered.
        (_, Some(port)) => runtime.handle().spawn(move || {
            echo(port, &counted).unwrap_or_else(|err| eprintln!("echo: {err}"));
        }),
        ("busy", _) => runtime.handle().spawn(move || busy(2 * max, &counted)),
        ("naps", _) => runtime.handle().spawn(move || naps(&counted)),
        (file, _) => {
            let file = file.to_owned();
            runtime.handle().spawn(move || batch(&counted, Path::new(&file)))
        }
    };
    let waits = work == "naps" || echoes.is_some();
    let mut out = std::io::stdout();
    while !ended.is_finished() {
        std::thread::sleep(Duration::from_millis(100));
        // A green thread started from here would wake a kernel thread that is to be woken by its timer or its socket alone.
        let seen = match waits {
            true => String::new(),
            false => {
                runtime.run(|| format!(" cores {} delay {}", load::cores(), load::queueing_delay()))
            }
        };
        let KthreadStats { steals, revokes, asks, .. } = runtime.stats().total();
        let work = done.work.load(Ordering::Relaxed);
        let moved = done.moved.load(Ordering::Relaxed);
        writeln!(
            out,
            "{name}: done {work}{seen} steals {steals} moved {moved} revokes {revokes} asks {asks}"
        )?;
    }
    writeln!(out, "{name}: finished {}", done.work.load(Ordering::Relaxed))?;
    Ok(())
}

/// Computes for about this long.
fn compute(time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

fn busy(uthreads: usize, done: &Arc<Done>) {
    let workers: Vec<_> = (0..uthreads)
        .map(|_| {
            let done = Arc::clone(done);
            spawn(move || {
                loop {
                    compute(Duration::from_micros(20));
                    done.work.fetch_add(1, Ordering::Relaxed);
                    yield_now();
                }
            })
        })
        .collect();
    // They never end.
    workers.into_iter().for_each(|worker| drop(worker.join()));
}

fn naps(done: &Done) {
    loop {
        sleep(Duration::from_millis(50));
        done.work.fetch_add(1, Ordering::Relaxed);
    }
}

fn echo(port: u16, done: &Done) -> std::io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, port))?;
    let mut message = [0; 64];
    loop {
        let (bytes, from) = socket.recv_from(&mut message)?;
        socket.send_to(&message[..bytes], from)?;
        done.work.fetch_add(1, Ordering::Relaxed);
    }
}

/// Sends a message, waits for its answer, pauses, and so on.
fn ask(name: &str, port: u16, messages: u64) -> Result<(), Failure> {
    let socket = std::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect((Ipv4Addr::LOCALHOST, port))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    for number in 1..=messages {
        let mut answer = [0; 8];
        let bytes = loop {
            std::thread::sleep(PAUSE);
            socket.send(&number.to_ne_bytes())?;
            match socket.recv(&mut answer) {
                // Nobody listens yet.
                Err(err) if err.kind() == ErrorKind::ConnectionRefused => {}
                // The message before was awaited, so no other answer is on its way.
                answered => break answered?,
            }
        };
        if bytes != answer.len() || u64::from_ne_bytes(answer) != number {
            return Err(format!("{name}: {number} was answered with {answer:?}").into());
        }
        println!("{name}: answered {number}");
    }
    Ok(())
}

/// The number of the kernel thread that runs this. Never inlined: a green thread goes on on another one.
#[inline(never)]
fn here() -> Option<usize> {
    let thread = std::thread::current();
    thread.name()?.rsplit('/').next()?.parse().ok()
}

/// How often that kernel thread has lost its core.
fn revokes(kthread: Option<usize>) -> u64 {
    let stats = RUNTIME.get().map(Runtime::stats).unwrap_or_default();
    kthread.and_then(|at| stats.kthreads.get(at)).map_or(0, |kthread| kthread.revokes)
}

/// Lets others run; whether its kernel thread lost its core meanwhile and this goes on on another.
fn yield_and_see() -> bool {
    let before = here();
    let lost = revokes(before);
    yield_now();
    here() != before && revokes(before) > lost
}

fn batch(done: &Arc<Done>, file: &Path) {
    let over = Arc::new(AtomicBool::new(false));
    let parts: Vec<_> = (0..BATCH)
        .map(|_| {
            let (done, over) = (Arc::clone(done), Arc::clone(&over));
            spawn(move || {
                // Relaxed: nothing else is told by it.
                while !over.load(Ordering::Relaxed) {
                    compute(Duration::from_micros(20));
                    done.moved.fetch_add(u64::from(yield_and_see()), Ordering::Relaxed);
                }
                done.work.fetch_add(1, Ordering::Relaxed);
            })
        })
        .collect();
    while !file.exists() {
        sleep(Duration::from_millis(50));
    }
    over.store(true, Ordering::Relaxed);
    parts.into_iter().for_each(|part| drop(part.join()));
}
