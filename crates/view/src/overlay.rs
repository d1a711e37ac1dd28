//! What an image draws over its run queues: wake-ups onto busy cores, and the cores that searches considered.

use std::fmt::Write as _;

use quell_model::{CoreId, CoreSet};

/// Instants that are kept of each kind.
const INSTANTS: usize = 1 << 18;

/// Marks of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// Cores that idle while others are overloaded, in the lower part of their rows.
    pub wasted: bool,
    /// A box where a thread was woken onto a busy core while one that it may use idled.
    pub bad_wakeups: bool,
    /// The cores that each search on behalf of this core looked at.
    pub considered_by: Option<CoreId>,
}

impl Default for Marks {
    fn default() -> Marks {
        Marks { wasted: true, bad_wakeups: false, considered_by: None }
    }
}

/// What happened at an instant of a picture, as far as its marks show it.
#[derive(Default)]
pub(crate) struct Instants {
    /// Positions in the topology of the cores onto which threads were woken.
    pub bad_wakeups: Vec<(u64, usize)>,
    /// Cores that were looked at.
    pub considered: Vec<(u64, CoreSet)>,
    /// Those that were not kept.
    pub left_out: u64,
}

impl Instants {
    pub fn bad_wakeup(&mut self, at: u64, core: usize) {
        match self.bad_wakeups.len() < INSTANTS {
            true => self.bad_wakeups.push((at, core)),
            false => self.left_out += 1,
        }
    }

    pub fn considered(&mut self, at: u64, cores: CoreSet) {
        match self.considered.len() < INSTANTS {
            true => self.considered.push((at, cores)),
            false => self.left_out += 1,
        }
    }
}

/// Boxes with a core of magenta, as in the paper, around these points: two paths of SVG.
pub(crate) fn boxes(out: &mut String, points: &[(u32, u32)]) {
    for (colour, side) in [("#000000", 6.0), ("#ff00ff", 3.0)] {
        let _ = write!(out, "<path fill=\"{colour}\" d=\"");
        for (x, y) in points {
            let (left, top) = (f64::from(*x) - side / 2.0, f64::from(*y) - side / 2.0);
            let _ = write!(out, "M{left} {top}h{side}v{side}h-{side}z");
        }
        out.push_str("\"/>\n");
    }
}
