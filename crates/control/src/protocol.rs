//! The control protocol: one JSON object a line, a request and its response.
//!
//! The socket is `control.sock` in the run directory. A client sends [`Request`] lines and reads one
//! [`Response`] line for each, in order. Lines are bounded by [`LINE_BYTES_MAX`]; what does not parse is
//! answered with an error and changes nothing. [`schema`] describes all of it as JSON Schema and is served
//! by the `schema` operation, so that a client needs nothing but the socket.

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
            Call::Schema | Call::Status | Call::Why { .. } => Right::Read,
            Call::Report(_) => Right::Report,
            Call::Apply { .. } | Call::Drain { .. } | Call::Stop { .. } => Right::Change,
        }
    }

    /// Its name on the wire.
    pub fn name(&self) -> &'static str {
        match self {
            Call::Schema => "schema",
            Call::Status => "status",
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
    /// Per core of the host.
    pub cores: Vec<CoreStatus>,
    /// Per task.
    pub tasks: Vec<TaskStatus>,
    /// Totals since the start.
    pub counters: Counters,
    /// The newest events, oldest first.
    pub events: Vec<String>,
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
    /// Milliseconds on cores since it is watched.
    pub ran_ms: f64,
    /// Milliseconds waited since it is watched.
    pub waited_ms: f64,
    /// What went wrong with it, newest last.
    pub problems: Vec<String>,
    /// LC: tail latency and load as the service or its client sees them; null for BE.
    pub latency: Option<LatencyStatus>,
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
    /// Mean time of a tick, in microseconds.
    pub tick_mean_us: f64,
    /// Longest tick, in microseconds.
    pub tick_max_us: f64,
    /// CPU time of the scheduler thread, in milliseconds.
    pub scheduler_cpu_ms: f64,
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
    fn the_schema_names_every_call() {
        let schema = schema().to_string();
        for call in ["schema", "status", "apply", "drain", "stop", "why", "report"] {
            assert!(schema.contains(call), "{call}");
        }
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
