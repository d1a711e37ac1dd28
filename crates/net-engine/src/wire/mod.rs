//! What travels over a channel: one [`Hello`] each way, then frames.
//!
//! A frame is a [`Header`] of [`HEADER_BYTES`] and `length` bytes of payload. Integers are little-endian. A header that
//! does not parse, or whose length exceeds the negotiated maximum, ends the channel and nothing else: the sockets that
//! used it go on over the others.

mod hello;
mod open;

pub use hello::{Features, HELLO_BYTES, Hello, HelloError, Refusal};
pub use open::{OPEN_BYTES, Open, OpenError, UPDATE_BYTES, Update, UpdateError};

use crate::ids::StreamId;

/// Size of a header.
pub const HEADER_BYTES: usize = 24;
/// Largest payload that a header can announce; [`Hello::max_frame`] is what a peer accepts.
pub const PAYLOAD_MAX: u32 = (1 << 24) - 1;

/// What a frame is about. The values are part of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// Payload of a stream at `offset`; with [`Header::FIN`] the last of it.
    Data = 1,
    /// A new stream. The payload is an [`Open`], `offset` the opener's first limit.
    Open = 2,
    /// The stream was accepted; `offset` is the acceptor's first limit.
    Accept = 3,
    /// The stream was not accepted; `offset` is an [`OpenRefusal`](crate::OpenRefusal).
    Refuse = 4,
    /// All bytes below `offset` have arrived. The payload is an [`Update`]: the new limit, and what has arrived beyond.
    Update = 5,
    /// The stream is over in both directions; `offset` is a [`ResetReason`](crate::ResetReason).
    Reset = 6,
    /// The bytes from `offset` on, as many as `length` of the [`Update`] says, have not arrived.
    Resend = 7,
    /// Send nothing of this stream until [`Kind::Resume`] (figure 5 of the paper).
    Stop = 8,
    /// The sender has stopped, at `offset`.
    Stopped = 9,
    /// Send again, up to `offset`.
    Resume = 10,
    /// Answer with a [`Kind::Pong`] of the same `offset`.
    Ping = 11,
    /// The answer.
    Pong = 12,
    /// No further stream is accepted, and no further channel opened.
    Goodbye = 13,
    /// The answer to a reset or a refusal: it need not be repeated.
    Closed = 14,
    /// Nothing follows on this channel, and nothing new is to be sent on it; `offset` is one where all has arrived that the
    /// receiver of this frame has sent on it, else zero.
    Retire = 15,
}

impl Kind {
    /// All kinds, in the order of their values.
    pub const ALL: [Kind; 15] = [
        Kind::Data,
        Kind::Open,
        Kind::Accept,
        Kind::Refuse,
        Kind::Update,
        Kind::Reset,
        Kind::Resend,
        Kind::Stop,
        Kind::Stopped,
        Kind::Resume,
        Kind::Ping,
        Kind::Pong,
        Kind::Goodbye,
        Kind::Closed,
        Kind::Retire,
    ];

    fn from_byte(byte: u8) -> Option<Kind> {
        let index = usize::from(byte).checked_sub(1)?;
        Kind::ALL.get(index).copied()
    }

    /// Whether frames of this kind belong to one stream.
    pub fn is_of_stream(self) -> bool {
        !matches!(self, Kind::Ping | Kind::Pong | Kind::Goodbye | Kind::Retire)
    }

    /// Whether it carries bytes of an application. All others are control frames, which no data may delay.
    pub fn is_data(self) -> bool {
        self == Kind::Data
    }

    /// Sizes that its payload may have.
    fn payload(self) -> (u32, u32) {
        match self {
            Kind::Data => (0, PAYLOAD_MAX),
            Kind::Open => (OPEN_BYTES as u32, OPEN_BYTES as u32),
            Kind::Update | Kind::Resend => (UPDATE_BYTES as u32, UPDATE_BYTES as u32),
            _ => (0, 0),
        }
    }
}

/// The head of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is about.
    pub kind: Kind,
    /// [`Header::FIN`], [`Header::BLOCKED`], [`Header::EARLY`].
    pub flags: u8,
    /// Bytes of payload that follow.
    pub length: u32,
    /// The stream, or zero where the kind is of none.
    pub stream: StreamId,
    /// By kind.
    pub offset: u64,
}

/// Why bytes are no header. The channel that delivered them is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The check value does not fit the rest.
    #[error(
        "header check {found:06x}, expected {expected:06x}: the bytes were changed on their way, or the peer lost count"
    )]
    Check {
        /// Of the header.
        found: u32,
        /// Of its other bytes.
        expected: u32,
    },
    /// A kind that this version does not have.
    #[error("unknown frame kind {0}")]
    Kind(u8),
    /// Flags that this version does not have.
    #[error("unknown flags {flags:#04x} in a {kind:?} frame")]
    Flags {
        /// Of the frame.
        kind: Kind,
        /// All of them.
        flags: u8,
    },
    /// A payload of a size that its kind, or the negotiated maximum, does not allow.
    #[error("{kind:?} frame with {length} bytes of payload, allowed are {min} to {max}")]
    Length {
        /// Of the frame.
        kind: Kind,
        /// As announced.
        length: u32,
        /// Fewest.
        min: u32,
        /// Most.
        max: u32,
    },
    /// Data that would pass the end of the offset space.
    #[error("data of {length} bytes at offset {offset} passes the largest offset")]
    Offset {
        /// Of the frame.
        offset: u64,
        /// Of its payload.
        length: u32,
    },
    /// A stream where the kind has none, or none where it has one.
    #[error("{kind:?} frame of stream {stream}")]
    Stream {
        /// Of the frame.
        kind: Kind,
        /// As named.
        stream: StreamId,
    },
}

impl Header {
    /// The payload is the last of its stream in this direction: the final offset is `offset + length`. In an update frame:
    /// it is the last report, the sender is done with the stream.
    pub const FIN: u8 = 1;
    /// Of a data frame: it uses up the limit, which keeps back what follows. As QUIC's STREAM_DATA_BLOCKED (RFC 9000, 19.13), but
    /// without waiting for more to be written.
    pub const BLOCKED: u8 = 2;

    /// Of an open frame: its sender goes on without waiting for the answer, which may go with the first that the receiver
    /// sends on the stream.
    pub const EARLY: u8 = 4;

    /// A control frame without payload.
    pub fn control(kind: Kind, stream: StreamId, offset: u64) -> Header {
        debug_assert_eq!(kind.payload().0, 0, "{kind:?} frames have a payload");
        Header { kind, flags: 0, length: 0, stream, offset }
    }

    /// Whether the stream ends with this frame.
    pub fn is_last(&self) -> bool {
        self.flags & Header::FIN != 0
    }

    /// Whether the limit keeps back what follows.
    pub fn is_blocked(&self) -> bool {
        self.flags & Header::BLOCKED != 0
    }

    /// The offset behind the payload of a data frame.
    pub fn end(&self) -> u64 {
        self.offset.saturating_add(u64::from(self.length))
    }

    /// The bytes of the header.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        debug_assert!(self.length <= PAYLOAD_MAX);
        let mut bytes = [0; HEADER_BYTES];
        bytes[0] = self.kind as u8;
        bytes[1] = self.flags;
        bytes[2..5].copy_from_slice(&self.length.to_le_bytes()[..3]);
        bytes[8..16].copy_from_slice(&self.stream.0.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.offset.to_le_bytes());
        let check = check(&bytes);
        bytes[5..8].copy_from_slice(&check.to_le_bytes()[..3]);
        bytes
    }

    /// Reads a header. `max_frame` is the largest data payload that was negotiated.
    ///
    /// # Errors
    /// See [`FrameError`].
    pub fn decode(bytes: &[u8; HEADER_BYTES], max_frame: u32) -> Result<Header, FrameError> {
        let found = u32::from_le_bytes([bytes[5], bytes[6], bytes[7], 0]);
        let expected = check(bytes);
        if found != expected {
            return Err(FrameError::Check { found, expected });
        }
        let kind = Kind::from_byte(bytes[0]).ok_or(FrameError::Kind(bytes[0]))?;
        let header = Header {
            kind,
            flags: bytes[1],
            length: u32::from_le_bytes([bytes[2], bytes[3], bytes[4], 0]),
            stream: StreamId(u64_at(bytes, 8)),
            offset: u64_at(bytes, 16),
        };
        header.validate(max_frame)?;
        Ok(header)
    }

    fn validate(&self, max_frame: u32) -> Result<(), FrameError> {
        let Header { kind, flags, length, stream, offset } = *self;
        let known = match kind {
            Kind::Data => Header::FIN | Header::BLOCKED,
            Kind::Update => Header::FIN,
            Kind::Open => Header::EARLY,
            _ => 0,
        };
        if flags & !known != 0 {
            return Err(FrameError::Flags { kind, flags });
        }
        let (min, max) = kind.payload();
        let max = if kind.is_data() { max.min(max_frame) } else { max };
        if !(min..=max).contains(&length) {
            return Err(FrameError::Length { kind, length, min, max });
        }
        if kind.is_data() && offset.checked_add(u64::from(length)).is_none() {
            return Err(FrameError::Offset { offset, length });
        }
        match kind.is_of_stream() == (stream != StreamId::NONE) {
            true => Ok(()),
            false => Err(FrameError::Stream { kind, stream }),
        }
    }
}

/// CRC-32 (IEEE 802.3) of all but the check itself, its lowest 24 bits.
fn check(bytes: &[u8; HEADER_BYTES]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&bytes[..5]);
    crc.update(&bytes[8..]);
    crc.finalize() & PAYLOAD_MAX
}

/// A little-endian integer; `bytes` reaches that far.
fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut own = [0; 8];
    own.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(own)
}

/// A little-endian integer; `bytes` reaches that far.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut own = [0; 4];
    own.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(own)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn any_header() -> impl Strategy<Value = Header> {
        let kind = (0..Kind::ALL.len()).prop_map(|index| Kind::ALL[index]);
        (kind, 0..4u8, any::<u32>(), 1..u64::MAX, any::<u64>()).prop_map(
            |(kind, flags, length, stream, offset)| {
                let (min, max) = kind.payload();
                let length = min + length % (max - min + 1);
                Header {
                    kind,
                    flags: match kind {
                        Kind::Data => flags,
                        Kind::Open => Header::EARLY & (flags << 2),
                        _ => 0,
                    },
                    length,
                    stream: StreamId(if kind.is_of_stream() { stream } else { 0 }),
                    offset: offset.min(u64::MAX - u64::from(length)),
                }
            },
        )
    }

    proptest! {
        #[test]
        fn header_encode_decode_is_identity(header in any_header()) {
            prop_assert_eq!(Header::decode(&header.encode(), PAYLOAD_MAX), Ok(header));
        }

        #[test]
        fn header_with_one_changed_bit_is_refused(header in any_header(), bit in 0..HEADER_BYTES * 8) {
            let mut bytes = header.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let found = Header::decode(&bytes, PAYLOAD_MAX);
            prop_assert!(matches!(found, Err(FrameError::Check { .. })), "{found:?}");
        }

        #[test]
        fn header_decode_of_any_bytes_returns(bytes: [u8; HEADER_BYTES]) {
            let mut bytes = bytes;
            let sum = check(&bytes);
            bytes[5..8].copy_from_slice(&sum.to_le_bytes()[..3]);
            if let Ok(header) = Header::decode(&bytes, 65_536) {
                prop_assert_eq!(header.encode(), bytes);
                prop_assert!(header.length <= 65_536);
            }
        }
    }

    #[test]
    fn header_that_its_kind_does_not_allow_is_refused() {
        let data = Header { kind: Kind::Data, flags: 0, length: 8, stream: StreamId(2), offset: 0 };
        let refused = |header: Header| Header::decode(&header.encode(), 1_024).unwrap_err();
        assert!(matches!(
            refused(Header { length: 1_025, ..data }),
            FrameError::Length { length: 1_025, max: 1_024, .. }
        ));
        assert!(matches!(
            refused(Header { offset: u64::MAX - 7, ..data }),
            FrameError::Offset { .. }
        ));
        assert!(matches!(refused(Header { flags: 8, ..data }), FrameError::Flags { flags: 8, .. }));
        assert!(matches!(
            refused(Header { stream: StreamId::NONE, ..data }),
            FrameError::Stream { .. }
        ));
        assert!(matches!(
            refused(Header { kind: Kind::Ping, length: 0, ..data }),
            FrameError::Stream { .. }
        ));
        assert!(matches!(
            refused(Header { kind: Kind::Reset, flags: Header::FIN, length: 0, ..data }),
            FrameError::Flags { .. }
        ));
    }
}
