//! What lanes have for themselves: their cores, their threads, and a core without a lane.
//!
//! Cores are locks on files of the run directory, held while the lanes run. Threads are known by the journals of those who
//! changed them.

use std::collections::HashSet;
use std::fs::{File, OpenOptions, TryLockError};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use quell_act::JournalFile;
use quell_control::lanes::LanePattern;
use quell_model::{CoreId, CoreSet};
use quell_observe::procs;
use quell_os::ThreadRef;

use super::request::{Request, Who};
use super::status;

/// Others look whether a core is free, for a moment, by taking its lock.
const PATIENCE: Duration = Duration::from_millis(50);

/// Takes the cores of a request, and of a dedicated scheduler, and leaves of the request's unmanaged cores those that other
/// lanes do not use. What is returned is to be kept while the lanes run. `chosen`: the scheduler's core, if somebody chose it.
///
/// # Errors
/// A daemon runs, a core is taken, or none would be left.
pub fn cores(run_dir: &Path, request: &mut Request, chosen: Option<u16>) -> Result<Vec<File>> {
    std::fs::create_dir_all(run_dir).with_context(|| run_dir.display().to_string())?;
    if quell_control::run_dir::is_open_to_others(run_dir)
        .with_context(|| run_dir.display().to_string())?
    {
        bail!(
            "{} belongs to another user, or others may write to it; choose a --run-dir of your own",
            run_dir.display()
        );
    }
    let daemon = create(&run_dir.join("daemon.lock"))?;
    let mut locks = Vec::new();
    match daemon.try_lock_shared() {
        Ok(()) => locks.push(daemon),
        Err(TryLockError::WouldBlock) => bail!(
            "a Quell daemon runs in {} and manages this host's cores; `quell stop` ends it",
            run_dir.display()
        ),
        Err(TryLockError::Error(err)) => return Err(err.into()),
    }
    for lane in &request.lanes {
        let lock = take(run_dir, lane.core)?;
        locks.push(lock.with_context(|| {
            format!(
                "core {} has a lane already, or the scheduler of one; `quell lane status` shows it",
                lane.core
            )
        })?);
    }
    let free: CoreSet =
        request.unmanaged.iter().filter(|core| is_free(&path(run_dir, *core))).collect();
    let Some(first) = free.first() else {
        bail!("every other core has a lane: one has to stay free, or nothing could end them");
    };
    request.unmanaged = free;
    if request.pattern == LanePattern::Dedicated {
        request.scheduler_core = chosen.map_or(first, CoreId);
        let core = request.scheduler_core;
        let lock = if free.contains(core) { take(run_dir, core)? } else { None };
        locks.push(lock.with_context(|| {
            format!("other lanes use core {core}; the scheduler may spin on one of {free}")
        })?);
    }
    Ok(locks)
}

/// Refuses members that are on other lanes: who comes second would take what the first has given them for their own.
///
/// # Errors
/// Names the member and the thread.
pub fn members(run_dir: &Path, request: &Request) -> Result<()> {
    let mut taken: HashSet<ThreadRef> = HashSet::new();
    for dir in status::dirs(run_dir) {
        // Without a journal, or with one that does not read, nothing is changed there that could be known.
        if let Ok(Some(journal)) = JournalFile::open(&dir) {
            taken.extend(journal.threads());
        }
    }
    for member in request.lanes.iter().flat_map(|lane| &lane.members) {
        let threads = match member.who {
            Who::Command(_) => continue,
            Who::Process(pid) => procs::threads(pid),
            Who::Thread(tid) => procs::thread(tid).map(|thread| vec![thread]),
        };
        // One that is gone by now is said when it is to join.
        let mut threads = threads.unwrap_or_default().into_iter();
        if let Some(thread) = threads.find(|thread| taken.contains(thread)) {
            bail!(
                "member {}: thread {} is on another lane; `quell lane status` shows it",
                member.name,
                thread.tid
            );
        }
    }
    Ok(())
}

fn path(run_dir: &Path, core: CoreId) -> PathBuf {
    run_dir.join(format!("core-{core}.lock"))
}

fn create(path: &Path) -> Result<File> {
    let file = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path);
    file.with_context(|| path.display().to_string())
}

/// The lock of a core; `None` if it is taken.
fn take(run_dir: &Path, core: CoreId) -> Result<Option<File>> {
    let file = create(&path(run_dir, core))?;
    let until = Instant::now() + PATIENCE;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(Some(file)),
            Err(TryLockError::WouldBlock) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(2));
            }
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(err)) => return Err(err.into()),
        }
    }
}

/// Whether nobody has a lock.
fn is_free(path: &Path) -> bool {
    // Without a file nobody has ever had it.
    let Ok(file) = File::open(path) else { return true };
    !matches!(file.try_lock_shared(), Err(TryLockError::WouldBlock))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::request::{LaneRequest, MemberRequest};
    use quell_model::Nanos;
    use quell_policy::lanes::Spec;
    use std::os::unix::fs::PermissionsExt;

    fn request(lanes: &[u16], pattern: LanePattern, online: &str) -> Request {
        let mut unmanaged: CoreSet = online.parse().unwrap();
        lanes.iter().for_each(|core| unmanaged.remove(CoreId(*core)));
        let lane = |core: &u16| LaneRequest {
            core: CoreId(*core),
            policy: Spec::Fifo,
            members: Vec::new(),
        };
        Request {
            lanes: lanes.iter().map(lane).collect(),
            pattern,
            scheduler_core: unmanaged.first().unwrap(),
            unmanaged,
            watchdog_timeout: Nanos::from_secs(1),
        }
    }

    fn folder() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).unwrap();
        folder
    }

    #[test]
    fn one_core_stays_free_of_the_lanes_of_all_commands() {
        let folder = folder();
        let mut first = request(&[0], LanePattern::Shared, "0-1");
        let _held = cores(folder.path(), &mut first, None).unwrap();
        let mut second = request(&[1], LanePattern::Shared, "0-1");
        let said = cores(folder.path(), &mut second, None).unwrap_err().to_string();
        assert!(said.contains("has to stay free"), "{said}");
        let said = cores(folder.path(), &mut first.clone(), None).unwrap_err().to_string();
        assert!(said.contains("core 0 has a lane already"), "{said}");
    }

    #[test]
    fn who_is_on_another_lane_is_no_member() {
        use quell_act::{Executor, Journal, Mode};
        use quell_os::Tid;
        use quell_os::sched::SchedAttr;
        let folder = folder();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let pid = child.id() as i32;
        let thread = ThreadRef::of(Tid(pid), Tid(pid)).unwrap();
        let dir = status::dir(folder.path(), 1);
        std::fs::create_dir(&dir).unwrap();
        let mut executor = Executor::open(Journal::create(&dir).unwrap(), Mode::Live).unwrap();
        executor.gate().set(true);
        executor.set_sched(&thread, SchedAttr::IDLE).unwrap();
        let mut second = request(&[0], LanePattern::Shared, "0-1");
        let member = MemberRequest { name: "A".into(), who: Who::Thread(pid) };
        second.lanes[0].members.push(member);
        let said = members(folder.path(), &second).unwrap_err().to_string();
        assert!(said.contains(&format!("member A: thread {pid} is on another lane")), "{said}");
        executor.close().unwrap();
        assert!(members(folder.path(), &second).is_ok());
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_dedicated_scheduler_has_its_core_for_itself() {
        let folder = folder();
        let mut first = request(&[3], LanePattern::Dedicated, "0-3");
        let _held = cores(folder.path(), &mut first, None).unwrap();
        assert_eq!(first.scheduler_core, CoreId(0));
        let mut second = request(&[2], LanePattern::Dedicated, "0-3");
        let said = cores(folder.path(), &mut second.clone(), Some(0)).unwrap_err().to_string();
        assert!(said.contains("one of 1"), "{said}");
        let held = cores(folder.path(), &mut second, None).unwrap();
        assert_eq!((second.scheduler_core, second.unmanaged), (CoreId(1), CoreSet::of(CoreId(1))));
        drop(held);
        let mut again = request(&[0], LanePattern::Shared, "0-3");
        assert!(cores(folder.path(), &mut again, None).is_err(), "a scheduler spins there");
    }
}
