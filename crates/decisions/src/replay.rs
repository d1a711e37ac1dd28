//! Decides again what was decided, and holds it against the recording.

use std::io::{Read, Seek};

use quell_model::{Nanos, Plan};
use quell_policy::{BadState, Policy, PolicyError, Wake, by_name};
use serde::Serialize;

use super::delta::put;
use super::read::{Decision, Event, Reader};
use super::words::{Names, differences, wake_in_words};

/// A part of a recording, in time since its first decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window {
    /// From here.
    pub from: Nanos,
    /// Up to and with this.
    pub to: Nanos,
}

impl Default for Window {
    fn default() -> Window {
        Window { from: Nanos::ZERO, to: Nanos::MAX }
    }
}

impl Window {
    /// Whether the time lies in it.
    pub fn contains(&self, at: Nanos) -> bool {
        (self.from..=self.to).contains(&at)
    }
}

/// What to compare, and how much to tell.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The part that is compared. What comes before is decided again all the same: a policy remembers.
    pub window: Window,
    /// Differences that are kept at most.
    pub kept: usize,
}

/// Why a recording cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// This Quell does not have the policy, or not for the recorded host.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// The policy's memory in the recording is not one.
    #[error("the policy's memory, as recorded {after} from the start, cannot be used: {source}")]
    State {
        /// Where in the recording.
        after: Nanos,
        /// What is wrong.
        source: BadState,
    },
}

/// A decision that came out differently.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// Since the recording's first decision.
    pub after: Nanos,
    /// The time of day, in nanoseconds since 1970.
    pub unix_ns: u64,
    /// What differs, a sentence each.
    pub what: Vec<String>,
}

/// What came of a replay.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Replayed {
    /// Decisions that were made again and compared.
    pub decisions: u64,
    /// Those that came out differently, and keyframes at which the policy remembered something else.
    pub differing: u64,
    /// The first of them.
    pub differences: Vec<Difference>,
    /// Decisions that were not recorded because the writer was behind.
    pub lost: u64,
    /// Places besides the beginning at which the recording breaks off, and goes on elsewhere.
    pub breaks: u64,
    /// From the first recorded decision to the last.
    pub covers: Nanos,
}

/// Decides every recorded Snapshot again with the recorded policy, and compares Plans and wakes byte for
/// byte, and at keyframes what the policy remembers.
///
/// # Errors
/// When the policy or its recorded memory cannot be had. Damage is [`Reader::damage`]'s to tell.
pub fn replay<R: Read + Seek>(
    reader: &mut Reader<R>,
    options: Options,
) -> Result<Replayed, ReplayError> {
    let meta = reader.meta().clone();
    let mut policy = by_name(&meta.policy, meta.host(), meta.config)?;
    let mut clock = Span::default();
    let mut result = Replayed::default();
    let mut again = Again::default();
    while let Some(event) = reader.next() {
        let differs = match event {
            Event::Keyframe { state, lost, cut } => {
                result.lost += lost;
                result.breaks += u64::from(cut && clock.has_begun());
                let in_step = lost == 0 && !cut;
                let differs = in_step && again.remembers_otherwise(policy.as_ref(), &state);
                let restored = policy.restore(&mut state.as_slice());
                restored.map_err(|source| ReplayError::State { after: clock.covers(), source })?;
                differs
                    .then(|| vec!["what the policy remembers is not what was recorded".to_owned()])
            }
            Event::Decision => {
                let recorded = reader.decision();
                clock.note(recorded.now);
                let what = again.decide(policy.as_mut(), recorded, reader.names());
                result.decisions += u64::from(options.window.contains(clock.covers()));
                what
            }
        };
        let Some(what) = differs.filter(|_| options.window.contains(clock.covers())) else {
            continue;
        };
        result.differing += 1;
        if result.differences.len() < options.kept {
            let unix_ns = meta.unix_ns(reader.decision().now);
            result.differences.push(Difference { after: clock.covers(), unix_ns, what });
        }
    }
    result.covers = clock.covers();
    Ok(result)
}

/// The time that a recording covers.
#[derive(Default)]
pub(super) struct Span {
    first: Option<Nanos>,
    last: Nanos,
}

impl Span {
    pub fn note(&mut self, now: Nanos) {
        self.first.get_or_insert(now);
        self.last = now;
    }

    pub fn has_begun(&self) -> bool {
        self.first.is_some()
    }

    /// From the first decision to the last one so far.
    pub fn covers(&self) -> Nanos {
        self.first.map_or(Nanos::ZERO, |first| self.last.since(first))
    }
}

/// One more decision from each Snapshot, in buffers that are kept.
#[derive(Default)]
struct Again {
    plan: Plan,
    bytes: [Vec<u8>; 2],
}

impl Again {
    /// Decides, and tells what differs from the recording.
    fn decide(
        &mut self,
        policy: &mut dyn Policy,
        recorded: &Decision,
        names: &Names,
    ) -> Option<Vec<String>> {
        let wake = policy.decide(recorded.now, &recorded.seen, &mut self.plan);
        for (bytes, plan) in self.bytes.iter_mut().zip([&recorded.plan, &self.plan]) {
            bytes.clear();
            put(plan, bytes);
        }
        if self.bytes[0] == self.bytes[1] && wake == recorded.wake {
            return None;
        }
        let who = ["recorded", "replayed"];
        let mut what = differences(names, who, [&recorded.plan, &self.plan]);
        if wake != recorded.wake {
            let words = |wake: Wake| wake_in_words(recorded.now, wake);
            what.push(format!("recorded: {}; replayed: {}", words(recorded.wake), words(wake)));
        }
        Some(what)
    }

    fn remembers_otherwise(&mut self, policy: &dyn Policy, state: &[u8]) -> bool {
        let saved = &mut self.bytes[0];
        saved.clear();
        policy.save(saved);
        saved != state
    }
}
