//! `[kernel]`: which Linux, and which of its parts are other ones.

use quell_model::Nanos;
use serde::Deserialize;
use toml::Spanned;

use super::FileError;
use super::raw::Place;
use crate::kernel::linux::{
    Balancer, Fix, Fixes, KernelModel, LoadMetric, Picker, RtLimit, WakeSearch,
};
use crate::scenario::Kernel;

/// The name of the model with one queue for all cores.
const GLOBAL: &str = "global";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawKernelModel {
    model: Spanned<String>,
    picker: Option<RawPicker>,
    load_metric: Option<LoadMetric>,
    balancer: Option<Balancer>,
    balances_siblings: Option<bool>,
    wake_search: Option<WakeSearch>,
    sched_idle_counts_as_idle: Option<bool>,
    autogroup: Option<bool>,
    rt_limit: Option<RtLimit>,
    nohz: Option<bool>,
    deep_idle: Option<bool>,
    hz: Option<Spanned<u64>>,
    fix: Option<RawFixes>,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum RawPicker {
    Cfs,
    Eevdf,
    EevdfDelayedDequeue,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(deny_unknown_fields)]
struct RawFixes {
    group_imbalance: Option<Fix>,
    group_construction: Option<Fix>,
    overload_on_wakeup: Option<Fix>,
    missing_domains: Option<Fix>,
    even_idle: Option<RawPublishedFix>,
    imbalanced_group: Option<RawPublishedFix>,
}

/// No kernel that is modelled has a fix of these, so that there is no `mainline`.
#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum RawPublishedFix {
    None,
    Paper,
}

impl From<RawPublishedFix> for Fix {
    fn from(raw: RawPublishedFix) -> Fix {
        match raw {
            RawPublishedFix::None => Fix::None,
            RawPublishedFix::Paper => Fix::Paper,
        }
    }
}

impl RawKernelModel {
    fn sets_parts(&self) -> bool {
        let RawKernelModel { model: _, hz, fix, .. } = self;
        let parts = [
            self.picker.is_some(),
            self.load_metric.is_some(),
            self.balancer.is_some(),
            self.balances_siblings.is_some(),
            self.wake_search.is_some(),
            self.sched_idle_counts_as_idle.is_some(),
            self.autogroup.is_some(),
            self.rt_limit.is_some(),
            self.nohz.is_some(),
            self.deep_idle.is_some(),
            hz.is_some(),
            fix.is_some(),
        ];
        parts.contains(&true)
    }
}

pub(super) fn kernel(
    typed: &Option<Spanned<RawKernelModel>>,
    place: &Place,
) -> Result<Kernel, FileError> {
    let Some(typed) = typed else { return Ok(Kernel::Global) };
    let raw = typed.get_ref();
    let name = raw.model.get_ref();
    if name == GLOBAL {
        if raw.sets_parts() {
            let what = "`model = \"global\"` has no parts".to_owned();
            return Err(place.error(&raw.model, what, "name a version of Linux to set them"));
        }
        return Ok(Kernel::Global);
    }
    let known = KernelModel::PRESETS.iter().find(|(known, _)| known == name);
    let Some((_, preset)) = known else {
        let names: Vec<&str> = KernelModel::PRESETS.iter().map(|(name, _)| *name).collect();
        let what = format!("there is no kernel model `{name}`");
        let remedy = format!("choose one of: {GLOBAL}, {}", names.join(", "));
        return Err(place.error(&raw.model, what, &remedy));
    };
    let tick = match &raw.hz {
        Some(hz) => Nanos(1_000_000_000 / place.within("hz", hz, 24..=1_000)?),
        None => preset.tick,
    };
    let picker = raw.picker.map(|picker| match picker {
        RawPicker::Cfs => Picker::Cfs,
        RawPicker::Eevdf => Picker::Eevdf { delayed_dequeue: false },
        RawPicker::EevdfDelayedDequeue => Picker::Eevdf { delayed_dequeue: true },
    });
    let fixes = raw.fix.map_or(preset.fixes, |fix| Fixes {
        group_imbalance: fix.group_imbalance.unwrap_or(preset.fixes.group_imbalance),
        group_construction: fix.group_construction.unwrap_or(preset.fixes.group_construction),
        overload_on_wakeup: fix.overload_on_wakeup.unwrap_or(preset.fixes.overload_on_wakeup),
        missing_domains: fix.missing_domains.unwrap_or(preset.fixes.missing_domains),
        even_idle: fix.even_idle.map_or(preset.fixes.even_idle, Fix::from),
        imbalanced_group: fix.imbalanced_group.map_or(preset.fixes.imbalanced_group, Fix::from),
    });
    Ok(Kernel::Linux(KernelModel {
        picker: picker.unwrap_or(preset.picker),
        load: raw.load_metric.unwrap_or(preset.load),
        balancer: raw.balancer.unwrap_or(preset.balancer),
        balances_siblings: raw.balances_siblings.unwrap_or(preset.balances_siblings),
        wake_search: raw.wake_search.unwrap_or(preset.wake_search),
        sched_idle_counts_as_idle: raw
            .sched_idle_counts_as_idle
            .unwrap_or(preset.sched_idle_counts_as_idle),
        autogroup: raw.autogroup.unwrap_or(preset.autogroup),
        rt_limit: raw.rt_limit.unwrap_or(preset.rt_limit),
        nohz: raw.nohz.unwrap_or(preset.nohz),
        deep_idle: raw.deep_idle.unwrap_or(preset.deep_idle),
        tick,
        fixes,
        ..*preset
    }))
}
