//! Large writes of streams that keep no copy: they go from the application's memory to a channel.
//!
//! Threads that write at the same time take turns at the channel, rather than copy what they have into memory where it
//! grows cold.

use std::task::Waker;

use quell_model::Nanos;
use quell_net_engine::{Direct, Key};

use crate::core::{Core, Sending};
use crate::error::Error;
use crate::stream::{Stream, WRITE_MAX, register_writer, writable};

/// What a look at a stream says.
enum Turn {
    /// Its bytes have to be copied.
    Copies,
    /// The channel is this thread's, with so many bytes gathered.
    Own(Sending, usize),
}

impl Stream {
    /// Writes without copying, if this stream can; waits for its turn.
    pub(crate) fn write_directly(&self, bytes: &[u8]) -> Result<Option<usize>, Error> {
        let key = self.key();
        let shared = self.endpoint().shared();
        let bytes = &bytes[..bytes.len().min(WRITE_MAX)];
        let turn = shared.wait(
            &[self.interest(true)],
            self.write_until(),
            |core, now| core.take_turn(key, bytes, now).transpose(),
            |core, waker, waits| {
                register_writer(core, key, waker, waits);
                if waits { core.await_turn(key, waker) } else { core.leave_turns(waker) }
            },
        )??;
        let (mut sending, length) = match turn {
            Turn::Copies => return Ok(None),
            Turn::Own(sending, length) => (sending, length),
        };
        let (pool, _) = shared.with(|core, _| core.pool.clone());
        let result = sending.outbox.send_direct(&bytes[..length], &pool);
        shared.act(|core, now| core.sent(sending, result, now));
        Ok(Some(length))
    }
}

impl Core {
    /// Gathers the next bytes of a stream, if its channel is free.
    fn take_turn(&mut self, key: Key, bytes: &[u8], now: Nanos) -> Result<Option<Turn>, Error> {
        writable(self, key)?;
        let (chosen, credit) = match self.engine.direct(key) {
            Direct::Never => return Ok(Some(Turn::Copies)),
            Direct::NoCredit => {
                self.engine.wants_room(key);
                return Ok(None);
            }
            Direct::Channel(chosen, credit) => (chosen, credit),
        };
        let Some((_, start)) = self.engine.send_range(key) else { return Err(Error::Closed) };
        let Some(channel) = self.channels.get_mut(chosen) else {
            return Ok(Some(Turn::Copies));
        };
        if channel.thread.is_some() {
            // Another thread sends, when this one has gone on.
            return Ok(Some(Turn::Copies));
        }
        if !channel.is_free() {
            return Ok(None);
        }
        let Some(mut outbox) = channel.outbox.take() else { return Ok(None) };
        channel.was_sent_on = true;
        let rtt = channel.rtt;
        let length = bytes.len().min(usize::try_from(credit).unwrap_or(usize::MAX));
        self.engine.written(key, length as u64, now);
        let socket = (key, start);
        let end = outbox.gather_direct(&mut self.engine, chosen, &self.sockets, socket, now);
        // The rest goes to another channel.
        let rest = &bytes[(end - start) as usize..length];
        self.sockets.of(key).written.copy(&self.pool, end, rest);
        self.engine.channel_load(chosen, outbox.backlog(), false, rtt);
        Ok(Some(Turn::Own(Sending { key: chosen, outbox }, length)))
    }

    /// A thread waits until a channel of its stream is free.
    fn await_turn(&mut self, key: Key, waker: &Waker) {
        self.leave_turns(waker);
        if let Direct::Channel(chosen, _) = self.engine.direct(key)
            && let Some(channel) = self.channels.get_mut(chosen)
        {
            channel.turns.add(waker);
        }
    }

    /// A thread waits no more. If it was its turn and it has not taken it, it is another's.
    fn leave_turns(&mut self, waker: &Waker) {
        let mut free = Vec::new();
        for (key, channel) in self.channels.iter_mut() {
            channel.turns.remove(waker);
            if channel.is_free() {
                free.push(key);
            }
        }
        free.into_iter().for_each(|key| self.pass_turn(key));
    }

    /// A channel is free for the thread that has waited longest.
    pub(crate) fn pass_turn(&mut self, key: Key) {
        let next = self.channels.get_mut(key).and_then(|channel| channel.turns.first());
        self.wake(next);
    }
}
