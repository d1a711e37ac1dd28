//! Events as Perfetto's messages, and back.

use std::borrow::Cow;
use std::sync::Arc;

use prost::Message;
use prost::bytes::Bytes;
use quell_model::{
    CORES_MAX, Certainty, CoreId, CoreSet, Left, MoveCause, Nanos, Runner, Search, TaskNames,
    ThreadName, What,
};

use super::wire::*;
use super::{balance, tasks, violation};
use crate::kernel;

/// Bytes of a decision's or a violation's text at most; a longer one is cut.
pub const TEXT_MAX: usize = 64 << 10;

/// Bytes of a track event at most: its details are many more bytes once they are taken apart.
const TRACK_EVENT_MAX: usize = TEXT_MAX + 4096;

/// What is wrong with a message.
#[derive(Debug)]
pub struct Malformed(pub &'static str);

/// The tracks that are no tracks of Perfetto's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Track {
    Violations = 1,
    Decisions,
    Queue,
    Load,
    Considered,
    Affinity,
    Online,
    Lost,
    Keyframes,
    Plans,
    Tasks,
    Passes,
    Domains,
}

impl Track {
    /// All, as they lie under each other, with their names.
    pub const ALL: [(Track, &str); 13] = [
        (Track::Violations, "Violations"),
        (Track::Decisions, "Decisions of Quell"),
        (Track::Queue, "Threads that want the core"),
        (Track::Load, "Load"),
        (Track::Considered, "Cores considered"),
        (Track::Passes, "Balancer passes"),
        (Track::Domains, "Scheduling domains"),
        (Track::Affinity, "Affinity"),
        (Track::Online, "Cores on and off line"),
        (Track::Lost, "Losses"),
        (Track::Keyframes, "Keyframes"),
        (Track::Plans, "What Quell's plan allows"),
        (Track::Tasks, "Tasks of Quell"),
    ];
    /// "Quell", so that other tracks of a merged trace have other numbers.
    const BASE: u64 = 0x5175_656c_6c00_0000;

    /// Its number; a part of it, like a core's own track, has one more than the part.
    pub fn uuid(self, part: Option<u16>) -> u64 {
        Track::BASE | (self as u64) << 16 | part.map_or(0, |part| u64::from(part) + 1)
    }

    /// Which track, and which part of it.
    fn of(uuid: u64) -> Option<(Track, Option<u16>)> {
        let (track, _) =
            Track::ALL.into_iter().find(|(track, _)| track.uuid(None) == uuid & !0xffff)?;
        Some((track, (uuid as u16).checked_sub(1)))
    }
}

/// An event as a message.
pub enum Shape {
    /// In the bundle of its core.
    Ftrace(Ftrace),
    /// In a packet of its own.
    Track(TrackEvent),
}

/// Who a thread is, for the fields of an ftrace event. What these cannot hold goes into `private`.
fn put_runner(runner: &Runner, private: &mut Private) -> (Bytes, i32) {
    let prio = kernel::prio(runner.rank);
    private.process = (runner.process != runner.thread).then_some(runner.process);
    private.rank = (kernel::rank(prio, runner.thread) != runner.rank)
        .then_some(u32::from(runner.rank.number()));
    (put_name(&runner.name, private), prio)
}

fn put_name(name: &ThreadName, private: &mut Private) -> Bytes {
    match shown(name) {
        Cow::Borrowed(name) => Bytes::copy_from_slice(name.as_bytes()),
        Cow::Owned(escaped) => {
            private.name = Some(Bytes::copy_from_slice(name.as_bytes()));
            Bytes::from(escaped)
        }
    }
}

/// A name as a text: escaped where it is none.
pub fn shown(name: &ThreadName) -> Cow<'_, str> {
    match std::str::from_utf8(name.as_bytes()) {
        Ok(name) => Cow::Borrowed(name),
        Err(_) => Cow::Owned(name.to_string()),
    }
}

pub fn rank(number: u32) -> Result<quell_model::Rank, Malformed> {
    let known = u16::try_from(number).ok().and_then(quell_model::Rank::from_number);
    known.ok_or(Malformed("a rank that no thread has"))
}

pub fn core(number: Option<u32>) -> Result<CoreId, Malformed> {
    match number {
        Some(number) if (number as usize) < CORES_MAX => Ok(CoreId(number as u16)),
        Some(_) => Err(Malformed("a core past the highest possible one")),
        None => Err(Malformed("an event without its core")),
    }
}

/// A set as the bytes of its mask, least significant first, up to the last that is not zero.
pub fn put_set(set: &CoreSet) -> Bytes {
    let mut bytes: Vec<u8> = set.words().iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
    Bytes::from(bytes)
}

/// The set that has these bytes.
pub fn set(bytes: &[u8]) -> Result<CoreSet, Malformed> {
    let mut words = [0; CORES_MAX / 64];
    for (at, byte) in bytes.iter().enumerate() {
        let word =
            words.get_mut(at / 8).ok_or(Malformed("a set of more cores than there can be"))?;
        *word |= u64::from(*byte) << (at % 8 * 8);
    }
    Ok(CoreSet::from_words(&words))
}

pub const LEFT: [(Left, i64); 5] = [
    (Left::Preempted, 0),
    (Left::Sleeping, 1),
    (Left::Blocked, 2),
    (Left::Stopped, 4),
    (Left::Dead, 16),
];

pub const CAUSES: [MoveCause; 11] = [
    MoveCause::Unknown,
    MoveCause::Wakeup,
    MoveCause::Fork,
    MoveCause::Exec,
    MoveCause::NewIdle,
    MoveCause::Periodic,
    MoveCause::Active,
    MoveCause::Affinity,
    MoveCause::Numa,
    MoveCause::Realtime,
    MoveCause::Hotplug,
];

pub const SEARCHES: [(Search, &str); 4] = [
    (Search::IdleSibling, "idle-sibling"),
    (Search::Idlest, "idlest"),
    (Search::GroupStatistics, "group-statistics"),
    (Search::BusiestQueue, "busiest-queue"),
];

pub const CERTAINTIES: [(Certainty, &str); 2] =
    [(Certainty::Observed, "observed"), (Certainty::Inferred, "inferred")];

/// The second of the pair whose first this is.
pub fn code<A: PartialEq + Copy, B: Copy + Default>(table: &[(A, B)], of: A) -> B {
    table.iter().find(|(known, _)| *known == of).map_or_else(B::default, |(_, code)| *code)
}

/// The first of the pair whose second this is.
pub fn decode<A: Copy, B: PartialEq + Copy>(table: &[(A, B)], code: B) -> Option<A> {
    table.iter().find(|(_, known)| *known == code).map(|(decoded, _)| *decoded)
}

/// An event as a message; what that has no place for goes into `private`. `ran` had the core until then.
/// `None` of a keyframe and of a violation, which are made of several packets.
pub fn shape(
    what: &What,
    ran: Option<&Runner>,
    names: &TaskNames,
    private: &mut Private,
) -> Option<Shape> {
    let traced = ftrace_message(what, ran, private).map(Shape::Ftrace);
    traced.or_else(|| track_event(what, names, private).map(Shape::Track))
}

/// The events that the kernel's tracepoints have.
fn ftrace_message(what: &What, ran: Option<&Runner>, private: &mut Private) -> Option<Ftrace> {
    Some(match what {
        What::Switch { next, left, how, stolen } => {
            private.stolen_ns = (*stolen != Nanos::ZERO).then_some(stolen.0);
            let (comm, prio) = put_runner(next, private);
            let prev = ran.filter(|ran| ran.thread == *left);
            Ftrace::Switch(SchedSwitch {
                prev_comm: prev.map(|prev| Bytes::from(shown(&prev.name).into_owned())),
                prev_pid: Some(*left),
                prev_prio: prev.map(|prev| kernel::prio(prev.rank)),
                prev_state: Some(code(&LEFT, *how)),
                next_comm: Some(comm),
                next_pid: Some(next.thread),
                next_prio: Some(prio),
            })
        }
        What::Waking { thread, target, .. } => Ftrace::Waking(wakeup(thread, *target, private)),
        What::Woken { thread, on, is_new: true } => Ftrace::WakeupNew(wakeup(thread, *on, private)),
        What::Woken { thread, on, is_new: false } => Ftrace::Wakeup(wakeup(thread, *on, private)),
        What::Migrate { thread, from, to, cause } => {
            let place = CAUSES.iter().position(|known| known == cause);
            private.cause = place.filter(|place| *place > 0).map(|place| place as u32);
            Ftrace::Migrate(SchedMigrateTask {
                pid: Some(*thread),
                orig_cpu: Some(i32::from(from.0)),
                dest_cpu: Some(i32::from(to.0)),
            })
        }
        What::Fork { parent, child } => {
            let (comm, _) = put_runner(child, private);
            private.rank = Some(u32::from(child.rank.number()));
            Ftrace::Fork(SchedProcessFork {
                parent_pid: Some(*parent),
                child_comm: Some(comm),
                child_pid: Some(child.thread),
            })
        }
        What::Exec { thread } => {
            let (comm, _) = put_runner(thread, private);
            private.rank = Some(u32::from(thread.rank.number()));
            Ftrace::Exec(SchedProcessExec {
                filename: Some(comm),
                pid: Some(thread.thread),
                old_pid: Some(thread.thread),
            })
        }
        What::Exit { thread } => Ftrace::Exit(SchedProcessExit { pid: Some(*thread) }),
        What::Softirq { vector, begins } => {
            let softirq = Softirq { vec: Some(u32::from(*vector)) };
            if *begins { Ftrace::SoftirqEntry(softirq) } else { Ftrace::SoftirqExit(softirq) }
        }
        What::Interrupt { irq, begins: true } => Ftrace::IrqHandlerEntry(IrqHandlerEntry {
            irq: Some(*irq as i32),
            name: Some(Bytes::from(irq.to_string())),
        }),
        What::Interrupt { irq, begins: false } => {
            Ftrace::IrqHandlerExit(IrqHandlerExit { irq: Some(*irq as i32) })
        }
        _ => return None,
    })
}

fn wakeup(thread: &Runner, target: CoreId, private: &mut Private) -> SchedWakeup {
    let (comm, prio) = put_runner(thread, private);
    SchedWakeup {
        comm: Some(comm),
        pid: Some(thread.thread),
        prio: Some(prio),
        success: Some(1),
        target_cpu: Some(i32::from(target.0)),
    }
}

/// The events that the kernel's tracepoints do not have.
fn track_event(what: &What, names: &TaskNames, private: &mut Private) -> Option<TrackEvent> {
    let counter = |track: Track, of: CoreId, value: i64| TrackEvent {
        r#type: Some(COUNTER),
        track_uuid: Some(track.uuid(Some(of.0))),
        counter_value: Some(value),
        ..TrackEvent::default()
    };
    Some(match what {
        What::Queue { of, queued, runnable } => {
            private.queued = (queued != runnable).then_some(*queued);
            counter(Track::Queue, *of, i64::from(*runnable))
        }
        What::Load { of, weight, average } => {
            private.average = Some(*average);
            counter(Track::Load, *of, *weight as i64)
        }
        What::Allowed { thread, cores } => instant(
            Track::Affinity,
            format!("{thread} may use {cores}"),
            vec![number("thread", i64::from(*thread)), text("cores", &cores.to_string())],
        ),
        What::Considered { by, search, cores, certainty } => instant(
            Track::Considered,
            format!("core {by} looked at {cores}"),
            vec![
                number("by", i64::from(by.0)),
                text("search", code(&SEARCHES, *search)),
                text("cores", &cores.to_string()),
                text("certainty", code(&CERTAINTIES, *certainty)),
            ],
        ),
        What::Online { of, online } => instant(
            Track::Online,
            format!("core {of} goes {}", if *online { "on line" } else { "off line" }),
            vec![number("core", i64::from(of.0)), number("online", i64::from(*online))],
        ),
        What::Lost { count } => {
            let lost = vec![number("count", *count as i64)];
            instant(Track::Lost, format!("{count} events lost"), lost)
        }
        What::Annotation(words) => {
            instant(Track::Decisions, title(words), vec![text("text", cut(words))])
        }
        What::Pass(pass) => balance::put_pass(pass, private),
        What::Domains(trees) => balance::put_trees(trees, private),
        What::Task(task) => tasks::put_task(task, private),
        What::Decision(decision) => tasks::put_decision(decision, names, private),
        What::Planned(plan) => tasks::put_plan(plan, names, private),
        _ => return None,
    })
}

/// An instant on a track, with its details.
pub fn instant(track: Track, name: String, debug_annotations: Vec<DebugAnnotation>) -> TrackEvent {
    TrackEvent {
        debug_annotations,
        r#type: Some(INSTANT),
        track_uuid: Some(track.uuid(None)),
        name: Some(name),
        counter_value: None,
    }
}

/// What Perfetto shows in the track.
pub fn title(text: &str) -> String {
    text.lines().next().unwrap_or_default().chars().take(100).collect()
}

pub fn cut(text: &str) -> &str {
    let end = (0..=text.len().min(TEXT_MAX)).rev().find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or(0)]
}

pub fn number(name: &str, value: i64) -> DebugAnnotation {
    let name = Some(name.to_owned());
    DebugAnnotation { name, int_value: Some(value), string_value: None }
}

pub fn text(name: &str, value: &str) -> DebugAnnotation {
    let name = Some(name.to_owned());
    DebugAnnotation { name, int_value: None, string_value: Some(value.to_owned()) }
}

/// The event of a track event at this time.
pub fn track(event: Bytes, at: Nanos, private: &Private) -> Result<What, Malformed> {
    if event.len() > TRACK_EVENT_MAX {
        return Err(Malformed("a track event longer than any that is written"));
    }
    let event = &TrackEvent::decode(event).map_err(|_| Malformed("a track event that is none"))?;
    let (track, of) =
        event.track_uuid.and_then(Track::of).ok_or(Malformed("an event on no known track"))?;
    let value = event.counter_value.unwrap_or_default();
    let of = || core(of.map(u32::from));
    Ok(match track {
        Track::Queue => {
            let runnable = u32::try_from(value).map_err(|_| Malformed("a negative queue"))?;
            What::Queue { of: of()?, runnable, queued: private.queued.unwrap_or(runnable) }
        }
        Track::Load => What::Load {
            of: of()?,
            weight: value as u64,
            average: private.average.unwrap_or_default(),
        },
        Track::Considered => What::Considered {
            by: core(Some(numbered(event, "by")? as u32))?,
            search: decode(&SEARCHES, texted(event, "search")?)
                .ok_or(Malformed("an unknown search"))?,
            cores: listed(event, "cores")?.into(),
            certainty: decode(&CERTAINTIES, texted(event, "certainty")?)
                .ok_or(Malformed("an unknown certainty"))?,
        },
        Track::Affinity => What::Allowed {
            thread: numbered(event, "thread")? as i32,
            cores: listed(event, "cores")?.into(),
        },
        Track::Online => What::Online {
            of: core(Some(numbered(event, "core")? as u32))?,
            online: numbered(event, "online")? != 0,
        },
        Track::Lost => What::Lost { count: numbered(event, "count")? as u64 },
        Track::Decisions => match &private.content {
            Some(Content::Decision(decision)) => {
                What::Decision(tasks::take_decision(decision.clone())?)
            }
            // Recorded by an older version.
            _ => What::Annotation(Arc::from(texted(event, "text")?)),
        },
        Track::Passes => What::Pass(Box::new(balance::take_pass(private)?)),
        Track::Domains => What::Domains(Arc::new(balance::take_trees(private)?)),
        Track::Tasks => What::Task(Arc::new(tasks::take_task(private)?)),
        Track::Violations => What::Violation(Arc::new(violation::read(event, at, private)?)),
        Track::Plans => What::Planned(Arc::new(tasks::take_plan(event, private)?)),
        Track::Keyframes => return Err(Malformed("a keyframe without its content")),
    })
}

fn annotation<'a>(event: &'a TrackEvent, name: &str) -> Option<&'a DebugAnnotation> {
    event.debug_annotations.iter().find(|note| note.name.as_deref() == Some(name))
}

pub fn numbered(event: &TrackEvent, name: &str) -> Result<i64, Malformed> {
    let value = annotation(event, name).and_then(|note| note.int_value);
    value.ok_or(Malformed("an event that lacks a number"))
}

pub fn texted<'a>(event: &'a TrackEvent, name: &str) -> Result<&'a str, Malformed> {
    let value = annotation(event, name).and_then(|note| note.string_value.as_deref());
    value.ok_or(Malformed("an event that lacks a text"))
}

pub fn listed(event: &TrackEvent, name: &str) -> Result<CoreSet, Malformed> {
    texted(event, name)?.parse().map_err(|_| Malformed("a list of cores that is none"))
}
