//! The form of a figure: its arms, and what is reported of each.

use super::link::Link;

/// The core of the client, and that of the server, where they are pinned.
pub const CLIENT_CORE: usize = 0;
/// See [`CLIENT_CORE`].
pub const SERVER_CORE: usize = 1;
/// One that has neither.
pub const FREE_CORE: usize = 2;

/// One system in one setting.
#[derive(Clone, Copy, Debug)]
pub struct Arm {
    /// Its name in the report: unique in the figure.
    pub name: &'static str,
    /// What carries the bytes, by its name in `quell-bench-peers sockets`.
    pub system: &'static str,
    /// What is done, by its name there.
    pub case: &'static str,
    /// What is between the ends.
    pub link: Link,
    /// The only core of the server, and that of the client.
    pub cores: [Option<usize>; 2],
    /// The paper's figure for it.
    pub paper: &'static str,
}

impl Arm {
    /// An arm without pinning, and without a figure in the paper.
    pub const fn new(
        name: &'static str,
        system: &'static str,
        case: &'static str,
        link: Link,
    ) -> Arm {
        Arm { name, system, case, link, cores: [None; 2], paper: "" }
    }

    /// With its ends on these cores.
    pub const fn on(self, server: usize, client: usize) -> Arm {
        Arm { cores: [Some(server), Some(client)], ..self }
    }

    /// With the paper's figure.
    pub const fn paper(self, paper: &'static str) -> Arm {
        Arm { paper, ..self }
    }
}

/// A figure of the paper.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Its name in the report, and for `--only`.
    pub name: &'static str,
    /// What it asks.
    pub title: &'static str,
    /// What is reported of each arm: the first is compared.
    pub metrics: &'static [&'static str],
    /// The arm with which the others are compared.
    pub base: &'static str,
    /// See [`Arm`].
    pub arms: &'static [Arm],
    /// Requests are watched, so that their tail can be attributed.
    pub is_watched: bool,
}

impl Figure {
    /// The arms in the order of a round: each begins as often as the others.
    pub fn order(&self, round: usize) -> Vec<&'static Arm> {
        let mut arms: Vec<&Arm> = self.arms.iter().collect();
        let first = round % arms.len();
        arms.rotate_left(first);
        arms
    }
}

/// Rates of streams.
pub const STREAM: &[&str] = &["gbit_per_s", "gbit_per_s_per_core"];
