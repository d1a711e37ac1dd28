//! Helper threads and the kernel's own, as typed.

use quell_model::Nanos;
use quell_policy::Host;
use toml::Spanned;

use super::FileError;
use super::build::service;
use super::raw::{Place, RawHelper, RawKernel, RawTask};
use crate::workload::{Helper, Style, Task};

/// Kinds of helpers of one task, and threads of one kind.
const KINDS_MAX: usize = 16;
const THREADS_MAX: u64 = 256;
const PERIOD_US_MIN: u64 = 10;
const PERIOD_US_MAX: u64 = 60_000_000;

/// The helpers of a task whose threads the kernel schedules.
pub(super) fn helpers(
    raw: &RawTask,
    style: Style,
    place: &Place,
) -> Result<Vec<Helper>, FileError> {
    let Some(first) = raw.helper.first() else { return Ok(Vec::new()) };
    if style != Style::Threads || raw.lane.is_some() {
        let what = format!("task `{}` orders its threads itself", raw.name.get_ref());
        return Err(place.error(first, what, "helpers go with style = \"threads\" and no lane"));
    }
    if let Some(beyond) = raw.helper.get(KINDS_MAX) {
        let what = format!("task `{}` has {} helpers", raw.name.get_ref(), raw.helper.len());
        return Err(place.error(beyond, what, &format!("{KINDS_MAX} kinds are the most")));
    }
    raw.helper.iter().map(|typed| helper(typed, place)).collect()
}

fn helper(typed: &Spanned<RawHelper>, place: &Place) -> Result<Helper, FileError> {
    let raw = typed.get_ref();
    let name = raw.name.get_ref();
    if name.is_empty() || name.len() > 15 {
        let remedy = "a thread has a name of 1 to 15 bytes";
        return Err(place.error(&raw.name, format!("a helper is called `{name}`"), remedy));
    }
    Ok(Helper {
        name: name.clone(),
        threads: place.number("threads", &raw.threads, 1, 1..=THREADS_MAX)? as u32,
        period: period(&raw.period_us, place)?,
        burst: service(&raw.burst, place)?,
        stops_world: raw.stops_world,
    })
}

/// The task that stands for the kernel's threads.
pub(super) fn kernel(
    typed: &Spanned<RawKernel>,
    host: &Host,
    place: &Place,
) -> Result<Task, FileError> {
    if !host.caps.shares_cores {
        let what = "cores serve their owners alone".to_owned();
        return Err(place.error(typed, what, "`kernel_threads` needs cores = \"shared\""));
    }
    let raw = typed.get_ref();
    let (period, burst) = (period(&raw.period_us, place)?, service(&raw.burst, place)?);
    Ok(Task::kernel(&host.topology, period, burst))
}

fn period(typed: &Spanned<u64>, place: &Place) -> Result<Nanos, FileError> {
    let period = place.within("period_us", typed, PERIOD_US_MIN..=PERIOD_US_MAX)?;
    Ok(Nanos::from_micros(period))
}
