//! The figures, one file each.

mod ablation;
mod colocations;
mod elfen;
mod five_tasks;
mod gc;
mod halved_capacity;
mod many_services;
mod memcached_stream;
mod peaks;
mod sensitivity;
mod single_hog;

use super::Figure;

/// Every figure, in the order of the page.
pub const FIGURES: [Figure; 14] = [
    peaks::FIGURE,
    memcached_stream::FIGURE,
    gc::FIGURE,
    halved_capacity::FIGURE,
    colocations::FIGURE,
    five_tasks::FIGURE,
    many_services::FIGURE,
    single_hog::FIGURE,
    ablation::FIGURE,
    elfen::FIGURE,
    sensitivity::QUEUEING_DELAY,
    sensitivity::SIBLING_THRESHOLD,
    sensitivity::BANDWIDTH_LIMIT,
    sensitivity::INTERVAL,
];

/// The change from one value to another, in percent.
fn percent(to: f64, from: f64) -> f64 {
    100.0 * (to / from - 1.0)
}

/// The largest of some values; none are 0.
fn largest(values: impl IntoIterator<Item = f64>) -> f64 {
    values.into_iter().fold(0.0, f64::max)
}
