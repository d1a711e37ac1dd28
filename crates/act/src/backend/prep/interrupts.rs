//! Softirq and interrupt threads of managed cores, and where interrupts are served.

use quell_model::{CoreId, CoreSet, Rung};

use super::{Note, Prep, PrepPlan, Step, Why, text};
use crate::{Setting, host};
use quell_observe::procs;
use quell_os::{ThreadRef, Tid};

/// Threads that each core has one of, and without which it loses packets, timers or memory: softirqs, timers
/// under PREEMPT_RT, RCU callbacks.
const PER_CORE: [&str; 3] = ["ksoftirqd", "ktimers", "rcuc"];

/// Raises the threads that serve managed cores: of the kernel's own those in [`PER_CORE`], of the
/// interrupt threads those that the configuration names.
pub(super) fn plan_threads(prep: &Prep, plan: &mut PrepPlan) {
    let Ok(all) = procs::all() else { return };
    let mut found = Vec::new();
    // Any process may call itself `ksoftirqd/1`; what is raised has to be a thread of the kernel.
    for pid in all.into_iter().filter(|&pid| procs::is_kernel_thread(pid)) {
        let Some(name) = text(format!("/proc/{pid}/comm").as_ref()) else { continue };
        let Ok(thread) = ThreadRef::of(Tid(pid), Tid(pid)) else { continue };
        let serves = serves_core(&name).is_some_and(|core| prep.config.managed.contains(core))
            || (is_listed(&name, &prep.config.irq_threads)
                && host::allowed(&thread)
                    .is_ok_and(|cores| !cores.intersection(&prep.config.managed).is_empty()));
        if serves && !is_above(&thread, prep) {
            found.push(Step::Raise { thread, name });
        }
    }
    if found.is_empty() && !prep.config.managed.is_empty() {
        plan.notes.push(Note {
            what: "no softirq thread of a managed core is visible".into(),
            advice:
                "packets and timers of a core wait while an elevated thread is busy there; run in \
                     the host's pid namespace"
                    .into(),
        });
    }
    plan.steps.extend(found);
}

/// Whether a thread is at the softirq rung or above already: it is never lowered.
fn is_above(thread: &ThreadRef, prep: &Prep) -> bool {
    let rung = prep.ladder.and_then(|ladder| ladder.priority(Rung::Softirq));
    quell_os::sched::attr(thread.tid)
        .is_ok_and(|attr| attr.policy.is_realtime() && Some(attr.priority) >= rung)
}

fn serves_core(name: &str) -> Option<CoreId> {
    let (kind, core) = name.split_once('/')?;
    PER_CORE.contains(&kind).then(|| core.parse().ok().map(CoreId))?
}

/// Whether an interrupt thread (`irq/42-eth0`; the kernel cuts names at 15 bytes) is named.
fn is_listed(name: &str, listed: &[String]) -> bool {
    let Some((_, device)) = name.strip_prefix("irq/").and_then(|rest| rest.split_once('-')) else {
        return false;
    };
    let is_cut = name.len() >= 15;
    listed.iter().any(|wanted| {
        wanted == device || (is_cut && !device.is_empty() && wanted.starts_with(device))
    })
}

/// Moves interrupts off the managed cores. Those that the kernel places itself refuse (EPERM, EIO)
/// when the step is done.
pub(super) fn plan_affinities(prep: &Prep, plan: &mut PrepPlan) {
    let Ok(entries) = std::fs::read_dir(prep.path("/proc/irq")) else { return };
    let mut numbers: Vec<u32> = entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok()))
        .collect();
    numbers.sort_unstable();
    let online = text(&prep.path("/sys/devices/system/cpu/online"));
    let online: CoreSet = online.and_then(|list| list.parse().ok()).unwrap_or_default();
    let spare = online.difference(&prep.config.managed);
    for number in numbers {
        let file = prep.path(&format!("/proc/irq/{number}/smp_affinity_list"));
        let Some(cores) = text(&file).and_then(|list| list.parse::<CoreSet>().ok()) else {
            continue;
        };
        if cores.intersection(&prep.config.managed).is_empty() {
            continue;
        }
        let rest = cores.intersection(&spare);
        let to = if rest.is_empty() { spare } else { rest };
        if !to.is_empty() {
            let setting = Setting::IrqAffinity(number);
            plan.steps.push(Step::Set { setting, value: to.to_string(), why: Why::Interrupt });
        }
    }
    if procs::by_name("irqbalance").is_ok_and(|found| !found.is_empty()) {
        plan.notes.push(Note {
            what: "irqbalance runs".into(),
            advice:
                "it moves interrupts back to managed cores; stop it, or name these cores in its \
                     IRQBALANCE_BANNED_CPULIST"
                    .into(),
        });
    }
}
