//! Bringing service and batch work into the state that a system stands for, and back.

use anyhow::{Context as _, Result, bail};
use quell_model::{Class, Nanos};

use super::cast::BatchWork;
use super::spec::{ColocateSpec, System};
use crate::daemon::{Adopted, Adoptee, Daemon, DaemonSpec};
use crate::host::{HostSnapshot, PauseLoop, Policy, Program};
use quell_terminal::Stop;

/// The priority of the service under SCHED_RR by hand.
const RR_PRIORITY: i32 = 20;

/// A service as the systems see it.
pub struct Service<'a> {
    /// Its task's name.
    pub name: &'static str,
    /// Its process.
    pub program: &'a Program,
    /// Cores of its own under Quell.
    pub guaranteed: u32,
    /// How long one of its threads may run without sleeping under Quell; absent: Quell's own bound.
    pub runaway: Option<Nanos>,
}

/// What has to be undone.
pub struct Entered {
    system: System,
    pause: Option<PauseLoop>,
    daemon: Option<Daemon>,
    before: HostSnapshot,
}

/// Brings all programs from the state in which they were started into that of `system`.
///
/// # Errors
/// When the kernel refuses or the daemon does not come up. The programs are to be ended then.
pub fn enter(
    system: System,
    spec: &ColocateSpec,
    services: &[Service],
    be: &BatchWork,
    stop: &Stop,
) -> Result<Entered> {
    let before = HostSnapshot::take();
    let mut entered = Entered { system, pause: None, daemon: None, before };
    if !system.has_be() {
        be.programs().try_for_each(Program::pause)?;
    }
    match system {
        System::Alone | System::LinuxDefault => {}
        System::AloneWarm => {
            set_services(services, Policy::Fifo(super::lc_priority()))?;
            let core = spec.managed.first().context("no core is managed")?;
            entered.pause = Some(PauseLoop::start(core)?);
        }
        System::SchedIdle => set_all(be, Policy::Idle, 19)?,
        System::SchedRr => set_services(services, Policy::Rr(RR_PRIORITY))?,
        System::Static | System::Quell => {
            let policy = (system == System::Static).then(|| "policy = \"static\"".to_owned());
            let task = |name: String, class, program: &Program| Adopted {
                name,
                class,
                what: Adoptee::Process(program.pid()),
                guaranteed: 0,
                max: spec.managed.len() as u32,
                runaway: None,
            };
            let lc = services.iter().map(|service| Adopted {
                guaranteed: service.guaranteed,
                runaway: service.runaway,
                ..task(service.name.to_owned(), Class::LatencyCritical, service.program)
            });
            let batch = be
                .programs()
                .enumerate()
                .map(|(at, program)| task(format!("batch-{at}"), Class::BestEffort, program));
            let daemon = DaemonSpec {
                program: spec.quell.clone(),
                managed: spec.managed,
                host: policy.into_iter().collect(),
                tasks: lc.chain(batch).collect(),
            };
            entered.daemon = Some(Daemon::start(&daemon, stop)?);
        }
    }
    Ok(entered)
}

impl Entered {
    /// The loop that keeps the core awake, in the system that has one.
    pub fn pause(&self) -> Option<&PauseLoop> {
        self.pause.as_ref()
    }

    /// The processes of Quell that run now.
    pub fn quell_processes(&self) -> Vec<i32> {
        self.daemon.as_ref().map_or_else(Vec::new, Daemon::processes)
    }

    /// Brings all programs back into the state in which they were started. A daemon has to have
    /// restored the host by itself.
    ///
    /// # Errors
    /// When the daemon left something changed: names what.
    pub fn leave(mut self, services: &[Service], be: &BatchWork) -> Result<()> {
        if let Some(daemon) = self.daemon.take() {
            daemon.stop()?;
            let after = HostSnapshot::take();
            let programs = services.iter().map(|service| service.program).chain(be.programs());
            let pids: Vec<i32> = programs.map(Program::pid).collect();
            if let Some(left) = self.before.differences(&after, &pids).first() {
                bail!(
                    "Quell left {} changed: was {}, is {}",
                    left.subject,
                    left.before,
                    left.after
                );
            }
            return Ok(());
        }
        match self.system {
            System::Alone => be.programs().try_for_each(Program::go_on)?,
            System::AloneWarm => {
                be.programs().try_for_each(Program::go_on)?;
                set_services(services, Policy::Other)?;
            }
            System::SchedIdle => set_all(be, Policy::Other, 0)?,
            System::SchedRr => set_services(services, Policy::Other)?,
            System::LinuxDefault | System::Static | System::Quell => {}
        }
        Ok(())
    }
}

fn set_services(services: &[Service], policy: Policy) -> Result<()> {
    services.iter().try_for_each(|service| service.program.set_policy(policy, 0))
}

fn set_all(be: &BatchWork, policy: Policy, nice: i32) -> Result<()> {
    be.programs().try_for_each(|program| program.set_policy(policy, nice))
}
