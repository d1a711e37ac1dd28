//! What threads do with an endpoint: act under its lock, send what became due, read channels while they wait.
//!
//! - A thread that makes frames due sends them itself, unless another is sending on that channel: then that one takes them
//!   along. So batches appear under load and no message waits for a thread to be woken.
//! - A thread that waits reads the channels itself, for all sockets that use them; further ones sleep until it passes them
//!   their bytes, or the reading.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

use crate::batch;
use crate::core::Core;
use crate::error::Error;
use crate::helper::LOOK;
use crate::leading::{Interest, Led, Step, Waiting};
use crate::slices;
use crate::threads;
use crate::transport::Readiness;
use crate::waiter::{Waiter, Wanted, wake_time};
use quell_model::Nanos;
use quell_net_engine::{Class, Key};

/// A thread sends for others at most so often in a row before it leaves the rest to the helper.
const SENDS_MAX: usize = 256;

/// A thread of placed channels sends so often in a row before it reads.
const SENDS_PLACED: usize = 4;

/// See the module.
pub(crate) struct Shared {
    core: Mutex<Core>,
    start: Instant,
    /// That threads of latency sockets ask for.
    latency_slice: Nanos,
}

/// Full channels of a wait.
pub(crate) type Blocked = Vec<(Key, Arc<dyn Readiness>)>;

/// Threads of bulk data that are woken once their reader has found nothing more, or much: each is woken for whole frames, as a
/// rule, and none runs in the middle of the reading.
#[derive(Default)]
pub(crate) struct Held {
    wakes: Vec<Waker>,
    /// Of the first of them.
    since: Option<Instant>,
    bytes: usize,
}

/// Bytes that a thread reads before it wakes others.
const HELD_BYTES: usize = 512 << 10;
/// Others are woken after this time, for a part of a frame if need be.
const HELD_TIME: Duration = Duration::from_micros(200);
/// How long a thread waits for more bulk data after much has come, before it has itself woken for it: each wake-up costs the
/// sender's core an interrupt to this one, and brings the few bytes that came first.
const NAP: Duration = Duration::from_micros(50);

impl Held {
    fn hold(&mut self, wakes: Vec<Waker>) {
        if self.wakes.is_empty() && !wakes.is_empty() {
            self.since = Some(Instant::now());
        }
        self.wakes.extend(wakes);
    }

    /// What a thread has read is about to be taken apart.
    pub fn read(&mut self, led: &[Led]) {
        self.bytes += led.iter().map(|it| it.input.bytes()).sum::<usize>();
    }

    /// Whether they have to be woken now.
    pub fn is_over(&self) -> bool {
        self.bytes >= HELD_BYTES || self.since.is_some_and(|since| since.elapsed() >= HELD_TIME)
    }

    pub fn release(&mut self) {
        (self.bytes, self.since) = (0, None);
        self.wakes.drain(..).for_each(Waker::wake);
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.release();
    }
}

/// An endpoint's state under its lock: std's, or loom's in the models.
pub(crate) trait Locked {
    /// Acts under the lock, then wakes the waiters that it concerns. Returns whether there is something to send, too.
    fn locked<T>(&self, act: impl FnOnce(&mut Core, Nanos) -> T) -> (T, bool);
}

impl Locked for Shared {
    fn locked<T>(&self, act: impl FnOnce(&mut Core, Nanos) -> T) -> (T, bool) {
        self.with(act)
    }
}

/// Sends what is due on all channels on which no other thread sends: such a thread takes along what became due meanwhile.
pub(crate) fn send_due(endpoint: &impl Locked, only_latency: bool) {
    for _ in 0..SENDS_MAX {
        let (sending, has_more) = endpoint.locked(|core, now| core.next_sending(only_latency, now));
        let Some(mut sending) = sending else {
            // What was gathered may have gone to another channel meanwhile.
            if has_more && !only_latency {
                continue;
            }
            return;
        };
        let result = sending.outbox.send();
        let ((), has_more) = endpoint.locked(|core, now| core.sent(sending, result, now));
        if !has_more {
            return;
        }
    }
    endpoint.locked(|core, _| core.wake_helper());
}

/// Sends what is due on the channels of a thread of the endpoint: some, for it reads them, too.
pub(crate) fn send_placed(endpoint: &impl Locked, thread: usize) {
    for _ in 0..SENDS_PLACED {
        let (sending, mut has_more) =
            endpoint.locked(|core, now| core.next_sending_of(thread, now));
        let was_last = sending.is_none();
        if let Some(mut sending) = sending {
            let result = sending.outbox.send();
            has_more |= endpoint.locked(|core, now| core.sent(sending, result, now)).1;
        }
        if has_more {
            // Other threads than this one have something to send now.
            send_due(endpoint, false);
        }
        if was_last {
            return;
        }
    }
}

impl Shared {
    pub fn new(core: Core, latency_slice: Nanos) -> Shared {
        Shared { core: Mutex::new(core), start: Instant::now(), latency_slice }
    }

    /// The engine's time.
    pub fn now(&self) -> Nanos {
        Nanos(u64::try_from(self.start.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        // The engine checks what it is given and does not panic halfway; if it did, sockets would fail rather than all hang.
        self.core.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Acts under the lock, then wakes the waiters that it concerns. Returns whether there is something to send, too.
    pub fn with<T>(&self, act: impl FnOnce(&mut Core, Nanos) -> T) -> (T, bool) {
        let mut held = Held::default();
        self.with_held(&mut held, act)
    }

    /// The same, and wakes no reader of bulk data yet.
    pub fn with_held<T>(
        &self,
        held: &mut Held,
        act: impl FnOnce(&mut Core, Nanos) -> T,
    ) -> (T, bool) {
        let now = self.now();
        let (result, [wakes, bulk_wakes], has_frames) = threads::hold(|| {
            let mut core = self.lock();
            let result = act(&mut core, now);
            let (wakes, has_frames) = core.dispatch();
            (result, wakes, has_frames)
        });
        wakes.into_iter().for_each(Waker::wake);
        held.hold(bulk_wakes);
        (result, has_frames)
    }

    /// The same, and sends.
    pub fn act<T>(&self, act: impl FnOnce(&mut Core, Nanos) -> T) -> T {
        let (result, has_frames) = self.with(act);
        if has_frames {
            self.flush();
        }
        result
    }

    /// Sends what is due on all channels on which no other thread sends.
    pub fn flush(&self) {
        self.send(false);
    }

    /// The same for a thread of latency sockets, which does not send bulk data for others.
    pub fn flush_latency(&self) {
        self.send(true);
    }

    fn send(&self, only_latency: bool) {
        send_due(self, only_latency);
    }

    /// A thread of the endpoint reads channels, as one of the program does that waits.
    pub fn note_reads_of(&self, led: &[Led]) {
        if !led.is_empty() && led.iter().all(|it| it.class == Class::Latency) {
            slices::note_wait(self.latency_slice);
        }
    }

    /// Waits until `check` has a result, and reads channels meanwhile. `register` is called under the lock before the
    /// thread sleeps, so that the events that change the answer wake it.
    pub fn wait<T>(
        &self,
        interests: &[Interest],
        until: Option<Instant>,
        check: impl FnMut(&mut Core, Nanos) -> Option<T>,
        register: impl Fn(&mut Core, &Waker, bool),
    ) -> Result<T, Error> {
        self.wait_with(None, interests, until, check, register)
    }

    /// The same with a waiter that others know already.
    pub fn wait_with<T>(
        &self,
        waiter: Option<&Arc<Waiter>>,
        interests: &[Interest],
        until: Option<Instant>,
        mut check: impl FnMut(&mut Core, Nanos) -> Option<T>,
        register: impl Fn(&mut Core, &Waker, bool),
    ) -> Result<T, Error> {
        let only_latency = !interests.is_empty()
            && interests.iter().all(|it| it.class == Class::Latency || it.is_weak);
        let (found, has_frames) = self.with(&mut check);
        // Answers that wait for others wait on while those come at once.
        if has_frames && !(found.is_some() && batch::holds(self)) {
            self.send(only_latency);
        }
        if let Some(found) = found {
            return Ok(found);
        }
        let own;
        let waiter = match waiter {
            Some(waiter) => waiter,
            None => {
                own = Waiter::current()
                    .map_err(|source| Error::io("create an eventfd to wait with", source))?;
                &own
            }
        };
        let is_latency = |it: &Interest| it.class == Class::Latency && !it.is_weak;
        if !interests.is_empty() && interests.iter().all(is_latency) {
            slices::note_wait(self.latency_slice);
        }
        let waker = Waker::from(Arc::clone(waiter));
        let mut led: Vec<Led> = Vec::new();
        let mut held = Held::default();
        let mut failure = None;
        loop {
            waiter.reset();
            let is_over = failure.is_some() || until.is_some_and(|until| Instant::now() >= until);
            held.read(&led);
            let is_in_the_way = waiter.is_in_the_way();
            let thread = Waiting { interests, waker: &waker, is_over, is_in_the_way };
            let (step, has_frames) = self.with_held(&mut held, |core, now| {
                core.step(&thread, &mut led, &mut check, &register, now)
            });
            let is_bulk = !led.is_empty() && led.iter().all(|it| it.class == Class::Throughput);
            if !is_bulk || has_frames || held.is_over() || matches!(step, Step::Done(_)) {
                held.release();
            }
            if has_frames {
                self.send(only_latency);
            }
            match step {
                Step::Done(Some(found)) => return Ok(found),
                Step::Done(None) => return Err(failure.unwrap_or(Error::TimedOut)),
                Step::Yield => {
                    held.release();
                    threads::yield_now();
                }
                Step::Wait(blocked) => {
                    let led = &mut led;
                    failure = self.lead(&blocked, waiter, until, led, &mut held).err();
                }
            }
        }
    }

    /// What `check` says, at once or after one look at the channels.
    pub fn look<T>(
        &self,
        interests: &[Interest],
        mut check: impl FnMut(&mut Core, Nanos) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let only_latency = interests.iter().all(|it| it.class == Class::Latency);
        let (found, has_frames) = self.with(&mut check);
        if has_frames {
            self.send(only_latency);
        }
        if found.is_some() {
            return Ok(found);
        }
        let waiter = Waiter::current()
            .map_err(|source| Error::io("create an eventfd to wait with", source))?;
        let waker = Waker::from(Arc::clone(&waiter));
        let mut led: Vec<Led> = Vec::new();
        self.with(|core, _| {
            for interest in interests {
                core.take_free_inboxes(*interest, &waker, &mut led);
            }
        });
        // No `poll` was asked: the channels are.
        led.iter_mut().for_each(|it| it.inbox.woken());
        read_all(&mut led);
        let (found, has_frames) = self.with(|core, now| {
            core.parse(&mut led, now);
            core.give_back(&mut led);
            let found = check(core, now);
            interests.iter().for_each(|interest| core.leave(*interest, &waker, now));
            found
        });
        if has_frames {
            self.send(only_latency);
        }
        Ok(found)
    }

    /// Reads what has arrived; if nothing has, sleeps first.
    pub fn lead(
        &self,
        blocked: &Blocked,
        waiter: &Arc<Waiter>,
        until: Option<Instant>,
        led: &mut [Led],
        held: &mut Held,
    ) -> Result<(), Error> {
        if read_all(led) {
            return Ok(());
        }
        let mut until = until;
        let holds = !held.wakes.is_empty() && led.iter().any(|it| it.inbox.expects_more());
        if holds {
            let soon = Instant::now() + HELD_TIME;
            until = Some(until.map_or(soon, |until| until.min(soon)));
        } else {
            held.release();
        }
        if spin(waiter, led, blocked) {
            return Ok(());
        }
        let naps = blocked.is_empty() && !led.is_empty() && led.iter().all(Led::may_nap);
        if naps && nap(waiter, until, led)? {
            return Ok(());
        }
        let mut has_some = false;
        for it in led.iter() {
            has_some |= it.readiness.arm_readable();
        }
        for (key, _) in blocked.iter().filter(|(_, it)| it.arm_writable()) {
            self.act(|core, _| core.unblock(*key));
            has_some = true;
        }
        if has_some {
            return Ok(());
        }
        let readable = led.iter().map(|it| it.readiness.readable());
        let writable = blocked.iter().map(|(_, it)| it.writable());
        let wanted: Vec<Wanted<'_>> = readable.chain(writable).collect();
        let slept = waiter.sleep(&wanted, until);
        drop(wanted);
        if !slept.as_ref().is_ok_and(|woken| woken.ready.contains(&true)) {
            held.release();
        }
        let is_ready = slept.map_err(|source| Error::io("wait for channels", source))?.ready;
        let (readable, writable) = is_ready.split_at(led.len());
        for (it, _) in led.iter_mut().zip(readable).filter(|(_, is_ready)| **is_ready) {
            it.inbox.woken();
            it.input = it.inbox.read();
        }
        for ((key, _), _) in blocked.iter().zip(writable).filter(|(_, is_ready)| **is_ready) {
            self.act(|core, _| core.unblock(*key));
        }
        Ok(())
    }

    /// Ends all channels.
    pub fn close_channels(&self) {
        self.act(Core::close_channels);
    }

    /// Whether small writes may wait for more: the helper looks soon, and sends them then.
    pub fn may_gather(core: &Core, now: Nanos) -> bool {
        let left = core.helper_until.0.saturating_sub(now.0);
        left > 0 && left <= LOOK.0
    }
}

/// Reads what has arrived. Whether something has.
pub(crate) fn read_all(led: &mut [Led]) -> bool {
    let mut has_input = false;
    for it in led {
        it.input = it.inbox.read();
        has_input |= !it.input.is_empty();
    }
    has_input
}

/// Waits without being woken for data. Whether something has come.
fn nap(waiter: &Waiter, until: Option<Instant>, led: &mut [Led]) -> Result<bool, Error> {
    let soon = Instant::now() + NAP;
    let until = until.map_or(soon, |until| until.min(soon));
    let slept = waiter.sleep(&[], Some(until));
    let is_woken = slept.map_err(|source| Error::io("wait for channels", source))?.is_early;
    led.iter_mut().for_each(|it| it.inbox.woken());
    Ok(read_all(led) || is_woken)
}

/// Waits awake for no longer than it takes to wake a thread, while the other end is at work on another core: its answer is
/// near. Whether it came. Room that came is seen when the thread is about to sleep.
fn spin(waiter: &Waiter, led: &mut [Led], blocked: &Blocked) -> bool {
    let is_active = |led: &[Led]| {
        led.iter().any(|it| it.readiness.is_peer_active())
            || blocked.iter().any(|(_, readiness)| readiness.is_peer_active())
    };
    if !is_active(led) {
        return false;
    }
    let until = Instant::now() + wake_time();
    while Instant::now() < until && !waiter.is_woken() && !waiter.is_in_the_way() && is_active(led)
    {
        std::hint::spin_loop();
        if read_all(led) {
            return true;
        }
        if blocked.iter().any(|(_, readiness)| readiness.has_room()) {
            return false;
        }
    }
    false
}
