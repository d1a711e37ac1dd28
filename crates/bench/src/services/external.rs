//! A client that comes with a service: a program that logs each request.

use std::fs::File;
use std::io::BufReader;
use std::process::Stdio;

use anyhow::{Context as _, Result, bail};
use quell_model::{CoreSet, Nanos};
use quell_trace::why::read_requests;

use super::definition::Client;
use super::measure::{Offer, Offered};
use super::service::Service;
use crate::host::pin;
use crate::stops::Request;

/// Runs the service's own client on the client's core.
///
/// # Errors
/// When it fails, or what it wrote is malformed.
pub(super) fn ask(service: &Service, offer: &Offer) -> Result<Offered> {
    let Client::Command(words) = &service.definition.client else {
        bail!("{} has no client of its own", service.definition.name);
    };
    let directory = crate::host::directory()?;
    let file = directory.path().join("requests.csv");
    let seconds = (offer.warmup + offer.duration).as_secs_f64();
    let filled = |word: &String| {
        word.replace("{rate}", &format!("{:.0}", offer.rate_rps))
            .replace("{seconds}", &format!("{seconds:.3}"))
            .replace("{seed}", &offer.seed.to_string())
            .replace("{requests}", &file.display().to_string())
    };
    let words: Vec<String> = words.iter().map(filled).collect();
    let start = quell_load::now() + Nanos(offer.warmup.as_nanos() as u64);
    let mut child = service
        .command(&words)
        .stdout(Stdio::null())
        .spawn()
        .with_context(|| format!("start the client {}", words[0]))?;
    pin(child.id().cast_signed(), &CoreSet::of(offer.client)).context("place the client")?;
    let status = child.wait().context("wait for the client")?;
    if !status.success() {
        bail!("the client {}: {status}", words[0]);
    }
    let input = File::open(&file).with_context(|| format!("{} wrote no {{requests}}", words[0]))?;
    let requests = read_requests(BufReader::new(input)).context("what the client wrote")?;
    let end = quell_load::now();
    let counted = requests.into_iter().filter(|(sent, _)| *sent >= start);
    let requests: Vec<Request> = counted.map(|(due, done)| Request { due, done }).collect();
    let scheduled = (offer.rate_rps * offer.duration.as_secs_f64()) as u64;
    Ok(Offered {
        answered: requests.len() as u64,
        requests,
        scheduled,
        start,
        end,
        late: 0,
        client_stalls: Vec::new(),
        client_sleep: None,
    })
}
