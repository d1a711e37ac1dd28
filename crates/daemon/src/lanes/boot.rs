//! From lanes as typed to running lanes, and back.
//!
//! As for the daemon the order matters: what can be refused is refused before anything changes; the guardians are
//! exec'ed before any thread exists; programs start once their first thread is on its lane.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use quell_act::backend::{Prep, PrepConfig};
use quell_act::{Executor, Journal, Ladder, Mode, Subject, recover_stale};
use quell_control::config::Launch;
use quell_control::lanes::{LanePattern, LanesConfig};
use quell_model::{Children, Nanos, Rung};
use quell_observe::bpf::{BpfConfig, BpfObserver};
use quell_observe::{procs, topology};
use quell_os::sched::{Policy, SchedAttr};
use quell_os::{ThreadRef, Tid, clock, own};
use quell_policy::lanes::Member;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::claim;
use super::counters::Counters;
use super::crew::{Crew, Lane, Rungs, lock};
use super::request::{LaneRequest, MemberRequest, Request, Who};
use super::status::{self, SchedulerStatus, Status};
use super::thread::{Command, Companion, Place, SchedulerThread};
use crate::boot_beat::BootBeat;
use crate::descent;
use crate::guardian::{self, Guardians};
use crate::launch::{Launched, in_words};

/// Between two heartbeats.
const BEAT_EVERY: Nanos = Nanos::from_millis(20);
/// Between two looks for threads that changed their own scheduling.
const VERIFY_EVERY: Nanos = Nanos::from_millis(100);
/// Threads that the lanes of one scheduler thread can have.
const THREADS_MAX: usize = 4_096;

/// What `quell lane run` was told.
pub struct Options {
    /// The lanes.
    pub lanes: LanesConfig,
    /// Where journals and sockets are.
    pub run_dir: PathBuf,
    /// End by itself after this time.
    pub hold_for: Option<Duration>,
    /// Say on standard error what happens.
    pub verbose: bool,
    /// Runs within the loop of the dedicated scheduler, for benchmarks on hosts that have no core left for it.
    pub companion: Option<Companion>,
}

/// Runs lanes until a signal, until their time is over, or until none has a thread left; then gives everything back.
/// Returns what they did.
///
/// # Errors
/// When the request, the host or other lanes stand in the way; nothing is changed then.
pub fn run(mut options: Options) -> Result<Status> {
    if !rustix::process::geteuid().is_root() {
        bail!("this needs root: lanes change priorities and affinities and load BPF programs");
    }
    let online = topology::online()?;
    let mut request = Request::check(&options.lanes, &online)?;
    let stop = on_signals()?;
    let locks = claim::cores(&options.run_dir, &mut request, options.lanes.scheduler_core)?;
    let dir = status::dir(&options.run_dir, request.lanes[0].core.0);
    std::fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
    for restored in restore(&options.run_dir)? {
        eprintln!("lanes before these did not end in order: {restored}");
    }
    claim::members(&options.run_dir, &request)?;
    let companion = options.companion.take();
    let mut running = Running::start(&options, request, &dir, companion)?;
    running.say(options.verbose);
    let ended = running.watch(&stop, options.hold_for);
    let status = running.end();
    status::close(&dir);
    drop(locks);
    ended.and(status)
}

/// Gives back what lanes that are gone left changed. Those that run are left alone.
///
/// # Errors
/// When a journal cannot be read.
pub fn restore(run_dir: &Path) -> Result<Vec<String>> {
    let mut said = Vec::new();
    for dir in status::dirs(run_dir) {
        if let Some(report) = recover_stale(&dir)? {
            said.push(format!("lanes in {}: restored: {report}", dir.display()));
        }
    }
    Ok(said)
}

/// SIGINT, SIGTERM and SIGHUP as a flag: no thread is needed to wait for them.
fn on_signals() -> Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// Lanes that run.
struct Running {
    request: Request,
    executor: Arc<Mutex<Executor>>,
    guardians: Guardians,
    threads: Vec<SchedulerThread>,
    places: Vec<Place>,
    counters: Vec<Arc<Counters>>,
    launched: Vec<(String, Launched)>,
    listener: UnixListener,
    degraded: Vec<String>,
    stale_after: Nanos,
}

impl Running {
    fn start(
        options: &Options,
        request: Request,
        dir: &Path,
        companion: Option<Companion>,
    ) -> Result<Running> {
        let ladder = Ladder::for_this_host()?;
        let rung =
            |rung: Rung| ladder.attr(rung).with_context(|| format!("no priority for {rung}"));
        let runs = SchedAttr { policy: Policy::Rr, ..rung(Rung::Dispatcher)? };
        let rungs = Rungs { runs, parked: rung(Rung::FifoLow)? };
        let (own_rung, switcher) = (rung(Rung::Scheduler)?, rung(Rung::Switcher)?);
        let places = places(&request, switcher);
        // Before the guardians: the verifier may take longer than they wait for a heartbeat.
        let observers: Vec<BpfObserver> =
            places.iter().map(|_| observer()).collect::<Result<_>>()?;
        let mut executor = Executor::open(Journal::create(dir)?, Mode::Live)?;
        let stale_after = request.watchdog_timeout;
        let cores = request.unmanaged;
        let guard = guardian::Config { stale_after, cores, ..Default::default() };
        let mut guardians = Guardians::spawn_with(executor.journal(), executor.gate(), guard)?;
        let journal = Arc::clone(executor.journal().shared());
        let beat = BootBeat::start(journal, request.unmanaged, own_rung)?;
        for (at, observer) in observers.iter().enumerate() {
            let own = |fd: std::os::fd::BorrowedFd<'_>| fd.try_clone_to_owned();
            let held: Vec<OwnedFd> =
                observer.held_fds().into_iter().map(own).collect::<Result<_, _>>()?;
            guardians.hold(&format!("{}{at}", descent::HELD), held)?;
        }
        let degraded = prepare(&request, ladder, &mut executor, &guardians);
        own::lock_memory();
        let counters: Vec<Arc<Counters>> =
            request.lanes.iter().map(|lane| Arc::new(Counters::new(lane.members.len()))).collect();
        let mut running = Running {
            listener: status::listen(dir).context("status socket")?,
            executor: Arc::new(Mutex::new(executor)),
            threads: Vec::new(),
            launched: Vec::new(),
            places,
            counters,
            request,
            guardians,
            degraded,
            stale_after,
        };
        let joined = running.launch_members().and_then(|()| {
            own::place_scheduler(&running.request.unmanaged, &own_rung)
                .context("the main thread cannot have its rung")?;
            running.start_schedulers(observers, rungs, options.lanes.children, companion)?;
            running.join_members()
        });
        drop(beat);
        if let Err(err) = joined {
            // What was changed is given back before anybody hears of it.
            running.end()?;
            return Err(err);
        }
        Ok(running)
    }

    fn start_schedulers(
        &mut self,
        observers: Vec<BpfObserver>,
        rungs: Rungs,
        children: Children,
        mut companion: Option<Companion>,
    ) -> Result<()> {
        for (at, observer) in observers.into_iter().enumerate() {
            let place = self.places[at];
            let own = |lane: &usize| place.spins || *lane == at;
            let lanes = (0..self.request.lanes.len()).filter(own).map(|lane| {
                let request = &self.request.lanes[lane];
                let policy = request.policy.build(request.members.len())?;
                Ok(Lane::new(request.core, policy, Arc::clone(&self.counters[lane])))
            });
            let lanes = lanes.collect::<Result<Vec<Lane>>>()?;
            let crew = Crew::new(observer, Arc::clone(&self.executor), rungs, children, lanes);
            let thread =
                SchedulerThread::start(crew, place, companion.take()).with_context(|| {
                    format!("the scheduler on core {} cannot have its rung", place.core)
                })?;
            self.threads.push(thread);
        }
        Ok(())
    }

    /// The scheduler thread of a lane, and the lane's number there.
    fn scheduler_of(&self, lane: usize) -> (&SchedulerThread, usize) {
        match self.request.pattern {
            LanePattern::Shared => (&self.threads[lane], 0),
            LanePattern::Dedicated => (&self.threads[0], lane),
        }
    }

    /// Starts the programs that are members, each stopped before its first instruction. Before any scheduler spins: one
    /// that does may leave a program that starts no time on the last free core.
    fn launch_members(&mut self) -> Result<()> {
        for lane in &self.request.lanes {
            for member in &lane.members {
                let Who::Command(command) = &member.who else { continue };
                let launched = launch(command).with_context(|| of(lane, member))?;
                self.launched.push((member.name.clone(), launched));
            }
        }
        Ok(())
    }

    fn join_members(&mut self) -> Result<()> {
        let mut launched = self.launched.iter().map(|(_, launched)| launched.pid());
        for (at, lane) in self.request.lanes.iter().enumerate() {
            for (nth, member) in lane.members.iter().enumerate() {
                let pid = match &member.who {
                    Who::Command(_) => launched.next(),
                    Who::Process(pid) => Some(*pid),
                    Who::Thread(_) => None,
                };
                let joined = match (pid, &member.who) {
                    (Some(pid), _) => self.join(at, nth, || procs::threads(pid)),
                    (None, Who::Thread(tid)) => {
                        self.join(at, nth, || Ok(vec![procs::thread(*tid)?]))
                    }
                    (None, _) => Err(anyhow!("it was not started")),
                };
                joined.with_context(|| of(lane, member))?;
            }
        }
        // All at once, when everybody is there.
        for (name, launched) in &self.launched {
            launched.release().with_context(|| format!("member {name} does not start"))?;
        }
        Ok(())
    }

    fn join(
        &self,
        lane: usize,
        member: usize,
        threads: impl Fn() -> std::io::Result<Vec<ThreadRef>>,
    ) -> Result<()> {
        let (scheduler, number) = self.scheduler_of(lane);
        let mut known: Vec<ThreadRef> = Vec::new();
        // Those that are born while the others are put there; later ones are followed by the fork hook.
        for _ in 0..4 {
            let mut new = threads().context("it is gone")?;
            new.retain(|thread| !known.contains(thread));
            if new.is_empty() {
                break;
            }
            known.extend(&new);
            let member = Member(member as u8);
            let problems =
                scheduler.postbox.call(|reply| Command::Join(number, member, new, reply))?;
            if let Some(problem) = problems.into_iter().next() {
                bail!(problem);
            }
        }
        Ok(())
    }

    fn say(&self, verbose: bool) {
        for line in &self.degraded {
            eprintln!("degraded: {line}");
        }
        for lane in self.request.lanes.iter().filter(|_| verbose) {
            let names: Vec<&str> = lane.members.iter().map(|member| member.name.as_str()).collect();
            let policy = lane.policy.name();
            eprintln!(
                "lane on core {}: {} take turns ({policy}); Ctrl-C ends it",
                lane.core,
                names.join(", ")
            );
        }
    }

    /// Beats, answers and looks after everybody until it is over.
    fn watch(&mut self, stop: &AtomicBool, hold_for: Option<Duration>) -> Result<()> {
        let until = hold_for.map(|time| Instant::now() + time);
        let mut verify_at = Nanos::ZERO;
        // Relaxed: the flag stands alone.
        while !stop.load(Ordering::Relaxed) && until.is_none_or(|until| Instant::now() < until) {
            let now = clock::now();
            let late = self.threads.iter().map(|thread| thread.pulse.late(now)).max();
            // A scheduler thread that is overdue hangs: without a heartbeat the guardians end it all.
            if late.unwrap_or_default() < Nanos(self.stale_after.0 / 2) {
                self.guardians.tick(now);
            }
            status::answer(&self.listener, || self.status());
            self.note_ended();
            if now >= verify_at {
                verify_at = now + VERIFY_EVERY;
                self.verify();
            }
            if self.counters.iter().all(|counters| counters.threads() == 0) {
                break;
            }
            rest(&self.listener);
        }
        Ok(())
    }

    fn note_ended(&mut self) {
        self.launched.retain_mut(|(name, launched)| match launched.ended() {
            Some(status) => {
                tracing::info!("member {name}: {}", in_words(status));
                false
            }
            None => true,
        });
    }

    /// Threads that changed their own scheduling leave their lanes.
    fn verify(&self) {
        let drifts = lock(&self.executor).verify();
        for drift in drifts {
            let (Subject::Sched(thread) | Subject::Affinity(thread)) = drift.what else { continue };
            for scheduler in &self.threads {
                // One without room is told again at the next look.
                scheduler.postbox.tell(Command::Lose(thread));
            }
        }
    }

    fn status(&self) -> Status {
        let lanes = self.request.lanes.iter().zip(&self.counters).map(|(lane, counters)| {
            let names: Vec<String> =
                lane.members.iter().map(|member| member.name.clone()).collect();
            counters.status(lane.core.0, lane.policy.name(), &names)
        });
        let schedulers = (0..self.threads.len()).map(|at| self.scheduler_status(at));
        Status {
            pid: std::process::id(),
            pattern: self.request.pattern,
            schedulers: schedulers.collect(),
            lanes: lanes.collect(),
            degraded: self.degraded.clone(),
        }
    }

    fn scheduler_status(&self, at: usize) -> SchedulerStatus {
        let (pulse, place) = (&self.threads[at].pulse, &self.places[at]);
        let own = |lane: &usize| place.spins || *lane == at;
        let own = (0..self.counters.len()).filter(own);
        SchedulerStatus {
            tid: pulse.tid(),
            core: place.core.0,
            uptime_ns: pulse.age(clock::now()).0,
            cpu_ns: pulse.cpu().map(|cpu| cpu.0),
            switches: own.map(|lane| self.counters[lane].switches()).sum(),
        }
    }

    /// Stops turns, gives everything back, then ends what was launched.
    fn end(mut self) -> Result<Status> {
        let status = self.status();
        let crews: Vec<Option<Crew>> = self.threads.drain(..).map(SchedulerThread::stop).collect();
        let report = lock(&self.executor).close();
        drop(crews);
        self.guardians.dismiss();
        for (_, launched) in &mut self.launched {
            let pid = launched.pid();
            launched.end(&|| {
                procs::descendants(pid).into_iter().filter(|pid| procs::exists(*pid)).collect()
            });
        }
        let report = report.context("not everything is given back; `quell restore` does it")?;
        match report.is_complete() {
            true => Ok(status),
            false => Err(anyhow!("not everything was given back: {report}")),
        }
    }
}

/// Where scheduler threads run: one for each lane on its core, or one that spins for all.
fn places(request: &Request, rung: SchedAttr) -> Vec<Place> {
    match request.pattern {
        LanePattern::Shared => {
            let own = |lane: &LaneRequest| Place { core: lane.core, rung, spins: false };
            request.lanes.iter().map(own).collect()
        }
        LanePattern::Dedicated => vec![Place { core: request.scheduler_core, rung, spins: true }],
    }
}

fn observer() -> Result<BpfObserver> {
    let sizes = BpfConfig {
        max_threads: THREADS_MAX,
        max_tasks: 64,
        wake_gap: Nanos::ZERO,
        ..BpfConfig::default()
    };
    BpfObserver::new(&sizes)
        .context("lanes see who sleeps with BPF; `quell doctor` says what it takes")
}

/// Prepares the lanes' cores as the daemon does its own. Returns what stays less than good.
fn prepare(
    request: &Request,
    ladder: Ladder,
    executor: &mut Executor,
    guardians: &Guardians,
) -> Vec<String> {
    let alone = request.unmanaged.len() == 1 && request.pattern == LanePattern::Dedicated;
    let config = PrepConfig {
        managed: request.lanes.iter().map(|lane| lane.core).collect(),
        rt_throttling_off: true,
        irq_threads: Vec::new(),
        move_bystanders: false,
        known: guardians.pids().into_iter().map(|pid| Tid(pid as i32)).collect(),
    };
    let mut prep = Prep::new(config.clone(), Some(ladder));
    let mut plan = prep.plan();
    if alone && !plan.fair_server {
        // Throttling is then all that leaves others anything of the core on which the scheduler spins.
        prep = Prep::new(PrepConfig { rt_throttling_off: false, ..config }, Some(ladder));
        plan = prep.plan();
    }
    let report = prep.apply(&plan, executor);
    let mut degraded: Vec<String> =
        plan.notes.iter().map(|note| format!("{}: {}", note.what, note.advice)).collect();
    degraded.extend(report.refused.iter().map(|(step, err)| format!("{step}: {err}")));
    if alone {
        degraded.push(format!(
            "the scheduler spins on core {}, the only one without a lane: everything else on this host has what \
             the kernel's fair server or its throttling leaves of it",
            request.scheduler_core
        ));
    }
    degraded
}

/// Which member of which lane, for messages.
fn of(lane: &LaneRequest, member: &MemberRequest) -> String {
    format!("core {}, member {}", lane.core, member.name)
}

/// A program for a shell, stopped before its first instruction.
fn launch(command: &str) -> Result<Launched> {
    let launch = Launch {
        command: vec!["sh".into(), "-c".into(), command.to_owned()],
        cwd: None,
        env: Vec::new(),
        output: None,
    };
    Launched::spawn_here(&launch).with_context(|| format!("cannot start `{command}`"))
}

/// Sleeps until the next heartbeat or a client.
fn rest(listener: &UnixListener) {
    let timeout = Timespec { tv_sec: 0, tv_nsec: BEAT_EVERY.0 as i64 };
    let listener = listener.as_fd();
    let mut fds = [PollFd::new(&listener, PollFlags::IN)];
    // An interrupted rest is a beat that comes early.
    let _ = poll(&mut fds, Some(&timeout));
}
