//! The domains that a trace has: those at its start, and those after each rebuild.

use quell_model::{DomainTrees, What};

use super::Dump;
use crate::stream::{ReadError, Source};

/// Rebuilds of a trace at most, and cores, domains and groups of all of them together: each is held until all are judged, in 256
/// bytes or less.
const DUMPS_MAX: usize = 1024;
const PARTS_MAX: usize = 1 << 20;

/// Why a trace could not be linted.
#[derive(Debug, thiserror::Error)]
pub enum TracedError {
    /// It cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It has none.
    #[error(
        "no scheduling domains in this trace; `quell sim --trace` with a model of Linux writes them, for a host save a dump with \
         `quell check --lint --save`"
    )]
    Empty,
    /// It has too many.
    #[error(
        "more than {DUMPS_MAX} rebuilds of scheduling domains, or {PARTS_MAX} cores, domains and groups in them, in this \
         trace; record a shorter one"
    )]
    TooMany,
}

/// Reads the domains of a trace. Each has the name, and the time since the first event.
///
/// # Errors
/// When the trace cannot be read, has no domains, or has too many.
pub fn read(source: &mut dyn Source, name: &str) -> Result<Vec<Dump>, TracedError> {
    read_within(source, name, PARTS_MAX)
}

fn read_within(
    source: &mut dyn Source,
    name: &str,
    parts_max: usize,
) -> Result<Vec<Dump>, TracedError> {
    let (mut first, mut parts, mut dumps) = (None, 0, Vec::new());
    for event in source {
        let event = event?;
        let first = *first.get_or_insert(event.at);
        let What::Domains(trees) = event.what else { continue };
        parts += parts_of(&trees);
        if dumps.len() >= DUMPS_MAX || parts > parts_max {
            return Err(TracedError::TooMany);
        }
        let seconds = event.at.since(first).0 as f64 / 1e9;
        let name = format!("{name} at {seconds:.6} s");
        dumps.push(Dump { name, trees: (*trees).clone(), is_traced: true });
    }
    match dumps.is_empty() {
        true => Err(TracedError::Empty),
        false => Ok(dumps),
    }
}

/// Cores, domains and groups. Each takes memory, whatever it takes in the file.
fn parts_of(trees: &DomainTrees) -> usize {
    let domains = trees.cores().iter().flat_map(|core| &core.domains);
    trees.cores().len() + domains.map(|domain| 1 + domain.groups.len()).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use quell_model::{
        CoreDomains, CoreId, CoreSet, Domain, DomainGroup, DomainRules, Event, Meta, Nanos,
        Source as Origin, Topology,
    };

    use super::super::{Inspection, Verdict};
    use super::*;
    use crate::perfetto::{Reader, Writer};
    use crate::stream::Sink;

    fn topology() -> Topology {
        Topology::regular(2, 2, 1).unwrap()
    }

    fn trees(online: &CoreSet, has_nodes: bool) -> What {
        let rules = DomainRules { between_nodes: has_nodes, ..DomainRules::LINUX_4_1 };
        What::Domains(Arc::new(DomainTrees::build(&topology(), online, &rules)))
    }

    /// A trace of these events, one a millisecond from the fifth second on.
    fn traced(events: Vec<What>) -> Result<Vec<Dump>, TracedError> {
        read(&mut Reader::new(&written(events)[..]).unwrap(), "t")
    }

    fn written(events: Vec<What>) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new());
        let meta = Meta {
            source: Origin::Simulator,
            topology: topology(),
            kernel: String::new(),
            host: String::new(),
            hooks: vec![],
            absent: vec![],
            wall_offset_ns: 0,
        };
        writer.meta(&meta).unwrap();
        for (sequence, what) in (0..).zip(events) {
            let at = Nanos::from_millis(5_000 + sequence);
            writer.event(&Event { at, core: CoreId(0), sequence, what }).unwrap();
        }
        writer.finish().unwrap();
        writer.into_inner()
    }

    fn all_but(core: u16) -> CoreSet {
        let mut cores = topology().all();
        cores.remove(CoreId(core));
        cores
    }

    #[test]
    fn levels_lost_at_hotplug_are_found() {
        let all = topology().all();
        let begin = What::Exit { thread: 1 };
        for (has_nodes, verdict) in [(true, Verdict::Clean), (false, Verdict::Violated)] {
            let events = vec![
                begin.clone(),
                trees(&all, true),
                trees(&all_but(3), true),
                trees(&all_but(2), true),
                trees(&all, has_nodes),
            ];
            let dumps = traced(events).unwrap();
            let inspection = Inspection::new(&dumps);
            assert_eq!(inspection.verdict, verdict, "{inspection}");
            assert_eq!((inspection.dumps.len(), inspection.changes.len()), (4, 1));
            let text = inspection.to_string();
            assert!(text.contains("\nt at 0.004000 s, against t at 0.001000 s: "), "{text}");
            assert_eq!(text.contains("L5 on cores"), !has_nodes, "{text}");
        }
    }

    #[test]
    fn trace_without_domains_and_one_with_too_many_are_refused() {
        let none = traced(vec![What::Exit { thread: 1 }]).unwrap_err();
        assert!(none.to_string().contains("quell sim --trace"), "{none}");
        let all = topology().all();
        assert_eq!(traced(vec![trees(&all, true); DUMPS_MAX]).unwrap().len(), DUMPS_MAX);
        let many = traced(vec![trees(&all, true); DUMPS_MAX + 1]).unwrap_err();
        assert!(matches!(many, TracedError::TooMany), "{many}");
    }

    #[test]
    fn domains_without_groups_count_against_the_bound() {
        let all = topology().all();
        let domain = Domain {
            name: "MC".to_owned(),
            span: all,
            groups: Vec::new(),
            flags: None,
            balance: None,
        };
        let tree =
            |core| CoreDomains { core, root: None, domains: vec![domain.clone(), domain.clone()] };
        let trees = DomainTrees::new(all.iter().map(tree).collect(), CoreSet::EMPTY).unwrap();
        assert_eq!(parts_of(&trees), 4 + 4 * 2);
        let group = DomainGroup { cores: all, balance: all };
        let mut grouped = trees.cores().to_vec();
        grouped[3].domains[0].groups = vec![group; 5];
        assert_eq!(parts_of(&DomainTrees::new(grouped, CoreSet::EMPTY).unwrap()), 12 + 5);
        let bytes = written(vec![What::Domains(Arc::new(trees)); 3]);
        let within = |max| read_within(&mut Reader::new(&bytes[..]).unwrap(), "t", max);
        assert_eq!(within(36).unwrap().len(), 3);
        let many = within(35).unwrap_err();
        assert!(many.to_string().contains("cores, domains and groups"), "{many}");
    }

    #[test]
    fn damaged_trace_is_an_error() {
        let mut writer = Writer::new(Vec::new());
        let meta = Meta {
            source: Origin::Simulator,
            topology: topology(),
            kernel: String::new(),
            host: String::new(),
            hooks: vec![],
            absent: vec![],
            wall_offset_ns: 0,
        };
        writer.meta(&meta).unwrap();
        let what = trees(&topology().all(), true);
        writer.event(&Event { at: Nanos(1), core: CoreId(0), sequence: 0, what }).unwrap();
        writer.finish().unwrap();
        let bytes = writer.into_inner();
        let cut = &bytes[..bytes.len() - 9];
        let err = read(&mut Reader::new(cut).unwrap(), "t").unwrap_err();
        assert!(matches!(err, TracedError::Read(_)), "{err}");
    }
}
