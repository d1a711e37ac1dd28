//! Requests and answers over a stream, with deadlines and cancellation.
//!
//! Each message is a head of [`HEAD_BYTES`] and its payload. Integers are little-endian. Answers come in any order.
//!
//! | bytes | |
//! | --- | --- |
//! | 0..8 | number of the request |
//! | 8..12 | bytes of payload |
//! | 12 | 1 request, 2 answer, 3 cancellation |
//! | 13..16 | zero |
//! | 16..24 | request: nanoseconds until its sender gives up, 0 for never; else zero |

mod client;
mod server;

pub use client::{Call, Client};
pub use server::{Request, Server};

/// Bytes of a message's head.
pub const HEAD_BYTES: usize = 24;

/// The longest payload, unless a client or server is given another.
pub const PAYLOAD_MAX: u32 = 16 << 20;

/// What a message is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessageKind {
    /// To be answered.
    Request,
    /// To the request of its number.
    Answer,
    /// The request of its number needs no answer any more.
    Cancel,
}

/// The head of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Of the request.
    pub number: u64,
    /// Bytes of payload.
    pub length: u32,
    /// What it is.
    pub kind: MessageKind,
    /// Nanoseconds until its sender gives up; 0: never.
    pub patience_ns: u64,
}

/// Bytes that are no head of a message: the stream cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeadError {
    /// A kind that there is none of.
    #[error("unknown message kind {0}")]
    Kind(u8),
    /// A payload that is too long, or one where there is none.
    #[error("a {kind:?} message of {length} bytes, allowed are {max}")]
    Length {
        /// Of the message.
        kind: MessageKind,
        /// As announced.
        length: u32,
        /// Most.
        max: u32,
    },
    /// Bytes that have to be zero are not.
    #[error("reserved bytes of a message's head are not zero")]
    Reserved,
}

impl Head {
    /// Its bytes.
    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..8].copy_from_slice(&self.number.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.length.to_le_bytes());
        bytes[12] = match self.kind {
            MessageKind::Request => 1,
            MessageKind::Answer => 2,
            MessageKind::Cancel => 3,
        };
        bytes[16..].copy_from_slice(&self.patience_ns.to_le_bytes());
        bytes
    }

    /// Reads one; payloads are `max` bytes at most.
    ///
    /// # Errors
    /// See [`HeadError`].
    pub fn decode(bytes: &[u8; HEAD_BYTES], max: u32) -> Result<Head, HeadError> {
        let kind = match bytes[12] {
            1 => MessageKind::Request,
            2 => MessageKind::Answer,
            3 => MessageKind::Cancel,
            other => return Err(HeadError::Kind(other)),
        };
        let length = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        let max = if kind == MessageKind::Cancel { 0 } else { max };
        if length > max {
            return Err(HeadError::Length { kind, length, max });
        }
        let (number, patience_ns) = (u64_at(bytes, 0), u64_at(bytes, 16));
        let has_patience = kind != MessageKind::Request && patience_ns != 0;
        if bytes[13..16] != [0; 3] || has_patience {
            return Err(HeadError::Reserved);
        }
        Ok(Head { number, length, kind, patience_ns })
    }
}

fn u64_at(bytes: &[u8; HEAD_BYTES], at: usize) -> u64 {
    let mut own = [0; 8];
    own.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(own)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn heads_come_back_and_garbage_is_refused_or_is_one(
            bytes in proptest::array::uniform24(any::<u8>()),
            number: u64,
            length in 0..1_000_u32,
            patience_ns: u64,
        ) {
            let head = Head { number, length, kind: MessageKind::Request, patience_ns };
            prop_assert_eq!(Head::decode(&head.encode(), 1_000), Ok(head));
            if let Ok(head) = Head::decode(&bytes, u32::MAX) {
                prop_assert_eq!(head.encode(), bytes);
            }
        }
    }

    #[test]
    fn payloads_that_are_too_long_are_named() {
        let head = Head { number: 1, length: 11, kind: MessageKind::Answer, patience_ns: 0 };
        let error = Head::decode(&head.encode(), 10).expect_err("too long");
        assert_eq!(error.to_string(), "a Answer message of 11 bytes, allowed are 10");
        let cancel = Head { length: 1, kind: MessageKind::Cancel, ..head };
        assert!(Head::decode(&cancel.encode(), 10).is_err());
    }
}
