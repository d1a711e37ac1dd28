//! From lanes as typed to lanes that make sense.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::RangeInclusive;

use anyhow::{Context, Result, anyhow, bail, ensure};
use quell_control::lanes::{LaneConfig, LanePattern, LanesConfig, MemberConfig};
use quell_model::{CoreId, CoreSet, Nanos};
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

/// Who is a member.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Who {
    /// A program to start, for a shell.
    Command(String),
    /// A process that runs: all its threads.
    Process(i32),
    /// A thread alone.
    Thread(i32),
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Who::Command(command) => write!(f, "`{command}`"),
            Who::Process(pid) => write!(f, "process {pid}"),
            Who::Thread(tid) => write!(f, "thread {tid}"),
        }
    }
}

/// One member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberRequest {
    /// Its name, unique in the lane.
    pub name: String,
    /// Who it is.
    pub who: Who,
}

/// One lane, well-formed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneRequest {
    /// Its core.
    pub core: CoreId,
    /// Its policy, checked for its members.
    pub policy: Spec,
    /// Its members.
    pub members: Vec<MemberRequest>,
}

/// Lanes that fit this host, and where their schedulers run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The lanes.
    pub lanes: Vec<LaneRequest>,
    /// How schedulers wait.
    pub pattern: LanePattern,
    /// Where a dedicated one spins.
    pub scheduler_core: CoreId,
    /// The cores without a lane.
    pub unmanaged: CoreSet,
    /// Guardians end lanes whose scheduler hangs for so long.
    pub watchdog_timeout: Nanos,
}

/// What `watchdog_timeout_ms` is if not said, and what it may be: those of `quell.toml`.
const WATCHDOG_TIMEOUT_MS: u64 = 1_000;
const WATCHDOG_TIMEOUT_MS_RANGE: RangeInclusive<u64> = 250..=600_000;

impl Request {
    /// Holds lanes as typed against a host with these cores online.
    ///
    /// # Errors
    /// Says what does not fit and what would.
    pub fn check(typed: &LanesConfig, online: &CoreSet) -> Result<Request> {
        ensure!(!typed.lane.is_empty(), "no lane is described: name a core and its members");
        let mut unmanaged = *online;
        let mut lanes = Vec::new();
        let (mut taken, mut processes) = (BTreeSet::new(), BTreeSet::new());
        for lane in &typed.lane {
            let core = CoreId(lane.core);
            ensure!(online.contains(core), "there is no core {core} online; there are {online}");
            ensure!(unmanaged.contains(core), "core {core} has two lanes: give each its own");
            unmanaged.remove(core);
            let request = lane_of(lane, core).with_context(|| format!("lane on core {core}"))?;
            for member in &request.members {
                let who = &member.who;
                if let Who::Process(pid) = who {
                    processes.insert(*pid);
                }
                let twice = !matches!(who, Who::Command(_)) && !taken.insert(who.clone());
                ensure!(!twice, "{who} is a member twice");
            }
            lanes.push(request);
        }
        for who in &taken {
            let Who::Thread(tid) = who else { continue };
            let process = procs::thread(*tid).map_or(0, |thread| thread.tgid.0);
            ensure!(
                !processes.contains(&process),
                "{who} is of process {process}, which is a member with all its threads"
            );
        }
        let Some(first) = unmanaged.first() else {
            bail!("every core would have a lane: one has to stay free, or nothing could end it");
        };
        let scheduler_core = typed.scheduler_core.map_or(first, CoreId);
        ensure!(
            unmanaged.contains(scheduler_core),
            "the scheduler cannot spin on core {scheduler_core}: the cores without a lane are {unmanaged}"
        );
        let watchdog_timeout_ms = typed.watchdog_timeout_ms.unwrap_or(WATCHDOG_TIMEOUT_MS);
        ensure!(
            WATCHDOG_TIMEOUT_MS_RANGE.contains(&watchdog_timeout_ms),
            "`watchdog_timeout_ms` is {watchdog_timeout_ms}: it may be from {} to {}",
            WATCHDOG_TIMEOUT_MS_RANGE.start(),
            WATCHDOG_TIMEOUT_MS_RANGE.end()
        );
        let watchdog_timeout = Nanos::from_millis(watchdog_timeout_ms);
        Ok(Request { lanes, pattern: typed.pattern, scheduler_core, unmanaged, watchdog_timeout })
    }
}

fn lane_of(lane: &LaneConfig, core: CoreId) -> Result<LaneRequest> {
    let count = lane.member.len();
    ensure!(
        (1..=MEMBERS_MAX).contains(&count),
        "a lane has from 1 to {MEMBERS_MAX} members, not {count}"
    );
    let members: Vec<MemberRequest> = lane
        .member
        .iter()
        .enumerate()
        .map(|(at, member)| member_of(member, at))
        .collect::<Result<_>>()?;
    let names: Vec<&str> = members.iter().map(|member| member.name.as_str()).collect();
    for (at, name) in names.iter().enumerate() {
        ensure!(!names[..at].contains(name), "two members are named `{name}`");
    }
    let policy = policy_of(lane, &names)?;
    policy.check(count)?;
    Ok(LaneRequest { core, policy, members })
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
    let who = match (&member.command, member.pid, member.tid) {
        (Some(command), None, None) => Who::Command(command.clone()),
        (None, Some(pid), None) => Who::Process(pid),
        (None, None, Some(tid)) => Who::Thread(tid),
        _ => bail!("member {name}: give one of a command, a pid and a tid"),
    };
    if let Who::Process(number) | Who::Thread(number) = who {
        may_be_moved(number).with_context(|| format!("member {name}"))?;
    }
    Ok(MemberRequest { name, who })
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
        "{number} is this command or a parent of it: it could not end the lane any more"
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

    fn lane(core: u16, commands: usize) -> LaneConfig {
        let member = MemberConfig { command: Some("true".into()), ..MemberConfig::default() };
        LaneConfig { core, member: vec![member; commands], ..LaneConfig::default() }
    }

    fn check(lane: LaneConfig) -> Result<Request> {
        let typed = LanesConfig { lane: vec![lane], ..LanesConfig::default() };
        Request::check(&typed, &"0-3".parse().unwrap())
    }

    fn says(lane: LaneConfig) -> String {
        format!("{:#}", check(lane).unwrap_err())
    }

    #[test]
    fn what_is_given_says_which_policy_is_meant() {
        let table = LaneConfig { table: Some("A,A,B,C:20us".into()), ..lane(1, 3) };
        let request = check(table).unwrap();
        let Spec::Table { slots } = &request.lanes[0].policy else { panic!("{request:?}") };
        let order: Vec<u8> = slots.iter().map(|slot| slot.member.0).collect();
        assert_eq!(
            (order, slots[3].slice, slots[0].slice),
            (vec![0, 0, 1, 2], Nanos(20_000), SLICE)
        );
        let edf = LaneConfig { edf: Some("B:10ms/2ms, A:1ms/100us/500us".into()), ..lane(1, 2) };
        let Spec::Edf { jobs } = &check(edf).unwrap().lanes[0].policy.clone() else { panic!() };
        assert_eq!((jobs[0].deadline, jobs[1].deadline), (Nanos(500_000), Nanos(10_000_000)));
        assert_eq!(check(lane(1, 2)).unwrap().lanes[0].policy.name(), "round-robin");
    }

    #[test]
    fn what_does_not_fit_is_said_with_what_would() {
        assert!(says(lane(9, 1)).contains("no core 9"), "{}", says(lane(9, 1)));
        assert!(says(lane(1, 0)).contains("members"));
        assert!(
            says(LaneConfig { policy: Some("rr".into()), ..lane(1, 1) }).contains("round-robin")
        );
        assert!(
            says(LaneConfig { table: Some("A,D".into()), ..lane(1, 2) }).contains("there are A, B")
        );
        assert!(says(LaneConfig { slice: Some("20".into()), ..lane(1, 2) }).contains("20us"));
        assert!(says(LaneConfig { slice: Some("1us".into()), ..lane(1, 2) }).contains("5.0 us"));
        let odd =
            LaneConfig { policy: Some("fifo".into()), slice: Some("20us".into()), ..lane(1, 2) };
        assert!(says(odd).contains("takes no slice"));
        assert!(
            says(LaneConfig { weights: Some("A:1".into()), ..lane(1, 2) })
                .contains("B is left out")
        );
        let init = MemberConfig { pid: Some(1), ..MemberConfig::default() };
        assert!(says(LaneConfig { member: vec![init], ..lane(1, 0) }).contains("pid 1"));
        let me = MemberConfig { pid: Some(std::process::id() as i32), ..MemberConfig::default() };
        assert!(says(LaneConfig { member: vec![me], ..lane(1, 0) }).contains("this command"));
    }

    #[test]
    fn one_core_stays_free_and_the_scheduler_spins_on_none_with_a_lane() {
        let typed = |cores: &[u16], scheduler_core| LanesConfig {
            lane: cores.iter().map(|core| lane(*core, 1)).collect(),
            scheduler_core,
            ..LanesConfig::default()
        };
        let two: CoreSet = "0-1".parse().unwrap();
        let hasty = LanesConfig { watchdog_timeout_ms: Some(10), ..typed(&[1], None) };
        assert!(Request::check(&hasty, &two).unwrap_err().to_string().contains("250 to 600000"));
        assert!(Request::check(&typed(&[0, 1], None), &two).is_err());
        assert!(Request::check(&typed(&[1], Some(1)), &two).is_err());
        assert!(Request::check(&typed(&[1, 1], None), &two).is_err());
        let request = Request::check(&typed(&[1], None), &two).unwrap();
        assert_eq!(
            (request.scheduler_core, request.unmanaged),
            (CoreId(0), CoreSet::of(CoreId(0)))
        );
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in ".{0,40}") {
            let typed = || Some(text.clone());
            let _ = check(LaneConfig { table: typed(), ..lane(1, 3) });
            let _ = check(LaneConfig { edf: typed(), slice: None, ..lane(1, 3) });
            let _ = check(LaneConfig { weights: typed(), ..lane(1, 3) });
            let _ = check(LaneConfig { slice: typed(), policy: typed(), ..lane(1, 3) });
        }
    }
}
