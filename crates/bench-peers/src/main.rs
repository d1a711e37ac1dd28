//! The runtimes that `quell bench runtime` measures beside each other, and the primitives that none of them can avoid. In a
//! program of its own, so that `quell` links no runtime but what it needs.
//!
//! `quell-bench-peers SYSTEM CASE WORKERS WARM_UP_MS TIME_MS` runs one case and prints one line of JSON ([`protocol`]);
//! `quell-bench-peers SYSTEM list` prints the cases that SYSTEM has. The same cases in C and in Go are part of `quell-bench`.
//! `sockets` is one end of a case of `quell bench net`. `batch` and `grant` are what `quell bench runtime-colocate` puts on the runtime ([`roles`]); its server is `quell-bench-quantum`.

mod floor;
mod green;
mod may_peer;
mod net;
mod protocol;
mod quell_peer;
mod roles;
mod sockets;
mod tokio_peer;

use std::process::ExitCode;

use anyhow::{Result, bail};

use crate::protocol::{CASES, Request};

const USAGE: &str = "usage: quell-bench-peers SYSTEM (CASE WORKERS WARM_UP_MS TIME_MS | list), run by `quell bench runtime`";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn run(words: &[&str]) -> Result<()> {
    match *words {
        ["sockets", ref rest @ ..] => sockets::run(rest),
        ["batch", file] => roles::batch(file.as_ref()),
        ["grant", core, ref rest @ ..] => roles::grant(core, &Request::parse("grant", rest)?),
        [system, "list"] => {
            cases(system)?.iter().for_each(|case| println!("{case}"));
            Ok(())
        }
        [system, case, ref rest @ ..] => {
            if !cases(system)?.contains(&case) {
                bail!("{system} has no case {case}");
            }
            let request = Request::parse(case, rest)?;
            match system {
                "tokio" => tokio_peer::run(&request, tokio_peer::Flavour::MultiThread),
                "tokio-current-thread" => {
                    tokio_peer::run(&request, tokio_peer::Flavour::CurrentThread)
                }
                "may" => may_peer::run(&request),
                "quell" => quell_peer::run(&request),
                _ => floor::run(&request),
            }
        }
        _ => bail!(USAGE),
    }
}

/// The cases that a system has.
fn cases(system: &str) -> Result<Vec<&'static str>> {
    let all = CASES.to_vec();
    let stolen = |case: &&str| case.starts_with("steal");
    match system {
        "tokio" | "may" | "quell" => Ok(all),
        // It has one thread, and so nobody to steal.
        "tokio-current-thread" => Ok(all.into_iter().filter(|case| !stolen(case)).collect()),
        "floor" => Ok(floor::PRIMITIVES.to_vec()),
        _ => bail!("no system is called {system}; {USAGE}"),
    }
}
