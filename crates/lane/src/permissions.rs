//! What the calling thread may do and use, asked of the kernel by trying.

use std::io;
use std::path::PathBuf;

use rustix::process::{Resource, getrlimit};

use crate::sys::{self, Attr, Cores};
use crate::{LaneError, Level, Priorities};

/// The bit of CAP_SYS_NICE (include/uapi/linux/capability.h).
const CAP_SYS_NICE: u32 = 23;

/// The cores that this process may use: its cpuset, whatever the calling thread keeps to.
pub fn allowed_cores() -> io::Result<Cores> {
    let own = sys::cores()?;
    sys::set_cores(&Cores::ALL)?;
    let allowed = sys::cores();
    let back = sys::set_cores(match &allowed {
        // Who could use them all follows its cpuset again.
        Ok(allowed) if *allowed == own => &Cores::ALL,
        _ => &own,
    });
    back.and(allowed)
}

/// Whether a lane can be on a core of these.
pub fn check_core(core: u32, allowed: &Cores) -> Result<(), LaneError> {
    if allowed.has(core) {
        return Ok(());
    }
    let there = PathBuf::from(format!("/sys/devices/system/cpu/cpu{core}")).exists();
    Err(if there { LaneError::NotAllowed(core) } else { LaneError::NoCore(core) })
}

/// Whether the calling thread may have every level: for a moment it is under SCHED_FIFO.
pub fn check_priorities(priorities: Priorities) -> Result<(), LaneError> {
    let orig = attr()?;
    // Without reset-on-fork, which could not be taken back without CAP_SYS_NICE; nothing is forked meanwhile.
    sys::set_fifo(sys::SELF, priorities.of(Level::Switcher), orig.resets_on_fork())
        .and_then(|()| sys::set_attr(&orig))
        .map_err(|err| refusal(priorities, err))
}

/// The calling thread's policy, if it can be given back.
pub fn attr() -> Result<Attr, LaneError> {
    let attr = sys::attr().map_err(LaneError::io("the thread's policy cannot be read"))?;
    attr.ok_or(LaneError::Policy)
}

/// Why a level was refused.
pub fn refusal(priorities: Priorities, err: io::Error) -> LaneError {
    match err.raw_os_error() {
        Some(libc::ESRCH) => LaneError::Gone,
        Some(libc::EPERM) if has_cap_sys_nice() => LaneError::NoBudget,
        Some(libc::EPERM) => LaneError::NoRight {
            priority: priorities.of(Level::Switcher),
            limit: getrlimit(Resource::Rtprio).current.unwrap_or(u64::MAX),
        },
        _ => LaneError::Io { what: "a level cannot be set", source: err },
    }
}

fn has_cap_sys_nice() -> bool {
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = mask.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> CAP_SYS_NICE & 1 == 1)
}
