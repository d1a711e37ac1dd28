//! RESP, the protocol of Redis (<https://redis.io/docs/latest/develop/reference/protocol-spec/>): `GET` and
//! `SET`.
//!
//! Replies of every type of RESP2 and RESP3 are found, nested ones too, so that the border of the next
//! reply is never lost; what was not asked for counts as an error.

use super::keyvalue::{KeyValue, KeyValueSpec, Op, VALUE_BYTES_MAX};
use super::wire::{decimal, first_line, push_decimal};
use super::{Malformed, Parsed, Protocol, Status, Token, WorkloadRng};

/// Longest line accepted: a header, or a simple string or error. Redis cuts errors off at 1 KiB.
const LINE_BYTES_MAX: usize = 4_096;
/// Most values in one reply; each is looked at again when more bytes of the reply have come.
const VALUES_MAX: usize = 4_096;
/// Longest reply.
const REPLY_BYTES_MAX: usize = 2 * VALUE_BYTES_MAX;

const GET: Token = Token(0);
const SET: Token = Token(1);

/// Encoder and parser.
pub struct Resp {
    workload: KeyValue,
}

impl Resp {
    /// Checks the workload.
    ///
    /// # Errors
    /// Says which number is out of range.
    pub fn new(spec: &KeyValueSpec) -> Result<Resp, String> {
        Ok(Resp { workload: KeyValue::of_single_keys(spec)? })
    }

    fn push_get(&self, index: u64, out: &mut Vec<u8>) -> Token {
        out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n");
        self.push_key(index, out);
        GET
    }

    fn push_set(&self, index: u64, out: &mut Vec<u8>) -> Token {
        let value = &self.workload.value;
        out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n");
        self.push_key(index, out);
        push_length(value.len(), out);
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
        SET
    }

    fn push_key(&self, index: u64, out: &mut Vec<u8>) {
        push_length(self.workload.key_len(index), out);
        self.workload.push_key(index, out);
        out.extend_from_slice(b"\r\n");
    }
}

fn push_length(bytes: usize, out: &mut Vec<u8>) {
    out.push(b'$');
    push_decimal(bytes, out);
    out.extend_from_slice(b"\r\n");
}

impl Protocol for Resp {
    fn encode(&mut self, rng: &mut WorkloadRng, out: &mut Vec<u8>) -> Token {
        match self.workload.draw(rng) {
            (Op::Get, index) => self.push_get(index, out),
            (Op::Set, index) => self.push_set(index, out),
        }
    }

    fn encode_preload(&mut self, index: u64, out: &mut Vec<u8>) -> Option<Token> {
        self.workload.holds(index).then(|| self.push_set(index, out))
    }

    fn parse(&self, input: &[u8], token: Token) -> Result<Parsed, Malformed> {
        let Some((len, kind)) = reply(input)? else { return Ok(Parsed::Incomplete) };
        let status = match (token, kind) {
            (GET, Kind::String) | (SET, Kind::Simple) => Status::Ok,
            (GET, Kind::Null) => Status::Miss,
            _ => Status::Error,
        };
        Ok(Parsed::Reply { len, status })
    }

    fn reply_bytes_max(&self) -> usize {
        REPLY_BYTES_MAX
    }
}

/// What a value is, as far as it matters here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// A simple string: `OK`.
    Simple,
    /// A bulk or verbatim string: a value.
    String,
    /// Nothing there.
    Null,
    /// A number, boolean or collection.
    Other,
    /// An error.
    Error,
    /// Attributes of the reply that comes next, or a push: no reply in itself.
    Aside,
}

/// What of a value comes after its first line.
enum Rest {
    Nothing,
    /// So many bytes and CR LF.
    Bytes(usize),
    /// So many values.
    Values(usize),
}

/// Length and kind of the reply at the front of `input`, `None` while it has not wholly come.
fn reply(input: &[u8]) -> Result<Option<(usize, Kind)>, Malformed> {
    let (mut at, mut values_left) = (0, VALUES_MAX);
    loop {
        let Some((end, kind)) = value(input, at, &mut values_left)? else { return Ok(None) };
        if kind != Kind::Aside {
            return Ok(Some((end, kind)));
        }
        at = end;
    }
}

/// Where the value at `at` ends, and what it is. Nested values are counted, not recursed into, so
/// that hostile depth costs nothing.
fn value(
    input: &[u8],
    mut at: usize,
    values_left: &mut usize,
) -> Result<Option<(usize, Kind)>, Malformed> {
    let (mut missing, mut outer) = (1, None);
    while missing > 0 {
        if missing > *values_left {
            return Err(Malformed("reply of too many values"));
        }
        let Some(line) = first_line(&input[at..], LINE_BYTES_MAX)? else { return Ok(None) };
        at += line.len() + 2;
        let (kind, rest) = header(line)?;
        *values_left -= 1;
        missing -= 1;
        match rest {
            Rest::Nothing => {}
            Rest::Values(values) => missing += values,
            Rest::Bytes(bytes) => {
                let Some(end) = input.get(at + bytes..at + bytes + 2) else { return Ok(None) };
                if end != b"\r\n" {
                    return Err(Malformed("string does not end where its length says"));
                }
                at += bytes + 2;
            }
        }
        // Inside of a collection, attributes stand before one of its values.
        missing += usize::from(kind == Kind::Aside && outer.is_some());
        outer.get_or_insert(kind);
    }
    Ok(outer.map(|kind| (at, kind)))
}

/// What the first line of a value says.
fn header(line: &[u8]) -> Result<(Kind, Rest), Malformed> {
    let (&tag, text) = line.split_first().ok_or(Malformed("empty line"))?;
    let bytes = || decimal(text, REPLY_BYTES_MAX).ok_or(Malformed("string without a valid length"));
    let values = |each: usize| match decimal(text, VALUES_MAX) {
        Some(count) => Ok(Rest::Values(each * count)),
        None => Err(Malformed("collection without a valid length")),
    };
    Ok(match tag {
        b'$' | b'*' if text == b"-1" => (Kind::Null, Rest::Nothing),
        b'+' => (Kind::Simple, Rest::Nothing),
        b'-' => (Kind::Error, Rest::Nothing),
        b'_' => (Kind::Null, Rest::Nothing),
        b':' | b'#' | b',' | b'(' => (Kind::Other, Rest::Nothing),
        b'$' | b'=' => (Kind::String, Rest::Bytes(bytes()?)),
        b'!' => (Kind::Error, Rest::Bytes(bytes()?)),
        b'*' | b'~' => (Kind::Other, values(1)?),
        b'%' => (Kind::Other, values(2)?),
        b'>' => (Kind::Aside, values(1)?),
        b'|' => (Kind::Aside, values(2)?),
        _ => return Err(Malformed("no type of RESP")),
    })
}

#[cfg(test)]
mod tests {
    use super::super::testing::replies_split_anywhere;
    use super::*;
    use proptest::prelude::*;

    fn usr() -> Resp {
        Resp::new(&KeyValueSpec::default()).unwrap()
    }

    #[test]
    fn requests_are_arrays_of_bulk_strings() {
        let spec = KeyValueSpec { keys: 1, key_bytes: vec![5], ..KeyValueSpec::default() };
        let mut protocol = Resp::new(&spec).unwrap();
        let mut out = Vec::new();
        assert_eq!(protocol.push_get(0, &mut out), GET);
        assert_eq!(out, b"*2\r\n$3\r\nGET\r\n$5\r\nk0000\r\n");
        out.clear();
        assert_eq!(protocol.encode_preload(0, &mut out), Some(SET));
        assert_eq!(out, b"*3\r\n$3\r\nSET\r\n$5\r\nk0000\r\n$2\r\nvv\r\n");
        assert_eq!(protocol.encode_preload(1, &mut out), None);
    }

    /// Replies of every type, of which only those asked for are good.
    const REPLIES: [(&[u8], Token, Status); 19] = [
        (b"+OK\r\n", SET, Status::Ok),
        (b"$5\r\na\r\nbc\r\n", GET, Status::Ok),
        (b"$0\r\n\r\n", GET, Status::Ok),
        (b"=6\r\ntxt:ab\r\n", GET, Status::Ok),
        (b"$-1\r\n", GET, Status::Miss),
        (b"_\r\n", GET, Status::Miss),
        (b"*-1\r\n", GET, Status::Miss),
        (b"$-1\r\n", SET, Status::Error),
        (b"-OOM command not allowed\r\n", SET, Status::Error),
        (b"!3\r\nERR\r\n", SET, Status::Error),
        (b":42\r\n", GET, Status::Error),
        (b"#t\r\n", GET, Status::Error),
        (b",1.5\r\n", GET, Status::Error),
        (b"(12345678901234567890\r\n", GET, Status::Error),
        (b"*2\r\n*2\r\n:1\r\n$1\r\na\r\n*0\r\n", GET, Status::Error),
        (b"%1\r\n+key\r\n~1\r\n|1\r\n+ttl\r\n:9\r\n:1\r\n", GET, Status::Error),
        (b"|1\r\n+ttl\r\n*1\r\n:3600\r\n$1\r\na\r\n", GET, Status::Ok),
        (b">2\r\n+invalidate\r\n*1\r\n$1\r\nk\r\n$1\r\na\r\n", GET, Status::Ok),
        (b"+OK\r\n", GET, Status::Error),
    ];

    #[test]
    fn replies_of_every_type_are_found_wherever_the_stream_is_split() {
        replies_split_anywhere(&usr(), &REPLIES);
    }

    #[test]
    fn a_reply_that_cannot_become_valid_is_refused() {
        let refused = |input: &[u8]| usr().parse(input, GET).is_err();
        assert!(refused(b"END\r\n"), "memcached");
        assert!(refused(b"\r\n"));
        assert!(refused(b"$3\r\nabcd\r\n"), "longer than announced");
        assert!(refused(b"$-2\r\n"));
        assert!(refused(b"$99999999999\r\n"));
        assert!(refused(b"*4097\r\n"));
        assert!(refused(&b"*4096\r\n".repeat(2)), "many together");
        assert!(refused(&b"*1\r\n".repeat(5_000)), "endless depth");
        assert!(refused(&b"|0\r\n".repeat(5_000)), "endless attributes");
        assert!(refused(&[b'+'; LINE_BYTES_MAX]), "endless line");
    }

    proptest! {
        #[test]
        fn garbage_never_panics_and_never_yields_more_than_it_holds(
            input in "([-+:$*_#,(!=%~>|][0-9]{0,5}\r\n|[ -~]{0,9}|\r\n){0,30}", set: bool,
        ) {
            let token = if set { SET } else { GET };
            if let Ok(Parsed::Reply { len, .. }) = usr().parse(input.as_bytes(), token) {
                prop_assert!(len >= 1 && len <= input.len());
            }
        }

        #[test]
        fn damaged_replies_never_panic(which in 0..REPLIES.len(), at in 0usize..40, byte: u8) {
            let mut input = REPLIES[which].0.to_vec();
            let at = at % input.len();
            input[at] = byte;
            if let Ok(Parsed::Reply { len, .. }) = usr().parse(&input, GET) {
                prop_assert!(len <= input.len());
            }
        }
    }
}
