//! The first bytes of a channel, in each direction.

use super::{HEADER_BYTES, PAYLOAD_MAX, u32_at, u64_at};
use crate::ids::{ChannelId, Class, EndpointId};

/// Size of a [`Hello`].
pub const HELLO_BYTES: usize = 64;

const MAGIC: [u8; 8] = *b"\x89QUELLN\n";
/// A peer with another version is refused.
const VERSION: u16 = 3;
/// The smallest maximum that a peer may announce.
const MAX_FRAME_LEAST: u32 = 1_024;

/// What a peer can do beyond the first version: bits that it does not know are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Features(pub u32);

impl Features {
    /// It acknowledges what arrives, so that a sender may keep data for retransmission.
    pub const RECOVERY: Features = Features(1);

    /// Whether all of `other` are among these.
    pub fn contains(self, other: Features) -> bool {
        self.0 & other.0 == other.0
    }

    /// Those that both have.
    #[must_use]
    pub fn common(self, other: Features) -> Features {
        Features(self.0 & other.0)
    }
}

/// What each side of a channel says first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The sending endpoint: a random number that it draws when it starts. A peer that restarts has another one, so no
    /// stream of its former life goes on.
    pub endpoint: EndpointId,
    /// The channel, numbered by the side that opened it.
    pub channel: ChannelId,
    /// What it carries.
    pub class: Class,
    /// What the sender can do.
    pub features: Features,
    /// Largest payload that the sender accepts in a frame, in bytes.
    pub max_frame: u32,
    /// Bytes that each new stream may send to it before it was accepted.
    pub first_window: u32,
}

/// Why bytes are no [`Hello`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HelloError {
    /// They do not begin as one.
    #[error("the peer does not speak Quell's channel protocol; is the port right?")]
    Magic,
    /// Another version.
    #[error(
        "unsupported channel protocol version {0}, expected {VERSION}; use the same release on both sides"
    )]
    Version(u16),
    /// The check value does not fit the rest.
    #[error("the peer's hello was changed on its way")]
    Check,
    /// A class that this version does not have.
    #[error("unknown channel class {0}")]
    Class(u8),
    /// A maximum of the frame size out of bounds.
    #[error("the peer accepts frames of {0} bytes, expected {MAX_FRAME_LEAST} to {PAYLOAD_MAX}")]
    MaxFrame(u32),
}

/// Why a channel is not taken although its [`Hello`] is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The peer is this endpoint.
    #[error("the peer is this endpoint itself")]
    OwnEndpoint,
    /// Another channel of this peer has the number.
    #[error("the peer has a channel {0} already")]
    Duplicate(ChannelId),
    /// The peer has as many channels as are allowed.
    #[error("the peer has {0} channels already, the most that are allowed")]
    TooMany(usize),
    /// As many peers as are allowed are there.
    #[error("{0} peers are connected already, the most that are allowed")]
    TooManyPeers(usize),
    /// The channel loses frames, and one side keeps nothing to send again.
    #[error(
        "the channel may lose what it carries, and one side keeps nothing to send again: set `has_recovery` on both"
    )]
    Lossy,
    /// This endpoint, or the peer's former life, is being closed.
    #[error("the endpoint is closing")]
    Closing,
}

impl Hello {
    /// Its bytes.
    pub fn encode(&self) -> [u8; HELLO_BYTES] {
        let mut bytes = [0; HELLO_BYTES];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
        bytes[10] = self.class.to_byte();
        bytes[12..16].copy_from_slice(&self.features.0.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.endpoint.0.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.channel.0.to_le_bytes());
        bytes[36..40].copy_from_slice(&self.max_frame.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.first_window.to_le_bytes());
        let check = crc32fast::hash(&bytes[..60]);
        bytes[60..].copy_from_slice(&check.to_le_bytes());
        bytes
    }

    /// Reads one.
    ///
    /// # Errors
    /// See [`HelloError`].
    pub fn decode(bytes: &[u8; HELLO_BYTES]) -> Result<Hello, HelloError> {
        if bytes[..8] != MAGIC {
            return Err(HelloError::Magic);
        }
        let version = u16::from_le_bytes([bytes[8], bytes[9]]);
        if version != VERSION {
            return Err(HelloError::Version(version));
        }
        if crc32fast::hash(&bytes[..60]) != u32_at(bytes, 60) {
            return Err(HelloError::Check);
        }
        let max_frame = u32_at(bytes, 36);
        if !(MAX_FRAME_LEAST..=PAYLOAD_MAX).contains(&max_frame) {
            return Err(HelloError::MaxFrame(max_frame));
        }
        let endpoint = u128::from(u64_at(bytes, 24)) << 64 | u128::from(u64_at(bytes, 16));
        Ok(Hello {
            endpoint: EndpointId(endpoint),
            channel: ChannelId(u32_at(bytes, 32)),
            class: Class::from_byte(bytes[10]).ok_or(HelloError::Class(bytes[10]))?,
            features: Features(u32_at(bytes, 12)),
            max_frame,
            first_window: u32_at(bytes, 40),
        })
    }
}

const _: () = assert!(MAX_FRAME_LEAST as usize > HEADER_BYTES);

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hello() -> Hello {
        Hello {
            endpoint: EndpointId(0x0123_4567_89ab_cdef_0011_2233_4455_6677),
            channel: ChannelId(7),
            class: Class::Latency,
            features: Features::RECOVERY,
            max_frame: 65_536,
            first_window: 16_384,
        }
    }

    proptest! {
        #[test]
        fn hello_encode_decode_is_identity(
            endpoint: u128,
            channel: u32,
            is_latency: bool,
            features: u32,
            max_frame in MAX_FRAME_LEAST..=PAYLOAD_MAX,
            first_window: u32,
        ) {
            let class = if is_latency { Class::Latency } else { Class::Throughput };
            let hello = Hello {
                endpoint: EndpointId(endpoint),
                channel: ChannelId(channel),
                class,
                features: Features(features),
                max_frame,
                first_window,
            };
            prop_assert_eq!(Hello::decode(&hello.encode()), Ok(hello));
        }

        #[test]
        fn hello_with_one_changed_bit_is_refused(bit in 0..HELLO_BYTES * 8) {
            let mut bytes = hello().encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            prop_assert!(Hello::decode(&bytes).is_err());
        }
    }

    #[test]
    fn hello_of_something_else_names_what_is_wrong() {
        assert_eq!(Hello::decode(&[b'G'; HELLO_BYTES]), Err(HelloError::Magic));
        let small = Hello { max_frame: 100, ..hello() };
        assert_eq!(Hello::decode(&small.encode()), Err(HelloError::MaxFrame(100)));
    }
}
