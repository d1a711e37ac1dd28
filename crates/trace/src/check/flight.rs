//! The flight recorder: the last seconds of a stream.

use std::collections::VecDeque;

use quell_model::{Event, Nanos, What};

/// Events that are kept at most; some 100 MB.
const EVENTS_MAX: usize = 1 << 20;

/// Keeps the end of a stream, from a keyframe on.
#[derive(Clone, Debug)]
pub struct Flight {
    length: Nanos,
    events: VecDeque<Event>,
    /// The places of keyframes, counted from the begin of the stream.
    keyframes: VecDeque<u64>,
    /// How many events were dropped at the front.
    dropped: u64,
}

impl Flight {
    /// Keeps at least this much, if a keyframe is that old and there are not too many events.
    pub fn new(length: Nanos) -> Flight {
        Flight { length, events: VecDeque::new(), keyframes: VecDeque::new(), dropped: 0 }
    }

    /// Takes the next event.
    pub fn push(&mut self, event: Event) {
        let begin = event.at - self.length;
        if matches!(event.what, What::Keyframe(_)) {
            self.keyframes.push_back(self.dropped + self.events.len() as u64);
        }
        self.events.push_back(event);
        while let Some(second) = self.keyframes.get(1) {
            let at = (second - self.dropped) as usize;
            let is_old = self.events.get(at).is_some_and(|keyframe| keyframe.at <= begin);
            if !is_old && self.events.len() <= EVENTS_MAX {
                break;
            }
            self.events.drain(..at);
            self.dropped = *second;
            self.keyframes.pop_front();
        }
        if self.events.len() > EVENTS_MAX {
            self.dropped += self.events.len() as u64;
            self.events.clear();
            self.keyframes.clear();
        }
    }

    /// What is kept, the oldest first. It begins with a keyframe, once there was one.
    pub fn events(&self) -> impl Iterator<Item = &Event> {
        self.events.iter()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use quell_model::{CoreId, Keyframe};

    use super::*;

    fn event(ms: u64) -> Event {
        let what = match ms % 1000 {
            0 => What::Keyframe(Arc::new(Keyframe::default())),
            _ => What::Balance { begins: true },
        };
        Event { at: Nanos::from_millis(ms), core: CoreId(0), sequence: ms, what }
    }

    #[test]
    fn it_keeps_the_last_seconds_from_a_keyframe_on() {
        let mut flight = Flight::new(Nanos::from_secs(2));
        (0..7_500).for_each(|ms| flight.push(event(ms)));
        let kept: Vec<u64> = flight.events().map(|event| event.sequence).collect();
        assert_eq!(kept, (5_000..7_500).collect::<Vec<_>>());
    }

    #[test]
    fn too_many_events_without_a_keyframe_are_dropped() {
        let mut flight = Flight::new(Nanos::MAX);
        for sequence in 0..2 * EVENTS_MAX as u64 {
            flight.push(Event { sequence, ..event(1) });
            assert!(flight.events.len() <= EVENTS_MAX);
        }
    }
}
