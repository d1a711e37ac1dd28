//! The threads of placed channels.

use std::cell::Cell;
use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use quell_model::{CoreId, CoreSet};
use quell_net_engine::Class;
use quell_os::{Tid, own, sched};

use crate::leading::Led;
use crate::shared::{Held, Shared, read_all, send_placed};
use crate::waiter::{Waiter, wake_time};

thread_local! {
    /// The endpoint for which the calling thread works.
    static OWNER: Cell<*const Shared> = const { Cell::new(std::ptr::null()) };
}

/// Whether the calling thread is one of this endpoint's: such a thread does not wait for its endpoint's threads to end.
pub(crate) fn is_own(endpoint: &Shared) -> bool {
    std::ptr::eq(OWNER.get(), endpoint)
}

/// See the module.
struct Placed {
    shared: Arc<Shared>,
    waiter: Arc<Waiter>,
    index: usize,
    core: CoreId,
    /// The channels that it reads.
    led: Vec<Led>,
}

/// Starts the thread of a core.
pub(crate) fn start(
    shared: &Arc<Shared>,
    (index, core, waiter): (usize, CoreId, Arc<Waiter>),
) -> io::Result<JoinHandle<()>> {
    let placed = Placed { shared: Arc::clone(shared), waiter, index, core, led: Vec::new() };
    std::thread::Builder::new().name(format!("quell-net-{core}")).spawn(move || placed.run())
}

/// Keeps the calling thread to a core. Whether the kernel does, as it says itself.
pub(crate) fn keep_to(core: CoreId) -> bool {
    let wanted = CoreSet::of(core);
    let kept = own::keep_to(&wanted).and_then(|()| sched::affinity(Tid(0)));
    match kept {
        Ok(cores) => cores == wanted,
        Err(error) => {
            tracing::warn!("a thread cannot be kept to core {core}: {error}");
            false
        }
    }
}

impl Drop for Placed {
    fn drop(&mut self) {
        // What it did not return is lost; streams go on over what comes in its place.
        if std::thread::panicking() {
            let led = std::mem::take(&mut self.led);
            self.shared.act(|core, now| core.lose_thread(self.index, led, now));
        }
    }
}

impl Placed {
    /// Works until the endpoint is closed.
    fn run(mut self) {
        OWNER.set(Arc::as_ptr(&self.shared));
        // Once in a process: on one core, as this thread is kept from here on, it would be another time.
        wake_time();
        let is_kept = keep_to(self.core);
        let shared = &*self.shared;
        shared.with(|core, _| core.note_kept(self.index, is_kept));
        let led = &mut self.led;
        let mut held = Held::default();
        loop {
            self.waiter.reset();
            send_placed(shared, self.index);
            held.read(led);
            let (look, has_frames) =
                shared.with_held(&mut held, |core, now| core.look_of_thread(self.index, led, now));
            let is_bulk = !led.is_empty() && led.iter().all(|it| it.class == Class::Throughput);
            if !is_bulk || has_frames || held.is_over() {
                held.release();
            }
            if has_frames {
                // Those of other channels; its own wake this thread.
                shared.flush();
            }
            if look.is_closed && !look.has_more {
                shared.with(|core, _| core.end_thread(led));
                return;
            }
            shared.note_reads_of(led);
            if look.has_more {
                // Between two turns of sending it reads what has come.
                led.iter_mut().for_each(|it| it.inbox.woken());
                read_all(led);
            } else if let Err(error) =
                shared.lead(&look.blocked, &self.waiter, None, led, &mut held)
            {
                tracing::error!("the thread of core {} cannot wait: {error}", self.core);
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
    }
}
