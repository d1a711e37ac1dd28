//! From a configuration file to a running daemon, and back.
//!
//! The order matters: everything that can be refused is refused before anything changes; the guardians are
//! exec'ed before any thread exists; the manager's thread keeps to the unmanaged cores before it makes others.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::IsTerminal;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow, bail};
use crossbeam_channel::{Receiver, bounded};
use quell_act::backend::{
    BackEnd, Cpusets, Elevation, ElevationHost, GroupUse, Groups, Layout, Prep, PrepConfig,
    RtThrottling, Step, Why, throttles,
};
use quell_act::{Executor, Journal, Ladder, Mode, recover_stale};
use quell_control::config::{
    BackEndKind, CheckedHost, Config, ForeignThreads, HostConfig, ObserverKind, Pattern,
    TaskConfig, Throttling,
};
use quell_control::protocol::{Reply, Status};
use quell_decisions::Spool;
use quell_model::{BeRung, HostCaps, Nanos, Rung, Topology};
use quell_observe::bpf::{BpfConfig, BpfObserver};
use quell_observe::kernel::Kernel;
use quell_observe::proc::ProcObserver;
use quell_observe::topology;
use quell_os::sched::SchedAttr;
use quell_os::{Tid, own};
use quell_policy::{Host, Policy, by_name};

use crate::access::ControlGroup;
use crate::boot_beat::BootBeat;
use crate::command::Command;
use crate::descent;
use crate::engine::{Engine, EngineThread, Pace, Parts, Settings, Sight};
use crate::feed::Feed;
use crate::guardian::{self, Guardians};
use crate::lane::Companion;
use crate::manager::lanes::{LaneRungs, Schedulers};
use crate::manager::{End, Ground, LiveLine, Manager, preflight, sources};
use crate::memory::{Found, Gauge};
use crate::metrics::Endpoint;
use crate::recording::{self, RecordTo};
use crate::server;
use crate::throttling::{WhyOff, leaves_a_tenth, why_off};

/// What `quell run` was told.
pub struct RunOptions {
    /// The configuration's text.
    pub text: String,
    /// Its file, for messages.
    pub file: String,
    /// A policy instead of the file's.
    pub policy: Option<String>,
    /// Where socket, lock and journal are.
    pub run_dir: PathBuf,
    /// Where decisions are recorded to.
    pub record: Option<RecordTo>,
    /// Whether to show a live line where standard error is a terminal.
    pub live_line: bool,
    /// What ends it by itself.
    pub lifetime: Lifetime,
    /// Runs within the loop of the first lane scheduler that spins, for benchmarks on hosts without a core for it.
    pub companion: Option<Companion>,
}

/// How long a daemon runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lifetime {
    /// Until somebody asks it to end.
    UntilAsked,
    /// Until the last connection that attached tasks is closed: the daemon of a `quell lane run`.
    WhileAttached,
    /// Until no task has a process left.
    WhileBusy,
}

/// The configuration and the host it was held against.
struct Checked {
    config: Config,
    topology: Topology,
    host: CheckedHost,
    layout: Layout,
    control_group: Option<ControlGroup>,
}

impl Checked {
    /// How the scheduler thread waits.
    fn pace(&self) -> Pace {
        let unmanaged = self.host.unmanaged;
        // A spinning thread needs a physical core of its own beside the one that everything else runs on.
        let physical =
            |core: &quell_model::Core| unmanaged.contains(core.id).then_some(core.physical);
        let mut spare: Vec<u16> = self.topology.cores().iter().filter_map(physical).collect();
        spare.dedup();
        match self.config.host.pattern {
            Pattern::Shared => Pace::Shared,
            Pattern::Dedicated => Pace::Dedicated,
            Pattern::Auto if spare.len() >= 2 => Pace::Dedicated,
            Pattern::Auto => Pace::Shared,
        }
    }
}

fn check(options: &RunOptions) -> Result<Checked> {
    let mut config = Config::parse(&options.text, &options.file)?;
    if let Some(policy) = &options.policy {
        config.host.policy.clone_from(policy);
    }
    if !rustix::process::geteuid().is_root() {
        bail!(
            "this needs root: Quell changes priorities and affinities of other users' threads and loads BPF programs; `quell doctor` shows what each part needs"
        );
    }
    let topology = topology::read()?;
    let host = config.check(&topology, &options.file)?;
    let layout = Layout::detect(Path::new("/")).context("cgroups")?;
    if !quell_policy::NAMES.contains(&config.host.policy.as_str()) {
        bail!(
            "{}: there is no policy `{}`; choose one of: {}",
            options.file,
            config.host.policy,
            quell_policy::NAMES.join(", ")
        );
    }
    let control_group = ControlGroup::of(&config.host, &options.file)?;
    let checked = Checked { config, topology, host, layout, control_group };
    let Checked { config, layout, .. } = &checked;
    let tasks: Vec<&TaskConfig> = config.tasks.iter().collect();
    let throttled = why_off(&config.host, &config.tasks, checked.pace()).is_none();
    preflight(&tasks, &config.host, layout, throttled, &options.file)
        .map_err(|what| anyhow!(what))?;
    Ok(checked)
}

/// Runs the daemon until a signal or `quell stop`, then gives everything back. Returns the last status.
///
/// # Errors
/// When the configuration, the host or another daemon stands in the way; nothing is changed then.
pub fn run(mut options: RunOptions) -> Result<Status> {
    let checked = check(&options)?;
    let lock = lock(&options.run_dir)?;
    let recording = options.record.as_ref().map(RecordTo::create).transpose()?;
    let metrics = metrics(&checked.config.host, &options.file)?;
    if let Some(report) = recover_stale(&options.run_dir)? {
        eprintln!("a daemon before this one did not end in order; restored: {report}");
    }
    // Before the guardians take their rung of it.
    let ladder = Ladder::for_this_host()?;
    // The verifier may take a second on a busy host, and a guardian that hears nothing for that long acts. So BPF
    // comes first: it changes nothing that would have to be restored, and makes no thread.
    let mut degraded = Vec::new();
    if let Some(group) = &checked.control_group {
        degraded.extend(group.let_through(&options.run_dir)?);
    }
    let sight = sight(&checked.config.host, &mut degraded)?;
    let journal = Journal::create(&options.run_dir)?;
    let executor = Executor::open(journal, Mode::Live)?;
    let guard = guardian::Config {
        stale_after: checked.config.host.watchdog_timeout,
        cores: checked.host.unmanaged,
        ..Default::default()
    };
    let mut guardians = Guardians::spawn_with(executor.journal(), executor.gate(), guard)?;
    let rung = ladder.attr(Rung::Scheduler).unwrap_or(SchedAttr::fifo(90));
    let journal = Arc::clone(executor.journal().shared());
    let beat = BootBeat::start(journal, checked.host.unmanaged, rung)?;
    guardians.hold(descent::HELD, sight.held_fds()?)?;
    let signals = on_signals()?;
    let mut assembled = assemble(&checked, ladder, executor, sight, Some(guardians), degraded)?;
    own::keep_to(&checked.host.unmanaged)?;
    let spool = match recording {
        Some(file) => Some(recording::start(file, &mut assembled.parts, &checked.config.host)?),
        None => None,
    };
    let status = Status {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        back_end: assembled.back_end.to_owned(),
        observer: assembled.observer.to_owned(),
        ..Status::default()
    };
    for line in &assembled.parts.degraded {
        eprintln!("degraded: {line}");
    }
    if let Some(why) = assembled.unthrottled {
        eprintln!("kernel.sched_rt_runtime_us is -1 until the daemon ends: {why}");
    }
    own::lock_memory();
    let companion = options.companion.take();
    let schedulers = Schedulers::new(assembled.lane_rungs, checked.host.unmanaged, companion);
    let (engine, decided) = EngineThread::start(assembled.parts, assembled.settings)?;
    // It ticks, and beats by itself from here on.
    engine.postbox.call(Command::Status)?;
    drop(beat);
    let ground = Ground {
        topology: checked.topology.clone(),
        checked: checked.host.clone(),
        host: checked.config.host.clone(),
        layout: checked.layout.clone(),
    };
    let mut manager = Manager::new(ground, &engine, schedulers, status);
    manager.live(options.lifetime);
    let feed = Feed::start(decided, engine.postbox.clone())?;
    let ended = serve(&mut manager, &checked, &options, &signals, metrics, feed);
    let last = manager.status();
    let keep = matches!(&ended, Ok(served) if served.end == End::Asked { keep: true });
    let mut said = manager.shut_down(keep);
    engine.join();
    if let Some(Err(err)) = spool.map(Spool::finish) {
        said.push(err.to_string());
    }
    let served = ended?;
    // Whoever hears that it ended may start the next one at once, with a socket of its own.
    let clients = served.server.close();
    drop(lock);
    if let Some(stop) = served.stop {
        // A client that left meanwhile misses its answer.
        let _ = stop.reply.send(Reply::Done(said));
    } else if options.lifetime == Lifetime::UntilAsked {
        said.iter().for_each(|line| eprintln!("{line}"));
    }
    // Answers leave through the threads of their connections.
    clients.settle();
    Ok(last?)
}

/// Takes the address of the metrics endpoint, if one is wanted.
fn metrics(host: &HostConfig, file: &str) -> Result<Option<Endpoint>> {
    let bind = |address| {
        Endpoint::bind(address)
            .with_context(|| format!("{file}: metrics = \"{address}\": choose a free port"))
    };
    host.metrics.map(bind).transpose()
}

struct Served {
    end: End,
    stop: Option<server::Incoming>,
    server: server::Server,
}

fn serve(
    manager: &mut Manager,
    checked: &Checked,
    options: &RunOptions,
    signals: &Receiver<()>,
    metrics: Option<Endpoint>,
    feed: Feed,
) -> Result<Served> {
    let (calls, incoming) = bounded(server::CONNECTIONS_MAX);
    let socket = socket_path(&options.run_dir);
    if let Some(metrics) = metrics {
        metrics.serve(calls.clone()).context("metrics")?;
    }
    let (visits, runtimes) = bounded(server::CONNECTIONS_MAX);
    let server = server::start(&socket, checked.control_group.as_ref(), calls, visits, feed)
        .with_context(|| format!("control socket {}", socket.display()))?;
    let said =
        manager.apply(&checked.config, &options.file, false).map_err(|what| anyhow!(what))?;
    if options.lifetime == Lifetime::UntilAsked {
        said.iter().for_each(|line| eprintln!("{line}"));
    }
    let shown = options.live_line && std::io::stderr().is_terminal();
    let live = shown.then(LiveLine::default);
    let (end, stop) = manager.serve(&incoming, &runtimes, signals, live);
    Ok(Served { end, stop, server })
}

/// Everything that the scheduler thread owns.
struct Assembled {
    parts: Parts,
    settings: Settings,
    lane_rungs: Option<LaneRungs>,
    back_end: &'static str,
    observer: &'static str,
    /// Why RT throttling is off, if Quell switched it off.
    unthrottled: Option<WhyOff>,
}

fn assemble(
    checked: &Checked,
    ladder: Ladder,
    mut executor: Executor,
    sight: Sight,
    guardians: Option<Guardians>,
    mut degraded: Vec<String>,
) -> Result<Assembled> {
    let config = &checked.config.host;
    let observer = sight.name();
    let freezes = checked.layout.freezer.is_some();
    let back_end = || -> Box<dyn BackEnd + Send> {
        let per_thread_state = observer == "bpf";
        match config.back_end {
            BackEndKind::Elevation => Box::new(Elevation::new(
                ladder,
                config.be_rung,
                ElevationHost { per_thread_state, freezes },
            )),
            BackEndKind::Cpuset => Box::new(Cpusets::new(per_thread_state, freezes)),
        }
    };
    let memory = Found::on_this_host(&config.memory, &checked.host);
    let host_of = |caps| Host {
        topology: checked.topology.clone(),
        managed: checked.host.managed,
        caps: HostCaps {
            // Who runs where has to be known at the instant.
            request_start_times: observer == "bpf",
            memory_counters: memory.as_ref().is_some_and(Found::is_whole),
            ..caps
        },
    };
    // Before the first change: a policy that cannot run here is no reason to touch the host.
    quell_policy::check(&config.policy, &host_of(back_end().caps()))?;
    let unthrottled =
        prepare(checked, ladder, observer, &mut executor, guardians.as_ref(), &mut degraded);
    let back_end = back_end();
    let host = host_of(back_end.caps());
    let policy = by_name(&config.policy, host.clone(), policy_config(config))?;
    degraded.extend(policy.missing().iter().map(|part| format!("{} {part}", policy.name())));
    let memory = gauge(memory, policy.as_ref(), &mut degraded)?;
    let parts = Parts {
        host,
        sight,
        policy,
        back_end,
        groups: Groups::new(checked.layout.clone()),
        group_use: match config.back_end {
            BackEndKind::Elevation if config.be_rung == BeRung::SchedIdle => GroupUse::Yield,
            BackEndKind::Elevation => GroupUse::Freeze,
            BackEndKind::Cpuset => GroupUse::Confine,
        },
        executor,
        guardians,
        recorder: None,
        feed: None,
        memory,
        degraded,
    };
    let lane_rungs = lane_rungs(config, ladder);
    Ok(Assembled {
        parts,
        settings: settings(checked, ladder, lane_rungs),
        lane_rungs,
        back_end: match config.back_end {
            BackEndKind::Elevation => "elevation",
            BackEndKind::Cpuset => "cpuset",
        },
        observer,
        unthrottled,
    })
}

/// Begins to read memory traffic if the policy reads it; else says what stands in the way of that.
fn gauge(
    found: Option<Found>,
    policy: &dyn Policy,
    degraded: &mut Vec<String>,
) -> Result<Option<Gauge>> {
    let Some(found) = found else { return Ok(None) };
    if policy.reads().memory {
        return Ok(Some(found.start().context("the thread that reads memory traffic")?));
    }
    if policy.missing().iter().any(|part| part.part == "bandwidth") {
        degraded.push(found.lacks());
    }
    Ok(None)
}

/// How many readings of memory traffic a step of the bandwidth controller takes: one ends after what was decided
/// took effect, a whole one follows, and is dealt out over the time of the third.
const READINGS_A_STEP: u64 = 3;

/// What the operator set about the policy.
pub fn policy_config(host: &HostConfig) -> quell_policy::Config {
    let controllers = host.controllers;
    quell_policy::Config {
        delay_bound: host.nonpreemptible_delay_limit,
        bandwidth_limit: controllers.bandwidth_limit,
        bandwidth_step: controllers
            .bandwidth_step
            .max(Nanos(host.memory.every.0.saturating_mul(READINGS_A_STEP))),
        hyperthread: controllers.hyperthread,
        lock_relief: controllers.lock_relief,
        quantum: controllers.quantum,
        idle_buffer: controllers.idle_buffer,
    }
}

/// Prepares the managed cores. Returns why RT throttling is off now, if Quell switched it off.
fn prepare(
    checked: &Checked,
    ladder: Ladder,
    observer: &str,
    executor: &mut Executor,
    guardians: Option<&Guardians>,
    degraded: &mut Vec<String>,
) -> Option<WhyOff> {
    let config = &checked.config.host;
    let guardians = guardians.map_or(Vec::new(), Guardians::pids);
    let tasks = checked.config.tasks.iter().flat_map(|task| sources::processes(&task.source));
    let known = guardians.into_iter().map(|pid| pid as i32).chain(tasks).map(Tid).collect();
    let elevates = config.back_end == BackEndKind::Elevation;
    let why_off = why_off(config, &checked.config.tasks, checked.pace());
    let prep = Prep::new(
        PrepConfig {
            managed: checked.host.managed,
            rt_throttling: match why_off {
                None => RtThrottling::Leave,
                Some(WhyOff::Configured) => RtThrottling::Off,
                Some(_) => RtThrottling::OffIfActive,
            },
            leaves_a_tenth: leaves_a_tenth(config, observer),
            irq_threads: config.irq_threads.clone(),
            move_bystanders: config.foreign_threads == ForeignThreads::Move,
            known,
        },
        elevates.then_some(ladder),
        &checked.layout,
    );
    let plan = prep.plan();
    let report = prep.apply(&plan, executor);
    degraded.extend(plan.notes.iter().map(|note| format!("{}: {}", note.what, note.advice)));
    degraded.extend(report.refused.iter().map(|(step, err)| format!("{step}: {err}")));
    if !plan.bystanders.is_empty() && config.foreign_threads == ForeignThreads::List {
        let names: Vec<String> = plan
            .bystanders
            .iter()
            .take(6)
            .map(|one| format!("{} {}", one.name.escape_debug(), one.thread.tid))
            .collect();
        degraded.push(format!(
            "{} foreign threads may run on managed cores ({}{}); `foreign_threads = \"move\"` moves them",
            plan.bystanders.len(),
            names.join(", "),
            if plan.bystanders.len() > names.len() { ", .." } else { "" }
        ));
    }
    let throttling = |step: &Step| matches!(step, Step::Set { why: Why::Throttling, .. });
    let refused = report.refused.iter().any(|(step, _)| throttling(step));
    why_off.filter(|_| !refused && plan.steps.iter().any(throttling))
}

fn sight(config: &HostConfig, degraded: &mut Vec<String>) -> Result<Sight> {
    if config.observer != ObserverKind::Proc {
        let sizes = BpfConfig { max_threads: config.max_threads as usize, ..BpfConfig::default() };
        match BpfObserver::new(&sizes) {
            Ok(observer) => return Ok(Sight::Bpf(Box::new(observer))),
            Err(err) if config.observer == ObserverKind::Bpf => {
                return Err(err).context("observer = \"bpf\", but BPF cannot be used");
            }
            Err(err) => degraded.push(format!(
                "no BPF ({err}): states of threads come from /proc, every 10 ms and without single wake-ups; `quell doctor` names the remedy"
            )),
        }
    }
    Ok(Sight::Proc(Box::new(ProcObserver::new())))
}

/// The rungs of lanes. Members are under SCHED_RR: the threads of the one with the slice take turns, and so do all while the
/// lane has no core of its own.
fn lane_rungs(config: &HostConfig, ladder: Ladder) -> Option<LaneRungs> {
    if config.back_end != BackEndKind::Elevation {
        return None;
    }
    let of = |rung| Some(SchedAttr { policy: quell_os::sched::Policy::Rr, ..ladder.attr(rung)? });
    let members = [of(Rung::FifoLow)?, of(Rung::Dispatcher)?];
    Some(LaneRungs { switcher: ladder.attr(Rung::Switcher)?, members })
}

fn settings(checked: &Checked, ladder: Ladder, lanes: Option<LaneRungs>) -> Settings {
    let config = &checked.config.host;
    let pace = checked.pace();
    let default_tick = match pace {
        Pace::Shared => Nanos::from_millis(1),
        Pace::Dedicated => Nanos::from_micros(10),
    };
    Settings {
        pace,
        tick: config.tick.unwrap_or(default_tick),
        events: config.tick_on_events,
        congestion_after: config.congestion_after,
        lane_rungs: lanes.map(|rungs| rungs.members),
        watchdog_timeout: config.watchdog_timeout,
        revoke_deadline: config.revoke_deadline,
        cores: checked.host.unmanaged,
        lanes_unthrottle: config.rt_throttling == Throttling::Auto
            && throttles(&Kernel::at("/"), &checked.layout),
        rung: ladder.attr(Rung::Scheduler).unwrap_or(SchedAttr::fifo(90)),
    }
}

/// Shows what a run would decide and change, and changes nothing.
///
/// # Errors
/// As [`run`].
pub fn dry_run(options: &RunOptions) -> Result<Vec<String>> {
    let checked = check(options)?;
    let executor = Executor::open(Journal::scratch()?, Mode::DryRun)?;
    let mut degraded = Vec::new();
    let sight = sight(&checked.config.host, &mut degraded)?;
    let assembled = assemble(&checked, Ladder::for_this_host()?, executor, sight, None, degraded)?;
    let mut engine = Engine::new(assembled.parts, assembled.settings, Arc::default());
    Ok(engine.rehearse(&checked.config, &checked.host.managed))
}

/// Gives everything back that a daemon which is gone left changed.
///
/// # Errors
/// When a daemon runs (it restores by itself: `quell stop`) or the journal cannot be read.
pub fn restore(run_dir: &Path) -> Result<Vec<String>> {
    let _lock = lock(run_dir).context("`quell stop` ends a daemon and gives everything back")?;
    let restored = recover_stale(run_dir)?.map(|report| format!("restored: {report}"));
    Ok(vec![restored.unwrap_or_else(|| "nothing to restore".to_owned())])
}

/// Held by the one daemon of a run directory.
fn lock(run_dir: &Path) -> Result<File> {
    std::fs::create_dir_all(run_dir).with_context(|| run_dir.display().to_string())?;
    let open = quell_control::run_dir::is_open_to_others(run_dir)
        .with_context(|| run_dir.display().to_string())?;
    if open {
        bail!(
            "{} belongs to another user, or others may write to it: what lies there could be theirs; choose a --run-dir of your own",
            run_dir.display()
        );
    }
    let path = run_dir.join("daemon.lock");
    // Who can open it, even to read, can hold its lock.
    let file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(&path)
        .with_context(|| path.display().to_string())?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => bail!(
            "a Quell daemon runs already in {}; `quell status` shows it, `quell apply` changes its tasks",
            run_dir.display()
        ),
        Err(TryLockError::Error(err)) => Err(err).with_context(|| path.display().to_string()),
    }
}

/// The control socket of a run directory.
pub fn socket_path(run_dir: &Path) -> PathBuf {
    run_dir.join("control.sock")
}

/// SIGINT and SIGTERM as messages, from a thread of their own.
fn on_signals() -> Result<Receiver<()>> {
    let mut signals = signal_hook::iterator::Signals::new([
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGHUP,
    ])?;
    let (sender, receiver) = bounded(4);
    std::thread::Builder::new().name("quell-signals".into()).spawn(move || {
        for _ in signals.forever() {
            // Four unread signals say what a fifth would.
            let _ = sender.try_send(());
        }
    })?;
    Ok(receiver)
}
