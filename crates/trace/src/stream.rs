//! Streams of events: what writes one and what reads one, whatever the format.

use std::io;

use quell_model::{CoreId, CoreSet, DomainTrees, Event, Meta, Topology, What};

/// Takes a trace, event after event.
pub trait Sink {
    /// Opens the trace. It comes first, and once.
    ///
    /// # Errors
    /// When what is beneath cannot be written.
    fn meta(&mut self, meta: &Meta) -> io::Result<()>;

    /// Takes the next event. Events come in the order of their time, those of one core in that of their
    /// sequence numbers.
    ///
    /// # Errors
    /// When what is beneath cannot be written; [`io::ErrorKind::InvalidInput`] where the event names a core
    /// that the topology does not have, or holds more than the format does.
    fn event(&mut self, event: &Event) -> io::Result<()>;

    /// Writes everything that is still held back. A trace that is not finished lacks its last events.
    ///
    /// # Errors
    /// When what is beneath cannot be written.
    fn finish(&mut self) -> io::Result<()>;
}

/// Gives a trace, event after event, in bounded memory. After an error comes nothing more; what came before
/// it is whole.
pub trait Source: Iterator<Item = Result<Event, ReadError>> {
    /// What the trace is of.
    fn meta(&self) -> &Meta;

    /// What the reader left out, in words for the user; final once the last event was given.
    fn remarks(&self) -> Vec<String> {
        Vec::new()
    }
}

/// A core that the event names and that the topology does not have. Of the sets of cores, those of passes and domains are looked
/// at; masks of allowed or isolated cores may have cores that the host lacks.
pub(crate) fn stranger(what: &What, topology: &Topology) -> Option<CoreId> {
    let unknown = |core: &CoreId| topology.position(*core).is_none();
    match what {
        What::Waking { target: core, .. }
        | What::Woken { on: core, .. }
        | What::Queue { of: core, .. }
        | What::Load { of: core, .. }
        | What::Online { of: core, .. }
        | What::Considered { by: core, .. } => Some(*core).filter(unknown),
        What::Migrate { from, to, .. } => [*from, *to].into_iter().find(unknown),
        What::Pass(pass) => {
            let groups = pass.groups.iter().map(|group| group.cores);
            let named = groups.fold(CoreSet::EMPTY, |all, cores| all.union(&cores));
            Some(pass.core).filter(unknown).or_else(|| named.iter().find(unknown))
        }
        What::Domains(trees) => cores_of(trees).iter().find(unknown),
        What::Decision(decision) => Some(decision.core).filter(unknown),
        What::Violation(violation) => Some(violation.core).filter(unknown),
        What::Keyframe(keyframe) => {
            let cores = keyframe.cores.iter().map(|core| core.core);
            cores.chain(keyframe.threads.iter().map(|thread| thread.core)).find(unknown)
        }
        _ => None,
    }
}

/// All cores in domain trees, but for the isolated ones.
fn cores_of(trees: &DomainTrees) -> CoreSet {
    let mut all = trees.all();
    for tree in trees.cores() {
        all = tree.root.iter().fold(all, |all, root| all.union(root));
        for domain in &tree.domains {
            let groups = domain.groups.iter().map(|group| group.cores.union(&group.balance));
            all = groups.fold(all.union(&domain.span), |all, group| all.union(&group));
        }
    }
    all
}

/// Why a trace cannot be read, and where.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// It does not begin as one.
    #[error("{0}")]
    NotATrace(&'static str),
    /// Bytes changed or are missing.
    #[error("damaged at byte {offset}: {what}")]
    Damaged {
        /// Where the damaged record begins.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// A line of text cannot be understood.
    #[error("line {line}: {what}")]
    Line {
        /// Which, from 1.
        line: u64,
        /// What is wrong there.
        what: String,
    },
    /// The file cannot be read.
    #[error("reading at byte {offset}: {source}")]
    Io {
        /// Where.
        offset: u64,
        /// What went wrong.
        source: io::Error,
    },
}
