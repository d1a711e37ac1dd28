//! `model = "trace"`: the threads of a recorded host.

use std::sync::Arc;

use quell_model::{CoreSet, Nanos};
use toml::Spanned;

use super::raw::{Place, RawTask};
use super::{FileError, Files};
use crate::workload::models::{Model, TRACE};
use crate::workload::{Load, Window};

/// The longest recording, in seconds.
const SECONDS_MAX: f64 = 3_600.0;

/// What a task of `model = "trace"` replays, and how many threads it has; `None` for tasks of other models.
pub(super) fn recording(
    typed: &Spanned<RawTask>,
    model: &Model,
    allowed: &CoreSet,
    place: &Place,
    files: &dyn Files,
) -> Result<Option<(Load, u32)>, FileError> {
    let raw = typed.get_ref();
    let is_replay = model.name == TRACE;
    let window = [("from_s", &raw.from_s), ("length_s", &raw.length_s)];
    let (Some(name), true) = (&raw.trace, is_replay) else {
        if is_replay {
            let what = format!("task `{}` has no trace", raw.name.get_ref());
            return Err(place.error(
                typed,
                what,
                "name one: `trace = \"FILE\"`, relative to this file",
            ));
        }
        if raw.trace.is_some() || window.iter().any(|(_, value)| value.is_some()) {
            let what = "`trace`, `from_s` and `length_s` are of recorded hosts".to_owned();
            return Err(place.error(typed, what, "they go with `model = \"trace\"`"));
        }
        return Ok(None);
    };
    refuse_others(typed, place)?;
    let [from, length] = window.map(|(key, value)| seconds(key, value, place));
    let window = Window { from: from?.unwrap_or_default(), length: length? };
    if let (Some(typed), Some(Nanos::ZERO)) = (&raw.length_s, window.length) {
        let what = "`length_s` is 0".to_owned();
        return Err(place.error(typed, what, "leave it out to replay all of the trace"));
    }
    let file = name.get_ref();
    let refused = |what: &str, remedy: &str| {
        place.error(name, format!("`trace = \"{file}\"`: {what}"), remedy)
    };
    let mut recording =
        files.recording(file, window).map_err(|err| refused(&err.what, &err.remedy))?;
    recording.check().map_err(|what| refused(&what, ""))?;
    if recording.threads.is_empty() {
        let remedy = "choose another part with `from_s` and `length_s`";
        return Err(refused("no thread runs in it", remedy));
    }
    for cores in &mut recording.cores {
        let here = cores.intersection(allowed);
        *cores = if here.is_empty() { *allowed } else { here };
    }
    let threads = recording.threads.len() as u32;
    Ok(Some((Load::Recorded(Arc::new(recording)), threads)))
}

/// What a task may not have beside a trace.
fn refuse_others(typed: &Spanned<RawTask>, place: &Place) -> Result<(), FileError> {
    let raw = typed.get_ref();
    let others = [
        ("threads", raw.threads.is_some()),
        ("start_core", raw.start_core.is_some()),
        ("length_permille", raw.length_permille.is_some()),
        ("[[task.thread]]", !raw.thread.is_empty()),
        ("[[task.sync]]", !raw.sync.is_empty()),
        ("[[task.helper]]", !raw.helper.is_empty()),
        ("lane", raw.lane.is_some()),
    ];
    if let Some((key, _)) = others.into_iter().find(|(_, is_given)| *is_given) {
        let what = format!("task `{}` has `{key}`", raw.name.get_ref());
        return Err(place.error(typed, what, "the trace has all threads and what they do"));
    }
    Ok(())
}

fn seconds(
    key: &str,
    typed: &Option<Spanned<f64>>,
    place: &Place,
) -> Result<Option<Nanos>, FileError> {
    let Some(typed) = typed else { return Ok(None) };
    let value = *typed.get_ref();
    if !(0.0..=SECONDS_MAX).contains(&value) {
        let what = format!("`{key}` is {value}");
        return Err(place.error(typed, what, "it has to be between 0 and 3600 s"));
    }
    Ok(Some(Nanos(libm::round(value * 1e9) as u64)))
}
