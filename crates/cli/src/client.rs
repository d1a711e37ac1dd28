//! What the subcommands that talk to a daemon share.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use quell_control::client::Client;
use quell_control::config::CONFIG_BYTES_MAX;
use quell_control::protocol::{Method, Reply};

/// How the daemon is found.
#[derive(Args)]
pub struct Daemon {
    /// The daemon's run directory [default: $QUELL_RUN_DIR, else /run/quell where /run is a tmpfs, else
    /// /dev/shm/quell]
    #[arg(long, value_name = "DIR", global = true)]
    pub run_dir: Option<PathBuf>,
}

impl Daemon {
    /// Makes one call.
    pub fn call(&self, call: Method) -> Result<Reply> {
        Ok(Client::connect(&self.socket())?.call(call)?)
    }

    /// Where it listens.
    pub fn socket(&self) -> PathBuf {
        let dir = self.run_dir.clone().unwrap_or_else(quell_control::run_dir::default_run_dir);
        quell_daemon::socket_path(&dir)
    }

    /// Makes a call that is answered in sentences, and prints them.
    pub fn tell(&self, call: Method) -> Result<()> {
        match self.call(call)? {
            Reply::Done(lines) => lines.iter().for_each(|line| println!("{line}")),
            other => bail!("the daemon answered out of turn: {other:?}"),
        }
        Ok(())
    }
}

/// Reads a configuration file, bounded.
pub fn read_config(path: &Path) -> Result<String> {
    let meta = std::fs::metadata(path).with_context(|| path.display().to_string())?;
    if meta.len() > CONFIG_BYTES_MAX as u64 {
        bail!("{}: larger than the {CONFIG_BYTES_MAX} bytes that are read", path.display());
    }
    std::fs::read_to_string(path).with_context(|| path.display().to_string())
}
