//! Reads scheduling domains that somebody wrote down: Quell's own JSON, or what a kernel says at boot.
//!
//! With `sched_verbose` (before 5.11 `sched_debug`) on its command line a kernel tells the domains of each core
//! whenever it attaches them (`sched_domain_debug()` in kernel/sched/topology.c):
//!
//! ```text
//! CPU0 attaching sched-domain(s):
//!  domain-0: span=0-1 level=MC
//!   groups: 0:{ span=0 }, 1:{ span=1 }
//!  domain-1: span=0-5 level=NUMA
//!   groups: 0:{ span=0-1 mask=0-1 cap=2048 }, 2:{ span=2-5 }
//! root domain span: 0-5
//! ```
//!
//! and before 4.13 `domain 0: span 0-1 level MC` and `groups: 0 1 (cpu_capacity = 1000)`. A log may have it several
//! times: what was attached last counts. All other lines are passed over.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Read};

use quell_model::{
    CORES_MAX, CoreDomains, CoreId, CoreSet, Domain, DomainGroup, DomainTrees, DomainTreesError,
};

/// A longer dump is refused. 1024 cores need some tens of megabytes.
const BYTES_MAX: u64 = 256 << 20;
/// A longer line is refused; the kernel breaks its own at 1 kB.
const LINE_MAX: u64 = 1 << 20;
/// More levels than this are refused; the kernel has four and one for each distance between nodes.
const LEVELS_MAX: usize = 64;

/// Why a dump could not be read.
#[derive(Debug, thiserror::Error)]
pub enum DumpError {
    /// It could not be read at all.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It begins as JSON and is none, or another one.
    #[error("not a dump of `quell check --lint --save`: {0}")]
    Json(#[from] serde_json::Error),
    /// A line of a kernel log does not read as a kernel writes it.
    #[error("line {line}: {what}")]
    Line {
        /// Which, from 1.
        line: usize,
        /// What is wrong.
        what: String,
    },
    /// There is no domain in it.
    #[error(
        "no scheduling domains in it; a dump is what `quell check --lint --save FILE` wrote, the kernel log of a host \
         booted with `sched_verbose loglevel=8`, or a trace of `quell sim`"
    )]
    Empty,
    /// The cores in it make no host.
    #[error(transparent)]
    Trees(#[from] DomainTreesError),
    /// It is too long.
    #[error("longer than {} MiB", BYTES_MAX >> 20)]
    TooLong,
}

/// Reads a dump.
///
/// # Errors
/// When it is neither of the two, or is longer than any dump is.
pub fn read(from: impl Read) -> Result<DomainTrees, DumpError> {
    let mut from = BufReader::new(from.take(BYTES_MAX));
    let trees = match from.fill_buf()?.first() {
        Some(b'{') => serde_json::from_reader(&mut from).map_err(DumpError::Json),
        _ => parse_log(&mut from),
    };
    match from.into_inner().limit() {
        0 => Err(DumpError::TooLong),
        _ => trees,
    }
}

fn parse_log(from: &mut impl BufRead) -> Result<DomainTrees, DumpError> {
    let mut log = Log::default();
    let mut bytes = Vec::new();
    for line in 1.. {
        bytes.clear();
        if from.by_ref().take(LINE_MAX).read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        let text = String::from_utf8_lossy(&bytes);
        log.line(content(&text)).map_err(|what| DumpError::Line { line, what })?;
    }
    log.end()
}

/// A line without what consoles, `dmesg` and journals put before it.
fn content(line: &str) -> &str {
    let line = line.trim_end();
    let mut rest = line.rsplit_once(" kernel: ").map_or(line, |(_, message)| message);
    if let Some((_, message)) = rest.strip_prefix('<').and_then(|rest| rest.split_once('>')) {
        rest = message;
    }
    // The time; then, with CONFIG_PRINTK_CALLER, the thread.
    while let Some((_, message)) = rest.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        rest = message.strip_prefix(' ').unwrap_or(message);
    }
    rest.trim_start()
}

/// What a log said so far.
#[derive(Default)]
struct Log {
    cores: BTreeMap<u16, CoreDomains>,
    /// The core whose domains are being told.
    current: Option<u16>,
    /// Groups that go on in the next line, and how many braces are open in them.
    unfinished: String,
    open: usize,
}

impl Log {
    fn line(&mut self, text: &str) -> Result<(), String> {
        if !self.unfinished.is_empty() && !text.starts_with("ERROR:") {
            return self.groups(text);
        }
        if let Some(rest) = text.strip_prefix("CPU") {
            return self.attach(rest);
        }
        if let Some(cores) = text.strip_prefix("root domain span: ") {
            return self.root(cores);
        }
        match text.strip_prefix("domain-").or_else(|| text.strip_prefix("domain ")) {
            Some(rest) if self.current.is_some() => self.domain(rest),
            _ => match text.strip_prefix("groups:") {
                Some(rest) if self.current.is_some() => self.groups(rest),
                _ => Ok(()),
            },
        }
    }

    fn attach(&mut self, rest: &str) -> Result<(), String> {
        let Some((number, does)) = rest.split_once(' ') else { return Ok(()) };
        if !does.starts_with("attaching ") || !does.contains("sched-domain") {
            return Ok(());
        }
        let number: u16 = number.parse().map_err(|_| format!("`CPU{number}` is no core"))?;
        if usize::from(number) >= CORES_MAX {
            return Err(DomainTreesError::TooHigh(CoreId(number)).to_string());
        }
        let core = CoreDomains { core: CoreId(number), root: None, domains: Vec::new() };
        self.cores.insert(number, core);
        self.current = (!does.contains("NULL")).then_some(number);
        Ok(())
    }

    fn root(&mut self, cores: &str) -> Result<(), String> {
        // Some kernels add the largest capacity in parentheses.
        let cores = list(cores.split(" (").next().unwrap_or(cores))?;
        for core in cores.iter() {
            if let Some(core) = self.cores.get_mut(&core.0) {
                core.root = Some(cores);
            }
        }
        self.current = None;
        Ok(())
    }

    fn told(&mut self) -> Option<&mut CoreDomains> {
        self.current.and_then(|core| self.cores.get_mut(&core))
    }

    fn domain(&mut self, rest: &str) -> Result<(), String> {
        let (_, rest) = rest.split_once(": ").ok_or("a domain without a span")?;
        // `span=0-1 level=MC`, or `span 0-1 level MC`.
        let mut words = rest.split([' ', '=']).filter(|word| !word.is_empty());
        let (Some("span"), Some(span), Some("level"), name) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            return Err(format!("`{rest}` is not `span=CORES level=NAME`"));
        };
        let (span, name) = (list(span)?, name.unwrap_or_default().to_owned());
        let Some(core) = self.told() else { return Ok(()) };
        if core.domains.len() >= LEVELS_MAX {
            return Err(format!("more than {LEVELS_MAX} levels"));
        }
        core.domains.push(Domain { name, span, groups: Vec::new(), flags: None, balance: None });
        Ok(())
    }

    fn groups(&mut self, text: &str) -> Result<(), String> {
        self.unfinished.push_str(text);
        self.unfinished.push(' ');
        if self.unfinished.len() as u64 > LINE_MAX {
            return Err("groups without an end".to_owned());
        }
        self.open =
            (self.open + text.matches('{').count()).saturating_sub(text.matches('}').count());
        if self.open > 0 || text.ends_with(',') {
            return Ok(());
        }
        let text = std::mem::take(&mut self.unfinished);
        let groups = match text.contains('{') {
            true => braced(&text)?,
            false => plain(&text)?,
        };
        let domain = self.told().and_then(|core| core.domains.last_mut());
        domain.ok_or("groups without a domain")?.groups = groups;
        Ok(())
    }

    fn end(self) -> Result<DomainTrees, DumpError> {
        if self.cores.is_empty() {
            return Err(DumpError::Empty);
        }
        Ok(DomainTrees::new(self.cores.into_values().collect(), CoreSet::EMPTY)?)
    }
}

/// ` 0:{ span=0-1 mask=0 cap=2048 }, 2:{ span=2-3 }`; without a mask all cores of the group balance for it.
fn braced(text: &str) -> Result<Vec<DomainGroup>, String> {
    let groups = text.split('{').skip(1).map(|group| {
        let words = group.split('}').next().unwrap_or(group).split_whitespace();
        let (mut span, mut mask) = (None, None);
        for word in words {
            match word.split_once('=') {
                Some(("span", cores)) => span = Some(list(cores)?),
                Some(("mask", cores)) => mask = Some(list(cores)?),
                _ => (),
            }
        }
        let cores = span.ok_or("a group without a span")?;
        Ok(DomainGroup { cores, balance: mask.unwrap_or(cores) })
    });
    groups.collect()
}

/// ` 0 2-3 (cpu_capacity = 2045) 1`.
fn plain(text: &str) -> Result<Vec<DomainGroup>, String> {
    let mut inside = false;
    let mut groups = Vec::new();
    for word in text.split_whitespace() {
        inside |= word.starts_with('(');
        if !inside {
            let cores = list(word)?;
            groups.push(DomainGroup { cores, balance: cores });
        }
        inside &= !word.ends_with(')');
    }
    Ok(groups)
}

fn list(cores: &str) -> Result<CoreSet, String> {
    cores.parse().map_err(|error: quell_model::CoreListError| error.to_string())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::lint::{Verdict, compare, lint};

    fn of(text: &str) -> Result<DomainTrees, DumpError> {
        read(text.as_bytes())
    }

    const TWO_CORES: &str = "\
[    0.41] smp: Brought up 1 node, 2 CPUs
[    0.42][    T1] CPU0 attaching sched-domain(s):
[    0.42][    T1]  domain-0: span=0-1 level=MC
[    0.42][    T1]   groups: 0:{ span=0 cap=1019 }, 1:{ span=1 }
[    0.42][    T1] CPU1 attaching sched-domain(s):
[    0.42][    T1]  domain-0: span=0-1 level=MC
[    0.42][    T1]   groups: 1:{ span=1 }, 0:{ span=0 cap=1019 }
[    0.42][    T1] root domain span: 0-1
[    0.50] CPU features: something else
";

    #[test]
    fn a_boot_log_reads_as_the_domains_of_its_cores() {
        let trees = of(TWO_CORES).unwrap();
        assert_eq!(trees.all().to_string(), "0-1");
        let second = &trees.cores()[1];
        assert_eq!(second.root, Some("0-1".parse().unwrap()));
        assert_eq!(second.domains[0].name, "MC");
        assert_eq!(second.domains[0].groups[0].cores, CoreSet::of(CoreId(1)));
        assert_eq!(lint(&trees).verdict(), Verdict::Clean);
    }

    #[test]
    fn last_attached_counts_and_detached_core_is_not_judged() {
        let log = format!(
            "{TWO_CORES}CPU0 attaching NULL sched-domain.\nCPU1 attaching NULL sched-domain.\n"
        );
        let trees = of(&log).unwrap();
        assert!(trees.cores().iter().all(|core| core.domains.is_empty() && core.root.is_none()));
        assert_eq!(lint(&trees).verdict(), Verdict::CouldNotTell);
        let again = of(&format!("{log}{TWO_CORES}")).unwrap();
        assert_eq!(compare(&of(TWO_CORES).unwrap(), &again).verdict(), Verdict::Clean);
    }

    #[test]
    fn the_log_of_an_old_kernel_reads_too() {
        let trees = of("<7>[    0.1] CPU0 attaching sched-domain:\n\
             <7>[    0.1]  domain 0: span 0-3 level MC\n\
             <7>[    0.1]   groups: 0 1-2 (cpu_capacity = 2045) 3\n")
        .unwrap();
        let groups = &trees.cores()[0].domains[0].groups;
        let groups: Vec<String> = groups.iter().map(|group| group.cores.to_string()).collect();
        assert_eq!(groups, ["0", "1-2", "3"]);
    }

    #[test]
    fn groups_may_go_on_in_the_next_line() {
        let trees = of("Nov 21 host kernel: CPU0 attaching sched-domain(s):\n\
             Nov 21 host kernel:  domain-0: span=0-2 level=NUMA\n\
             Nov 21 host kernel:   groups: 0:{ span=0 mask=0 cap=2 }, 1:{\n\
             Nov 21 host kernel: ERROR: domain->groups does not match domain->child\n\
             Nov 21 host kernel:  span=1-2 mask=2 },\n\
             Nov 21 host kernel:  2:{ span=2 }\n")
        .unwrap();
        let groups = &trees.cores()[0].domains[0].groups;
        assert_eq!(groups.len(), 3);
        assert_eq!(
            (groups[1].cores.to_string(), groups[1].balance.to_string()),
            ("1-2".into(), "2".into())
        );
    }

    #[test]
    fn what_is_wrong_is_said_with_its_line() {
        let error = |text: &str| of(text).unwrap_err().to_string();
        assert!(error("nothing of the kind\n").contains("sched_verbose"));
        assert!(error("").contains("sched_verbose"));
        assert!(error("{\"cores\": 3}").starts_with("not a dump"));
        let log = "CPU0 attaching sched-domain(s):\n domain-0: span=0-x level=MC\n";
        assert!(error(log).starts_with("line 2: `0-x`"), "{}", error(log));
        let log = "CPU0 attaching sched-domain(s):\n groups: 0:{ span=0 }\n";
        assert_eq!(error(log), "line 2: groups without a domain");
        assert!(error("CPU5000 attaching sched-domain(s):\n").starts_with("line 1: core 5000"));
        assert!(
            error("{\"cores\":[{\"core\":2000,\"root\":null,\"domains\":[]}]}").contains("2000")
        );
    }

    #[test]
    fn groups_without_an_end_are_refused() {
        let open = "CPU0 attaching sched-domain(s):\n domain-0: span=0 level=MC\n groups: 0:{\n";
        let log = open.to_owned() + &"{ span=0\n".repeat(1 << 17);
        assert!(of(&log).unwrap_err().to_string().ends_with("groups without an end"));
    }

    proptest! {
        #[test]
        fn reading_never_panics(
            lines in proptest::collection::vec(
                prop_oneof![
                    Just("CPU0 attaching sched-domain(s):".to_owned()),
                    Just(" domain-0: span=0-1 level=MC".to_owned()),
                    Just("  groups: 0:{ span=0 }, 1:{".to_owned()),
                    Just("root domain span: 0-1".to_owned()),
                    "(CPU[0-9]{1,5} attaching |domain-|domain |groups:|root domain span: |\\[ 0\\]|<7>)[ -~]{0,40}",
                    ".{0,40}",
                ],
                0..12,
            )
        ) {
            if let Ok(trees) = of(&lines.join("\n")) {
                let _ = lint(&trees).to_string();
            }
        }
    }
}
