//! The kernel of a host: its version, its configuration and the parameters that it was booted with.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// A kernel's configuration has some 300 kB; what is larger is none.
const FILE_BYTES_MAX: u64 = 4 << 20;

/// A kernel, by the files below a root directory.
#[derive(Clone, Debug)]
pub struct Kernel {
    root: PathBuf,
}

impl Kernel {
    /// The kernel of the host whose root directory this is: `/`, or a copy for tests.
    pub fn at(root: impl Into<PathBuf>) -> Kernel {
        Kernel { root: root.into() }
    }

    /// The release as text, e.g. `6.12.43+deb13-amd64`; empty where it cannot be read.
    pub fn release(&self) -> String {
        self.text("proc/sys/kernel/osrelease").unwrap_or_default()
    }

    /// Major and minor version; `None` where the release does not begin with them.
    pub fn version(&self) -> Option<(u32, u32)> {
        let release = self.release();
        let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    }

    /// Whether the kernel was built with an option (`y` or `m`), and where that was read. `None` where the host keeps no
    /// copy of its configuration.
    pub fn config(&self, option: &str) -> Option<(bool, String)> {
        let (text, source) = self.config_text()?;
        let prefix = format!("CONFIG_{option}=");
        let set = text.lines().filter_map(|line| line.strip_prefix(&prefix));
        Some((set.into_iter().any(|value| value == "y" || value == "m"), source))
    }

    fn config_text(&self) -> Option<(String, String)> {
        let release = self.release();
        for path in [format!("boot/config-{release}"), format!("lib/modules/{release}/config")] {
            if let Some(text) = self.text(&path) {
                return Some((text, format!("/{path}")));
            }
        }
        let packed = read(&self.root.join("proc/config.gz")).ok()?;
        let mut text = String::new();
        let unpacked = flate2::read::GzDecoder::new(packed.as_slice());
        unpacked.take(FILE_BYTES_MAX).read_to_string(&mut text).ok()?;
        Some((text, "/proc/config.gz".to_owned()))
    }

    /// The last value of a boot parameter, `name=value` on the kernel's command line.
    pub fn boot_parameter(&self, name: &str) -> Option<String> {
        let line = self.text("proc/cmdline")?;
        let values = line.split_whitespace().filter_map(|word| word.strip_prefix(name));
        values.filter_map(|rest| rest.strip_prefix('=')).next_back().map(str::to_owned)
    }

    fn text(&self, path: &str) -> Option<String> {
        let bytes = read(&self.root.join(path)).ok()?;
        Some(String::from_utf8_lossy(&bytes).trim().to_owned())
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(FILE_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn version_parameters_and_options_are_read_from_the_files_of_the_host() {
        let root = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(root.path());
        assert_eq!((kernel.version(), kernel.config("BPF")), (None, None));
        for (path, text) in [
            ("proc/sys/kernel/osrelease", "6.12.43+deb13-amd64\n"),
            ("proc/cmdline", "quiet preempt=none preempt=full\n"),
            ("boot/config-6.12.43+deb13-amd64", "CONFIG_BPF=y\n# CONFIG_KVM is not set\n"),
        ] {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        assert_eq!(kernel.version(), Some((6, 12)));
        assert_eq!(
            kernel.boot_parameter("preempt").as_deref(),
            Some("full"),
            "the last one counts"
        );
        assert_eq!(kernel.boot_parameter("quiet"), None);
        let source = "/boot/config-6.12.43+deb13-amd64".to_owned();
        assert_eq!(kernel.config("BPF"), Some((true, source.clone())));
        assert_eq!(kernel.config("KVM"), Some((false, source)));
    }
}
