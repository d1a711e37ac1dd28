//! The recording of a run's decisions.

use std::path::PathBuf;
use std::time::{SystemTime, UNIX_EPOCH};

use quell_control::config::HostConfig;
use quell_decisions::{Clock, Meta, NewFile, Recorder, Spool, SpoolError};
use quell_os::clock;

use crate::boot::policy_config;
use crate::engine::Parts;

/// Where decisions are recorded to.
pub struct RecordTo {
    /// The file.
    pub file: PathBuf,
    /// Keep about the newest so many bytes.
    pub ring: Option<u64>,
}

impl RecordTo {
    /// Makes the file, before anything else of the host changes.
    pub fn create(&self) -> Result<NewFile, SpoolError> {
        NewFile::create(&self.file, self.ring)
    }
}

/// Starts the writer on the calling thread's cores, and has the scheduler thread record.
pub fn start(file: NewFile, parts: &mut Parts, config: &HostConfig) -> Result<Spool, SpoolError> {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let meta = Meta {
        quell: env!("CARGO_PKG_VERSION").to_owned(),
        policy: parts.policy.name().to_owned(),
        config: policy_config(config),
        topology: parts.host.topology.clone(),
        managed: parts.host.managed,
        caps: parts.host.caps,
        clock: Clock { monotonic: clock::now(), unix_ns: since_epoch.as_nanos() as u64 },
    };
    let segment = file.segment_bytes();
    let (sink, spool) = file.start()?;
    parts.recorder = Some(Recorder::new(sink, meta, segment, parts.policy.as_ref()));
    Ok(spool)
}
