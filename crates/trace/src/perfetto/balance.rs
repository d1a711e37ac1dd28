//! Passes of the balancer and domain trees as messages.
//!
//! A pass is an instant with details that Perfetto's UI shows; its exact values lie in a field of our own. Trees of a large host
//! repeat few sets of cores many times, so each set is written once and referred to by its index.

use std::collections::HashMap;
use std::io;

use prost::Message;
use prost::bytes::Bytes;
use quell_model::{
    BalanceState, CORES_MAX, CoreDomains, CoreSet, Domain, DomainGroup, DomainTrees, GroupKind,
    Pass, PassEntry, PassGroup, PassOutcome, Skipped, What,
};

use super::PACKET_MAX;
use super::convert::{Malformed, Track, core, instant, number, put_set, set, text};
use super::wire::{Content, Private, TrackEvent, Value, next_field};
use super::write::bytes;

/// Bytes of a pass at most: those of a group are a set of 128 bytes and six numbers.
const PASS_MAX: usize = 128 + 256 * Pass::GROUPS_MAX;
/// Characters of the groups that Perfetto's UI shows; the rest is in the exact values.
pub const SHOWN_MAX: usize = 1024;
/// Levels of a core at most; the kernel has four and one for each distance between nodes.
const LEVELS_MAX: usize = 64;
/// Domains of all trees together at most.
const DOMAINS_MAX: usize = 1 << 14;
/// Bytes of a level's name at most.
const NAME_MAX: usize = 32;
/// Groups of all trees together at most: in memory each takes 256 bytes, in the file as little as two.
const GROUPS_MAX: usize = 1 << 18;
/// Different sets of cores at most: the groups of 1,024 cores are some thousands.
const SETS_MAX: usize = 1 << 13;

// What is within these bounds fits into a packet: a set takes 131 bytes, a group two indices of two bytes, a domain its name and
// 64 bytes of numbers, a core 16.
const _: () = assert!(
    SETS_MAX * 131 + GROUPS_MAX * 4 + DOMAINS_MAX * (NAME_MAX + 64) + CORES_MAX * 16 + 4096
        < PACKET_MAX as usize
);

const NOT_TREES: Malformed = Malformed("domain trees that are none");
const NOT_A_PASS: Malformed = Malformed("a pass of the balancer that is none");

/// [`Pass`].
#[derive(Clone, PartialEq, Message)]
struct WirePass {
    #[prost(uint32, required, tag = "1")]
    core: u32,
    #[prost(uint32, required, tag = "2")]
    level: u32,
    /// Index in [`PassEntry::ALL`].
    #[prost(uint32, required, tag = "3")]
    entry: u32,
    /// Index in [`PassOutcome::ALL`].
    #[prost(uint32, required, tag = "4")]
    outcome: u32,
    #[prost(uint32, tag = "5")]
    moved: u32,
    #[prost(uint32, tag = "6")]
    running: u32,
    #[prost(uint32, tag = "7")]
    pinned: u32,
    #[prost(uint32, tag = "8")]
    warm: u32,
    #[prost(uint32, tag = "9")]
    heavy: u32,
    #[prost(message, repeated, tag = "10")]
    groups: Vec<WireGroup>,
}

/// [`PassGroup`].
#[derive(Clone, PartialEq, Message)]
struct WireGroup {
    #[prost(bytes = "bytes", required, tag = "1")]
    cores: Bytes,
    #[prost(uint64, tag = "2")]
    sum: u64,
    #[prost(uint64, tag = "3")]
    mean: u64,
    #[prost(uint64, tag = "4")]
    minimum: u64,
    #[prost(uint32, tag = "5")]
    queued: u32,
    #[prost(uint32, tag = "6")]
    idle: u32,
    /// Index in [`GroupKind::ALL`].
    #[prost(uint32, tag = "7")]
    kind: u32,
}

/// [`DomainTrees`].
#[derive(Clone, PartialEq, Message)]
struct WireTrees {
    /// Sets of cores. They come before what refers to them.
    #[prost(bytes = "bytes", repeated, tag = "1")]
    sets: Vec<Bytes>,
    #[prost(message, repeated, tag = "2")]
    cores: Vec<WireTree>,
    /// Index of a set.
    #[prost(uint32, required, tag = "3")]
    isolated: u32,
}

const TREES_SET: u32 = 1;
const TREES_CORE: u32 = 2;
const TREES_ISOLATED: u32 = 3;

/// [`CoreDomains`].
#[derive(Clone, PartialEq, Message)]
struct WireTree {
    #[prost(uint32, required, tag = "1")]
    core: u32,
    /// Index of a set.
    #[prost(uint32, optional, tag = "2")]
    root: Option<u32>,
    #[prost(message, repeated, tag = "3")]
    domains: Vec<WireDomain>,
}

const TREE_CORE: u32 = 1;
const TREE_ROOT: u32 = 2;
const TREE_DOMAIN: u32 = 3;

/// [`Domain`].
#[derive(Clone, PartialEq, Message)]
struct WireDomain {
    #[prost(string, required, tag = "1")]
    name: String,
    /// Index of a set.
    #[prost(uint32, required, tag = "2")]
    span: u32,
    /// Indices of sets, two for each group: its cores, and those that balance for it.
    #[prost(uint32, repeated, tag = "3")]
    groups: Vec<u32>,
    #[prost(uint32, optional, tag = "4")]
    flags: Option<u32>,
    #[prost(message, optional, tag = "5")]
    balance: Option<WireBalance>,
}

/// [`BalanceState`].
#[derive(Clone, Copy, PartialEq, Message)]
struct WireBalance {
    #[prost(uint64, tag = "1")]
    last_jiffies: u64,
    #[prost(uint32, tag = "2")]
    interval_ms: u32,
    #[prost(uint32, tag = "3")]
    failed: u32,
}

/// The index of an item in a table that has every value.
pub fn index<T: PartialEq>(table: &[T], of: &T) -> u32 {
    table.iter().position(|known| known == of).unwrap_or_default() as u32
}

fn at<T: Copy>(table: &[T], index: u32, or: Malformed) -> Result<T, Malformed> {
    table.get(index as usize).copied().ok_or(or)
}

/// A pass; of more groups than [`Pass::GROUPS_MAX`] the first.
pub fn put_pass(pass: &Pass, private: &mut Private) -> TrackEvent {
    let groups = &pass.groups[..pass.groups.len().min(Pass::GROUPS_MAX)];
    let Skipped { running, pinned, warm, heavy } = pass.skipped;
    let message = WirePass {
        core: u32::from(pass.core.0),
        level: u32::from(pass.level),
        entry: index(&PassEntry::ALL, &pass.entry),
        outcome: index(&PassOutcome::ALL, &pass.outcome),
        moved: pass.moved,
        running,
        pinned,
        warm,
        heavy,
        groups: groups.iter().map(put_group).collect(),
    };
    private.content = Some(Content::Pass(bytes(&message)));
    let mut details = vec![
        number("level", i64::from(pass.level)),
        text("entry", pass.entry.name()),
        text("outcome", pass.outcome.name()),
    ];
    if pass.moved > 0 {
        details.push(number("moved", i64::from(pass.moved)));
    }
    if pass.skipped != Skipped::default() {
        details.push(text("skipped", &pass.skipped.to_string()));
    }
    let mut left = SHOWN_MAX;
    for (at, group) in groups.iter().enumerate() {
        let shown = group.to_string();
        let Some(after) = left.checked_sub(shown.len()) else { break };
        left = after;
        let name = if at == 0 { "own group".to_owned() } else { format!("group {at}") };
        details.push(text(&name, &shown));
    }
    instant(Track::Passes, pass.to_string(), details)
}

fn put_group(group: &PassGroup) -> WireGroup {
    WireGroup {
        cores: put_set(&group.cores),
        sum: group.sum,
        mean: group.mean,
        minimum: group.minimum,
        queued: group.queued,
        idle: u32::from(group.idle),
        kind: index(&GroupKind::ALL, &group.kind),
    }
}

pub fn take_pass(private: &Private) -> Result<Pass, Malformed> {
    let Some(Content::Pass(bytes)) = &private.content else {
        return Err(Malformed("a pass of the balancer without its content"));
    };
    if bytes.len() > PASS_MAX {
        return Err(NOT_A_PASS);
    }
    let message = WirePass::decode(bytes.clone()).map_err(|_| NOT_A_PASS)?;
    if message.groups.len() > Pass::GROUPS_MAX {
        return Err(Malformed("a pass of the balancer with more groups than any has"));
    }
    Ok(Pass {
        core: core(Some(message.core))?,
        level: u8::try_from(message.level).map_err(|_| NOT_A_PASS)?,
        entry: at(&PassEntry::ALL, message.entry, Malformed("a pass of no known entry"))?,
        groups: message.groups.iter().map(take_group).collect::<Result<_, _>>()?,
        outcome: at(&PassOutcome::ALL, message.outcome, Malformed("a pass of no known outcome"))?,
        moved: message.moved,
        skipped: Skipped {
            running: message.running,
            pinned: message.pinned,
            warm: message.warm,
            heavy: message.heavy,
        },
    })
}

fn take_group(group: &WireGroup) -> Result<PassGroup, Malformed> {
    Ok(PassGroup {
        cores: set(&group.cores)?,
        sum: group.sum,
        mean: group.mean,
        minimum: group.minimum,
        queued: group.queued,
        idle: u16::try_from(group.idle).map_err(|_| NOT_A_PASS)?,
        kind: at(&GroupKind::ALL, group.kind, Malformed("a group of no known kind"))?,
    })
}

/// Sets of cores, each once.
#[derive(Default)]
struct Sets {
    indices: HashMap<CoreSet, u32>,
    bytes: Vec<Bytes>,
}

impl Sets {
    fn put(&mut self, set: &CoreSet) -> u32 {
        *self.indices.entry(*set).or_insert_with(|| {
            self.bytes.push(put_set(set));
            self.bytes.len() as u32 - 1
        })
    }
}

/// Whether the trees are within what [`take_trees`] reads.
///
/// # Errors
/// [`io::ErrorKind::InvalidInput`] if they are not.
pub fn check_trees(trees: &DomainTrees) -> io::Result<()> {
    let message = wire_trees(trees);
    let domains = || message.cores.iter().flat_map(|core| &core.domains);
    let most = |lengths: &mut dyn Iterator<Item = usize>| lengths.max().unwrap_or_default();
    let bounds = [
        ("groups", domains().map(|domain| domain.groups.len() / 2).sum(), GROUPS_MAX),
        ("domains", domains().count(), DOMAINS_MAX),
        ("sets of cores", message.sets.len(), SETS_MAX),
        ("levels", most(&mut message.cores.iter().map(|core| core.domains.len())), LEVELS_MAX),
        ("bytes in a name", most(&mut domains().map(|domain| domain.name.len())), NAME_MAX),
    ];
    match bounds.into_iter().find(|(_, count, max)| count > max) {
        None => Ok(()),
        Some((of, count, max)) => {
            let what = format!("domain trees with {count} {of}: a trace holds at most {max}");
            Err(io::Error::new(io::ErrorKind::InvalidInput, what))
        }
    }
}

fn wire_trees(trees: &DomainTrees) -> WireTrees {
    let mut sets = Sets::default();
    let cores = trees.cores().iter().map(|tree| put_tree(tree, &mut sets)).collect();
    let isolated = sets.put(&trees.isolated);
    WireTrees { sets: sets.bytes, cores, isolated }
}

/// Trees as a message, and an instant.
pub fn put_trees(trees: &DomainTrees, private: &mut Private) -> TrackEvent {
    private.content = Some(Content::Domains(bytes(&wire_trees(trees))));
    let longest = trees.cores().iter().map(|core| &core.domains).max_by_key(|levels| levels.len());
    let levels = longest.into_iter().flatten().map(|level| level.name.as_str());
    let levels: Vec<&str> = levels.collect();
    let title = format!("domains of {} cores", trees.cores().len());
    instant(Track::Domains, title, vec![text("levels", &levels.join(" < "))])
}

fn put_tree(tree: &CoreDomains, sets: &mut Sets) -> WireTree {
    let mut put_domain = |domain: &Domain| WireDomain {
        name: domain.name.clone(),
        span: sets.put(&domain.span),
        groups: domain
            .groups
            .iter()
            .flat_map(|group| [sets.put(&group.cores), sets.put(&group.balance)])
            .collect(),
        flags: domain.flags,
        balance: domain.balance.map(|state| WireBalance {
            last_jiffies: state.last_jiffies,
            interval_ms: state.interval_ms,
            failed: state.failed,
        }),
    };
    let domains = tree.domains.iter().map(&mut put_domain).collect();
    let root = tree.root.as_ref().map(|root| sets.put(root));
    WireTree { core: u32::from(tree.core.0), root, domains }
}

/// What is held together: the trees of single cores, their domains, and the groups of domains and of passes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    cores: usize,
    domains: usize,
    groups: usize,
}

impl Counts {
    /// With those of an event; `None` if together they are more than a group of events may hold, which is what the largest
    /// [`DomainTrees`] hold. Alone an event that was checked always fits.
    #[must_use]
    pub fn with(mut self, what: &What) -> Option<Counts> {
        match what {
            What::Pass(pass) => self.groups += pass.groups.len().min(Pass::GROUPS_MAX),
            What::Domains(trees) => {
                let domains = || trees.cores().iter().flat_map(|core| &core.domains);
                self.cores += trees.cores().len();
                self.domains += domains().count();
                self.groups += domains().map(|domain| domain.groups.len()).sum::<usize>();
            }
            _ => return Some(self),
        }
        (!self.is_too_many()).then_some(self)
    }

    /// A core without domains takes less memory than a domain, so there may be as many.
    fn is_too_many(&self) -> bool {
        self.cores > DOMAINS_MAX || self.domains > DOMAINS_MAX || self.groups > GROUPS_MAX
    }
}

pub fn take_trees(private: &Private) -> Result<DomainTrees, Malformed> {
    let Some(Content::Domains(bytes)) = &private.content else {
        return Err(Malformed("domain trees without their content"));
    };
    let (mut sets, mut cores, mut counts) = (Vec::new(), Vec::new(), Counts::default());
    let mut isolated = None;
    let mut rest = &bytes[..];
    // One by one: as a whole they would take many times their bytes before they are checked.
    while !rest.is_empty() {
        match next_field(&mut rest).ok_or(NOT_TREES)? {
            (TREES_SET, Value::Bytes(bytes)) if sets.len() < SETS_MAX => sets.push(set(bytes)?),
            (TREES_CORE, Value::Bytes(bytes)) if cores.len() < CORES_MAX => {
                cores.push(take_tree(bytes, &sets, &mut counts)?);
            }
            (TREES_ISOLATED, Value::Number(index)) => isolated = Some(index),
            _ => return Err(NOT_TREES),
        }
    }
    let isolated = known(&sets, isolated.ok_or(NOT_TREES)?)?;
    DomainTrees::new(cores, isolated).map_err(|_| Malformed("a core with two domain trees"))
}

fn known(sets: &[CoreSet], index: u64) -> Result<CoreSet, Malformed> {
    let set = usize::try_from(index).ok().and_then(|index| sets.get(index));
    set.copied().ok_or(Malformed("domain trees with a set of cores that is not there"))
}

fn take_tree(
    mut tree: &[u8],
    sets: &[CoreSet],
    counts: &mut Counts,
) -> Result<CoreDomains, Malformed> {
    let (mut number, mut root, mut domains) = (None, None, Vec::new());
    while !tree.is_empty() {
        match next_field(&mut tree).ok_or(NOT_TREES)? {
            (TREE_CORE, Value::Number(value)) => number = u32::try_from(value).ok(),
            (TREE_ROOT, Value::Number(index)) => root = Some(known(sets, index)?),
            (TREE_DOMAIN, Value::Bytes(domain)) if domains.len() < LEVELS_MAX => {
                domains.push(take_domain(domain, sets, counts)?);
            }
            _ => return Err(NOT_TREES),
        }
    }
    Ok(CoreDomains { core: core(number)?, root, domains })
}

fn take_domain(domain: &[u8], sets: &[CoreSet], counts: &mut Counts) -> Result<Domain, Malformed> {
    let message = WireDomain::decode(domain).map_err(|_| NOT_TREES)?;
    counts.domains += 1;
    counts.groups += message.groups.len() / 2;
    if message.name.len() > NAME_MAX || message.groups.len() % 2 != 0 || counts.is_too_many() {
        return Err(Malformed("domain trees with a longer name or more groups than any have"));
    }
    let set = |index: u32| known(sets, u64::from(index));
    let group = |pair: &[u32]| Ok(DomainGroup { cores: set(pair[0])?, balance: set(pair[1])? });
    Ok(Domain {
        span: set(message.span)?,
        groups: message.groups.chunks_exact(2).map(group).collect::<Result<_, Malformed>>()?,
        name: message.name,
        flags: message.flags,
        balance: message.balance.map(|state| BalanceState {
            last_jiffies: state.last_jiffies,
            interval_ms: state.interval_ms,
            failed: state.failed,
        }),
    })
}

#[cfg(test)]
mod tests {
    use quell_model::{CoreId, DomainRules, Topology};

    use super::*;

    fn private_of(message: &WireTrees) -> Private {
        Private { content: Some(Content::Domains(bytes(message))), ..Private::default() }
    }

    fn refused(message: &WireTrees) -> &'static str {
        take_trees(&private_of(message)).unwrap_err().0
    }

    #[test]
    fn trees_of_a_large_host_fit_into_one_packet() {
        let topology = Topology::regular(8, 64, 2).unwrap();
        let trees = DomainTrees::build(&topology, &topology.all(), &DomainRules::LINUX_4_1);
        check_trees(&trees).unwrap();
        let mut private = Private::default();
        put_trees(&trees, &mut private);
        assert_eq!(take_trees(&private).unwrap(), trees);
        let Some(Content::Domains(bytes)) = private.content else { panic!("no content") };
        assert!(bytes.len() < PACKET_MAX as usize / 8, "{} bytes", bytes.len());
    }

    #[test]
    fn trees_beyond_the_bounds_are_refused_when_written_and_read() {
        let group = DomainGroup::default();
        let domain = |groups| Domain {
            name: "MC".to_owned(),
            span: CoreSet::EMPTY,
            groups: vec![group; groups],
            flags: None,
            balance: None,
        };
        let trees = |domains| {
            let tree = CoreDomains { core: CoreId(0), root: None, domains };
            DomainTrees::new(vec![tree], CoreSet::EMPTY).unwrap()
        };
        let many = (0..300).map(|core| CoreDomains {
            core: CoreId(core),
            root: None,
            domains: vec![domain(0); LEVELS_MAX],
        });
        let many = DomainTrees::new(many.collect(), CoreSet::EMPTY).unwrap();
        assert!(check_trees(&many).unwrap_err().to_string().contains("19200 domains"));
        assert!(take_trees(&private_of(&wire_trees(&many))).is_err());
        check_trees(&trees(vec![domain(GROUPS_MAX)])).unwrap();
        let long = Domain { name: "x".repeat(NAME_MAX + 1), ..domain(1) };
        for (domains, of) in [
            (vec![domain(GROUPS_MAX + 1)], "262145 groups"),
            (vec![domain(1); LEVELS_MAX + 1], "65 levels"),
            (vec![long], "33 bytes in a name"),
        ] {
            let trees = trees(domains);
            let err = check_trees(&trees).unwrap_err();
            assert_eq!(err.kind(), io::ErrorKind::InvalidInput);
            assert!(err.to_string().contains(of), "{err}");
            assert!(take_trees(&private_of(&wire_trees(&trees))).is_err(), "{of}");
        }
        let sets = vec![Bytes::new(); SETS_MAX + 1];
        assert_eq!(refused(&WireTrees { sets, cores: Vec::new(), isolated: 0 }), NOT_TREES.0);
    }

    #[test]
    fn trees_that_contradict_themselves_are_refused() {
        let tree = WireTree { core: 1, root: None, domains: Vec::new() };
        let trees = WireTrees { sets: vec![Bytes::new()], cores: vec![tree.clone()], isolated: 0 };
        assert!(take_trees(&private_of(&trees)).is_ok());
        let twice = WireTrees { cores: vec![tree.clone(); 2], ..trees.clone() };
        assert_eq!(refused(&twice), "a core with two domain trees");
        let high = WireTree { core: CORES_MAX as u32, ..tree.clone() };
        let high = WireTrees { cores: vec![high], ..trees.clone() };
        assert_eq!(refused(&high), "a core past the highest possible one");
        let absent = "domain trees with a set of cores that is not there";
        assert_eq!(refused(&WireTrees { isolated: 1, ..trees.clone() }), absent);
        let root = WireTree { root: Some(7), ..tree.clone() };
        assert_eq!(refused(&WireTrees { cores: vec![root], ..trees.clone() }), absent);
        let domain = WireDomain {
            name: "MC".to_owned(),
            span: 0,
            groups: vec![0],
            flags: None,
            balance: None,
        };
        let odd = WireTree { domains: vec![domain], ..tree };
        assert!(refused(&WireTrees { cores: vec![odd], ..trees }).contains("more groups"));
        assert!(take_trees(&Private::default()).is_err());
    }

    #[test]
    fn pass_with_too_many_groups_is_cut_when_written_and_refused_when_read() {
        let group = PassGroup {
            cores: CoreSet::of(CoreId(3)),
            sum: u64::MAX,
            mean: 1,
            minimum: 0,
            queued: 2,
            idle: 1,
            kind: GroupKind::Imbalanced,
        };
        let pass = Pass {
            core: CoreId(3),
            level: 2,
            entry: PassEntry::NewIdle,
            groups: vec![group; Pass::GROUPS_MAX + 1],
            outcome: PassOutcome::Moved,
            moved: 4,
            skipped: Skipped::default(),
        };
        let mut private = Private::default();
        let event = put_pass(&pass, &mut private);
        assert_eq!(event.name.as_deref(), Some("core 3, level 2, new-idle: moved 4"));
        let shown =
            event.debug_annotations.iter().find(|one| one.name.as_deref() == Some("own group"));
        let shown = shown.unwrap().string_value.as_deref().unwrap();
        assert_eq!(shown, group.to_string());
        assert!(event.encoded_len() < 2 * SHOWN_MAX, "{} bytes", event.encoded_len());
        assert_eq!(take_pass(&private).unwrap().groups, vec![group; Pass::GROUPS_MAX]);
        let Some(Content::Pass(bytes)) = private.content else { panic!("no content") };
        let mut message = WirePass::decode(bytes).unwrap();
        message.groups.push(put_group(&group));
        let content = Some(Content::Pass(super::bytes(&message)));
        let err = take_pass(&Private { content, ..Private::default() }).unwrap_err();
        assert_eq!(err.0, "a pass of the balancer with more groups than any has");
    }
}
