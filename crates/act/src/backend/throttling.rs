//! RT throttling (`kernel.sched_rt_runtime_us`): whether this kernel stops real-time threads by it.

use quell_observe::kernel::Kernel;

use super::Layout;

/// Since this version the kernel stops real-time threads for the budgets of cgroups alone. Its fair server has the other part;
/// Quell neither reads nor writes it: LC leaves it no reason to act (`quell_policy::roles`), and a server that was switched
/// off may never start again (before mainline commit 5a40a9bb56d4), or raise a WARNING.
const FOR_BUDGETS_ALONE_SINCE: (u32, u32) = (6, 12);

/// Whether cgroups have real-time budgets (RT_GROUP_SCHED); `None`: nothing tells.
pub fn has_rt_groups(kernel: &Kernel, layout: &Layout) -> Option<bool> {
    if kernel.boot_parameter("rt_group_sched").is_some_and(|value| value == "0") {
        return Some(false);
    }
    let budget = layout.cpu.as_ref().map(|cpu| cpu.mount.join("cpu.rt_runtime_us"));
    if budget.is_some_and(|file| file.exists()) {
        return Some(true);
    }
    kernel.config("RT_GROUP_SCHED").map(|(on, _)| on)
}

/// Whether this kernel stops real-time threads by its throttling, or may do so for all that is known.
pub fn throttles(kernel: &Kernel, layout: &Layout) -> bool {
    kernel.version().is_none_or(|version| version < FOR_BUDGETS_ALONE_SINCE)
        || has_rt_groups(kernel, layout) != Some(false)
}
