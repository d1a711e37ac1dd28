//! Lines of ftrace (`trace`, `trace_pipe`), of `trace-cmd report` and of `perf sched script`: all have
//!
//! ```text
//!      name-pid     [core] flags time: event: fields
//! ```
//!
//! with small differences: a space for the dash, the process in parentheses, no flags, `sched:` before the event;
//! and fields as the kernel prints them, or as libtraceevent's plugin does.

use quell_model::{CORES_MAX, CoreId, Left, MoveCause, Nanos, Runner, ThreadName, What};

use super::{NOBODY_KNOWN, Parsed, Raw};
use crate::kernel;

/// `PID_MAX_LIMIT` of 64-bit kernels.
const PID_MAX: i32 = 1 << 22;

/// What stands before the event's fields.
struct Head<'a> {
    /// The thread that ran, and its process where that is told.
    thread: i32,
    process: Option<i32>,
    core: CoreId,
    at: Nanos,
    system: Option<&'a str>,
    event: &'a str,
    fields: &'a str,
}

/// Whether a line that is an event is one of perf's.
pub fn is_perf(line: &str) -> bool {
    head(line).is_some_and(|head| head.system.is_some())
}

/// What a line says.
///
/// # Errors
/// What is wrong with it.
pub fn parse(line: &str) -> Result<Parsed, String> {
    if let Some(parsed) = beside_events(line) {
        return Ok(parsed);
    }
    let Some(head) = head(line) else {
        return Err("neither an event (`name-pid [core] time: event: fields`) nor a comment".into());
    };
    if head.core.index() >= CORES_MAX {
        return Err(format!("core {} is past the highest possible one", head.core));
    }
    match event(&head) {
        Some(Ok((what, prev))) => Ok(Parsed::Event(Raw {
            at: head.at,
            core: head.core,
            what,
            prev,
            process: head.process.map(|process| (head.thread, process)),
        })),
        Some(Err(missing)) => Err(format!("`{}` without a valid {missing}", head.event)),
        None => Ok(Parsed::Other(head.event.to_owned())),
    }
}

/// Comments, headers, and losses.
fn beside_events(line: &str) -> Option<Parsed> {
    let text = line.trim_start();
    if let Some(comment) = text.strip_prefix('#') {
        let cores = comment.rsplit_once("#P:").and_then(|(_, cores)| cores.trim().parse().ok());
        return Some(cores.map_or(Parsed::Nothing, Parsed::Cores));
    }
    if let Some(cores) = text.strip_prefix("cpus=") {
        return cores.trim().parse().ok().map(Parsed::Cores);
    }
    if let Some((core, count)) = lost(text) {
        return Some(Parsed::Lost { core, count });
    }
    let is_stack = text.starts_with("=> ") || line.starts_with('\t');
    let is_header = text.starts_with("version =") || text.starts_with("CPU ");
    (text.is_empty() || is_stack || is_header).then_some(Parsed::Nothing)
}

/// `CPU:1 [LOST 12 EVENTS]` of ftrace; `CPU:1 [12 EVENTS DROPPED]`, `CPU:1 [EVENTS DROPPED]` of trace-cmd.
fn lost(text: &str) -> Option<(CoreId, u64)> {
    let (core, what) = text.strip_prefix("CPU:")?.split_once('[')?;
    let core = core.trim().parse().ok().filter(|core| usize::from(*core) < CORES_MAX)?;
    let what = what.trim_end().strip_suffix(']')?;
    let is_loss = what.starts_with("LOST") || what.ends_with("DROPPED");
    let count = what.split(' ').find_map(|word| word.parse().ok());
    is_loss.then_some((CoreId(core), count.unwrap_or(1)))
}

/// Splits a line. A name may have spaces and brackets: the core is the first bracket behind which a time stands.
fn head(line: &str) -> Option<Head<'_>> {
    let brackets = line.match_indices('[').map(|(at, _)| at);
    brackets.into_iter().find_map(|at| head_at(line, at))
}

fn head_at(line: &str, bracket: usize) -> Option<Head<'_>> {
    let (core, rest) = line[bracket + 1..].split_once(']')?;
    let core = CoreId(core.trim().parse().ok()?);
    let mut words = rest.trim_start();
    let (mut first, mut behind) = words.split_once(' ')?;
    if !first.ends_with(':') || first.contains("..") {
        words = behind.trim_start();
        (first, behind) = words.split_once(' ')?;
    }
    let at = time(first.strip_suffix(':')?)?;
    let (event, fields) = behind.trim_start().split_once(": ").or_else(|| {
        // An event without fields ends with the colon.
        behind.trim().strip_suffix(':').map(|event| (event, ""))
    })?;
    if event.contains(' ') {
        return None;
    }
    let (system, event) = match event.split_once(':') {
        Some((system, event)) => (Some(system), event),
        None => (None, event),
    };
    let (thread, process) = who(&line[..bracket])?;
    Some(Head { thread, process, core, at, system, event, fields: fields.trim() })
}

/// `1234.567890`, with up to nine digits behind the point.
fn time(text: &str) -> Option<Nanos> {
    let (seconds, fraction) = text.split_once('.')?;
    if fraction.is_empty() || fraction.len() > 9 || !fraction.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let seconds: u64 = seconds.parse().ok()?;
    let scale = 10u64.pow(9 - fraction.len() as u32);
    let nanos = fraction.parse::<u64>().ok()? * scale;
    seconds.checked_mul(1_000_000_000)?.checked_add(nanos).map(Nanos)
}

/// `name-12`, `name-12 (  10)`, `name 12`, `name 10/12`: the thread, and its process where it is told.
fn who(text: &str) -> Option<(i32, Option<i32>)> {
    let text = text.trim_end();
    let (text, group) = match text.strip_suffix(')').and_then(|text| text.rsplit_once('(')) {
        Some((text, group)) => (text.trim_end(), group.trim().parse().ok()),
        None => (text, None),
    };
    let digits = text.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (before, thread) = text.split_at(text.len() - digits);
    let thread = thread.parse().ok().filter(|thread| *thread <= PID_MAX)?;
    // Perf has `:-1 -1` for a thread that it does not know.
    let thread: i32 = if before.ends_with(" -") { NOBODY_KNOWN } else { thread };
    let slashed = before.strip_suffix('/').and_then(|text| {
        let digits = text.bytes().rev().take_while(u8::is_ascii_digit).count();
        text[text.len() - digits..].parse().ok()
    });
    Some((thread, group.or(slashed).filter(|process| *process <= PID_MAX)))
}

type Event = (What, Option<Runner>);

/// The event; `None` of a kind that is none of ours, else what of it is missing.
fn event(head: &Head<'_>) -> Option<Result<Event, &'static str>> {
    let fields = head.fields;
    let alone = |what: Result<What, &'static str>| what.map(|what| (what, None));
    Some(match head.event {
        "sched_switch" => switch(fields),
        "sched_waking" => alone(woken(fields).map(|(thread, target)| What::Waking {
            thread,
            target,
            by: head.thread,
        })),
        kind @ ("sched_wakeup" | "sched_wakeup_new") => {
            let is_new = kind == "sched_wakeup_new";
            alone(woken(fields).map(|(thread, on)| What::Woken { thread, on, is_new }))
        }
        "sched_migrate_task" => alone(migrate(fields)),
        "sched_process_fork" => alone(fork(fields)),
        "sched_process_exec" => alone(exec(fields)),
        "sched_process_exit" => alone(exit(fields)),
        "softirq_entry" | "softirq_exit" => alone(softirq(fields, head.event == "softirq_entry")),
        "irq_handler_entry" | "irq_handler_exit" => {
            alone(interrupt(fields, head.event == "irq_handler_entry"))
        }
        _ => return None,
    })
}

/// Where the values of fields of this name begin.
fn values<'a>(fields: &'a str, name: &'a str) -> impl Iterator<Item = usize> + 'a {
    fields.match_indices(name).filter_map(move |(at, _)| {
        let is_whole = at == 0 || fields.as_bytes()[at - 1] == b' ';
        let value = at + name.len();
        (is_whole && fields.as_bytes().get(value) == Some(&b'=')).then_some(value + 1)
    })
}

/// A thread's name, or a path: up to the field `then`. Either may look as if it were fields itself.
fn name<'a>(fields: &'a str, name: &str, then: &str) -> Option<&'a str> {
    let start = values(fields, name).next()?;
    let end = values(fields, then).last()?.checked_sub(then.len() + 1)?;
    Some(fields.get(start..end)?.trim_end())
}

/// The last field of that name, since names of threads stand before numbers.
fn word<'a>(fields: &'a str, name: &str) -> Option<&'a str> {
    fields[values(fields, name).last()?..].split(' ').next()
}

fn number(fields: &str, name: &str) -> Option<i32> {
    word(fields, name)?.parse().ok()
}

fn pid(fields: &str, name: &str) -> Option<i32> {
    number(fields, name).filter(is_pid)
}

fn is_pid(pid: &i32) -> bool {
    (0..=PID_MAX).contains(pid)
}

fn core(number: i32) -> Option<CoreId> {
    u16::try_from(number).ok().filter(|core| usize::from(*core) < CORES_MAX).map(CoreId)
}

fn runner(thread: i32, prio: i32, name: &str) -> Runner {
    Runner {
        thread,
        process: thread,
        rank: kernel::rank(prio, thread),
        name: ThreadName::new(name.as_bytes()),
    }
}

fn switch(fields: &str) -> Result<Event, &'static str> {
    let (left, right) = fields.split_once(" ==> ").ok_or("`==>`")?;
    let (prev, state, next) = if left.starts_with("prev_comm=") {
        let of = |fields, comm, id, prio| {
            Some(runner(pid(fields, id)?, number(fields, prio)?, name(fields, comm, id)?))
        };
        (
            of(left, "prev_comm", "prev_pid", "prev_prio")
                .ok_or("prev_comm, prev_pid, prev_prio")?,
            word(left, "prev_state").ok_or("prev_state")?,
            of(right, "next_comm", "next_pid", "next_prio")
                .ok_or("next_comm, next_pid, next_prio")?,
        )
    } else {
        let (prev, state) = plugin_thread(left).ok_or("thread that left")?;
        let (next, _) = plugin_thread(right).ok_or("thread that came")?;
        (prev, state.trim(), next)
    };
    let how = left_how(state).ok_or("state of the thread that left")?;
    Ok((What::Switch { next, left: prev.thread, how, stolen: Nanos::ZERO }, Some(prev)))
}

/// `name:pid [prio] rest`.
fn plugin_thread(text: &str) -> Option<(Runner, &str)> {
    let (who, rest) = text.rsplit_once('[')?;
    let (prio, rest) = rest.split_once(']')?;
    let (name, thread) = who.trim_end().rsplit_once(':')?;
    let thread = thread.parse().ok().filter(is_pid)?;
    Some((runner(thread, prio.trim().parse().ok()?, name), rest))
}

/// By the letter of the kernel's `TASK_STATE_TO_CHAR_STR`; a `+` is a preemption, and R without it a yield.
fn left_how(state: &str) -> Option<Left> {
    Some(match state.as_bytes().first()? {
        b'R' => Left::Preempted,
        b'S' | b'I' | b'P' => Left::Sleeping,
        b'D' | b'K' | b'W' => Left::Blocked,
        b'T' | b't' => Left::Stopped,
        b'X' | b'x' | b'Z' => Left::Dead,
        _ => return None,
    })
}

fn woken(fields: &str) -> Result<(Runner, CoreId), &'static str> {
    if fields.starts_with("comm=") {
        let name = name(fields, "comm", "pid").ok_or("comm")?;
        let thread = pid(fields, "pid").ok_or("pid")?;
        let prio = number(fields, "prio").ok_or("prio")?;
        let on = number(fields, "target_cpu").and_then(core).ok_or("target_cpu")?;
        return Ok((runner(thread, prio, name), on));
    }
    let (thread, rest) = plugin_thread(fields).ok_or("thread")?;
    let (_, on) = rest.split_once("CPU:").ok_or("CPU")?;
    let on = on.trim_end_matches('>').trim().parse().ok().and_then(core).ok_or("CPU")?;
    Ok((thread, on))
}

fn migrate(fields: &str) -> Result<What, &'static str> {
    Ok(What::Migrate {
        thread: pid(fields, "pid").ok_or("pid")?,
        from: number(fields, "orig_cpu").and_then(core).ok_or("orig_cpu")?,
        to: number(fields, "dest_cpu").and_then(core).ok_or("dest_cpu")?,
        cause: MoveCause::Unknown,
    })
}

fn fork(fields: &str) -> Result<What, &'static str> {
    let name = name(fields, "child_comm", "child_pid").ok_or("child_comm")?;
    let child = pid(fields, "child_pid").ok_or("child_pid")?;
    let parent = pid(fields, "pid").ok_or("pid")?;
    Ok(What::Fork { parent, child: runner(child, 120, name) })
}

fn exec(fields: &str) -> Result<What, &'static str> {
    let path = name(fields, "filename", "pid").ok_or("filename")?;
    let thread = pid(fields, "pid").ok_or("pid")?;
    let name = path.rsplit('/').next().unwrap_or(path);
    Ok(What::Exec { thread: runner(thread, 120, name) })
}

fn exit(fields: &str) -> Result<What, &'static str> {
    Ok(What::Exit { thread: pid(fields, "pid").ok_or("pid")? })
}

/// `vec=7 [action=SCHED]`.
fn softirq(fields: &str, begins: bool) -> Result<What, &'static str> {
    let vector = first_number(fields, "vec").and_then(|vector| u8::try_from(vector).ok());
    Ok(What::Softirq { vector: vector.ok_or("vec")?, begins })
}

/// `irq=25 name=virtio0`, `irq=25 ret=handled`. The name of a device may look like a field: the number is first.
fn interrupt(fields: &str, begins: bool) -> Result<What, &'static str> {
    let irq = first_number(fields, "irq").and_then(|irq| u32::try_from(irq).ok());
    Ok(What::Interrupt { irq: irq.ok_or("irq")?, begins })
}

/// The first field of that name, where a text stands behind it.
fn first_number(fields: &str, name: &str) -> Option<i32> {
    fields[values(fields, name).next()?..].split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn softirq_and_interrupt_lines_keep_number_and_edge() {
        let line = |event| format!("  <idle>-0     [001] d.h1.  12.500000: {event}");
        for (event, expected) in [
            ("softirq_entry: vec=3 [action=NET_RX]", What::Softirq { vector: 3, begins: true }),
            ("softirq_exit: vec=7 [action=SCHED]", What::Softirq { vector: 7, begins: false }),
            ("irq_handler_entry: irq=25 name=a irq=9", What::Interrupt { irq: 25, begins: true }),
            ("irq_handler_exit: irq=25 ret=handled", What::Interrupt { irq: 25, begins: false }),
        ] {
            assert_eq!(what(&line(event)), expected);
        }
        for event in [
            "softirq_entry: vec=256",
            "irq_handler_entry: irq=-1 name=x",
            "irq_handler_exit: ret=unhandled",
        ] {
            assert!(parse(&line(event)).is_err(), "{event}");
        }
        let perf =
            "ksoftirqd/1    17 [001]    12.500000:        irq:softirq_entry: vec=1 [action=TIMER]";
        assert_eq!(what(perf), What::Softirq { vector: 1, begins: true });
    }

    fn what(line: &str) -> What {
        match parse(line) {
            Ok(Parsed::Event(raw)) => raw.what,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_three_programs_lines_say_the_same() {
        let lines = [
            "            bash-1234    [001] d..2.  12.500000: sched_switch: prev_comm=bash prev_pid=1234 prev_prio=120 prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120",
            "            bash-1234    (   1200) [001] d..2.  12.500000: sched_switch: prev_comm=bash prev_pid=1234 prev_prio=120 prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120",
            "            bash-1234  [001]    12.500000000: sched_switch:         bash:1234 [120] S ==> swapper/1:0 [120]",
            "            bash  1234 [001]    12.500000:       sched:sched_switch: prev_comm=bash prev_pid=1234 prev_prio=120 prev_state=S ==> next_comm=swapper/1 next_pid=0 next_prio=120",
        ];
        let expected = What::Switch {
            next: runner(0, 120, "swapper/1"),
            left: 1234,
            how: Left::Sleeping,
            stolen: Nanos::ZERO,
        };
        for line in lines {
            let Ok(Parsed::Event(raw)) = parse(line) else { panic!("{line}") };
            assert_eq!((raw.at, raw.core), (Nanos::from_millis(12_500), CoreId(1)), "{line}");
            assert_eq!(raw.what, expected, "{line}");
            assert_eq!(raw.prev, Some(runner(1234, 120, "bash")));
        }
        let Ok(Parsed::Event(raw)) = parse(lines[1]) else { panic!() };
        assert_eq!(raw.process, Some((1234, 1200)));
        assert!(is_perf(lines[3]) && !is_perf(lines[0]));
    }

    #[test]
    fn names_may_have_spaces_brackets_and_equal_signs() {
        let what = what(
            "Web [000] 1.5: x-77   [002] dNh2. 3.000001: sched_waking: comm=a pid= b [1] pid=5 prio=98 target_cpu=003",
        );
        let What::Waking { thread, by, target } = what else { panic!("{what:?}") };
        assert_eq!((thread.thread, by, target), (5, 77, CoreId(3)));
        assert_eq!(thread.rank, quell_model::Rank::realtime(1));
    }

    #[test]
    fn losses_and_headers_are_understood() {
        assert!(matches!(
            parse("CPU:1 [LOST 12 EVENTS]"),
            Ok(Parsed::Lost { core: CoreId(1), count: 12 })
        ));
        assert!(matches!(parse("CPU:0 [EVENTS DROPPED]"), Ok(Parsed::Lost { count: 1, .. })));
        assert!(matches!(
            parse("# entries-in-buffer/entries-written: 93/93   #P:16"),
            Ok(Parsed::Cores(16))
        ));
        assert!(matches!(parse("cpus=4"), Ok(Parsed::Cores(4))));
        assert!(matches!(parse(""), Ok(Parsed::Nothing)));
    }

    #[test]
    fn what_is_wrong_is_said() {
        let wrong = |line: &str| parse(line).unwrap_err();
        assert!(wrong("hello world").contains("neither an event"));
        let line = "a-1 [000] .... 1.000000: sched_migrate_task: comm=a pid=1 prio=120 orig_cpu=0 dest_cpu=x";
        assert!(wrong(line).contains("dest_cpu"));
        let line = "a-1 [000] .... 1.000000: sched_process_exit: comm=a pid=99999999 prio=120";
        assert!(wrong(line).contains("pid"));
    }

    #[test]
    fn other_events_are_named() {
        let line = "a-1 [000] .... 1.000000: timer_expire_entry: irq=1 name=timer";
        assert!(matches!(parse(line), Ok(Parsed::Other(kind)) if kind == "timer_expire_entry"));
    }
}
