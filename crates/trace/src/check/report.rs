//! What a check found.

use std::collections::BTreeMap;
use std::fmt;

use quell_model::{CoreId, CoreSet, Meta, MoveCause, Nanos, Violation};
use serde::{Deserialize, Serialize};

use super::episode::Kind;
use super::{Cause, CauseShare, Evidence, Grade, LISTED_MAX, Label, facts};
use crate::host::{CoreTimes, WastedSplit};

/// A stream of which more than one part in so many is blind is not called clean.
const BLIND_PART: u64 = 10;

/// What a verdict rests on.
pub(super) struct Basis {
    /// Whether enough was seen to call it clean.
    pub(super) is_enough: bool,
    pub(super) judged: Nanos,
    pub(super) blind: Nanos,
    /// Some threads were not followed.
    pub(super) overflowed: bool,
    /// Whether the source tells more than sizes of queues.
    pub(super) names_threads: bool,
}

/// The answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// No thread waited for long beside an idle core that it could have used.
    Clean,
    /// One did.
    Violated,
    /// Too much of the time could not be judged, or nobody said where waiting threads may run.
    CouldNotTell,
}

/// A thread that waited.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Waiter {
    /// The kernel's number.
    pub thread: i32,
    /// The number of its process; 0 when not known.
    pub process: i32,
    /// Its name.
    pub name: String,
    /// How long it waited beside an idle core in this queue, in milliseconds.
    pub wasted_ms: f64,
    /// How it came to wait here for most of that time.
    pub came: Cause,
    /// The cores that it may use, or might before Quell; null when not known.
    pub allowed: Option<CoreSet>,
    /// Why Quell's plan keeps it off some; null when it is not managed.
    pub plan: Option<String>,
}

/// Threads that waited in one core's queue while other cores idled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WastedWait {
    /// Whose queue.
    pub core: CoreId,
    /// Since when, in nanoseconds of the stream's clock.
    pub from_ns: u64,
    /// Until when.
    pub until_ns: u64,
    /// For how long of that somebody waited beside an idle core, in milliseconds.
    pub wasted_ms: f64,
    /// Its share of that span, in percent.
    pub share_percent: f64,
    /// Who waited, longest first.
    pub waiters: Vec<Waiter>,
    /// The idle cores that they could have used, or would by affinity.
    pub idle: CoreSet,
    /// Who could have repaired it; null when affinities are not known.
    pub reach: Option<Grade>,
    /// The cause of most of it, as far as the evidence says.
    pub label: Label,
    /// Time of waiting threads beside idle cores by its cause, the most time first; empty where a policy explains it or
    /// affinities are not known.
    pub causes: Vec<CauseShare>,
    /// The evidence.
    pub evidence: Evidence,
}

/// A span that could not be judged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct UnjudgedSpan {
    /// Its begin, in nanoseconds.
    pub from_ns: u64,
    /// Its end.
    pub until_ns: u64,
    /// Why.
    pub why: String,
}

/// Times of idle cores that threads which waited behind others could have used, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WasteTimes {
    /// Wall time in which there was such a core.
    pub any_s: f64,
    /// Core time: at each instant as many cores as could each have relieved another queue.
    pub cores_s: f64,
    /// Thread time: at each instant as many cores as waiting threads could have used.
    pub threads_s: f64,
}

impl From<&CoreTimes> for WasteTimes {
    fn from(times: &CoreTimes) -> WasteTimes {
        let seconds = |ns: u64| ns as f64 / 1e9;
        WasteTimes {
            any_s: seconds(times.wall_ns),
            cores_s: seconds(times.core_ns),
            threads_s: seconds(times.thread_ns),
        }
    }
}

/// The wasted time of the whole stream, as [`WastedTime`](crate::host::WastedTime) has it: however short each wait
/// was, and also where findings are not judged. The parts do not overlap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Waste {
    /// A waiting thread could have used the core, and no policy says otherwise.
    #[serde(flatten)]
    pub wasted: WasteTimes,
    /// What a policy allows is more than that by so much.
    pub allowed_by_policy: WasteTimes,
    /// What threads of unknown affinity might have used is more than both by so much.
    pub affinity_unknown: WasteTimes,
}

impl From<&WastedSplit> for Waste {
    fn from(split: &WastedSplit) -> Waste {
        Waste {
            wasted: (&split.wasted).into(),
            allowed_by_policy: (&split.allowed_by_policy).into(),
            affinity_unknown: (&split.affinity_unknown).into(),
        }
    }
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The answer.
    pub verdict: Verdict,
    /// In words, why it is not another; one sentence.
    pub verdict_reason: String,
    /// The host, or the scenario.
    pub host: String,
    /// Its kernel, or the model.
    pub kernel: String,
    /// Time that was judged, in seconds.
    pub judged_s: f64,
    /// Keyframes that were looked at.
    pub samples: u64,
    /// Events that were followed; looks of the sampling mode are none.
    pub events: u64,
    /// Events that were lost or are missing.
    pub lost: u64,
    /// Spans that could not be judged.
    pub unjudged: Vec<UnjudgedSpan>,
    /// Violations: reach `same-domain` and `no-common-domain`.
    pub violations: Vec<WastedWait>,
    /// Waits that a policy allows: reach `policy`.
    pub allowed_by_policy: Vec<WastedWait>,
    /// What would be a violation if the threads may use the idle cores, which nobody said.
    pub unknown: Vec<WastedWait>,
    /// Findings and spans past those listed.
    pub omitted: u64,
    /// Wasted time; what of it was judged is in the findings.
    pub waste: Waste,
    /// Migrations of threads between queues, by cause.
    pub migrations: BTreeMap<MoveCause, u64>,
    /// Facts of the kernel that bear on it.
    pub facts: Vec<String>,
}

impl Report {
    pub(super) fn new(meta: &Meta) -> Report {
        Report {
            verdict: Verdict::CouldNotTell,
            verdict_reason: String::new(),
            host: meta.host.clone(),
            kernel: meta.kernel.clone(),
            judged_s: 0.0,
            samples: 0,
            events: 0,
            lost: 0,
            unjudged: Vec::new(),
            violations: Vec::new(),
            allowed_by_policy: Vec::new(),
            unknown: Vec::new(),
            omitted: 0,
            waste: Waste::default(),
            migrations: BTreeMap::new(),
            facts: facts(&meta.kernel),
        }
    }

    pub(super) fn add(&mut self, kind: Kind, finding: WastedWait) {
        let list = match kind {
            Kind::Wasted => &mut self.violations,
            Kind::AllowedByPolicy => &mut self.allowed_by_policy,
            Kind::Unknown => &mut self.unknown,
        };
        if list.len() < LISTED_MAX {
            list.push(finding);
        } else {
            self.omitted += 1;
        }
    }

    /// Drops the findings that do not hold any more.
    pub(super) fn retain(&mut self, holds: impl Fn(&WastedWait) -> bool) {
        for list in [&mut self.violations, &mut self.allowed_by_policy, &mut self.unknown] {
            list.retain(&holds);
        }
    }

    pub(super) fn add_blind(&mut self, blind: UnjudgedSpan) {
        if self.unjudged.len() < LISTED_MAX {
            self.unjudged.push(blind);
        } else {
            self.omitted += 1;
        }
    }

    /// Gives the verdict. A stream must have been judged for a window; looks of a sampler count one by one.
    pub(super) fn conclude(&mut self, basis: &Basis) {
        let (verdict, because) = if let Some(worst) = self.worst() {
            let text = match self.violations.len() {
                1 => worst.to_string(),
                count => format!("{count} times, the longest on {worst}"),
            };
            (Verdict::Violated, text)
        } else if !basis.names_threads {
            let seen = match self.unknown.is_empty() {
                true => "it shows none that was long beside idle cores",
                false => "threads waited beside idle cores, and may have been pinned",
            };
            let text = format!("the source names no threads, only sizes of queues: {seen}");
            (Verdict::CouldNotTell, text)
        } else if !self.unknown.is_empty() {
            let text = "threads waited beside idle cores, and nobody said where they may run";
            (Verdict::CouldNotTell, text.to_owned())
        } else if !basis.is_enough {
            (Verdict::CouldNotTell, "too little was seen to judge".to_owned())
        } else if basis.overflowed {
            (Verdict::CouldNotTell, "more threads than can be followed".to_owned())
        } else if basis.blind.0 > (basis.judged + basis.blind).0 / BLIND_PART {
            let text = format!("too much of the time could not be judged: {}", basis.blind);
            (Verdict::CouldNotTell, text)
        } else {
            let text = "no thread waited for long beside an idle core that it could have used";
            (Verdict::Clean, text.to_owned())
        };
        (self.verdict, self.verdict_reason) = (verdict, because);
    }

    /// Takes the evidence, and the labels that it supports, from a closer look at the same waste. A sampler sees
    /// neither moves nor wake-ups itself.
    pub fn explain_by(&mut self, closer: &Report) {
        for finding in &mut self.violations {
            if let Some(seen) = closer.violations.iter().find(|seen| seen.core == finding.core) {
                (finding.label, finding.evidence) = (seen.label, seen.evidence.clone());
                finding.causes.clone_from(&seen.causes);
            }
        }
    }

    fn worst(&self) -> Option<&WastedWait> {
        self.violations.iter().max_by(|a, b| a.wasted_ms.total_cmp(&b.wasted_ms))
    }
}

impl WastedWait {
    /// Whether no policy explains it.
    pub fn is_violation(&self) -> bool {
        matches!(self.reach, Some(Grade::A | Grade::B))
    }

    /// As an event tells it.
    pub fn violation(&self) -> Violation {
        let waiters = self.waiters.iter().map(|waiter| waiter.thread);
        Violation {
            core: self.core,
            from: Nanos(self.from_ns),
            until: Nanos(self.until_ns),
            waiters: waiters.take(Violation::WAITERS_MAX).collect(),
            idle: self.idle,
            text: self.to_string().into(),
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Clean => "clean",
            Verdict::Violated => "violated",
            Verdict::CouldNotTell => "could not tell",
        })
    }
}

impl fmt::Display for WastedWait {
    /// One line: who waits where, beside what, for how long.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = match self.waiters.as_slice() {
            [] => "threads".to_owned(),
            [one] => format!("{} ({})", one.name, one.thread),
            [one, others @ ..] => {
                format!("{} ({}) and {} more", one.name, one.thread, others.len())
            }
        };
        write!(
            f,
            "core {}: {who} waited {} of {} beside idle core {}",
            self.core,
            Nanos((self.wasted_ms * 1e6) as u64),
            Nanos(self.until_ns) - Nanos(self.from_ns),
            self.idle,
        )?;
        let label = self.label.to_string();
        match self.reach.map(Grade::name) {
            // The label says the same.
            Some(reach) if label.starts_with(reach) => write!(f, " ({label})"),
            Some(reach) => write!(f, " (reach {reach}, {label})"),
            None => write!(f, " ({label})"),
        }
    }
}

impl fmt::Display for WasteTimes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.3} s of wall time, {:.3} s of cores, {:.3} s of threads",
            self.any_s, self.cores_s, self.threads_s
        )
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}", self.verdict, self.verdict_reason)?;
        writeln!(f, "  {} ({})", self.host, self.kernel)?;
        let (looks, judged) = (self.samples, self.judged_s);
        match judged > 0.0 {
            true => writeln!(f, "  looked {looks} times, and judged {judged:.2} s between looks")?,
            false => writeln!(f, "  looked {looks} times; no look was suspicious twice")?,
        }
        for blind in &self.unjudged {
            let span = Nanos(blind.until_ns) - Nanos(blind.from_ns);
            writeln!(f, "  could not tell for {span}: {}", blind.why)?;
        }
        let Waste { wasted, allowed_by_policy, affinity_unknown } = &self.waste;
        writeln!(f, "  wasted: {wasted}")?;
        for (title, times) in
            [("allowed by policy", allowed_by_policy), ("affinity unknown", affinity_unknown)]
        {
            if *times != WasteTimes::default() {
                writeln!(f, "  {title}: {times}")?;
            }
        }
        writeln!(f, "  migrations: {}", in_words(&self.migrations))?;
        let lists = [
            ("violation", &self.violations),
            ("no violation", &self.allowed_by_policy),
            ("unknown", &self.unknown),
        ];
        for (title, list) in lists {
            for finding in list {
                writeln!(f, "\n{title}: {finding}")?;
                write_details(f, finding)?;
            }
        }
        if self.omitted > 0 {
            writeln!(f, "\n{} more are not listed", self.omitted)?;
        }
        if !self.facts.is_empty() {
            writeln!(f, "\nthe kernel:")?;
        }
        self.facts.iter().try_for_each(|fact| writeln!(f, "  {fact}"))
    }
}

fn write_details(f: &mut fmt::Formatter<'_>, finding: &WastedWait) -> fmt::Result {
    for waiter in finding.waiters.iter().take(8) {
        let allowed = waiter.allowed.map_or("unknown".to_owned(), |cores| cores.to_string());
        write!(
            f,
            "  waiter   {} ({}) {:.1} ms, may use {allowed}",
            waiter.name, waiter.thread, waiter.wasted_ms
        )?;
        match &waiter.plan {
            Some(reason) => writeln!(f, "; the plan: {reason}")?,
            None => writeln!(f)?,
        }
    }
    if !finding.causes.is_empty() {
        let causes: Vec<String> = finding.causes.iter().map(CauseShare::to_string).collect();
        writeln!(f, "  causes   {}", causes.join("; "))?;
    }
    let evidence = &finding.evidence;
    let queues: Vec<String> =
        evidence.queues.iter().map(|(core, threads)| format!("{core}:{threads}")).collect();
    writeln!(f, "  queues   {} (core:threads)", queues.join(" "))?;
    if let Some(domain) = evidence.domain {
        writeln!(f, "  domain   core {} balances with {domain}", finding.core)?;
    }
    if let (Some(idle), Some(busy)) = (&evidence.idle_group, &evidence.busy_group) {
        writeln!(
            f,
            "  loads    idle group {}: mean {}, least {}; waiter's group {}: mean {}, least {}",
            idle.cores, idle.mean, idle.minimum, busy.cores, busy.mean, busy.minimum
        )?;
    }
    writeln!(f, "  moves    {}", in_words(&evidence.moves))?;
    for moved in &evidence.moves_here {
        let after = (moved.at_ns.saturating_sub(finding.from_ns)) as f64 / 1e6;
        writeln!(
            f,
            "           +{after:.1} ms {} ({}) {} -> {} {:?}",
            moved.name, moved.thread, moved.from, moved.to, moved.cause
        )?;
    }
    let passes = |count: Option<u64>| count.map_or("unknown".to_owned(), |count| count.to_string());
    writeln!(
        f,
        "  balance  {} passes on idle cores, {} on others",
        passes(evidence.balance_passes_on_idle),
        passes(evidence.balance_passes_elsewhere)
    )?;
    writeln!(
        f,
        "  wake-ups onto this core while busy: {} with an idle core in the cache, {} with one outside only",
        evidence.busy_wakeups_inside_llc, evidence.busy_wakeups_outside_llc
    )?;
    writeln!(
        f,
        "  also     {} forks, {} execs, {} exits; the hypervisor took {:.1} ms",
        evidence.forks, evidence.execs, evidence.exits, evidence.stolen_ms
    )
}

fn in_words(moves: &BTreeMap<MoveCause, u64>) -> String {
    if moves.is_empty() {
        return "none".to_owned();
    }
    let count = |(cause, count): (&MoveCause, &u64)| format!("{count} {cause:?}").to_lowercase();
    moves.iter().map(count).collect::<Vec<_>>().join(", ")
}
