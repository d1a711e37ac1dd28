//! The newest things worth telling an operator.

use std::collections::VecDeque;

/// Events kept.
const KEPT: usize = 64;

/// A bounded list of sentences, oldest first. Repeats of the newest one are counted, not stored.
#[derive(Default)]
pub struct Events {
    kept: VecDeque<(String, u64)>,
}

impl Events {
    /// Adds a sentence.
    pub fn tell(&mut self, what: impl Into<String>) {
        let what = what.into();
        tracing::info!("{what}");
        match self.kept.back_mut() {
            Some((last, times)) if *last == what => *times += 1,
            _ => self.kept.push_back((what, 1)),
        }
        if self.kept.len() > KEPT {
            self.kept.pop_front();
        }
    }

    /// The sentences, oldest first.
    pub fn list(&self) -> Vec<String> {
        let shown = |(what, times): &(String, u64)| match times {
            1 => what.clone(),
            _ => format!("{what} ({times} times)"),
        };
        self.kept.iter().map(shown).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_bounded_and_repeats_are_counted() {
        let mut events = Events::default();
        events.tell("same");
        events.tell("same");
        assert_eq!(events.list(), ["same (2 times)"]);
        (0..1_000).for_each(|n| events.tell(n.to_string()));
        assert_eq!((events.list().len(), events.list().last().unwrap().as_str()), (KEPT, "999"));
    }
}
