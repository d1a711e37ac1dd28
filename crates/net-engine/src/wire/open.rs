//! Payloads of control frames.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use super::u64_at;
use crate::ids::Class;

/// Size of an [`Open`].
pub const OPEN_BYTES: usize = 40;
/// Size of an [`Update`].
pub const UPDATE_BYTES: usize = 24;

/// What the opener of a stream asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Open {
    /// The opener's address: a claim, as good as the authentication of the peer.
    pub source: SocketAddr,
    /// The listener's address.
    pub destination: SocketAddr,
    /// The class of the channels that carry it.
    pub class: Class,
}

/// Why the payload of an open frame is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// A class that this version does not have.
    #[error("unknown stream class {0}")]
    Class(u8),
    /// Bytes that have to be zero are not.
    #[error("reserved bytes of an open frame are not zero")]
    Reserved,
}

impl Open {
    /// Its bytes. IPv4 addresses travel as mapped IPv6 addresses (RFC 4291, 2.5.5.2).
    pub fn encode(&self) -> [u8; OPEN_BYTES] {
        let mut bytes = [0; OPEN_BYTES];
        for (at, address) in [(0, &self.source), (18, &self.destination)] {
            let ip = match address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped(),
                IpAddr::V6(ip) => ip,
            };
            bytes[at..at + 16].copy_from_slice(&ip.octets());
            bytes[at + 16..at + 18].copy_from_slice(&address.port().to_le_bytes());
        }
        bytes[36] = self.class.to_byte();
        bytes
    }

    /// Reads one.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn decode(bytes: &[u8; OPEN_BYTES]) -> Result<Open, OpenError> {
        let address = |at: usize| {
            let mut ip = [0; 16];
            ip.copy_from_slice(&bytes[at..at + 16]);
            let ip = Ipv6Addr::from(ip).to_canonical();
            SocketAddr::new(ip, u16::from_le_bytes([bytes[at + 16], bytes[at + 17]]))
        };
        if bytes[37..] != [0; 3] {
            return Err(OpenError::Reserved);
        }
        let class = Class::from_byte(bytes[36]).ok_or(OpenError::Class(bytes[36]))?;
        Ok(Open { source: address(0), destination: address(18), class })
    }
}

/// What a receiver reports beside the offset below which all has arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Update {
    /// The stream may send up to this offset; in a resend frame, how many bytes are missing.
    pub limit: u64,
    /// First range that has arrived beyond the first gap, so that a sender need not send it again.
    pub beyond: Option<(u64, u64)>,
}

/// Why the payload of an update frame is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an update frame reports the range {start} to {end}, which is none")]
pub struct UpdateError {
    start: u64,
    end: u64,
}

impl Update {
    /// Its bytes.
    pub fn encode(&self) -> [u8; UPDATE_BYTES] {
        let (start, end) = self.beyond.unwrap_or_default();
        debug_assert!(start < end || (start, end) == (0, 0));
        let mut bytes = [0; UPDATE_BYTES];
        for (index, value) in [self.limit, start, end].into_iter().enumerate() {
            bytes[index * 8..index * 8 + 8].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    /// Reads one.
    ///
    /// # Errors
    /// Where its range is none.
    pub fn decode(bytes: &[u8; UPDATE_BYTES]) -> Result<Update, UpdateError> {
        let (start, end) = (u64_at(bytes, 8), u64_at(bytes, 16));
        let beyond = match (start, end) {
            (0, 0) => None,
            (start, end) if start < end => Some((start, end)),
            (start, end) => return Err(UpdateError { start, end }),
        };
        Ok(Update { limit: u64_at(bytes, 0), beyond })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn open_encode_decode_is_identity(
            source: SocketAddr,
            destination: SocketAddr,
            is_latency: bool,
        ) {
            // Scopes and flow labels have no meaning on another host; mapped addresses arrive as IPv4.
            let plain = |it: SocketAddr| SocketAddr::new(it.ip().to_canonical(), it.port());
            let class = if is_latency { Class::Latency } else { Class::Throughput };
            let open = Open { source: plain(source), destination: plain(destination), class };
            prop_assert_eq!(Open::decode(&open.encode()), Ok(open));
        }

        #[test]
        fn update_encode_decode_is_identity(limit: u64, start: u64, length in 1u64..1 << 40) {
            let start = start.min(u64::MAX - length);
            for beyond in [None, Some((start, start + length))] {
                let update = Update { limit, beyond };
                prop_assert_eq!(Update::decode(&update.encode()), Ok(update));
            }
        }

        #[test]
        fn payloads_of_any_bytes_decode_without_panic(
            open in proptest::array::uniform32(any::<u8>()),
            update in proptest::array::uniform24(any::<u8>()),
        ) {
            let mut bytes = [0; OPEN_BYTES];
            bytes[..32].copy_from_slice(&open);
            let _ = Open::decode(&bytes);
            let _ = Update::decode(&update);
        }
    }
}
