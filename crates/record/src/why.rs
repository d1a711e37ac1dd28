//! A recording in memory, for `quell why` and benchmarks: what attribution needs of the events of this host.

use std::io;

use quell_model::{Event, Nanos};
use quell_observe::ObserveError;
use quell_observe::recorder::{self, Events, PROCESSES_MAX, Recorder};
use quell_os::Tid;
use quell_trace::stream::Sink;
use quell_trace::why::{Collector, Evidence, Follow, Window};

/// The ring: seconds of two busy cores.
const RING_BYTES: usize = 64 << 20;

/// Records from when it is made until it ends. Holds a bounded number of events.
pub struct Recording {
    recorder: Recorder,
    collector: Collector,
    batch: Vec<Event>,
}

impl Recording {
    /// Begins to record the host and the wake-ups of these processes.
    ///
    /// # Errors
    /// As [`Recorder::start`].
    pub fn start(processes: &[Tid]) -> Result<Recording, ObserveError> {
        // The kernel side chooses among so many; of more all wake-ups are recorded.
        let chosen = match processes.len() <= PROCESSES_MAX {
            true => processes.to_vec(),
            false => Vec::new(),
        };
        let recorder = Recorder::start(&recorder::Options {
            events: Events::WHY_LIVE,
            processes: chosen,
            ring_bytes: RING_BYTES,
            keyframe_every: Some(Nanos::from_secs(1)),
        })?;
        let follow = Follow::processes(processes.iter().map(|process| process.0));
        let collector = Collector::new(recorder.meta(), follow, Window::ALL);
        Ok(Recording { recorder, collector, batch: Vec::new() })
    }

    /// Takes over what is in the ring. To be called every second or so; in a short run not at all, so that nothing
    /// is disturbed.
    ///
    /// # Errors
    /// As [`Recorder::drain`].
    pub fn collect(&mut self) -> Result<(), ObserveError> {
        self.recorder.drain(&mut self.batch)?;
        self.take();
        Ok(())
    }

    /// Whether no more is taken over.
    pub fn is_full(&self) -> bool {
        self.collector.is_full()
    }

    /// Ends it.
    pub fn end(mut self) -> Evidence {
        self.recorder.finish_into(&mut |event| self.collector.push(&event));
        self.collector.finish()
    }

    /// Ends it, and writes what it took since the last [`collect`](Self::collect) to a trace, too.
    ///
    /// # Errors
    /// Those of writing.
    pub fn end_into(mut self, trace: &mut dyn Sink) -> io::Result<Evidence> {
        let mut written = trace.meta(self.recorder.meta());
        self.recorder.finish_into(&mut |event| {
            self.collector.push(&event);
            if written.is_ok() {
                written = trace.event(&event);
            }
        });
        written?;
        trace.finish()?;
        Ok(self.collector.finish())
    }

    fn take(&mut self) {
        let Recording { batch, collector, .. } = self;
        batch.drain(..).for_each(|event| collector.push(&event));
    }
}
