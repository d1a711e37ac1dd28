//! Sizes and times as people type them.

use std::time::Duration;

/// Bytes, with K, M or G for powers of 1024.
pub fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.char_indices().last() {
        Some((at, 'K' | 'k')) => (&text[..at], 1 << 10),
        Some((at, 'M' | 'm')) => (&text[..at], 1 << 20),
        Some((at, 'G' | 'g')) => (&text[..at], 1u64 << 30),
        _ => (text, 1),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    bytes.ok_or_else(|| format!("`{text}` is not a size; write it like 67108864, 512K, 64M or 1G"))
}

/// A time, in seconds where no unit is given.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let seconds = match &text[digits.len()..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3_600.0,
        _ => f64::NAN,
    };
    let number = digits.parse::<f64>().ok().filter(|number| number.is_finite() && *number > 0.0);
    let time = number.and_then(|number| Duration::try_from_secs_f64(number * seconds).ok());
    time.filter(|time| !time.is_zero())
        .ok_or_else(|| format!("`{text}` is not a time; write it like 10, 10s, 500ms or 5m"))
}

/// A time with its unit. A bare number is refused.
pub fn time(text: &str) -> Result<Duration, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit_s = match &text[digits.len()..] {
        "ns" => 1e-9,
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" | "min" => 60.0,
        "h" => 3_600.0,
        _ => f64::NAN,
    };
    let number = digits.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
    let time = number.and_then(|number| Duration::try_from_secs_f64(number * unit_s).ok());
    time.ok_or_else(|| {
        format!("`{text}` is not a time with a unit; write it like 50us, 250ms or 10s")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_with_their_unit_and_nothing_else_does() {
        assert_eq!(size("64M"), Ok(64 << 20));
        assert_eq!((size("512k"), size("7")), (Ok(512 << 10), Ok(7)));
        for bad in ["", "M", "-1", "1.5G", "64MB", "99999999999G", "é"] {
            assert!(size(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn times_read_with_their_unit_and_nothing_else_does() {
        for (text, ms) in [("10", 10_000), ("1.5s", 1_500), ("250ms", 250), ("2m", 120_000)] {
            assert_eq!(seconds(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for bad in ["", "s", "0", "-1s", "1e400", "inf", "nan", "5 s", "3x", "1e30h", "é", "5é"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn time_without_unit_is_refused() {
        for (text, us) in
            [("50us", 50), ("0.5ms", 500), ("2500ns", 2), ("0us", 0), ("1s", 1_000_000)]
        {
            assert_eq!(time(text).map(|time| time.as_micros()), Ok(us), "{text}");
        }
        for bad in ["", "us", "50", "0", "-1us", "1e400s", "infs", "nanus", "5 s", "3x", "é", "5é"]
        {
            assert!(time(bad).unwrap_err().contains("50us"), "{bad}");
        }
    }
}
