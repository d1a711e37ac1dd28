//! What is known of the host's scheduling domains: whether the balancer of an idle core can take from another core at
//! all, and between which groups it compares loads.

use std::sync::Arc;

use quell_model::{CoreId, CoreSet, DomainTrees, Pass};

use crate::lint::separable_cores;

/// What one core's balancer reaches.
#[derive(Clone, Debug, Default)]
struct View {
    /// The cores that balance with it; `None` where no tree says so.
    reach: Option<CoreSet>,
    /// Cores that are in the core's own group at some level.
    local: CoreSet,
    /// Cores that are in another group at some level.
    apart: CoreSet,
}

/// The domains of a host, as far as a stream has reported them: as trees, else as the groups that passes compare.
#[derive(Clone, Debug)]
pub(super) struct Domains {
    trees: Option<Arc<DomainTrees>>,
    /// By the core's number.
    views: Vec<View>,
}

impl Domains {
    pub(super) fn new(cores: usize) -> Domains {
        Domains { trees: None, views: vec![View::default(); cores] }
    }

    /// Takes the trees. Returns whether they replace others: the kernel has rebuilt its domains.
    pub(super) fn take_trees(&mut self, trees: &Arc<DomainTrees>) -> bool {
        let known = self.trees.replace(Arc::clone(trees));
        let is_rebuilt = known.as_ref().is_some_and(|known| !known.same_shape(trees));
        if known.is_none() || is_rebuilt {
            self.forget();
            for core in trees.cores() {
                if let Some(view) = self.views.get_mut(core.core.index()) {
                    let (reach, apart) = (core.reach(), separable_cores(core));
                    *view = View { reach: Some(reach), local: reach.difference(&apart), apart };
                }
            }
        }
        is_rebuilt
    }

    /// Takes the groups that a pass compared, where there are no trees.
    pub(super) fn take_pass(&mut self, pass: &Pass) {
        let Some(view) = self.views.get_mut(pass.core.index()) else { return };
        if self.trees.is_some() {
            return;
        }
        for group in &pass.groups {
            let side =
                if group.cores.contains(pass.core) { &mut view.local } else { &mut view.apart };
            *side = side.union(&group.cores);
        }
    }

    /// A core went online or offline: groups that passes compared are not those of later ones.
    pub(super) fn forget_passes(&mut self) {
        if self.trees.is_none() {
            self.forget();
        }
    }

    fn forget(&mut self) {
        self.views.iter_mut().for_each(|view| *view = View::default());
    }

    /// The cores that balance with a core, if a tree says so.
    pub(super) fn reach(&self, core: CoreId) -> Option<&CoreSet> {
        self.views.get(core.index())?.reach.as_ref()
    }

    /// Whether an idle core's balancer counts the load of `busy` as its own group's at every level that has it: rule
    /// L4 of the lint.
    pub(super) fn are_inseparable(&self, idle: CoreId, busy: CoreId) -> bool {
        let view = self.views.get(idle.index());
        view.is_some_and(|view| view.local.contains(busy) && !view.apart.contains(busy))
    }

    /// The groups of an idle core's lowest level that has `busy`: its own one, and one of those with `busy`.
    pub(super) fn groups(&self, idle: CoreId, busy: CoreId) -> Option<(CoreSet, CoreSet)> {
        let trees = self.trees.as_ref()?;
        let tree = trees.cores().iter().find(|tree| tree.core == idle)?;
        tree.domains.iter().find_map(|domain| {
            let local = domain.groups.iter().find(|group| group.cores.contains(idle))?.cores;
            let mut others = domain.groups.iter().map(|group| group.cores);
            let other = others.find(|cores| cores.contains(busy) && !cores.contains(idle))?;
            Some((local, other))
        })
    }

    /// Whether a level of a core's domains spans another core; `None` where no tree says so.
    pub(super) fn spans(&self, core: CoreId, level: u8, other: CoreId) -> Option<bool> {
        let trees = self.trees.as_ref()?;
        let tree = trees.cores().iter().find(|tree| tree.core == core)?;
        Some(tree.domains.get(usize::from(level))?.span.contains(other))
    }
}
