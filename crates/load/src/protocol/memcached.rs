//! memcached's text protocol (`protocol.txt` of memcached 1.6): `get` and `set`.
//!
//! The default workload is like the USR pool of Atikoglu et al., "Workload Analysis of a Large-Scale
//! Key-Value Store" (SIGMETRICS 2012): keys of 16 and 21 bytes, values of 2 bytes, 99.8 % GET. The
//! paper gives the two key sizes but not their shares, so they are equal here; keys are drawn
//! uniformly, as Caladan's load generator does.

use rand::RngExt;
use serde::{Deserialize, Serialize};

use super::{Malformed, Parsed, Protocol, Status, Token, WorkloadRng};

/// Longest key of the protocol, in bytes.
const KEY_BYTES_MAX: usize = 250;
/// memcached's default limit on an item; a larger value cannot be stored.
const VALUE_BYTES_MAX: usize = 1 << 20;
/// Longest status or header line accepted: `VALUE <key> <flags> <bytes> <cas>` and error texts.
const LINE_BYTES_MAX: usize = 1_024;
/// Digits that hold every key index of u64.
const INDEX_DIGITS: usize = 20;

const GET: Token = Token(0);
const SET: Token = Token(1);

/// Keys, values and mix of a memcached workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MemcachedSpec {
    /// How many keys exist; all are stored by the preload.
    pub keys: u64,
    /// Key lengths in bytes, spread evenly over the keys. Each holds the index of a key.
    pub key_bytes: Vec<usize>,
    /// Value length in bytes.
    pub value_bytes: usize,
    /// GETs in a thousand requests; the rest are SETs.
    pub get_permille: u16,
}

impl Default for MemcachedSpec {
    /// Facebook USR-like, with 100,000 keys.
    fn default() -> Self {
        MemcachedSpec { keys: 100_000, key_bytes: vec![16, 21], value_bytes: 2, get_permille: 998 }
    }
}

/// Encoder and parser.
pub struct Memcached {
    spec: MemcachedSpec,
    value: Vec<u8>,
}

impl Memcached {
    /// Checks the workload.
    ///
    /// # Errors
    /// Says which number is out of range.
    pub fn new(spec: &MemcachedSpec) -> Result<Memcached, String> {
        let digits = spec.keys.saturating_sub(1).max(1).ilog10() as usize + 1;
        let bad_key = spec.key_bytes.iter().find(|&&len| len > KEY_BYTES_MAX || len <= digits);
        if spec.keys == 0 {
            return Err("memcached: keys is 0; at least one key is needed".into());
        }
        if let Some(len) = bad_key {
            return Err(format!(
                "memcached: key_bytes {len} is not in {}..={KEY_BYTES_MAX} for {} keys",
                digits + 1,
                spec.keys
            ));
        }
        if spec.key_bytes.is_empty() || spec.value_bytes > VALUE_BYTES_MAX {
            return Err(format!(
                "memcached: key_bytes must name a length, value_bytes be at most {VALUE_BYTES_MAX}"
            ));
        }
        if spec.get_permille > 1_000 {
            return Err("memcached: get_permille is above 1000".into());
        }
        Ok(Memcached { spec: spec.clone(), value: vec![b'v'; spec.value_bytes] })
    }

    /// `k000…<index>`: decimal, padded on the left to the length that this key has.
    fn push_key(&self, index: u64, out: &mut Vec<u8>) {
        let sizes = &self.spec.key_bytes;
        let len = sizes[(index % sizes.len() as u64) as usize];
        let mut digits = [b'0'; INDEX_DIGITS];
        let mut rest = index;
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + (rest % 10) as u8;
            rest /= 10;
        }
        let start = out.len();
        out.resize(start + len, b'0');
        out[start] = b'k';
        let shown = (len - 1).min(INDEX_DIGITS);
        out[start + len - shown..].copy_from_slice(&digits[INDEX_DIGITS - shown..]);
    }

    fn push_set(&self, index: u64, out: &mut Vec<u8>) -> Token {
        out.extend_from_slice(b"set ");
        self.push_key(index, out);
        out.extend_from_slice(b" 0 0 ");
        out.extend_from_slice(self.value.len().to_string().as_bytes());
        out.extend_from_slice(b"\r\n");
        out.extend_from_slice(&self.value);
        out.extend_from_slice(b"\r\n");
        SET
    }
}

impl Protocol for Memcached {
    fn encode(&mut self, rng: &mut WorkloadRng, out: &mut Vec<u8>) -> Token {
        let index = rng.random_range(0..self.spec.keys);
        if rng.random_range(0..1_000u16) < self.spec.get_permille {
            out.extend_from_slice(b"get ");
            self.push_key(index, out);
            out.extend_from_slice(b"\r\n");
            GET
        } else {
            self.push_set(index, out)
        }
    }

    fn encode_preload(&mut self, index: u64, out: &mut Vec<u8>) -> Option<Token> {
        (index < self.spec.keys).then(|| self.push_set(index, out))
    }

    fn parse(&self, input: &[u8], token: Token) -> Result<Parsed, Malformed> {
        let Some(line) = first_line(input)? else { return Ok(Parsed::Incomplete) };
        let line_len = line.len() + 2;
        let whole = |status| Ok(Parsed::Reply { len: line_len, status });
        if is_error(line) {
            return whole(Status::Error);
        }
        match (token, line) {
            (SET, b"STORED") => whole(Status::Ok),
            (SET, b"NOT_STORED") => whole(Status::Error),
            (GET, b"END") => whole(Status::Miss),
            (GET, _) => parse_value(input, line, line_len),
            _ => Err(Malformed("not a reply of memcached to this request")),
        }
    }

    fn reply_bytes_max(&self) -> usize {
        LINE_BYTES_MAX + VALUE_BYTES_MAX + b"\r\nEND\r\n".len()
    }
}

/// The text before the first CR LF, `None` while it has not come.
fn first_line(input: &[u8]) -> Result<Option<&[u8]>, Malformed> {
    let window = &input[..input.len().min(LINE_BYTES_MAX)];
    match window.iter().position(|&byte| byte == b'\n') {
        Some(end) if end > 0 && input[end - 1] == b'\r' => Ok(Some(&input[..end - 1])),
        Some(_) => Err(Malformed("line without carriage return")),
        None if window.len() == LINE_BYTES_MAX => Err(Malformed("line too long")),
        None => Ok(None),
    }
}

fn is_error(line: &[u8]) -> bool {
    line == b"ERROR" || line.starts_with(b"SERVER_ERROR") || line.starts_with(b"CLIENT_ERROR")
}

/// `VALUE <key> <flags> <bytes>[ <cas>]\r\n<data>\r\nEND\r\n`
fn parse_value(input: &[u8], line: &[u8], line_len: usize) -> Result<Parsed, Malformed> {
    let mut words = line.split(|&byte| byte == b' ');
    if words.next() != Some(b"VALUE") {
        return Err(Malformed("neither VALUE nor END"));
    }
    let bytes = words
        .nth(2)
        .and_then(|word| std::str::from_utf8(word).ok())
        .and_then(|word| word.parse::<usize>().ok())
        .filter(|&bytes| bytes <= VALUE_BYTES_MAX)
        .ok_or(Malformed("VALUE without a valid length"))?;
    const TAIL: &[u8] = b"\r\nEND\r\n";
    let tail_start = line_len + bytes;
    let tail = input.get(tail_start..).unwrap_or_default();
    let tail = &tail[..tail.len().min(TAIL.len())];
    if !TAIL.starts_with(tail) {
        return Err(Malformed("value does not end where its length says"));
    }
    if tail.len() < TAIL.len() {
        return Ok(Parsed::Incomplete);
    }
    Ok(Parsed::Reply { len: tail_start + TAIL.len(), status: Status::Ok })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rand::SeedableRng;

    fn usr() -> Memcached {
        Memcached::new(&MemcachedSpec::default()).unwrap()
    }

    #[test]
    fn the_default_mix_is_usr_like() {
        let (mut protocol, mut rng) = (usr(), WorkloadRng::seed_from_u64(3));
        let mut sets = 0;
        for _ in 0..100_000 {
            let mut out = Vec::new();
            let token = protocol.encode(&mut rng, &mut out);
            let key = out.split(|&b| b == b' ' || b == b'\r').nth(1).unwrap();
            assert!(key.len() == 16 || key.len() == 21);
            sets += u32::from(token == SET);
        }
        assert!((150..250).contains(&sets), "{sets} sets in 100,000 requests");
    }

    #[test]
    fn preload_stores_every_key_once_and_get_asks_for_no_other() {
        let spec = MemcachedSpec { keys: 1_000, ..MemcachedSpec::default() };
        let mut protocol = Memcached::new(&spec).unwrap();
        let mut stored = std::collections::HashSet::new();
        let mut index = 0;
        let key_of = |out: &[u8]| out.split(|&b| b == b' ' || b == b'\r').nth(1).unwrap().to_vec();
        loop {
            let mut out = Vec::new();
            if protocol.encode_preload(index, &mut out).is_none() {
                break;
            }
            assert!(stored.insert(key_of(&out)), "key {index} twice");
            index += 1;
        }
        assert_eq!(stored.len(), 1_000);
        let mut rng = WorkloadRng::seed_from_u64(1);
        for _ in 0..10_000 {
            let mut out = Vec::new();
            protocol.encode(&mut rng, &mut out);
            assert!(stored.contains(&key_of(&out)));
        }
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
    }

    #[test]
    fn a_workload_that_makes_no_sense_is_refused() {
        let usr = MemcachedSpec::default;
        let refused = |spec: MemcachedSpec| Memcached::new(&spec).is_err();
        assert!(refused(MemcachedSpec { keys: 0, ..usr() }));
        assert!(refused(MemcachedSpec { key_bytes: vec![4], ..usr() }), "keys would collide");
        assert!(refused(MemcachedSpec { key_bytes: vec![251], ..usr() }));
        assert!(refused(MemcachedSpec { key_bytes: vec![], ..usr() }));
        assert!(refused(MemcachedSpec { value_bytes: VALUE_BYTES_MAX + 1, ..usr() }));
        assert!(refused(MemcachedSpec { get_permille: 1_001, ..usr() }));
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
