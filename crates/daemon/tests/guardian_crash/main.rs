//! Whatever is killed, and whenever: the host is as it was.
//!
//! A program that changes threads, settings and cgroups all the time is stopped at a named point, something is done to
//! it or its guardians, and a judge of its own compares every thread and setting with what was before. By
//! default the program is `quell-rig`. `QUELL_CRASH_RUN` and `QUELL_CRASH_RELEASE` name others: words with `{run}` for
//! the run directory, `{seed}` for a number, `{pids}` for the victims, e.g. a script that writes a
//! configuration and execs `quell run`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "tests fail by panicking")]

mod host;
mod scenario;
mod victims;

use scenario::{Act, Crash, Point};

/// Every named point with every act on it.
#[test]
fn every_death_at_every_point_leaves_the_host_as_it_was() {
    let _lock = quell_testkit::host_lock().unwrap();
    let crash = Crash::prepare();
    let mut seed = 0;
    for point in Point::ALL {
        for act in Act::ALL {
            seed += 1;
            crash.run(point, act, seed);
        }
    }
}

/// Deaths at any time, in any order, under load: 20, or as many as `QUELL_CRASH_DEATHS` says (`make test-all`: 200).
#[test]
fn random_deaths_leave_the_host_as_it_was() {
    let deaths = std::env::var("QUELL_CRASH_DEATHS").map_or(20, |deaths| deaths.parse().unwrap());
    assert!(deaths > 0, "QUELL_CRASH_DEATHS has to be a number above 0");
    let _lock = quell_testkit::host_lock().unwrap();
    let crash = Crash::prepare();
    for seed in 1..=deaths {
        crash.run_random(seed);
    }
}
