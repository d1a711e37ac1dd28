//! Arrivals written down in a file.
//!
//! ```text
//! # Anything after a number sign is a comment; empty lines say nothing.
//! times us
//! 0
//! 12.5
//! 12.5
//! ```
//!
//! The first line that is no comment says what the numbers are, `times` since the start of the trace
//! or `gaps` since the request before (the first one since the start), and their unit: `s`, `ms`, `us`
//! or `ns`. Then comes one decimal number a line, a request each. Times must not decrease.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;

use quell_model::Nanos;

use crate::error::LoadError;

/// Most requests of a trace; they are held in memory, 8 bytes each.
const REQUESTS_MAX: usize = 20_000_000;
/// Most lines, comments included.
const LINES_MAX: usize = 2 * REQUESTS_MAX;
/// Longest line in bytes.
const LINE_BYTES_MAX: u64 = 1_024;
/// Latest time.
const LATEST: Nanos = Nanos::from_secs(7 * 24 * 3_600);
/// A trace counts as at least so long, so that one of a single request has a rate.
const SHORTEST: Nanos = Nanos::from_millis(1);

/// The intended send times of a trace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    /// Ascending; at least one.
    times: Vec<Nanos>,
}

/// What the numbers of a trace are.
#[derive(Clone, Copy, Debug)]
struct Header {
    are_gaps: bool,
    unit_ns: f64,
}

impl Trace {
    /// Reads a file.
    ///
    /// # Errors
    /// Names the file and the line that is at fault.
    pub fn read(path: &Path) -> Result<Trace, LoadError> {
        let fault =
            |line: usize, reason: String| LoadError::Trace { path: path.into(), line, reason };
        let file = File::open(path).map_err(|error| fault(0, error.to_string()))?;
        Trace::parse(&mut BufReader::new(file)).map_err(|(line, reason)| fault(line, reason))
    }

    /// The trace, or the number of the line at fault and why.
    fn parse(input: &mut impl BufRead) -> Result<Trace, (usize, String)> {
        let (mut header, mut times) = (None, Vec::new());
        let (mut line, mut number) = (Vec::new(), 0);
        loop {
            number += 1;
            line.clear();
            let read = input.by_ref().take(LINE_BYTES_MAX + 1).read_until(b'\n', &mut line);
            let fault = |reason: String| (number, reason);
            if read.map_err(|error| fault(error.to_string()))? == 0 {
                break;
            }
            if line.len() as u64 > LINE_BYTES_MAX || number > LINES_MAX {
                let most =
                    format!("a trace has at most {LINES_MAX} lines of {LINE_BYTES_MAX} bytes");
                return Err(fault(most));
            }
            let text = std::str::from_utf8(&line).map_err(|_| fault("not text".into()))?;
            let text = text.split('#').next().unwrap_or_default().trim();
            if text.is_empty() {
                continue;
            }
            let Some(header) = header else {
                header = Some(Header::parse(text).map_err(fault)?);
                continue;
            };
            if times.len() == REQUESTS_MAX {
                return Err(fault(format!("more than {REQUESTS_MAX} requests")));
            }
            times.push(time(text, header, times.last().copied()).map_err(fault)?);
        }
        match times.is_empty() {
            true => Err((number, "the trace holds no request".into())),
            false => Ok(Trace { times }),
        }
    }

    /// The times, counted from the start of the trace.
    pub fn times(&self) -> &[Nanos] {
        &self.times
    }

    /// From its start until all is sent, but at least 1 ms.
    pub fn length(&self) -> Nanos {
        let last = self.times.last().copied().unwrap_or_default();
        (last + Nanos(1)).max(SHORTEST)
    }

    /// Requests a second, over its length.
    pub fn mean_rps(&self) -> f64 {
        self.times.len() as f64 * 1e9 / self.length().0 as f64
    }
}

impl Header {
    fn parse(text: &str) -> Result<Header, String> {
        let words: Vec<&str> = text.split_whitespace().collect();
        let parts = match words[..] {
            ["times", unit] => Some((false, unit)),
            ["gaps", unit] => Some((true, unit)),
            _ => None,
        };
        let unit_ns = parts.and_then(|(_, unit)| match unit {
            "s" => Some(1e9),
            "ms" => Some(1e6),
            "us" => Some(1e3),
            "ns" => Some(1.0),
            _ => None,
        });
        match (parts, unit_ns) {
            (Some((are_gaps, _)), Some(unit_ns)) => Ok(Header { are_gaps, unit_ns }),
            _ => Err(format!(
                "`{}` does not say what the numbers are; begin with `times UNIT` or `gaps UNIT`, \
                 where UNIT is s, ms, us or ns",
                text.escape_debug()
            )),
        }
    }
}

/// When the request of this line is due, after the one before.
fn time(text: &str, header: Header, before: Option<Nanos>) -> Result<Nanos, String> {
    let shown = text.escape_debug();
    let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
    let number = number.ok_or_else(|| format!("`{shown}` is no number"))?;
    if number < 0.0 {
        return Err(format!("`{shown}` is negative"));
    }
    let ns = number * header.unit_ns;
    let before = before.unwrap_or_default();
    let start = if header.are_gaps { before } else { Nanos::ZERO };
    if ns > (LATEST - start).0 as f64 {
        return Err(format!("`{shown}` is beyond the longest run of {LATEST}"));
    }
    let time = start + Nanos(ns.round() as u64);
    match time < before {
        true => Err(format!("`{shown}` is before the time of the request before")),
        false => Ok(time),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn parse(text: &str) -> Result<Vec<u64>, (usize, String)> {
        let trace = Trace::parse(&mut text.as_bytes())?;
        Ok(trace.times().iter().map(|time| time.0).collect())
    }

    #[test]
    fn times_and_gaps_of_every_unit_are_read() {
        assert_eq!(parse("times ns\n0\n7\n7\n9"), Ok(vec![0, 7, 7, 9]));
        assert_eq!(
            parse("# mine\n\n gaps us # each\r\n0.5\r\n1e1 # ten\n0\n"),
            Ok(vec![500, 10_500, 10_500])
        );
        assert_eq!(parse("gaps ms\n1\n1\n"), Ok(vec![1_000_000, 2_000_000]));
        assert_eq!(parse("times s\n1.000000001\n"), Ok(vec![1_000_000_001]));
    }

    #[test]
    fn what_makes_no_sense_is_refused_by_line() {
        for (text, line, what) in [
            ("", 1, "no request"),
            ("times us\n# nothing\n", 3, "no request"),
            ("0\n1\n", 1, "begin with `times UNIT`"),
            ("times\n", 1, "begin with"),
            ("gaps hours\n1\n", 1, "begin with"),
            ("times us\n1\nx\n", 3, "`x` is no number"),
            ("times us\nNaN\n", 2, "no number"),
            ("times us\n1 2\n", 2, "no number"),
            ("gaps us\n-1\n", 2, "negative"),
            ("times us\n2\n\n1\n", 4, "before the time"),
            ("times s\n604801\n", 2, "longest run"),
            ("gaps s\n604800\n1\n", 3, "longest run"),
            ("gaps s\n1e300\n", 2, "longest run"),
        ] {
            let (at, reason) = parse(text).unwrap_err();
            assert!(at == line && reason.contains(what), "{text:?}: {at}: {reason}");
        }
        let endless = "#".repeat(2_000);
        assert_eq!(parse(&endless).unwrap_err().0, 1);
        assert_eq!(
            Trace::parse(&mut &b"times us\n\xff\n"[..]).unwrap_err(),
            (2, "not text".into())
        );
    }

    #[test]
    fn errors_name_the_file_and_the_line() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("arrivals");
        let error = Trace::read(&path).unwrap_err().to_string();
        assert!(error.contains("arrivals: "), "{error}");
        std::fs::write(&path, "times us\n5\n4\n").unwrap();
        let error = Trace::read(&path).unwrap_err().to_string();
        assert!(error.contains("arrivals:3: `4` is before"), "{error}");
    }

    #[test]
    fn a_trace_knows_its_length_and_its_rate() {
        let trace = Trace { times: (0..1_000).map(Nanos::from_micros).collect() };
        assert_eq!(trace.length(), Nanos(999_001).max(SHORTEST));
        assert!((trace.mean_rps() / 1e6 - 1.0).abs() < 1e-9);
        assert_eq!(Trace { times: vec![Nanos::ZERO] }.mean_rps(), 1_000.0);
    }

    proptest! {
        #[test]
        fn garbage_never_panics_and_times_never_decrease(
            input in "(times|gaps) (s|us|ns)\n([0-9.e+-]{1,8}\n|# [ -~]{0,5}\n){0,20}",
        ) {
            if let Ok(times) = parse(&input) {
                prop_assert!(times.is_sorted() && times.iter().all(|&time| time <= LATEST.0));
            }
        }

        #[test]
        fn bytes_never_panic(input in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = Trace::parse(&mut &input[..]);
        }

        #[test]
        fn written_gaps_and_times_say_the_same(gaps in proptest::collection::vec(0u64..1_000_000_000, 1..50)) {
            let times: Vec<u64> = gaps.iter().scan(0, |at, gap| { *at += gap; Some(*at) }).collect();
            let lines = |kind: &str, numbers: &[u64]| {
                let numbers: Vec<String> = numbers.iter().map(u64::to_string).collect();
                format!("{kind} ns\n{}\n", numbers.join("\n"))
            };
            prop_assert_eq!(parse(&lines("gaps", &gaps)), Ok(times.clone()));
            prop_assert_eq!(parse(&lines("times", &times)), Ok(times));
        }
    }
}
