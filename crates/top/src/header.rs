//! The lines above the panes: which daemon, how it fares, and whether it answers.

use quell_control::protocol::Status;

use crate::sample::Sample;
use crate::state::{Link, State};
use crate::text;

/// What the columns mean, below the keys in the help.
pub const LEGEND: &[&str] = &[
    "",
    "DELAY  oldest wait now    P50 P99 P99.9  wake-to-run of LC, last second",
    "CPU% WAIT%  of a core, since the sample before    CAUSED  LC made late, p99.9",
    "! something is wrong with it (its explanation says what)    - not known",
];

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Line {
    /// Its text.
    pub text: String,
    /// It tells of something wrong.
    pub alarming: bool,
}

/// The lines at this width.
pub fn lines(state: &State, width: usize) -> Vec<Line> {
    let calm = |text| Line { text, alarming: false };
    let mut lines = vec![];
    match &state.sample {
        Some(sample) => lines.extend(flow(&segments(state, sample), width).into_iter().map(calm)),
        None => lines.push(calm("quell top".to_owned())),
    }
    let alarm = match &state.link {
        Link::Up => None,
        Link::Connecting => Some("connecting ...".to_owned()),
        Link::Down(why) => {
            Some(format!("NO DAEMON: {}; trying again, below is the last sample", text::clean(why)))
        }
        Link::Silent(time) => Some(format!("NO ANSWER for {} s", time.as_secs())),
    };
    if let Some(alarm) = alarm {
        let alarm = text::wrap(&alarm, width).into_iter().take(2);
        lines.extend(alarm.map(|text| Line { text, alarming: true }));
    }
    lines
}

fn segments(state: &State, sample: &Sample) -> Vec<String> {
    let Status { version, host, policy, back_end, pattern, observer, counters, .. } =
        &sample.status;
    let rate = |rate: Option<f64>| rate.map_or("-".to_owned(), text::short);
    let violations = counters
        .violations_guarantee
        .saturating_add(counters.violations_lc_first)
        .saturating_add(counters.violations_work_conservation)
        .saturating_add(counters.violations_advice)
        .saturating_add(counters.violations_malformed);
    let mut segments = vec![
        format!("quell {version} on {host}"),
        match state.frozen {
            true => "FROZEN: Space goes on, s steps".to_owned(),
            false => format!("{}, every {:?}", link(&state.link), state.interval),
        },
        format!("up {}", uptime(sample.status.uptime_s)),
        format!("policy {policy}, {back_end}, {pattern}, observer {observer}"),
        format!("managed cores {}", sample.status.managed),
        format!("guardians {}/2", sample.status.guardians),
        format!("degraded {}", sample.status.degraded.len()),
        format!(
            "{} ticks/s of {} mean",
            rate(sample.ticks_per_s),
            text::time(counters.tick_mean_us)
        ),
        format!("daemon {} % CPU", sample.daemon_percent.map_or("-".to_owned(), text::percent)),
        format!("violations {violations}"),
        format!("refused {}", counters.host_writes_refused),
    ];
    segments.extend(
        counters.idle_while_lc_waits_us.map(|us| format!("idle while LC waits {}", text::time(us))),
    );
    if !state.filter.is_empty() {
        segments.push(format!("filter `{}`", state.filter));
    }
    segments.iter().map(|segment| text::clean(segment)).collect()
}

fn link(link: &Link) -> &'static str {
    match link {
        Link::Connecting => "connecting",
        Link::Up => "connected",
        Link::Down(_) => "not connected",
        Link::Silent(_) => "no answer",
    }
}

fn uptime(seconds: u64) -> String {
    let (days, hours) = (seconds / 86_400, seconds / 3_600 % 24);
    let (minutes, seconds) = (seconds / 60 % 60, seconds % 60);
    match days {
        0 => format!("{hours}:{minutes:02}:{seconds:02}"),
        _ => format!("{}d {hours}:{minutes:02}", text::short(days as f64)),
    }
}

/// Segments side by side, on as many lines as they need.
fn flow(segments: &[String], width: usize) -> Vec<String> {
    const BETWEEN: &str = " | ";
    let mut lines: Vec<String> = Vec::new();
    for segment in segments {
        match lines.last_mut() {
            Some(line) if text::width(line) + BETWEEN.len() + text::width(segment) <= width => {
                line.push_str(BETWEEN);
                line.push_str(segment);
            }
            _ => lines.push(text::fit(segment, width)),
        }
    }
    lines
}
