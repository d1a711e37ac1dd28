//! Tasks, decisions and plans of Quell as messages. Perfetto's UI shows a title and details; the typed values lie in
//! fields of our own.

use prost::Message;
use prost::bytes::Bytes;
use quell_model::{
    Class, CoreDecision, CoreMode, Nanos, PlanReason, Planned, Reason, TaskId, TaskInfo, TaskNames,
    TaskReason,
};

use super::convert::{
    Malformed, Track, core, cut, instant, listed, number, numbered, text, texted, title,
};
use super::wire::{self, Content, Private, TrackEvent};
use super::write::bytes;

/// Maximum size of a decision's or a reason's message in bytes.
const SMALL_MAX: usize = 256;
/// Maximum size of a task's message in bytes: each process id takes at most five.
const TASK_MAX: usize = SMALL_MAX + TaskInfo::NAME_MAX + 5 * TaskInfo::PROCESSES_MAX;

const CLASSES: [Class; 2] = [Class::LatencyCritical, Class::BestEffort];

const MODES: [CoreMode; 5] =
    [CoreMode::Kernel, CoreMode::Lane, CoreMode::Runtime, CoreMode::Idled, CoreMode::Unmanaged];

const BAD_REASON: Malformed = Malformed("a reason that is none");

/// The index of an item in a table that has every value.
fn index<T: PartialEq>(table: &[T], of: &T) -> u32 {
    table.iter().position(|known| known == of).unwrap_or_default() as u32
}

pub fn put_task(task: &TaskInfo, private: &mut Private) -> TrackEvent {
    let end = (0..=task.name.len().min(TaskInfo::NAME_MAX)).rev();
    let end = end.into_iter().find(|end| task.name.is_char_boundary(*end)).unwrap_or(0);
    let processes = &task.processes[..task.processes.len().min(TaskInfo::PROCESSES_MAX)];
    let message = wire::Task {
        id: put_id(task.id),
        name: task.name[..end].to_owned(),
        class: index(&CLASSES, &task.class),
        processes: processes.to_vec(),
    };
    private.content = Some(Content::Task(bytes(&message)));
    let title = format!("{} ({}): {} processes", message.name, task.class, processes.len());
    instant(Track::Tasks, title, Vec::new())
}

pub fn take_task(private: &Private) -> Result<TaskInfo, Malformed> {
    let Some(Content::Task(bytes)) = &private.content else {
        return Err(Malformed("a task without its content"));
    };
    let task: wire::Task = decode(bytes.clone(), TASK_MAX, Malformed("a task that is none"))?;
    if task.name.len() > TaskInfo::NAME_MAX || task.processes.len() > TaskInfo::PROCESSES_MAX {
        return Err(Malformed("a task with a longer name or more processes than any has"));
    }
    let class = CLASSES.get(task.class as usize);
    Ok(TaskInfo {
        id: take_id(task.id),
        name: task.name,
        class: *class.ok_or(Malformed("a task of no known class"))?,
        processes: task.processes,
    })
}

pub fn put_decision(
    decision: &CoreDecision,
    names: &TaskNames,
    private: &mut Private,
) -> TrackEvent {
    let message = wire::Decision {
        core: u32::from(decision.core.0),
        from: decision.from.map(put_id),
        to: decision.to.map(put_id),
        mode: index(&MODES, &decision.mode),
        reason: put_reason(decision.reason),
    };
    private.content = Some(Content::Decision(bytes(&message)));
    let line = decision.line(|id| names.name(id));
    instant(Track::Decisions, title(&line), vec![text("text", cut(&line))])
}

pub fn take_decision(bytes: Bytes) -> Result<CoreDecision, Malformed> {
    let message: wire::Decision = decode(bytes, SMALL_MAX, Malformed("a decision that is none"))?;
    let mode = MODES.get(message.mode as usize);
    Ok(CoreDecision {
        core: core(Some(message.core))?,
        from: message.from.map(take_id),
        to: message.to.map(take_id),
        mode: *mode.ok_or(Malformed("a decision of no known mode"))?,
        reason: take_reason(message.reason)?,
    })
}

pub fn put_plan(plan: &Planned, names: &TaskNames, private: &mut Private) -> TrackEvent {
    if let PlanReason::Task { task, reason } = &plan.reason {
        let (task, reason) = (put_id(*task), put_task_reason(*reason));
        let message = wire::PlanReason { task, reason };
        private.content = Some(Content::PlanReason(bytes(&message)));
    }
    let reason = names.plan_reason(&plan.reason);
    instant(
        Track::Plans,
        format!("{} may use {}: {}", plan.process, plan.cores, title(&reason)),
        vec![
            number("process", i64::from(plan.process)),
            text("original", &plan.original.to_string()),
            text("cores", &plan.cores.to_string()),
            text("reason", cut(&reason)),
        ],
    )
}

pub fn take_plan(event: &TrackEvent, private: &Private) -> Result<Planned, Malformed> {
    let reason = match &private.content {
        Some(Content::PlanReason(bytes)) => {
            let message: wire::PlanReason = decode(bytes.clone(), SMALL_MAX, BAD_REASON)?;
            let reason = take_task_reason(message.reason)?;
            PlanReason::Task { task: take_id(message.task), reason }
        }
        // Recorded by an older version.
        _ => PlanReason::Text(texted(event, "reason")?.into()),
    };
    Ok(Planned {
        process: numbered(event, "process")? as i32,
        original: listed(event, "original")?,
        cores: listed(event, "cores")?,
        reason,
    })
}

/// Decodes a message of a bounded size: its lists take more memory than its bytes.
fn decode<M: Message + Default>(bytes: Bytes, max: usize, or: Malformed) -> Result<M, Malformed> {
    let message = (bytes.len() <= max).then(|| M::decode(bytes).ok()).flatten();
    message.ok_or(or)
}

fn put_id(id: TaskId) -> wire::TaskId {
    wire::TaskId { index: id.index, generation: id.generation }
}

fn take_id(id: wire::TaskId) -> TaskId {
    TaskId { index: id.index, generation: id.generation }
}

/// Times past 292 years are cut to what the field holds.
fn time(time: Nanos) -> i64 {
    i64::try_from(time.0).unwrap_or(i64::MAX)
}

fn take_time(value: i64) -> Result<Nanos, Malformed> {
    u64::try_from(value).map(Nanos).map_err(|_| BAD_REASON)
}

fn put_reason(reason: Reason) -> wire::Reason {
    let (kind, value) = match reason {
        Reason::Unmanaged => (0, 0),
        Reason::Offline => (1, 0),
        Reason::Guaranteed => (2, 0),
        Reason::Congested(delay) => (3, time(delay)),
        Reason::Kept => (4, 0),
        Reason::HandedOver => (5, 0),
        Reason::Leftover => (6, 0),
        Reason::Unwanted => (7, 0),
        Reason::BannedFor(core) => (8, i64::from(core.0)),
        Reason::Capped => (9, 0),
        Reason::Refused(errno) => (10, i64::from(errno)),
        Reason::InsteadOf(core) => (11, i64::from(core.0)),
    };
    wire::Reason { kind, value }
}

fn take_reason(reason: wire::Reason) -> Result<Reason, Malformed> {
    let wire::Reason { kind, value } = reason;
    let of_core = || core(u32::try_from(value).ok());
    Ok(match kind {
        0 => Reason::Unmanaged,
        1 => Reason::Offline,
        2 => Reason::Guaranteed,
        3 => Reason::Congested(take_time(value)?),
        4 => Reason::Kept,
        5 => Reason::HandedOver,
        6 => Reason::Leftover,
        7 => Reason::Unwanted,
        8 => Reason::BannedFor(of_core()?),
        9 => Reason::Capped,
        10 => Reason::Refused(i32::try_from(value).map_err(|_| BAD_REASON)?),
        11 => Reason::InsteadOf(of_core()?),
        _ => return Err(BAD_REASON),
    })
}

fn put_task_reason(reason: TaskReason) -> wire::Reason {
    let (kind, value) = match reason {
        TaskReason::Configured => (0, 0),
        TaskReason::Owner => (1, 0),
        TaskReason::Guest => (2, 0),
        TaskReason::RanAway(run) => (3, time(run)),
        TaskReason::DelaysLc(delay) => (4, time(delay)),
        TaskReason::Capped => (6, 0),
        TaskReason::Banned => (7, 0),
        TaskReason::NoCore => (8, 0),
        TaskReason::Hyperthread => (9, 0),
    };
    wire::Reason { kind, value }
}

fn take_task_reason(reason: wire::Reason) -> Result<TaskReason, Malformed> {
    let wire::Reason { kind, value } = reason;
    Ok(match kind {
        0 => TaskReason::Configured,
        1 => TaskReason::Owner,
        2 => TaskReason::Guest,
        3 => TaskReason::RanAway(take_time(value)?),
        4 => TaskReason::DelaysLc(take_time(value)?),
        6 => TaskReason::Capped,
        // 5 is in older traces only: kept off cores that LC left almost no idle time, for the kernel's fair server.
        5 | 7 => TaskReason::Banned,
        8 => TaskReason::NoCore,
        9 => TaskReason::Hyperthread,
        _ => return Err(BAD_REASON),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reason_of_the_fair_server_in_an_older_trace_is_a_ban() {
        let reason = take_task_reason(wire::Reason { kind: 5, value: 0 });
        assert_eq!(reason.ok(), Some(TaskReason::Banned));
    }
}
