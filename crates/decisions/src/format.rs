//! What a recording says of itself.

use quell_model::{CoreSet, HostCaps, Nanos, Topology};
use quell_policy::{Config, Host};
use serde::{Deserialize, Serialize};

use super::delta::{Malformed, put, take};

/// The version of the format. It changes with the layout of any record, of Snapshot, Plan or a policy's state.
pub const FORMAT: u32 = 10;

const MAGIC: &[u8; 8] = b"QUELLREC";

/// Opens each segment: everything that a policy is told at its start, and where and when this was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    /// The version of Quell that recorded.
    pub quell: String,
    /// The policy's name.
    pub policy: String,
    /// What the operator set about it.
    pub config: Config,
    /// The shape of the host.
    pub topology: Topology,
    /// Cores that Quell may plan.
    pub managed: CoreSet,
    /// What the back end can do.
    pub caps: HostCaps,
    /// The clock of all times in the recording.
    pub clock: Clock,
}

/// CLOCK_MONOTONIC and the time of day at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    /// CLOCK_MONOTONIC.
    pub monotonic: Nanos,
    /// Nanoseconds since 1970-01-01 00:00 UTC.
    pub unix_ns: u64,
}

impl Meta {
    /// The host as the policy was told.
    pub fn host(&self) -> Host {
        Host { topology: self.topology.clone(), managed: self.managed, caps: self.caps }
    }

    /// The time of day of a time of this recording, in nanoseconds since 1970.
    pub fn unix_ns(&self, at: Nanos) -> u64 {
        self.clock.unix_ns.wrapping_add(at.0.wrapping_sub(self.clock.monotonic.0))
    }
}

/// The payload of a segment's first record, behind the segment's number.
pub(super) fn meta_bytes(meta: &Meta) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(meta, &mut bytes);
    bytes
}

/// The number of a segment and its Meta.
pub(super) fn read_meta(from: &mut &[u8]) -> Result<(u32, Meta), Malformed> {
    let (segment, meta): (u32, Meta) = (take(from)?, take(from)?);
    if !meta.managed.is_subset(&meta.topology.all()) {
        return Err(Malformed("a managed core that the host does not have"));
    }
    Ok((segment, meta))
}

/// The file's first bytes. All numbers are little endian.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Preamble {
    /// A ring's slots; each holds one segment. 0: one segment to the file's end.
    pub slots: u32,
    /// Bytes of a slot.
    pub slot_bytes: u64,
}

impl Preamble {
    /// Its length in the file.
    pub const BYTES: usize = 28;

    pub fn to_bytes(self) -> [u8; Preamble::BYTES] {
        let mut bytes = [0; Preamble::BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.slots.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.slot_bytes.to_le_bytes());
        let sum = crc32fast::hash(&bytes[..24]);
        bytes[24..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Where a slot begins.
    pub fn slot_at(&self, slot: u32) -> u64 {
        (Preamble::BYTES as u64).saturating_add(u64::from(slot).saturating_mul(self.slot_bytes))
    }
}

/// Why a file's first bytes are none of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotOurs {
    Magic,
    Format(u32),
    Damaged,
}

impl TryFrom<&[u8; Preamble::BYTES]> for Preamble {
    type Error = NotOurs;

    fn try_from(bytes: &[u8; Preamble::BYTES]) -> Result<Preamble, NotOurs> {
        let u32_at = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        if &bytes[..8] != MAGIC {
            return Err(NotOurs::Magic);
        }
        if !cfg!(fuzzing) && u32_at(24) != crc32fast::hash(&bytes[..24]) {
            return Err(NotOurs::Damaged);
        }
        if u32_at(8) != FORMAT {
            return Err(NotOurs::Format(u32_at(8)));
        }
        let slot_bytes = u64::from(u32_at(16)) | u64::from(u32_at(20)) << 32;
        Ok(Preamble { slots: u32_at(12), slot_bytes })
    }
}

/// Whether these are the first bytes of a recording of any version.
pub(super) fn is_recording(head: &[u8]) -> bool {
    head.starts_with(MAGIC)
}
