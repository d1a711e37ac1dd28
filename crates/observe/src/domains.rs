//! The scheduling domains of this host, as its kernel has them now.
//!
//! Read through BPF (`bpf/domains.bpf.c`), since the kernel shows them to nobody otherwise but in debugfs, which
//! lockdown closes and which leaves the groups out. The walk of one core sees one state; those of two cores may
//! stand before and after a change: the host is read until two readings in a row agree.

use std::io::Read as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use libbpf_rs::{Iter, Link, MapHandle, Object, RingBuffer};
use quell_model::{
    BalanceState, CoreDomains, CoreId, CoreSet, Domain, DomainGroup, DomainTrees, ThreadName,
};

use super::bpf::object::{self, refused};
use super::layout::{MASK_WORDS, bpf_record};
use super::{ObserveError, topology};

static CODE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/domains.bpf.o"));
const SOURCE: &str = "bpf/domains.bpf.c";
const ISOLATED: &str = "/sys/devices/system/cpu/isolated";

/// The size of a [`DomainRecord`].
const BYTES: usize = size_of::<DomainRecord>();
/// Readings that may disagree with the one before. A rebuild takes milliseconds.
const TRIES: usize = 20;

/// The scheduling domains of all cores on line, once.
///
/// # Errors
/// As [`Reader::new`] and [`Reader::read`].
pub fn read() -> Result<DomainTrees, ObserveError> {
    Reader::new()?.read()
}

/// Reads the scheduling domains as often as somebody asks; nothing runs in between.
pub struct Reader {
    ring: RingBuffer<'static>,
    inbox: Arc<Mutex<Vec<Record>>>,
    lost: MapHandle,
    link: Link,
    _object: Object,
}

impl Reader {
    /// Loads the BPF program.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn new() -> Result<Reader, ObserveError> {
        let possible = topology::possible()?.iter().last().map_or(1, |core| core.index() + 1);
        let mut open = object::open("domains", CODE)?;
        object::size(&mut open, "told", possible)?;
        object::size(&mut open, "records", ring_bytes(possible))?;
        let words = possible.div_ceil(64).min(MASK_WORDS) as u32;
        object::constants(&mut open, "rodata", &words.to_ne_bytes())?;
        let loaded = open.load().map_err(|error| refused("loading the BPF programs", &error))?;
        let inbox = Arc::new(Mutex::new(Vec::new()));
        let ring = object::ring(&object::map(&loaded, "records")?, {
            let to = Arc::clone(&inbox);
            move |bytes| to.lock().unwrap_or_else(PoisonError::into_inner).extend(parse(bytes))
        })?;
        let program = loaded.progs_mut().find(|program| program.name() == "walk_cores");
        let program = program.ok_or_else(|| object::broken(SOURCE, "no program".into()))?;
        let link = program.attach().map_err(|error| refused("attaching to iter/task", &error))?;
        let lost = object::map(&loaded, "lost")?;
        Ok(Reader { ring, inbox, lost, link, _object: loaded })
    }

    /// The scheduling domains of all cores that are online now.
    ///
    /// # Errors
    /// When the kernel has none that BPF can reach, or they do not stop changing.
    pub fn read(&mut self) -> Result<DomainTrees, ObserveError> {
        let mut last: Option<DomainTrees> = None;
        for _ in 0..TRIES {
            let online = topology::online()?;
            let trees = self.read_once(&online)?;
            let complete = trees.all() == online && topology::online()? == online;
            match last {
                Some(last) if complete && trees.same_shape(&last) => return Ok(trees),
                _ => last = complete.then_some(trees),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let what = match last {
            Some(_) => "the scheduling domains do not stop changing",
            None => {
                "not every core on line shows its run queue; this needs a kernel for several cores \
                 with CONFIG_FAIR_GROUP_SCHED"
            }
        };
        Err(object::broken(SOURCE, what.to_owned()))
    }

    fn read_once(&mut self, online: &CoreSet) -> Result<DomainTrees, ObserveError> {
        let lost = object::counter(&self.lost);
        let records = self.walk()?;
        if object::counter(&self.lost) > lost {
            let what = "there are more scheduling domains than room for them";
            return Err(object::broken(SOURCE, what.to_owned()));
        }
        let mut cores = assemble(&records);
        cores.retain(|core| online.contains(core.core));
        let isolated = topology::list(Path::new(ISOLATED)).unwrap_or_default();
        DomainTrees::new(cores, isolated).map_err(|error| object::broken(SOURCE, error.to_string()))
    }

    /// Reads the iterator to its end, and what that left in the ring.
    fn walk(&mut self) -> Result<Vec<Record>, ObserveError> {
        let what = "walking the threads of the host";
        let mut iterator = Iter::new(&self.link).map_err(|error| refused(what, &error))?;
        // It writes nothing itself: one call walks all.
        let walked = iterator.read(&mut [0; 64]);
        walked.map_err(|source| ObserveError::Kernel { what: what.to_owned(), source })?;
        self.ring.consume().map_err(|error| refused("reading a BPF ring", &error))?;
        let mut found = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(std::mem::take(&mut *found))
    }
}

/// A power of two in which the domains of so many cores have room: each core has a few domains, in the
/// lowest of which its cores may be groups by themselves.
fn ring_bytes(possible: usize) -> usize {
    (possible * (possible + 64) * BYTES).clamp(1 << 16, 1 << 26).next_power_of_two()
}

bpf_record! {
    /// `struct domain_record`.
    "domain_record" struct DomainRecord {
        kind: u32,
        core: u32,
        flags: u32,
        interval: u32,
        failed: u32,
        reserved: u32,
        last: u64,
        name: [u8; 16],
        mask: [u64; MASK_WORDS],
        balance: [u64; MASK_WORDS],
    }
}

#[cfg(test)]
pub(crate) fn layouts() -> Vec<crate::layout::Layout> {
    vec![DomainRecord::LAYOUT]
}

/// A parsed [`DomainRecord`].
#[derive(Clone, Debug, PartialEq)]
enum Record {
    Core { core: CoreId, root: CoreSet },
    Domain(Domain),
    Group(DomainGroup),
}

fn parse(bytes: &[u8]) -> Option<Record> {
    let record = DomainRecord::parse(bytes).filter(|_| bytes.len() == BYTES)?;
    let (first, second) = (CoreSet::from_words(&record.mask), CoreSet::from_words(&record.balance));
    match record.kind {
        1 => Some(Record::Core { core: CoreId(record.core.try_into().ok()?), root: first }),
        2 => Some(Record::Domain(Domain {
            name: ThreadName::new(&record.name).to_string(),
            span: first,
            groups: Vec::new(),
            flags: Some(record.flags),
            balance: Some(BalanceState {
                last_jiffies: record.last,
                interval_ms: record.interval,
                failed: record.failed,
            }),
        })),
        3 => Some(Record::Group(DomainGroup { cores: first, balance: second })),
        _ => None,
    }
}

/// Each group belongs to the domain before it, and that to the core before it.
fn assemble(records: &[Record]) -> Vec<CoreDomains> {
    let mut cores: Vec<CoreDomains> = Vec::new();
    for record in records {
        match record {
            Record::Core { core, root } => {
                let (core, root) = (*core, Some(*root));
                cores.push(CoreDomains { core, root, domains: Vec::new() });
            }
            Record::Domain(domain) => {
                if let Some(core) = cores.last_mut() {
                    core.domains.push(domain.clone());
                }
            }
            Record::Group(group) => {
                if let Some(domain) = cores.last_mut().and_then(|core| core.domains.last_mut()) {
                    domain.groups.push(*group);
                }
            }
        }
    }
    cores
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_testkit::{Unbalanced, host_lock, skipped};

    fn set(list: &str) -> CoreSet {
        list.parse().unwrap()
    }

    fn record(kind: u32, core: u32, name: &[u8], mask: u64, balance: u64) -> [u8; BYTES] {
        let mut bytes = [0; BYTES];
        bytes[..4].copy_from_slice(&kind.to_ne_bytes());
        bytes[4..8].copy_from_slice(&core.to_ne_bytes());
        bytes[32..32 + name.len()].copy_from_slice(name);
        bytes[48..56].copy_from_slice(&mask.to_ne_bytes());
        bytes[176..184].copy_from_slice(&balance.to_ne_bytes());
        bytes
    }

    #[test]
    fn records_become_a_tree_each() {
        let records = [
            record(1, 0, b"", 3, 0),
            record(2, 0, b"MC", 3, 0),
            record(3, 0, b"", 1, 1),
            record(3, 0, b"", 2, 2),
            record(1, 1, b"", 3, 0),
        ];
        let records: Vec<Record> = records.iter().filter_map(|bytes| parse(bytes)).collect();
        let cores = assemble(&records);
        assert_eq!(cores.len(), 2);
        assert_eq!((cores[0].root, cores[0].reach()), (Some(set("0-1")), set("0-1")));
        assert_eq!(cores[0].domains[0].name, "MC");
        let groups: Vec<CoreSet> = cores[0].domains[0].groups.iter().map(|one| one.cores).collect();
        assert_eq!(groups, [set("0"), set("1")]);
        assert!(cores[1].domains.is_empty());
    }

    #[test]
    fn bytes_of_another_size_or_kind_are_left_out() {
        assert_eq!(parse(&[0; BYTES]), None);
        assert_eq!(parse(&[1; BYTES - 1]), None);
        assert_eq!(parse(&record(1, 1 << 16, b"", 0, 0)), None);
        assert!(assemble(&[Record::Group(DomainGroup::default())]).is_empty());
    }

    #[test]
    fn rings_have_a_size_that_the_kernel_takes() {
        for cores in [1, 2, 16, 300, 1024] {
            assert!(ring_bytes(cores).is_power_of_two() && ring_bytes(cores) >= cores * BYTES);
        }
    }

    #[test]
    fn every_core_on_line_has_a_tree_that_reaches_its_root_domain() {
        let _lock = host_lock().unwrap();
        let trees = read().unwrap();
        let online = topology::online().unwrap();
        assert_eq!(trees.all(), online);
        for core in trees.cores() {
            assert!(core.root.unwrap().contains(core.core), "{core:?}");
            assert_eq!(Some(core.reach()), core.root, "{core:?}");
            for domain in &core.domains {
                assert!(domain.groups[0].cores.contains(core.core), "{core:?}");
                assert!(!domain.name.is_empty() && domain.flags != Some(0), "{core:?}");
            }
        }
    }

    #[test]
    fn without_load_balancing_no_core_has_a_domain_and_with_it_all_is_as_before() {
        let lock = host_lock().unwrap();
        let mut reader = Reader::new().unwrap();
        let before = reader.read().unwrap();
        let Some(unbalanced) = Unbalanced::begin(&lock).unwrap() else {
            return skipped("this host has no cpuset hierarchy of cgroup v1");
        };
        let during = reader.read();
        drop(unbalanced);
        assert!(during.unwrap().cores().iter().all(|core| core.domains.is_empty()));
        assert!(reader.read().unwrap().same_shape(&before));
    }
}
