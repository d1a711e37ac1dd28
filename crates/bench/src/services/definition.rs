//! What a service is: how it is started, what is asked of it, and which of its threads matter. One TOML file each.
//!
//! The built-in ones lie beside this file in `definitions/` and are examples for those of users.

use std::collections::BTreeMap;
use std::time::Duration;

use quell_load::ProtocolSpec;
use serde::Deserialize;

/// Longest file that is read, in bytes.
pub const FILE_BYTES_MAX: usize = 1 << 20;
/// Words of a command, files, commands of one kind: at most so many.
const ENTRIES_MAX: usize = 64;
/// Longest name of a service.
const NAME_BYTES_MAX: usize = 32;
/// Names of threads are at most so long (`TASK_COMM_LEN` without its zero).
const COMM_BYTES_MAX: usize = 15;
/// Requests beyond a quantile that make it worth quoting.
pub const BEYOND_QUANTILE: f64 = 50.0;

/// The services that come with this program, by name.
const BUILT_IN: [(&str, &str); 7] = [
    ("memcached", include_str!("definitions/memcached.toml")),
    ("redis", include_str!("definitions/redis.toml")),
    ("nginx", include_str!("definitions/nginx.toml")),
    ("postgres-tpcb", include_str!("definitions/postgres-tpcb.toml")),
    ("postgres-select", include_str!("definitions/postgres-select.toml")),
    ("java", include_str!("definitions/java.toml")),
    ("go", include_str!("definitions/go.toml")),
];

/// A service.
#[derive(Clone, Debug, PartialEq)]
pub struct Definition {
    /// Its name in reports: lower case letters, digits and `-`.
    pub name: String,
    /// One line about it.
    pub about: String,
    /// The Debian package that has it, for the message when it is missing.
    pub package: Option<String>,
    /// How it is started: program and arguments, in the foreground.
    pub command: Vec<String>,
    /// The user that runs it; absent: the one that runs the benchmark.
    pub user: Option<String>,
    /// Its environment on top of the benchmark's.
    pub environment: BTreeMap<String, String>,
    /// Files that its directory holds before it starts.
    pub files: Vec<FileSpec>,
    /// Commands that run before it starts, in its directory and as its user.
    pub prepare: Vec<Vec<String>>,
    /// Succeeds once it serves; absent: its port accepts connections.
    pub ready: Option<Vec<String>>,
    /// Commands that fill it once it serves.
    pub fill: Vec<Vec<String>>,
    /// What its administrator does meanwhile, again and again.
    pub during: Vec<During>,
    /// Names of threads that are in no request's way; `*` stands for anything.
    pub background: Vec<String>,
    /// Its child processes are in no request's way, a snapshot for instance: priorities set by hand leave them out.
    pub forks_background: bool,
    /// The client.
    pub client: Client,
    /// How much is asked, and what counts.
    pub load: Load,
}

/// A file in the service's directory.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileSpec {
    /// Its path below the directory.
    pub path: String,
    /// What it holds; placeholders are filled in.
    pub content: String,
}

/// Something that happens every few seconds while load is offered.
#[derive(Clone, Debug, PartialEq)]
pub struct During {
    /// How often.
    pub every: Duration,
    /// What.
    pub command: Vec<String>,
}

/// The program that offers the load.
#[derive(Clone, Debug, PartialEq)]
pub enum Client {
    /// Quell's own open-loop client.
    Protocol(ProtocolSpec),
    /// A program that writes `sent,answered` lines, in nanoseconds of CLOCK_MONOTONIC, to `{requests}`.
    Command(Vec<String>),
}

/// How much is asked, and what counts.
#[derive(Clone, Debug, PartialEq)]
pub struct Load {
    /// Connections, each with one request at a time: as many as real clients have outstanding.
    pub connections: usize,
    /// The quantile that is quoted (0 to 1).
    pub quantile: f64,
    /// At the peak, 99 % of the answers come within this.
    pub p99_max: Duration,
    /// The first rate that the search for the peak tries.
    pub start_rps: f64,
    /// The peak, if it is not to be searched for.
    pub peak_rps: Option<f64>,
    /// No measurement is shorter: longer than a collection, a checkpoint or a snapshot takes.
    pub least: Duration,
}

/// What is wrong with a definition.
#[derive(Debug, thiserror::Error)]
pub enum DefinitionError {
    /// Not TOML, or not these keys.
    #[error("{file}: {reason}")]
    Syntax {
        /// The file.
        file: String,
        /// Where and what.
        reason: String,
    },
    /// A value that makes no sense.
    #[error("{file}: {key}: {reason}")]
    Value {
        /// The file.
        file: String,
        /// The key.
        key: &'static str,
        /// What would do.
        reason: String,
    },
}

/// The file as it is written.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    name: String,
    #[serde(default)]
    about: String,
    package: Option<String>,
    command: Vec<String>,
    user: Option<String>,
    #[serde(default)]
    environment: BTreeMap<String, String>,
    #[serde(default)]
    file: Vec<FileSpec>,
    #[serde(default)]
    prepare: Vec<Vec<String>>,
    ready: Option<Vec<String>>,
    #[serde(default)]
    fill: Vec<Vec<String>>,
    #[serde(default)]
    during: Vec<RawDuring>,
    #[serde(default)]
    background: Vec<String>,
    #[serde(default)]
    forks_background: bool,
    client: toml::Table,
    #[serde(default)]
    load: RawLoad,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawDuring {
    every_s: f64,
    command: Vec<String>,
}

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct RawLoad {
    connections: usize,
    quantile: f64,
    p99_max_ms: f64,
    start_rps: f64,
    peak_rps: Option<f64>,
    least_s: f64,
}

impl Default for RawLoad {
    fn default() -> RawLoad {
        RawLoad {
            connections: 64,
            quantile: 0.999,
            p99_max_ms: 5.0,
            start_rps: 1_000.0,
            peak_rps: None,
            least_s: 2.0,
        }
    }
}

impl Definition {
    /// The names of those that come with this program.
    pub fn built_in() -> impl Iterator<Item = &'static str> {
        BUILT_IN.iter().map(|(name, _)| *name)
    }

    /// One that comes with this program.
    ///
    /// # Errors
    /// When none has this name.
    pub fn named(name: &str) -> Result<Definition, DefinitionError> {
        match BUILT_IN.iter().find(|(known, _)| *known == name) {
            Some((_, text)) => Definition::parse(text, &format!("{name} (built in)")),
            None => Err(DefinitionError::Value {
                file: name.to_owned(),
                key: "name",
                reason: format!(
                    "no such service; give a file that ends in .toml, or one of {}",
                    Definition::built_in().collect::<Vec<_>>().join(", ")
                ),
            }),
        }
    }

    /// Reads a definition; `file` is for messages.
    ///
    /// # Errors
    /// Names the file and the first thing that is wrong with it.
    pub fn parse(text: &str, file: &str) -> Result<Definition, DefinitionError> {
        let syntax = |reason: String| DefinitionError::Syntax { file: file.to_owned(), reason };
        if text.len() > FILE_BYTES_MAX {
            return Err(syntax(format!("longer than {FILE_BYTES_MAX} bytes")));
        }
        let raw: Raw = toml::from_str(text).map_err(|err| syntax(err.to_string()))?;
        let refuse = |key, reason: String| {
            Err(DefinitionError::Value { file: file.to_owned(), key, reason })
        };
        if let Some((key, reason)) = raw.wrong() {
            return refuse(key, reason);
        }
        let client = match raw.client.get("command") {
            Some(command) => match command.clone().try_into::<Vec<String>>() {
                Ok(words) if is_command(&words) => Client::Command(words),
                _ => return refuse("client.command", "must be a list of words".into()),
            },
            None => Client::Protocol(
                raw.client.try_into().map_err(|err| syntax(format!("client: {err}")))?,
            ),
        };
        if matches!(client, Client::Command(_)) && raw.load.peak_rps.is_none() {
            return refuse(
                "load.peak_rps",
                "is needed: only with a protocol the peak is searched for".into(),
            );
        }
        if let Client::Protocol(spec) = &client
            && let Err(reason) = spec.build().map(drop)
        {
            return refuse("client", reason);
        }
        let during = |raw: RawDuring| During {
            every: Duration::from_secs_f64(raw.every_s),
            command: raw.command,
        };
        let load = raw.load;
        Ok(Definition {
            name: raw.name,
            about: raw.about,
            package: raw.package,
            command: raw.command,
            user: raw.user,
            environment: raw.environment,
            files: raw.file,
            prepare: raw.prepare,
            ready: raw.ready,
            fill: raw.fill,
            during: raw.during.into_iter().map(during).collect(),
            background: raw.background,
            forks_background: raw.forks_background,
            client,
            load: Load {
                connections: load.connections,
                quantile: load.quantile,
                p99_max: Duration::from_secs_f64(load.p99_max_ms / 1e3),
                start_rps: load.start_rps,
                peak_rps: load.peak_rps,
                least: Duration::from_secs_f64(load.least_s),
            },
        })
    }

    /// Whether a thread of this name is one of those in no request's way.
    pub fn is_background(&self, comm: &str) -> bool {
        self.background.iter().any(|pattern| matches(pattern, comm))
    }
}

impl Load {
    /// How long a measurement at this rate takes: enough requests lie beyond the quoted quantile.
    pub fn duration(&self, rate_rps: f64) -> Duration {
        let needed = BEYOND_QUANTILE / (1.0 - self.quantile) / rate_rps.max(1.0);
        self.least.max(Duration::from_secs_f64(needed.min(600.0)))
    }
}

impl Raw {
    /// The first value that makes no sense, and what would do.
    fn wrong(&self) -> Option<(&'static str, String)> {
        let is_name = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        if !(1..=NAME_BYTES_MAX).contains(&self.name.len()) || !self.name.bytes().all(is_name) {
            return Some((
                "name",
                format!("must be 1 to {NAME_BYTES_MAX} lower case letters, digits and `-`"),
            ));
        }
        let commands = [("prepare", &self.prepare), ("fill", &self.fill)];
        let lists =
            commands.into_iter().flat_map(|(key, list)| list.iter().map(move |one| (key, one)));
        let single = [("command", Some(&self.command)), ("ready", self.ready.as_ref())];
        let single = single.into_iter().filter_map(|(key, command)| Some((key, command?)));
        let during = self.during.iter().map(|during| ("during.command", &during.command));
        if let Some((key, _)) =
            lists.chain(single).chain(during).find(|(_, words)| !is_command(words))
        {
            return Some((key, format!("must be a program and at most {ENTRIES_MAX} words")));
        }
        let counts = [self.prepare.len(), self.fill.len(), self.file.len(), self.during.len()];
        if counts.into_iter().any(|count| count > ENTRIES_MAX) {
            return Some(("prepare, fill, file, during", format!("at most {ENTRIES_MAX} of each")));
        }
        let leads_out = |path: &str| {
            path.is_empty() || path.starts_with('/') || path.split('/').any(|part| part == "..")
        };
        if let Some(file) = self.file.iter().find(|file| leads_out(&file.path)) {
            return Some(("file.path", format!("`{}` is not below the directory", file.path)));
        }
        if self.background.iter().any(|name| name.is_empty() || name.len() > COMM_BYTES_MAX) {
            return Some(("background", format!("names are 1 to {COMM_BYTES_MAX} bytes long")));
        }
        if self.during.iter().any(|during| !(0.5..=3_600.0).contains(&during.every_s)) {
            return Some(("during.every_s", "must be 0.5 to 3600".into()));
        }
        self.load.wrong()
    }
}

impl RawLoad {
    fn wrong(&self) -> Option<(&'static str, String)> {
        let checks = [
            ("load.connections", (1..=10_000).contains(&self.connections), "1 to 10000"),
            ("load.quantile", (0.5..=0.9999).contains(&self.quantile), "0.5 to 0.9999"),
            ("load.p99_max_ms", (0.01..=60_000.0).contains(&self.p99_max_ms), "0.01 to 60000"),
            ("load.start_rps", (1.0..=1e7).contains(&self.start_rps), "1 to 10000000"),
            (
                "load.peak_rps",
                self.peak_rps.is_none_or(|peak| (1.0..=1e7).contains(&peak)),
                "1 to 10000000",
            ),
            ("load.least_s", (0.1..=600.0).contains(&self.least_s), "0.1 to 600"),
        ];
        let wrong = checks.into_iter().find(|(_, is_fine, _)| !is_fine);
        wrong.map(|(key, _, range)| (key, format!("must be {range}")))
    }
}

fn is_command(words: &[String]) -> bool {
    (1..=ENTRIES_MAX).contains(&words.len()) && !words[0].is_empty()
}

/// Whether a name is what a pattern with `*` says.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, rest)) => {
            let Some(tail) = name.strip_prefix(start) else { return false };
            (0..=tail.len())
                .filter(|at| tail.is_char_boundary(*at))
                .any(|at| matches(rest, &tail[at..]))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEAST: &str = "name = \"x\"\ncommand = [\"x\"]\n[client]\nprotocol = \"memcached\"\n";

    #[test]
    fn all_that_come_with_this_program_read_and_have_their_file_names() {
        for name in Definition::built_in() {
            let definition = Definition::named(name).unwrap();
            assert_eq!(definition.name, name);
            assert!(!definition.about.is_empty(), "{name} says nothing about itself");
        }
        let unknown = Definition::named("memcache").unwrap_err().to_string();
        assert!(unknown.contains("one of memcached, redis"), "{unknown}");
    }

    #[test]
    fn little_has_to_be_said() {
        let definition = Definition::parse(LEAST, "x.toml").unwrap();
        assert_eq!((definition.load.quantile, definition.load.connections), (0.999, 64));
        assert!(definition.ready.is_none() && definition.user.is_none());
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_its_key() {
        let refused = |text: &str| Definition::parse(text, "x.toml").unwrap_err().to_string();
        let with = |line: &str| LEAST.replace("[client]", &format!("{line}\n[client]"));
        for (line, key) in [
            ("ready = []", "ready"),
            ("background = [\"\"]", "background"),
            ("file = [{ path = \"../x\", content = \"\" }]", "file.path"),
            ("during = [{ every_s = 0.0, command = [\"x\"] }]", "during.every_s"),
            ("load = { quantile = 1.5 }", "load.quantile"),
            ("load = { p99_max_ms = nan }", "load.p99_max_ms"),
            ("fill = [[\"\"]]", "fill"),
        ] {
            let said = refused(&with(line));
            assert!(said.starts_with(&format!("x.toml: {key}: ")), "{line}: {said}");
        }
        assert!(refused(&LEAST.replace("\"x\"\nc", "\"a/b\"\nc")).contains("x.toml: name: "));
        assert!(refused(&with("comand = 3")).contains("unknown field"));
        assert!(refused(&LEAST.replace("memcached", "gopher")).contains("x.toml: client"));
        let own = LEAST.replace("protocol = \"memcached\"", "command = [\"client\"]");
        assert!(refused(&own).contains("load.peak_rps: is needed"));
    }

    #[test]
    fn a_measurement_is_long_enough_for_its_quantile() {
        let load = Definition::parse(LEAST, "x.toml").unwrap().load;
        assert_eq!(load.duration(100_000.0), Duration::from_secs(2));
        assert_eq!(load.duration(5_000.0).as_secs_f64().round(), 10.0);
    }

    #[test]
    fn patterns_match_names() {
        assert!(matches("mc-*", "mc-lrumaint") && !matches("mc-*", "memcached"));
        assert!(matches("*GC*", "G1 GC Thread#0") && !matches("*GC*", "G1 Main"));
        assert!(matches("gc", "gc") && !matches("gc", "gc2") && matches("*", ""));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(?s).{0,400}") {
            let _ = Definition::parse(&text, "x.toml");
        }

        #[test]
        fn changed_files_are_read_or_refused(at in 0usize..400, with in "[a-z0-9\\[\\]\"=.{} -]{0,8}") {
            let text = include_str!("definitions/redis.toml");
            let at = (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap();
            let _ = Definition::parse(&format!("{}{with}{}", &text[..at], &text[at..]), "x.toml");
        }
    }
}
