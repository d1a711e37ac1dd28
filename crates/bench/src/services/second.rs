//! The client of a second service: it sleeps between requests, so that it leaves the core to the other client.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow};
use quell_load::now;
use quell_load::protocol::synthetic::{FRAME_BYTES, Op, Request as Frame};
use quell_load::serve::send_runaway;
use quell_model::Nanos;
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use crate::host::{Policy, set_policy};
use crate::stops::Request;

/// How long to wait for answers after the last request was due.
const GRACE: Duration = Duration::from_secs(1);
/// The sender's priority: it works for microseconds at a time beside a client that spins.
const SENDER_PRIORITY: i32 = 1;

/// What it does to the server in a measurement.
#[derive(Clone, Copy, Debug)]
pub enum Script {
    /// Requests of this much work at these rates, each for this time.
    Steps {
        /// Work of a request.
        work: Nanos,
        /// Requests a second in each step.
        rates_rps: [f64; 3],
        /// Length of a step.
        step: Duration,
    },
    /// After a while a worker runs away for some time.
    Runaway {
        /// Until then.
        after: Duration,
        /// For so long.
        spin: Duration,
    },
}

/// Follows a script from `start` on, on a thread of its own.
///
/// # Errors
/// When the thread cannot be started.
pub fn follow(addr: SocketAddr, script: Script, start: Nanos, seed: u64) -> Result<Following> {
    let thread = std::thread::Builder::new().name("second-client".into());
    let thread = thread.spawn(move || match script {
        Script::Steps { work, rates_rps, step } => {
            offer(addr, &schedule(start, rates_rps, nanos(step), seed), work)
        }
        Script::Runaway { after, spin } => {
            sleep_until(start + nanos(after));
            match send_runaway(addr, Some(nanos(spin)))? {
                true => Ok(Vec::new()),
                false => Err(anyhow!("the server refused to run away")),
            }
        }
    });
    Ok(Following { thread: thread.context("start the second client")? })
}

/// A script under way.
pub struct Following {
    thread: JoinHandle<Result<Vec<Asked>>>,
}

impl Following {
    /// Waits for its end. The requests that the script asked for, if any.
    ///
    /// # Errors
    /// When the server could not be talked to.
    pub fn finish(self) -> Result<Vec<Asked>> {
        self.thread.join().map_err(|_| anyhow!("the second client panicked"))?
    }
}

/// A request to the second server.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// By its intended send time; one without an answer ends with the run.
    pub request: Request,
    /// Whether it was answered.
    pub answered: bool,
}

fn nanos(time: Duration) -> Nanos {
    Nanos(time.as_nanos() as u64)
}

fn sleep_until(at: Nanos) {
    let left = at - now();
    std::thread::sleep(Duration::from_nanos(left.0));
}

/// Poisson arrivals in three steps.
fn schedule(start: Nanos, rates_rps: [f64; 3], step: Nanos, seed: u64) -> Vec<Nanos> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let mut due = Vec::new();
    for (at, rate) in rates_rps.into_iter().enumerate() {
        let begin = start + Nanos(step.0 * at as u64);
        let mut next = begin;
        let mut gap = || {
            let uniform: f64 = rng.random();
            // A rate of zero makes the gap endless.
            Nanos((-(1.0 - uniform).ln() / rate * 1e9) as u64)
        };
        next += gap();
        while next < begin + step {
            due.push(next);
            next += gap();
        }
    }
    due
}

/// Sends a request at each of these times and waits for the answers.
fn offer(addr: SocketAddr, due: &[Nanos], work: Nanos) -> Result<Vec<Asked>> {
    let mut sender = TcpStream::connect(addr).context("connect to the synthetic server")?;
    sender.set_nodelay(true)?;
    let mut receiver = sender.try_clone()?;
    receiver.set_read_timeout(Some(GRACE))?;
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || -> Result<()> {
            set_policy(0, Policy::Fifo(SENDER_PRIORITY)).context("favour the second client")?;
            for (id, &at) in due.iter().enumerate() {
                sleep_until(at);
                let op = Op::Work { work_ns: work.0 };
                sender.write_all(&Frame { id: id as u64, op }.to_bytes()).context("send")?;
            }
            Ok(())
        });
        let mut asked = Vec::with_capacity(due.len());
        let mut frame = [0; FRAME_BYTES];
        // Answers come in the order of the requests.
        while let Some(&at) = due.get(asked.len()) {
            match receiver.read_exact(&mut frame) {
                Ok(()) => {
                    asked.push(Asked { request: Request { due: at, done: now() }, answered: true })
                }
                Err(_) if now() < due.last().copied().unwrap_or(at) + nanos(GRACE) => {}
                Err(_) => break,
            }
        }
        let end = now();
        let left = due[asked.len()..].iter();
        asked.extend(
            left.map(|&due| Asked {
                request: Request { due, done: end.max(due) },
                answered: false,
            }),
        );
        sending.join().map_err(|_| anyhow!("the second client panicked"))??;
        Ok(asked)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_load::serve::{ServeSpec, Server};

    #[test]
    fn steps_keep_their_rates() {
        let due = schedule(Nanos(0), [1_000.0, 4_000.0, 0.0], Nanos::from_secs(1), 7);
        let in_second = |at: u64| {
            let within = |due: &&Nanos| due.0 / 1_000_000_000 == at;
            due.iter().filter(within).count()
        };
        assert!((900..1_100).contains(&in_second(0)) && (3_700..4_300).contains(&in_second(1)));
        assert_eq!(in_second(2), 0);
        assert_eq!(due, schedule(Nanos(0), [1_000.0, 4_000.0, 0.0], Nanos::from_secs(1), 7));
    }

    #[test]
    fn every_request_is_answered_and_timed() {
        let server = Server::start(&ServeSpec::new("127.0.0.1:0".parse().unwrap())).unwrap();
        let due = schedule(now(), [500.0, 500.0, 500.0], Nanos::from_millis(100), 1);
        let asked = offer(server.addr(), &due, Nanos::from_micros(50)).unwrap();
        assert_eq!(asked.len(), due.len());
        assert_eq!(server.stop().served, due.len() as u64);
        assert!(asked.iter().all(|one| one.answered && one.request.done > one.request.due));
    }
}
