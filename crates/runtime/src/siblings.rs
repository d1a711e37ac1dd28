//! Which core is the sibling hyperthread of which.

use std::sync::OnceLock;

/// Cores that are asked for.
const MOST: usize = quell_model::CORES_MAX;

/// The other hyperthread of this core's physical core; `None` if there is none, or the kernel does not say.
pub(crate) fn of(core: i32) -> Option<i32> {
    static SIBLINGS: OnceLock<Vec<Option<i32>>> = OnceLock::new();
    let siblings = SIBLINGS.get_or_init(|| (0..MOST).map_while(read).collect());
    siblings.get(usize::try_from(core).ok()?).copied().flatten()
}

/// `None`: no such core; `Some(None)`: it has no sibling.
fn read(core: usize) -> Option<Option<i32>> {
    let path = format!("/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list");
    let list = std::fs::read_to_string(path).ok()?;
    let numbers = list.trim().split([',', '-']).filter_map(|number| number.parse().ok());
    Some(numbers.into_iter().find(|&number: &i32| number != core as i32))
}
