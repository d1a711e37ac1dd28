//! The BPF observer on this host, with real threads. Needs the right to use BPF: these tests fail without
//! it, unless QUELL_NO_BPF=1 says that this host is known to have none.

mod bursts;
mod families;
mod lanes;
mod locks;
mod states;
mod wakers;

use std::io::Write as _;
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use quell_model::{
    Children, Class, CoreSet, CoreView, Limits, Nanos, Snapshot, TaskId, TaskView, TimeLimits,
};

use super::{BpfConfig, BpfObserver, lineage};
use crate::workers::{Worker, crowded, pin};
use crate::{HostEvent, Observer, ThreadState, ThreadView, procs, topology};
use quell_os::{ThreadRef, Tid};
use quell_testkit::host_lock;

const LC: TaskId = TaskId { index: 0, generation: 1 };
const BE: TaskId = TaskId { index: 1, generation: 1 };

/// Longer than anything here takes on a busy machine; only a broken observer reaches it.
const PATIENCE: Duration = Duration::from_secs(20);

/// Whether this host is said to have no BPF.
fn no_bpf() -> bool {
    std::env::var_os("QUELL_NO_BPF").is_some_and(|value| value == "1")
}

fn observer() -> BpfObserver {
    observer_for(4_096)
}

fn observer_for(max_threads: usize) -> BpfObserver {
    BpfObserver::new(&BpfConfig { max_threads, max_tasks: 8, ..BpfConfig::default() }).unwrap()
}

fn snapshot() -> Snapshot {
    let core = |core: &quell_model::Core| CoreView::new(core.id);
    let task = |id, class| {
        TaskView::new(
            id,
            Limits { class, guaranteed: 1, max: 1, times: TimeLimits::default(), ..Limits::NONE },
        )
    };
    Snapshot {
        cores: topology::read().unwrap().cores().iter().map(core).collect(),
        tasks: vec![task(LC, Class::LatencyCritical), task(BE, Class::BestEffort)],
        ..Snapshot::default()
    }
}

/// A program that is ended with the test.
struct Program(Child);

impl Program {
    fn start(command: &mut Command) -> Program {
        Program(
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        )
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    /// One of [`told`] begins.
    fn tell(&mut self) {
        self.0.stdin.take().unwrap().write_all(b"\n").unwrap();
    }
}

/// A shell that runs these commands when it is told to.
fn told(script: &str) -> Program {
    let script = format!("read -r _; {script}");
    let mut command = Command::new("sh");
    command.args(["-c", &script]).stdin(Stdio::piped());
    Program(command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "not seen: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn find(observer: &BpfObserver, thread: ThreadRef) -> Option<ThreadView> {
    observer.threads().iter().find(|view| view.thread == thread).copied()
}

fn state(observer: &mut BpfObserver, thread: ThreadRef) -> Option<ThreadState> {
    observer.read(&mut snapshot());
    find(observer, thread).map(|view| view.state)
}

fn events(observer: &mut BpfObserver) -> Vec<HostEvent> {
    let mut events = Vec::new();
    observer.drain_events(&mut |event| events.push(event));
    events
}

#[test]
fn without_the_right_to_bpf_the_error_says_what_it_takes() {
    // Capabilities belong to a thread: this one gives up its own.
    let refused = std::thread::spawn(|| {
        let none = rustix::thread::CapabilitySets {
            effective: rustix::thread::CapabilitySet::empty(),
            permitted: rustix::thread::CapabilitySet::empty(),
            inheritable: rustix::thread::CapabilitySet::empty(),
        };
        rustix::thread::set_capabilities(None, none).unwrap();
        BpfObserver::new(&BpfConfig::default()).map(|_| ())
    });
    let error = refused.join().unwrap().unwrap_err();
    assert!(error.to_string().contains("CAP_BPF"), "{error}");
    assert!(matches!(error, crate::ObserveError::Kernel { source, .. }
        if source.kind() == std::io::ErrorKind::PermissionDenied));
}
