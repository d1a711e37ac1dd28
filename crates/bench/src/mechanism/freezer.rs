//! A cgroup of one thread that can be frozen, on either version of cgroups.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

/// A cgroup with a freezer, removed on drop.
pub struct Freezer {
    directory: PathBuf,
    threads: &'static str,
    control: &'static str,
    frozen: &'static str,
    thawed: &'static str,
}

impl Freezer {
    /// Makes a cgroup and moves a thread of this process into it.
    ///
    /// # Errors
    /// When the host has no freezer, or this process is where its threads cannot be split off.
    pub fn with(tid: i32) -> Result<Freezer> {
        let name = format!("quell-bench-{}", std::process::id());
        let (v1, v2) = (Path::new("/sys/fs/cgroup/freezer"), Path::new("/sys/fs/cgroup"));
        let freezer = if v1.is_dir() {
            let directory = v1.join(name);
            Freezer {
                directory,
                threads: "tasks",
                control: "freezer.state",
                frozen: "FROZEN",
                thawed: "THAWED",
            }
        } else if v2.join("cgroup.controllers").exists() {
            let directory = v2.join(name);
            Freezer {
                directory,
                threads: "cgroup.threads",
                control: "cgroup.freeze",
                frozen: "1",
                thawed: "0",
            }
        } else {
            bail!("this host has no cgroup freezer");
        };
        fs::create_dir(&freezer.directory)
            .with_context(|| format!("create {}", freezer.directory.display()))?;
        if freezer.threads == "cgroup.threads" {
            freezer.write("cgroup.type", "threaded")?;
        }
        freezer.write(freezer.threads, &tid.to_string())?;
        Ok(freezer)
    }

    /// Stops the thread.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn freeze(&self) -> Result<()> {
        self.write(self.control, self.frozen)
    }

    /// Lets it go on.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn thaw(&self) -> Result<()> {
        self.write(self.control, self.thawed)
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let path = self.directory.join(file);
        fs::write(&path, text).with_context(|| format!("write {text} to {}", path.display()))
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = self.thaw();
        let members = fs::read_to_string(self.directory.join(self.threads)).unwrap_or_default();
        if let Some(parent) = self.directory.parent() {
            for tid in members.split_whitespace() {
                let _ = fs::write(parent.join(self.threads), tid);
            }
        }
        let _ = fs::remove_dir(&self.directory);
    }
}
