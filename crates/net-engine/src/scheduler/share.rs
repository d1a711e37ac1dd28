//! Latency sockets go first, up to a share.

use crate::ids::Class;

/// Decides which class goes next where both have something to send, by the bytes of the recent past: the latency class,
/// unless it has used its share while the other waited. So bulk transfers are delayed, never starved.
#[derive(Clone, Copy, Debug)]
pub struct LatencyShare {
    /// Of all bytes, in percent.
    percent: u64,
    /// Bytes of each class in the recent past, while both had something to send.
    sent: [u64; 2],
}

/// Bytes of the recent past; beyond that both counts are halved.
const PAST: u64 = 1 << 20;

impl LatencyShare {
    /// The latency class may take `percent` of the bytes, 1 to 99.
    pub fn new(percent: u8) -> LatencyShare {
        LatencyShare { percent: u64::from(percent.clamp(1, 99)), sent: [0; 2] }
    }

    /// Which class goes next; `None` where none has anything to send.
    pub fn next(&self, has_latency: bool, has_throughput: bool) -> Option<Class> {
        let [latency, throughput] = self.sent;
        let is_used = latency * 100 > (latency + throughput) * self.percent;
        match (has_latency, has_throughput) {
            (false, false) => None,
            (true, false) => Some(Class::Latency),
            (true, true) if !is_used || latency < PAST / 16 => Some(Class::Latency),
            (_, true) => Some(Class::Throughput),
        }
    }

    /// A class has sent `bytes` while the other had something to send as well, or not.
    pub fn sent(&mut self, class: Class, bytes: u64, both: bool) {
        if !both {
            // A class that is alone takes nothing from the other.
            return;
        }
        self.sent[class.index()] += bytes;
        if self.sent.iter().sum::<u64>() > PAST {
            self.sent = self.sent.map(|sent| sent / 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of each class when both always have chunks of these sizes.
    fn serve(mut share: LatencyShare, latency: u64, throughput: u64) -> [u64; 2] {
        let mut total = [0; 2];
        for _ in 0..100_000 {
            let class = share.next(true, true).expect("both have something");
            let bytes = if class == Class::Latency { latency } else { throughput };
            share.sent(class, bytes, true);
            total[class.index()] += bytes;
        }
        total
    }

    #[test]
    fn latency_class_that_never_stops_leaves_the_rest() {
        for (latency, throughput) in [(64, 65_536), (4_096, 65_536), (65_536, 65_536)] {
            let [latency, throughput] = serve(LatencyShare::new(80), latency, throughput);
            let part = latency as f64 / (latency + throughput) as f64;
            assert!((0.7..0.9).contains(&part), "{part}");
        }
    }

    #[test]
    fn class_that_is_alone_goes_at_once_and_owes_nothing() {
        let mut share = LatencyShare::new(50);
        for _ in 0..1_000 {
            assert_eq!(share.next(true, false), Some(Class::Latency));
            share.sent(Class::Latency, 65_536, false);
        }
        assert_eq!(share.next(true, true), Some(Class::Latency));
        assert_eq!(share.next(false, true), Some(Class::Throughput));
        assert_eq!(share.next(false, false), None);
    }
}
