//! The text that metrics endpoints serve, as far as picking series out of it needs.
//!
//! Prometheus' text format and OpenMetrics: `name{label="value",..} number`, with `# TYPE name kind` lines. A
//! [`Selector`] is written in the same way, without the number. Lines of other metrics are passed over unread.

use std::fmt;
use std::str::FromStr;

/// Labels of one series at most.
const LABELS_MAX: usize = 64;

/// Labels of a series with their values, as they come.
pub type Labels = Vec<(String, String)>;

/// Which series of a metric: those that have these labels, whatever others they have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    /// The metric.
    pub name: String,
    /// Its labels.
    pub labels: Labels,
}

/// One series with its value.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Its labels.
    pub labels: Labels,
    /// Its value; may be infinite or no number.
    pub value: f64,
}

/// What a metric says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, until its program starts anew.
    Counter,
    /// Counts in buckets, each with those below it.
    Histogram,
    /// A value of now: gauges, quantiles of summaries, what has no type.
    Value,
}

/// Why a series does not read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` does not read as name{{label=\"value\"}}: {why}")]
pub struct FormatError {
    text: String,
    why: &'static str,
}

impl FormatError {
    fn new(text: &str, why: &'static str) -> FormatError {
        FormatError { text: text.chars().take(80).collect(), why }
    }
}

impl FromStr for Selector {
    type Err = FormatError;

    fn from_str(text: &str) -> Result<Selector, FormatError> {
        let trimmed = text.trim();
        let length = trimmed.bytes().take_while(|&byte| in_name(byte)).count();
        let (name, rest) = trimmed.split_at(length);
        if name.is_empty() || name.as_bytes()[0].is_ascii_digit() {
            return Err(FormatError::new(text, "it does not start with a metric's name"));
        }
        let (labels, rest) = labels(rest).map_err(|why| FormatError::new(text, why))?;
        if !rest.trim().is_empty() {
            return Err(FormatError::new(text, "something follows the labels"));
        }
        Ok(Selector { name: name.to_owned(), labels })
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        let mut separator = "{";
        for (label, value) in &self.labels {
            write!(f, "{separator}{label}={value:?}")?;
            separator = ",";
        }
        if self.labels.is_empty() { Ok(()) } else { f.write_str("}") }
    }
}

impl Selector {
    /// The series of `name` with this selector's labels.
    ///
    /// # Errors
    /// When a line of that metric does not read.
    pub fn samples(&self, name: &str, text: &str) -> Result<Vec<Sample>, FormatError> {
        let mut found = Vec::new();
        for line in text.lines() {
            let line = line.trim_start();
            let Some(rest) = line.strip_prefix(name) else { continue };
            if !rest.starts_with(['{', ' ', '\t']) {
                continue;
            }
            let (labels, rest) = labels(rest).map_err(|why| FormatError::new(line, why))?;
            if !self.labels.iter().all(|wanted| labels.contains(wanted)) {
                continue;
            }
            // A time and an exemplar may follow.
            let value = rest.split_whitespace().next().and_then(|value| value.parse().ok());
            let value = value.ok_or_else(|| FormatError::new(line, "no number follows"))?;
            found.push(Sample { labels, value });
        }
        Ok(found)
    }

    /// What the text says that the metric is; by its name where the text does not say.
    pub fn kind(&self, text: &str) -> Kind {
        // OpenMetrics declares `x` for the counter `x_total`.
        let family = self.name.strip_suffix("_total").unwrap_or(&self.name);
        let declared = text.lines().find_map(|line| {
            let (name, kind) = line.strip_prefix("# TYPE ")?.trim().split_once([' ', '\t'])?;
            (name == self.name || name == family).then(|| kind.trim())
        });
        match declared {
            Some("counter") => Kind::Counter,
            Some("histogram") => Kind::Histogram,
            Some(_) => Kind::Value,
            None if self.name.ends_with("_total") || self.name.ends_with("_count") => Kind::Counter,
            None => Kind::Value,
        }
    }
}

impl Sample {
    /// The value of a label.
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(label, _)| label == name).map(|(_, value)| value.as_str())
    }
}

fn in_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b':'
}

/// The labels at the start of `text`, if there are any, and what follows them.
fn labels(text: &str) -> Result<(Labels, &str), &'static str> {
    let mut labels = Vec::new();
    let Some(mut rest) = text.trim_start().strip_prefix('{') else { return Ok((labels, text)) };
    loop {
        rest = rest.trim_start();
        if let Some(rest) = rest.strip_prefix('}') {
            return Ok((labels, rest));
        }
        let (name, value) = rest.split_once('=').ok_or("a label has no value")?;
        let name = name.trim();
        if name.is_empty() || !name.bytes().all(in_name) {
            return Err("a label's name is none");
        }
        let quoted = value.trim_start().strip_prefix('"').ok_or("a value is not in quotes")?;
        let (value, after) = unquote(quoted)?;
        if labels.len() == LABELS_MAX {
            return Err("it has too many labels");
        }
        labels.push((name.to_owned(), value));
        rest = after.trim_start();
        rest = match rest.strip_prefix(',') {
            Some(next) => next,
            None if rest.starts_with('}') => rest,
            None => return Err("labels are not separated by a comma"),
        };
    }
}

/// A value up to its closing quote, and what follows that.
fn unquote(text: &str) -> Result<(String, &str), &'static str> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Ok((value, &text[at + 1..])),
            '\\' => match chars.next() {
                Some((_, 'n')) => value.push('\n'),
                Some((_, escaped)) => value.push(escaped),
                None => break,
            },
            plain => value.push(plain),
        }
    }
    Err("a value has no end")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGE: &str = r#"
# HELP rpc_seconds Time of calls.
# TYPE rpc_seconds summary
rpc_seconds{quantile="0.5",service="a \"b\"\\"} 4.7e-05
rpc_seconds{quantile="0.999",service="x",} 0.0012 1395066363000
rpc_seconds_sum 17560473
# TYPE calls counter
calls_total{code="200"} 1027
calls_total{code="400"} 3 # {trace_id="x"} 1
never NaN
"#;

    fn selector(text: &str) -> Selector {
        text.parse().unwrap()
    }

    fn values(text: &str) -> Vec<f64> {
        let selector = selector(text);
        let samples = selector.samples(&selector.name, PAGE).unwrap();
        samples.iter().map(|sample| sample.value).collect()
    }

    #[test]
    fn series_are_picked_by_name_and_labels() {
        assert_eq!(values(r#"rpc_seconds{quantile="0.999"}"#), [0.0012]);
        assert_eq!(values(r#"rpc_seconds{service="a \"b\"\\"}"#), [4.7e-05]);
        assert_eq!(values("rpc_seconds"), [4.7e-05, 0.0012]);
        assert_eq!(values("calls_total"), [1027.0, 3.0]);
        assert!(values("rpc").is_empty() && values("calls_total{code=\"500\"}").is_empty());
        assert!(values("never")[0].is_nan());
    }

    #[test]
    fn kinds_are_declared_or_told_by_the_name() {
        assert_eq!(selector("rpc_seconds").kind(PAGE), Kind::Value);
        assert_eq!(selector("calls_total").kind(PAGE), Kind::Counter);
        assert_eq!(selector("x_count").kind(""), Kind::Counter);
        assert_eq!(selector("x").kind("# TYPE x histogram\n"), Kind::Histogram);
    }

    #[test]
    fn selectors_that_make_no_sense_are_refused() {
        for text in
            ["", "9x", "x{", "x{a}", "x{a=b}", "x{a=\"b\"", "x{a=\"b\"} 1", "x{a=\"b\" c=\"d\"}"]
        {
            assert!(text.parse::<Selector>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_metric_whose_line_is_cut_is_an_error() {
        for cut in ["x{a=\"b", "x{a=\"b\"}", "x abc", "x "] {
            assert!(selector("x").samples("x", cut).is_err(), "{cut}");
        }
    }

    proptest! {
        #[test]
        fn no_page_panics(page in "(x|y|\\{|\\}|\"|=|,|\\\\| |\n|1|# TYPE x |a){0,60}") {
            let selector = selector("x{a=\"1\"}");
            let _ = (selector.samples("x", &page), selector.kind(&page));
        }

        #[test]
        fn what_is_written_reads_the_same(value in "[a-z\"\\\\]{0,10}", number in -1e9..1e9f64) {
            let selector = Selector { name: "x".into(), labels: vec![("a".into(), value)] };
            prop_assert_eq!(&selector.to_string().parse::<Selector>().unwrap(), &selector);
            let samples = selector.samples("x", &format!("{selector} {number}")).unwrap();
            prop_assert_eq!(samples.len(), 1);
            prop_assert_eq!(samples[0].value, number);
        }
    }
}
