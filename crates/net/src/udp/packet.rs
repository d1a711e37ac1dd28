//! What a datagram of a channel holds: a head, then whole frames, or in the first ones a hello.
//!
//! Integers are little-endian. Each side draws a token for what is sent to it: a host that does not see the channel's packets
//! cannot send any. One that does can, which is why channels over a network are `insecure` still.

use quell_net_engine::wire::HELLO_BYTES;

/// Size of a packet's head.
pub(crate) const HEAD_BYTES: usize = 40;
/// The largest datagram of IPv4.
pub(crate) const PACKET_MAX: usize = 65_507;
/// The smallest that every path carries, as in QUIC (RFC 9000, 14).
pub(crate) const PACKET_MIN: usize = 1_200;

const MAGIC: [u8; 3] = *b"QND";
const VERSION: u8 = 1;
/// Of the hello in the first two packets: behind the token of the side that sends it.
const GREETING_BYTES: usize = 8 + HELLO_BYTES;

/// What a packet is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Purpose {
    /// A channel is to be opened. As long as the packets that are to follow, so that an answer shows that the path carries them.
    Open = 1,
    /// It is.
    Answer = 2,
    /// Frames, or none: then what the head says is new.
    Frames = 3,
    /// It has ended.
    End = 4,
    /// The answer to frames of no channel: their head.
    Unknown = 5,
    /// More waits to be sent, and there is no grant for it.
    Ask = 6,
}

/// The head of a packet. Bytes are counted from the beginning of the channel, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub purpose: Purpose,
    /// That of the receiver.
    pub token: u64,
    /// Bytes of frames that were sent, those of this packet included.
    pub sent: u64,
    /// The same with those that wait for a grant.
    pub wanted: u64,
    /// Bytes that the receiver of the packet may send.
    pub granted: u64,
}

impl Head {
    /// Its bytes.
    pub fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..3].copy_from_slice(&MAGIC);
        bytes[3] = VERSION << 4 | self.purpose as u8;
        for (at, value) in [(8, self.token), (16, self.sent), (24, self.wanted), (32, self.granted)]
        {
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        bytes
    }

    /// Takes a datagram apart; `None` for one that is no packet.
    pub fn decode(datagram: &[u8]) -> Option<(Head, &[u8])> {
        let (head, payload) = datagram.split_first_chunk::<HEAD_BYTES>()?;
        if head[..3] != MAGIC || head[3] >> 4 != VERSION || head[4..8] != [0; 4] {
            return None;
        }
        let purpose = match head[3] & 15 {
            1 => Purpose::Open,
            2 => Purpose::Answer,
            3 => Purpose::Frames,
            4 => Purpose::End,
            5 => Purpose::Unknown,
            6 => Purpose::Ask,
            _ => return None,
        };
        let (token, sent) = (u64_at(head, 8), u64_at(head, 16));
        let (wanted, granted) = (u64_at(head, 24), u64_at(head, 32));
        Some((Head { purpose, token, sent, wanted, granted }, payload))
    }
}

fn u64_at(bytes: &[u8; HEAD_BYTES], at: usize) -> u64 {
    let mut value = [0; 8];
    value.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(value)
}

/// What the first packet of a side says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    /// For all packets to it.
    pub token: u64,
    pub hello: [u8; HELLO_BYTES],
}

impl Greeting {
    /// A whole packet of `size` bytes.
    pub fn packet(&self, head: &Head, size: usize) -> Vec<u8> {
        let mut packet = Vec::with_capacity(size);
        packet.extend_from_slice(&head.encode());
        packet.extend_from_slice(&self.token.to_le_bytes());
        packet.extend_from_slice(&self.hello);
        packet.resize(size.max(HEAD_BYTES + GREETING_BYTES), 0);
        packet
    }

    /// Of a packet's payload.
    pub fn decode(payload: &[u8]) -> Option<Greeting> {
        let (token, rest) = payload.split_first_chunk::<8>()?;
        let hello = rest.first_chunk::<HELLO_BYTES>()?;
        Some(Greeting { token: u64::from_le_bytes(*token), hello: *hello })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn head() -> impl Strategy<Value = Head> {
        let purposes = prop::sample::select(vec![
            Purpose::Open,
            Purpose::Answer,
            Purpose::Frames,
            Purpose::End,
            Purpose::Unknown,
            Purpose::Ask,
        ]);
        (purposes, any::<[u64; 4]>()).prop_map(|(purpose, [token, sent, wanted, granted])| Head {
            purpose,
            token,
            sent,
            wanted,
            granted,
        })
    }

    proptest! {
        #[test]
        fn packet_is_what_was_sent(head in head(), payload in prop::collection::vec(any::<u8>(), 0..99)) {
            let packet = [&head.encode()[..], &payload].concat();
            prop_assert_eq!(Head::decode(&packet), Some((head, &payload[..])));
            let greeting = Greeting { token: head.token ^ 1, hello: [7; HELLO_BYTES] };
            let packet = greeting.packet(&head, PACKET_MIN);
            prop_assert_eq!(packet.len(), PACKET_MIN);
            let (found, payload) = Head::decode(&packet).expect("a packet");
            prop_assert_eq!((found, Greeting::decode(payload)), (head, Some(greeting)));
        }

        #[test]
        fn anything_else_is_none(bytes in prop::collection::vec(any::<u8>(), 0..HEAD_BYTES)) {
            prop_assert_eq!(Head::decode(&bytes), None);
            prop_assert_eq!(Greeting::decode(&bytes), None);
        }
    }

    #[test]
    fn other_versions_and_purposes_are_none() {
        let head = Head { purpose: Purpose::End, token: 1, sent: 2, wanted: 3, granted: 4 };
        let right = head.encode();
        for (at, value) in [(0, b'q'), (3, 0x24), (3, 0x17), (3, 0x10), (5, 1)] {
            let mut wrong = right;
            wrong[at] = value;
            assert_eq!(Head::decode(&wrong), None, "byte {at} is {value}");
        }
    }
}
