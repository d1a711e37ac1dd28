//! Quantities with their unit in the type.

use std::fmt;
use std::ops::{Add, AddAssign, Sub};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A point on CLOCK_MONOTONIC or a length of time, in nanoseconds.
///
/// One clock serves every contract (it equals `bpf_ktime_get_ns`), so points and lengths share a
/// type. Subtraction saturates: two cores may see a few nanoseconds of skew, and a negative wait
/// has no meaning.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The zero length; also the clock's origin.
    pub const ZERO: Nanos = Nanos(0);
    /// Later than any time that occurs.
    pub const MAX: Nanos = Nanos(u64::MAX);

    /// A length from microseconds.
    pub const fn from_micros(micros: u64) -> Self {
        Nanos(micros * 1_000)
    }

    /// A length from milliseconds.
    pub const fn from_millis(millis: u64) -> Self {
        Nanos(millis * 1_000_000)
    }

    /// A length from seconds.
    pub const fn from_secs(secs: u64) -> Self {
        Nanos(secs * 1_000_000_000)
    }

    /// Whole microseconds, rounded down.
    pub const fn as_micros(self) -> u64 {
        self.0 / 1_000
    }

    /// The time since `earlier`, zero if `earlier` is later.
    pub const fn since(self, earlier: Nanos) -> Nanos {
        Nanos(self.0.saturating_sub(earlier.0))
    }
}

/// Why a text is no length of time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TimeError(String);

impl fmt::Display for TimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is not a time; write it like 20us, 1.5ms or 2s", self.0.escape_debug())
    }
}

impl std::error::Error for TimeError {}

impl FromStr for Nanos {
    type Err = TimeError;

    /// A length with its unit, from 1 ns to 30 years: `20us`, `1.5ms`, `2s`.
    fn from_str(text: &str) -> Result<Nanos, TimeError> {
        let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
        let unit = match &text[digits.len()..] {
            "ns" => 1.0,
            "us" => 1e3,
            "ms" => 1e6,
            "s" => 1e9,
            _ => f64::NAN,
        };
        let nanos = digits.parse::<f64>().map_or(f64::NAN, |number| number * unit);
        let fits = nanos.is_finite() && (1.0..1e18).contains(&nanos);
        if fits { Ok(Nanos(nanos.round() as u64)) } else { Err(TimeError(text.to_owned())) }
    }
}

impl Add for Nanos {
    type Output = Nanos;
    fn add(self, other: Nanos) -> Nanos {
        Nanos(self.0.saturating_add(other.0))
    }
}

impl AddAssign for Nanos {
    fn add_assign(&mut self, other: Nanos) {
        *self = *self + other;
    }
}

impl Sub for Nanos {
    type Output = Nanos;
    fn sub(self, other: Nanos) -> Nanos {
        self.since(other)
    }
}

impl fmt::Display for Nanos {
    /// The largest unit that leaves at least one whole digit: `850 ns`, `12.3 us`, `4.0 ms`, `2.5 s`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ns = self.0;
        match ns {
            0..1_000 => write!(f, "{ns} ns"),
            1_000..1_000_000 => write!(f, "{:.1} us", ns as f64 / 1e3),
            1_000_000..1_000_000_000 => write!(f, "{:.1} ms", ns as f64 / 1e6),
            _ => write!(f, "{:.1} s", ns as f64 / 1e9),
        }
    }
}

/// A share of a whole, in thousandths (0 to 1,000).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Permille(pub u16);

impl Permille {
    /// The whole.
    pub const ALL: Permille = Permille(1_000);

    /// `part` of `whole`, rounded down and capped at the whole; zero of an empty whole.
    pub fn of(part: Nanos, whole: Nanos) -> Permille {
        if whole.0 == 0 {
            return Permille(0);
        }
        let share = u128::from(part.0) * 1_000 / u128::from(whole.0);
        Permille(share.min(1_000) as u16)
    }
}

impl fmt::Display for Permille {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{} %", self.0 / 10, self.0 % 10)
    }
}

/// An amount of memory or of transferred data.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// A rate of data transfer.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct BytesPerSec(pub u64);

/// A rate of requests.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct RequestsPerSec(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_never_runs_backwards() {
        assert_eq!(Nanos(5) - Nanos(9), Nanos::ZERO);
        assert_eq!(Nanos::MAX + Nanos(1), Nanos::MAX);
    }

    #[test]
    fn a_share_stays_within_the_whole() {
        assert_eq!(Permille::of(Nanos(3), Nanos(2)), Permille::ALL);
        assert_eq!(Permille::of(Nanos(1), Nanos(0)), Permille(0));
        assert_eq!(Permille::of(Nanos(1), Nanos(3)), Permille(333));
    }

    #[test]
    fn time_text_parses_with_its_unit() {
        let parsed: [Nanos; 4] = ["850ns", "20us", "1.5ms", "2s"].map(|text| text.parse().unwrap());
        assert_eq!(parsed, [850, 20_000, 1_500_000, 2_000_000_000].map(Nanos));
        for text in ["", "20", "us", "-1us", "1e300s", "20 us", "0us", "NaNs", "inf"] {
            let error = text.parse::<Nanos>().unwrap_err().to_string();
            assert!(error.contains("20us"), "{text}: {error}");
        }
    }

    #[test]
    fn times_print_in_a_readable_unit() {
        let shown = [850, 12_300, 4_000_000, 2_500_000_000].map(|ns| Nanos(ns).to_string());
        assert_eq!(shown, ["850 ns", "12.3 us", "4.0 ms", "2.5 s"]);
    }
}
