//! Channels that pace themselves on simulated links.

use proptest::prelude::*;
use quell_model::Nanos;
use quell_net_engine::scheduler::{Pacer, PathSample};

/// Time between two looks at the link, and between two samples.
const TICK: Nanos = Nanos::from_micros(100);
const TICKS_PER_SAMPLE: u64 = 10;
/// Bytes that a queue has when it is as long as it gets, as time on the link.
const QUEUE_TIME: f64 = 0.024;

/// A sender on the link.
struct Sender {
    pacer: Option<Pacer>,
    /// Bytes per second that it may send.
    rate: Option<u64>,
    /// Bytes per second that it wants to send, if not all that there is room for.
    wants: Option<f64>,
    delivered: f64,
    /// The same, and never reset.
    acked: f64,
}

impl Sender {
    fn paced() -> Sender {
        Sender { pacer: Some(Pacer::default()), ..Sender::unpaced() }
    }

    fn unpaced() -> Sender {
        Sender { pacer: None, rate: None, wants: None, delivered: 0.0, acked: 0.0 }
    }

    fn wanting(rate: f64) -> Sender {
        Sender { wants: Some(rate), ..Sender::paced() }
    }

    /// Bytes per second that it would send: as TCP, more than the link carries until the queue is full.
    fn offers(&self, capacity: f64) -> f64 {
        let most = self.wants.unwrap_or(capacity * 1.25);
        self.rate.map_or(most, |rate| most.min(rate as f64))
    }
}

/// A link with one queue, in order of arrival.
struct Link {
    capacity: f64,
    base: Nanos,
    queue: f64,
    rtt: f64,
    ticks: u64,
    /// Time that a byte waited in the queue at each tick, in seconds.
    waits: Vec<f64>,
}

impl Link {
    fn new(capacity: f64, base: Nanos) -> Link {
        let rtt = base.0 as f64 / 1e9;
        Link { capacity, base, queue: 0.0, rtt, ticks: 0, waits: Vec::new() }
    }

    fn now(&self) -> Nanos {
        Nanos(self.ticks * TICK.0)
    }

    fn run(&mut self, senders: &mut [Sender], time: Nanos) {
        self.waits.clear();
        senders.iter_mut().for_each(|sender| sender.delivered = 0.0);
        (0..time.0 / TICK.0).for_each(|_| self.tick(senders));
    }

    fn tick(&mut self, senders: &mut [Sender]) {
        self.ticks += 1;
        let tick = TICK.0 as f64 / 1e9;
        let offered: Vec<f64> = senders.iter().map(|it| it.offers(self.capacity) * tick).collect();
        let all: f64 = offered.iter().sum();
        let carried = (self.queue + all).min(self.capacity * tick);
        self.queue = (self.queue + all - carried).min(self.capacity * QUEUE_TIME);
        let wait = self.queue / self.capacity;
        // As TCP sends: segments for a millisecond at a time, or two.
        let burst = (self.capacity / 1e3).clamp(2_896.0, 65_536.0);
        self.waits.push(wait);
        let rtt = self.base.0 as f64 / 1e9 + wait;
        self.rtt += (rtt - self.rtt) / 40.0;
        for (sender, offered) in senders.iter_mut().zip(offered) {
            let own = if all > 0.0 { carried * offered / all } else { 0.0 };
            sender.delivered += own;
            sender.acked += own;
            let Some(pacer) = &mut sender.pacer else { continue };
            if self.ticks.is_multiple_of(TICKS_PER_SAMPLE) {
                let sample = PathSample {
                    rtt: Nanos((self.rtt * 1e9) as u64),
                    min_rtt: self.base,
                    delivered_bytes: ((sender.acked / burst).floor() * burst) as u64,
                    is_backlogged: sender.wants.is_none_or(|wants| wants > offered / tick),
                };
                sender.rate = pacer.sample(self.now(), &sample);
            }
        }
    }

    /// The share of the link that was used in the last run.
    fn used(&self, senders: &[Sender]) -> f64 {
        let time = self.waits.len() as f64 * TICK.0 as f64 / 1e9;
        senders.iter().map(|it| it.delivered).sum::<f64>() / time / self.capacity
    }

    /// The wait that so many of all bytes did not exceed, in seconds.
    fn wait(&self, quantile: f64) -> f64 {
        let mut waits = self.waits.clone();
        waits.sort_by(f64::total_cmp);
        waits[((waits.len() - 1) as f64 * quantile) as usize]
    }
}

/// Links of 10 Mbit/s to 10 Gbit/s, in bytes per second, with round trips of 50 us to 10 ms.
fn links() -> impl Strategy<Value = (f64, Nanos)> {
    let capacity = (0.0..3.0f64).prop_map(|power| 1.25e6 * 10f64.powf(power));
    let base = (0.0..2.3f64).prop_map(|power| Nanos((5e4 * 10f64.powf(power)) as u64));
    (capacity, base)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn alone_it_fills_the_link_and_not_its_queue((capacity, base) in links()) {
        let (mut link, mut senders) = (Link::new(capacity, base), [Sender::paced()]);
        link.run(&mut senders, Nanos::from_secs(1));
        link.run(&mut senders, Nanos::from_secs(4));
        let (used, wait) = (link.used(&senders), link.wait(0.99));
        prop_assert!(used >= 0.85, "{used} of the link");
        // A fifth of what TCP's queue is, and some segments.
        let most = QUEUE_TIME / 5.0 + base.0 as f64 / 1e9 / 2.0 + 12e3 / capacity;
        prop_assert!(wait <= most, "a wait of {wait} s");
    }

    #[test]
    fn it_follows_a_link_that_changes(
        (capacity, base) in links(),
        power in -2.0..2.0f64,
    ) {
        let (mut link, mut senders) = (Link::new(capacity, base), [Sender::paced()]);
        link.run(&mut senders, Nanos::from_secs(2));
        link.capacity *= 2f64.powf(power);
        link.queue = link.queue.min(link.capacity * QUEUE_TIME);
        link.run(&mut senders, Nanos::from_secs(2));
        link.run(&mut senders, Nanos::from_secs(2));
        let used = link.used(&senders);
        prop_assert!(used >= 0.8, "{used} of the link");
    }

    #[test]
    fn those_that_share_a_link_get_parts_of_one_order((capacity, base) in links()) {
        let (mut link, mut senders) = (Link::new(capacity, base), [Sender::paced(), Sender::paced()]);
        link.run(&mut senders[..1], Nanos::from_secs(2));
        link.run(&mut senders, Nanos::from_secs(20));
        link.run(&mut senders, Nanos::from_secs(5));
        let parts = senders.each_ref().map(|it| it.delivered);
        let least = parts[0].min(parts[1]) / (parts[0] + parts[1]);
        prop_assert!(least >= 0.2, "{parts:?}");
        prop_assert!(link.used(&senders) >= 0.8);
    }

    #[test]
    fn it_is_as_before_after_a_pause((capacity, base) in links()) {
        let (mut link, mut senders) = (Link::new(capacity, base), [Sender::paced()]);
        link.run(&mut senders, Nanos::from_secs(2));
        // Nothing is sent, and so no sample taken.
        let pacer = senders[0].pacer.take();
        senders[0].wants = Some(0.0);
        link.run(&mut senders, Nanos::from_secs(5));
        (senders[0].pacer, senders[0].wants) = (pacer, None);
        link.run(&mut senders, Nanos::from_millis(200));
        link.run(&mut senders, Nanos::from_secs(1));
        let used = link.used(&senders);
        prop_assert!(used >= 0.8, "{used} of the link");
    }

    #[test]
    fn sender_that_wants_less_than_the_link_has_is_left_alone(
        (capacity, base) in links(),
        part in 0.05..0.9f64,
    ) {
        let wanted = capacity * part;
        let (mut link, mut senders) = (Link::new(capacity, base), [Sender::wanting(wanted)]);
        link.run(&mut senders, Nanos::from_secs(2));
        prop_assert_eq!(senders[0].rate, None);
        prop_assert!(link.used(&senders) >= 0.99 * part);
    }
}

#[test]
fn sender_that_met_a_queue_of_others_has_what_it_wants_once_that_is_gone() {
    let mut link = Link::new(125e6, Nanos::from_micros(200));
    let mut senders = [Sender::wanting(1e6), Sender::unpaced()];
    link.run(&mut senders, Nanos::from_secs(5));
    link.run(&mut senders[..1], Nanos::from_secs(1));
    link.run(&mut senders[..1], Nanos::from_secs(1));
    assert!(senders[0].delivered >= 0.98e6, "{} bytes in a second", senders[0].delivered);
}

#[test]
fn link_over_which_nothing_comes_teaches_nothing() {
    let mut pacer = Pacer::default();
    let rtt = Nanos::from_millis(15);
    let mut sample = PathSample {
        rtt,
        min_rtt: Nanos::from_millis(10),
        delivered_bytes: 0,
        is_backlogged: true,
    };
    for millis in 1..100 {
        assert_eq!(pacer.sample(Nanos::from_millis(millis), &sample), None);
    }
    for millis in 100..400 {
        sample.delivered_bytes += 100_000;
        pacer.sample(Nanos::from_millis(millis), &sample);
    }
    assert!(pacer.rate().is_none_or(|rate| rate > 10_000_000), "{pacer:?}");
}

#[test]
fn queue_of_others_is_not_yielded_to_for_long() {
    let mut link = Link::new(125e6, Nanos::from_micros(200));
    let mut senders = [Sender::paced(), Sender::unpaced()];
    link.run(&mut senders, Nanos::from_secs(1));
    link.run(&mut senders, Nanos::from_secs(10));
    let part = senders[0].delivered / (senders[0].delivered + senders[1].delivered);
    // Half would be its own without pacing.
    assert!(part >= 0.25, "{part} of what is carried");
}
