//! Keyframes as messages, in parts where there are many threads.

use std::mem;

use prost::Message;
use prost::bytes::Bytes;
use quell_model::{Activity, CORES_MAX, CoreState, Keyframe, Runner, ThreadName, ThreadState};

use super::THREADS_MAX;
use super::convert::{Malformed, core, put_set, rank, set};
use super::wire::{self, KEYFRAME_CORE, KEYFRAME_THREAD, Value, next_field};

/// Threads of a part: with 128 bytes of allowed cores each, far less than a packet may have.
const PART: usize = 8192;

/// Fields of a core's or a thread's message, each two bytes at least: what takes less is none.
const ENTRY_MIN: usize = 16;

const ACTIVITIES: [Activity; 6] = [
    Activity::Running,
    Activity::Waiting,
    Activity::Throttled,
    Activity::Delayed,
    Activity::Moving,
    Activity::Sleeping,
];

/// The parts of a keyframe, at least one.
pub fn parts(keyframe: &Keyframe) -> Vec<Bytes> {
    let mut cores: Vec<wire::CoreState> = keyframe.cores.iter().map(put_core).collect();
    let mut chunks = keyframe.threads.chunks(PART);
    let mut parts = Vec::new();
    loop {
        let chunk = chunks.next();
        if chunk.is_none() && !parts.is_empty() {
            return parts;
        }
        let threads = chunk.unwrap_or_default().iter().map(put_thread).collect();
        let part = wire::Keyframe { cores: mem::take(&mut cores), threads };
        parts.push(Bytes::from(part.encode_to_vec()));
    }
}

/// Appends what a part holds.
pub fn append(keyframe: &mut Keyframe, mut part: &[u8]) -> Result<(), Malformed> {
    const NONE: Malformed = Malformed("a keyframe that is none");
    while !part.is_empty() {
        let (number, Value::Bytes(entry)) = next_field(&mut part).ok_or(NONE)? else {
            return Err(NONE);
        };
        if entry.len() < ENTRY_MIN {
            return Err(Malformed("a keyframe with an entry that lacks a field"));
        }
        match number {
            KEYFRAME_CORE => keyframe.cores.push(take_core(entry)?),
            KEYFRAME_THREAD => keyframe.threads.push(take_thread(entry)?),
            _ => return Err(NONE),
        }
        if keyframe.cores.len() > CORES_MAX || keyframe.threads.len() > THREADS_MAX {
            return Err(Malformed("a keyframe with more threads or cores than a host can have"));
        }
    }
    Ok(())
}

fn put_core(core: &CoreState) -> wire::CoreState {
    wire::CoreState {
        core: u32::from(core.core.0),
        running: core.running,
        queued: core.queued,
        runnable: core.runnable,
        weight: core.weight,
        average: core.average,
        wake_pending: core.wake_pending,
        domain: put_set(&core.domain),
    }
}

fn take_core(entry: &[u8]) -> Result<CoreState, Malformed> {
    let message = wire::CoreState::decode(entry).map_err(|_| Malformed("a core that is none"))?;
    Ok(CoreState {
        core: core(Some(message.core))?,
        running: message.running,
        queued: message.queued,
        runnable: message.runnable,
        weight: message.weight,
        average: message.average,
        wake_pending: message.wake_pending,
        domain: set(&message.domain)?,
    })
}

fn put_thread(thread: &ThreadState) -> wire::ThreadState {
    wire::ThreadState {
        thread: thread.thread.thread,
        process: thread.thread.process,
        rank: u32::from(thread.thread.rank.number()),
        name: Bytes::copy_from_slice(thread.thread.name.as_bytes()),
        core: u32::from(thread.core.0),
        state: ACTIVITIES.iter().position(|known| *known == thread.state).unwrap_or_default()
            as u32,
        allowed: put_set(&thread.allowed),
        bound: thread.bound,
    }
}

fn take_thread(entry: &[u8]) -> Result<ThreadState, Malformed> {
    let message =
        wire::ThreadState::decode(entry).map_err(|_| Malformed("a thread that is none"))?;
    let state = ACTIVITIES.get(message.state as usize);
    Ok(ThreadState {
        thread: Runner {
            thread: message.thread,
            process: message.process,
            rank: rank(message.rank)?,
            name: ThreadName::new(&message.name),
        },
        core: core(Some(message.core))?,
        state: *state.ok_or(Malformed("a thread that does nothing known"))?,
        allowed: set(&message.allowed)?,
        bound: message.bound,
    })
}
