//! System calls that no safe crate offers, each behind a safe function.

pub(crate) mod child;
pub(crate) mod clock;
pub(crate) mod exists;
pub(crate) mod group;
pub(crate) mod map;
pub(crate) mod peer;
pub(crate) mod perf;
pub(crate) mod pidfd;
pub(crate) mod sched;
#[cfg(debug_assertions)]
pub(crate) mod stop;
