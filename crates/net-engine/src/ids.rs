//! What endpoints, channels and streams are called, and why streams end.

use std::fmt;

/// An endpoint: a random number that it draws when it starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EndpointId(pub u128);

/// A channel between two endpoints, numbered by the one that opened it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChannelId(pub u32);

/// A stream between two endpoints. Its opener counts up and never uses a number again, so that frames of an earlier
/// stream on a slow channel are recognised. The endpoint with the smaller id has the odd numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamId(pub u64);

impl StreamId {
    /// In frames that are of no stream.
    pub const NONE: StreamId = StreamId(0);

    /// The first stream that an endpoint opens to a peer.
    pub fn first(own: EndpointId, peer: EndpointId) -> StreamId {
        StreamId(if own < peer { 1 } else { 2 })
    }

    /// The next one of the same opener; `None` once all numbers are used.
    pub fn next(self) -> Option<StreamId> {
        self.0.checked_add(2).map(StreamId)
    }

    /// Whether the endpoint `own` is its opener, towards `peer`.
    pub fn is_opened_by(self, own: EndpointId, peer: EndpointId) -> bool {
        self.0 % 2 == StreamId::first(own, peer).0 % 2
    }
}

impl fmt::Display for ChannelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Display for StreamId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a socket or a channel is for: the two never share a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Short messages whose latency counts.
    Latency,
    /// Bulk data.
    Throughput,
}

impl Class {
    /// Both.
    pub const ALL: [Class; 2] = [Class::Latency, Class::Throughput];

    pub(crate) fn to_byte(self) -> u8 {
        match self {
            Class::Latency => 1,
            Class::Throughput => 2,
        }
    }

    pub(crate) fn from_byte(byte: u8) -> Option<Class> {
        Class::ALL.into_iter().find(|class| class.to_byte() == byte)
    }

    /// Its place in a table of both.
    pub(crate) fn index(self) -> usize {
        match self {
            Class::Latency => 0,
            Class::Throughput => 1,
        }
    }
}

macro_rules! codes {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $code:literal,)* } else $other:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name {
            $($(#[$doc])* $variant,)*
        }

        impl $name {
            /// Its code on the wire.
            pub fn code(self) -> u64 {
                match self {
                    $($name::$variant => $code,)*
                }
            }

            /// By its code. Codes of later versions are the most general reason.
            pub fn from_code(code: u64) -> $name {
                match code {
                    $($code => $name::$variant,)*
                    _ => $name::$other,
                }
            }
        }
    };
}

codes! {
    /// Why a stream was not accepted.
    OpenRefusal {
        /// No listener has the address (ECONNREFUSED).
        NoListener = 1,
        /// The listener's backlog, or the endpoint, is full (ECONNREFUSED).
        Busy = 2,
        /// The endpoint does not let this peer in (EACCES).
        Denied = 3,
    } else Denied
}

codes! {
    /// Why a stream ended before all of it was read.
    ResetReason {
        /// The application closed it with data unread or unsent.
        Closed = 1,
        /// The peer has no such stream: it restarted, or forgot it.
        Unknown = 2,
        /// Every channel to the peer was lost for longer than the grace time.
        PeerLost = 3,
        /// The peer broke the protocol on this stream.
        Protocol = 4,
        /// A memory limit was reached.
        Memory = 5,
    } else Closed
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_numbers_of_two_endpoints_never_meet() {
        let (small, great) = (EndpointId(1), EndpointId(9));
        let (ours, theirs) = (StreamId::first(small, great), StreamId::first(great, small));
        assert_ne!(ours.0 % 2, theirs.0 % 2);
        assert!(ours.is_opened_by(small, great) && !ours.is_opened_by(great, small));
        assert_eq!(ours.next().map(|next| next.is_opened_by(small, great)), Some(true));
        assert_eq!(StreamId(u64::MAX).next(), None);
    }

    #[test]
    fn codes_come_back_and_unknown_ones_are_general() {
        for reason in [OpenRefusal::NoListener, OpenRefusal::Busy, OpenRefusal::Denied] {
            assert_eq!(OpenRefusal::from_code(reason.code()), reason);
        }
        assert_eq!(ResetReason::from_code(ResetReason::Memory.code()), ResetReason::Memory);
        assert_eq!(ResetReason::from_code(77), ResetReason::Closed);
    }
}
