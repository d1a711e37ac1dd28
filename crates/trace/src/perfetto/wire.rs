//! The part of Perfetto's protocol that is used here: field numbers from `protos/perfetto/trace/*.proto`, and
//! the one field of our own, [`Private`], which other programs skip.
//!
//! Messages within a packet are kept as bytes and taken apart one by one ([`next_field`]), so that a file that lies
//! about itself costs little more memory than it has bytes.

use prost::bytes::Bytes;
use prost::{Message, Oneof};

/// `ClockSnapshot.Clock.BuiltinClocks`.
pub const REALTIME: u32 = 1;
pub const MONOTONIC: u32 = 3;
pub const BOOTTIME: u32 = 6;

/// `TrackEvent.Type`.
pub const SLICE_BEGIN: i32 = 1;
pub const SLICE_END: i32 = 2;
pub const INSTANT: i32 = 3;
pub const COUNTER: i32 = 4;

/// `TracePacket.SequenceFlags.SEQ_INCREMENTAL_STATE_CLEARED`.
pub const STATE_CLEARED: u32 = 1;

/// By which readers find a place to start (`kSyncMarker` of Perfetto's `packet_stream_validator`).
pub const SYNC_MARKER: [u8; 16] = [
    0x82, 0x47, 0x7a, 0x76, 0xb2, 0x8d, 0x42, 0xba, 0x81, 0xdc, 0x33, 0x32, 0x6d, 0x57, 0xa0, 0x79,
];

/// Field 1 of `Trace`, length-delimited: what each packet begins with.
pub const PACKET: u32 = 1;
pub const PACKET_TAG: u8 = 0x0a;

/// `TracePacket`.
#[derive(Clone, PartialEq, Message)]
pub struct Packet {
    /// [`BundleHead`] and its events
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub ftrace_events: Option<Bytes>,
    /// [`ProcessTree`]
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub process_tree: Option<Bytes>,
    /// [`ClockSnapshot`]
    #[prost(bytes = "bytes", optional, tag = "6")]
    pub clock_snapshot: Option<Bytes>,
    #[prost(uint64, optional, tag = "8")]
    pub timestamp: Option<u64>,
    #[prost(uint32, optional, tag = "10")]
    pub trusted_packet_sequence_id: Option<u32>,
    /// [`TrackEvent`]
    #[prost(bytes = "bytes", optional, tag = "11")]
    pub track_event: Option<Bytes>,
    #[prost(uint32, optional, tag = "13")]
    pub sequence_flags: Option<u32>,
    #[prost(bytes = "bytes", optional, tag = "36")]
    pub synchronization_marker: Option<Bytes>,
    #[prost(uint32, optional, tag = "58")]
    pub timestamp_clock_id: Option<u32>,
    /// [`TrackDescriptor`]
    #[prost(bytes = "bytes", optional, tag = "60")]
    pub track_descriptor: Option<Bytes>,
    #[prost(message, optional, tag = "2000")]
    pub private: Option<Private>,
}

/// The value of a field.
#[derive(Clone, Copy, Debug)]
pub enum Value<'m> {
    Number(u64),
    Bytes(&'m [u8]),
}

/// Takes the next field, its number and its value, off a message of which not all is to be held at once. `None` where
/// no field begins.
#[inline]
pub fn next_field<'m>(message: &mut &'m [u8]) -> Option<(u32, Value<'m>)> {
    let bytes = |message: &mut &'m [u8], length: u64| {
        let (bytes, rest) = message.split_at_checked(usize::try_from(length).ok()?)?;
        *message = rest;
        Some(Value::Bytes(bytes))
    };
    let key = varint(message)?;
    let value = match key & 7 {
        0 => Value::Number(varint(message)?),
        1 => bytes(message, 8)?,
        2 => {
            let length = varint(message)?;
            bytes(message, length)?
        }
        5 => bytes(message, 4)?,
        _ => return None,
    };
    Some((u32::try_from(key >> 3).ok()?, value))
}

/// A number in seven bits a byte, the low ones first, at most 64 of them. [`prost`] has it as well, and takes a third of
/// the time of reading a trace for it.
#[inline]
fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for (at, byte) in message.iter().enumerate().take(10) {
        number |= u64::from(byte & 0x7f) << (7 * at);
        if byte & 0x80 == 0 {
            *message = &message[at + 1..];
            return Some(number);
        }
    }
    None
}

/// A message of numbers and bytes, taken apart without a copy: the fields with small numbers. Of a field that comes
/// twice the last one counts, as in every reader of Protocol Buffers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flat<'m>([Option<Value<'m>>; 9]);

impl<'m> Flat<'m> {
    /// `None` if it is no message.
    pub fn of(mut message: &'m [u8]) -> Option<Flat<'m>> {
        let mut flat = Flat::default();
        while !message.is_empty() {
            let (number, value) = next_field(&mut message)?;
            if let Some(field) = flat.0.get_mut(number as usize) {
                *field = Some(value);
            }
        }
        Some(flat)
    }

    /// The number in a field.
    pub fn number(&self, field: usize) -> Option<u64> {
        match self.0[field] {
            Some(Value::Number(number)) => Some(number),
            _ => None,
        }
    }

    /// The number in a field of type `int32`, 0 where there is none.
    pub fn int32(&self, field: usize) -> i32 {
        self.number(field).unwrap_or_default() as i32
    }

    /// The bytes in a field.
    pub fn bytes(&self, field: usize) -> Option<&'m [u8]> {
        match self.0[field] {
            Some(Value::Bytes(bytes)) => Some(bytes),
            _ => None,
        }
    }
}

/// The number of [`Private`] in packets and ftrace events.
pub const PRIVATE: u32 = 2000;

/// What Perfetto has no place for. Its number in a packet and in an ftrace event, 2000, is far beyond those that
/// Perfetto has given out; in an ftrace event it comes last, as Perfetto takes the first message for the event.
#[derive(Clone, PartialEq, Message)]
pub struct Private {
    /// How many events of the group lie between the one before this in its bundle (of events outside of
    /// bundles: the last such one) and this one, in the order in which they were given.
    #[prost(uint32, optional, tag = "1")]
    pub skip: Option<u32>,
    /// [`quell_model::Event::sequence`], where it is not one more than that of the core's event before it in
    /// the group.
    #[prost(uint64, optional, tag = "2")]
    pub sequence: Option<u64>,
    /// [`quell_model::Event::core`] of an event outside of a bundle.
    #[prost(uint32, optional, tag = "3")]
    pub core: Option<u32>,
    /// Of a thread, where it is not the thread's own number.
    #[prost(sint32, optional, tag = "4")]
    pub process: Option<i32>,
    /// Of a thread, where the priority does not tell: [`quell_model::Rank::number`].
    #[prost(uint32, optional, tag = "5")]
    pub rank: Option<u32>,
    /// Of a thread, where the event's own field has it differently: names are bytes, Perfetto's are UTF-8.
    #[prost(bytes = "bytes", optional, tag = "6")]
    pub name: Option<Bytes>,
    #[prost(uint64, optional, tag = "7")]
    pub stolen_ns: Option<u64>,
    /// What moved a thread, by its place in [`quell_model::MoveCause`].
    #[prost(uint32, optional, tag = "8")]
    pub cause: Option<u32>,
    #[prost(uint32, optional, tag = "9")]
    pub queued: Option<u32>,
    #[prost(uint64, optional, tag = "10")]
    pub average: Option<u64>,
    /// [`quell_model::Violation::until`]; it lies at its begin, and this is when it was told.
    #[prost(uint64, optional, tag = "11")]
    pub until: Option<u64>,
    #[prost(uint64, optional, tag = "12")]
    pub told: Option<u64>,

    /// Opens a group: how many events the packets up to the next one hold.
    #[prost(uint32, optional, tag = "20")]
    pub group: Option<u32>,
    /// Whether the keyframe goes on in the next packet.
    #[prost(bool, optional, tag = "23")]
    pub more: Option<bool>,
    #[prost(oneof = "Content", tags = "13, 14, 15, 16, 17, 21, 22")]
    pub content: Option<Content>,
}

/// A whole message within [`Private`]. One at most has its place there, as each event makes and moves a `Private`.
#[derive(Clone, PartialEq, Oneof)]
pub enum Content {
    /// [`Task`].
    #[prost(bytes = "bytes", tag = "13")]
    Task(Bytes),
    /// [`Decision`].
    #[prost(bytes = "bytes", tag = "14")]
    Decision(Bytes),
    /// [`PlanReason`].
    #[prost(bytes = "bytes", tag = "15")]
    PlanReason(Bytes),
    /// [`quell_model::Pass`].
    #[prost(bytes = "bytes", tag = "16")]
    Pass(Bytes),
    /// [`quell_model::DomainTrees`].
    #[prost(bytes = "bytes", tag = "17")]
    Domains(Bytes),
    /// [`quell_model::Meta`] as JSON.
    #[prost(bytes = "bytes", tag = "21")]
    Meta(Bytes),
    /// [`Keyframe`], or a part of one.
    #[prost(bytes = "bytes", tag = "22")]
    Keyframe(Bytes),
}

/// [`quell_model::TaskId`].
#[derive(Clone, Copy, PartialEq, Message)]
pub struct TaskId {
    #[prost(uint32, required, tag = "1")]
    pub index: u32,
    #[prost(uint32, required, tag = "2")]
    pub generation: u32,
}

/// [`quell_model::TaskInfo`].
#[derive(Clone, PartialEq, Message)]
pub struct Task {
    #[prost(message, required, tag = "1")]
    pub id: TaskId,
    #[prost(string, required, tag = "2")]
    pub name: String,
    /// Index in the table of classes.
    #[prost(uint32, required, tag = "3")]
    pub class: u32,
    #[prost(sint32, repeated, tag = "4")]
    pub processes: Vec<i32>,
}

/// [`quell_model::Decision`].
#[derive(Clone, PartialEq, Message)]
pub struct Decision {
    #[prost(uint32, required, tag = "1")]
    pub core: u32,
    #[prost(message, optional, tag = "2")]
    pub from: Option<TaskId>,
    #[prost(message, optional, tag = "3")]
    pub to: Option<TaskId>,
    /// Index in the table of modes.
    #[prost(uint32, required, tag = "4")]
    pub mode: u32,
    #[prost(message, required, tag = "5")]
    pub reason: Reason,
}

/// [`quell_model::PlanReason::Task`].
#[derive(Clone, PartialEq, Message)]
pub struct PlanReason {
    #[prost(message, required, tag = "1")]
    pub task: TaskId,
    #[prost(message, required, tag = "2")]
    pub reason: Reason,
}

/// [`quell_model::Reason`] or [`quell_model::TaskReason`].
#[derive(Clone, Copy, PartialEq, Message)]
pub struct Reason {
    /// The variant, by its code.
    #[prost(uint32, required, tag = "1")]
    pub kind: u32,
    /// Its time in nanoseconds, core or errno; 0 where it has none.
    #[prost(sint64, required, tag = "2")]
    pub value: i64,
}

/// A part of a [`quell_model::Keyframe`].
#[derive(Clone, PartialEq, Message)]
pub struct Keyframe {
    #[prost(message, repeated, tag = "1")]
    pub cores: Vec<CoreState>,
    #[prost(message, repeated, tag = "2")]
    pub threads: Vec<ThreadState>,
}

/// The numbers of its fields.
pub const KEYFRAME_CORE: u32 = 1;
pub const KEYFRAME_THREAD: u32 = 2;

/// [`quell_model::CoreState`]. Every field is always there.
#[derive(Clone, PartialEq, Message)]
pub struct CoreState {
    #[prost(uint32, required, tag = "1")]
    pub core: u32,
    #[prost(sint32, required, tag = "2")]
    pub running: i32,
    #[prost(uint32, required, tag = "3")]
    pub queued: u32,
    #[prost(uint32, required, tag = "4")]
    pub runnable: u32,
    #[prost(uint64, required, tag = "5")]
    pub weight: u64,
    #[prost(uint64, required, tag = "6")]
    pub average: u64,
    #[prost(bool, required, tag = "7")]
    pub wake_pending: bool,
    #[prost(bytes = "bytes", required, tag = "8")]
    pub domain: Bytes,
}

/// [`quell_model::ThreadState`]. Every field is always there.
#[derive(Clone, PartialEq, Message)]
pub struct ThreadState {
    #[prost(sint32, required, tag = "1")]
    pub thread: i32,
    #[prost(sint32, required, tag = "2")]
    pub process: i32,
    #[prost(uint32, required, tag = "3")]
    pub rank: u32,
    #[prost(bytes = "bytes", required, tag = "4")]
    pub name: Bytes,
    #[prost(uint32, required, tag = "5")]
    pub core: u32,
    #[prost(uint32, required, tag = "6")]
    pub state: u32,
    #[prost(bytes = "bytes", required, tag = "7")]
    pub allowed: Bytes,
    #[prost(bool, required, tag = "8")]
    pub bound: bool,
}

/// `FtraceEventBundle`, but for its events.
#[derive(Clone, PartialEq, Message)]
pub struct BundleHead {
    #[prost(uint32, optional, tag = "1")]
    pub cpu: Option<u32>,
    #[prost(bool, optional, tag = "3")]
    pub lost_events: Option<bool>,
}

/// The numbers of a bundle's core and of its events ([`FtraceEvent`]).
pub const BUNDLE_CPU: u32 = 1;
pub const BUNDLE_EVENT: u32 = 2;
/// An event in a bundle, as [`PACKET_TAG`] is of a packet.
pub const BUNDLE_EVENT_TAG: u8 = 0x12;

/// `FtraceEvent`.
#[derive(Clone, PartialEq, Message)]
pub struct FtraceEvent {
    #[prost(uint64, optional, tag = "1")]
    pub timestamp: Option<u64>,
    /// The thread that ran.
    #[prost(uint32, optional, tag = "2")]
    pub pid: Option<u32>,
    #[prost(oneof = "Ftrace", tags = "4, 17, 20, 24, 25, 36, 37, 114, 237, 238, 239, 491")]
    pub event: Option<Ftrace>,
    #[prost(message, optional, tag = "2000")]
    pub private: Option<Private>,
}

/// The kinds of `FtraceEvent`.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Ftrace {
    #[prost(message, tag = "4")]
    Switch(SchedSwitch),
    #[prost(message, tag = "17")]
    Wakeup(SchedWakeup),
    #[prost(message, tag = "20")]
    Waking(SchedWakeup),
    #[prost(message, tag = "24")]
    SoftirqEntry(Softirq),
    #[prost(message, tag = "25")]
    SoftirqExit(Softirq),
    #[prost(message, tag = "36")]
    IrqHandlerEntry(IrqHandlerEntry),
    #[prost(message, tag = "37")]
    IrqHandlerExit(IrqHandlerExit),
    #[prost(message, tag = "114")]
    WakeupNew(SchedWakeup),
    #[prost(message, tag = "237")]
    Exec(SchedProcessExec),
    #[prost(message, tag = "238")]
    Exit(SchedProcessExit),
    #[prost(message, tag = "239")]
    Fork(SchedProcessFork),
    #[prost(message, tag = "491")]
    Migrate(SchedMigrateTask),
}

/// `SchedSwitchFtraceEvent`.
#[derive(Clone, PartialEq, Message)]
pub struct SchedSwitch {
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub prev_comm: Option<Bytes>,
    #[prost(int32, optional, tag = "2")]
    pub prev_pid: Option<i32>,
    #[prost(int32, optional, tag = "3")]
    pub prev_prio: Option<i32>,
    #[prost(int64, optional, tag = "4")]
    pub prev_state: Option<i64>,
    #[prost(bytes = "bytes", optional, tag = "5")]
    pub next_comm: Option<Bytes>,
    #[prost(int32, optional, tag = "6")]
    pub next_pid: Option<i32>,
    #[prost(int32, optional, tag = "7")]
    pub next_prio: Option<i32>,
}

/// `SchedWakeupFtraceEvent`, `SchedWakingFtraceEvent`, `SchedWakeupNewFtraceEvent`.
#[derive(Clone, PartialEq, Message)]
pub struct SchedWakeup {
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub comm: Option<Bytes>,
    #[prost(int32, optional, tag = "2")]
    pub pid: Option<i32>,
    #[prost(int32, optional, tag = "3")]
    pub prio: Option<i32>,
    #[prost(int32, optional, tag = "4")]
    pub success: Option<i32>,
    #[prost(int32, optional, tag = "5")]
    pub target_cpu: Option<i32>,
}

/// `SoftirqEntryFtraceEvent`, `SoftirqExitFtraceEvent`.
#[derive(Clone, PartialEq, Message)]
pub struct Softirq {
    #[prost(uint32, optional, tag = "1")]
    pub vec: Option<u32>,
}

/// `IrqHandlerEntryFtraceEvent`.
#[derive(Clone, PartialEq, Message)]
pub struct IrqHandlerEntry {
    #[prost(int32, optional, tag = "1")]
    pub irq: Option<i32>,
    /// Perfetto's UI shows it; not read.
    #[prost(bytes = "bytes", optional, tag = "2")]
    pub name: Option<Bytes>,
}

/// `IrqHandlerExitFtraceEvent`.
#[derive(Clone, PartialEq, Message)]
pub struct IrqHandlerExit {
    #[prost(int32, optional, tag = "1")]
    pub irq: Option<i32>,
}

/// `SchedProcessExecFtraceEvent`.
#[derive(Clone, PartialEq, Message)]
pub struct SchedProcessExec {
    #[prost(bytes = "bytes", optional, tag = "1")]
    pub filename: Option<Bytes>,
    #[prost(int32, optional, tag = "2")]
    pub pid: Option<i32>,
    #[prost(int32, optional, tag = "3")]
    pub old_pid: Option<i32>,
}

/// `SchedProcessExitFtraceEvent`.
#[derive(Clone, PartialEq, Message)]
pub struct SchedProcessExit {
    #[prost(int32, optional, tag = "2")]
    pub pid: Option<i32>,
}

/// `SchedProcessForkFtraceEvent`.
#[derive(Clone, PartialEq, Message)]
pub struct SchedProcessFork {
    #[prost(int32, optional, tag = "2")]
    pub parent_pid: Option<i32>,
    #[prost(bytes = "bytes", optional, tag = "3")]
    pub child_comm: Option<Bytes>,
    #[prost(int32, optional, tag = "4")]
    pub child_pid: Option<i32>,
}

/// `SchedMigrateTaskFtraceEvent`.
#[derive(Clone, PartialEq, Message)]
pub struct SchedMigrateTask {
    #[prost(int32, optional, tag = "2")]
    pub pid: Option<i32>,
    #[prost(int32, optional, tag = "4")]
    pub orig_cpu: Option<i32>,
    #[prost(int32, optional, tag = "5")]
    pub dest_cpu: Option<i32>,
}

/// `TrackEvent`.
#[derive(Clone, PartialEq, Message)]
pub struct TrackEvent {
    #[prost(message, repeated, tag = "4")]
    pub debug_annotations: Vec<DebugAnnotation>,
    #[prost(int32, optional, tag = "9")]
    pub r#type: Option<i32>,
    #[prost(uint64, optional, tag = "11")]
    pub track_uuid: Option<u64>,
    #[prost(string, optional, tag = "23")]
    pub name: Option<String>,
    #[prost(int64, optional, tag = "30")]
    pub counter_value: Option<i64>,
}

/// `DebugAnnotation`, of a number or a text.
#[derive(Clone, PartialEq, Message)]
pub struct DebugAnnotation {
    #[prost(int64, optional, tag = "4")]
    pub int_value: Option<i64>,
    #[prost(string, optional, tag = "6")]
    pub string_value: Option<String>,
    #[prost(string, optional, tag = "10")]
    pub name: Option<String>,
}

/// `TrackDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub struct TrackDescriptor {
    #[prost(uint64, optional, tag = "1")]
    pub uuid: Option<u64>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    #[prost(uint64, optional, tag = "5")]
    pub parent_uuid: Option<u64>,
    #[prost(message, optional, tag = "8")]
    pub counter: Option<CounterDescriptor>,
    /// 3: by rank.
    #[prost(int32, optional, tag = "11")]
    pub child_ordering: Option<i32>,
    #[prost(int32, optional, tag = "12")]
    pub sibling_order_rank: Option<i32>,
}

/// `CounterDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub struct CounterDescriptor {
    /// 2: a count.
    #[prost(int32, optional, tag = "3")]
    pub unit: Option<i32>,
}

/// `ClockSnapshot`.
#[derive(Clone, PartialEq, Message)]
pub struct ClockSnapshot {
    #[prost(message, repeated, tag = "1")]
    pub clocks: Vec<Clock>,
    #[prost(uint32, optional, tag = "2")]
    pub primary_trace_clock: Option<u32>,
}

/// `ClockSnapshot.Clock`.
#[derive(Clone, PartialEq, Message)]
pub struct Clock {
    #[prost(uint32, optional, tag = "1")]
    pub clock_id: Option<u32>,
    #[prost(uint64, optional, tag = "2")]
    pub timestamp: Option<u64>,
}

/// `ProcessTree`.
#[derive(Clone, PartialEq, Message)]
pub struct ProcessTree {
    #[prost(message, repeated, tag = "1")]
    pub processes: Vec<Process>,
    #[prost(message, repeated, tag = "2")]
    pub threads: Vec<Thread>,
}

/// `ProcessTree.Process`.
#[derive(Clone, PartialEq, Message)]
pub struct Process {
    #[prost(int32, optional, tag = "1")]
    pub pid: Option<i32>,
    #[prost(string, repeated, tag = "3")]
    pub cmdline: Vec<String>,
}

/// `ProcessTree.Thread`.
#[derive(Clone, PartialEq, Message)]
pub struct Thread {
    #[prost(int32, optional, tag = "1")]
    pub tid: Option<i32>,
    #[prost(string, optional, tag = "2")]
    pub name: Option<String>,
    #[prost(int32, optional, tag = "3")]
    pub tgid: Option<i32>,
}
