//! Settings of the kernel's scheduler: RT throttling, preemption model.

use std::path::Path;

use quell_observe::kernel::Kernel;

use super::{Note, Prep, PrepPlan, RtThrottling, Step, Why, text};
use crate::Setting;
use crate::backend::throttles;

const RT_RUNTIME: &str = "kernel.sched_rt_runtime_us";
/// The kernel's default limit, in percent of the period, and the least period in which LC keeps below it: its share of a core is
/// bounded in windows of 250 ms.
const LIMIT_PERCENT: i64 = 95;
const PERIOD_MIN_US: i64 = 500_000;

/// RT throttling. With -1 for the whole host the limits of version 1 cpu groups are not enforced
/// either, so that none of them has to be written.
pub(super) fn plan_throttling(prep: &Prep, plan: &mut PrepPlan) {
    let Some(runtime) = text(&prep.path("/proc/sys/kernel/sched_rt_runtime_us")) else {
        plan.notes.push(Note {
            what: format!("{RT_RUNTIME} cannot be read"),
            advice: "elevated threads may be stopped for part of each second; mount /proc".into(),
        });
        return;
    };
    let period = text(&prep.path("/proc/sys/kernel/sched_rt_period_us"));
    let numbers = (runtime.parse::<i64>(), period.and_then(|period| period.parse::<i64>().ok()));
    if matches!(numbers, (Ok(runtime), _) if runtime < 0)
        || matches!(numbers, (Ok(runtime), Some(period)) if runtime >= period)
    {
        return;
    }
    let acts = throttles(&Kernel::at(&prep.root), &prep.layout);
    match prep.config.rt_throttling {
        RtThrottling::Leave | RtThrottling::OffIfActive if !acts => return,
        RtThrottling::Leave => {}
        RtThrottling::OffIfActive | RtThrottling::Off => {
            plan.steps.push(Step::Set {
                setting: Setting::Sysctl(RT_RUNTIME.into()),
                value: "-1".into(),
                why: Why::Throttling,
            });
            return;
        }
    }
    let is_above_lc = matches!(numbers, (Ok(runtime), Some(period))
        if period >= PERIOD_MIN_US && runtime.saturating_mul(100) >= period.saturating_mul(LIMIT_PERCENT));
    if !prep.config.leaves_a_tenth || !is_above_lc {
        plan.notes.push(Note {
            what: format!("{RT_RUNTIME} stays at {runtime}"),
            advice:
                "an elevated thread that stays busy is stopped for the rest of each period; set \
                     `rt_throttling = \"off\"` to switch that off while Quell runs"
                    .into(),
        });
    }
}

/// The preemption model: from debugfs where that is readable, else from the kernel's version line.
pub(super) fn preemption(root: &Path) -> String {
    let chosen = text(&root.join("sys/kernel/debug/sched/preempt")).and_then(|models| {
        let (_, rest) = models.split_once('(')?;
        Some(rest.split_once(')')?.0.to_owned())
    });
    if let Some(model) = chosen {
        return model;
    }
    let version = text(&root.join("proc/sys/kernel/version")).unwrap_or_default();
    let booted = text(&root.join("proc/cmdline")).unwrap_or_default();
    let booted = booted.split_ascii_whitespace().find_map(|word| word.strip_prefix("preempt="));
    match version.split_ascii_whitespace().find(|word| word.starts_with("PREEMPT")) {
        Some("PREEMPT_RT") => "rt".into(),
        Some("PREEMPT_DYNAMIC") => booted.unwrap_or("dynamic, unknown").into(),
        Some("PREEMPT_LAZY") => "lazy".into(),
        Some(_) => "full".into(),
        None => "none or voluntary".into(),
    }
}

pub(super) fn note_preemption(plan: &mut PrepPlan) {
    if ["full", "rt"].contains(&plan.preemption.as_str()) {
        return;
    }
    plan.notes.push(Note {
        what: format!("the kernel's preemption model is {}", plan.preemption),
        advice:
            "BE in a long system call or page fault delays LC by up to milliseconds, whatever its \
                 priority; boot with preempt=full where the kernel has it"
                .into(),
    });
}
