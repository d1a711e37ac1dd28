//! The BPF programs: loading, attaching, calling, and the arrays that they share.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use libbpf_rs::{Link, MapCore, MapHandle, Object, OpenObject, ProgramInput};
use quell_model::CoreId;

use super::abi::{
    Control, Core, CoreOrder, Histograms, SETS, SetOfCores, Shared, Slot, Task, TaskTime, Totals,
    WatchArgs,
};
use super::calls;
use super::object::{self, kernel, refused};
use super::table::Table;
use super::{BpfConfig, ProgramCost};
use crate::{ObserveError, topology};

/// `BPF_F_TEST_RUN_ON_CPU` of include/uapi/linux/bpf.h.
const TEST_RUN_ON_CPU: u32 = 1;

static CODE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/quell.bpf.o"));
const SOURCE: &str = "bpf/quell.bpf.c";

/// The tracepoint of what threads receive from sockets, from Linux 6.3 on. Without it a backlog of requests is one burst.
const INPUTS: &str = "sock_recv_length";

/// Does not load the programs of these sections.
fn leave_out(open: &mut OpenObject, sections: &str) {
    let programs = open.progs_mut();
    let those =
        programs.filter(|program| program.section().to_string_lossy().starts_with(sections));
    those.for_each(|mut program| program.set_autoload(false));
}

/// The loaded programs. Dropping them detaches those that nobody else holds.
pub(super) struct Programs {
    object: Object,
    links: Vec<Link>,
    pub slots: Arc<Table<Slot>>,
    pub dirty: Table<AtomicU64>,
    pub cores: Table<Core>,
    pub orders: Table<CoreOrder>,
    pub sets: Table<SetOfCores>,
    pub tasks: Arc<Table<Task>>,
    pub histograms: Table<Histograms>,
    /// For each core a row as long as `tasks`.
    pub task_times: Table<TaskTime>,
    pub control: Table<Control>,
    pub totals: Table<Totals>,
}

impl Programs {
    /// Loads and attaches the programs.
    pub fn load(config: &BpfConfig) -> Result<Programs, ObserveError> {
        let possible = topology::possible()?.iter().last().map_or(1, |core| core.index() + 1);
        let words = config.max_threads.div_ceil(64).max(1);
        let max_tasks = config.max_tasks.max(1);
        let sizes = [
            ("slots", words * 64),
            ("used", words),
            ("dirty", words),
            ("cores", possible),
            ("orders", possible),
            ("tasks", max_tasks),
            ("histograms", max_tasks),
            ("task_times", possible * max_tasks),
            ("burst_checks", possible),
            ("wakers", words * 64),
            ("events", config.ring_bytes.next_power_of_two().max(rustix::param::page_size())),
        ];
        let mut open = object::open("quell", CODE)?;
        for (name, size) in sizes {
            object::size(&mut open, name, size)?;
        }
        if !config.roles {
            object::constants(&mut open, "rodata.roles", &1u32.to_ne_bytes())?;
            leave_out(&mut open, "tp_btf/contention_");
        }
        if !config.roles || !object::has_tracepoint(INPUTS)? {
            leave_out(&mut open, &format!("tp_btf/{INPUTS}"));
        }
        let object = open.load().map_err(|error| refused("loading the BPF programs", &error))?;
        let mut programs = Programs {
            slots: Arc::new(table(&object, "slots", words * 64)?),
            dirty: table(&object, "dirty", words)?,
            cores: table(&object, "cores", possible)?,
            orders: table(&object, "orders", possible)?,
            sets: table(&object, "sets", SETS)?,
            tasks: Arc::new(table(&object, "tasks", max_tasks)?),
            histograms: table(&object, "histograms", max_tasks)?,
            task_times: table(&object, "task_times", possible * max_tasks)?,
            control: table(&object, "control", 1)?,
            totals: table(&object, "totals", 1)?,
            object,
            links: Vec::new(),
        };
        programs.control[0].configure(config, words as u32, max_tasks as u32);
        programs.init_checks(possible)?;
        programs.links = object::attach(&programs.object)?;
        Ok(programs)
    }

    /// Makes the timer of each core that looks at the burst in progress.
    fn init_checks(&self, cores: usize) -> Result<(), ObserveError> {
        for core in 0..cores as u32 {
            let args = WatchArgs { core, ..WatchArgs::default() };
            self.call("init_check", args).map_err(|source| ObserveError::Kernel {
                what: format!("making the BPF timer of core {core} (needs Linux 5.15 or newer)"),
                source,
            })?;
        }
        Ok(())
    }

    /// The links, which keep the programs running whoever holds them.
    pub fn links(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.links.iter().map(AsFd::as_fd)
    }

    /// A map, held on its own.
    pub fn map(&self, name: &str) -> Result<MapHandle, ObserveError> {
        let map = self.object.maps().find(|map| map.name() == OsStr::new(name));
        let map = map.ok_or_else(|| object::broken(SOURCE, format!("no map `{name}`")))?;
        MapHandle::try_from(&map).map_err(|error| refused("holding a BPF map", &error))
    }

    /// Runs one of the programs `watch`, `seed`, `unwatch`, `set_role` and `init_check`. Returns the state and core of the
    /// thread.
    pub fn call(&self, name: &str, args: WatchArgs) -> io::Result<(u32, u32)> {
        let mut bytes = args.to_bytes();
        let input = ProgramInput { context_in: Some(&mut bytes), ..ProgramInput::default() };
        match self.run(name, input)? as i32 {
            0 => Ok(WatchArgs::answer(&bytes)),
            error => Err(io::Error::from_raw_os_error(-error)),
        }
    }

    /// Has a core bring its entry up to date. A core that is offline has nothing to tell.
    pub fn settle(&self, core: CoreId) {
        let input =
            ProgramInput { cpu: core.0.into(), flags: TEST_RUN_ON_CPU, ..ProgramInput::default() };
        if let Err(error) = self.run("settle", input) {
            tracing::debug!(%core, %error, "the core does not settle");
        }
    }

    fn run(&self, name: &str, input: ProgramInput<'_>) -> io::Result<u32> {
        let program = self.object.progs_mut().find(|program| program.name() == OsStr::new(name));
        let program = program.ok_or(io::ErrorKind::NotFound)?;
        program.test_run(input).map(|output| output.return_value).map_err(|error| kernel(&error))
    }

    /// What each attached program cost.
    pub fn costs(&self) -> Vec<ProgramCost> {
        calls::costs(&self.object)
    }

    /// How often any program was left out because it ran already on that CPU.
    pub fn recursion_misses(&self) -> u64 {
        calls::recursion_misses(&self.object)
    }
}

fn table<T: Shared>(object: &Object, name: &str, len: usize) -> Result<Table<T>, ObserveError> {
    let map = object.maps().find(|map| map.name() == OsStr::new(name));
    let map = map.ok_or_else(|| object::broken(SOURCE, format!("no map `{name}`")))?;
    if map.value_size() as usize != size_of::<T>() || map.max_entries() as usize != len {
        return Err(object::broken(SOURCE, format!("the map `{name}` has another shape")));
    }
    Table::map(map.as_fd(), len, true).map_err(|source| ObserveError::Kernel {
        what: format!("mapping the BPF map {name}"),
        source,
    })
}
