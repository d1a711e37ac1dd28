//! What Caladan's authors published, and what of it counts as met here.
//!
//! The list, its bounds and its marks were written down and committed before any figure was run, but for those
//! marked [`Use::Added`]. A bound is as wide as what is
//! known of the experiment allows: published numbers within a stated factor, published words as an inequality. A target marked
//! [`Use::HeldOut`] is never used to choose a parameter.

/// One statement about a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Target {
    /// The figure.
    pub figure: &'static str,
    /// Unique among all targets; the metric's unit at its end.
    pub name: &'static str,
    /// What is compared.
    pub what: &'static str,
    /// What the paper or its authors' scripts say.
    pub paper: &'static str,
    /// The published number, for plots, where there is one.
    pub published: Option<f64>,
    /// The least and the greatest value that counts as met.
    pub within: (f64, f64),
    /// Whether parameters may be fitted to it.
    pub mark: Use,
}

/// What a target may be used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// A parameter was derived from it, or may be fitted to it.
    Fitted,
    /// For judging alone.
    HeldOut,
    /// Written down after the first run, where that showed that a published statement needs another experiment. Never
    /// used to choose a parameter either.
    Added,
}

use Use::{Added, Fitted, HeldOut};

const ANY: f64 = f64::INFINITY;

const fn says(
    figure: &'static str,
    name: &'static str,
    what: &'static str,
    paper: &'static str,
    within: (f64, f64),
    mark: Use,
) -> Target {
    Target { figure, name, what, paper, published: None, within, mark }
}

const fn gives(
    figure: &'static str,
    name: &'static str,
    what: &'static str,
    (paper, published): (&'static str, f64),
    within: (f64, f64),
    mark: Use,
) -> Target {
    Target { figure, name, what, paper, published: Some(published), within, mark }
}

/// Every target, by figure.
pub const TARGETS: [Target; 59] = [
    // Throughput of each service alone on 22 threads: what its service time was derived from, but for silo's.
    gives(
        "peaks",
        "memcached_peak_mrps",
        "what memcached alone serves, million requests a second",
        ("12", 12.0),
        (10.8, 13.2),
        Fitted,
    ),
    gives(
        "peaks",
        "storage_peak_mrps",
        "what storage alone serves",
        ("0.52", 0.52),
        (0.468, 0.572),
        Fitted,
    ),
    gives(
        "peaks",
        "silo_peak_mrps",
        "what silo alone serves",
        ("0.65", 0.65),
        (0.585, 0.715),
        HeldOut,
    ),
    // memcached beside stream-DRAM. A tail is the 99.9th percentile; "alone" is the same system and load without batch work.
    gives(
        "memcached-stream",
        "linux_tail_times",
        "Linux (SCHED_IDLE, programs in sessions of their own): largest tail against alone, over loads up to 80 % of its own peak",
        ("235 ×", 235.0),
        (23.5, 2350.0),
        Fitted,
    ),
    gives(
        "memcached-stream",
        "linux_one_session_tail_times",
        "Linux (SCHED_IDLE) without autogroup, so that batch work is below memcached: the same",
        ("235 ×", 235.0),
        (23.5, 2350.0),
        Added,
    ),
    gives(
        "memcached-stream",
        "linux_slices_tail_times",
        "Linux without SCHED_IDLE, where requests wait behind slices of batch work: the same",
        ("235 ×", 235.0),
        (23.5, 2350.0),
        Added,
    ),
    gives(
        "memcached-stream",
        "shenango_tail_times",
        "Shenango: tail against alone at 1 million requests a second",
        ("6 ×", 6.0),
        (3.0, 12.0),
        HeldOut,
    ),
    gives(
        "memcached-stream",
        "shenango_throughput_percent",
        "Shenango: throughput against alone",
        ("-75 %", -75.0),
        (-90.0, -60.0),
        HeldOut,
    ),
    says(
        "memcached-stream",
        "caladan_tail_times",
        "Caladan: largest tail against alone, over loads up to 80 % of the peak",
        "about as alone",
        (0.0, 1.5),
        Fitted,
    ),
    says(
        "memcached-stream",
        "caladan_client_tail_times",
        "the same as a client sees it, through a network",
        "about as alone",
        (0.0, 1.5),
        Added,
    ),
    says(
        "memcached-stream",
        "shenango_client_tail_times",
        "Shenango: largest tail against alone over loads up to 80 % of the peak, as a client sees it",
        "6 ×",
        (3.0, 12.0),
        Added,
    ),
    says(
        "memcached-stream",
        "caladan_throughput_percent",
        "Caladan: throughput against alone",
        "about as alone",
        (-5.0, 5.0),
        HeldOut,
    ),
    says(
        "memcached-stream",
        "parties_tail_times",
        "PARTIES*, converged: tail against Caladan's at 1 million requests a second",
        "about as Caladan",
        (0.5, 2.0),
        HeldOut,
    ),
    says(
        "memcached-stream",
        "parties_largest_tail_times",
        "PARTIES*, converged: the largest of these ratios, over loads up to 80 % of the peak",
        "about as Caladan",
        (0.5, 2.0),
        Added,
    ),
    // memcached at 0.8 million a second beside swaptions on a collected heap.
    gives("gc", "pause_ms", "longest collection", ("100 to 200 ms", 150.0), (100.0, 200.0), Fitted),
    gives(
        "gc",
        "caladan_tail_us",
        "Caladan: 99.9th percentile in the worst window of 20 ms",
        ("52 us", 52.0),
        (17.0, 156.0),
        HeldOut,
    ),
    gives(
        "gc",
        "caladan_client_tail_us",
        "the same as a client sees it, at most",
        ("52 us", 52.0),
        (17.0, 156.0),
        Added,
    ),
    gives(
        "gc",
        "parties_tail_ms",
        "PARTIES*: 99.9th percentile in the worst window of 20 ms, once converged",
        ("580 ms", 580.0),
        (193.0, 1740.0),
        HeldOut,
    ),
    gives(
        "gc",
        "parties_against_caladan_times",
        "the one against the other",
        ("11,000 ×", 11_000.0),
        (1_100.0, 110_000.0),
        HeldOut,
    ),
    gives(
        "gc",
        "parties_cores_tail_ms",
        "PARTIES* without cache ways to deal out: the same tail",
        ("580 ms", 580.0),
        (193.0, 1740.0),
        Added,
    ),
    gives(
        "gc",
        "parties_cores_against_caladan_times",
        "and against Caladan's",
        ("11,000 ×", 11_000.0),
        (1_100.0, 110_000.0),
        Added,
    ),
    gives(
        "gc",
        "parties_batch_percent",
        "PARTIES*: batch work against Caladan's",
        ("-5 %", -5.0),
        (-20.0, 0.0),
        HeldOut,
    ),
    // A service at its capacity, half of which goes.
    gives(
        "halved-capacity",
        "growth_us_in_10_us",
        "how fast queueing delay grows, us in each 10 us",
        ("5 us", 5.0),
        (4.5, 5.5),
        HeldOut,
    ),
    // Three services beside five kinds of batch work. Loads are shares of what the service alone serves.
    says(
        "colocations",
        "memcached_tail_times",
        "memcached: largest tail against alone, beside any batch work, at loads up to 80 %",
        "about as alone",
        (0.0, 1.5),
        HeldOut,
    ),
    says(
        "colocations",
        "memcached_client_tail_times",
        "the same as a client sees it, through a network",
        "about as alone",
        (0.0, 1.5),
        Added,
    ),
    says(
        "colocations",
        "storage_tail_times",
        "storage: the same",
        "about as alone",
        (0.0, 1.5),
        HeldOut,
    ),
    says(
        "colocations",
        "silo_low_tail_times",
        "silo at 20 %: largest tail against alone",
        "slightly up at low load",
        (1.02, 2.0),
        HeldOut,
    ),
    says(
        "colocations",
        "silo_tail_times",
        "silo: largest tail against alone at 50 % and 80 %",
        "about as alone",
        (0.0, 1.5),
        HeldOut,
    ),
    says(
        "colocations",
        "throughput_percent",
        "any service: least throughput against alone at a load of 80 %",
        "about as alone",
        (-2.0, 2.0),
        HeldOut,
    ),
    says(
        "colocations",
        "batch_least_percent",
        "batch work beside a service at 20 %, of what it does alone: the least of the compute-bound kinds",
        "batch work uses what is left",
        (50.0, 100.0),
        HeldOut,
    ),
    // memcached, silo and storage with six guaranteed cores each, swaptions-GC and streamcluster; loads step.
    says(
        "five-tasks",
        "memcached_tail_times",
        "memcached: 99.9th percentile over the run against the three services without batch work",
        "tails stay low through every step",
        (0.0, 2.0),
        HeldOut,
    ),
    says("five-tasks", "silo_tail_times", "silo: the same", "the same", (0.0, 2.0), HeldOut),
    says("five-tasks", "storage_tail_times", "storage: the same", "the same", (0.0, 2.0), HeldOut),
    says(
        "five-tasks",
        "worst_step_tail_times",
        "the worst of all services and load steps: the median of the tails of its windows of 20 ms against the same without batch work",
        "tails stay low through every step",
        (0.0, 2.0),
        Added,
    ),
    says(
        "five-tasks",
        "burst_cores",
        "most cores that a service with 6 guaranteed has in a step",
        "services burst beyond their guarantee",
        (6.5, 22.0),
        HeldOut,
    ),
    says(
        "five-tasks",
        "batch_gives_way_percent",
        "batch work during the highest load against the lowest",
        "batch work fills what services leave",
        (-100.0, -10.0),
        HeldOut,
    ),
    // Eleven services of two guaranteed cores and two batch programs.
    says(
        "many-services",
        "tail_extra_us",
        "99.9th percentile of the worst of 11 services, above the same with cores of their own",
        "about as with cores of their own",
        (-5.0, 20.0),
        HeldOut,
    ),
    says(
        "many-services",
        "batch_cores",
        "batch work at half load, cores; none if services keep their cores",
        "batch work uses what is left",
        (4.0, 22.0),
        HeldOut,
    ),
    // One thread that alone exceeds the limit.
    says(
        "single-hog",
        "mean_cores",
        "cores of a single-threaded hog on average",
        "alternates between 0 and 1",
        (0.05, 0.95),
        HeldOut,
    ),
    says(
        "single-hog",
        "changes_per_s",
        "times a second that it gets or loses its core",
        "alternates between 0 and 1",
        (1_000.0, 100_000.0),
        HeldOut,
    ),
    says(
        "single-hog",
        "traffic_percent_of_limit",
        "memory traffic of the host against the limit",
        "held to the limit",
        (70.0, 110.0),
        HeldOut,
    ),
    // storage beside stream-DRAM with none, one, both of the controllers.
    says(
        "ablation",
        "low_bandwidth_alone_times",
        "at 20 %: tail with bandwidth control alone against alone on the host",
        "bandwidth control alone suffices",
        (0.0, 1.25),
        HeldOut,
    ),
    says(
        "ablation",
        "high_bandwidth_alone_times",
        "at 80 %: tail with bandwidth control alone against both controllers",
        "both are needed: above 1",
        (1.05, ANY),
        HeldOut,
    ),
    says(
        "ablation",
        "high_hyperthread_alone_times",
        "at 80 %: tail with hyperthread control alone against both controllers",
        "both are needed: above 1",
        (1.05, ANY),
        HeldOut,
    ),
    says(
        "ablation",
        "without_hyperthread_batch_percent",
        "at 50 %: batch work without hyperthread control against both controllers",
        "more batch work",
        (0.5, ANY),
        HeldOut,
    ),
    says(
        "ablation",
        "without_hyperthread_tail_percent",
        "at 50 %: tail without hyperthread control against both controllers",
        "a worse tail",
        (1.0, ANY),
        HeldOut,
    ),
    // memcached beside x264.
    says(
        "elfen",
        "throughput_times",
        "Caladan: what memcached serves at most, against Elfen",
        "above 1",
        (1.05, ANY),
        HeldOut,
    ),
    says(
        "elfen",
        "low_batch_times",
        "Caladan: batch work at 1 million requests a second, against Elfen",
        "above 1",
        (1.05, ANY),
        HeldOut,
    ),
    // Sensitivity.
    says(
        "queueing-delay",
        "batch_below_10_us_percent",
        "batch work with a target of 2 us against 10 us",
        "below 10 us costs batch work",
        (-100.0, -0.5),
        HeldOut,
    ),
    says(
        "queueing-delay",
        "tail_below_10_us_percent",
        "tail with a target of 2 us against 10 us",
        "and gains nothing",
        (-10.0, 10.0),
        HeldOut,
    ),
    says(
        "queueing-delay",
        "burst_batch_below_10_us_percent",
        "the same where only 2 cores are guaranteed: batch work",
        "below 10 us costs batch work",
        (-100.0, -0.5),
        Added,
    ),
    says(
        "queueing-delay",
        "burst_tail_below_10_us_percent",
        "the same where only 2 cores are guaranteed: tail",
        "and gains nothing",
        (-10.0, 10.0),
        Added,
    ),
    says(
        "queueing-delay",
        "burst_client_tail_below_10_us_percent",
        "the same where only 2 cores are guaranteed: tail as a client sees it, through a network",
        "and gains nothing",
        (-10.0, 10.0),
        Added,
    ),
    says(
        "sibling-threshold",
        "batch_below_median_percent",
        "batch work with a threshold of half the median service time against 1.5 times it",
        "below the median costs batch work",
        (-100.0, -1.0),
        HeldOut,
    ),
    says(
        "sibling-threshold",
        "never_batch_percent",
        "batch work without hyperthread control against a threshold of 1.5 times the median",
        "without it more batch work",
        (0.5, ANY),
        Added,
    ),
    says(
        "sibling-threshold",
        "never_tail_percent",
        "tail without hyperthread control against a threshold of 1.5 times the median",
        "without it a worse tail",
        (1.0, ANY),
        Added,
    ),
    says(
        "bandwidth-limit",
        "tail_at_limit_times",
        "tail with the published limit of 25 GB/s against alone",
        "25 GB/s is safe for any access pattern",
        (0.0, 1.25),
        Fitted,
    ),
    says(
        "bandwidth-limit",
        "tail_without_limit_times",
        "tail without a limit against the one with 25 GB/s",
        "the limit is needed: above 1",
        (1.25, ANY),
        HeldOut,
    ),
    says(
        "interval",
        "tail_at_1_ms_times",
        "tail beside a program that fills the memory 50 times a second, decided each 1 ms against each 10 us",
        "reacting within 2 X bounds the delay that is added to X",
        (1.5, ANY),
        HeldOut,
    ),
];
