//! Who may do what over the control socket.
//!
//! Two gates. The kernel's: the socket's mode lets root connect, and members of the control group, by primary
//! or supplementary group, where one is configured. Ours: what a connection may do is decided by who made it
//! (SO_PEERCRED), so that a mode changed by hand lets nobody change anything.

use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context, Result, bail};
use quell_control::config::{ConfigError, HostConfig};
use quell_control::protocol::{Method, Permission};

/// The group whose members may read.
pub struct ControlGroup {
    name: String,
    id: u32,
}

impl ControlGroup {
    /// The configured group, if one is.
    ///
    /// # Errors
    /// When this host has no such group.
    pub fn of(config: &HostConfig, file: &str) -> Result<Option<ControlGroup>> {
        let Some(named) = &config.control_group else { return Ok(None) };
        let name = named.name.clone();
        let Some(id) = quell_os::group_id(&name).with_context(|| format!("group `{name}`"))? else {
            bail!(ConfigError {
                file: file.to_owned(),
                line: Some(named.line),
                what: format!("`control_group`: this host has no group `{name}`"),
                remedy: "`getent group` lists them, `groupadd --system NAME` makes one".to_owned(),
            });
        };
        Ok(Some(ControlGroup { name, id }))
    }

    /// Lets the members through the run directory; a sentence if one above it stays in their way.
    ///
    /// # Errors
    /// When the run directory cannot be changed.
    pub fn let_through(&self, run_dir: &Path) -> Result<Option<String>> {
        let closed = quell_control::run_dir::open_to_group(run_dir, self.id)
            .with_context(|| run_dir.display().to_string())?;
        Ok(closed.map(|dir| {
            format!(
                "members of group `{}` cannot reach the control socket: {} is closed to them; `chmod o+x` it or choose another --run-dir",
                self.name,
                dir.display()
            )
        }))
    }
}

/// Opens a socket to root alone, or to a group besides. Nobody can connect before it listens.
///
/// # Errors
/// When its owner or mode cannot be changed.
pub fn open_socket(path: &Path, group: Option<&ControlGroup>) -> io::Result<()> {
    let mode = match group {
        Some(group) => {
            chown(path, None, Some(group.id))?;
            0o660
        }
        None => 0o600,
    };
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode))
}

/// Who made a connection, as of when it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its effective user.
    pub uid: u32,
    /// Its process; 0 where it has no number here.
    pub pid: i32,
}

impl Peer {
    /// Who is at the other end.
    ///
    /// # Errors
    /// When the kernel does not tell.
    pub fn of(stream: &UnixStream) -> io::Result<Peer> {
        let (uid, pid) = quell_os::peer_credentials(stream.as_fd())?;
        Ok(Peer { uid, pid })
    }

    /// The daemon itself.
    pub fn own() -> Peer {
        Peer { uid: rustix::process::geteuid().as_raw(), pid: std::process::id() as i32 }
    }

    /// Whether it may change things: root, and the user that the daemon runs as.
    pub fn may_change(&self) -> bool {
        self.uid == 0 || self.uid == rustix::process::geteuid().as_raw()
    }

    /// Refuses what it may not do, in a sentence.
    ///
    /// # Errors
    /// The sentence.
    pub fn check(&self, call: &Method) -> Result<(), String> {
        match call.needs() {
            Permission::Change if !self.may_change() => Err(format!(
                "user {} may read but change nothing: `{}` needs root",
                self.uid,
                call.name()
            )),
            // Whose processes a report is about, and which task a runtime belongs to, the manager knows.
            Permission::Change | Permission::Report | Permission::Register | Permission::Read => {
                Ok(())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_and_the_daemons_user_change_things() {
        let root = Peer { uid: 0, pid: 1 };
        let own = Peer { uid: rustix::process::geteuid().as_raw(), pid: 1 };
        let reader = Peer { uid: 65_534, pid: 1 };
        let task = "web".to_owned();
        let changing = [
            Method::Attach { file: String::new(), text: String::new() },
            Method::Remove { task },
            Method::Stop { keep_programs: true },
            Method::Stop { keep_programs: false },
            {
                let (file, text) = (String::new(), String::new());
                // Even what only tells what would change: it reads the host's processes on somebody's behalf.
                Method::Apply { file, text, dry_run: true }
            },
        ];
        for call in changing {
            assert_eq!((root.check(&call), own.check(&call)), (Ok(()), Ok(())));
            let refused = reader.check(&call).unwrap_err();
            assert!(
                refused.contains("change nothing") && refused.contains(call.name()),
                "{refused}"
            );
        }
        for call in [
            Method::Schema,
            Method::Status,
            Method::Subscribe,
            Method::Explain { subject: "0".into() },
        ] {
            assert_eq!(reader.check(&call), Ok(()));
        }
    }

    #[test]
    fn a_connection_knows_who_made_it() {
        let (here, _there) = UnixStream::pair().unwrap();
        let us = Peer::of(&here).unwrap();
        assert_eq!(us.uid, rustix::process::geteuid().as_raw());
        assert_eq!(us.pid, std::process::id() as i32);
    }
}
