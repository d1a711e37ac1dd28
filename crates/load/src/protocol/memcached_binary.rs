//! memcached's binary protocol (`BinaryProtocolRevamped` in memcached's wiki): `Get` and `Set`.
//!
//! Each request carries a number of its own in the opaque field, which its reply has to bring back: a
//! server that answers out of order is found out, not measured.

use super::keyvalue::{KEY_BYTES_MAX, KeyValue, KeyValueSpec, Op, VALUE_BYTES_MAX};
use super::{Malformed, Parsed, Protocol, Status, Token, WorkloadRng};

const REQUEST_MAGIC: u8 = 0x80;
const REPLY_MAGIC: u8 = 0x81;
const HEADER_BYTES: usize = 24;
/// Extras of a set: flags and expiry, both zero.
const SET_EXTRAS: [u8; 8] = [0; 8];
/// Extras of a reply with a value: its flags.
const FLAGS_BYTES: usize = 4;
const KEY_NOT_FOUND: u16 = 0x0001;
/// Extras, key and value of any reply.
const BODY_BYTES_MAX: usize = u8::MAX as usize + KEY_BYTES_MAX + VALUE_BYTES_MAX;

/// The operation stands in a token above the opaque number.
const OPCODE_SHIFT: u32 = 32;

/// Encoder and parser.
pub struct MemcachedBinary {
    workload: KeyValue,
    next_opaque: u32,
}

impl MemcachedBinary {
    /// Checks the workload.
    ///
    /// # Errors
    /// Says which number is out of range.
    pub fn new(spec: &KeyValueSpec) -> Result<MemcachedBinary, String> {
        Ok(MemcachedBinary { workload: KeyValue::of_single_keys(spec)?, next_opaque: 0 })
    }

    fn push(&mut self, op: Op, index: u64, out: &mut Vec<u8>) -> Token {
        let (extras, value): (&[u8], &[u8]) = match op {
            Op::Get => (&[], &[]),
            Op::Set => (&SET_EXTRAS, &self.workload.value),
        };
        let key_len = self.workload.key_len(index);
        let body_len = extras.len() + key_len + value.len();
        let opaque = self.next_opaque;
        self.next_opaque = opaque.wrapping_add(1);
        out.extend_from_slice(&[REQUEST_MAGIC, opcode(op)]);
        // A key is at most 250 bytes long and a value a mebibyte: both casts lose nothing.
        out.extend_from_slice(&(key_len as u16).to_be_bytes());
        // Length of the extras, data type, virtual bucket.
        out.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
        out.extend_from_slice(&(body_len as u32).to_be_bytes());
        out.extend_from_slice(&opaque.to_be_bytes());
        // No compare-and-swap.
        out.extend_from_slice(&[0; 8]);
        out.extend_from_slice(extras);
        self.workload.push_key(index, out);
        out.extend_from_slice(value);
        Token(u64::from(opcode(op)) << OPCODE_SHIFT | u64::from(opaque))
    }
}

fn opcode(op: Op) -> u8 {
    match op {
        Op::Get => 0x00,
        Op::Set => 0x01,
    }
}

impl Protocol for MemcachedBinary {
    fn encode(&mut self, rng: &mut WorkloadRng, out: &mut Vec<u8>) -> Token {
        let (op, index) = self.workload.draw(rng);
        self.push(op, index, out)
    }

    fn encode_preload(&mut self, index: u64, out: &mut Vec<u8>) -> Option<Token> {
        self.workload.holds(index).then(|| self.push(Op::Set, index, out))
    }

    fn parse(&self, input: &[u8], token: Token) -> Result<Parsed, Malformed> {
        // One wrong byte at the front is enough to give up: what follows would be waited for in vain.
        if input.first().is_some_and(|&magic| magic != REPLY_MAGIC) {
            return Err(Malformed("not a reply of memcached's binary protocol"));
        }
        let Some(header) = input.first_chunk::<HEADER_BYTES>() else {
            return Ok(Parsed::Incomplete);
        };
        let reply = Header::of(header);
        if reply.token() != token {
            return Err(Malformed("reply to another request"));
        }
        if reply.body_len > BODY_BYTES_MAX || reply.body_len < reply.extras_len + reply.key_len {
            return Err(Malformed("reply without a valid length"));
        }
        let is_get = reply.opcode == opcode(Op::Get);
        let status = match reply.status {
            0 if is_get && reply.extras_len != FLAGS_BYTES => {
                return Err(Malformed("value without flags"));
            }
            0 => Status::Ok,
            KEY_NOT_FOUND if is_get => Status::Miss,
            _ => Status::Error,
        };
        let len = HEADER_BYTES + reply.body_len;
        Ok(if input.len() < len { Parsed::Incomplete } else { Parsed::Reply { len, status } })
    }

    fn reply_bytes_max(&self) -> usize {
        HEADER_BYTES + BODY_BYTES_MAX
    }
}

/// The fields of a reply's header that say something here.
struct Header {
    opcode: u8,
    key_len: usize,
    extras_len: usize,
    status: u16,
    body_len: usize,
    opaque: u32,
}

impl Header {
    fn of(bytes: &[u8; HEADER_BYTES]) -> Header {
        let [_magic, opcode, k0, k1, extras_len, _type, s0, s1, rest @ ..] = *bytes;
        let [b0, b1, b2, b3, o0, o1, o2, o3, _cas @ ..] = rest;
        Header {
            opcode,
            key_len: usize::from(u16::from_be_bytes([k0, k1])),
            extras_len: usize::from(extras_len),
            status: u16::from_be_bytes([s0, s1]),
            body_len: u32::from_be_bytes([b0, b1, b2, b3]) as usize,
            opaque: u32::from_be_bytes([o0, o1, o2, o3]),
        }
    }

    fn token(&self) -> Token {
        Token(u64::from(self.opcode) << OPCODE_SHIFT | u64::from(self.opaque))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::replies_split_anywhere;
    use super::*;
    use proptest::prelude::*;

    fn usr() -> MemcachedBinary {
        MemcachedBinary::new(&KeyValueSpec::default()).unwrap()
    }

    fn token(op: Op, opaque: u32) -> Token {
        Token(u64::from(opcode(op)) << OPCODE_SHIFT | u64::from(opaque))
    }

    fn reply(op: Op, opaque: u32, status: u16, extras: &[u8], value: &[u8]) -> Vec<u8> {
        let mut out = vec![REPLY_MAGIC, opcode(op), 0, 0, extras.len() as u8, 0];
        out.extend_from_slice(&status.to_be_bytes());
        out.extend_from_slice(&((extras.len() + value.len()) as u32).to_be_bytes());
        out.extend_from_slice(&opaque.to_be_bytes());
        out.extend_from_slice(&[7; 8]);
        out.extend_from_slice(extras);
        out.extend_from_slice(value);
        out
    }

    #[test]
    fn requests_are_those_of_the_specification() {
        let spec = KeyValueSpec { keys: 1, key_bytes: vec![5], ..KeyValueSpec::default() };
        let mut protocol = MemcachedBinary::new(&spec).unwrap();
        let mut out = Vec::new();
        assert_eq!(protocol.push(Op::Get, 0, &mut out), token(Op::Get, 0));
        let mut get = vec![0x80, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 5];
        get.extend_from_slice(&[0; 12]);
        get.extend_from_slice(b"k0000");
        assert_eq!(out, get);
        out.clear();
        assert_eq!(protocol.encode_preload(0, &mut out), Some(token(Op::Set, 1)));
        let mut set = vec![0x80, 1, 0, 5, 8, 0, 0, 0, 0, 0, 0, 15, 0, 0, 0, 1];
        set.extend_from_slice(&[0; 16]);
        set.extend_from_slice(b"k0000vv");
        assert_eq!(out, set);
        assert_eq!(protocol.encode_preload(1, &mut out), None);
    }

    #[test]
    fn replies_are_found_wherever_the_stream_is_split() {
        let hit = reply(Op::Get, 0, 0, &[0; 4], b"value");
        let miss = reply(Op::Get, 1, KEY_NOT_FOUND, &[], b"Not found");
        let stored = reply(Op::Set, 2, 0, &[], &[]);
        let full = reply(Op::Set, 3, 0x82, &[], b"Out of memory");
        replies_split_anywhere(
            &usr(),
            &[
                (&hit, token(Op::Get, 0), Status::Ok),
                (&miss, token(Op::Get, 1), Status::Miss),
                (&stored, token(Op::Set, 2), Status::Ok),
                (&full, token(Op::Set, 3), Status::Error),
            ],
        );
    }

    #[test]
    fn a_reply_that_cannot_become_valid_is_refused() {
        let refused = |input: &[u8]| usr().parse(input, token(Op::Get, 7)).is_err();
        assert!(!refused(&reply(Op::Get, 7, 0, &[0; 4], b"ab")));
        assert!(refused(&reply(Op::Get, 8, 0, &[0; 4], b"ab")), "opaque of another request");
        assert!(refused(&reply(Op::Set, 7, 0, &[0; 4], b"ab")), "another operation");
        assert!(refused(&reply(Op::Get, 7, 0, &[], b"ab")), "no flags");
        assert!(refused(b"VALUE"), "the text protocol");
        let mut endless = reply(Op::Get, 7, 0, &[0; 4], b"");
        endless[8..12].copy_from_slice(&u32::MAX.to_be_bytes());
        assert!(refused(&endless));
        let mut shorter_than_its_parts = reply(Op::Get, 7, 0, &[0; 4], b"");
        shorter_than_its_parts[3] = 9;
        assert!(refused(&shorter_than_its_parts));
    }

    proptest! {
        #[test]
        fn garbage_never_panics_and_never_yields_more_than_it_holds(
            mut input in proptest::collection::vec(any::<u8>(), 0..200), opaque: u32, set: bool,
        ) {
            if let Some(magic) = input.first_mut() {
                *magic = REPLY_MAGIC;
            }
            let op = if set { Op::Set } else { Op::Get };
            if input.len() >= HEADER_BYTES {
                input[1] = opcode(op);
                input[12..16].copy_from_slice(&opaque.to_be_bytes());
                input[8..11].fill(0);
            }
            if let Ok(Parsed::Reply { len, .. }) = usr().parse(&input, token(op, opaque)) {
                prop_assert!(len >= HEADER_BYTES && len <= input.len());
            }
        }
    }
}
