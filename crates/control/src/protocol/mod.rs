//! The control protocol: one JSON object a line, a request and its response.
//!
//! The socket is `control.sock` in the run directory. A client sends [`Request`] lines and reads one
//! [`Response`] line for each, in order. Lines are bounded by [`LINE_BYTES_MAX`]; what does not parse is
//! answered with an error and changes nothing. [`schema`] describes all of it as JSON Schema and is served
//! by the `schema` operation, so that a client needs nothing but the socket.

mod status;

use std::io::{self, BufRead, Read, Write};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::latency::{LatencyReport, LatencyStatus, Quantile, SloState, SloStatus};
pub use crate::register::{Registered, Registration};
pub use crate::subscribe::Update;
pub use status::*;

/// The version of the protocol. A client of another version is refused by name.
pub const PROTOCOL: u32 = 2;
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
    pub call: Method,
}

/// What a client can ask for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Method {
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
    /// Adds the tasks of this configuration for as long as this connection is open; its `[host]` table is not read.
    Attach {
        /// The configuration's name, for messages.
        file: String,
        /// Its text.
        text: String,
    },
    /// Gives one task back: its threads as they were, a launched one ended.
    Remove {
        /// Its name.
        task: String,
    },
    /// Gives everything back and ends the daemon.
    Stop {
        /// Leave launched tasks running.
        #[serde(default)]
        keep_programs: bool,
    },
    /// Congestion that the plan cannot relieve, and its causes.
    Congestion,
    /// Tells what a service or its client measured of an LC task's latency and load.
    Report(LatencyReport),
    /// Explains the last decision about a core (`core 1`) or a task (`task web`).
    Explain {
        /// `core N` or `task NAME`.
        subject: String,
    },
    /// Sends each decision from now on as a line ([`Update`]), for as long as this connection is open. Once on a
    /// connection, and nothing else after it.
    Subscribe,
    /// Registers the runtime of the calling process, for as long as this connection is open. Descriptors come with the
    /// answer; once on a connection, and nothing else on it.
    Register(Registration),
}

/// What a connection may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Permission {
    /// See everything.
    Read,
    /// Tell what was measured: root, and the user of the task's processes.
    Report,
    /// Register a runtime: whoever may connect; as LC or with guaranteed cores, root and processes of a configured
    /// task.
    Register,
    /// Change everything: root and the daemon's own user.
    Change,
}

impl Method {
    /// The permission that it takes.
    pub fn needs(&self) -> Permission {
        match self {
            Method::Schema
            | Method::Status
            | Method::Congestion
            | Method::Explain { .. }
            | Method::Subscribe => Permission::Read,
            Method::Report(_) => Permission::Report,
            Method::Register(_) => Permission::Register,
            Method::Apply { .. }
            | Method::Attach { .. }
            | Method::Remove { .. }
            | Method::Stop { .. } => Permission::Change,
        }
    }

    /// Its name on the wire.
    pub fn name(&self) -> &'static str {
        match self {
            Method::Schema => "schema",
            Method::Status => "status",
            Method::Congestion => "congestion",
            Method::Apply { .. } => "apply",
            Method::Attach { .. } => "attach",
            Method::Remove { .. } => "remove",
            Method::Stop { .. } => "stop",
            Method::Report(_) => "report",
            Method::Explain { .. } => "explain",
            Method::Subscribe => "subscribe",
            Method::Register(_) => "register",
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
    /// To `apply`, `attach`, `remove`, `stop`, `explain`, `report`: what was done or is so, a sentence a line.
    Done(Vec<String>),
    /// To `subscribe`: lines of [`Update`] follow.
    Subscribed,
    /// To `register`.
    Registered(Registered),
    /// Nothing was changed; why.
    Error(String),
}

/// The protocol as JSON Schema.
pub fn schema() -> serde_json::Value {
    serde_json::json!({
        "protocol": PROTOCOL,
        "request": schemars::schema_for!(Request),
        "response": schemars::schema_for!(Response),
        "update": schemars::schema_for!(Update),
    })
}

/// The part of a request that every version has.
#[derive(Deserialize)]
struct Version {
    v: u32,
}

/// Reads a request from one line.
///
/// # Errors
/// A sentence for the client.
pub fn parse_request(line: &str) -> Result<Request, String> {
    // The version first: a request of another one may have methods that this one does not know.
    if let Ok(Version { v }) = serde_json::from_str(line)
        && v != PROTOCOL
    {
        return Err(format!(
            "unsupported protocol version {v}, expected {PROTOCOL}; use a quell client of the same release as the daemon"
        ));
    }
    serde_json::from_str(line)
        .map_err(|err| format!("not a request: {err}; the `schema` call describes requests"))
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
    use quell_model::TypedTimes;

    fn valid_call() -> impl Strategy<Value = Method> {
        let text = ".{0,20}";
        prop_oneof![
            Just(Method::Schema),
            Just(Method::Status),
            Just(Method::Subscribe),
            (text, text, any::<bool>()).prop_map(|(file, text, dry_run)| Method::Apply {
                file,
                text,
                dry_run
            }),
            text.prop_map(|task| Method::Remove { task }),
            any::<bool>().prop_map(|keep_programs| Method::Stop { keep_programs }),
            text.prop_map(|subject| Method::Explain { subject }),
            (text, any::<u32>(), any::<u64>(), any::<Option<i32>>()).prop_map(
                |(name, cores, time_us, signal)| {
                    let mut wanted = Registration {
                        layout: cores,
                        name,
                        guaranteed: cores,
                        max_cores: cores,
                        signal,
                        ..Registration::default()
                    };
                    for time in wanted.typed_mut() {
                        *time = Some(time_us);
                    }
                    Method::Register(wanted)
                }
            ),
            (text, any::<u64>(), any::<Option<u32>>()).prop_map(|(task, interval_ms, load)| {
                let latency = vec![Quantile { percentile: 99.9, latency_us: 12.5 }];
                let load_rps = load.map(f64::from);
                Method::Report(LatencyReport { task, interval_ms, load_rps, latency })
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
            "(null|true|-1|1e999|\"keep_programs\":1|\\\\u0000|\\\\ud800)"
                .prop_map(String::into_bytes),
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
            Just(json!({"remove": {"task": "web", "keep_programs": true}})),
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
        let request = Request { v: PROTOCOL, id: 7, call: Method::Remove { task: "web".into() } };
        let mut wire = Vec::new();
        send(&mut wire, &request).unwrap();
        let line = read_line(&mut wire.as_slice()).unwrap().unwrap();
        assert_eq!(parse_request(&line), Ok(request));
    }

    #[test]
    fn another_version_is_refused_by_name() {
        let refused = parse_request(r#"{"v":9,"call":"status"}"#).unwrap_err();
        assert!(refused.contains("unsupported protocol version 9, expected 2"), "{refused}");
        let older = parse_request(r#"{"v":1,"call":{"drain":{"task":"web"}}}"#).unwrap_err();
        assert!(older.contains("unsupported protocol version 1, expected 2"), "{older}");
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
        for call in [
            "schema",
            "status",
            "apply",
            "remove",
            "stop",
            "congestion",
            "explain",
            "report",
            "subscribe",
            "plan_affinity",
        ] {
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
            ("/cores/0", &["task_cpu", "idle_ms"]),
            (
                "/tasks/0",
                &[
                    "wakeup_latency",
                    "lc_delay_caused_us",
                    "unresolved_congestion",
                    "unresolved_congestion_s",
                ],
            ),
            ("/counters", &["daemon_cpu_ms", "tick_total_us"]),
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
                if !matches!(read.call, Method::Report(_)) {
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
