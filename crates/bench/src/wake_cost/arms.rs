//! What is measured, each thing with one more than the one before, and what the differences are: pure.

use std::collections::BTreeMap;

use super::account::Seen;
use super::hog::Space;

/// One way to take time from the hog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arm {
    /// Nobody is woken; a timer interrupts the core.
    Timer,
    /// The core is interrupted from another one, and the hog goes on.
    Interrupt,
    /// A thread of the hog's process is woken by an eventfd.
    Wake,
    /// The same, and the hog is another process.
    Process,
    /// It is woken by a request over loopback TCP and answers.
    Packet,
    /// It reads cache lines for the answer as well.
    Work,
    /// The BPF observer watches it as well.
    Observed,
    /// The timer interrupts the core as well.
    Timed,
    /// memcached at half of its peak, watched and timed as well.
    Memcached,
}

/// The hog alone is measured in both of its address spaces: what it does in another one is no loss.
pub const SPACES: [Space; 2] = [Space::Shared, Space::Own];

impl Arm {
    /// All of them.
    pub const ALL: [Arm; 9] = [
        Arm::Timer,
        Arm::Interrupt,
        Arm::Wake,
        Arm::Process,
        Arm::Packet,
        Arm::Work,
        Arm::Observed,
        Arm::Timed,
        Arm::Memcached,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Arm::Timer => "timer",
            Arm::Interrupt => "interrupt",
            Arm::Wake => "wake",
            Arm::Process => "wake+process",
            Arm::Packet => "packet",
            Arm::Work => "packet+cache",
            Arm::Observed => "packet+cache+bpf",
            Arm::Timed => "packet+cache+bpf+timer",
            Arm::Memcached => "memcached",
        }
    }

    /// Where the hog runs. An interrupt of the kind that is used comes only to threads of the process that asks.
    pub fn space(self) -> Space {
        match self {
            Arm::Timer | Arm::Interrupt | Arm::Wake => Space::Shared,
            _ => Space::Own,
        }
    }

    /// Whether a timer interrupts the core each millisecond.
    pub fn has_timer(self) -> bool {
        matches!(self, Arm::Timer | Arm::Timed | Arm::Memcached)
    }

    /// Whether the BPF observer watches.
    pub fn has_observer(self) -> bool {
        matches!(self, Arm::Observed | Arm::Timed | Arm::Memcached)
    }
}

/// What each arm adds to the one before it; the first adds to nothing.
const PARTS: [(&str, Arm, Option<Arm>); 7] = [
    ("interrupt", Arm::Interrupt, None),
    ("two switches and a system call", Arm::Wake, Some(Arm::Interrupt)),
    ("other address space", Arm::Process, Some(Arm::Wake)),
    ("packet", Arm::Packet, Some(Arm::Process)),
    ("cache and work", Arm::Work, Some(Arm::Packet)),
    ("BPF observer", Arm::Observed, Some(Arm::Work)),
    ("timer 1 kHz", Arm::Timed, Some(Arm::Observed)),
];

/// What all arms showed in one round.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Round {
    /// The hog alone, in each of [`SPACES`].
    pub alone: [Seen; 2],
    /// Each arm that was measured.
    pub arms: BTreeMap<Arm, Seen>,
}

/// What of the hog's core is lost with each event, in microseconds, where the hog gets this share of what it gets alone.
pub fn loss_us(share: f64, events_per_s: f64) -> f64 {
    (1.0 - share) / events_per_s * 1e6
}

impl Round {
    fn alone(&self, arm: Arm) -> &Seen {
        match arm.space() {
            Space::Shared => &self.alone[0],
            Space::Own => &self.alone[1],
        }
    }

    /// What the hog did, as a share of what it does alone.
    pub fn share(&self, arm: Arm) -> Option<f64> {
        Some(self.arms.get(&arm)?.ops / self.alone(arm).ops)
    }

    /// What it did in a second of its own CPU time, as a share of the same alone: less where its caches are emptied, and
    /// where interrupts come that the kernel counts as its time.
    pub fn speed(&self, arm: Arm) -> Option<f64> {
        let (seen, alone) = (self.arms.get(&arm)?, self.alone(arm));
        Some(seen.ops / seen.hog_cpu / (alone.ops / alone.hog_cpu))
    }

    /// Microseconds of the hog that each event takes.
    pub fn loss(&self, arm: Arm) -> Option<f64> {
        Some(loss_us(self.share(arm)?, self.arms.get(&arm)?.events))
    }

    /// CPU time of the woken threads for each event, in microseconds.
    pub fn woken_cpu(&self, arm: Arm) -> Option<f64> {
        let seen = self.arms.get(&arm)?;
        Some(seen.woken_cpu / seen.events * 1e6)
    }

    /// What is lost beyond the CPU time of the woken threads.
    pub fn overhead(&self, arm: Arm) -> Option<f64> {
        Some(self.loss(arm)? - self.woken_cpu(arm)?)
    }

    /// The price of each part in microseconds for each wake-up: how much more is lost than without it.
    pub fn parts(&self) -> Vec<(&'static str, f64)> {
        let price = |&(name, with, without): &(&'static str, Arm, Option<Arm>)| {
            let before = without.map_or(Some(0.0), |arm| self.loss(arm))?;
            Some((name, self.loss(with)? - before))
        };
        PARTS.iter().filter_map(price).collect()
    }

    /// The sum of all parts.
    pub fn explained(&self) -> f64 {
        self.parts().iter().map(|(_, price)| price).sum()
    }

    /// How memcached differs from that sum: by more or less work of its own, and by what no arm has.
    pub fn rest(&self) -> Option<[(&'static str, f64); 2]> {
        let work = self.woken_cpu(Arm::Memcached)? - self.woken_cpu(Arm::Timed)?;
        let unexplained = self.loss(Arm::Memcached)? - self.explained() - work;
        Some([
            ("memcached: own CPU time beyond that", work),
            ("memcached: not explained", unexplained),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(ops: f64, events: f64, woken_cpu: f64) -> Seen {
        Seen { ops, events, woken_cpu, hog_cpu: 0.5, ..Seen::default() }
    }

    /// Alone 1,000; with 10,000 events a second each percent is a microsecond.
    fn round() -> Round {
        let alone = |ops| Seen { hog_cpu: 1.0, ..seen(ops, 0.0, 0.0) };
        let arms = [
            (Arm::Timer, seen(990.0, 1_000.0, 0.0)),
            (Arm::Interrupt, seen(980.0, 10_000.0, 0.0)),
            (Arm::Wake, seen(950.0, 10_000.0, 0.02)),
            // The hog is twice as fast alone in its own process.
            (Arm::Process, seen(1_880.0, 10_000.0, 0.02)),
            (Arm::Packet, seen(1_600.0, 10_000.0, 0.1)),
            (Arm::Work, seen(1_400.0, 10_000.0, 0.2)),
            (Arm::Observed, seen(1_380.0, 10_000.0, 0.21)),
            (Arm::Timed, seen(1_360.0, 10_000.0, 0.21)),
            (Arm::Memcached, seen(600.0, 20_000.0, 0.5)),
        ];
        Round { alone: [alone(1_000.0), alone(2_000.0)], arms: arms.into() }
    }

    fn about(value: f64, wanted: f64) {
        assert!((value - wanted).abs() < 1e-9, "{value}, not {wanted}");
    }

    #[test]
    fn a_loss_is_what_is_missing_for_each_event() {
        about(loss_us(0.75, 10_000.0), 25.0);
        about(loss_us(1.0, 5.0), 0.0);
        about(round().loss(Arm::Timer).unwrap(), 10.0);
        about(round().loss(Arm::Process).unwrap(), 6.0);
    }

    #[test]
    fn a_part_is_the_difference_of_neighbours_and_the_parts_sum_up_to_the_last_arm() {
        let round = round();
        let parts = round.parts();
        let prices = [2.0, 3.0, 1.0, 14.0, 10.0, 1.0, 1.0];
        assert_eq!(parts.len(), prices.len());
        parts.iter().zip(prices).for_each(|((_, price), wanted)| about(*price, wanted));
        about(round.explained(), round.loss(Arm::Timed).unwrap());
        about(round.explained(), 32.0);
    }

    #[test]
    fn the_rest_of_memcached_is_its_own_work_and_what_no_arm_has() {
        let round = round();
        about(round.loss(Arm::Memcached).unwrap(), 35.0);
        about(round.overhead(Arm::Memcached).unwrap(), 10.0);
        let [(_, work), (_, unexplained)] = round.rest().unwrap();
        about(work, 4.0);
        about(unexplained, -1.0);
        let mut without = round;
        without.arms.remove(&Arm::Memcached);
        assert_eq!(without.rest(), None);
    }

    #[test]
    fn speed_is_work_for_its_own_time() {
        about(round().speed(Arm::Wake).unwrap(), 1.9);
        assert_eq!(Round::default().speed(Arm::Wake), None);
    }
}
