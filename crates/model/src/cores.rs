//! Cores and sets of cores.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How many core numbers a [`CoreSet`] can hold; larger hosts are refused at start.
pub const CORES_MAX: usize = 1024;
const WORDS: usize = CORES_MAX / 64;

/// A core: one logical CPU, by the kernel's number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CoreId(pub u16);

impl CoreId {
    /// The number as an index.
    #[inline]
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for CoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A set of cores, without allocation. Reads and prints as the kernel's list (`0-3,8`).
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct CoreSet {
    words: [u64; WORDS],
}

impl CoreSet {
    /// The empty set.
    pub const EMPTY: CoreSet = CoreSet { words: [0; WORDS] };

    /// The set of one core.
    pub fn of(core: CoreId) -> CoreSet {
        let mut set = CoreSet::EMPTY;
        set.insert(core);
        set
    }

    /// Adds a core. Numbers at or above [`CORES_MAX`] are ignored: topology refuses them earlier.
    #[inline]
    pub fn insert(&mut self, core: CoreId) {
        if let Some(word) = self.words.get_mut(core.index() / 64) {
            *word |= 1 << (core.index() % 64);
        }
    }

    /// Removes a core.
    #[inline]
    pub fn remove(&mut self, core: CoreId) {
        if let Some(word) = self.words.get_mut(core.index() / 64) {
            *word &= !(1 << (core.index() % 64));
        }
    }

    /// Whether the core is in the set.
    #[inline]
    pub fn contains(&self, core: CoreId) -> bool {
        self.words.get(core.index() / 64).is_some_and(|word| word >> (core.index() % 64) & 1 == 1)
    }

    /// Whether the set has no core.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// The number of cores in the set.
    #[inline]
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// The cores in ascending order.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = CoreId> + use<> {
        let (words, mut at) = (self.words, 0);
        let mut word = words[0];
        std::iter::from_fn(move || {
            while word == 0 {
                at += 1;
                word = *words.get(at)?;
            }
            let bit = word.trailing_zeros();
            word &= word - 1;
            Some(CoreId((at * 64 + bit as usize) as u16))
        })
    }

    /// The lowest core.
    #[inline]
    pub fn first(&self) -> Option<CoreId> {
        let at = self.words.iter().position(|&word| word != 0)?;
        Some(CoreId((at * 64 + self.words[at].trailing_zeros() as usize) as u16))
    }

    /// The lowest cores of the set, so many at most.
    #[must_use]
    pub fn lowest(&self, count: usize) -> CoreSet {
        let (mut set, mut left) = (*self, count);
        for word in &mut set.words {
            while word.count_ones() as usize > left {
                *word &= !(1 << (63 - word.leading_zeros()));
            }
            left -= word.count_ones() as usize;
        }
        set
    }

    /// Whether the sets have no core in common.
    #[inline]
    pub fn is_disjoint(&self, other: &CoreSet) -> bool {
        self.words.iter().zip(&other.words).all(|(a, b)| a & b == 0)
    }

    /// Cores in both sets.
    #[inline]
    #[must_use]
    pub fn intersection(&self, other: &CoreSet) -> CoreSet {
        self.zip(other, |a, b| a & b)
    }

    /// Cores in either set.
    #[inline]
    #[must_use]
    pub fn union(&self, other: &CoreSet) -> CoreSet {
        self.zip(other, |a, b| a | b)
    }

    /// Cores in this set but not in the other.
    #[inline]
    #[must_use]
    pub fn difference(&self, other: &CoreSet) -> CoreSet {
        self.zip(other, |a, b| a & !b)
    }

    /// Whether every core of this set is in the other.
    #[inline]
    pub fn is_subset(&self, other: &CoreSet) -> bool {
        self.difference(other).is_empty()
    }

    /// The 64-bit words, core 0 in the lowest bit of the first: the layout of the kernel's masks.
    #[inline]
    pub fn words(&self) -> &[u64; WORDS] {
        &self.words
    }

    /// The set whose mask has these words; words past [`CORES_MAX`] are ignored.
    pub fn from_words(words: &[u64]) -> CoreSet {
        let mut set = CoreSet::EMPTY;
        for (to, from) in set.words.iter_mut().zip(words) {
            *to = *from;
        }
        set
    }

    #[inline]
    fn zip(&self, other: &CoreSet, op: impl Fn(u64, u64) -> u64) -> CoreSet {
        let mut out = CoreSet::EMPTY;
        for (at, word) in out.words.iter_mut().enumerate() {
            *word = op(self.words[at], other.words[at]);
        }
        out
    }
}

impl Default for CoreSet {
    fn default() -> Self {
        CoreSet::EMPTY
    }
}

impl FromIterator<CoreId> for CoreSet {
    fn from_iter<I: IntoIterator<Item = CoreId>>(cores: I) -> Self {
        let mut set = CoreSet::EMPTY;
        for core in cores {
            set.insert(core);
        }
        set
    }
}

impl fmt::Display for CoreSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cores = self.iter().peekable();
        let mut separator = "";
        while let Some(first) = cores.next() {
            let mut last = first;
            while let Some(next) = cores.next_if(|next| next.0 == last.0 + 1) {
                last = next;
            }
            match last.0 - first.0 {
                0 => write!(f, "{separator}{first}")?,
                _ => write!(f, "{separator}{first}-{last}")?,
            }
            separator = ",";
        }
        Ok(())
    }
}

impl fmt::Debug for CoreSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}

/// Why a core list could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CoreListError {
    /// A part is neither a number nor a range of two numbers.
    #[error("`{0}` is not a core or a range of cores; write it like `0-3,8`")]
    Syntax(String),
    /// A range ends before it starts.
    #[error("the range `{0}` ends before it starts")]
    Backwards(String),
    /// A number is past what Quell can hold.
    #[error("core {0} is past the highest core number that Quell can manage ({max})", max = CORES_MAX - 1)]
    TooHigh(u64),
}

impl FromStr for CoreSet {
    type Err = CoreListError;

    fn from_str(list: &str) -> Result<Self, CoreListError> {
        let mut set = CoreSet::EMPTY;
        for part in list.trim().split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let number = |text: &str| {
                text.trim().parse::<u64>().map_err(|_| CoreListError::Syntax(part.to_owned()))
            };
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if last >= CORES_MAX as u64 {
                return Err(CoreListError::TooHigh(last));
            }
            if last < first {
                return Err(CoreListError::Backwards(part.to_owned()));
            }
            (first..=last).for_each(|core| set.insert(CoreId(core as u16)));
        }
        Ok(set)
    }
}

/// People read the kernel's list; compact formats get the mask's words up to the last that is not zero.
impl Serialize for CoreSet {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        if to.is_human_readable() {
            return to.collect_str(self);
        }
        let used = self.words.iter().rposition(|&word| word != 0).map_or(0, |last| last + 1);
        to.collect_seq(&self.words[..used])
    }
}

impl<'de> Deserialize<'de> for CoreSet {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        if from.is_human_readable() {
            let list = String::deserialize(from)?;
            return list.parse().map_err(serde::de::Error::custom);
        }
        from.deserialize_seq(WordsVisitor)
    }
}

struct WordsVisitor;

impl<'de> serde::de::Visitor<'de> for WordsVisitor {
    type Value = CoreSet;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "at most {WORDS} words of a core mask")
    }

    fn visit_seq<A: serde::de::SeqAccess<'de>>(self, mut words: A) -> Result<CoreSet, A::Error> {
        let mut set = CoreSet::EMPTY;
        let mut at = 0;
        while let Some(word) = words.next_element()? {
            let slot = set.words.get_mut(at);
            *slot.ok_or_else(|| serde::de::Error::invalid_length(at + 1, &self))? = word;
            at += 1;
        }
        Ok(set)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lists_read_as_the_kernel_writes_them() {
        let set: CoreSet = "0-3,8,10-11\n".parse().unwrap();
        assert_eq!(set.len(), 7);
        assert_eq!(set.to_string(), "0-3,8,10-11");
        assert_eq!("".parse::<CoreSet>().unwrap(), CoreSet::EMPTY);
    }

    #[test]
    fn bad_lists_say_what_is_wrong() {
        assert_eq!("0-".parse::<CoreSet>(), Err(CoreListError::Syntax("0-".into())));
        assert_eq!("3-1".parse::<CoreSet>(), Err(CoreListError::Backwards("3-1".into())));
        assert_eq!("9999".parse::<CoreSet>(), Err(CoreListError::TooHigh(9999)));
        assert!("0-18446744073709551615".parse::<CoreSet>().is_err());
    }

    proptest! {
        #[test]
        fn any_set_survives_printing_and_reading(cores in proptest::collection::btree_set(0u16..1024, 0..80)) {
            let set: CoreSet = cores.iter().map(|&core| CoreId(core)).collect();
            prop_assert_eq!(set.to_string().parse::<CoreSet>().unwrap(), set);
            prop_assert_eq!(set.iter().map(|core| core.0).collect::<Vec<_>>(), cores.into_iter().collect::<Vec<_>>());
        }

        #[test]
        fn lowest_cores_are_the_first_of_all(
            cores in proptest::collection::btree_set(0u16..1024, 0..80),
            count in 0..100usize,
        ) {
            let set: CoreSet = cores.iter().map(|&core| CoreId(core)).collect();
            prop_assert_eq!(set.lowest(count), set.iter().take(count).collect());
        }

        #[test]
        fn reading_never_panics(list in ".{0,40}") {
            let _ = list.parse::<CoreSet>();
        }
    }
}
