//! `--report-to TASK`: what the load sees goes to a running daemon, once a second.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use quell_control::client::{Client, ClientError};
use quell_control::protocol::{LatencyReport, Method, Quantile};
use quell_load::Interval;
use quell_model::Nanos;

/// How long the daemon may take to answer: the next interval is over a second later, and a busy host takes its time.
const PATIENCE: Duration = Duration::from_millis(900);

/// Where to report to.
#[derive(clap::Args)]
pub struct FeedTo {
    /// Report latency and rate of each second to the running daemon, as those of this LC task
    #[arg(long, value_name = "TASK")]
    report_to: Option<String>,
    /// The daemon's run directory, for --report-to [default: $QUELL_RUN_DIR, else /run/quell where /run is a tmpfs,
    /// else /dev/shm/quell]
    #[arg(long, value_name = "DIR", requires = "report_to")]
    run_dir: Option<PathBuf>,
}

impl FeedTo {
    /// Connects to the daemon, if a feed is wanted.
    pub fn connect(&self) -> Result<Option<Feed>> {
        let Some(task) = self.report_to.clone() else { return Ok(None) };
        let dir = self.run_dir.clone().unwrap_or_else(quell_control::run_dir::default_run_dir);
        let socket = quell_daemon::socket_path(&dir);
        let client = Some(connect(&socket)?);
        Ok(Some(Feed { task, socket, client, told: None, last: None }))
    }
}

/// A connection that reports.
pub struct Feed {
    task: String,
    socket: PathBuf,
    client: Option<Client>,
    /// The last complaint, said once.
    told: Option<String>,
    last: Option<Nanos>,
}

impl Feed {
    /// Reports one interval. What goes wrong is said once and does not end the load.
    pub fn send(&mut self, seen: &Interval) {
        let since =
            self.last.replace(seen.at).map_or(Nanos::from_secs(1), |last| seen.at.since(last));
        let quantile = |(percentile, latency_us)| Quantile { percentile, latency_us };
        let report = LatencyReport {
            task: self.task.clone(),
            interval_ms: (since.0 / 1_000_000).clamp(10, 60_000),
            load_rps: Some(seen.offered_rps),
            latency: [(50.0, seen.p50_us), (99.0, seen.p99_us), (99.9, seen.p999_us)]
                .map(quantile)
                .to_vec(),
        };
        match self.call(Method::Report(report)) {
            Ok(()) => self.told = None,
            Err(err) => {
                let complaint = err.to_string();
                if !matches!(err, ClientError::Refused(_)) {
                    // An answer that comes later would be taken for the next one.
                    self.client = None;
                }
                if self.told.as_ref() != Some(&complaint) {
                    eprintln!("report to daemon: {complaint}");
                }
                self.told = Some(complaint);
            }
        }
    }

    fn call(&mut self, call: Method) -> Result<(), ClientError> {
        let client = match &mut self.client {
            Some(client) => client,
            none => none.insert(connect(&self.socket)?),
        };
        client.call(call).map(|_| ())
    }
}

fn connect(socket: &Path) -> Result<Client, ClientError> {
    Client::connect(socket)?.with_patience(PATIENCE)
}
