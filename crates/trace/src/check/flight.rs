//! The flight recorder: the last seconds of a stream.

use std::collections::VecDeque;

use quell_model::{
    CoreDomains, CoreState, Domain, DomainGroup, DomainTrees, Event, Nanos, PassGroup, ThreadState,
    What,
};

/// Keeps the end of a stream, from a keyframe on, in bounded memory.
#[derive(Clone, Debug)]
pub struct Flight {
    length: Nanos,
    bytes_max: usize,
    /// Each begins with a keyframe, but for what came before the first one.
    segments: VecDeque<Segment>,
    bytes: usize,
    is_cut: bool,
}

#[derive(Clone, Debug, Default)]
struct Segment {
    events: Vec<Event>,
    bytes: usize,
}

impl Flight {
    /// What a recorder has that is not told otherwise: some 1.5 million events.
    pub const BYTES: usize = 256 << 20;

    /// Keeps at least this much time, if a keyframe is that old and its events need no more than so many bytes. The
    /// vector that grows may have reserved as much again as its segment has.
    pub fn new(length: Nanos, bytes_max: usize) -> Flight {
        Flight { length, bytes_max, segments: VecDeque::new(), bytes: 0, is_cut: false }
    }

    /// Takes the next event.
    pub fn push(&mut self, event: Event) {
        let begin = event.at - self.length;
        if self.segments.is_empty() || matches!(event.what, What::Keyframe(_)) {
            self.segments.push_back(Segment::default());
        }
        let bytes = bytes_of(&event);
        if let Some(segment) = self.segments.back_mut() {
            segment.bytes += bytes;
            segment.events.push(event);
        }
        self.bytes += bytes;
        while self.is_old(begin) || self.bytes > self.bytes_max {
            self.is_cut = !self.is_old(begin);
            let dropped = self.segments.pop_front().unwrap_or_default();
            debug_assert!(dropped.bytes <= self.bytes, "more bytes are dropped than are kept");
            self.bytes -= dropped.bytes;
        }
    }

    /// Whether the second segment begins early enough.
    fn is_old(&self, begin: Nanos) -> bool {
        let second = self.segments.get(1).and_then(|segment| segment.events.first());
        second.is_some_and(|keyframe| keyframe.at <= begin)
    }

    /// What is kept, the oldest first. It begins with a keyframe, once there was one.
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.segments.iter().flat_map(|segment| &segment.events)
    }

    /// Whether less is kept than was asked for, since memory holds no more.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }
}

/// What an event needs, with what lies behind its pointers.
fn bytes_of(event: &Event) -> usize {
    let behind = match &event.what {
        What::Keyframe(keyframe) => {
            size_of_val::<[CoreState]>(&keyframe.cores)
                + size_of_val::<[ThreadState]>(&keyframe.threads)
        }
        What::Allowed { cores, .. } | What::Considered { cores, .. } => size_of_val(&**cores),
        What::Pass(pass) => size_of_val(&**pass) + size_of_val::<[PassGroup]>(&pass.groups),
        What::Domains(trees) => bytes_of_trees(trees),
        What::Annotation(text) => text.len(),
        What::Task(task) => {
            size_of_val(&**task) + task.name.len() + size_of_val::<[i32]>(&task.processes)
        }
        What::Violation(violation) => {
            size_of_val(&**violation)
                + size_of_val::<[i32]>(&violation.waiters)
                + violation.text.len()
        }
        _ => 0,
    };
    size_of::<Event>() + behind
}

fn bytes_of_trees(trees: &DomainTrees) -> usize {
    let of_domain = |domain: &Domain| {
        size_of_val(domain) + domain.name.len() + size_of_val::<[DomainGroup]>(&domain.groups)
    };
    let of_core =
        |core: &CoreDomains| size_of_val(core) + core.domains.iter().map(of_domain).sum::<usize>();
    size_of_val(trees) + trees.cores().iter().map(of_core).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use quell_model::{CoreId, Keyframe};

    use super::*;

    fn event(ms: u64) -> Event {
        let what = match ms % 1000 {
            0 => What::Keyframe(Arc::new(Keyframe::default())),
            _ => What::Softirq { vector: What::BALANCER, begins: true },
        };
        Event { at: Nanos::from_millis(ms), core: CoreId(0), sequence: ms, what }
    }

    fn kept(flight: &Flight) -> Vec<u64> {
        flight.events().map(|event| event.sequence).collect()
    }

    #[test]
    fn it_keeps_the_last_seconds_from_a_keyframe_on() {
        let mut flight = Flight::new(Nanos::from_secs(2), Flight::BYTES);
        (0..7_500).for_each(|ms| flight.push(event(ms)));
        assert_eq!(kept(&flight), (5_000..7_500).collect::<Vec<_>>());
        assert!(!flight.is_cut());
    }

    #[test]
    fn memory_cuts_it_short_at_a_keyframe_and_it_says_so() {
        let bytes_max = 1_200 * size_of::<Event>();
        let mut flight = Flight::new(Nanos::from_secs(2), bytes_max);
        (0..1_200).for_each(|ms| flight.push(event(ms)));
        assert!(!flight.is_cut());
        (1_200..2_100).for_each(|ms| flight.push(event(ms)));
        assert_eq!(kept(&flight), (1_000..2_100).collect::<Vec<_>>());
        assert!(flight.is_cut());
        (3..9).for_each(|second| flight.push(event(second * 1_000)));
        assert!(!flight.is_cut());
    }

    #[test]
    fn groups_of_passes_and_trees_are_counted() {
        let cores = quell_model::CoreSet::of(CoreId(0));
        let kind = quell_model::GroupKind::HasSpare;
        let group = PassGroup { cores, sum: 0, mean: 0, minimum: 0, queued: 0, idle: 0, kind };
        let pass = |groups| {
            What::Pass(Box::new(quell_model::Pass {
                core: CoreId(0),
                level: 0,
                entry: quell_model::PassEntry::Nohz,
                groups,
                outcome: quell_model::PassOutcome::Kept,
                moved: 0,
                skipped: quell_model::Skipped::default(),
            }))
        };
        let trees = |topology: &quell_model::Topology| {
            let rules = quell_model::DomainRules::LINUX_6_7;
            What::Domains(Arc::new(DomainTrees::build(topology, &topology.all(), &rules)))
        };
        let bytes = |what| bytes_of(&Event { what, ..event(1) });
        let more = bytes(pass(vec![group; 3])) - bytes(pass(Vec::new()));
        assert_eq!(more, 3 * size_of::<PassGroup>());
        let [few, many] =
            [2, 4].map(|nodes| bytes(trees(&quell_model::Topology::regular(nodes, 2, 2).unwrap())));
        assert!(few > 8 * size_of::<CoreDomains>() && many > 2 * few, "{few}, {many}");
    }

    #[test]
    fn too_many_events_without_a_keyframe_are_dropped() {
        let mut flight = Flight::new(Nanos::MAX, 1_000 * size_of::<Event>());
        for sequence in 0..2_500 {
            flight.push(Event { sequence, ..event(1) });
            assert!(flight.events().count() <= 1_000);
        }
        assert!(flight.is_cut());
    }
}
