//! From pages of metrics to readings: values as they are, counters as rates, histograms as quantiles.

use quell_control::config::{MetricsConfig, Unit};
use quell_control::exposition::{Kind, Selector};
use quell_model::{Absence, Estimate, Nanos, Signal};

use super::{Measures, latency_of, load_of};

/// What rates and quantiles between two pages are taken of.
#[derive(Debug, Default)]
struct Counted {
    at: Nanos,
    requests: Option<f64>,
    buckets: Vec<(f64, f64)>,
}

/// Reads pages one after the other.
#[derive(Debug)]
pub struct Pages {
    percentile: f64,
    before: Option<Counted>,
}

impl Pages {
    /// Nothing is read yet.
    pub fn new(percentile: f64) -> Pages {
        Pages { percentile, before: None }
    }

    /// Latency and load on a page that was served at `now`.
    ///
    /// # Errors
    /// A sentence: the page has no such metric, or not in this form.
    pub fn read(
        &mut self,
        config: &MetricsConfig,
        text: &str,
        now: Nanos,
    ) -> Result<Measures, String> {
        let is_histogram = config.metric.kind(text) == Kind::Histogram;
        let mut seen = Counted { at: now, ..Counted::default() };
        let mut load = Signal::Absent(Absence::NoSource);
        if is_histogram {
            seen.buckets = buckets(&config.metric, text)?;
            seen.requests = seen.buckets.last().map(|&(_, count)| count);
        }
        if let Some(selector) = &config.load {
            let value = sum(selector, text)?;
            match selector.kind(text) {
                Kind::Counter => seen.requests = Some(value),
                Kind::Value | Kind::Histogram => {
                    load = Signal::Measured(load_of(value)?);
                    seen.requests = None;
                }
            }
        }
        let latency = match is_histogram {
            true => self.quantile(&seen, config.unit)?,
            false => Signal::Measured(latency_of(single(&config.metric, text)?, config.unit)?),
        };
        if let Some(rate) = self.rate(&seen) {
            load = Signal::Measured(load_of(rate)?);
        }
        self.before = Some(seen);
        Ok(Measures { latency, load })
    }

    /// Requests a second since the page before, if it counted them.
    fn rate(&self, seen: &Counted) -> Option<f64> {
        let before = self.before.as_ref()?;
        let seconds = seen.at.since(before.at).0 as f64 / 1e9;
        Some(growth(before.requests?, seen.requests?) / seconds.max(1e-9))
    }

    /// The quantile of what was counted since the page before.
    fn quantile(&self, seen: &Counted, unit: Unit) -> Result<Signal<Nanos>, String> {
        let nothing = Signal::Absent(Absence::NotApplicable);
        let Some(before) = &self.before else { return Ok(nothing) };
        if before.buckets.len() != seen.buckets.len() {
            return Ok(nothing);
        }
        let pairs = before.buckets.iter().zip(&seen.buckets);
        let grown: Vec<(f64, f64)> =
            pairs.map(|(&(_, old), &(bound, new))| (bound, growth(old, new))).collect();
        match quantile(&grown, self.percentile / 100.0) {
            None => Ok(nothing),
            Some(value) => {
                Ok(Signal::Estimated { value: latency_of(value, unit)?, how: Estimate::Histogram })
            }
        }
    }
}

/// How much a counter grew; one that is smaller began anew.
fn growth(before: f64, now: f64) -> f64 {
    if now >= before { now - before } else { now }
}

/// The one value that a selector picks.
fn single(selector: &Selector, text: &str) -> Result<f64, String> {
    let samples = selector.samples(&selector.name, text).map_err(|err| err.to_string())?;
    match samples.as_slice() {
        [one] => Ok(one.value),
        [] => Err(format!("the page has no `{selector}`")),
        many => Err(format!("`{selector}` is {} series; name more labels", many.len())),
    }
}

/// The sum of all that a selector picks: requests of every kind together.
fn sum(selector: &Selector, text: &str) -> Result<f64, String> {
    let samples = selector.samples(&selector.name, text).map_err(|err| err.to_string())?;
    if samples.is_empty() {
        return Err(format!("the page has no `{selector}`"));
    }
    Ok(samples.iter().map(|sample| sample.value).sum())
}

/// Upper bounds of the buckets, ascending and the last infinite, with how many requests are up to each.
fn buckets(selector: &Selector, text: &str) -> Result<Vec<(f64, f64)>, String> {
    let name = format!("{}_bucket", selector.name);
    let samples = selector.samples(&name, text).map_err(|err| err.to_string())?;
    let mut buckets: Vec<(f64, f64)> = Vec::new();
    for sample in samples {
        let bound = sample.label("le").and_then(|bound| bound.parse::<f64>().ok());
        let bound = bound.filter(|bound| !bound.is_nan());
        let bound = bound.ok_or_else(|| format!("a bucket of `{selector}` has no bound"))?;
        match buckets.iter_mut().find(|(known, _)| *known == bound) {
            Some((_, count)) => *count += sample.value,
            None => buckets.push((bound, sample.value)),
        }
    }
    buckets.sort_by(|one, other| one.0.total_cmp(&other.0));
    match buckets.last() {
        Some(&(bound, _)) if bound == f64::INFINITY => Ok(buckets),
        _ => Err(format!("the histogram `{selector}` has no bucket for everything (le=\"+Inf\")")),
    }
}

/// The value that a share of the requests does not exceed, linear within its bucket; the highest finite bound
/// where it lies beyond. `None` without requests.
fn quantile(buckets: &[(f64, f64)], share: f64) -> Option<f64> {
    let (_, total) = *buckets.last()?;
    // Also where a bucket holds no number.
    if !(total > 0.0 && total.is_finite()) {
        return None;
    }
    let rank = total * share;
    let at = buckets.iter().position(|&(_, count)| count >= rank)?;
    let (from, below) = match at {
        0 => (0.0, 0.0),
        _ => buckets[at - 1],
    };
    let (to, count) = buckets[at];
    if to.is_infinite() || count <= below {
        return Some(from);
    }
    Some(from + (to - from) * (rank - below) / (count - below))
}

#[cfg(test)]
mod tests {
    use quell_model::RequestsPerSec;

    use super::*;

    fn config(metric: &str, load: Option<&str>) -> MetricsConfig {
        MetricsConfig {
            url: String::new(),
            addr: ([127, 0, 0, 1], 1).into(),
            path: String::new(),
            metric: metric.parse().unwrap(),
            unit: Unit::S,
            load: load.map(|load| load.parse().unwrap()),
        }
    }

    fn seconds(at: u64) -> Nanos {
        Nanos::from_secs(at)
    }

    #[test]
    fn a_value_is_measured_and_a_counter_becomes_a_rate() {
        let config = config("p_seconds{quantile=\"0.999\"}", Some("calls_total"));
        let page = |calls| {
            format!(
                "p_seconds{{quantile=\"0.999\"}} 0.0005\ncalls_total{{c=\"a\"}} {calls}\ncalls_total 5\n"
            )
        };
        let mut pages = Pages::new(99.9);
        let first = pages.read(&config, &page(100), seconds(10)).unwrap();
        assert_eq!(first.latency, Signal::Measured(Nanos::from_micros(500)));
        assert_eq!(first.load, Signal::Absent(Absence::NoSource));
        let second = pages.read(&config, &page(2_100), seconds(12)).unwrap();
        assert_eq!(second.load, Signal::Measured(RequestsPerSec(1_000)));
        // The service started anew.
        let third = pages.read(&config, &page(5), seconds(13)).unwrap();
        assert_eq!(third.load, Signal::Measured(RequestsPerSec(10)));
    }

    #[test]
    fn a_histogram_gives_a_quantile_of_the_last_interval_and_its_load() {
        let config = config("h", None);
        let page = |low: u32, high: u32, all: u32| {
            format!(
                "# TYPE h histogram\nh_bucket{{le=\"0.001\"}} {low}\nh_bucket{{le=\"0.002\"}} {high}\nh_bucket{{le=\"+Inf\"}} {all}\nh_count {all}\n"
            )
        };
        let mut pages = Pages::new(75.0);
        let first = pages.read(&config, &page(1_000, 1_000, 1_000), seconds(1)).unwrap();
        assert_eq!(first.latency, Signal::Absent(Absence::NotApplicable));
        // 50 up to 1 ms and 50 up to 2 ms since: three quarters are within 1.5 ms.
        let second = pages.read(&config, &page(1_050, 1_100, 1_100), seconds(2)).unwrap();
        let value = Nanos::from_micros(1_500);
        assert_eq!(second.latency, Signal::Estimated { value, how: Estimate::Histogram });
        assert_eq!(second.load, Signal::Measured(RequestsPerSec(100)));
        let idle = pages.read(&config, &page(1_050, 1_100, 1_100), seconds(3)).unwrap();
        assert_eq!(idle.latency, Signal::Absent(Absence::NotApplicable));
        assert_eq!(idle.load, Signal::Measured(RequestsPerSec(0)));
        // Beyond the last finite bound no more is known than that bound.
        let beyond = pages.read(&config, &page(1_050, 1_100, 1_200), seconds(4)).unwrap();
        assert_eq!(beyond.latency.value(), Some(Nanos::from_millis(2)));
    }

    #[test]
    fn pages_without_the_metric_or_with_nonsense_are_told() {
        let mut pages = Pages::new(99.9);
        let gauge = config("x_seconds", Some("n"));
        for (page, wanted) in [
            ("n 1\n", "the page has no `x_seconds`"),
            ("x_seconds 1\n", "the page has no `n`"),
            ("n 1\nx_seconds{a=\"1\"} 1\nx_seconds{a=\"2\"} 1\n", "is 2 series; name more labels"),
            ("n 1\nx_seconds NaN\n", "is no latency"),
            ("n 1\nx_seconds -1\n", "is no latency"),
            ("n 1\nx_seconds 1e30\n", "is no latency"),
            ("n +Inf\nx_seconds 1\n", "is no load"),
            ("n 1\n# TYPE x_seconds histogram\n", "no bucket for everything"),
            ("n 1\n# TYPE x_seconds histogram\nx_seconds_bucket 1\n", "has no bound"),
        ] {
            let told = pages.read(&gauge, page, seconds(1)).unwrap_err();
            assert!(told.contains(wanted), "{page}: {told}");
        }
    }

    proptest::proptest! {
        #[test]
        fn quantiles_lie_within_the_bounds(
            counts in proptest::collection::vec(-1.0..1e6f64, 1..6),
            share in 0.01..0.99999f64,
        ) {
            let last = counts.len() - 1;
            let bound = |at| if at == last { f64::INFINITY } else { at as f64 };
            let buckets: Vec<_> = counts.iter().enumerate().map(|(at, n)| (bound(at), *n)).collect();
            if let Some(value) = quantile(&buckets, share) {
                proptest::prop_assert!((0.0..=last as f64).contains(&value), "{value}");
            }
        }
    }
}
