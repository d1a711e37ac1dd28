//! Two network namespaces and the link between them. They have no names, so that nothing is left of them when the processes
//! that hold them are gone, whatever ends this one.

use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, ensure};

/// The server's address, and the client's.
pub const ADDRESSES: [&str; 2] = ["10.77.7.1", "10.77.7.2"];
/// The client's second one, for connections over several paths.
const SECOND: &str = "10.77.7.3/24";
/// Connections end as fast as they are made, and may be opened by their first bytes, with listeners that do not ask for it.
const SETTINGS: [&str; 3] = [
    "net.ipv4.ip_local_port_range=1024 65535",
    "net.ipv4.tcp_tw_reuse=1",
    "net.ipv4.tcp_fastopen=1027",
];
/// The ends of the link.
pub(crate) const ENDS: [&str; 2] = ["quell-net-a", "quell-net-b"];

/// See the module.
pub struct Namespaces {
    holders: [Holder; 2],
    /// Why connections have one path only.
    pub lacks_second_path: Option<String>,
}

/// A process that does nothing in a namespace of its own.
struct Holder(Child);

impl Holder {
    fn start() -> Result<Holder> {
        // `cat` ends with its input, which is a pipe of this process.
        let mut command = Command::new("unshare");
        command.args(["--net", "cat"]).stdin(Stdio::piped()).stdout(Stdio::null());
        command.process_group(0);
        let child = command.spawn().context("make a network namespace (unshare, of util-linux)")?;
        Ok(Holder(child))
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // It is ours, and has nothing to finish; it may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Namespaces {
    /// Makes two with a link of 1 Gbit/s, which queues up to 3 MB, as routers do.
    ///
    /// # Errors
    /// When a command fails, with what it says.
    pub fn make_slow() -> Result<Namespaces> {
        let namespaces = Namespaces::make()?;
        for (side, end) in ENDS.iter().enumerate() {
            let words = ["tc", "qdisc", "add", "dev", end, "root", "tbf"];
            let rate = ["rate", "1gbit", "burst", "64kb", "limit", "3mb"];
            namespaces.run(side, &[&words[..], &rate].concat())?;
        }
        Ok(namespaces)
    }

    /// Makes them. Takes root.
    ///
    /// # Errors
    /// When a command fails, with what it says.
    pub fn make() -> Result<Namespaces> {
        let mut namespaces =
            Namespaces { holders: [Holder::start()?, Holder::start()?], lacks_second_path: None };
        let [server, client] = &namespaces.holders;
        let pids = [server.pid(), client.pid()];
        // `unshare` has to have reached its namespace before a link can be moved there.
        namespaces.wait_until_apart()?;
        ip(&[
            "link", "add", ENDS[0], "netns", &pids[0], "type", "veth", "peer", "name", ENDS[1],
            "netns", &pids[1],
        ])?;
        for side in 0..2 {
            let address = format!("{}/24", ADDRESSES[side]);
            namespaces.run(side, &["ip", "link", "set", "lo", "up"])?;
            namespaces.run(side, &["ip", "address", "add", &address, "dev", ENDS[side]])?;
            namespaces.run(side, &["ip", "link", "set", ENDS[side], "up"])?;
            for setting in SETTINGS {
                namespaces.run(side, &["sysctl", "-qw", setting])?;
            }
        }
        let second = namespaces.add_second_path();
        namespaces.lacks_second_path = second.err().map(|error| format!("{error:#}"));
        Ok(namespaces)
    }

    fn add_second_path(&self) -> Result<()> {
        self.run(1, &["ip", "address", "add", SECOND, "dev", ENDS[1]])?;
        (0..2).try_for_each(|side| {
            self.run(side, &["ip", "mptcp", "limits", "set", "subflow", "1"])
        })?;
        let (address, _) = SECOND.split_once('/').unwrap_or((SECOND, ""));
        self.run(1, &["ip", "mptcp", "endpoint", "add", address, "dev", ENDS[1], "subflow"])
    }

    fn wait_until_apart(&self) -> Result<()> {
        let of = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net"));
        let own = of("self")?;
        for holder in &self.holders {
            let is_apart = || of(&holder.pid()).is_ok_and(|namespace| namespace != own);
            let begun = std::time::Instant::now();
            while !is_apart() {
                ensure!(begun.elapsed().as_secs() < 5, "no network namespace: is this root?");
                std::thread::sleep(std::time::Duration::from_millis(1));
            }
        }
        Ok(())
    }

    /// A command that runs a program in one of them: 0 the server's, 1 the client's.
    pub fn command(&self, side: usize, program: &std::ffi::OsStr) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["--net", "--target", &self.holders[side].pid(), "--"]).arg(program);
        command
    }

    /// Runs a command in one of them.
    ///
    /// # Errors
    /// When it fails, with what it says.
    pub fn run(&self, side: usize, words: &[&str]) -> Result<()> {
        let mut command = self.command(side, words[0].as_ref());
        done(command.args(&words[1..]), &words.join(" "))
    }
}

fn ip(words: &[&str]) -> Result<()> {
    done(Command::new("ip").args(words), &format!("ip {}", words.join(" ")))
}

fn done(command: &mut Command, what: &str) -> Result<()> {
    let output = command.output().with_context(|| format!("run `{what}`"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{what}` failed: {}", said.trim());
    Ok(())
}
