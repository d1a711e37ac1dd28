//! Where this host's cgroup controllers are: version 1, version 2, or some of each.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The version of a cgroup hierarchy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// One hierarchy a controller (`Documentation/admin-guide/cgroup-v1`).
    V1,
    /// The unified hierarchy (`Documentation/admin-guide/cgroup-v2.rst`).
    V2,
}

/// A mounted hierarchy that offers a controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Its version.
    pub version: Version,
    /// Its mount point.
    pub mount: PathBuf,
}

/// Which hierarchy offers what. `None`: not on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Freezing: the v1 `freezer` controller, else `cgroup.freeze` of v2, which needs no controller.
    pub freezer: Option<Hierarchy>,
    /// `cpuset`.
    pub cpuset: Option<Hierarchy>,
    /// `cpu`.
    pub cpu: Option<Hierarchy>,
}

impl Layout {
    /// Finds the hierarchies of the host whose root directory this is: `/`, or a copy for tests.
    ///
    /// # Errors
    /// When `proc/mounts` cannot be read.
    pub fn detect(root: &Path) -> io::Result<Layout> {
        let mounts = fs::read(root.join("proc/mounts"))?;
        let mounts = String::from_utf8_lossy(&mounts);
        let mut layout = Layout::default();
        for line in mounts.lines() {
            let mut fields = line.split(' ');
            let (Some(_), Some(at), Some(kind), Some(options)) =
                (fields.next(), fields.next(), fields.next(), fields.next())
            else {
                continue;
            };
            let mount = root.join(unescape(at).trim_start_matches('/'));
            match kind {
                "cgroup" => layout.take_v1(&mount, options),
                "cgroup2" => layout.take_v2(&mount),
                _ => {}
            }
        }
        Ok(layout)
    }

    /// A v1 controller is bound to one hierarchy, so it wins over v2, which then lacks it.
    fn take_v1(&mut self, mount: &Path, options: &str) {
        for option in options.split(',') {
            let slot = match option {
                "freezer" => &mut self.freezer,
                "cpuset" => &mut self.cpuset,
                "cpu" => &mut self.cpu,
                _ => continue,
            };
            *slot = Some(Hierarchy { version: Version::V1, mount: mount.to_owned() });
        }
    }

    fn take_v2(&mut self, mount: &Path) {
        let controllers = fs::read_to_string(mount.join("cgroup.controllers")).unwrap_or_default();
        let here = || Hierarchy { version: Version::V2, mount: mount.to_owned() };
        for controller in controllers.split_ascii_whitespace() {
            let slot = match controller {
                "cpuset" => &mut self.cpuset,
                "cpu" => &mut self.cpu,
                _ => continue,
            };
            slot.get_or_insert_with(here);
        }
        self.freezer.get_or_insert_with(here);
    }

    /// The group of a process in a hierarchy, from its `/proc/PID/cgroup`.
    ///
    /// # Errors
    /// `NotFound` when there is no such process or it is not in the hierarchy.
    pub fn group_of(
        root: &Path,
        hierarchy: &Hierarchy,
        controller: &str,
        pid: i32,
    ) -> io::Result<PathBuf> {
        let text = fs::read(root.join(format!("proc/{pid}/cgroup")))?;
        let text = String::from_utf8_lossy(&text);
        let inside = text.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (number, names, path) = (fields.next()?, fields.next()?, fields.next()?);
            let fits = match hierarchy.version {
                Version::V1 => names.split(',').any(|name| name == controller),
                Version::V2 => number == "0" && names.is_empty(),
            };
            fits.then(|| path.trim_start_matches('/'))
        });
        let inside = inside.ok_or(io::ErrorKind::NotFound)?;
        if inside.split('/').any(|part| part == "..") {
            // Outside of this cgroup namespace.
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(hierarchy.mount.join(inside))
    }
}

/// Undoes the octal escapes of /proc/mounts (`\040` for a space).
fn unescape(field: &str) -> String {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let [first, tail @ ..] = rest {
        match octal(rest) {
            Some(code) => {
                out.push(code);
                rest = &rest[4..];
            }
            None => {
                out.push(*first);
                rest = tail;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

fn octal(text: &[u8]) -> Option<u8> {
    let [b'\\', digits @ ..] = text else { return None };
    let digits = digits.get(..3)?;
    let value = digits.iter().try_fold(0u32, |value, digit| match digit {
        b'0'..=b'7' => Some(value * 8 + u32::from(digit - b'0')),
        _ => None,
    })?;
    u8::try_from(value).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(mounts: &str, files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in [("proc/mounts", mounts)].iter().chain(files) {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    fn kinds(layout: &Layout) -> [Option<Version>; 3] {
        [&layout.freezer, &layout.cpuset, &layout.cpu].map(|h| h.as_ref().map(|h| h.version))
    }

    #[test]
    fn controllers_are_found_in_either_version_and_in_a_mix() {
        use Version::{V1, V2};
        let v1 = "cgroup /cg/freezer cgroup rw,freezer 0 0\n\
                  cgroup /cg/cpuset cgroup rw,cpuset 0 0\n\
                  cgroup /cg/cpu,cpuacct cgroup rw,cpu,cpuacct 0 0\n";
        let unified = "cgroup2 /cg/unified cgroup2 rw 0 0\n";
        let all = [("cg/unified/cgroup.controllers", "cpuset cpu io memory pids\n")];
        let few = [("cg/unified/cgroup.controllers", "hugetlb\n")];

        let root = host(v1, &[]);
        let layout = Layout::detect(root.path()).unwrap();
        assert_eq!(kinds(&layout), [Some(V1); 3]);
        assert_eq!(layout.cpu.unwrap().mount, root.path().join("cg/cpu,cpuacct"));

        let root = host(unified, &all);
        assert_eq!(kinds(&Layout::detect(root.path()).unwrap()), [Some(V2); 3]);

        let mixed = format!("{unified}{v1}");
        let root = host(&mixed, &few);
        assert_eq!(kinds(&Layout::detect(root.path()).unwrap()), [Some(V1); 3]);

        let root = host(unified, &few);
        assert_eq!(kinds(&Layout::detect(root.path()).unwrap()), [Some(V2), None, None]);

        let root = host("garbage\ncgroup\n\n", &[]);
        assert_eq!(kinds(&Layout::detect(root.path()).unwrap()), [None; 3]);
    }

    #[test]
    fn a_process_is_found_in_its_group_and_a_path_out_of_the_mount_is_not_followed() {
        let lines = "9:freezer:/a\n1:cpu,cpuacct:/b c/d\n0::/u\n";
        let escape = "1:cpu:/../../etc\n";
        let root = host("", &[("proc/7/cgroup", lines), ("proc/8/cgroup", escape)]);
        let v1 = Hierarchy { version: Version::V1, mount: "/m".into() };
        let v2 = Hierarchy { version: Version::V2, mount: "/u".into() };
        let of = |h, name, pid| Layout::group_of(root.path(), h, name, pid);
        assert_eq!(of(&v1, "cpu", 7).unwrap(), Path::new("/m/b c/d"));
        assert_eq!(of(&v2, "", 7).unwrap(), Path::new("/u/u"));
        assert!(of(&v1, "cpuset", 7).is_err());
        assert!(of(&v1, "cpu", 8).is_err());
        assert!(of(&v1, "cpu", 9).is_err());
    }

    #[test]
    fn escapes_of_the_mount_table_are_undone() {
        assert_eq!(unescape(r"/a\040b\134"), r"/a b\");
        assert_eq!(unescape(r"/a\0"), r"/a\0");
        assert_eq!(unescape(r"/a\777"), r"/a\777");
    }
}
