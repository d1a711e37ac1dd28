//! Why targets are missed, as far as it is known.

/// A target that is missed, and why.
pub struct Miss {
    /// The figure.
    pub figure: &'static str,
    /// The target.
    pub target: &'static str,
    /// What stands against it.
    pub why: &'static str,
}

const fn miss(figure: &'static str, target: &'static str, why: &'static str) -> Miss {
    Miss { figure, target, why }
}

/// Those known. A test holds the list to what comes out: a target that is missed without a reason fails it, and so does a
/// reason for one that is met.
pub const MISSES: [Miss; 12] = [
    miss(
        "peaks",
        "silo_peak_mrps",
        "by 1 % of the bound. 20 us a request (published) beside a busy sibling (1.5 ×) are 0.73 million a second on 22 \
         threads. The traffic of 22 transactions at once slows them here by 2 %; it would have to be 13 %.",
    ),
    miss(
        "memcached-stream",
        "linux_tail_times",
        "the kernel of the simulator has one queue for all cores and no ticks, balancer or idle states, so that a request never \
         waits behind batch work in a run queue. What is left is what siblings and memory cost.",
    ),
    miss(
        "memcached-stream",
        "shenango_throughput_percent",
        "not known. Here the service takes every core from the batch program once it falls behind, as the published code says, \
         so nothing disturbs it at its peak. It would follow if the published figure meant throughput within a bound on the \
         tail: there is no load at which Shenango's is below 20 us.",
    ),
    miss(
        "memcached-stream",
        "caladan_tail_times",
        "at 80 % of the peak alone: 8.0 us instead of 4.8. All siblings are busy then, with batch work instead of other \
         requests, and memcached has no hyperthread control (published). The published latencies contain a network of some \
         tens of us, against which 3 us do not show.",
    ),
    miss(
        "gc",
        "caladan_tail_us",
        "by being lower. The published figure was measured by a client and contains the network and the NIC. What \
         is to be compared is that collections leave it as it is, which they do.",
    ),
    miss(
        "gc",
        "parties_tail_ms",
        "a collection moves 50 GB/s of 60 in the model, at which memory latency is twice that of an idle memory; memcached, 20 % \
         of whose time waits for memory, becomes 1.2 times as slow, not twice. So the cores that PARTIES* left it are enough and no \
         queue builds up. The direction is there: before 8.5 s, with one physical core, its tail is 52 us in each collection and \
         15 us between them.",
    ),
    miss("gc", "parties_against_caladan_times", "it follows from the two above."),
    miss(
        "colocations",
        "memcached_tail_times",
        "as in memcached-stream: 2 to 4 us more than alone, for busy siblings, where the published figure has a network in it. \
         It is largest beside stream-L2, which hurts a sibling most.",
    ),
    miss(
        "ablation",
        "high_hyperthread_alone_times",
        "1.02 instead of 1.05. At 80 % storage leaves batch work some 2 cores, which do not fill the memory, and storage spends an \
         assumed 10 % of its time on memory. Both controllers are better than each alone, as published, but by little.",
    ),
    miss(
        "ablation",
        "without_hyperthread_batch_percent",
        "batch work beside bandwidth control is bound by the limit, not by cores, so that idling siblings costs it nothing, and \
         requests that end sooner leave it more. Where batch work does not stream it is as published: `never_batch_percent` \
         in [sibling-threshold](#sibling-threshold).",
    ),
    miss(
        "queueing-delay",
        "batch_below_10_us_percent",
        "Quell's first invariant gives a service its guaranteed cores the moment that it wants them; the threshold is for cores \
         beyond the guarantee. The scripts guarantee all 22, so it never matters. With 2 guaranteed it does: next rows.",
    ),
    miss(
        "queueing-delay",
        "burst_tail_below_10_us_percent",
        "where the threshold matters, a lower one halves the tail here. A request waits for it and for no network: the 10 us are \
         most of a tail of 16 us, and a smaller part of what the paper measured.",
    ),
];

/// The reason for a miss.
pub fn why(figure: &str, target: &str) -> Option<&'static str> {
    let mut misses = MISSES.iter();
    misses.find(|miss| miss.figure == figure && miss.target == target).map(|miss| miss.why)
}
