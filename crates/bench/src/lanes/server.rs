//! A server of one thread that takes requests from a ring: one that polls, or one that sleeps until its bell is rung.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::AsFd as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use quell_load::now;
use quell_model::Nanos;
use rustix::event::epoll;

use super::ring::{Response, Ring};

/// How a server waits for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waits {
    /// It polls, as one on a network stack in user space does.
    Polling,
    /// It sleeps in epoll, as one on sockets does.
    Epoll,
}

impl Waits {
    /// Both.
    pub const ALL: [Waits; 2] = [Waits::Polling, Waits::Epoll];

    /// Its name in reports, and on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Waits::Polling => "polling",
            Waits::Epoll => "epoll",
        }
    }

    /// From its name.
    ///
    /// # Errors
    /// When it is no such name.
    pub fn from_name(name: &str) -> Result<Waits> {
        Waits::ALL
            .into_iter()
            .find(|waits| waits.name() == name)
            .context("neither polling nor epoll")
    }
}

/// Where the bell of a ring is: a named pipe.
pub fn bell(ring: &Path) -> PathBuf {
    ring.with_extension("bell")
}

/// Makes the bell.
///
/// # Errors
/// When it cannot be made.
pub fn make_bell(ring: &Path) -> Result<()> {
    let path = bell(ring);
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0)
        .with_context(|| format!("make {}", path.display()))
}

/// Opens a bell: for both directions, so that neither side waits for the other.
///
/// # Errors
/// When it is not there.
pub fn open_bell(path: &Path) -> Result<File> {
    use rustix::fs::{Mode, OFlags, open};
    let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(open(path, flags, Mode::empty()).with_context(|| format!("open {}", path.display()))?.into())
}

/// Rings a bell. One that rings already stays as it is.
pub fn ring_bell(bell: &File) {
    let mut bell = bell;
    let _ = bell.write(&[1]);
}

/// Serves until it is told to end.
///
/// # Errors
/// When the ring or its bell is not there.
pub fn serve(path: &Path, waits: Waits) -> Result<()> {
    let ring = Ring::open(path).with_context(|| format!("open {}", path.display()))?;
    let work = Work::calibrate();
    let sleeper = match waits {
        Waits::Polling => None,
        Waits::Epoll => Some(Sleeper::new(&bell(path))?),
    };
    ring.ready();
    while !ring.is_stopped() {
        let Some(request) = ring.next() else {
            if let Some(sleeper) = sleeper.as_ref().filter(|_| ring.may_sleep()) {
                sleeper.sleep()?;
            }
            std::hint::spin_loop();
            continue;
        };
        let begun = now();
        work.of(request.service);
        let response = Response { id: request.id, due: request.due, done: now() };
        ring.took(response.done.since(begun));
        while !ring.answer(&response) {
            if ring.is_stopped() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
    }
    Ok(())
}

/// The epoll instance that a server sleeps in.
struct Sleeper {
    epoll: std::os::fd::OwnedFd,
    bell: File,
}

impl Sleeper {
    fn new(bell: &Path) -> Result<Sleeper> {
        let bell = open_bell(bell)?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        epoll::add(&epoll, &bell, epoll::EventData::new_u64(0), epoll::EventFlags::IN)?;
        Ok(Sleeper { epoll, bell })
    }

    /// Until the bell is rung, or for a tenth of a second: it may be told to end.
    fn sleep(&self) -> Result<()> {
        let mut events = [epoll::Event {
            flags: epoll::EventFlags::empty(),
            data: epoll::EventData::new_u64(0),
        }];
        let most = rustix::event::Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
        match epoll::wait(self.epoll.as_fd(), &mut events[..], Some(&most)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => Ok(()),
            Ok(_) => {
                let mut bell = &self.bell;
                // Empty by now is as good.
                let _ = bell.read(&mut [0; 64]);
                Ok(())
            }
            Err(error) => bail!("epoll_wait: {error}"),
        }
    }
}

/// An amount of work, in turns of a loop: a server that is preempted in the middle has the rest still to do.
struct Work {
    turns_per_us: f64,
}

impl Work {
    /// Turns of the loop that are timed in one go.
    const SAMPLE: u64 = 10_000;

    /// For how long it is timed: a core may be slow for milliseconds, when its other hyperthread is busy.
    const CALIBRATION: Nanos = Nanos::from_millis(200);

    /// The fastest of many: others were preempted.
    fn calibrate() -> Work {
        let until = now() + Work::CALIBRATION;
        let mut fastest = Nanos::MAX;
        while fastest == Nanos::MAX || now() < until {
            let start = now();
            turn(Work::SAMPLE);
            fastest = fastest.min(now().since(start));
        }
        let fastest = fastest.0.max(1);
        Work { turns_per_us: Work::SAMPLE as f64 * 1e3 / fastest as f64 }
    }

    fn of(&self, service: Nanos) {
        turn((service.0 as f64 / 1e3 * self.turns_per_us) as u64);
    }
}

/// A loop that no compiler takes away.
fn turn(turns: u64) {
    (0..turns).for_each(|turn| {
        std::hint::black_box(turn);
    });
}

#[cfg(test)]
mod tests {
    use super::super::ring::Request;
    use super::*;

    #[test]
    fn a_server_answers_each_request_once_and_ends_when_it_is_told_to() {
        for waits in Waits::ALL {
            let directory = tempfile::tempdir().unwrap();
            let path = directory.path().join("ring");
            let ring = Ring::create(&path, 8).unwrap();
            make_bell(&path).unwrap();
            let bell = open_bell(&bell(&path)).unwrap();
            let own = path.clone();
            let serves = std::thread::spawn(move || serve(&own, waits).unwrap());
            for id in 0..100 {
                let request = Request { id, due: now(), service: Nanos(500) };
                assert!(ring.ask(&request));
                if ring.must_ring() {
                    ring_bell(&bell);
                }
                let answer = loop {
                    match ring.answered() {
                        Some(answer) => break answer,
                        None => std::thread::yield_now(),
                    }
                };
                assert_eq!((answer.id, answer.due), (id, request.due));
                assert!(answer.done >= request.due);
            }
            ring.stop();
            serves.join().unwrap();
            assert_eq!(ring.answered(), None);
            assert!(ring.shortest().is_some_and(|time| time > Nanos(100)));
        }
    }

    #[test]
    fn ways_to_wait_are_known_by_name() {
        assert_eq!(Waits::from_name("epoll").unwrap(), Waits::Epoll);
        assert!(Waits::from_name("select").is_err());
    }
}
