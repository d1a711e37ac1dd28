//! Files of the kernel that hold one setting each.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Component, Path, PathBuf};

use quell_model::CoreSet;

/// A setting of the host.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Setting {
    /// A sysctl by its name, e.g. `kernel.sched_rt_runtime_us`.
    Sysctl(String),
    /// The cores that an interrupt may be delivered to, as a core list.
    IrqAffinity(u32),
    /// A file of a cgroup.
    CgroupFile(PathBuf),
    /// Any other file below `/proc/sys`, `/proc/irq` or `/sys`.
    File(PathBuf),
}

impl Setting {
    /// The file that holds it.
    pub fn path(&self) -> PathBuf {
        match self {
            Setting::Sysctl(name) => Path::new("/proc/sys").join(name.replace('.', "/")),
            Setting::IrqAffinity(irq) => {
                PathBuf::from(format!("/proc/irq/{irq}/smp_affinity_list"))
            }
            Setting::CgroupFile(path) | Setting::File(path) => path.clone(),
        }
    }
}

/// Whether a path is one that the executor may write to: below the kernel's own trees, without a way out.
/// Journals are checked with it too: what a damaged or forged one names is never opened. It admits more files than this
/// version writes, since a journal may be of an older one, which switched the kernel's fair server off.
pub(crate) fn is_kernel_path(path: &Path) -> bool {
    let below = ["/proc/sys/", "/proc/irq/", "/sys/"];
    below.iter().any(|tree| path.starts_with(tree.trim_end_matches('/')))
        && path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
        && path.components().count() > 2
}

/// Reads a setting, without the line end.
///
/// # Errors
/// Those of the file; `InvalidData` past `limit` bytes.
pub(crate) fn read(path: &Path, limit: usize) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(limit as u64 + 2).read_to_string(&mut text)?;
    text.truncate(text.trim_end().len());
    if text.len() > limit {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "longer than the journal can hold"));
    }
    Ok(text)
}

/// Writes a setting in one `write(2)`, as the kernel expects.
///
/// # Errors
/// Those of the file.
pub(crate) fn write(path: &Path, value: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(path)?.write_all(value.as_bytes())
}

/// Whether the kernel shows `seen` where `written` was written: core lists and freezer states read back in
/// another form.
pub(crate) fn same_value(path: &Path, written: &str, seen: &str) -> bool {
    let (written, seen) = (written.trim(), seen.trim());
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    match name {
        "smp_affinity_list" | "cpuset.cpus" => {
            match (written.parse::<CoreSet>(), seen.parse::<CoreSet>()) {
                (Ok(written), Ok(seen)) => written == seen,
                _ => written == seen,
            }
        }
        // A group that is asked to freeze shows FREEZING until its last thread stopped.
        "freezer.state" => (written == "THAWED") == (seen == "THAWED"),
        _ => written.split_ascii_whitespace().eq(seen.split_ascii_whitespace()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_files() {
        let sysctl = Setting::Sysctl("kernel.sched_rt_runtime_us".into());
        assert_eq!(sysctl.path(), Path::new("/proc/sys/kernel/sched_rt_runtime_us"));
        assert_eq!(Setting::IrqAffinity(24).path(), Path::new("/proc/irq/24/smp_affinity_list"));
    }

    #[test]
    fn only_the_kernels_files_are_written() {
        assert!(is_kernel_path(Path::new("/sys/fs/cgroup/cpu/a/cpu.rt_runtime_us")));
        for path in
            ["/etc/passwd", "/sys/../etc/passwd", "/sysfs/a", "/proc/1/mem", "sys/a", "/sys"]
        {
            assert!(!is_kernel_path(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn values_are_equal_in_any_form_of_the_kernel() {
        assert!(same_value(Path::new("/proc/irq/4/smp_affinity_list"), "0,1", "0-1"));
        assert!(same_value(
            Path::new("/sys/fs/cgroup/freezer/a/freezer.state"),
            "FROZEN",
            "FREEZING"
        ));
        assert!(!same_value(
            Path::new("/sys/fs/cgroup/freezer/a/freezer.state"),
            "THAWED",
            "FROZEN"
        ));
        assert!(!same_value(Path::new("/proc/sys/kernel/sched_rt_runtime_us"), "-1", "950000"));
    }
}
