//! From the file as typed to a scenario.

use quell_model::{
    Bytes, Class, CoreId, CoreSet, HostCaps, Limits, Nanos, TaskScheduler, TimeLimits,
};
use quell_policy::Host;
use quell_policy::lanes::SLICE_MIN;
use toml::Spanned;

use super::driver::Named;
use super::helpers::{helpers, kernel};
use super::machine::machine;
use super::raw::{
    Distribution, Place, RawChange, RawCosts, RawFaults, RawFile, RawHost, RawLane, RawPhase,
    RawService, RawStyle, RawTask, Sharing,
};
use super::recording::recording;
use super::{FileError, Files, Simulation};
use crate::machine::{Profile, Reuse};
use crate::scenario::{Change, Costs, Faults, Scenario};
use crate::workload::models::{self, MODELS, Model, model};
use crate::workload::{Load, Phase, Program, SLICE_DEFAULT, Service, Step, Style, Task};

/// The longest simulation.
const LENGTH_MS_MAX: u64 = 3_600_000;
const TASKS_MAX: usize = 1_000;
pub(super) const THREADS_MAX: u64 = 4_096;
const CHANGES_MAX: usize = 100_000;
const RATE_MAX: u64 = 100_000_000;
/// Steps of a day's sine.
const DIURNAL_STEPS: u64 = 48;
/// Intervals of a timeline unless the file says how long one is.
const SAMPLES: u64 = 200;

pub(super) fn build(
    raw: RawFile,
    place: &Place,
    stem: &str,
    files: &dyn Files,
) -> Result<Simulation, FileError> {
    let (topology, machine) = machine(&raw.machine, place, files)?;
    let managed = place.cores("managed", &raw.machine.get_ref().managed, &topology.all())?;
    let managed = match raw.machine.get_ref().managed {
        Some(_) => managed,
        None => topology.default_managed(),
    };
    if managed.is_empty() {
        let what = "no core is left to manage: the lowest physical core is not".to_owned();
        return Err(place.error(&raw.machine, what, "add cores, or name them with `managed`"));
    }
    let sharing = raw.host.cores.unwrap_or(Sharing::Exclusive);
    let costs = costs(&raw.host.costs, sharing, place, files)?;
    let caps = caps(&raw.host, sharing, &costs, place)?;
    let host = Host { topology, managed, caps };
    let length =
        Nanos::from_millis(place.within("length_ms", &raw.length_ms, 1..=LENGTH_MS_MAX)?);
    let warm_up = match &raw.warm_up_ms {
        Some(typed) => {
            Nanos::from_millis(place.within("warm_up_ms", typed, 0..=length.0 / 1_000_000)?)
        }
        None => Nanos(length.0 / 10),
    };
    let tick_default = Nanos::from_micros(if sharing == Sharing::Shared { 200 } else { 10 });
    let mut tasks = tasks(&raw.task, &host, place, files)?;
    let changes = changes(&raw.change, &tasks, &host, length, place)?;
    let kernel = raw.kernel_threads.as_ref().map(|typed| kernel(typed, &host, place));
    tasks.extend(kernel.transpose()?);
    let scenario = Scenario {
        name: raw.name.unwrap_or_else(|| stem.to_owned()),
        machine,
        kernel: super::kernel::kernel(&raw.kernel, place)?,
        changes,
        tasks,
        costs,
        faults: faults(&raw.faults, place)?,
        length,
        warm_up,
        tick: tick(&raw.host, tick_default, place)?,
        sample: match &raw.sample_us {
            Some(typed) => {
                // The timeline is kept in memory.
                let least = (length.0 / 1_000 / 100_000).max(1);
                Nanos(place.within("sample_us", typed, least..=60_000_000)? * 1_000)
            }
            None => Nanos((length.0 / SAMPLES).max(1_000)),
        },
        feed: place.time("report_interval_ms", &raw.report_interval_ms, Nanos::ZERO, 1_000_000)?,
        seed: raw.seed.unwrap_or(1),
        host,
    };
    let named = Named::at(place, raw.host.policy.as_ref());
    let policy = raw.host.policy.map_or_else(|| "quell".to_owned(), Spanned::into_inner);
    Ok(Simulation { scenario, policy, config: raw.policy.unwrap_or_default(), named })
}

fn tick(host: &RawHost, default: Nanos, place: &Place) -> Result<Nanos, FileError> {
    Ok(Nanos(place.number("tick_us", &host.tick_us, default.0 / 1_000, 1..=1_000_000)? * 1_000))
}

fn costs(
    typed: &Option<RawCosts>,
    sharing: Sharing,
    place: &Place,
    files: &dyn Files,
) -> Result<Costs, FileError> {
    let mut costs = match sharing {
        Sharing::Exclusive => Costs::MODULE,
        Sharing::Shared => Costs::KERNEL,
    };
    let Some(raw) = typed else { return Ok(costs) };
    if let Some(name) = &raw.mechanism {
        let refused = |what: String| {
            let remedy =
                "name a report of `quell bench mechanism --json FILE`, relative to this file";
            place.error(name, format!("`mechanism = \"{}\"`: {what}", name.get_ref()), remedy)
        };
        let report = files.text(name.get_ref()).map_err(|err| refused(err.what))?;
        costs = costs.measured(&report).map_err(refused)?;
    }
    let time = |key, typed, default| place.time(key, typed, default, 1);
    Ok(Costs {
        wake: time("wake_ns", &raw.wake_ns, costs.wake)?,
        switch: time("switch_ns", &raw.switch_ns, costs.switch)?,
        migrate: time("migrate_ns", &raw.migrate_ns, costs.migrate)?,
        grant: time("grant_ns", &raw.grant_ns, costs.grant)?,
        preempt: time("preempt_ns", &raw.preempt_ns, costs.preempt)?,
        idle: time("idle_ns", &raw.idle_ns, costs.idle)?,
        rights: time("rights_ns", &raw.rights_ns, costs.rights)?,
    })
}

fn caps(
    raw: &RawHost,
    sharing: Sharing,
    costs: &Costs,
    place: &Place,
) -> Result<HostCaps, FileError> {
    let shares_cores = sharing == Sharing::Shared;
    Ok(HostCaps {
        shares_cores,
        idles_cores: true,
        places_threads: true,
        freezes_tasks: true,
        per_thread_state: true,
        bursts: raw.bursts.unwrap_or(shares_cores),
        request_start_times: raw.request_start_times.unwrap_or(!shares_cores),
        yields_requests: raw.request_start_times.unwrap_or(!shares_cores),
        memory_counters: raw.memory_counters.unwrap_or(true),
        llc_ways: place.number("llc_ways", &raw.llc_ways, 0, 0..=64)? as u16,
        actuation_delay: costs.preempt.max(costs.rights),
    })
}

fn faults(raw: &RawFaults, place: &Place) -> Result<Faults, FileError> {
    let share = |key, typed| Ok(place.number(key, typed, 0, 0..=1_000)? as u16);
    Ok(Faults {
        late: share("late_permille", &raw.late_permille)?,
        refused: share("refused_permille", &raw.refused_permille)?,
        lost: share("lost_permille", &raw.lost_permille)?,
        raced: share("raced_permille", &raw.raced_permille)?,
    })
}

fn tasks(
    typed: &[Spanned<RawTask>],
    host: &Host,
    place: &Place,
    files: &dyn Files,
) -> Result<Vec<Task>, FileError> {
    let mut tasks: Vec<Task> = Vec::new();
    if typed.is_empty() || typed.len() > TASKS_MAX {
        let what = format!("there are {} tasks", typed.len());
        let remedy = format!("describe 1 to {TASKS_MAX} with `[[task]]`");
        return Err(place.error_at(None, what, &remedy));
    }
    let mut guaranteed = 0;
    for typed in typed {
        let raw = typed.get_ref();
        let name = raw.name.get_ref();
        if tasks.iter().any(|task| task.name == *name) || name.is_empty() || name.len() > 32 {
            let remedy = "give each task a name of its own, of 1 to 32 bytes";
            return Err(place.error(&raw.name, format!("a task is called `{name}`"), remedy));
        }
        let task = task(typed, host, place, files)?;
        guaranteed += task.limits.guaranteed;
        if guaranteed as usize > host.managed.len() {
            let what = format!("{guaranteed} cores are guaranteed up to here");
            let remedy = format!("{} are managed", host.managed.len());
            return Err(place.error(typed, what, &remedy));
        }
        tasks.push(task);
    }
    Ok(tasks)
}

fn task(
    typed: &Spanned<RawTask>,
    host: &Host,
    place: &Place,
    files: &dyn Files,
) -> Result<Task, FileError> {
    let raw = typed.get_ref();
    let model = model(raw.model.get_ref()).ok_or_else(|| {
        let names: Vec<&str> = MODELS.iter().map(|model| model.name).collect();
        let what = format!("there is no workload `{}`", raw.model.get_ref());
        place.error(&raw.model, what, &format!("choose one of: {}", names.join(", ")))
    })?;
    let class = raw.class.unwrap_or(model.class);
    let runtime = match raw.style {
        Some(style) => style == RawStyle::Runtime,
        None if raw.lane.is_some() => false,
        None => !host.caps.shares_cores && model.class == Class::LatencyCritical,
    };
    let polls = place.time("polls_us", &raw.polls_us, Nanos::from_micros(2), 1_000)?;
    let allowed = place.cores("cores", &raw.cores, &host.managed)?;
    let cores = allowed.len() as u64;
    let style = if runtime { Style::Runtime { polls } } else { Style::Threads };
    let slice = raw.lane.as_ref().map(|lane| slice(lane, runtime, place)).transpose()?;
    let threads = place.number("threads", &raw.threads, cores, 1..=THREADS_MAX)? as u32;
    let recorded = recording(typed, model, &allowed, place, files)?;
    let (load, threads) = match (recorded, program(typed, model, threads, host, place)?) {
        (Some(recording), _) => recording,
        (None, Some((program, room))) => (Load::Program(program), room),
        (None, None) => (load(typed, model, place)?, threads),
    };
    Ok(Task {
        name: raw.name.get_ref().clone(),
        limits: limits(raw, class, runtime, allowed, place)?,
        threads,
        style,
        nice: nice(&raw.nice, place)?,
        sched_idle: sched_idle(raw, place)?,
        session: raw.session,
        own_connections: own_connections(raw, &load, style, place)?,
        cpu_weight: cpu_weight(&raw.cpu_weight, place)?,
        helpers: helpers(raw, style, place)?,
        slice: slice.unwrap_or(SLICE_DEFAULT),
        load,
        phases: phases(raw, model, place)?,
    })
}

fn own_connections(
    raw: &RawTask,
    load: &Load,
    style: Style,
    place: &Place,
) -> Result<bool, FileError> {
    let own = raw.own_connections.unwrap_or(false);
    let has_requests = matches!(load, Load::Open { .. });
    if own && (!has_requests || style != Style::Threads) {
        let what = format!("`own_connections` of `{}`", raw.name.get_ref());
        return Err(place.error(&raw.name, what, "only services that are no runtimes have them"));
    }
    Ok(own)
}

/// The program of a task that has one, and the threads that it needs room for.
fn program(
    typed: &Spanned<RawTask>,
    model: &Model,
    threads: u32,
    host: &Host,
    place: &Place,
) -> Result<Option<(Program, u32)>, FileError> {
    let raw = typed.get_ref();
    let permille =
        place.number("length_permille", &raw.length_permille, 1_000, 1..=100_000)? as u32;
    let core = raw.start_core.map(CoreId);
    if let Some(core) = core.filter(|core| host.topology.position(*core).is_none()) {
        let what = format!("`start_core` is {}, which is not there", core.index());
        return Err(place.error(typed, what, &format!("choose among {}", host.topology.all())));
    }
    let own = super::program::program(&raw.thread, &raw.sync, place)?;
    if model.name == models::PROGRAM {
        if own.kinds.is_empty() {
            let what = format!("task `{}` has no steps", raw.name.get_ref());
            return Err(place.error(typed, what, "describe its threads with `[[task.thread]]`"));
        }
        let most = if raw.threads.is_some() { threads } else { own.threads() };
        return Ok(Some((own, most)));
    }
    if !own.kinds.is_empty() || !own.syncs.is_empty() {
        let what = format!("task `{}` has steps", raw.name.get_ref());
        return Err(place.error(typed, what, "they go with `model = \"program\"`"));
    }
    let known = super::program::of_paper(model.name, threads, core, permille);
    if known.is_none() && (core.is_some() || raw.length_permille.is_some()) {
        let what = "`start_core` and `length_permille` are of programs".to_owned();
        return Err(place.error(typed, what, "choose a model that is one"));
    }
    Ok(known)
}

fn nice(typed: &Option<Spanned<i64>>, place: &Place) -> Result<i8, FileError> {
    let Some(typed) = typed else { return Ok(0) };
    match i8::try_from(*typed.get_ref()) {
        Ok(nice @ -20..=19) => Ok(nice),
        _ => {
            let what = format!("`nice` is {}", typed.get_ref());
            Err(place.error(typed, what, "it has to be between -20 and 19"))
        }
    }
}

fn sched_idle(raw: &RawTask, place: &Place) -> Result<bool, FileError> {
    match (&raw.sched_idle, &raw.nice) {
        (Some(typed), Some(_)) if *typed.get_ref() => {
            let what = "SCHED_IDLE has one weight, whatever `nice` is".to_owned();
            Err(place.error(typed, what, "leave out `nice` or `sched_idle`"))
        }
        (typed, _) => Ok(typed.as_ref().is_some_and(|typed| *typed.get_ref())),
    }
}

fn cpu_weight(typed: &Option<Spanned<u64>>, place: &Place) -> Result<Option<u32>, FileError> {
    let Some(typed) = typed else { return Ok(None) };
    Ok(Some(place.within("cpu_weight", typed, 1..=10_000)? as u32))
}

/// The slice of a lane.
fn slice(lane: &Spanned<RawLane>, runtime: bool, place: &Place) -> Result<Nanos, FileError> {
    if runtime {
        let what = "a runtime orders its threads itself".to_owned();
        return Err(place.error(lane, what, "`lane` goes with style = \"threads\""));
    }
    let Some(text) = &lane.get_ref().slice else { return Ok(SLICE_DEFAULT) };
    let slice: Nanos = text
        .parse()
        .map_err(|err: quell_model::TimeError| place.error(lane, format!("`slice`: {err}"), ""))?;
    if !(SLICE_MIN..=Nanos::from_secs(1)).contains(&slice) {
        let remedy = format!("it has to be between {SLICE_MIN} and 1 s");
        return Err(place.error(lane, format!("`slice` is {slice}"), &remedy));
    }
    Ok(slice)
}

fn limits(
    raw: &RawTask,
    class: Class,
    runtime: bool,
    allowed: CoreSet,
    place: &Place,
) -> Result<Limits, FileError> {
    let cores = allowed.len() as u64;
    let mut times = TimeLimits::read(raw, class, |key, typed| {
        place.within(key.name, typed, key.range.clone())
    })?;
    if runtime && raw.runaway_ms.is_none() {
        // A kthread of a busy simulated runtime never sleeps.
        times.runaway_after = Nanos::ZERO;
    }
    let scheduler = match (runtime, raw.lane.is_some()) {
        (true, _) => TaskScheduler::Runtime,
        (false, true) => TaskScheduler::Lane,
        (false, false) => TaskScheduler::Kernel,
    };
    let most = if scheduler == TaskScheduler::Lane { 1 } else { cores };
    Ok(Limits {
        class,
        scheduler,
        guaranteed: place.number("guaranteed", &raw.guaranteed, 0, 0..=most)? as u32,
        max: place.number("max", &raw.max, most, 1..=most)? as u32,
        times,
        latency_target: place.time(
            "latency_target_us",
            &raw.latency_target_us,
            Nanos::ZERO,
            1_000,
        )?,
        allowed,
    })
}

fn load(typed: &Spanned<RawTask>, model: &Model, place: &Place) -> Result<Load, FileError> {
    let raw = typed.get_ref();
    let given = [raw.rate.is_some(), raw.load.is_some(), raw.diurnal.is_some()];
    let given = given.into_iter().filter(|given| *given).count();
    let wants = usize::from(model.class == Class::LatencyCritical);
    if given != wants {
        let what =
            format!("task `{}` has {given} of `rate`, `load`, `diurnal`", raw.name.get_ref());
        let remedy = match wants {
            1 => "a service needs one of them",
            _ => "batch work takes none",
        };
        return Err(place.error(typed, what, remedy));
    }
    if wants == 0 {
        return Ok(Load::Hog);
    }
    let service = match (&raw.service, model.service) {
        (Some(typed), _) => service(typed, place)?,
        (None, Some(service)) => service,
        (None, None) => {
            let what = format!("task `{}` has no service time", raw.name.get_ref());
            let remedy = "add `service = { distribution = \"exponential\", mean_ns = 10000 }`";
            return Err(place.error(typed, what, remedy));
        }
    };
    Ok(Load::Open { steps: steps(raw, place)?, service })
}

fn steps(raw: &RawTask, place: &Place) -> Result<Vec<Step>, FileError> {
    if let Some(rate) = &raw.rate {
        return Ok(vec![Step::rate(Nanos::ZERO, place.within("rate", rate, 0..=RATE_MAX)?)]);
    }
    if let Some(load) = &raw.load {
        let pairs = load.get_ref();
        let sorted = pairs.is_sorted_by(|one, next| one.0 < next.0);
        let sane = pairs.iter().all(|(at, rate)| *at <= LENGTH_MS_MAX && *rate <= RATE_MAX);
        if pairs.is_empty() || pairs.len() > CHANGES_MAX || !sorted || !sane {
            let remedy = format!(
                "write pairs like [[0, 100000], [500, 800000]]: milliseconds, ascending, and requests a second up to {RATE_MAX}"
            );
            return Err(place.error(load, "`load` is no list of steps".to_owned(), &remedy));
        }
        return Ok(pairs
            .iter()
            .map(|(at, rate)| Step::rate(Nanos::from_millis(*at), *rate))
            .collect());
    }
    let Some(typed) = &raw.diurnal else { return Ok(Vec::new()) };
    let day = typed.get_ref();
    if day.low > day.high || day.high > RATE_MAX || !(1..=LENGTH_MS_MAX).contains(&day.period_ms) {
        let remedy = "low and high are requests a second, low first; period_ms is up to an hour";
        return Err(place.error(typed, "`diurnal` is no day".to_owned(), remedy));
    }
    let days = LENGTH_MS_MAX.div_ceil(day.period_ms).min(1_000);
    Ok((0..days * DIURNAL_STEPS)
        .map(|step| {
            let phase = (step % DIURNAL_STEPS) as f64 / DIURNAL_STEPS as f64;
            let height = (1.0 - libm::cos(std::f64::consts::TAU * phase)) / 2.0;
            let rate = day.low as f64 + (day.high - day.low) as f64 * height;
            let from = Nanos(step * day.period_ms * 1_000_000 / DIURNAL_STEPS);
            Step::rate(from, rate as u64)
        })
        .collect())
}

pub(super) fn service(typed: &Spanned<RawService>, place: &Place) -> Result<Service, FileError> {
    let raw = typed.get_ref();
    let second = 1_000_000_000;
    let times = [raw.mean_ns, raw.long_ns.unwrap_or(1)];
    if !times.iter().all(|time| (1..=second).contains(time))
        || raw.sigma_permille.is_some_and(|sigma| sigma > 3_000)
        || raw.long_permille.is_some_and(|share| share > 1_000)
    {
        let remedy =
            "times are 1 ns to 1 s, sigma_permille is up to 3000, long_permille up to 1000";
        return Err(place.error(typed, "a service time is out of bounds".to_owned(), remedy));
    }
    let mean = Nanos(raw.mean_ns);
    let extra = (raw.sigma_permille.is_some(), raw.long_ns.is_some(), raw.long_permille.is_some());
    match (raw.distribution, extra) {
        (Distribution::Constant, (false, false, false)) => Ok(Service::Fixed(mean)),
        (Distribution::Exponential, (false, false, false)) => Ok(Service::Exponential(mean)),
        (Distribution::Lognormal, (true, false, false)) => {
            Ok(Service::Lognormal { mean, sigma: raw.sigma_permille.unwrap_or_default() })
        }
        (Distribution::Bimodal, (false, true, true)) => Ok(Service::Bimodal {
            short: mean,
            long: Nanos(raw.long_ns.unwrap_or_default()),
            long_permille: raw.long_permille.unwrap_or_default(),
        }),
        _ => {
            let remedy = "constant and exponential take mean_ns alone, lognormal sigma_permille as well, \
                          bimodal (mean_ns is the short one) long_ns and long_permille";
            Err(place.error(
                typed,
                "a service time has other keys than its distribution".to_owned(),
                remedy,
            ))
        }
    }
}

fn phases(raw: &RawTask, model: &Model, place: &Place) -> Result<Vec<Phase>, FileError> {
    if raw.phase.is_empty() {
        return Ok(model.phases.to_vec());
    }
    let several = raw.phase.len() > 1;
    raw.phase.iter().map(|typed| phase(typed, &model.phases[0].profile, several, place)).collect()
}

fn phase(
    typed: &Spanned<RawPhase>,
    like: &Profile,
    several: bool,
    place: &Place,
) -> Result<Phase, FileError> {
    let RawPhase { core_ms, kind, memory_permille, traffic_mb, .. } = *typed.get_ref();
    let RawPhase { weight_permille, streams, working_set_kb, reuse, .. } = *typed.get_ref();
    let profile = Profile {
        kind: kind.unwrap_or(like.kind),
        memory: memory_permille.unwrap_or(like.memory),
        traffic_mb: traffic_mb.unwrap_or(like.traffic_mb),
        weight: weight_permille.unwrap_or(like.weight),
        streams: streams.unwrap_or(like.streams),
        working_set: working_set_kb.map_or(like.working_set, |kb| Bytes(kb.min(1 << 30) << 10)),
        reuse: reuse.unwrap_or(like.reuse),
    };
    let sane = profile.memory <= 1_000
        && profile.traffic_mb <= 1_000_000
        && (1..=10_000).contains(&profile.weight)
        && core_ms.is_none_or(|ms| (1..=LENGTH_MS_MAX * 1_000).contains(&ms))
        && (profile.reuse == Reuse::None || profile.working_set.0 > 0);
    if !sane || core_ms.is_some() != several {
        let remedy = "memory_permille is up to 1000, traffic_mb up to 1000000, weight_permille 1 to 10000; \
                      several phases have core_ms each, a single one has none; reuse needs working_set_kb";
        return Err(place.error(typed, "a phase is out of bounds".to_owned(), remedy));
    }
    Ok(Phase { profile, work: Nanos::from_millis(core_ms.unwrap_or(0)) })
}

fn changes(
    typed: &[Spanned<RawChange>],
    tasks: &[Task],
    host: &Host,
    length: Nanos,
    place: &Place,
) -> Result<Vec<(Nanos, Change)>, FileError> {
    if let Some(beyond) = typed.get(CHANGES_MAX) {
        let what = format!("there are {} changes", typed.len());
        return Err(place.error(beyond, what, &format!("{CHANGES_MAX} is the most")));
    }
    typed.iter().map(|typed| change(typed, tasks, host, length, place)).collect()
}

fn change(
    typed: &Spanned<RawChange>,
    tasks: &[Task],
    host: &Host,
    length: Nanos,
    place: &Place,
) -> Result<(Nanos, Change), FileError> {
    let raw = typed.get_ref();
    let known = |name: &String| tasks.iter().position(|task| task.name == *name);
    let task = |name: &Option<String>| name.as_ref().map(|name| known(name).ok_or(name.clone()));
    let core = |core: Option<u16>| {
        core.map(CoreId).map(|core| match host.topology.position(core) {
            Some(_) => Ok(core),
            None => Err(core.to_string()),
        })
    };
    let mut asked: Vec<Result<Change, String>> = Vec::new();
    let cores = [(raw.online, true), (raw.offline, false)];
    asked.extend(cores.into_iter().filter_map(|(typed, online)| {
        core(typed).map(|core| core.map(|core| Change::Online(core, online)))
    }));
    let lives = [(&raw.join, true), (&raw.leave, false)];
    asked.extend(lives.into_iter().filter_map(|(typed, alive)| {
        task(typed).map(|task| task.map(|task| Change::Alive(task as u32, alive)))
    }));
    let spins = [(&raw.runaway, true), (&raw.recover, false)];
    asked.extend(spins.into_iter().filter_map(|(typed, spins)| {
        task(typed).map(|task| task.map(|task| Change::Spin(task as u32, spins)))
    }));
    let binds = bound(raw, host, place)?;
    asked.extend(task(&raw.bind).map(|task| task.map(|task| Change::Bind(task as u32, binds))));
    let (what, remedy) = match asked.as_slice() {
        [Ok(change)] if raw.at_ms <= length.0 / 1_000_000 => {
            return Ok((Nanos::from_millis(raw.at_ms), *change));
        }
        [Ok(_)] => (
            format!("`at_ms` is {}, and `length_ms` {}", raw.at_ms, length.0 / 1_000_000),
            "nothing changes after the end: raise `length_ms`, or take the change out",
        ),
        [Err(name)] => (format!("there is no `{name}`"), "name a core or a task of this file"),
        _ => (
            format!("a change has {} of its keys", asked.len()),
            "give it one of offline, online, leave, join, runaway, recover, bind",
        ),
    };
    Err(place.error(typed, what, remedy))
}

/// The cores to which a change binds a task.
fn bound(raw: &RawChange, host: &Host, place: &Place) -> Result<CoreSet, FileError> {
    match (&raw.bind, &raw.cores) {
        (None, Some(typed)) => {
            let what = "`cores` of a change is of `bind`".to_owned();
            Err(place.error(typed, what, "name the task with `bind`, or leave it out"))
        }
        (_, typed) => place.cores("cores", typed, &host.managed),
    }
}
