//! The workload of every key-value protocol: keys, values and the mix of GET and SET.
//!
//! The default is like the USR pool of Atikoglu et al., "Workload Analysis of a Large-Scale Key-Value
//! Store" (SIGMETRICS 2012): keys of 16 and 21 bytes, values of 2 bytes, 99.8 % GET. The paper gives
//! the two key sizes but not their shares, so they are equal here; keys are drawn uniformly, as
//! Caladan's load generator does.

use rand::RngExt;
use serde::{Deserialize, Serialize};

use super::WorkloadRng;

/// Longest key that memcached takes, in bytes; the same bound for all, so that loads compare.
pub(super) const KEY_BYTES_MAX: usize = 250;
/// memcached's default limit on an item; a larger value cannot be stored.
pub(super) const VALUE_BYTES_MAX: usize = 1 << 20;
/// Most keys in a GET.
const KEYS_PER_GET_MAX: usize = 100;
/// Digits that hold every key index of u64.
const INDEX_DIGITS: usize = 20;

/// Keys, values and mix of a key-value workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct KeyValueSpec {
    /// How many keys exist; all are stored by the preload.
    pub keys: u64,
    /// Key lengths in bytes, spread evenly over the keys. Each holds the index of a key.
    pub key_bytes: Vec<usize>,
    /// Value length in bytes.
    pub value_bytes: usize,
    /// GETs in a thousand requests; the rest are SETs.
    pub get_permille: u16,
    /// Keys that one GET asks for, as far as the protocol can: memcached's text protocol. A web server of Facebook asks for
    /// 24 on average (Nishtala et al., NSDI 2013, section 3.2.2).
    pub keys_per_get: usize,
}

impl Default for KeyValueSpec {
    /// Facebook USR-like, with 100,000 keys.
    fn default() -> Self {
        KeyValueSpec {
            keys: 100_000,
            key_bytes: vec![16, 21],
            value_bytes: 2,
            get_permille: 998,
            keys_per_get: 1,
        }
    }
}

/// What is asked of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Op {
    Get,
    Set,
}

/// A checked workload, with the value that is stored.
pub(super) struct KeyValue {
    spec: KeyValueSpec,
    pub value: Vec<u8>,
}

impl KeyValue {
    /// # Errors
    /// Says which number is out of range.
    pub fn new(spec: &KeyValueSpec) -> Result<KeyValue, String> {
        let digits = spec.keys.saturating_sub(1).max(1).ilog10() as usize + 1;
        let bad_key = spec.key_bytes.iter().find(|&&len| len > KEY_BYTES_MAX || len <= digits);
        if spec.keys == 0 {
            return Err("keys is 0; at least one key is needed".into());
        }
        if let Some(len) = bad_key {
            return Err(format!(
                "key_bytes {len} is not in {}..={KEY_BYTES_MAX} for {} keys",
                digits + 1,
                spec.keys
            ));
        }
        if spec.key_bytes.is_empty() || spec.value_bytes > VALUE_BYTES_MAX {
            return Err(format!(
                "key_bytes must name a length, value_bytes be at most {VALUE_BYTES_MAX}"
            ));
        }
        if spec.get_permille > 1_000 {
            return Err("get_permille is above 1000".into());
        }
        if !(1..=KEYS_PER_GET_MAX).contains(&spec.keys_per_get) {
            return Err(format!("keys_per_get is not in 1..={KEYS_PER_GET_MAX}"));
        }
        Ok(KeyValue { spec: spec.clone(), value: vec![b'v'; spec.value_bytes] })
    }

    /// The same, for a protocol whose GET asks for one key.
    ///
    /// # Errors
    /// Says which number is out of range.
    pub fn of_single_keys(spec: &KeyValueSpec) -> Result<KeyValue, String> {
        if spec.keys_per_get > 1 {
            return Err("keys_per_get is above 1, which only memcached's text protocol can".into());
        }
        KeyValue::new(spec)
    }

    /// The next request of the mix, and the index of its key.
    pub fn draw(&self, rng: &mut WorkloadRng) -> (Op, u64) {
        let index = self.draw_key(rng);
        let is_get = rng.random_range(0..1_000u16) < self.spec.get_permille;
        (if is_get { Op::Get } else { Op::Set }, index)
    }

    /// The index of one more key, for the same request.
    pub fn draw_key(&self, rng: &mut WorkloadRng) -> u64 {
        rng.random_range(0..self.spec.keys)
    }

    /// Keys that one GET asks for.
    pub fn keys_per_get(&self) -> usize {
        self.spec.keys_per_get
    }

    /// Whether the preload has to store a key of this index.
    pub fn holds(&self, index: u64) -> bool {
        index < self.spec.keys
    }

    /// Length of a key in bytes.
    pub fn key_len(&self, index: u64) -> usize {
        let sizes = &self.spec.key_bytes;
        sizes[(index % sizes.len() as u64) as usize]
    }

    /// `k000…<index>`: decimal, padded on the left to the length that this key has.
    pub fn push_key(&self, index: u64, out: &mut Vec<u8>) {
        let len = self.key_len(index);
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
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use rand::SeedableRng;

    fn key(workload: &KeyValue, index: u64) -> Vec<u8> {
        let mut out = Vec::new();
        workload.push_key(index, &mut out);
        out
    }

    #[test]
    fn the_default_mix_is_usr_like() {
        let workload = KeyValue::new(&KeyValueSpec::default()).unwrap();
        let mut rng = WorkloadRng::seed_from_u64(3);
        let drawn: Vec<(Op, u64)> = (0..100_000).map(|_| workload.draw(&mut rng)).collect();
        let sets = drawn.iter().filter(|(op, _)| *op == Op::Set).count();
        assert!((150..250).contains(&sets), "{sets} sets in 100,000 requests");
        let lengths: HashSet<usize> =
            drawn.iter().map(|&(_, index)| key(&workload, index).len()).collect();
        assert_eq!(lengths, HashSet::from([16, 21]));
    }

    #[test]
    fn keys_differ_and_no_key_is_asked_for_that_the_preload_does_not_store() {
        let spec = KeyValueSpec { keys: 1_000, ..KeyValueSpec::default() };
        let workload = KeyValue::new(&spec).unwrap();
        let stored: HashSet<Vec<u8>> =
            (0..).take_while(|&at| workload.holds(at)).map(|at| key(&workload, at)).collect();
        assert_eq!(stored.len(), 1_000);
        let mut rng = WorkloadRng::seed_from_u64(1);
        assert!((0..10_000).all(|_| stored.contains(&key(&workload, workload.draw(&mut rng).1))));
    }

    #[test]
    fn a_workload_that_makes_no_sense_is_refused() {
        let usr = KeyValueSpec::default;
        let refused = |spec: KeyValueSpec| KeyValue::new(&spec).is_err();
        assert!(refused(KeyValueSpec { keys: 0, ..usr() }));
        assert!(refused(KeyValueSpec { key_bytes: vec![4], ..usr() }), "keys would collide");
        assert!(refused(KeyValueSpec { key_bytes: vec![251], ..usr() }));
        assert!(refused(KeyValueSpec { key_bytes: vec![], ..usr() }));
        assert!(refused(KeyValueSpec { value_bytes: VALUE_BYTES_MAX + 1, ..usr() }));
        assert!(refused(KeyValueSpec { get_permille: 1_001, ..usr() }));
        assert!(refused(KeyValueSpec { keys_per_get: 0, ..usr() }));
        let two = KeyValueSpec { keys_per_get: 2, ..usr() };
        assert!(KeyValue::new(&two).is_ok() && KeyValue::of_single_keys(&two).is_err());
    }
}
