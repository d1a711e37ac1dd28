//! How values stand in the journal.

use std::fmt;

use quell_model::{CoreSet, Nanos};

use super::layout::{VALUE_BYTES, VALUE_WORDS};
use super::slot::Kind;
use crate::{Policy, SchedAttr};

/// A value of a journalled attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    /// Policy and priority of a thread.
    Sched(SchedAttr),
    /// The affinity of a thread.
    Cores(Cores),
    /// The text of a setting, or a path.
    Text(String),
}

/// An affinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cores {
    /// The cores.
    pub(crate) set: CoreSet,
    /// They were all that the thread's cpuset has, so it is given back as "all possible cores": it shall
    /// grow with the cpuset again.
    pub(crate) whole_cpuset: bool,
}

impl Cores {
    pub(crate) const fn exactly(set: CoreSet) -> Cores {
        Cores { set, whole_cpuset: false }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Sched(attr) => attr.fmt(f),
            Value::Cores(cores) => cores.set.fmt(f),
            Value::Text(text) => text.fmt(f),
        }
    }
}

/// Bit of a policy's first word.
const RESET_ON_FORK: u32 = 48;
/// Flag in an affinity's first word.
const WHOLE_CPUSET: u64 = 1;

/// Writes a value as words; returns its length in bytes, or `None` if it does not fit.
pub(crate) fn encode(value: &Value, out: &mut [u64; VALUE_WORDS]) -> Option<usize> {
    match value {
        Value::Sched(attr) => {
            out[0] = u64::from(attr.policy.to_kernel())
                | u64::from(attr.priority) << 32
                | u64::from(attr.nice as u8) << 40
                | u64::from(attr.reset_on_fork) << RESET_ON_FORK;
            out[1] = attr.slice.0;
            Some(16)
        }
        Value::Cores(cores) => {
            out[0] = u64::from(cores.whole_cpuset) * WHOLE_CPUSET;
            let words = cores.set.words();
            let used = words.iter().rposition(|&word| word != 0).map_or(0, |last| last + 1);
            out[1..=used].copy_from_slice(&words[..used]);
            Some(8 * (1 + used))
        }
        Value::Text(text) => text_to_words(text, out),
    }
}

/// Reads a value of `bytes` bytes; `None` where the words are no such value.
pub(crate) fn decode(kind: Kind, words: &[u64; VALUE_WORDS], bytes: usize) -> Option<Value> {
    if bytes > VALUE_BYTES {
        return None;
    }
    match kind {
        Kind::Sched => {
            let policy = Policy::from_kernel(words[0] as u32)?;
            let priority = (words[0] >> 32) as u8;
            let nice = (words[0] >> 40) as u8 as i8;
            let in_range = match policy.is_realtime() {
                true => (1..=99).contains(&priority),
                false => priority == 0,
            };
            (bytes == 16 && in_range && (-20..=19).contains(&nice)).then_some(Value::Sched(
                SchedAttr {
                    policy,
                    priority,
                    nice,
                    reset_on_fork: words[0] >> RESET_ON_FORK & 1 != 0,
                    slice: Nanos(words[1]),
                },
            ))
        }
        Kind::Affinity => {
            let set = CoreSet::from_words(words.get(1..bytes / 8)?);
            let whole_cpuset = words[0] & WHOLE_CPUSET != 0;
            (!set.is_empty()).then_some(Value::Cores(Cores { set, whole_cpuset }))
        }
        Kind::Setting | Kind::Group | Kind::Member => words_to_text(words, bytes).map(Value::Text),
    }
}

/// Packs text into words; returns its length in bytes, or `None` if it does not fit.
pub(crate) fn text_to_words(text: &str, out: &mut [u64]) -> Option<usize> {
    if text.len() > out.len() * 8 {
        return None;
    }
    for (word, bytes) in out.iter_mut().zip(text.as_bytes().chunks(8)) {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(padded);
    }
    Some(text.len())
}

/// Unpacks text from words; `None` where it is longer than they are or not UTF-8.
pub(crate) fn words_to_text(words: &[u64], bytes: usize) -> Option<String> {
    let mut text: Vec<u8> =
        words.iter().take(bytes.div_ceil(8)).flat_map(|word| word.to_le_bytes()).collect();
    if text.len() < bytes {
        return None;
    }
    text.truncate(bytes);
    String::from_utf8(text).ok()
}
