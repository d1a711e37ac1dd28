//! Locks of the kernel between watched threads.

use std::fs::File;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quell_model::{KernelStop, LockState, LockWait};

use super::*;

/// One write of it takes some milliseconds, during which the thread owns the inode's semaphore.
const LONG_BYTES: usize = 16 << 20;

fn memory_file() -> Arc<File> {
    let file = rustix::fs::memfd_create("quell-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    Arc::new(File::from(file))
}

#[test]
fn owner_of_an_inode_is_told_and_both_threads_are_seen_inside_the_kernel() {
    if no_bpf() {
        return;
    }
    let _lock = host_lock().unwrap();
    let mut observer = observer();
    observer.manage(&CoreSet::of(crowded()));
    let file = memory_file();
    let bytes = vec![0; LONG_BYTES];
    let shared = Arc::clone(&file);
    let owner = Worker::start(crowded(), move || shared.write_all_at(&bytes, 0).unwrap());
    let waiter = Worker::start(crowded(), move || {
        std::thread::sleep(Duration::from_millis(1));
        file.write_all_at(&[1], 0).unwrap();
    });
    // Holds up the owner, inside the kernel more often than not.
    let _spinner = Worker::spinner(crowded());
    observer.watch(owner.thread, BE, false, Children::Adopt).unwrap();
    observer.watch(waiter.thread, LC, true, Children::Adopt).unwrap();
    observer.read(&mut snapshot());
    let id = |observer: &BpfObserver, thread| find(observer, thread).unwrap().id;
    let (owner, waiter) = (id(&observer, owner.thread), id(&observer, waiter.thread));

    let owned = LockState::Owned { owner, task: BE };
    let mut missing = vec!["the owner", "the release", "the sleep", "the wait"];
    eventually("the lock, its release, and both stops", || {
        let mut seen = snapshot();
        observer.drain_events(&mut |_| {});
        observer.read(&mut seen);
        let told = |state| seen.locks.contains(&LockWait { waiter, task: LC, state });
        let stopped = |thread, stop| {
            seen.in_kernel.iter().any(|found| found.thread == thread && found.stop == stop)
        };
        let found = [
            ("the owner", told(owned)),
            ("the release", told(LockState::Released)),
            ("the sleep", stopped(waiter, KernelStop::Sleeps)),
            ("the wait", stopped(owner, KernelStop::Waits)),
        ];
        missing.retain(|what| !found.contains(&(what, true)));
        missing.is_empty()
    });
}

#[test]
fn lock_that_an_lc_thread_owns_is_not_told() {
    if no_bpf() {
        return;
    }
    let _lock = host_lock().unwrap();
    let mut observer = observer();
    observer.manage(&CoreSet::of(crowded()));
    let file = memory_file();
    let bytes = vec![0; LONG_BYTES];
    let pair = [1, 2].map(|_| {
        let (file, bytes) = (Arc::clone(&file), bytes.clone());
        Worker::start(crowded(), move || file.write_all_at(&bytes, 0).unwrap())
    });
    for worker in &pair {
        observer.watch(worker.thread, LC, true, Children::Adopt).unwrap();
    }
    let mut contended = false;
    eventually("one sleeps while the other owns the inode", || {
        let mut seen = snapshot();
        observer.drain_events(&mut |_| {});
        observer.read(&mut seen);
        assert_eq!(seen.locks, [], "both have the same rung");
        contended |= seen.in_kernel.iter().any(|found| found.stop == KernelStop::Sleeps);
        contended
    });
}

/// A new ext4 file system for this process alone: in a mount namespace that ends with it.
struct FileSystem {
    holder: Child,
    _image: tempfile::TempDir,
    root: PathBuf,
}

impl FileSystem {
    /// `None` where this host mounts none.
    fn make(features: &str) -> Option<Self> {
        let image = tempfile::tempdir().unwrap();
        let script = "truncate -s 64M image && mkfs.ext4 -q -F -O \"$0\" image && mkdir root \
            && mount -o loop image root && echo ready && read -r end";
        let mut holder = Command::new("unshare")
            .args(["--mount", "sh", "-c", script, features])
            .current_dir(image.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let inside = image.path().strip_prefix("/").unwrap().join("root");
        let root = Path::new(&format!("/proc/{}/root", holder.id())).join(inside);
        let made = Self { holder, _image: image, root };
        (line == "ready\n").then_some(made)
    }
}

impl Drop for FileSystem {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        self.holder.wait().unwrap();
    }
}

/// Where batch work that renames files in this file system was seen to stop, until `found` is content.
fn stops_of_a_writer(files: &FileSystem, found: impl Fn(&[KernelStop]) -> bool) -> Vec<KernelStop> {
    let mut observer = observer();
    observer.manage(&CoreSet::of(crowded()));
    let path = files.root.join("renamed");
    let writer = Worker::start(crowded(), move || {
        let from = path.with_extension("new");
        std::fs::write(&from, [7; 9_000]).unwrap();
        std::fs::rename(&from, &path).unwrap();
    });
    let log = File::create(files.root.join("log")).unwrap();
    let syncer = Worker::start(crowded(), move || {
        log.write_all_at(&[1; 5_000], 0).unwrap();
        log.sync_all().unwrap();
    });
    // Holds up the writer, in a transaction more often than not.
    let _spinner = Worker::spinner(crowded());
    observer.watch(writer.thread, BE, false, Children::Adopt).unwrap();
    observer.watch(syncer.thread, LC, true, Children::Adopt).unwrap();
    observer.read(&mut snapshot());
    let writer = find(&observer, writer.thread).unwrap().id;
    let mut stops = Vec::new();
    eventually("a thread that waits inside the kernel", || {
        let mut seen = snapshot();
        observer.drain_events(&mut |_| {});
        observer.read(&mut seen);
        let of_writer = seen.in_kernel.iter().filter(|found| found.thread == writer);
        stops.extend(of_writer.map(|found| found.stop));
        found(&stops)
    });
    stops
}

#[test]
fn thread_in_a_transaction_of_a_file_system_is_told_apart() {
    if no_bpf() {
        return;
    }
    let _lock = host_lock().unwrap();
    let Some(files) = FileSystem::make("has_journal") else {
        eprintln!("not tested: this host mounts no ext4 from a file");
        return;
    };
    stops_of_a_writer(&files, |stops| stops.contains(&KernelStop::InTransaction));
}

#[test]
fn without_a_journal_no_thread_is_in_a_transaction() {
    if no_bpf() {
        return;
    }
    let _lock = host_lock().unwrap();
    let Some(files) = FileSystem::make("^has_journal") else {
        eprintln!("not tested: this host mounts no ext4 from a file");
        return;
    };
    let waits = |stops: &[KernelStop]| {
        stops.iter().filter(|&&stop| stop == KernelStop::Waits).count() >= 60
    };
    let stops = stops_of_a_writer(&files, waits);
    assert!(!stops.contains(&KernelStop::InTransaction), "{stops:?}");
}
