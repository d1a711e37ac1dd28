//! A runtime of the tests' own making: registers, publishes, and behaves as well or as badly as it is told; or, in the modes
//! that begin with `real`, Quell's own.
//!
//! It is a program of its own, since the daemon knows processes: the test binary, started once more (see [`start`]).

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use quell_control::register::{Registration, Session, register};
use quell_model::{Class, Nanos};
use quell_os::clock;
use quell_shm::runtime::{Kthread, KthreadState, Memory, VERSION};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Ground, Program};

/// The ignored test that is the program.
const PROGRAM: &str = "common::feign::helper::feigned_runtime";

/// Not a test: the program that [`start`] runs. `make test-all` skips modules of this name.
mod helper {
    #[test]
    #[ignore = "helper: the program that other tests start"]
    fn feigned_runtime() {
        super::main();
    }
}

/// What a feigned runtime is like.
#[derive(Clone)]
pub struct Feigned {
    pub name: String,
    pub class: &'static str,
    pub guaranteed: u32,
    pub kthreads: u32,
    pub mode: &'static str,
}

impl Feigned {
    pub fn new(name: &str, class: &'static str, mode: &'static str) -> Feigned {
        Feigned { name: name.into(), class, guaranteed: 0, kthreads: 2, mode }
    }
}

/// A running one, and what it says.
pub struct Running {
    pub program: Program,
    said: std::sync::mpsc::Receiver<String>,
}

impl Running {
    /// Waits until it says a line with this in it; the line.
    pub fn says(&self, what: &str) -> String {
        let deadline = Instant::now() + super::PATIENCE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let line = self.said.recv_timeout(left);
            let line = line.unwrap_or_else(|err| panic!("it never said {what:?}: {err}"));
            if line.contains(what) {
                return line;
            }
        }
    }

    pub fn pid(&self) -> i32 {
        self.program.pid()
    }
}

/// Starts one; `prefix` is a program that runs it, with its arguments.
pub fn start_by(prefix: &[&str], socket: &Path, it: &Feigned) -> Running {
    let own = std::env::current_exe().unwrap();
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).args(prefix).arg(own);
    command.args(["--exact", PROGRAM, "--ignored", "--nocapture"]);
    command.env("FEIGN_SOCKET", socket).env("FEIGN_NAME", &it.name).env("FEIGN_CLASS", it.class);
    command.env("FEIGN_GUARANTEED", it.guaranteed.to_string());
    command.env("FEIGN_KTHREADS", it.kthreads.to_string()).env("FEIGN_MODE", it.mode);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let out = child.stdout.take().unwrap();
    let (tell, said) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            if tell.send(line).is_err() {
                return;
            }
        }
    });
    Running { program: Program(child), said }
}

/// Starts one under this daemon, and waits until it is registered.
pub fn start(ground: &Ground, it: &Feigned) -> Running {
    let running = start_by(&[], &ground.path().join("control.sock"), it);
    running.says("registered");
    running
}

/// The whole life of the program.
fn main() {
    let var = |name: &str| std::env::var(format!("FEIGN_{name}")).unwrap();
    let wanted = Registration {
        layout: VERSION,
        name: var("NAME"),
        class: if var("CLASS") == "lc" { Class::LatencyCritical } else { Class::BestEffort },
        guaranteed: var("GUARANTEED").parse().unwrap(),
        max_cores: var("KTHREADS").parse().unwrap(),
        version: "feigned".into(),
        ..Registration::default()
    };
    let socket = var("SOCKET");
    let mode: &'static str = var("MODE").leak();
    if mode.starts_with("real") {
        return real(&wanted, Path::new(&socket), mode);
    }
    loop {
        match register(Path::new(&socket), &wanted) {
            Ok(session) => {
                say("registered");
                live(session, mode);
                say("alone");
            }
            Err(err) => {
                say(&format!("refused: {err}"));
                if mode == "once" {
                    return;
                }
            }
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Quell's runtime with green threads that compute, or with one that naps.
fn real(wanted: &Registration, socket: &Path, mode: &str) {
    let runtime = quell_runtime::Runtime::builder()
        .name(&wanted.name)
        .class(wanted.class)
        .guaranteed(wanted.guaranteed as usize)
        .max_cores(wanted.max_cores as usize)
        .socket(socket)
        .build()
        .unwrap();
    say("registered");
    let done = Arc::new(AtomicU64::new(0));
    let workers = if mode == "real-naps" { 1 } else { 2 * wanted.max_cores };
    let works = mode != "real-naps";
    for _ in 0..workers {
        let done = Arc::clone(&done);
        runtime.handle().spawn(move || {
            loop {
                match works {
                    true => spin(Duration::from_micros(20)),
                    false => quell_runtime::sleep(Duration::from_millis(20)),
                }
                done.fetch_add(1, Ordering::Relaxed);
                quell_runtime::yield_now();
            }
        });
    }
    loop {
        std::thread::sleep(Duration::from_millis(50));
        let cores = runtime.run(quell_runtime::load::cores);
        say(&format!("done {} on {cores} cores", done.load(Ordering::Relaxed)));
    }
}

fn spin(time: Duration) {
    let until = Instant::now() + time;
    while Instant::now() < until {
        std::hint::spin_loop();
    }
}

fn say(what: &str) {
    // Libtest's harness shares the stream: one write a line.
    let _ = std::io::stdout().write_all(format!("{what}\n").as_bytes());
}

/// One session, until its end.
fn live(session: Session, mode: &'static str) {
    let file = session.memory.try_clone().unwrap();
    let memory = Arc::new(
        Memory::open(session.memory.try_clone().unwrap(), session.registered.kthreads).unwrap(),
    );
    let session = Arc::new(session);
    let over = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..memory.kthreads())
        .map(|at| {
            let (memory, session, over) =
                (Arc::clone(&memory), Arc::clone(&session), Arc::clone(&over));
            std::thread::spawn(move || kthread(at, &memory, &session, &over, mode))
        })
        .collect();
    match mode {
        "liar" => lie(&File::from(file), &session, &over),
        "bomb" => bomb(),
        _ => {}
    }
    let mut fds = [PollFd::from_borrowed_fd(session.as_fd(), PollFlags::IN)];
    let _ = poll(&mut fds, None);
    over.store(true, Ordering::SeqCst);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

fn kthread(at: u32, memory: &Memory, session: &Session, over: &AtomicBool, mode: &str) {
    let lines = memory.kthread(at).unwrap();
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    lines.work.begin(tid);
    let is_over = || over.load(Ordering::SeqCst);
    let began = clock::now();
    match mode {
        // Wakes up without a core 300 ms from now.
        "sleepy" => {
            let due = began + Nanos::from_millis(300);
            lines.work.set_timer(Some(due));
            lines.work.set_state(KthreadState::Parked);
            std::thread::sleep(Duration::from_millis(300));
            if let Some((_, core)) = grant(at, lines, session, &is_over) {
                say(&format!("granted {core} to {tid}"));
            }
            lines.work.set_timer(None);
            lines.work.set_state(KthreadState::Parked);
            while !is_over() {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        "deadlocked" => {
            lines.work.set_ready(Some(began), 1_000);
            while !is_over() {
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        _ => {
            while !is_over() {
                let Some((generation, _)) = grant(at, lines, session, &is_over) else { return };
                lines.work.set_generation(generation);
                lines.work.set_state(KthreadState::Running);
                work(lines, mode, began, &is_over);
                lines.counters.revokes.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Runs until it has to leave; some never do.
fn work(lines: &Kthread, mode: &str, began: Nanos, is_over: &dyn Fn() -> bool) {
    lines.work.set_uthread(Some(clock::now()));
    while !is_over() && (mode == "stubborn" || !lines.is_core_revoked()) {
        // Work waits for longer than anybody wants: it takes every core that it is given.
        lines.work.set_ready(Some(began), 8);
        if mode != "stubborn" {
            lines.work.set_uthread(Some(clock::now()));
        }
        lines.counters.switches.fetch_add(1, Ordering::Relaxed);
        spin(Duration::from_micros(20));
        if mode == "gentle" {
            std::thread::sleep(Duration::from_micros(500));
        }
    }
}

/// Asks for a core until there is one.
fn grant(
    at: u32,
    lines: &Kthread,
    session: &Session,
    is_over: &dyn Fn() -> bool,
) -> Option<(u64, quell_model::CoreId)> {
    let bell = &session.bells[at as usize];
    while !is_over() {
        if let Some(granted) = lines.work.ask(&lines.grant) {
            return Some(granted);
        }
        let _ = rustix::io::write(&session.daemon, &1u64.to_ne_bytes());
        let timeout = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
        let mut fds = [PollFd::from_borrowed_fd(bell.as_fd(), PollFlags::IN)];
        let _ = poll(&mut fds, Some(&timeout));
        let _ = rustix::io::read(bell, &mut [0u8; 64]);
    }
    None
}

/// Writes garbage over everything that is shared, the daemon's words included, rings without end, and takes the flags
/// off all descriptors.
fn lie(file: &File, session: &Session, over: &Arc<AtomicBool>) {
    for fd in session.bells.iter().chain([&session.daemon]) {
        let flags = rustix::fs::fcntl_getfl(fd).unwrap();
        rustix::fs::fcntl_setfl(fd, flags - rustix::fs::OFlags::NONBLOCK).unwrap();
    }
    let file = file.try_clone().unwrap();
    let bell = session.daemon.try_clone().unwrap();
    let over = Arc::clone(over);
    std::thread::spawn(move || {
        let bytes = file.metadata().unwrap().len() as usize;
        let mut dice = 0x9e37_79b9_7f4a_7c15u64;
        let mut garbage = vec![0u8; bytes];
        while !over.load(Ordering::SeqCst) {
            for chunk in garbage.chunks_mut(8) {
                dice ^= dice << 13;
                dice ^= dice >> 7;
                dice ^= dice << 17;
                // Numbers of real threads among them, and states that exist.
                let word = if dice.is_multiple_of(3) { dice % 40_000 } else { dice };
                chunk.copy_from_slice(&word.to_ne_bytes()[..chunk.len()]);
            }
            file.write_all_at(&garbage, 0).unwrap();
            let _ = rustix::io::write(&bell, &1u64.to_ne_bytes());
            std::thread::sleep(Duration::from_micros(50));
        }
    });
}

/// Two hundred processes as fast as they start, and the next when one ends.
fn bomb() {
    std::thread::spawn(|| {
        let mut alive = Vec::new();
        for _ in 0..600 {
            alive.extend(Command::new("sleep").arg("0.2").stdout(Stdio::null()).spawn());
            if alive.len() >= 200 {
                alive.drain(..100).for_each(|mut child| drop(child.wait()));
            }
        }
        alive.into_iter().for_each(|mut child| drop(child.wait()));
        say("exploded");
    });
}
