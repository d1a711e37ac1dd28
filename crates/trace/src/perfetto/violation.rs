//! Violations as slices: each on a track of its own, since those of one queue may overlap. Perfetto's UI lays tracks
//! of one name under one parent into one.

use quell_model::{Event, Nanos, Violation};

use super::convert::{self, Malformed, Track, cut, listed, number, numbered, text, texted, title};
use super::wire::*;
use super::write::{packed, sequenced, timed};

/// The packets of a violation: its track, its begin, which has the details, and its end.
pub fn packets(event: &Event, violation: &Violation, private: Private) -> [Packet; 3] {
    let end = violation.until.max(violation.from);
    // Two of one number lie so many events apart that both cannot last.
    let uuid = Track::Violations.uuid(Some((event.sequence % 0xffff) as u16));
    let descriptor = TrackDescriptor {
        uuid: Some(uuid),
        name: Some(format!("core {}", violation.core)),
        parent_uuid: Some(Track::Violations.uuid(None)),
        sibling_order_rank: Some(i32::from(violation.core.0)),
        ..TrackDescriptor::default()
    };
    let waiters = violation.waiters.iter().take(Violation::WAITERS_MAX).map(i32::to_string);
    let waiters: Vec<String> = waiters.collect();
    let begin = TrackEvent {
        debug_annotations: vec![
            text("text", cut(&violation.text)),
            number("core", i64::from(violation.core.0)),
            text("waiters", &waiters.join(",")),
            text("cores", &violation.idle.to_string()),
        ],
        r#type: Some(SLICE_BEGIN),
        track_uuid: Some(uuid),
        name: Some(title(&violation.text)),
        ..TrackEvent::default()
    };
    let ends =
        TrackEvent { r#type: Some(SLICE_END), track_uuid: Some(uuid), ..TrackEvent::default() };
    let private = Private { until: Some(violation.until.0), told: Some(event.at.0), ..private };
    [
        Packet { track_descriptor: packed(&descriptor), ..sequenced() },
        Packet { track_event: packed(&begin), private: Some(private), ..timed(violation.from) },
        Packet { track_event: packed(&ends), ..timed(end) },
    ]
}

/// The violation whose slice begins so.
pub fn read(begin: &TrackEvent, from: Nanos, private: &Private) -> Result<Violation, Malformed> {
    let waiters = texted(begin, "waiters")?;
    let waiters = waiters.split(',').filter(|number| !number.is_empty()).map(str::parse);
    let core = u32::try_from(numbered(begin, "core")?).ok();
    Ok(Violation {
        core: convert::core(core)?,
        from,
        until: Nanos(private.until.unwrap_or(from.0)),
        waiters: waiters
            .take(Violation::WAITERS_MAX)
            .collect::<Result<_, _>>()
            .map_err(|_| Malformed("a list of threads that is none"))?,
        idle: listed(begin, "cores")?,
        text: texted(begin, "text")?.into(),
    })
}
