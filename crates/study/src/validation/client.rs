//! What a client sees of a tail: published latencies were measured by one, across a network, and the model has neither.
//!
//! Both are taken for independent of the service, and their time for lognormal. Its two parameters are fitted to two figures
//! that others measured of the same stack: Shenango's memcached at 0.5 million requests a second, a load at which the service
//! itself hardly waits (Skyloft, SOSP'24, its published results: 15.2 us at the median, 37.3 us at 99.9 %). The third that they give, 31.4 us
//! at 99 %, is not used: with these parameters it would be 30.

use quell_sim::Latencies;

/// The median time of network and client, microseconds: 15.2 less the model's 1.3.
pub(super) const MEDIAN_US: f64 = 13.9;
/// The deviation of its logarithm: 36 us at 99.9 %, 37.3 less the model's median.
pub(super) const SIGMA: f64 = 0.31;

/// Shares of requests between which the service's latency counts as one; finer where the tail is.
fn shares() -> impl Iterator<Item = (f64, f64)> {
    let cells = |from: f64, to: f64, count: u32| {
        let width = (to - from) / f64::from(count);
        (0..count).map(move |at| (from + width * (f64::from(at) + 0.5), width))
    };
    cells(0.0, 0.99, 400).chain(cells(0.99, 0.9999, 400)).chain(cells(0.9999, 1.0, 20))
}

/// The 99.9th percentile that a client sees of a service with these latencies, microseconds.
pub(super) fn tail_us(service: &Latencies) -> f64 {
    let cells: Vec<(f64, f64)> =
        shares().map(|(share, width)| (service.quantile(share).0 as f64 / 1e3, width)).collect();
    let within = |most: f64| -> f64 {
        cells.iter().map(|(latency, width)| width * network(most - latency)).sum()
    };
    let (mut low, mut high) = (0.0, 1e3 + 2.0 * service.max().0 as f64 / 1e3);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if within(middle) < 0.999 { low = middle } else { high = middle }
    }
    high
}

/// The 99.9th percentile of network and client alone, microseconds.
pub(super) fn alone_us() -> f64 {
    // 3.0902: the normal distribution's.
    MEDIAN_US * libm::exp(SIGMA * 3.0902)
}

/// The share of requests for which network and client take at most so many microseconds.
fn network(us: f64) -> f64 {
    if us <= 0.0 {
        return 0.0;
    }
    0.5 * libm::erfc(-libm::log(us / MEDIAN_US) / (SIGMA * std::f64::consts::SQRT_2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_and_client_have_the_percentiles_they_came_from() {
        assert!((network(MEDIAN_US) - 0.5).abs() < 1e-9);
        assert!((network(alone_us()) - 0.999).abs() < 1e-4);
        assert!((alone_us() - 36.0).abs() < 0.5, "{}", alone_us());
        // The one that they were not made from: 31.4 measured, of which 1.5 are the service's.
        assert!((network(29.9) - 0.99).abs() < 0.005, "{}", network(29.9));
    }

    #[test]
    fn shares_are_all_requests() {
        let sum: f64 = shares().map(|(_, width)| width).sum();
        assert!((sum - 1.0).abs() < 1e-9, "{sum}");
        let mut last = 0.0;
        assert!(shares().all(|(share, _)| std::mem::replace(&mut last, share) < share));
    }
}
