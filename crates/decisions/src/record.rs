//! The recorder: decisions into frames, on the thread that decides.
//!
//! It neither blocks nor, once its buffers have their size, allocates: what the sink has no room for is left out
//! and counted. Decisions after that cannot be made again until the next keyframe, so that one follows as soon
//! as there is room.

use quell_model::{Nanos, Plan, Snapshot, TaskId};
use quell_policy::{Policy, Wake};

use super::delta::{put, write_plan, write_snapshot, write_time, write_wake};
use super::format::{Meta, Preamble, meta_bytes};
use super::frame::{self, BODY_MAX, END_MARK_BYTES, Kind};

/// Between two keyframes: what a loss or damage makes unusable at most.
const KEYFRAME_EVERY: Nanos = Nanos::from_secs(10);

/// A segment ends when less than this share of it is left, so that a long record does not find it full.
const SPARE: u64 = 16;

/// Takes frames without blocking.
pub trait Sink {
    /// Bytes that it would take now.
    fn room(&self) -> usize;
    /// Takes well-formed frames, all or none; false: it has no room.
    fn offer(&mut self, frames: &[u8]) -> bool;
}

/// Memory without a bound, for tests and simulated hosts.
impl Sink for Vec<u8> {
    fn room(&self) -> usize {
        usize::MAX
    }

    fn offer(&mut self, frames: &[u8]) -> bool {
        self.extend_from_slice(frames);
        true
    }
}

/// What became of the decisions so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Handed to the sink.
    pub recorded: u64,
    /// Left out because the sink had no room.
    pub lost: u64,
}

/// Records the decisions of one policy.
pub struct Recorder<S> {
    sink: S,
    /// As each segment repeats it.
    meta: Vec<u8>,
    /// The last recorded decision: what the next is written against.
    seen: Snapshot,
    plan: Plan,
    wake: Wake,
    /// By place.
    names: Vec<Option<(TaskId, String)>>,
    frames: Vec<u8>,
    scratch: Vec<u8>,
    state: Vec<u8>,
    counts: Counts,
    /// Left out since the last keyframe; nothing but a keyframe may follow then.
    missing: u64,
    /// When the next keyframe is to be written or tried.
    due: Nanos,
    /// Bytes of the last keyframe: with less room there is no use in trying.
    keyframe_bytes: usize,
    segment: u32,
    segment_bytes: Option<u64>,
    /// Bytes left in the segment.
    left: u64,
}

impl Recorder<Vec<u8>> {
    /// A recorder of this policy into memory; its sink is what a file would hold.
    pub fn in_memory(meta: Meta, policy: &dyn Policy) -> Recorder<Vec<u8>> {
        let preamble = Preamble { slots: 0, slot_bytes: 0 };
        Recorder::new(preamble.to_bytes().to_vec(), meta, None, policy)
    }
}

impl<S: Sink> Recorder<S> {
    /// A recorder of this policy, which has not decided yet. Segments have at most `segment_bytes`;
    /// without it there is one.
    pub fn new(
        sink: S,
        meta: Meta,
        segment_bytes: Option<u64>,
        policy: &dyn Policy,
    ) -> Recorder<S> {
        let start = meta.clock.monotonic;
        let mut recorder = Recorder {
            sink,
            meta: meta_bytes(&meta),
            seen: Snapshot::default(),
            plan: Plan::default(),
            wake: Wake::OnChange,
            names: Vec::new(),
            frames: Vec::new(),
            scratch: Vec::new(),
            state: Vec::new(),
            counts: Counts::default(),
            missing: 0,
            due: start,
            keyframe_bytes: 0,
            segment: 0,
            segment_bytes,
            left: 0,
        };
        recorder.keyframe(start, policy, true);
        recorder
    }

    /// What became of the decisions so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// Ends the recording and gives the sink back.
    pub fn into_sink(self) -> S {
        self.sink
    }

    /// Notes what the operator calls a task.
    pub fn name(&mut self, task: TaskId, name: &str) {
        if self.names.len() <= task.at() {
            self.names.resize(task.at() + 1, None);
        }
        self.names[task.at()] = Some((task, name.to_owned()));
        self.frames.clear();
        frame::append(&mut self.frames, &mut self.scratch, self.segment, Kind::Name, |out| {
            put(&(task, name), out);
        });
        // Left out here, it comes with the next keyframe.
        self.hand_over();
    }

    /// Records that at `now` the policy decided `plan` for what was `seen`.
    pub fn record(
        &mut self,
        now: Nanos,
        seen: &Snapshot,
        plan: &Plan,
        wake: Wake,
        policy: &dyn Policy,
    ) {
        if self.missing == 0 && self.decision(now, seen, plan, wake) {
            self.counts.recorded += 1;
        } else {
            self.missing += 1;
            self.counts.lost += 1;
        }
        copy_snapshot(&mut self.seen, seen);
        copy_plan(&mut self.plan, plan);
        self.wake = wake;
        let full = self.segment_bytes.is_some_and(|bytes| self.left < bytes / SPARE);
        let wanted = (full || self.missing > 0) && self.sink.room() > self.keyframe_bytes;
        if now >= self.due || wanted {
            self.keyframe(now, policy, full);
        }
    }

    fn decision(&mut self, now: Nanos, seen: &Snapshot, plan: &Plan, wake: Wake) -> bool {
        self.frames.clear();
        let before = (&self.seen, &self.plan, self.wake);
        frame::append(&mut self.frames, &mut self.scratch, self.segment, Kind::Decision, |out| {
            write_snapshot(before.0, seen, out);
            write_time(seen.now, now, out);
            write_plan(before.1, plan, out);
            write_wake(before.2, now, wake, out);
        });
        self.hand_over()
    }

    /// Writes all that later decisions are read and made from, at the start of a new segment if asked.
    fn keyframe(&mut self, now: Nanos, policy: &dyn Policy, opens: bool) {
        self.due = now + KEYFRAME_EVERY;
        self.state.clear();
        policy.save(&mut self.state);
        self.frames.clear();
        if opens {
            let (segment, meta) = (self.segment + 1, &self.meta);
            frame::append(&mut self.frames, &mut self.scratch, 0, Kind::Meta, |out| {
                put(&segment, out);
                out.extend_from_slice(meta);
            });
        }
        let segment = self.segment + u32::from(opens);
        let (seen, plan, state, missing) = (&self.seen, &self.plan, &self.state, self.missing);
        let (names, wake) = (&self.names, self.wake);
        frame::append(&mut self.frames, &mut self.scratch, segment, Kind::Keyframe, |out| {
            put(&missing, out);
            put(names, out);
            put(&state.as_slice(), out);
            write_snapshot(&Snapshot::default(), seen, out);
            write_plan(&Plan::default(), plan, out);
            write_wake(Wake::OnChange, seen.now, wake, out);
        });
        self.keyframe_bytes = self.frames.len();
        let left = self.left;
        if opens {
            self.left = self.segment_bytes.unwrap_or(u64::MAX);
        }
        if self.hand_over() {
            (self.segment, self.missing) = (segment, 0);
        } else if opens && self.left == 0 {
            // Not even an empty segment holds it: it is tried again when it is due.
            self.keyframe_bytes = usize::MAX;
        } else {
            self.left = left;
        }
    }

    /// Hands the frames to the sink. Where they do not fit into the segment, it ends.
    fn hand_over(&mut self) -> bool {
        let bytes = self.frames.len() as u64;
        if bytes + END_MARK_BYTES as u64 > self.left || self.frames.len() > BODY_MAX {
            self.left = 0;
            return false;
        }
        let taken = self.sink.offer(&self.frames);
        if taken {
            self.left -= bytes;
        }
        taken
    }
}

/// As `clone_from`, which for a whole Snapshot would not keep the tables.
fn copy_snapshot(to: &mut Snapshot, from: &Snapshot) {
    let Snapshot {
        now,
        cores,
        tasks,
        dirty,
        went_idle,
        elevated_background,
        bursts,
        locks,
        in_kernel,
        memory,
    } = from;
    (to.now, to.went_idle, to.memory) = (*now, *went_idle, *memory);
    to.elevated_background = *elevated_background;
    to.cores.clone_from(cores);
    to.tasks.clone_from(tasks);
    to.dirty.clone_from(dirty);
    to.bursts.clone_from(bursts);
    to.locks.clone_from(locks);
    to.in_kernel.clone_from(in_kernel);
}

fn copy_plan(to: &mut Plan, from: &Plan) {
    let Plan { cores, tasks, roles, reliefs } = from;
    to.cores.clone_from(cores);
    to.tasks.clone_from(tasks);
    to.roles.clone_from(roles);
    to.reliefs.clone_from(reliefs);
}
