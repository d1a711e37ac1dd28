//! A service that runs: started as its definition says, in a group and a session of its own.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use quell_load::ProtocolSpec;
use quell_model::CoreSet;
use quell_terminal::Stop;
use rustix::process::Signal;
use tempfile::TempDir;

use super::definition::{Client, Definition};
use crate::host::{Group, Program};

/// How long a service may take until it serves.
const START_MAX: Duration = Duration::from_secs(60);
/// How long each command that prepares or fills it may take.
const COMMAND_MAX: Duration = Duration::from_secs(300);
/// How long it may take to end before it is killed.
const END_MAX: Duration = Duration::from_secs(5);
/// How many bytes of the output of a command an error quotes.
const SAID_BYTES_MAX: usize = 2_000;

/// A service under way, until dropped.
pub struct Service {
    /// What it is.
    pub definition: Definition,
    /// Where it listens.
    pub addr: SocketAddr,
    /// What it started, itself included.
    pub group: Group,
    program: Program,
    home: PathBuf,
    _folder: TempDir,
}

impl Service {
    /// Prepares, starts and fills a service on these cores.
    ///
    /// # Errors
    /// When a program is missing (names the package), fails, or the service does not serve in time.
    pub fn start(definition: &Definition, managed: &CoreSet, stop: &Stop) -> Result<Service> {
        let started = start(definition, managed, stop);
        started.with_context(|| match &definition.package {
            Some(package) => {
                format!("{} (package {package}; `make setup` installs it)", definition.name)
            }
            None => definition.name.clone(),
        })
    }

    /// Its first process.
    pub fn pid(&self) -> i32 {
        self.program.pid()
    }

    /// The protocol to talk to it, where Quell's own client does.
    pub fn protocol(&self) -> Option<&ProtocolSpec> {
        match &self.definition.client {
            Client::Protocol(protocol) => Some(protocol),
            Client::Command(_) => None,
        }
    }

    /// Fails if it is over.
    ///
    /// # Errors
    /// When it is.
    pub fn check(&mut self) -> Result<()> {
        self.program.check().with_context(|| self.log())
    }

    /// A command with its placeholders filled in, to be run in the service's directory by its user.
    pub fn command(&self, words: &[String]) -> Command {
        self.place().command(words)
    }

    fn place(&self) -> Place<'_> {
        Place { definition: &self.definition, addr: self.addr, directory: &self.home }
    }

    /// The end of its output.
    fn log(&self) -> String {
        end_of(&fs::read(self.home.join("log")).unwrap_or_default())
    }
}

/// What placeholders stand for.
struct Place<'a> {
    definition: &'a Definition,
    addr: SocketAddr,
    directory: &'a Path,
}

impl Place<'_> {
    fn filled(&self, text: &str) -> String {
        text.replace("{port}", &self.addr.port().to_string())
            .replace("{address}", &self.addr.to_string())
            .replace("{directory}", &self.directory.display().to_string())
    }

    fn command(&self, words: &[String]) -> Command {
        let mut words = words.iter().map(|word| self.filled(word));
        let program = words.next().unwrap_or_default();
        let mut command = match &self.definition.user {
            // Not by the library: it would change the user before the group is joined.
            Some(user) => {
                let mut command = Command::new("setpriv");
                let group = primary_group(user).unwrap_or_else(|| user.clone());
                command.args(["--reuid", user, "--regid", &group, "--init-groups", "--", &program]);
                command
            }
            None => Command::new(program),
        };
        command.args(words).current_dir(self.directory).stdin(Stdio::null());
        let environment = self.definition.environment.iter();
        command.envs(environment.map(|(name, value)| (name, self.filled(value))));
        command
    }

    /// Runs a command to its end.
    fn run(&self, words: &[String], stop: &Stop) -> Result<()> {
        let log = self.directory.join("commands.log");
        let out = fs::File::create(&log).context("write the output of a command")?;
        let mut command = self.command(words);
        command.stdout(out.try_clone()?).stderr(out);
        let ended = Program::start(&words[0], &mut command)
            .and_then(|program| program.finish(COMMAND_MAX, stop));
        ended.with_context(|| end_of(&fs::read(&log).unwrap_or_default()))
    }
}

fn start(definition: &Definition, managed: &CoreSet, stop: &Stop) -> Result<Service> {
    // On a disk, as a service's data are: what it syncs takes its time.
    let directory = crate::host::directory_on_disk()?;
    let home = directory.path().join("home");
    let place = Place { definition, addr: free_address()?, directory: &home };
    fs::create_dir(&home).with_context(|| format!("make {}", home.display()))?;
    for file in &definition.files {
        let path = home.join(&file.path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).with_context(|| format!("make {}", parent.display()))?;
        }
        fs::write(&path, place.filled(&file.content))
            .with_context(|| format!("write {}", path.display()))?;
    }
    open_to(directory.path(), &home, definition)?;
    for words in &definition.prepare {
        place.run(words, stop)?;
    }
    let group = Group::create(&definition.name)?;
    let mut command = place.command(&definition.command);
    let log = fs::File::create(home.join("log")).context("write the service's log")?;
    command.stdout(log.try_clone()?).stderr(log);
    let program = Program::start_in(&definition.name, &mut command, &group)?;
    // What it starts from here on is born there.
    group.pin(managed)?;
    let (addr, definition) = (place.addr, definition.clone());
    let mut service = Service { definition, addr, group, program, home, _folder: directory };
    service.wait_until_ready(stop)?;
    let place = service.place();
    for words in &service.definition.fill {
        place.run(words, stop)?;
    }
    service.group.pin(managed)?;
    Ok(service)
}

impl Drop for Service {
    fn drop(&mut self) {
        // One that is killed leaves its shared memory behind, as PostgreSQL does.
        let _ = self.program.ask_to_end(Signal::TERM, END_MAX);
    }
}

impl Service {
    fn wait_until_ready(&mut self, stop: &Stop) -> Result<()> {
        let until = Instant::now() + START_MAX;
        loop {
            self.check()?;
            let ready = match &self.definition.ready {
                None => TcpStream::connect(self.addr).is_ok(),
                Some(words) => {
                    let mut command = self.command(words);
                    let status = command.stdout(Stdio::null()).stderr(Stdio::null()).status();
                    status.is_ok_and(|status| status.success())
                }
            };
            if ready {
                // Another program may have had the port already, and would accept in its place.
                return self.check();
            }
            if Instant::now() > until {
                bail!("does not serve on {} after {START_MAX:?}: {}", self.addr, self.log());
            }
            stop.sleep(Duration::from_millis(20))?;
        }
    }
}

/// Lets the service's user into the directory, and gives it its home there.
fn open_to(directory: &Path, home: &Path, definition: &Definition) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(directory, fs::Permissions::from_mode(0o755))
        .context("open the directory")?;
    let Some(user) = &definition.user else { return Ok(()) };
    let mut command = Command::new("chown");
    let done = command.arg("-R").arg(user).arg(home).output().context("chown")?;
    if !done.status.success() {
        bail!("user {user}: {}", end_of(&done.stderr));
    }
    Ok(())
}

fn primary_group(user: &str) -> Option<String> {
    let said = Command::new("id").args(["-g", user]).output().ok()?;
    Some(String::from_utf8(said.stdout).ok()?.trim().to_owned()).filter(|group| !group.is_empty())
}

/// An address without a listener.
fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a free port")?;
    listener.local_addr().context("find a free port")
}

fn end_of(said: &[u8]) -> String {
    let said = &said[said.len().saturating_sub(SAID_BYTES_MAX)..];
    String::from_utf8_lossy(said).trim().to_owned()
}
