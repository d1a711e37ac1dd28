//! The BPF programs: loading, attaching, calling, and the arrays that they share.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Once;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use libbpf_rs::{
    Link, MapCore, MapHandle, Object, ObjectBuilder, OpenObject, PrintLevel, ProgramInput,
    set_print,
};
use quell_model::CoreId;

use super::abi::{
    Control, Core, CoreOrder, Histograms, SETS, SetOfCores, Shared, Slot, Task, Totals, WatchArgs,
};
use super::calls::{self, Counts};
use super::table::Table;
use super::{BpfConfig, ProgramCost};
use crate::observe::{ObserveError, topology};

/// `BPF_F_TEST_RUN_ON_CPU` of include/uapi/linux/bpf.h.
const TEST_RUN_ON_CPU: u32 = 1;

static CODE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/quell.bpf.o"));

/// The loaded programs. Dropping them detaches those that nobody else holds.
pub(super) struct Programs {
    object: Object,
    links: Vec<Link>,
    pub slots: Table<Slot>,
    pub dirty: Table<AtomicU64>,
    pub cores: Table<Core>,
    pub orders: Table<CoreOrder>,
    pub sets: Table<SetOfCores>,
    pub tasks: Table<Task>,
    pub histograms: Table<Histograms>,
    /// For each core a row as long as `tasks`.
    pub runs: Table<AtomicU64>,
    pub control: Table<Control>,
    pub totals: Table<Totals>,
}

impl Programs {
    /// Loads and attaches the programs.
    pub fn load(config: &BpfConfig) -> Result<Programs, ObserveError> {
        quiet_libbpf();
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
            ("runs", possible * max_tasks),
            ("events", config.ring_bytes.next_power_of_two().max(rustix::param::page_size())),
        ];
        let mut open = open()?;
        for (name, size) in sizes {
            let mut map = open.maps_mut().find(|map| map.name() == OsStr::new(name));
            let map = map.as_mut().ok_or_else(|| broken(format!("no map `{name}`")))?;
            map.set_max_entries(size as u32)
                .map_err(|error| refused("sizing a BPF map", &error))?;
        }
        let object = open.load().map_err(|error| refused("loading the BPF programs", &error))?;
        let mut programs = Programs {
            slots: table(&object, "slots", words * 64)?,
            dirty: table(&object, "dirty", words)?,
            cores: table(&object, "cores", possible)?,
            orders: table(&object, "orders", possible)?,
            sets: table(&object, "sets", SETS)?,
            tasks: table(&object, "tasks", max_tasks)?,
            histograms: table(&object, "histograms", max_tasks)?,
            runs: table(&object, "runs", possible * max_tasks)?,
            control: table(&object, "control", 1)?,
            totals: table(&object, "totals", 1)?,
            object,
            links: Vec::new(),
        };
        programs.control[0].configure(config, words as u32, max_tasks as u32);
        programs.attach()?;
        Ok(programs)
    }

    fn attach(&mut self) -> Result<(), ObserveError> {
        for program in self.object.progs_mut() {
            if program.section().to_string_lossy().starts_with("tp_btf/") {
                let what = format!("attaching to {}", program.section().display());
                self.links.push(program.attach().map_err(|error| refused(&what, &error))?);
            }
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
        let map = map.ok_or_else(|| broken(format!("no map `{name}`")))?;
        MapHandle::try_from(&map).map_err(|error| refused("holding a BPF map", &error))
    }

    /// Runs one of the programs `watch`, `seed` and `unwatch`. Returns the state and core of the thread.
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

    /// What each attached program cost, and how often one was left out on recursion.
    pub fn costs(&self) -> Vec<ProgramCost> {
        let attached = self.object.progs().filter_map(|program| {
            let section = program.section().to_str()?.strip_prefix("tp_btf/")?.to_owned();
            let Counts { runs, run_ns, .. } = calls::program_counts(program.as_fd()).ok()?;
            Some(ProgramCost { event: section, runs, time: Duration::from_nanos(run_ns) })
        });
        attached.collect()
    }

    /// How often any program was left out because it ran already on that CPU.
    pub fn recursion_misses(&self) -> u64 {
        let counts = self.object.progs().flat_map(|program| calls::program_counts(program.as_fd()));
        counts.map(|counts| counts.recursion_misses).sum()
    }
}

fn open() -> Result<OpenObject, ObserveError> {
    // libelf reads headers in place: the code has to be aligned as they are.
    let mut aligned = vec![0u64; CODE.len().div_ceil(8)];
    for (to, from) in aligned.iter_mut().zip(CODE.chunks(8)) {
        let mut bytes = [0; 8];
        bytes[..from.len()].copy_from_slice(from);
        *to = u64::from_ne_bytes(bytes);
    }
    let bytes: Vec<u8> = aligned.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mut builder = ObjectBuilder::default();
    builder.name("quell").map_err(|error| refused("naming the BPF object", &error))?;
    builder
        .open_memory(&bytes[..CODE.len()])
        .map_err(|error| refused("reading the BPF object", &error))
}

fn table<T: Shared>(object: &Object, name: &str, len: usize) -> Result<Table<T>, ObserveError> {
    let map = object.maps().find(|map| map.name() == OsStr::new(name));
    let map = map.ok_or_else(|| broken(format!("no map `{name}`")))?;
    if map.value_size() as usize != size_of::<T>() || map.max_entries() as usize != len {
        return Err(broken(format!("the map `{name}` has another shape")));
    }
    Table::map(map.as_fd(), len, true).map_err(|source| ObserveError::Kernel {
        what: format!("mapping the BPF map {name}"),
        source,
    })
}

fn broken(what: String) -> ObserveError {
    ObserveError::Format { path: "bpf/quell.bpf.c".to_owned(), what }
}

fn refused(what: &str, error: &libbpf_rs::Error) -> ObserveError {
    let source = kernel(error);
    let what = match source.kind() {
        io::ErrorKind::PermissionDenied => format!(
            "{what} (needs root, or CAP_BPF and CAP_PERFMON; lockdown=confidentiality forbids it)"
        ),
        _ if !std::path::Path::new("/sys/kernel/btf/vmlinux").exists() => {
            format!("{what} (this kernel has no BTF; it needs CONFIG_DEBUG_INFO_BTF)")
        }
        _ => what.to_owned(),
    };
    ObserveError::Kernel { what, source }
}

fn kernel(error: &libbpf_rs::Error) -> io::Error {
    use libbpf_rs::ErrorKind;
    let kind = match error.kind() {
        ErrorKind::NotFound => io::ErrorKind::NotFound,
        ErrorKind::PermissionDenied => io::ErrorKind::PermissionDenied,
        ErrorKind::InvalidInput => io::ErrorKind::InvalidInput,
        ErrorKind::OutOfMemory => io::ErrorKind::OutOfMemory,
        _ => io::ErrorKind::Other,
    };
    io::Error::new(kind, error.to_string())
}

/// What libbpf would print on stderr goes to the log: a refusal is reported as an error anyway.
fn quiet_libbpf() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        set_print(Some((PrintLevel::Info, |_, message| {
            tracing::debug!(target: "libbpf", "{}", message.trim_end());
        })));
    });
}
