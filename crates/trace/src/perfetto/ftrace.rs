//! Ftrace events, which most of a trace is made of, taken apart without a copy of their names.
//!
//! The fields are those of the messages in [`wire`](super::wire) by which they are written.

use quell_model::{CoreId, Left, Nanos, Runner, ThreadName, What};

use super::convert::{CAUSES, LEFT, Malformed, core, decode, rank};
use super::wire::{Flat, Value, next_field};
use crate::kernel;

const NONE: Malformed = Malformed("an ftrace event that is none");

/// An event of a bundle.
pub struct Ftraced {
    pub at: Nanos,
    pub what: What,
    /// [`Private::skip`](super::wire::Private).
    pub skip: u32,
    /// [`Private::sequence`](super::wire::Private).
    pub sequence: Option<u64>,
}

/// The event of an `FtraceEvent`; `None` of a kind that is none of ours.
pub fn take(mut message: &[u8]) -> Result<Option<Ftraced>, Malformed> {
    let (mut at, mut ran, mut event, mut private) = (0, 0, None, Flat::default());
    while !message.is_empty() {
        match next_field(&mut message).ok_or(NONE)? {
            (1, Value::Number(time)) => at = time,
            (2, Value::Number(thread)) => ran = thread as i32,
            (2000, Value::Bytes(bytes)) => private = Flat::of(bytes).ok_or(NONE)?,
            (kind, Value::Bytes(bytes)) => event = Some((kind, bytes)),
            _ => {}
        }
    }
    let Some((kind, fields)) = event else { return Ok(None) };
    let what = what(kind, &Flat::of(fields).ok_or(NONE)?, ran, &private)?;
    let skip = private.number(1).unwrap_or_default() as u32;
    Ok(what.map(|what| Ftraced { at: Nanos(at), what, skip, sequence: private.number(2) }))
}

fn what(kind: u32, fields: &Flat, ran: i32, private: &Flat) -> Result<Option<What>, Malformed> {
    // `SchedWakeup` of all three kinds.
    let woken = || runner(fields.int32(2), fields.int32(3), fields.bytes(1), private);
    let target = || target(fields, 5);
    Ok(Some(match kind {
        4 => What::Switch {
            next: runner(fields.int32(6), fields.int32(7), fields.bytes(5), private)?,
            left: fields.int32(2),
            how: left(fields.number(4).unwrap_or_default() as i64)?,
            stolen: Nanos(private.number(7).unwrap_or_default()),
        },
        17 => What::Woken { thread: woken()?, on: target()?, is_new: false },
        20 => What::Waking { thread: woken()?, by: ran, target: target()? },
        114 => What::Woken { thread: woken()?, on: target()?, is_new: true },
        24 | 25 => What::Softirq { vector: vector(fields)?, begins: kind == 24 },
        36 | 37 => What::Interrupt { irq: irq(fields)?, begins: kind == 36 },
        237 => What::Exec { thread: runner(fields.int32(2), 0, fields.bytes(1), private)? },
        238 => What::Exit { thread: fields.int32(2) },
        239 => What::Fork {
            parent: fields.int32(2),
            child: runner(fields.int32(4), 0, fields.bytes(3), private)?,
        },
        491 => What::Migrate {
            thread: fields.int32(2),
            from: self::target(fields, 4)?,
            to: target()?,
            cause: *CAUSES
                .get(private.number(8).unwrap_or_default() as usize)
                .ok_or(Malformed("a migration of no known cause"))?,
        },
        _ => return Ok(None),
    }))
}

/// A thread, by the fields of its event and by what these cannot hold.
fn runner(
    thread: i32,
    prio: i32,
    comm: Option<&[u8]>,
    private: &Flat,
) -> Result<Runner, Malformed> {
    let rank = match private.number(5) {
        None => kernel::rank(prio, thread),
        Some(number) => rank(number as u32)?,
    };
    // A `sint32`.
    let signed = |number: u64| (number as u32 >> 1) as i32 ^ -(number as i32 & 1);
    let process = private.number(4).map_or(thread, signed);
    let name = ThreadName::new(private.bytes(6).or(comm).unwrap_or_default());
    Ok(Runner { thread, process, rank, name })
}

fn target(fields: &Flat, field: usize) -> Result<CoreId, Malformed> {
    core(fields.number(field).map(|number| number as u32))
}

fn left(state: i64) -> Result<Left, Malformed> {
    let known = decode(&LEFT, state);
    known.ok_or(Malformed("a switch that leaves a thread in no known state"))
}

fn vector(fields: &Flat) -> Result<u8, Malformed> {
    let vector = u8::try_from(fields.number(1).unwrap_or_default() as u32);
    vector.map_err(|_| Malformed("a softirq vector past 255"))
}

fn irq(fields: &Flat) -> Result<u32, Malformed> {
    u32::try_from(fields.int32(1)).map_err(|_| Malformed("a negative interrupt number"))
}
