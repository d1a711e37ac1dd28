//! What a server on the runtime is told about its runtime.

use std::path::PathBuf;

use quell_runtime::{Builder, Class, Daemon, Io, Nanos, Runtime};

/// A key-value server in the text protocol of memcached, on the runtime.
#[derive(clap::Args)]
pub struct RuntimeOptions {
    /// The name by which the daemon knows it
    #[arg(long, default_value = "keyvalue")]
    name: String,
    /// Does batch work: latency-critical services come first
    #[arg(long)]
    best_effort: bool,
    /// Cores that are its own whenever it wants them
    #[arg(long, default_value_t = 0)]
    guaranteed: usize,
    /// Cores that it uses at most; all that it may by default
    #[arg(long)]
    max_cores: Option<usize>,
    /// Microseconds that a uthread may run while others wait; 0: no limit
    #[arg(long, default_value_t = 100)]
    quantum_us: u64,
    /// Whether it runs under the daemon: never, if-there or required
    #[arg(long, default_value = "if-there")]
    daemon: String,
    /// The daemon's control socket
    #[arg(long)]
    socket: Option<PathBuf>,
    /// What it waits with: auto, uring or epoll
    #[arg(long, default_value = "auto")]
    io: String,
}

impl RuntimeOptions {
    /// A builder with these settings.
    pub fn builder(&self) -> anyhow::Result<Builder> {
        let quantum = Some(Nanos::from_micros(self.quantum_us)).filter(|it| *it != Nanos::ZERO);
        let mut builder = Runtime::builder()
            .name(&self.name)
            .class(if self.best_effort { Class::BestEffort } else { Class::LatencyCritical })
            .guaranteed(self.guaranteed)
            .quantum(quantum)
            .daemon(match self.daemon.as_str() {
                "never" => Daemon::Never,
                "if-there" => Daemon::IfThere,
                "required" => Daemon::Required,
                other => anyhow::bail!("--daemon is never, if-there or required, not {other}"),
            })
            .io(match self.io.as_str() {
                "auto" => Io::Auto,
                "uring" => Io::Uring,
                "epoll" => Io::Epoll,
                other => anyhow::bail!("--io is auto, uring or epoll, not {other}"),
            });
        if let Some(cores) = self.max_cores {
            builder = builder.max_cores(cores);
        }
        if let Some(socket) = &self.socket {
            builder = builder.socket(socket);
        }
        Ok(builder)
    }
}
