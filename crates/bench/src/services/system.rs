//! How a service and batch work share cores: by plain Linux, by each of the settings that an administrator may give by
//! hand, and by Quell.
//!
//! A setting of the fair class holds within one group only (`autogroup`, cgroups): an expert sets the group
//! too, so each rival does.

use anyhow::{Context as _, Result, bail};
use quell_model::{Class, CoreSet, Nanos};
use quell_terminal::Stop;

use super::batch::BatchWork;
use super::bursts::{Bursts, Planted};
use super::definition::Definition;
use super::pause::PauseProgram;
use super::service::Service;
use crate::daemon::{Adopted, Adoptee, Daemon, DaemonSpec, Status};
use crate::host::{
    Cpuset, Group, HostSnapshot, Inherit, Policy, Quiet, Weight, comm, set_budget, set_own_nice,
    set_policy_with, set_slice,
};

/// Real-time priority of the threads in a request's way, and of all others of the service.
const PRIORITY: i32 = 20;
const BACKGROUND_PRIORITY: i32 = 10;
/// Slices of the service and of batch work: the least and the most that the kernel takes.
const SLICE: Nanos = Nanos::from_micros(100);
const BATCH_SLICE: Nanos = Nanos::from_millis(100);
/// Period of SCHED_DEADLINE, and the share of the core that is promised to the service: 95 % can be.
const PERIOD: Nanos = Nanos::from_millis(1);
const PROMISED: f64 = 0.9;
/// Weights of the nice values -20 and 19, and of SCHED_IDLE, against that of nice 0 (`sched_prio_to_weight`).
const NICE_MOST: f64 = 88_761.0 / 1_024.0;
const NICE_LEAST: f64 = 15.0 / 1_024.0;
const IDLE_WEIGHT: f64 = 3.0 / 1_024.0;
/// The most and the least weight of a group, as far as both versions of cgroups have it.
const GROUP_MOST: f64 = 100.0;
const GROUP_LEAST: f64 = 0.01;

/// How they share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum System {
    /// The service alone, in its own scheduling classes, its core kept awake by a PAUSE loop at SCHED_IDLE.
    AloneIdlePoll,
    /// The same once more: what differs between the two is noise.
    Null,
    /// The same with a fault that is planted: bursts of a SCHED_FIFO thread.
    Bursts,
    /// The service alone, as started.
    Alone,
    /// Both as started.
    LinuxDefault,
    /// The service at SCHED_FIFO by the role of its threads.
    Fifo,
    /// The service at SCHED_RR by the role of its threads.
    RoundRobin,
    /// Batch work at SCHED_IDLE.
    SchedIdle,
    /// The service at nice -20, batch work at nice 19.
    Nice,
    /// The most weight for the service's group, the least for that of batch work.
    Weight,
    /// Batch work in a group that is idle (`cpu.idle`).
    GroupIdle,
    /// Short slices for the service, long ones for batch work.
    Slices,
    /// The threads in a request's way at SCHED_DEADLINE.
    Deadline,
    /// The cores belong to the service: no batch work, interrupts or movable kernel threads there.
    Partition,
    /// Quell.
    Quell,
    /// Quell with all of its threads on the cores that it manages: what they take from the client's core shows.
    QuellMoved,
}

impl System {
    /// All of them; the first is the denominator of the ratios.
    pub const ALL: [System; 16] = [
        System::AloneIdlePoll,
        System::Null,
        System::Bursts,
        System::Alone,
        System::LinuxDefault,
        System::Fifo,
        System::RoundRobin,
        System::SchedIdle,
        System::Nice,
        System::Weight,
        System::GroupIdle,
        System::Slices,
        System::Deadline,
        System::Partition,
        System::Quell,
        System::QuellMoved,
    ];

    /// Its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            System::AloneIdlePoll => "alone-idle-poll",
            System::Null => "null",
            System::Bursts => "bursts",
            System::Alone => "alone",
            System::LinuxDefault => "linux-default",
            System::Fifo => "fifo",
            System::RoundRobin => "rr",
            System::SchedIdle => "sched-idle",
            System::Nice => "nice",
            System::Weight => "cpu-weight",
            System::GroupIdle => "cpu-idle",
            System::Slices => "slices",
            System::Deadline => "deadline",
            System::Partition => "partition",
            System::Quell => "quell",
            System::QuellMoved => "quell-moved",
        }
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<System> {
        System::ALL.into_iter().find(|system| system.name() == name)
    }

    /// Whether batch work runs.
    pub fn has_batch(self) -> bool {
        use System::{Alone, AloneIdlePoll, Bursts, Null, Partition};
        !matches!(self, AloneIdlePoll | Null | Bursts | Alone | Partition)
    }

    /// Whether it is a setting by hand, with which Quell competes.
    pub fn is_rival(self) -> bool {
        use System::{Alone, AloneIdlePoll, Bursts, LinuxDefault, Null, Quell, QuellMoved};
        let alone = matches!(self, AloneIdlePoll | Null | Bursts | Alone);
        !alone && !matches!(self, LinuxDefault | Quell | QuellMoved)
    }
}

/// The programs that share the cores.
pub struct Scene<'a> {
    /// The cores.
    pub managed: CoreSet,
    /// The services, those with the higher guarantee first.
    pub services: Vec<&'a Service>,
    /// Batch work.
    pub batch: &'a BatchWork,
    /// The `quell` program.
    pub quell: &'a std::path::Path,
    /// `quell-antagonist`, whose PAUSE loop keeps a core awake.
    pub antagonist: &'a std::path::Path,
    /// The fault that [`System::Bursts`] plants, with a seed.
    pub bursts: Option<(Bursts, u64)>,
    /// When the loop that keeps a core awake rests, by a seed.
    pub rests: Option<u64>,
}

/// A system in force, until [`Entered::leave`].
pub struct Entered {
    system: System,
    pause: Option<PauseProgram>,
    planted: Option<Planted>,
    daemon: Option<Daemon>,
    quiet: Option<Quiet>,
    cpuset: Option<Cpuset>,
    before: HostSnapshot,
    /// What of it could not be done.
    pub notes: Vec<String>,
}

/// Brings all programs from the state in which they were started into that of `system`.
///
/// # Errors
/// When the kernel refuses or the daemon does not come up. The programs are to be ended then.
pub fn enter(system: System, scene: &Scene, stop: &Stop) -> Result<Entered> {
    let before = HostSnapshot::take();
    let mut entered = Entered {
        system,
        pause: None,
        planted: None,
        daemon: None,
        quiet: None,
        cpuset: None,
        before,
        notes: Vec::new(),
    };
    if !system.has_batch() {
        scene.batch.group.pause()?;
    }
    let batch = &scene.batch.group;
    match system {
        System::Alone | System::LinuxDefault => {}
        System::AloneIdlePoll | System::Null | System::Bursts => {
            let first = scene.services.first().context("no service")?;
            let (group, managed) = (&first.group, &scene.managed);
            let pause = PauseProgram::start(scene.antagonist, group, managed, scene.rests)?;
            entered.pause = Some(pause);
            if system == System::Bursts {
                let (bursts, seed) =
                    scene.bursts.context("the length of the bursts is not known")?;
                let core = scene.managed.iter().next().context("no managed core")?;
                entered.planted = Some(Planted::start(bursts, core, seed)?);
            }
        }
        System::Fifo => entered.quiet = Some(by_role(scene, Policy::Fifo)?),
        System::RoundRobin => entered.quiet = Some(by_role(scene, Policy::Rr)?),
        System::SchedIdle => {
            batch.set_policy(Policy::Idle, 19)?;
            batch.set_weight(Weight::Times(IDLE_WEIGHT))?;
        }
        System::Nice => {
            for service in &scene.services {
                match service.definition.forks_background {
                    true => service.group.each_thread(|tid| set_own_nice(tid, -20))?,
                    false => service.group.set_policy(Policy::Other, -20)?,
                }
                service.group.set_weight(Weight::Times(NICE_MOST))?;
            }
            batch.set_policy(Policy::Other, 19)?;
            batch.set_weight(Weight::Times(NICE_LEAST))?;
        }
        System::Weight => {
            for service in &scene.services {
                service.group.set_weight(Weight::Times(GROUP_MOST))?;
            }
            batch.set_weight(Weight::Times(GROUP_LEAST))?;
        }
        System::GroupIdle => batch.set_weight(Weight::Idle)?,
        System::Slices => {
            let of = |service: &&Service| service.group.each_thread(|tid| set_slice(tid, SLICE));
            scene.services.iter().try_for_each(of)?;
            batch.each_thread(|tid| set_slice(tid, BATCH_SLICE))?;
        }
        System::Deadline => deadlines(scene, &mut entered)?,
        System::Partition => {
            let mut quiet = Quiet::keep()?;
            scene.managed.iter().for_each(|core| quiet.keep_off(core));
            let left = quiet.move_interrupts_off(&scene.managed);
            if !left.is_empty() {
                entered.notes.push(format!(
                    "partition: the kernel keeps interrupts {left:?} where they are"
                ));
            }
            entered.quiet = Some(quiet);
        }
        System::Quell => entered.daemon = Some(Daemon::start(&configuration(scene), stop)?),
        System::QuellMoved => {
            let daemon = Daemon::start(&configuration(scene), stop)?;
            daemon.pin(&scene.managed)?;
            entered.daemon = Some(daemon);
        }
    }
    Ok(entered)
}

/// A service's threads by their role; of several services each below the ones before it. As `chrt` sets it: children
/// inherit, so that those of a server that forks for each client have it too; with its option `-R` where children are
/// background work.
fn by_role(scene: &Scene, policy: fn(i32) -> Policy) -> Result<Quiet> {
    let mut quiet = Quiet::keep()?;
    quiet.allow_real_time()?;
    for (at, service) in scene.services.iter().enumerate() {
        set_roles(service, policy, at as i32)?;
    }
    Ok(quiet)
}

/// Gives a service's threads a priority by their role, lower by `rank`.
///
/// # Errors
/// When the kernel refuses.
pub(crate) fn set_roles(service: &Service, policy: fn(i32) -> Policy, rank: i32) -> Result<()> {
    let inherit = if service.definition.forks_background { Inherit::No } else { Inherit::Yes };
    service.group.each_thread(|tid| {
        let priority = match is_background(&service.definition, tid) {
            true => BACKGROUND_PRIORITY - rank,
            false => PRIORITY - rank,
        };
        set_policy_with(tid, policy(priority), inherit)
    })
}

/// The threads in a request's way at SCHED_DEADLINE, which takes a root domain of its own.
fn deadlines(scene: &Scene, entered: &mut Entered) -> Result<()> {
    let mut quiet = Quiet::keep()?;
    let cpuset = Cpuset::exclusive("deadline", &scene.managed, &mut quiet)?;
    let mut serving = Vec::new();
    for service in &scene.services {
        let threads = service.group.threads()?.into_iter().map(|(_, tid)| tid);
        for tid in threads {
            cpuset.add(tid)?;
            if !is_background(&service.definition, tid) {
                serving.push(tid);
            }
        }
    }
    (entered.cpuset, entered.quiet) = (Some(cpuset), Some(quiet));
    let share = PROMISED * scene.managed.len() as f64 / serving.len().max(1) as f64;
    let budget = Nanos((PERIOD.0 as f64 * share) as u64);
    for tid in serving {
        match set_budget(tid, budget, PERIOD) {
            Err(gone) if gone.raw_os_error() == Some(libc::ESRCH) => {}
            other => other.with_context(|| format!("give thread {tid} {budget} in {PERIOD}"))?,
        }
    }
    Ok(())
}

fn is_background(definition: &Definition, tid: i32) -> bool {
    comm(tid).is_ok_and(|name| definition.is_background(&name))
}

fn configuration(scene: &Scene) -> DaemonSpec {
    let cores = scene.managed.len() as u32;
    let services = scene.services.iter().enumerate().map(|(at, service)| Adopted {
        name: service.definition.name.clone(),
        class: Class::LatencyCritical,
        what: Adoptee::Cgroup(service.group.path()),
        guaranteed: if at == 0 { cores } else { 0 },
        max: cores,
        runaway: None,
    });
    let batch = Adopted {
        name: "batch".to_owned(),
        class: Class::BestEffort,
        what: Adoptee::Cgroup(scene.batch.group.path()),
        guaranteed: 0,
        max: cores,
        runaway: None,
    };
    DaemonSpec {
        program: scene.quell.to_owned(),
        managed: scene.managed,
        // As for the priorities by hand: the groups of this benchmark have no real-time budget where the kernel
        // shares one out (RT_GROUP_SCHED), and Quell refuses them otherwise.
        host: vec!["rt_throttling = \"off\"".to_owned()],
        tasks: services.chain(std::iter::once(batch)).collect(),
    }
}

impl Entered {
    /// The loop that keeps the core awake, in the systems that have one.
    pub fn pause(&self) -> Option<&PauseProgram> {
        self.pause.as_ref()
    }

    /// The processes of Quell that run now.
    pub fn quell_processes(&self) -> Vec<i32> {
        self.daemon.as_ref().map_or_else(Vec::new, Daemon::processes)
    }

    /// The daemon's status, where one runs.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn quell_status(&self) -> Result<Option<Status>> {
        self.daemon.as_ref().map(Daemon::status).transpose()
    }

    /// Brings all programs back into the state in which they were started. A daemon has to have restored the host by
    /// itself.
    ///
    /// # Errors
    /// When the daemon left something changed: names what.
    pub fn leave(mut self, scene: &Scene) -> Result<()> {
        self.pause = None;
        self.planted = None;
        if let Some(daemon) = self.daemon.take() {
            daemon.stop()?;
            return self.prove_restored(scene);
        }
        let services = || scene.services.iter().map(|service| &service.group);
        let batch = &scene.batch.group;
        // What a service set for itself stays where the system did not touch it.
        use System::{Deadline, Fifo, Nice, RoundRobin, SchedIdle, Slices};
        if matches!(self.system, Fifo | RoundRobin | Nice | Deadline) {
            services().try_for_each(|group| group.set_policy(Policy::Other, 0))?;
        }
        if matches!(self.system, SchedIdle | Nice) {
            batch.set_policy(Policy::Other, 0)?;
        }
        if self.system == Slices {
            let reset = |group: &Group| group.each_thread(|tid| set_slice(tid, Nanos::ZERO));
            services().chain([batch]).try_for_each(reset)?;
        }
        services().chain([batch]).try_for_each(|group| group.set_weight(Weight::Default))?;
        if let Some(cpuset) = self.cpuset.take() {
            drop(cpuset);
            scene.services.iter().try_for_each(|service| service.group.pin(&scene.managed))?;
        }
        self.quiet = None;
        if !self.system.has_batch() {
            scene.batch.group.go_on()?;
        }
        Ok(())
    }

    fn prove_restored(&self, scene: &Scene) -> Result<()> {
        let after = HostSnapshot::take();
        let mut pids = scene.batch.group.processes()?;
        for service in &scene.services {
            pids.extend(service.group.processes()?);
        }
        match self.before.differences(&after, &pids).first() {
            Some(left) => {
                bail!("Quell left {} changed: was {}, is {}", left.subject, left.before, left.after)
            }
            None => Ok(()),
        }
    }
}
