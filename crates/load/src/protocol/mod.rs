//! What a protocol owes the load generator: requests into a buffer, replies out of one.
//!
//! A new protocol is one file with a [`Protocol`], plus a variant in [`ProtocolSpec`]. The
//! generator keeps sockets, time and matching. Replies come back in the order of the requests on a
//! connection, as in every pipelined protocol (memcached, RESP, HTTP/1.1).
//!
//! Bytes from the server are hostile: a parser looks at a bounded prefix, never panics, and says
//! [`Malformed`] where a reply cannot become valid any more. The generator then gives the
//! connection up, because the border of the next reply is lost.

pub mod http;
pub mod keyvalue;
pub mod memcached;
pub mod memcached_binary;
pub mod postgres;
pub mod resp;
pub mod synthetic;
mod wire;

use std::net::TcpStream;

use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

/// The source of randomness of a run: seeded, and the same on every machine.
pub type WorkloadRng = ChaCha8Rng;

/// What was asked, handed back when the reply is parsed. The protocol gives it its meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Token(pub u64);

/// How the server answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// As hoped for.
    Ok,
    /// A correct answer that found nothing (a GET of an absent key).
    Miss,
    /// The server refused or failed; the connection lives on.
    Error,
}

/// What the front of the input holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// Not yet a whole reply; parse again when more bytes have come.
    Incomplete,
    /// One reply of `len` bytes, `len >= 1` and at most the input's length.
    Reply {
        /// Its length in bytes.
        len: usize,
        /// What it says.
        status: Status,
    },
}

/// The input cannot be a reply to the request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed reply: {0}")]
pub struct Malformed(pub &'static str);

/// One way to talk to a server.
pub trait Protocol: Send {
    /// Appends one request of the mix to `out`.
    fn encode(&mut self, rng: &mut WorkloadRng, out: &mut Vec<u8>) -> Token;

    /// Appends the `index`-th request that prepares the server, `None` after the last. Each must be
    /// answered with [`Status::Ok`].
    fn encode_preload(&mut self, index: u64, out: &mut Vec<u8>) -> Option<Token>;

    /// Appends the request that `token` stands for once more; `false` where that cannot be done, or
    /// where asking twice is not the same as asking once.
    ///
    /// What was in flight on a connection that the server closed is asked again on a new one.
    fn encode_again(&self, _token: Token, _out: &mut Vec<u8>) -> bool {
        false
    }

    /// Looks for one reply at the front of `input` to the request that `token` stands for.
    ///
    /// # Errors
    /// [`Malformed`] where no further byte could make it a reply.
    fn parse(&self, input: &[u8], token: Token) -> Result<Parsed, Malformed>;

    /// Appends what follows the reply to step `step` (from 0) of a request that takes several; `failed` says that the
    /// server refused one of them. `false`: the request is done.
    fn encode_next(&self, _token: Token, _step: u32, _failed: bool, _out: &mut Vec<u8>) -> bool {
        false
    }

    /// Whether a request may be sent before the last one of the connection is answered.
    fn pipelines(&self) -> bool {
        true
    }

    /// What client and server say on a new connection, which still blocks.
    ///
    /// # Errors
    /// Says why the server does not want us.
    fn greet(&self, _stream: &TcpStream) -> Result<(), String> {
        Ok(())
    }

    /// Whether the request that `token` stands for is one of the rare long ones of a workload that has two kinds.
    fn is_long(&self, _token: Token) -> bool {
        false
    }

    /// No reply is longer, in bytes. Bounds the input buffer of a connection.
    fn reply_bytes_max(&self) -> usize;
}

/// The protocol of a run, with its workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "protocol", rename_all = "kebab-case")]
pub enum ProtocolSpec {
    /// memcached's text protocol.
    Memcached(keyvalue::KeyValueSpec),
    /// memcached's binary protocol.
    MemcachedBinary(keyvalue::KeyValueSpec),
    /// RESP, the protocol of Redis.
    Redis(keyvalue::KeyValueSpec),
    /// HTTP/1.1.
    Http(http::HttpSpec),
    /// PostgreSQL's protocol, with the transactions of pgbench.
    Postgres(postgres::PostgresSpec),
    /// Fake work on the synthetic server.
    Synthetic(synthetic::SyntheticSpec),
}

impl ProtocolSpec {
    /// Whether requests are of two kinds, one of them long: [`Protocol::is_long`].
    pub(crate) fn has_long_ones(&self) -> bool {
        use synthetic::{ServiceTime::Bimodal, SyntheticSpec};
        matches!(self, ProtocolSpec::Synthetic(SyntheticSpec { service: Bimodal { .. } }))
    }

    /// The protocol, ready to encode.
    ///
    /// # Errors
    /// Says which part of the workload makes no sense.
    pub fn build(&self) -> Result<Box<dyn Protocol>, String> {
        Ok(match self {
            ProtocolSpec::Memcached(spec) => Box::new(memcached::Memcached::new(spec)?),
            ProtocolSpec::MemcachedBinary(spec) => {
                Box::new(memcached_binary::MemcachedBinary::new(spec)?)
            }
            ProtocolSpec::Redis(spec) => Box::new(resp::Resp::new(spec)?),
            ProtocolSpec::Http(spec) => Box::new(http::Http::new(spec)?),
            ProtocolSpec::Postgres(spec) => Box::new(postgres::Postgres::new(spec)?),
            ProtocolSpec::Synthetic(spec) => Box::new(synthetic::Synthetic::new(spec)?),
        })
    }
}

#[cfg(test)]
mod testing {
    use super::{Parsed, Protocol, Status, Token};

    /// Checks that each of `replies` is [`Parsed::Incomplete`] up to its last byte, and then the same
    /// reply whatever follows it: where the stream is split makes no difference.
    pub fn replies_split_anywhere(protocol: &dyn Protocol, replies: &[(&[u8], Token, Status)]) {
        let stream: Vec<u8> =
            replies.iter().flat_map(|(bytes, ..)| bytes.iter().copied()).collect();
        let mut start = 0;
        for &(bytes, token, status) in replies {
            let rest = &stream[start..];
            for held in 0..=rest.len() {
                let expected = match held < bytes.len() {
                    true => Parsed::Incomplete,
                    false => Parsed::Reply { len: bytes.len(), status },
                };
                let shown = String::from_utf8_lossy(&rest[..held]);
                assert_eq!(protocol.parse(&rest[..held], token), Ok(expected), "{shown:?}");
            }
            start += bytes.len();
        }
    }
}
