//! memcached's text protocol (`protocol.txt` of memcached 1.6): `get` and `set`.

use super::keyvalue::{KeyValue, KeyValueSpec, Op, VALUE_BYTES_MAX};
use super::wire::{decimal, first_line, push_decimal};
use super::{Malformed, Parsed, Protocol, Status, Token, WorkloadRng};

/// Longest status or header line accepted: `VALUE <key> <flags> <bytes> <cas>` and error texts.
const LINE_BYTES_MAX: usize = 1_024;

const GET: Token = Token(0);
const SET: Token = Token(1);

/// Encoder and parser.
pub struct Memcached {
    workload: KeyValue,
}

impl Memcached {
    /// Checks the workload.
    ///
    /// # Errors
    /// Says which number is out of range.
    pub fn new(spec: &KeyValueSpec) -> Result<Memcached, String> {
        Ok(Memcached { workload: KeyValue::new(spec)? })
    }

    fn push_get(&self, index: u64, rng: &mut WorkloadRng, out: &mut Vec<u8>) -> Token {
        out.extend_from_slice(b"get ");
        self.workload.push_key(index, out);
        for _ in 1..self.workload.keys_per_get() {
            out.push(b' ');
            self.workload.push_key(self.workload.draw_key(rng), out);
        }
        out.extend_from_slice(b"\r\n");
        GET
    }

    /// One value for each key that is there, then `END`.
    fn parse_values(&self, input: &[u8]) -> Result<Parsed, Malformed> {
        let mut at = 0;
        for values in 0..=self.workload.keys_per_get() {
            let rest = &input[at..];
            let Some(line) = first_line(rest, LINE_BYTES_MAX)? else {
                return Ok(Parsed::Incomplete);
            };
            if line == b"END" && values > 0 {
                let len = at + b"END\r\n".len();
                return Ok(Parsed::Reply { len, status: Status::Ok });
            }
            match value_end(rest, line)? {
                Some(end) => at += end,
                None => return Ok(Parsed::Incomplete),
            }
        }
        Err(Malformed("more values than keys were asked for"))
    }

    fn push_set(&self, index: u64, out: &mut Vec<u8>) -> Token {
        let value = &self.workload.value;
        out.extend_from_slice(b"set ");
        self.workload.push_key(index, out);
        out.extend_from_slice(b" 0 0 ");
        push_decimal(value.len(), out);
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(value);
        out.extend_from_slice(b"\r\n");
        SET
    }
}

impl Protocol for Memcached {
    fn encode(&mut self, rng: &mut WorkloadRng, out: &mut Vec<u8>) -> Token {
        match self.workload.draw(rng) {
            (Op::Get, index) => self.push_get(index, rng, out),
            (Op::Set, index) => self.push_set(index, out),
        }
    }

    fn encode_preload(&mut self, index: u64, out: &mut Vec<u8>) -> Option<Token> {
        self.workload.holds(index).then(|| self.push_set(index, out))
    }

    fn parse(&self, input: &[u8], token: Token) -> Result<Parsed, Malformed> {
        let Some(line) = first_line(input, LINE_BYTES_MAX)? else { return Ok(Parsed::Incomplete) };
        let line_len = line.len() + 2;
        let whole = |status| Ok(Parsed::Reply { len: line_len, status });
        if is_error(line) {
            return whole(Status::Error);
        }
        match (token, line) {
            (SET, b"STORED") => whole(Status::Ok),
            (SET, b"NOT_STORED") => whole(Status::Error),
            (GET, b"END") => whole(Status::Miss),
            (GET, _) => self.parse_values(input),
            _ => Err(Malformed("not a reply of memcached to this request")),
        }
    }

    fn reply_bytes_max(&self) -> usize {
        (LINE_BYTES_MAX + VALUE_BYTES_MAX + b"\r\n".len()) * self.workload.keys_per_get()
            + b"END\r\n".len()
    }
}

fn is_error(line: &[u8]) -> bool {
    line == b"ERROR" || line.starts_with(b"SERVER_ERROR") || line.starts_with(b"CLIENT_ERROR")
}

/// Behind `VALUE <key> <flags> <bytes>[ <cas>]\r\n<data>\r\n`, where `line` is the first of it; none: there is more to come.
fn value_end(input: &[u8], line: &[u8]) -> Result<Option<usize>, Malformed> {
    let mut words = line.split(|&byte| byte == b' ');
    if words.next() != Some(b"VALUE") {
        return Err(Malformed("neither VALUE nor END"));
    }
    let bytes = words
        .nth(2)
        .and_then(|word| decimal(word, VALUE_BYTES_MAX))
        .ok_or(Malformed("VALUE without a valid length"))?;
    const TAIL: &[u8] = b"\r\n";
    let tail_start = line.len() + TAIL.len() + bytes;
    let tail = input.get(tail_start..).unwrap_or_default();
    let tail = &tail[..tail.len().min(TAIL.len())];
    if !TAIL.starts_with(tail) {
        return Err(Malformed("value does not end where its length says"));
    }
    Ok((tail.len() == TAIL.len()).then_some(tail_start + TAIL.len()))
}

#[cfg(test)]
mod tests {
    use super::super::testing::replies_split_anywhere;
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng as _;

    fn usr() -> Memcached {
        Memcached::new(&KeyValueSpec::default()).unwrap()
    }

    #[test]
    fn each_reply_is_told_apart() {
        let parse = |input: &[u8], token| usr().parse(input, token).unwrap();
        let reply = |len, status| Parsed::Reply { len, status };
        assert_eq!(parse(b"STORED\r\nEND\r\n", SET), reply(8, Status::Ok));
        assert_eq!(parse(b"END\r\n", GET), reply(5, Status::Miss));
        assert_eq!(parse(b"VALUE k 0 2\r\nab\r\nEND\r\nVAL", GET), reply(22, Status::Ok));
        assert_eq!(parse(b"VALUE k 0 4\r\n\r\n\r\n\r\nEND\r\n", GET), reply(24, Status::Ok));
        assert_eq!(parse(b"SERVER_ERROR out of memory\r\n", SET), reply(28, Status::Error));
        assert_eq!(parse(b"VALUE k 0 2\r\nab\r\nEND\r", GET), Parsed::Incomplete);
    }

    #[test]
    fn a_reply_that_cannot_become_valid_is_refused() {
        let refused = |input: &[u8], token| usr().parse(input, token).is_err();
        assert!(refused(b"STORED\r\n", GET));
        assert!(refused(b"END\r\n", SET));
        assert!(refused(b"VALUE k 0 99999999\r\n", GET), "longer than any item");
        assert!(refused(b"VALUE k 0 2\r\nabc", GET), "data longer than announced");
        assert!(refused(b"END\n", GET));
        assert!(refused(&[b'x'; LINE_BYTES_MAX], GET), "endless line");
        assert!(refused(b"VALUE k 0 1\r\na\r\nVALUE l 0 1\r\nb\r\n", GET), "one was asked for");
    }

    #[test]
    fn one_get_may_ask_for_several_keys() {
        let mut several = Memcached::new(&KeyValueSpec {
            keys_per_get: 3,
            get_permille: 1_000,
            ..KeyValueSpec::default()
        })
        .unwrap();
        let mut sent = Vec::new();
        several.encode(&mut WorkloadRng::seed_from_u64(1), &mut sent);
        assert_eq!(sent.iter().filter(|&&byte| byte == b'k').count(), 3);
        let replies: [(&[u8], Token, Status); 3] = [
            (b"VALUE k 0 1\r\na\r\nVALUE l 0 2\r\nab\r\nEND\r\n", GET, Status::Ok),
            (
                b"VALUE k 0 3\r\nEND\r\nVALUE l 0 0\r\n\r\nVALUE m 0 1\r\n\n\r\nEND\r\n",
                GET,
                Status::Ok,
            ),
            (b"END\r\n", GET, Status::Miss),
        ];
        replies_split_anywhere(&several, &replies);
    }

    #[test]
    fn replies_are_found_wherever_the_stream_is_split() {
        let replies: [(&[u8], Token, Status); 4] = [
            (b"VALUE k 0 13\r\nabc\r\nEND\r\nabc\r\nEND\r\n", GET, Status::Ok),
            (b"END\r\n", GET, Status::Miss),
            (b"STORED\r\n", SET, Status::Ok),
            (b"SERVER_ERROR out of memory\r\n", SET, Status::Error),
        ];
        replies_split_anywhere(&usr(), &replies);
    }

    proptest! {
        #[test]
        fn garbage_never_panics_and_never_yields_more_than_it_holds(
            input in proptest::collection::vec(any::<u8>(), 0..2_000), set: bool,
        ) {
            if let Ok(Parsed::Reply { len, .. }) = usr().parse(&input, if set { SET } else { GET }) {
                prop_assert!(len >= 1 && len <= input.len());
            }
        }

        #[test]
        fn damaged_replies_never_panic(at in 0usize..22, byte: u8) {
            let mut input = b"VALUE k 0 2\r\nab\r\nEND\r\n".to_vec();
            input[at] = byte;
            if let Ok(Parsed::Reply { len, .. }) = usr().parse(&input, GET) {
                prop_assert!(len <= input.len());
            }
        }
    }
}
