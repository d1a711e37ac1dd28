//! The control protocol: one JSON object a line, a request and its response.
//!
//! The socket is `control.sock` in the run directory. A client sends [`Request`] lines and reads one
//! [`Response`] line for each, in order. Lines are bounded by [`LINE_BYTES_MAX`]; what does not parse is
//! answered with an error and changes nothing. [`schema`] describes all of it as JSON Schema and is served
//! by the `schema` operation, so that a client needs nothing but the socket.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Read, Write};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::latency::{LatencyReport, LatencyStatus, Quantile, SloState, SloStatus};

/// The version of the protocol. A client of another version is refused by name.
pub const PROTOCOL: u32 = 1;
/// The longest line that is read: a configuration of the largest size fits, escaped.
pub const LINE_BYTES_MAX: u64 = 4 << 20;

/// One request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The protocol's version: [`PROTOCOL`].
    pub v: u32,
    /// Chosen by the client, returned in the response.
    #[serde(default)]
    pub id: u64,
    /// What to do.
    pub call: Call,
}

/// What a client can ask for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Call {
    /// The schema of requests and responses.
    Schema,
    /// What runs where, and why.
    Status,
    /// Makes the set of tasks what this configuration says. Applying it twice changes nothing.
    Apply {
        /// The configuration's name, for messages.
        file: String,
        /// Its text.
        text: String,
        /// Only say what would change.
        #[serde(default)]
        dry_run: bool,
    },
    /// Gives one task back: its threads as they were, a launched one ended.
    Drain {
        /// Its name.
        task: String,
    },
    /// Gives everything back and ends the daemon.
    Stop {
        /// Leave launched tasks running.
        #[serde(default)]
        keep: bool,
    },
    /// Congestion that the plan cannot relieve, and its causes.
    Congestion,
    /// Tells what a service or its client measured of an LC task's latency and load.
    Report(LatencyReport),
    /// Explains the last decision about a core (`core 1`) or a task (`task web`).
    Why {
        /// `core N` or `task NAME`.
        subject: String,
    },
}

/// What a connection may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Right {
    /// See everything.
    Read,
    /// Tell what was measured: root, and the user of the task's processes.
    Report,
    /// Change everything: root and the daemon's own user.
    Change,
}

impl Call {
    /// The right that it takes.
    pub fn needs(&self) -> Right {
        match self {
            Call::Schema | Call::Status | Call::Congestion | Call::Why { .. } => Right::Read,
            Call::Report(_) => Right::Report,
            Call::Apply { .. } | Call::Drain { .. } | Call::Stop { .. } => Right::Change,
        }
    }

    /// Its name on the wire.
    pub fn name(&self) -> &'static str {
        match self {
            Call::Schema => "schema",
            Call::Status => "status",
            Call::Congestion => "congestion",
            Call::Apply { .. } => "apply",
            Call::Drain { .. } => "drain",
            Call::Stop { .. } => "stop",
            Call::Report(_) => "report",
            Call::Why { .. } => "why",
        }
    }
}

/// One response.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Response {
    /// The protocol's version.
    pub v: u32,
    /// The request's id; zero where the request did not parse.
    pub id: u64,
    /// What came of it.
    pub reply: Reply,
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// To `schema`.
    Schema(serde_json::Value),
    /// To `status`.
    Status(Box<Status>),
    /// To `congestion`.
    Congestion(CongestionReport),
    /// To `apply`, `drain`, `stop`, `why`, `report`: what was done or is so, a sentence a line.
    Done(Vec<String>),
    /// Nothing was changed; why.
    Error(String),
}

/// What runs where, and why.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Status {
    /// Version of the program.
    pub version: String,
    /// Process id of the daemon.
    pub pid: u32,
    /// Seconds since it started.
    pub uptime_s: u64,
    /// The policy that decides.
    pub policy: String,
    /// The back end that acts.
    pub back_end: String,
    /// `shared` or `dedicated`: how the scheduler thread runs.
    pub pattern: String,
    /// Where signals come from: `bpf` or `proc`.
    pub signals: String,
    /// Managed cores as a list.
    pub managed: String,
    /// Cores that are left alone.
    pub unmanaged: String,
    /// Guardians alive; below 2 nothing is changed.
    pub guardians: u32,
    /// What this host lacks, and its consequence.
    pub degraded: Vec<String>,
    /// The host's name.
    #[serde(default)]
    pub host: String,
    /// When this was read: microseconds of CLOCK_MONOTONIC.
    #[serde(default)]
    pub at_us: u64,
    /// Per core of the host.
    pub cores: Vec<CoreStatus>,
    /// Per task.
    pub tasks: Vec<TaskStatus>,
    /// Totals since the start.
    pub counters: Counters,
    /// The newest events, oldest first.
    pub events: Vec<String>,
    /// Cores that changed hands lately, oldest first.
    #[serde(default)]
    pub decisions: Vec<Decision>,
    /// Advice to the last plan: what was followed, and what was declined.
    #[serde(default)]
    pub advice: Vec<Advised>,
}

/// A core that changed hands.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Decision {
    /// When it was decided: microseconds of CLOCK_MONOTONIC, as [`Status::at_us`].
    pub at_us: u64,
    /// The core.
    pub core: u32,
    /// The task that owned it.
    pub from: Option<String>,
    /// The task that owns it since.
    pub to: Option<String>,
    /// Why.
    pub reason: String,
}

/// A piece of advice, and what became of it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Advised {
    /// The task that it is about.
    pub task: String,
    /// What was advised.
    pub offer: String,
    /// Why it was declined; null: it is followed.
    pub declined: Option<String>,
}

/// How long a core ran a task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct RanOn {
    /// The task.
    pub task: String,
    /// Milliseconds since the task is watched.
    pub ran_ms: f64,
}

/// Wake-to-run times of the last second; each bound is at most an eighth too high.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct WakeToRun {
    /// Wake-ups.
    pub count: u64,
    /// Median, in microseconds.
    pub p50_us: f64,
    /// 99th percentile, in microseconds.
    pub p99_us: f64,
    /// 99.9th percentile, in microseconds.
    pub p999_us: f64,
}

/// One core.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CoreStatus {
    /// The kernel's number.
    pub core: u32,
    /// `kernel`, `lane`, `runtime`, `parked` or `unmanaged`.
    pub mode: String,
    /// The task that owns it.
    pub owner: Option<String>,
    /// The task that runs on it now.
    pub running: Option<String>,
    /// Why it is so.
    pub reason: String,
    /// Share of the last 100 ms that LC threads ran on it, in percent.
    pub lc_busy_percent: Option<f64>,
    /// What became of the last plan for it.
    pub outcome: String,
    /// How long it ran each task; empty without BPF.
    #[serde(default)]
    pub ran: Vec<RanOn>,
    /// Milliseconds that it idled; null without BPF and for cores that are not managed.
    #[serde(default)]
    pub idle_ms: Option<f64>,
}

/// One task.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TaskStatus {
    /// Its name.
    pub name: String,
    /// `LC` or `BE`, as configured.
    pub class: String,
    /// How it came: launched, adopted by pid, match or cgroup.
    pub source: String,
    /// `running`, `waiting for processes`, `exited (status)`.
    pub state: String,
    /// Processes watched.
    pub processes: Vec<i32>,
    /// Threads watched.
    pub threads: u32,
    /// Threads that run now.
    pub running: u32,
    /// Threads that wait for a core now.
    pub waiting: u32,
    /// Age of the oldest wait, in microseconds; null when none waits or it is not known.
    pub queueing_delay_us: Option<f64>,
    /// Cores that it owns, as a list.
    pub owned: String,
    /// Cores that it may use beneath their owner.
    pub beneath: String,
    /// The rung of its threads.
    pub rung: String,
    /// Why it is treated so.
    pub reason: String,
    /// Whether it is frozen now.
    pub frozen: bool,
    /// Milliseconds that its threads were on cores since it joined; without BPF, of threads alive.
    pub ran_ms: f64,
    /// Milliseconds that its threads waited for cores since it joined; without BPF, of threads alive.
    pub waited_ms: f64,
    /// What went wrong with it, newest last.
    pub problems: Vec<String>,
    /// LC: the cause of its congestion, while that is one that the plan cannot relieve.
    #[serde(default)]
    pub unrelieved: Option<CongestionCause>,
    /// LC: seconds of such congestion since it joined, by cause.
    #[serde(default)]
    pub unrelieved_s: BTreeMap<CongestionCause, f64>,
    /// LC: how long its threads took from wake-up to core; null without BPF or wake-ups.
    #[serde(default)]
    pub wake_to_run: Option<WakeToRun>,
    /// BE: how late LC threads got a core that it had, p99.9 of the last second in microseconds.
    #[serde(default)]
    pub delay_caused_us: Option<f64>,
    /// LC: tail latency and load as the service or its client sees them; null for BE.
    #[serde(default)]
    pub latency: Option<LatencyStatus>,
}

/// Why a Plan cannot relieve a task's congestion.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum CongestionCause {
    /// It owns as many cores as it may: `max`, or all that it may use.
    AtMaximum,
    /// Other LC tasks own every other core that it may use.
    LcOwned,
    /// Advice caps it or keeps it off the others.
    Advice,
    /// The host refuses it a core.
    Refused,
    /// None of the cores that it may use is managed and online.
    NoCore,
    /// It ran without sleeping past its bound, so it counts as BE.
    RanAway,
    /// It owns a core for each thread that could run: something else than a lack of cores holds them up.
    EnoughCores,
    /// The policy gives it no more, although it could.
    Policy,
}

impl CongestionCause {
    /// All of them.
    pub const ALL: [CongestionCause; 8] = [
        CongestionCause::AtMaximum,
        CongestionCause::LcOwned,
        CongestionCause::Advice,
        CongestionCause::Refused,
        CongestionCause::NoCore,
        CongestionCause::RanAway,
        CongestionCause::EnoughCores,
        CongestionCause::Policy,
    ];

    /// As in JSON.
    pub fn label(self) -> &'static str {
        match self {
            CongestionCause::AtMaximum => "at_maximum",
            CongestionCause::LcOwned => "lc_owned",
            CongestionCause::Advice => "advice",
            CongestionCause::Refused => "refused",
            CongestionCause::NoCore => "no_core",
            CongestionCause::RanAway => "ran_away",
            CongestionCause::EnoughCores => "enough_cores",
            CongestionCause::Policy => "policy",
        }
    }
}

/// Congestion that the plan cannot relieve: what a scheduler of many hosts reads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CongestionReport {
    /// When the report was made, in nanoseconds of CLOCK_MONOTONIC.
    pub now_ns: u64,
    /// A task is listed once it was congested for this long, in milliseconds.
    pub after_ms: f64,
    /// The tasks; empty when there is no such congestion.
    pub tasks: Vec<CongestedTask>,
}

/// One task whose congestion the plan cannot relieve.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CongestedTask {
    /// Its name.
    pub task: String,
    /// Since when it is congested, in nanoseconds of CLOCK_MONOTONIC.
    pub since_ns: u64,
    /// How long that is, in seconds.
    pub for_s: f64,
    /// Age of the oldest wait, in microseconds; null when none waits just now or it is not known.
    pub queueing_delay_us: Option<f64>,
    /// Threads that could use a core now.
    pub runnable: u32,
    /// Cores that it owns, as a list.
    pub owned: String,
    /// Why the plan cannot help.
    pub cause: CongestionCause,
    /// The cores that the cause is about, as a list.
    pub cores: String,
    /// The tasks that own those.
    pub owners: Vec<String>,
    /// The host's reason for refusing.
    pub errno: Option<i32>,
    /// The cause in a sentence.
    pub why: String,
    /// What would relieve it, in a sentence.
    pub relief: String,
}

/// Totals since the daemon started.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Counters {
    /// Ticks of the scheduler thread.
    pub ticks: u64,
    /// Of those, called by an event of the kernel rather than by time.
    pub ticks_by_event: u64,
    /// Plans that differed from the one before.
    pub plans: u64,
    /// Changes made to the host.
    pub changes: u64,
    /// Changes that the kernel refused.
    pub refused: u64,
    /// Decisions taken on a state that had moved when they took effect.
    pub stale_decisions: u64,
    /// Times that a guaranteed core was missing although its task wanted it (invariant 1).
    pub violations_guarantee: u64,
    /// Times that BE was put before LC (invariant 2).
    pub violations_priority: u64,
    /// Times that a core idled by plan while a task that may use it had work (invariant 3).
    pub violations_conservation: u64,
    /// Times that advice was not followed although nothing forbade it (invariant 4).
    pub violations_advice: u64,
    /// Times that a plan contradicted itself or the host.
    pub violations_shape: u64,
    /// Events of the kernel that were lost; a sweep followed each time.
    pub events_lost: u64,
    /// Microseconds during which an LC thread waited while a managed core that it may use was idle;
    /// null without BPF.
    pub idle_while_lc_waits_us: Option<f64>,
    /// Time of the last tick, in microseconds.
    pub tick_last_us: f64,
    /// Time of all ticks, in microseconds.
    #[serde(default)]
    pub tick_sum_us: f64,
    /// Mean time of a tick, in microseconds.
    pub tick_mean_us: f64,
    /// Longest tick, in microseconds.
    pub tick_max_us: f64,
    /// CPU time of the scheduler thread, in milliseconds.
    pub scheduler_cpu_ms: f64,
    /// CPU time of the daemon, all threads, in milliseconds.
    #[serde(default)]
    pub daemon_cpu_ms: f64,
}

/// The protocol as JSON Schema.
pub fn schema() -> serde_json::Value {
    serde_json::json!({
        "protocol": PROTOCOL,
        "request": schemars::schema_for!(Request),
        "response": schemars::schema_for!(Response),
    })
}

/// Reads a request from one line.
///
/// # Errors
/// A sentence for the client.
pub fn parse_request(line: &str) -> Result<Request, String> {
    let request: Request = serde_json::from_str(line)
        .map_err(|err| format!("not a request: {err}; the `schema` call describes requests"))?;
    if request.v != PROTOCOL {
        return Err(format!(
            "protocol version {} is not spoken here, {PROTOCOL} is; use the client of this version",
            request.v
        ));
    }
    Ok(request)
}

/// Sends one value as a line.
///
/// # Errors
/// When the peer is gone.
pub fn send<T: Serialize>(to: &mut impl Write, value: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    to.write_all(&line)?;
    to.flush()
}

/// Reads one line of at most [`LINE_BYTES_MAX`]; `None` at the end.
///
/// # Errors
/// As [`read_line_within`].
pub fn read_line(from: &mut impl BufRead) -> io::Result<Option<String>> {
    read_line_within(from, LINE_BYTES_MAX)
}

/// Reads one line of at most `limit` bytes; `None` at the end.
///
/// # Errors
/// When the line is longer, is not UTF-8, or reading fails.
pub fn read_line_within(from: &mut impl BufRead, limit: u64) -> io::Result<Option<String>> {
    let mut line = Vec::new();
    let read = from.take(limit).read_until(b'\n', &mut line)?;
    if read == 0 {
        return Ok(None);
    }
    if line.last() != Some(&b'\n') && read as u64 == limit {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the line is too long"));
    }
    let text = String::from_utf8(line)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "the line is not UTF-8"))?;
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn valid_call() -> impl Strategy<Value = Call> {
        let text = ".{0,20}";
        prop_oneof![
            Just(Call::Schema),
            Just(Call::Status),
            (text, text, any::<bool>()).prop_map(|(file, text, dry_run)| Call::Apply {
                file,
                text,
                dry_run
            }),
            text.prop_map(|task| Call::Drain { task }),
            any::<bool>().prop_map(|keep| Call::Stop { keep }),
            text.prop_map(|subject| Call::Why { subject }),
            (text, any::<u64>(), any::<Option<u32>>()).prop_map(|(task, interval_ms, load)| {
                let latency = vec![Quantile { percentile: 99.9, latency_us: 12.5 }];
                let load_rps = load.map(f64::from);
                Call::Report(LatencyReport { task, interval_ms, load_rps, latency })
            }),
        ]
    }

    /// Something that happens to the bytes of a request.
    #[derive(Clone, Debug)]
    enum Damage {
        Flip(usize, u8),
        Cut(usize, usize),
        Repeat(usize, usize),
        Insert(usize, Vec<u8>),
    }

    fn damage() -> impl Strategy<Value = Damage> {
        // What means something to JSON, so that more than the first error is reached.
        let piece = prop_oneof![
            "[{}\\[\\]\",:\\\\\n]{1,4}".prop_map(String::into_bytes),
            "(null|true|-1|1e999|\"keep\":1|\\\\u0000|\\\\ud800)".prop_map(String::into_bytes),
            proptest::collection::vec(any::<u8>(), 1..4),
        ];
        prop_oneof![
            (any::<usize>(), any::<u8>()).prop_map(|(at, with)| Damage::Flip(at, with)),
            (any::<usize>(), 1..20usize).prop_map(|(at, len)| Damage::Cut(at, len)),
            (any::<usize>(), 1..20usize).prop_map(|(at, len)| Damage::Repeat(at, len)),
            (any::<usize>(), piece).prop_map(|(at, what)| Damage::Insert(at, what)),
        ]
    }

    impl Damage {
        fn inflict(self, line: &mut Vec<u8>) {
            let span = |at: usize, len: usize| {
                let from = at % (line.len() + 1);
                from..(from + len).min(line.len())
            };
            match self {
                Damage::Flip(at, with) => {
                    let at = at % line.len().max(1);
                    line.iter_mut().skip(at).take(1).for_each(|byte| *byte ^= with);
                }
                Damage::Cut(at, len) => drop(line.drain(span(at, len))),
                Damage::Repeat(at, len) => line.extend_from_within(span(at, len)),
                Damage::Insert(at, what) => {
                    let at = span(at, 0).start;
                    drop(line.splice(at..at, what));
                }
            }
        }
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        use serde_json::{Value, json};
        prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(|value| json!(value)),
            any::<f64>().prop_map(|value| json!(value)),
            any::<u64>().prop_map(|value| json!(value)),
            ".{0,8}".prop_map(|value| json!(value)),
            Just(json!([[], {}])),
            Just(json!({"drain": {"task": "web", "keep": true}})),
        ]
    }

    fn pointers(value: &serde_json::Value, here: &str, found: &mut Vec<String>) {
        for (key, inner) in value.as_object().into_iter().flatten() {
            let there = format!("{here}/{key}");
            pointers(inner, &there, found);
            found.push(there);
        }
    }

    #[test]
    fn requests_survive_the_wire() {
        let request = Request { v: PROTOCOL, id: 7, call: Call::Drain { task: "web".into() } };
        let mut wire = Vec::new();
        send(&mut wire, &request).unwrap();
        let line = read_line(&mut wire.as_slice()).unwrap().unwrap();
        assert_eq!(parse_request(&line), Ok(request));
    }

    #[test]
    fn another_version_is_refused_by_name() {
        let refused = parse_request(r#"{"v":9,"call":"status"}"#).unwrap_err();
        assert!(refused.contains("version 9 is not spoken here, 1 is"), "{refused}");
    }

    #[test]
    fn causes_are_labelled_as_in_json() {
        for cause in CongestionCause::ALL {
            assert_eq!(serde_json::to_value(cause).unwrap(), cause.label());
        }
    }

    #[test]
    fn the_schema_names_every_call() {
        let schema = schema().to_string();
        for call in ["schema", "status", "apply", "drain", "stop", "congestion", "why", "report"] {
            assert!(schema.contains(call), "{call}");
        }
    }

    #[test]
    fn a_status_of_a_daemon_that_tells_less_still_reads() {
        let mut status = serde_json::to_value(Status {
            cores: vec![CoreStatus::default()],
            tasks: vec![TaskStatus::default()],
            ..Status::default()
        })
        .unwrap();
        for (table, added) in [
            ("", &["host", "at_us", "decisions", "advice"][..]),
            ("/cores/0", &["ran", "idle_ms"]),
            ("/tasks/0", &["wake_to_run", "delay_caused_us", "unrelieved", "unrelieved_s"]),
            ("/counters", &["daemon_cpu_ms", "tick_sum_us"]),
        ] {
            let table = status.pointer_mut(table).and_then(|table| table.as_object_mut()).unwrap();
            for field in added {
                assert!(table.remove(*field).is_some(), "{field}");
            }
        }
        let read: Status = serde_json::from_value(status).unwrap();
        assert_eq!(read.cores.len(), 1);
    }

    proptest! {
        #[test]
        fn garbage_is_an_error_and_never_a_panic(line in ".{0,200}") {
            prop_assert!(parse_request(&line).is_err());
        }

        #[test]
        fn a_damaged_request_is_refused_or_means_what_it_says(
            call in valid_call(),
            damage in proptest::collection::vec(damage(), 1..4),
        ) {
            let request = Request { v: PROTOCOL, id: 1, call };
            let mut line = serde_json::to_vec(&request).unwrap();
            for one in damage {
                one.inflict(&mut line);
            }
            line.push(b'\n');
            let mut from = line.as_slice();
            while let Ok(Some(line)) = read_line_within(&mut from, 256) {
                let Ok(read) = parse_request(&line) else { continue };
                let again = parse_request(&serde_json::to_string(&read).unwrap()).unwrap();
                // The last digit of a long number may differ.
                if !matches!(read.call, Call::Report(_)) {
                    prop_assert_eq!(again, read, "{}", line);
                }
            }
        }

        #[test]
        fn another_shape_of_a_request_never_panics(call in valid_call(), at in 0..6usize, other in json()) {
            let mut value = serde_json::to_value(Request { v: PROTOCOL, id: 1, call }).unwrap();
            // Any one member, at any depth, becomes something else.
            let mut members = Vec::new();
            pointers(&value, "", &mut members);
            let pointer = members[at % members.len()].clone();
            *value.pointer_mut(&pointer).unwrap() = other;
            if let Ok(read) = parse_request(&value.to_string()) {
                prop_assert_eq!(read.v, PROTOCOL);
            }
        }

        #[test]
        fn bytes_that_are_no_line_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut from = bytes.as_slice();
            while let Ok(Some(line)) = read_line(&mut from) {
                let _ = parse_request(&line);
            }
        }
    }
}
