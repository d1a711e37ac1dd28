//! BPF object files: opening, sizing, attaching, and what the kernel says against it.

use std::ffi::OsStr;
use std::io;
use std::sync::Once;

use libbpf_rs::btf::{Btf, types::Typedef};
use libbpf_rs::{
    Link, MapCore, MapFlags, MapHandle, Object, ObjectBuilder, OpenObject, PrintLevel, RingBuffer,
    RingBufferBuilder, set_print,
};

use crate::ObserveError;

/// Opens an object file; its maps may still be sized.
pub(crate) fn open(name: &str, code: &[u8]) -> Result<OpenObject, ObserveError> {
    quiet_libbpf();
    // libelf reads headers in place: the code has to be aligned as they are.
    let mut aligned = vec![0u64; code.len().div_ceil(8)];
    for (to, from) in aligned.iter_mut().zip(code.chunks(8)) {
        let mut bytes = [0; 8];
        bytes[..from.len()].copy_from_slice(from);
        *to = u64::from_ne_bytes(bytes);
    }
    let bytes: Vec<u8> = aligned.iter().flat_map(|word| word.to_ne_bytes()).collect();
    let mut builder = ObjectBuilder::default();
    builder.name(name).map_err(|error| refused("naming the BPF object", &error))?;
    builder
        .open_memory(&bytes[..code.len()])
        .map_err(|error| refused("reading the BPF object", &error))
}

/// Gives a map room for so many entries (a ring: bytes).
pub(crate) fn size(open: &mut OpenObject, name: &str, entries: usize) -> Result<(), ObserveError> {
    let mut map = open.maps_mut().find(|map| map.name() == OsStr::new(name));
    let map = map.as_mut().ok_or_else(|| broken("bpf/", format!("no map `{name}`")))?;
    map.set_max_entries(entries as u32).map_err(|error| refused("sizing a BPF map", &error))
}

/// Sets the first of the programs' constants in this section.
pub(crate) fn constants(
    open: &mut OpenObject,
    section: &str,
    values: &[u8],
) -> Result<(), ObserveError> {
    let mut data = open.maps_mut().find(|map| map.name().to_string_lossy().ends_with(section));
    let constants = data.as_mut().and_then(|map| map.initial_value_mut());
    let room = constants.and_then(|bytes| bytes.get_mut(..values.len()));
    let room = room.ok_or_else(|| broken("bpf/", "no room for constants".to_owned()))?;
    room.copy_from_slice(values);
    Ok(())
}

/// Whether programs can be attached to this tracepoint of the running kernel.
pub(crate) fn has_tracepoint(name: &str) -> Result<bool, ObserveError> {
    let kernel =
        Btf::from_vmlinux().map_err(|error| refused("reading the kernel's BTF", &error))?;
    Ok(kernel.type_by_name::<Typedef<'_>>(&format!("btf_trace_{name}")).is_some())
}

/// Attaches all programs that belong to a tracepoint.
pub(crate) fn attach(object: &Object) -> Result<Vec<Link>, ObserveError> {
    let programs = object.progs_mut().filter(|program| program.autoload());
    let traced =
        programs.filter(|program| program.section().to_string_lossy().starts_with("tp_btf/"));
    let attach = |program: libbpf_rs::ProgramMut<'_>| {
        let what = format!("attaching to {}", program.section().display());
        program.attach().map_err(|error| refused(&what, &error))
    };
    traced.map(attach).collect()
}

/// A handle to a map of a loaded object.
pub(crate) fn map(object: &Object, name: &str) -> Result<MapHandle, ObserveError> {
    let map = object.maps().find(|map| map.name() == OsStr::new(name));
    let map = map.ok_or_else(|| broken("bpf/", format!("no map `{name}`")))?;
    MapHandle::try_from(&map).map_err(|error| refused("holding a BPF map", &error))
}

/// A reader of a ring, that gives each record to `take`.
pub(crate) fn ring(
    map: &MapHandle,
    mut take: impl FnMut(&[u8]) + 'static,
) -> Result<RingBuffer<'static>, ObserveError> {
    let build = || {
        let mut builder = RingBufferBuilder::new();
        builder.add(map, move |bytes| {
            take(bytes);
            0
        })?;
        builder.build()
    };
    build().map_err(|error| refused("reading a BPF ring", &error))
}

/// The first value of an array of 64-bit counters.
pub(crate) fn counter(map: &MapHandle) -> u64 {
    let value = map.lookup(&0u32.to_ne_bytes(), MapFlags::ANY).ok().flatten();
    value.and_then(|bytes| bytes.first_chunk().copied()).map_or(0, u64::from_ne_bytes)
}

/// The programs are not what this code was built for.
pub(crate) fn broken(source: &str, what: String) -> ObserveError {
    ObserveError::Format { path: source.to_owned(), what }
}

/// The kernel refused; with what it needs where that is known.
pub(crate) fn refused(what: &str, error: &libbpf_rs::Error) -> ObserveError {
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

pub(crate) fn kernel(error: &libbpf_rs::Error) -> io::Error {
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
