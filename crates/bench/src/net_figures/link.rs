//! What of a link between two namespaces an arm changes. Nothing of it outlives them.

use std::thread;

use anyhow::{Context as _, Result};

use super::arms::{CLIENT_CORE, FREE_CORE, SERVER_CORE};
use crate::net::namespaces::{ENDS, Namespaces};

/// Subflows that the kernel allows beside the first (`MPTCP_SUBFLOWS_MAX` less one).
const MORE_SUBFLOWS_MAX: usize = 7;
/// Bytes of a connection's buffers at most, where many subflows share them.
const LARGE_BUFFER_BYTES: u32 = 64 << 20;

/// How packets wait where they leave.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Qdisc {
    /// As the kernel has it for such links: they do not.
    #[default]
    None,
    /// In three bands by priority, as fast as the processors are.
    PfifoFast,
    /// The same, for a link of 1 Gbit/s.
    SlowPfifoFast,
}

/// The core on which the server's end processes what it receives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Receiver {
    /// That on which it was sent, as such links do.
    #[default]
    Sender,
    /// The server's.
    Reader,
    /// Neither the server's nor the client's; with two cores the client's.
    Other,
}

impl Receiver {
    /// `None`: as it is. On a host with so many cores.
    fn core(self, cores: usize) -> Option<usize> {
        match self {
            Receiver::Sender => None,
            Receiver::Reader => Some(SERVER_CORE),
            Receiver::Other => Some(if cores > FREE_CORE { FREE_CORE } else { CLIENT_CORE }),
        }
    }
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Segmentation and its reverse in large pieces (TSO, GSO, GRO).
    pub has_offloads: bool,
    /// Bytes of a frame.
    pub mtu: u32,
    /// See [`Receiver`].
    pub receiver: Receiver,
    /// Subflows of a connection over several paths.
    pub subflows: usize,
    /// Buffers may grow as long as many subflows need them.
    pub has_large_buffers: bool,
    /// See [`Qdisc`].
    pub qdisc: Qdisc,
}

/// As most hosts have it.
pub const USUAL: Link = Link {
    has_offloads: true,
    mtu: 1_500,
    receiver: Receiver::Sender,
    subflows: 1,
    has_large_buffers: false,
    qdisc: Qdisc::None,
};

fn words(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

impl Link {
    /// Makes two namespaces with it.
    ///
    /// # Errors
    /// When a command fails, with what it says.
    pub fn make(&self) -> Result<Namespaces> {
        let namespaces = Namespaces::make()?;
        let cores = thread::available_parallelism().context("count the cores")?.get();
        for side in 0..2 {
            for command in self.commands(side, cores) {
                let command: Vec<&str> = command.iter().map(String::as_str).collect();
                namespaces.run(side, &command)?;
            }
        }
        Ok(namespaces)
    }

    /// What is run at one end (0 the server's, 1 the client's) of a host with so many cores.
    fn commands(&self, side: usize, cores: usize) -> Vec<Vec<String>> {
        let end = ENDS[side];
        let offloads = if self.has_offloads { "on" } else { "off" };
        let mut commands = vec![
            words(&format!("ethtool -K {end} tso {offloads} gso {offloads} gro {offloads}")),
            words(&format!("ip link set dev {end} mtu {}", self.mtu)),
        ];
        if let Some(core) = self.receiver.core(cores).filter(|_| side == 0) {
            let file = format!("/sys/class/net/{end}/queues/rx-0/rps_cpus");
            // Those files show the devices of the namespace in which they were mounted.
            let script = format!("mount -t sysfs sysfs /sys && echo {} > {file}", mask(core));
            let mut command = words("unshare --mount sh -c");
            command.push(script);
            commands.push(command);
        }
        if self.has_large_buffers {
            for (name, first) in [("tcp_rmem", 131_072), ("tcp_wmem", 16_384)] {
                let value = format!("net.ipv4.{name}=4096 {first} {LARGE_BUFFER_BYTES}");
                commands.push(vec!["sysctl".to_owned(), "-qw".to_owned(), value]);
            }
        }
        commands.extend(self.path_commands(side));
        commands.extend(self.qdisc_commands(end));
        commands
    }

    fn path_commands(&self, side: usize) -> Vec<Vec<String>> {
        if self.subflows < 2 {
            return Vec::new();
        }
        let more = (self.subflows - 1).min(MORE_SUBFLOWS_MAX);
        let mut commands = vec![
            words("ip mptcp endpoint flush"),
            words(&format!("ip mptcp limits set subflow {more}")),
        ];
        if side == 1 {
            for number in 0..more {
                let address = format!("10.77.7.{}", 10 + number);
                commands.push(words(&format!("ip address add {address}/24 dev {}", ENDS[1])));
                let endpoint = format!("ip mptcp endpoint add {address} dev {} subflow", ENDS[1]);
                commands.push(words(&endpoint));
            }
        }
        commands
    }

    fn qdisc_commands(&self, end: &str) -> Vec<Vec<String>> {
        match self.qdisc {
            Qdisc::None => Vec::new(),
            Qdisc::PfifoFast => vec![words(&format!("tc qdisc add dev {end} root pfifo_fast"))],
            Qdisc::SlowPfifoFast => vec![
                words(&format!(
                    "tc qdisc add dev {end} root handle 1: tbf rate 1gbit burst 64kb limit 3mb"
                )),
                words(&format!("tc qdisc add dev {end} parent 1:1 handle 10: pfifo_fast")),
            ],
        }
    }
}

/// A core as `rps_cpus` wants it: hexadecimal words of 32 cores, the highest first.
fn mask(core: usize) -> String {
    let first = format!("{:x}", 1_u32 << (core % 32));
    format!("{first}{}", ",00000000".repeat(core / 32))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(link: &Link, side: usize) -> Vec<String> {
        link.commands(side, 2).iter().map(|command| command.join(" ")).collect()
    }

    #[test]
    fn usual_link_has_offloads_and_short_frames() {
        let expected =
            ["ethtool -K quell-net-b tso on gso on gro on", "ip link set dev quell-net-b mtu 1500"];
        assert_eq!(lines(&USUAL, 1), expected);
    }

    #[test]
    fn only_the_server_moves_what_it_receives() {
        let link = Link { receiver: Receiver::Reader, ..USUAL };
        assert!(
            lines(&link, 0)[2]
                .ends_with("echo 2 > /sys/class/net/quell-net-a/queues/rx-0/rps_cpus")
        );
        assert_eq!(lines(&link, 1).len(), 2);
        let other = [1, 2, 8].map(|cores| Receiver::Other.core(cores));
        assert_eq!(other, [Some(0), Some(0), Some(2)]);
        assert_eq!([mask(0), mask(33)], ["1", "2,00000000"]);
    }

    #[test]
    fn subflows_have_an_address_each_beside_the_first() {
        let link = Link { subflows: 4, ..USUAL };
        let added = |side| {
            let lines = lines(&link, side);
            lines.iter().filter(|line| line.contains("endpoint add")).count()
        };
        assert_eq!([added(0), added(1)], [0, 3]);
    }
}
