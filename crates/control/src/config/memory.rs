//! Where memory traffic is read: `[host.memory]`.

use std::path::PathBuf;

use quell_model::Nanos;
use serde::Deserialize;
use toml::Spanned;

use super::raw::Place;
use super::{ConfigError, MemoryConfig, MemorySource};

/// Between two readings of the host's own counters, and of a file.
const EVERY: Nanos = Nanos::from_millis(1);
const EVERY_OF_FILE: Nanos = Nanos::from_millis(10);

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct RawMemory {
    source: Option<Spanned<String>>,
    interval_us: Option<Spanned<u64>>,
}

pub(super) fn memory(place: &Place, raw: RawMemory) -> Result<MemoryConfig, ConfigError> {
    let source = match &raw.source {
        None => MemorySource::Auto,
        Some(typed) => source(typed.get_ref()).ok_or_else(|| {
            let what = format!("`{}` is no source of memory traffic", typed.get_ref());
            let remedy = "`auto`, `none`, `resctrl`, `counters`, or `file:` and an absolute path";
            place.error(typed, what, remedy)
        })?,
    };
    let every = place.time("interval_us", &raw.interval_us, 100..=10_000_000, 1_000)?;
    let usual = if matches!(source, MemorySource::File(_)) { EVERY_OF_FILE } else { EVERY };
    Ok(MemoryConfig { source, every: every.unwrap_or(usual) })
}

fn source(typed: &str) -> Option<MemorySource> {
    Some(match typed {
        "auto" => MemorySource::Auto,
        "none" => MemorySource::None,
        "resctrl" => MemorySource::Resctrl,
        "counters" => MemorySource::Counters,
        file => MemorySource::File(PathBuf::from(
            file.strip_prefix("file:").filter(|path| path.starts_with('/') && path.len() > 1)?,
        )),
    })
}
