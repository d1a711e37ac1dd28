//! From a lane as typed to one that makes sense.

use std::collections::BTreeSet;
use std::fmt;

use anyhow::{Context, Result, anyhow, bail, ensure};
use quell_control::config::{LaneConfig, MemberConfig};
use quell_model::Nanos;
use quell_observe::procs;
use quell_policy::lanes::{Job, MEMBERS_MAX, Member, NAMES, Slot, Spec};

/// The slice where none is asked for.
const SLICE: Nanos = Nanos::from_micros(100);
/// The quantum of the preemptive policy where none is asked for.
const QUANTUM: Nanos = Nanos::from_micros(50);
/// How long the preempted wait at most where nothing is said.
const RESUME_AFTER: Nanos = Nanos::from_millis(10);
/// The longest name of a member.
const NAME_BYTES_MAX: usize = 32;

/// What makes up a member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum MemberSource {
    /// A program to start, for a shell.
    Command(String),
    /// A process that runs: all its threads.
    Process(i32),
    /// A thread alone.
    Thread(i32),
}

impl fmt::Display for MemberSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemberSource::Command(command) => write!(f, "`{command}`"),
            MemberSource::Process(pid) => write!(f, "process {pid}"),
            MemberSource::Thread(tid) => write!(f, "thread {tid}"),
        }
    }
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberRequest {
    /// Its name, unique in the lane.
    pub name: String,
    /// What makes it up.
    pub source: MemberSource,
}

/// One lane, well-formed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneRequest {
    /// Its policy, checked for its members.
    pub policy: Spec,
    /// Its members.
    pub members: Vec<MemberRequest>,
}

impl LaneRequest {
    /// Holds a lane as typed against this host.
    ///
    /// # Errors
    /// Says what does not fit and what would.
    pub fn check(lane: &LaneConfig) -> Result<LaneRequest> {
        let count = lane.member.len();
        ensure!(
            (1..=MEMBERS_MAX).contains(&count),
            "a lane has from 1 to {MEMBERS_MAX} members, not {count}"
        );
        let members = lane.member.iter().enumerate();
        let members: Vec<MemberRequest> =
            members.map(|(at, member)| member_of(member, at)).collect::<Result<_>>()?;
        let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
        for (at, name) in names.iter().enumerate() {
            ensure!(!names[..at].contains(name), "two members are named `{name}`");
        }
        let policy = policy_of(lane, &names)?;
        policy.check(count)?;
        let request = LaneRequest { policy, members };
        request.check_twice()?;
        Ok(request)
    }

    /// A thread is of one member, alone or with its process.
    fn check_twice(&self) -> Result<()> {
        let mut taken = BTreeSet::new();
        for source in self.members.iter().map(|member| &member.source) {
            let named = !matches!(source, MemberSource::Command(_));
            ensure!(!named || taken.insert(source.clone()), "{source} is a member twice");
        }
        for source in &taken {
            let MemberSource::Thread(tid) = source else { continue };
            let process = process_of(*tid);
            ensure!(
                !taken.contains(&MemberSource::Process(process)),
                "{source} is of process {process}, which is a member with all its threads"
            );
        }
        Ok(())
    }

    /// The names of its members, in order.
    pub fn names(&self) -> Vec<String> {
        self.members.iter().map(|member| member.name.clone()).collect()
    }
}

/// The processes that a lane as typed names, those of single threads included.
pub fn processes(lane: &LaneConfig) -> Vec<i32> {
    let process = |member: &MemberConfig| member.pid.or_else(|| Some(process_of(member.tid?)));
    lane.member.iter().filter_map(process).filter(|pid| *pid > 0).collect()
}

/// The process of a thread; 0 for one that is gone.
fn process_of(tid: i32) -> i32 {
    procs::thread(tid).map_or(0, |thread| thread.tgid.0)
}

fn member_of(member: &MemberConfig, at: usize) -> Result<MemberRequest> {
    let name = member.name.clone().unwrap_or_else(|| default_name(at));
    let fits = !name.is_empty() && name.len() <= NAME_BYTES_MAX;
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    ensure!(
        fits && name.chars().all(plain),
        "`{}` is no name for a member: up to {NAME_BYTES_MAX} letters, digits, `-`, `_` and `.`",
        name.escape_debug()
    );
    let source = match (&member.command, member.pid, member.tid) {
        (Some(command), None, None) => MemberSource::Command(command.clone()),
        (None, Some(pid), None) => MemberSource::Process(pid),
        (None, None, Some(tid)) => MemberSource::Thread(tid),
        _ => bail!("member {name}: give one of a command, a pid and a tid"),
    };
    if let MemberSource::Process(number) | MemberSource::Thread(number) = source {
        may_be_moved(number).with_context(|| format!("member {name}"))?;
    }
    Ok(MemberRequest { name, source })
}

/// A, B, .. Z, A2, B2 and so on.
fn default_name(at: usize) -> String {
    let letter = char::from(b'A' + (at % 26) as u8);
    match at / 26 {
        0 => letter.to_string(),
        round => format!("{letter}{}", round + 1),
    }
}

/// Kernel threads, pid 1, Quell itself and its parents never are members.
fn may_be_moved(number: i32) -> Result<()> {
    let thread = procs::thread(number).with_context(|| format!("there is no thread {number}"))?;
    let process = thread.tgid.0;
    ensure!(process > 1, "pid 1 is not put on a lane: the whole host depends on it");
    ensure!(!procs::is_kernel_thread(process), "{number} is a thread of the kernel");
    ensure!(
        !procs::self_and_ancestors().contains(&process),
        "{number} is Quell itself or a parent of it: it could not end the lane any more"
    );
    Ok(())
}

fn policy_of(lane: &LaneConfig, names: &[&str]) -> Result<Spec> {
    let name = match &lane.policy {
        Some(name) => name.as_str(),
        // What was given says which policy is meant.
        None if lane.table.is_some() => "table",
        None if lane.edf.is_some() => "edf",
        None if lane.weights.is_some() => "fair",
        None if lane.quantum.is_some() || lane.resume_after.is_some() => "preemptive",
        None => "round-robin",
    };
    let given = [
        ("slice", lane.slice.is_some()),
        ("table", lane.table.is_some()),
        ("quantum", lane.quantum.is_some()),
        ("resume-after", lane.resume_after.is_some()),
        ("edf", lane.edf.is_some()),
        ("weights", lane.weights.is_some()),
    ];
    let takes: &[&str] = match name {
        "round-robin" => &["slice"],
        "table" => &["slice", "table"],
        "preemptive" => &["quantum", "resume-after"],
        "edf" => &["edf"],
        "fair" => &["slice", "weights"],
        "fifo" => &[],
        _ => bail!(
            "there is no lane policy `{}`; choose one of: {}",
            name.escape_debug(),
            NAMES.join(", ")
        ),
    };
    if let Some((odd, _)) = given.iter().find(|(key, given)| *given && !takes.contains(key)) {
        bail!("the policy {name} takes no {odd}");
    }
    let time = |text: &Option<String>, default| text.as_deref().map_or(Ok(default), time);
    let slice = time(&lane.slice, SLICE)?;
    Ok(match name {
        "round-robin" => Spec::RoundRobin { slice },
        "table" => Spec::Table { slots: slots(lane.table.as_deref(), slice, names)? },
        "preemptive" => Spec::Preemptive {
            budget: time(&lane.quantum, QUANTUM)?,
            resume_after: time(&lane.resume_after, RESUME_AFTER)?,
        },
        "edf" => Spec::Edf { jobs: edf_params(lane.edf.as_deref(), names)? },
        "fair" => Spec::Fair { slice, weights: weights(lane.weights.as_deref(), names)? },
        _ => Spec::Fifo,
    })
}

fn slots(table: Option<&str>, slice: Nanos, names: &[&str]) -> Result<Vec<Slot>> {
    // Without a table each has one slot, in order.
    let Some(table) = table else {
        return Ok((0..names.len()).map(|at| Slot { member: Member(at as u8), slice }).collect());
    };
    let slot = |entry: &str| {
        let (name, own) =
            entry.split_once(':').map_or((entry, None), |(name, own)| (name, Some(own)));
        Ok(Slot { member: named(name, names)?, slice: own.map_or(Ok(slice), time)? })
    };
    table.split(',').map(|entry| slot(entry.trim())).collect()
}

fn edf_params(text: Option<&str>, names: &[&str]) -> Result<Vec<Job>> {
    let hint = "EDF needs parameters for each member, like A:10ms/2ms (period/runtime) or A:10ms/2ms/8ms (and deadline)";
    let text = text.ok_or_else(|| anyhow!(hint))?;
    each(text, names, |text| {
        let times: Vec<Nanos> = text.split('/').map(time).collect::<Result<_>>()?;
        match times[..] {
            [period, budget] => Ok(Job { period, budget, deadline: period }),
            [period, budget, deadline] => Ok(Job { period, budget, deadline }),
            _ => bail!(hint),
        }
    })
}

fn weights(weights: Option<&str>, names: &[&str]) -> Result<Vec<u32>> {
    let Some(weights) = weights else { return Ok(vec![1; names.len()]) };
    each(weights, names, |text| {
        text.parse().with_context(|| format!("`{}` is not a weight", text.escape_debug()))
    })
}

/// `NAME:VALUE,..` with one value for each member.
fn each<T: Clone>(text: &str, names: &[&str], read: impl Fn(&str) -> Result<T>) -> Result<Vec<T>> {
    let mut values: Vec<Option<T>> = vec![None; names.len()];
    for entry in text.split(',') {
        let (name, value) = entry
            .trim()
            .split_once(':')
            .with_context(|| format!("`{}`: write NAME:VALUE", entry.escape_debug()))?;
        let place = &mut values[named(name, names)?.at()];
        ensure!(place.is_none(), "member {name} is given twice");
        *place = Some(read(value)?);
    }
    let missing = values.iter().position(Option::is_none);
    if let Some(at) = missing {
        bail!("member {} is left out: give one for each", names[at]);
    }
    Ok(values.into_iter().flatten().collect())
}

fn named(name: &str, names: &[&str]) -> Result<Member> {
    let at = names.iter().position(|known| *known == name);
    let at = at.with_context(|| {
        format!("there is no member `{}`; there are {}", name.escape_debug(), names.join(", "))
    })?;
    Ok(Member(at as u8))
}

/// A time with its unit: `20us`, `1.5ms`, `2s`.
fn time(text: &str) -> Result<Nanos> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[digits.len()..] {
        "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => f64::NAN,
    };
    let nanos = digits.parse::<f64>().map_or(f64::NAN, |number| number * unit);
    ensure!(
        nanos.is_finite() && (1.0..1e18).contains(&nanos),
        "`{}` is not a time; write it like 20us, 1.5ms or 2s",
        text.escape_debug()
    );
    Ok(Nanos(nanos.round() as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn lane(commands: usize) -> LaneConfig {
        let member = MemberConfig { command: Some("true".into()), ..MemberConfig::default() };
        LaneConfig { member: vec![member; commands], ..LaneConfig::default() }
    }

    fn of(member: MemberConfig) -> LaneConfig {
        LaneConfig { member: vec![member], ..LaneConfig::default() }
    }

    fn says(lane: &LaneConfig) -> String {
        format!("{:#}", LaneRequest::check(lane).unwrap_err())
    }

    #[test]
    fn what_is_given_says_which_policy_is_meant() {
        let table = LaneConfig { table: Some("A,A,B,C:20us".into()), ..lane(3) };
        let request = LaneRequest::check(&table).unwrap();
        let Spec::Table { slots } = &request.policy else { panic!("{request:?}") };
        let order: Vec<u8> = slots.iter().map(|slot| slot.member.0).collect();
        assert_eq!(
            (order, slots[3].slice, slots[0].slice),
            (vec![0, 0, 1, 2], Nanos(20_000), SLICE)
        );
        let edf = LaneConfig { edf: Some("B:10ms/2ms, A:1ms/100us/500us".into()), ..lane(2) };
        let Spec::Edf { jobs } = LaneRequest::check(&edf).unwrap().policy else { panic!() };
        assert_eq!((jobs[0].deadline, jobs[1].deadline), (Nanos(500_000), Nanos(10_000_000)));
        assert_eq!(LaneRequest::check(&lane(2)).unwrap().policy.name(), "round-robin");
    }

    #[test]
    fn what_does_not_fit_is_said_with_what_would() {
        assert!(says(&lane(0)).contains("members"));
        let policy = |name: &str| LaneConfig { policy: Some(name.into()), ..lane(2) };
        assert!(says(&policy("rr")).contains("round-robin"));
        let table = LaneConfig { table: Some("A,D".into()), ..lane(2) };
        assert!(says(&table).contains("there are A, B"));
        assert!(says(&LaneConfig { slice: Some("20".into()), ..lane(2) }).contains("20us"));
        assert!(says(&LaneConfig { slice: Some("1us".into()), ..lane(2) }).contains("5.0 us"));
        let odd = LaneConfig { slice: Some("20us".into()), ..policy("fifo") };
        assert!(says(&odd).contains("takes no slice"));
        let weights = LaneConfig { weights: Some("A:1".into()), ..lane(2) };
        assert!(says(&weights).contains("B is left out"));
        let pid = |pid| of(MemberConfig { pid: Some(pid), ..MemberConfig::default() });
        assert!(says(&pid(1)).contains("pid 1"));
        assert!(says(&pid(std::process::id() as i32)).contains("Quell itself"));
    }

    #[test]
    fn nobody_is_a_member_twice() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let number = Some(child.id() as i32);
        let process = MemberConfig { pid: number, ..MemberConfig::default() };
        let thread = MemberConfig { tid: number, ..MemberConfig::default() };
        let twice = LaneConfig { member: vec![process.clone(); 2], ..LaneConfig::default() };
        assert!(says(&twice).contains("a member twice"));
        let both = LaneConfig { member: vec![process, thread], ..LaneConfig::default() };
        assert!(says(&both).contains("with all its threads"));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,40}") {
            let typed = || Some(text.clone());
            let _ = LaneRequest::check(&LaneConfig { table: typed(), ..lane(3) });
            let _ = LaneRequest::check(&LaneConfig { edf: typed(), slice: None, ..lane(3) });
            let _ = LaneRequest::check(&LaneConfig { weights: typed(), ..lane(3) });
            let _ = LaneRequest::check(&LaneConfig { slice: typed(), policy: typed(), ..lane(3) });
        }
    }
}
