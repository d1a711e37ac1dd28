//! The total by the counters of the memory controllers (uncore IMC of Intel processors), which the kernel
//! describes in sysfs: a unit each, the events it counts, how much an event means, and on which core to ask.

use std::fs;
use std::io;
use std::path::Path;

use quell_model::{Bytes, CoreId, CoreSet};

use super::read_bounded;
use crate::perf::{Counted, Counter};

const DEVICES: &str = "sys/bus/event_source/devices";
/// Reads and writes, of servers and of clients.
const EVENTS: [&str; 4] = ["cas_count_read", "cas_count_write", "data_reads", "data_writes"];
const FILE_BYTES_MAX: u64 = 4_096;
const MIB: f64 = 1_048_576.0;

/// The counters of a host.
#[derive(Debug)]
pub struct Controllers {
    counters: Vec<(Counter, f64)>,
}

/// An event to be counted.
#[derive(Clone, Debug, PartialEq)]
struct Event {
    counted: Counted,
    core: CoreId,
    /// Bytes that one event means.
    bytes: f64,
}

impl Controllers {
    /// Opens the counters that sysfs below `host` (`/` for this one) describes.
    ///
    /// # Errors
    /// When there are none, or one of them cannot be opened: a part is no total.
    pub fn open(host: &Path) -> io::Result<Controllers> {
        let events = described(host);
        if events.is_empty() {
            return Err(io::Error::other("the kernel describes none (uncore_imc)"));
        }
        let open = |event: &Event| Ok((Counter::on_core(event.counted, event.core)?, event.bytes));
        Ok(Controllers { counters: events.iter().map(open).collect::<io::Result<_>>()? })
    }

    /// The total so far.
    ///
    /// # Errors
    /// When a counter cannot be read.
    pub fn read(&mut self) -> io::Result<Bytes> {
        let mut total = 0u64;
        for (counter, bytes) in &self.counters {
            total = total.saturating_add((counter.read()? as f64 * bytes) as u64);
        }
        Ok(Bytes(total))
    }
}

/// The events of all controllers that sysfs describes.
fn described(host: &Path) -> Vec<Event> {
    let devices = fs::read_dir(host.join(DEVICES)).into_iter().flatten().flatten();
    let mut units: Vec<_> = devices
        .filter(|unit| unit.file_name().to_string_lossy().starts_with("uncore_imc"))
        .map(|unit| unit.path())
        .collect();
    units.sort();
    units.iter().flat_map(|unit| EVENTS.iter().flat_map(|name| event(unit, name))).collect()
}

/// One event of one unit, on each core that has to be asked for it: one a socket.
fn event(unit: &Path, name: &str) -> Vec<Event> {
    let text =
        |file: &str| Some(read_bounded(&unit.join(file), FILE_BYTES_MAX).ok()?.trim().to_owned());
    let event = || {
        let config =
            encode(&text(&format!("events/{name}"))?, |field| text(&format!("format/{field}")))?;
        let scale: f64 = text(&format!("events/{name}.scale"))?.parse().ok()?;
        let is_mib = text(&format!("events/{name}.unit"))? == "MiB";
        let cores: CoreSet = text("cpumask")?.parse().ok()?;
        let unit = text("type")?.parse().ok()?;
        let usable = is_mib && scale > 0.0 && scale.is_finite();
        usable.then_some((Counted { unit, config }, cores, scale * MIB))
    };
    let Some((counted, cores, bytes)) = event() else { return Vec::new() };
    cores.iter().map(|core| Event { counted, core, bytes }).collect()
}

/// An event as sysfs writes it (`event=0x04,umask=0x03`) as the unit's word. `format` tells where a field lies
/// (`config:0-7`).
fn encode(event: &str, format: impl Fn(&str) -> Option<String>) -> Option<u64> {
    let mut config = 0u64;
    for term in event.split(',') {
        let (field, value) = term.split_once('=').unwrap_or((term, "1"));
        let value = match value.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok()?,
            None => value.parse().ok()?,
        };
        // A name comes from a file: it is not to lead out of the directory.
        if !field.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
            return None;
        }
        let place = format(field)?;
        let bits = place.strip_prefix("config:")?;
        let (low, high) = bits.split_once('-').unwrap_or((bits, bits));
        let (low, high): (u32, u32) = (low.parse().ok()?, high.parse().ok()?);
        let width = high.checked_sub(low)? + 1;
        if high > 63 || (width < 64 && value >> width != 0) {
            return None;
        }
        config |= value << low;
    }
    Some(config)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Linux' tree of a server with two channels; `broken` has no scale.
    fn tree() -> tempfile::TempDir {
        let host = tempfile::tempdir().unwrap();
        for (unit, kind) in [("uncore_imc_0", 14), ("uncore_imc_1", 15), ("uncore_cha_0", 30)] {
            let dir = host.path().join(DEVICES).join(unit);
            for sub in ["events", "format"] {
                fs::create_dir_all(dir.join(sub)).unwrap();
            }
            let write = |file: &str, text: &str| fs::write(dir.join(file), text).unwrap();
            write("type", &format!("{kind}\n"));
            write("cpumask", "0,18\n");
            write("format/event", "config:0-7\n");
            write("format/umask", "config:8-15\n");
            for (event, umask) in [("cas_count_read", 3), ("cas_count_write", 12)] {
                write(&format!("events/{event}"), &format!("event=0x04,umask=0x{umask:02x}\n"));
                write(&format!("events/{event}.scale"), "6.103515625e-5\n");
                write(&format!("events/{event}.unit"), "MiB\n");
            }
        }
        host
    }

    #[test]
    fn every_channel_counts_reads_and_writes_on_one_core_a_socket() {
        let events = described(tree().path());
        assert_eq!(events.len(), 8, "two channels, two events, two sockets");
        let first =
            Event { counted: Counted { unit: 14, config: 0x304 }, core: CoreId(0), bytes: 64.0 };
        assert_eq!(events[0], first);
        assert_eq!(events[3].counted.config, 0xc04);
        assert!(events.iter().all(|event| event.bytes == 64.0 && event.counted.unit != 30));
    }

    #[test]
    fn what_cannot_be_understood_is_left_out() {
        let host = tree();
        let dir = host.path().join(DEVICES);
        fs::write(dir.join("uncore_imc_0/events/cas_count_read.unit"), "Joules\n").unwrap();
        fs::write(dir.join("uncore_imc_0/events/cas_count_write"), "event=0x104\n").unwrap();
        fs::write(dir.join("uncore_imc_1/cpumask"), "all\n").unwrap();
        assert_eq!(described(host.path()), []);
        assert!(Controllers::open(host.path()).is_err());
    }

    proptest! {
        #[test]
        fn no_description_makes_encoding_fail_otherwise_than_by_refusing(event in ".{0,60}", place in ".{0,20}") {
            let _ = encode(&event, |_| Some(place.clone()));
            let _ = encode("event=0x04", |_| Some(place.clone()));
        }
    }
}
