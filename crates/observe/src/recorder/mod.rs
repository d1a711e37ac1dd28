//! Records what the scheduler of this host does, as a stream of [`Event`]s.
//!
//! The programs of `bpf/recorder.bpf.c` write into one ring; nobody is woken for it. Whoever records calls
//! [`Recorder::drain`] again and again, at least as often as the ring fills up. What finds the ring full is lost,
//! and [`What::Lost`] says so in its place. [`keyframe`](super::keyframe)s are taken meanwhile.
//!
//! Events come in the order of time. What one core recorded a little late waits for a window of time; what comes
//! even later, behind a stall of the hypervisor, is moved to the present and counted.

mod causes;
mod hooks;
mod merge;
mod record;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::io::{self, Read as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use libbpf_rs::{Iter, Link, MapCore, MapFlags, MapHandle, Object, OpenObject, RingBuffer};
use quell_model::{CoreId, CoreSet, Event, Keyframe, Meta, Nanos, Source, What};

pub use self::hooks::Events;
use self::record::OwnCounts;
#[cfg(test)]
pub(crate) use self::record::layouts;
pub(crate) use self::record::rank;

use self::causes::Causes;
use self::hooks::Hooks;
use self::merge::Merge;
use super::bpf::calls;
use super::bpf::object::{self, refused};
use super::bpf::{Measurement, ProgramCost};
use super::keyframe::KeyframeReader;
use super::layout::MASK_WORDS;
use super::{ObserveError, topology};
use quell_os::{Tid, clock};

static CODE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/recorder.bpf.o"));
const SOURCE: &str = "bpf/recorder.bpf.c";

/// Event window: how long an event waits for earlier ones of other cores and of a daemon.
pub const WINDOW: Nanos = Nanos::from_millis(20);
/// Records that one [`Recorder::drain`] takes over at most: the memory that it needs is bounded, and a keyframe
/// need not wait for what others take their time with.
const DRAIN_MAX: usize = 1 << 15;
/// `QUELL_PROCESSES`: processes whose wake-ups can be chosen.
pub const PROCESSES_MAX: usize = 16;
/// In which a program that still runs when it is detached ends.
const DETACHED: Duration = Duration::from_millis(5);

/// What a [`Recorder`] does.
#[derive(Clone, Debug)]
pub struct Options {
    /// Which events to record.
    pub events: Events,
    /// Processes whose wake-ups are recorded, at most [`PROCESSES_MAX`]; none: those of all. The kernel side
    /// leaves out the others.
    pub processes: Vec<Tid>,
    /// The size of the ring, rounded up to a power of two. An event takes 32 to 72 bytes: two cores that do
    /// nothing but switch write 25 MB a second.
    pub ring_bytes: usize,
    /// How often the state of the host is told. `None`: at the start, and when a core came or went.
    pub keyframe_every: Option<Nanos>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            events: Events::ALL,
            processes: Vec::new(),
            ring_bytes: 32 << 20,
            keyframe_every: Some(Nanos::from_secs(1)),
        }
    }
}

/// How well recording goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Events that [`Recorder::drain`] handed over.
    pub events: u64,
    /// Events that were lost, each told by a [`What::Lost`].
    pub lost: u64,
    /// Events that came after the window and were moved to the present.
    pub late: u64,
    /// Switches that no tracepoint told, told as soon as anything else happened on their core: on some virtual
    /// machines the kernel hides what an agent of the hypervisor does.
    pub unseen: u64,
}

/// What came out of the ring.
#[derive(Default)]
struct Inbox {
    events: Vec<Event>,
    unseen: u64,
}

/// Records from when it is made until it is dropped or finished.
pub struct Recorder {
    ring: RingBuffer<'static>,
    inbox: Arc<Mutex<Inbox>>,
    merge: Merge,
    keyframes: KeyframeReader,
    options: Options,
    meta: Meta,
    /// When the next keyframe is due.
    due: Nanos,
    online: CoreSet,
    /// Runs that the kernel left out, as told so far.
    misses: u64,
    cores: MapHandle,
    links: Vec<Link>,
    object: Object,
}

impl Recorder {
    /// Begins to record.
    ///
    /// # Errors
    /// When the kernel refuses or lacks `sched_switch` as BTF tracepoint.
    pub fn start(options: &Options) -> Result<Recorder, ObserveError> {
        let possible = topology::possible()?.iter().last().map_or(1, |core| core.index() + 1);
        let mut keyframes = KeyframeReader::open()?;
        let mut open = object::open("recorder", CODE)?;
        prepare(&mut open, options, possible)?;
        let hooks = Hooks::choose(&mut open, &options.events)?;
        let object = open.load().map_err(|error| refused("loading the BPF programs", &error))?;
        let causes = Causes::new(object::map(&object, "stacks")?).map_err(|source| {
            ObserveError::Kernel { what: "reading /proc/kallsyms".to_owned(), source }
        })?;
        let meta = meta(&hooks, &causes, options)?;
        let inbox = Arc::new(Mutex::new(Inbox::default()));
        let ring = object::ring(&object::map(&object, "records")?, take(causes, &inbox))?;
        let links = object::attach(&object)?;
        if options.events.allowed {
            know(&object)?;
        }
        let (at, first) = keyframes.read_all()?;
        let mut recorder = Recorder {
            ring,
            inbox,
            merge: Merge::new(possible, at),
            keyframes,
            options: options.clone(),
            meta,
            due: Nanos::MAX,
            online: first.cores.iter().map(|core| core.core).collect(),
            misses: 0,
            cores: object::map(&object, "cores")?,
            links,
            object,
        };
        recorder.add(at, first);
        Ok(recorder)
    }

    /// What is recorded, for the head of a file.
    pub fn meta(&self) -> &Meta {
        &self.meta
    }

    /// Hands over what was recorded up to the window ago, a bounded number at a time.
    ///
    /// # Errors
    /// When the kernel cannot walk its threads for a keyframe.
    pub fn drain(&mut self, out: &mut Vec<Event>) -> Result<(), ObserveError> {
        let now = clock::now();
        let is_emptied = self.collect() < DRAIN_MAX;
        if now >= self.due {
            let (at, keyframe) = self.keyframes.read()?;
            self.tell_misses(at);
            self.tell_online(at, &keyframe);
            self.add(at, keyframe);
        }
        let seen = if is_emptied { now } else { self.merge.newest() };
        self.merge.release(seen - WINDOW, out);
        Ok(())
    }

    /// Adds an event of somebody else. If it happened before the window it is moved to the present.
    pub fn tell(&mut self, at: Nanos, what: What) {
        self.merge.add(at, self.teller(), what);
    }

    /// Stops, and hands over the rest.
    ///
    /// Programs are detached one after the other, each when all cores have taken note. What they tell meanwhile
    /// is not the whole, and is left out.
    pub fn finish(self, out: &mut Vec<Event>) -> Statistics {
        self.finish_into(&mut |event| out.push(event))
    }

    /// As [`Recorder::finish`], with each event handed to `take`: however full the ring is, few are held at a time.
    pub fn finish_into(mut self, take: &mut dyn FnMut(Event)) -> Statistics {
        let end = clock::now();
        let numbers = self.meta.topology.all().iter().map(|core| (core, self.numbers(core)));
        let numbers: Vec<(CoreId, u64)> = numbers.collect();
        self.tell_misses(end);
        self.links.clear();
        std::thread::sleep(DETACHED);
        let mut out = Vec::new();
        while self.collect() > 0 {
            let settled = self.merge.newest() - WINDOW;
            self.merge.release(settled.min(end), &mut out);
            out.drain(..).for_each(&mut *take);
        }
        self.merge.release(end, &mut out);
        for (core, numbers) in numbers {
            self.merge.end(core, numbers, end, &mut out);
        }
        out.into_iter().for_each(take);
        self.statistics()
    }

    /// How well it goes.
    pub fn statistics(&self) -> Statistics {
        let merge::Counts { events, lost, late } = self.merge.counts();
        let unseen = self.inbox.lock().unwrap_or_else(PoisonError::into_inner).unseen;
        Statistics { events, lost, late, unseen }
    }

    /// Begins to measure what the programs cost; [`Recorder::cost`] counts only meanwhile.
    ///
    /// # Errors
    /// Without the right to it (CAP_SYS_ADMIN).
    pub fn measure(&self) -> io::Result<Measurement> {
        calls::measure()
    }

    /// What each program cost while measured.
    pub fn cost(&self) -> Vec<ProgramCost> {
        calls::costs(&self.object)
    }

    /// Takes over what is in the ring. Returns how many records that were.
    fn collect(&mut self) -> usize {
        let taken = self.ring.consume_raw_n(DRAIN_MAX);
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        for event in inbox.events.drain(..) {
            if let What::Online { of, online } = event.what {
                match online {
                    true => self.online.insert(of),
                    false => self.online.remove(of),
                }
                // Nothing is known of a core that comes, or of the threads that had to leave one.
                self.due = Nanos::ZERO;
            }
            self.merge.push(event);
        }
        usize::try_from(taken).unwrap_or(0)
    }

    fn add(&mut self, at: Nanos, keyframe: Keyframe) {
        if self.options.events.balance {
            self.merge.consider(keyframe.cores.iter().map(|core| (core.core, core.domain)));
        }
        self.due = self.options.keyframe_every.map_or(Nanos::MAX, |every| at + every);
        self.tell(at, What::Keyframe(Arc::new(keyframe)));
    }

    /// Tells what no tracepoint did.
    fn tell_online(&mut self, at: Nanos, keyframe: &Keyframe) {
        let now: CoreSet = keyframe.cores.iter().map(|core| core.core).collect();
        let (came, went) = (now.difference(&self.online), self.online.difference(&now));
        self.online = now;
        for of in came.union(&went).iter() {
            self.tell(at, What::Online { of, online: came.contains(of) });
        }
    }

    /// The kernel does not run a program that is interrupted on that core by what it is attached to.
    fn tell_misses(&mut self, at: Nanos) {
        let misses = calls::recursion_misses(&self.object);
        let count = misses.saturating_sub(self.misses);
        self.misses = misses;
        if count > 0 {
            self.tell(at, What::Lost { count });
        }
    }

    /// In whose sequence the reader's own events stand.
    fn teller(&self) -> CoreId {
        self.online.first().unwrap_or(CoreId(0))
    }

    /// How many numbers a core gave.
    fn numbers(&self, core: CoreId) -> u64 {
        let own = self.cores.lookup(&u32::from(core.0).to_ne_bytes(), MapFlags::ANY);
        own.ok().flatten().and_then(|own| OwnCounts::parse(&own)).map_or(0, |own| own.sequence)
    }
}

fn prepare(open: &mut OpenObject, options: &Options, cores: usize) -> Result<(), ObserveError> {
    let page = rustix::param::page_size();
    object::size(open, "cores", cores)?;
    object::size(open, "queues", cores)?;
    object::size(open, "records", options.ring_bytes.max(page).next_power_of_two())?;
    let mask_words = cores.div_ceil(64).min(MASK_WORDS) as u32;
    if options.processes.len() > PROCESSES_MAX {
        let count = options.processes.len();
        let what = format!(
            "wake-ups of {count} processes: at most {PROCESSES_MAX} can be chosen; choose fewer, or none for all"
        );
        return Err(object::broken(SOURCE, what));
    }
    let mut constants = vec![mask_words, options.events.tell()];
    constants.extend(options.processes.iter().map(|process| process.0 as u32));
    let constants: Vec<u8> = constants.into_iter().flat_map(u32::to_ne_bytes).collect();
    object::constants(open, "rodata", &constants)
}

/// Has the programs know where each thread that lives may run.
fn know(object: &Object) -> Result<(), ObserveError> {
    let what = "walking the threads of the host";
    let program = object.progs_mut().find(|program| program.name() == OsStr::new("know"));
    let program = program.ok_or_else(|| object::broken(SOURCE, "no program `know`".to_owned()))?;
    let walk = || Iter::new(&program.attach()?);
    let mut iterator = walk().map_err(|error| refused(what, &error))?;
    // It writes nothing: the first read walks all.
    let walked = iterator.read(&mut [0; 8]);
    walked.map_err(|source| ObserveError::Kernel { what: what.to_owned(), source })?;
    Ok(())
}

fn meta(hooks: &Hooks, causes: &Causes, options: &Options) -> Result<Meta, ObserveError> {
    let host = rustix::system::uname();
    let mut absent = hooks.absent.clone();
    if options.events.moves && !causes.explains() {
        absent
            .push("who moved a thread: the kernel hides its symbols (kernel.kptr_restrict)".into());
    }
    if options.events.balance {
        absent.push(
            "the cores that searches looked at: worked out from scheduling domains, for passes of the \
             balancer only"
                .into(),
        );
    }
    if options.events.allowed {
        absent.push(
            "a new affinity of a thread that sleeps, waits or runs: told when it is next woken, moved or \
             preempted, or by a keyframe"
                .into(),
        );
    }
    if !options.processes.is_empty() {
        absent.push("wake-ups of other processes than the chosen ones".into());
    }
    if !hooks.attached.iter().any(|hook| hook == "cpuhp_exit") {
        absent.push(
            "the instant at which a core goes on or off line: told with the next keyframe".into(),
        );
    }
    Ok(Meta {
        source: Source::Recorder,
        topology: topology::read()?,
        kernel: host.release().to_string_lossy().into_owned(),
        host: host.nodename().to_string_lossy().into_owned(),
        hooks: hooks.attached.clone(),
        absent,
        wall_offset_ns: clock::wall_offset_ns(),
    })
}

/// What the ring's reader does with each record.
fn take(mut causes: Causes, inbox: &Arc<Mutex<Inbox>>) -> impl FnMut(&[u8]) + 'static {
    let to = Arc::clone(inbox);
    move |bytes| {
        let event = record::parse(bytes, |stack| causes.of(stack));
        let mut inbox = to.lock().unwrap_or_else(PoisonError::into_inner);
        inbox.unseen += u64::from(record::is_unseen(bytes));
        inbox.events.extend(event);
    }
}
