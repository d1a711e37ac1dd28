//! `quell check` on simulated traces of the four bugs: whether it finds each, names it, and finds none with its fix.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use quell_model::{CoreId, Event, Nanos, What};
use quell_report::{BenchReport, Row};
use quell_sim::file::{FileError, Simulation};
use quell_sim::{Fix, Fixes, Kernel, KernelModel, Scenario, run_traced};
use quell_terminal::{Progress, Stop};
use quell_trace::check::{Checker, Label, Options, Report, Verdict, WastedWait};

use super::targets::Target;
use crate::simulate::parallel;

const WITHOUT_FIX: &str = "none";
const WITH_FIX: &str = "paper";

/// Whether the verdict is violated: 1 or 0 a seed.
const VIOLATED: &str = "violated";
const FINDINGS: &str = "findings";
const LABELLED_RIGHT: &str = "labelled_right";
const NEVER_WOKEN: &str = "never_woken";
const BLAMED: &str = "blamed_on_wakeups";

/// The window of the checker. The highest level of 64 cores is balanced each 64 to 128 ms (`balance_interval`), so that
/// what lasts for 100 ms, the paper's window, may be about to be repaired.
const WINDOW: Nanos = Nanos::from_millis(250);

/// One bug, and the program that shows it.
struct Bug {
    name: &'static str,
    label: Label,
    scenario: &'static str,
    /// What of it is checked: from a keyframe at or after this time until the end.
    judged: (Nanos, Nanos),
    /// The fixes of a kernel that has this bug, or of one that has not.
    fixes: fn(Fix) -> Fixes,
}

/// No bug is fixed.
const ALL_BUGS: Fixes = KernelModel::LINUX_4_1.fixes;

const BUGS: [Bug; 5] = [
    Bug {
        name: "group-imbalance, make",
        label: Label::GroupImbalance,
        scenario: include_str!("../../../../examples/sim/wasted-cores-make.toml"),
        // Not while threads spread out at first: forks leave that to passes of the highest level.
        judged: (Nanos::from_secs(4), Nanos::from_secs(9)),
        // Pairs of nodes two hops apart would keep their load because of the other bug.
        fixes: |group_imbalance| Fixes {
            group_imbalance,
            group_construction: Fix::Paper,
            ..ALL_BUGS
        },
    },
    Bug {
        name: "group-imbalance",
        label: Label::GroupImbalance,
        scenario: include_str!("imbalance.toml"),
        judged: (Nanos::from_secs(2), Nanos::from_secs(3)),
        fixes: |group_imbalance| Fixes { group_imbalance, ..ALL_BUGS },
    },
    Bug {
        name: "group-construction",
        label: Label::Groups,
        scenario: include_str!("../../../../examples/sim/wasted-cores-lu.toml"),
        judged: (Nanos::ZERO, Nanos::from_secs(2)),
        fixes: |group_construction| Fixes { group_construction, ..ALL_BUGS },
    },
    Bug {
        name: "overload-on-wakeup",
        label: Label::WakeupOutsideLlc,
        scenario: include_str!("wakeup.toml"),
        judged: (Nanos::ZERO, Nanos::from_secs(2)),
        fixes: |overload_on_wakeup| Fixes { overload_on_wakeup, ..ALL_BUGS },
    },
    Bug {
        name: "missing-domains",
        label: Label::Domains,
        scenario: include_str!("../../../../examples/sim/wasted-cores-hotplug.toml"),
        judged: (Nanos::ZERO, Nanos::from_secs(2)),
        fixes: |missing_domains| Fixes { missing_domains, ..ALL_BUGS },
    },
];

/// What the checker said of one run.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Answer {
    is_violated: bool,
    findings: usize,
    /// Findings with the label of the bug.
    labelled_right: usize,
    /// Threads that ran and were never woken.
    never_woken: usize,
    /// Of these, those that wait because they were woken, by a finding's account.
    blamed: usize,
}

impl Bug {
    fn case(&self) -> String {
        format!("checked: {}", self.name)
    }

    /// The scenario with this bug, or with its fix.
    fn scenario(&self, fix: Fix, seed: u64) -> Result<Scenario> {
        let other = |name: &str| {
            let what = "no other file is read".to_owned();
            Err(FileError { file: name.to_owned(), line: None, what, remedy: String::new() })
        };
        let file = format!("the scenario of {}", self.name);
        let scenario = Simulation::parse(self.scenario, &file, self.name, &other)?.scenario;
        let model = KernelModel { fixes: (self.fixes)(fix), ..KernelModel::LINUX_4_1 };
        let (kernel, length) = (Kernel::Linux(model), self.judged.1);
        Ok(Scenario { kernel, length, seed, ..scenario })
    }

    /// Runs it once.
    fn check(&self, fix: Fix, seed: u64) -> Result<Answer> {
        let scenario = self.scenario(fix, seed)?;
        let mut policy = quell_policy::by_name(
            "linux-default",
            scenario.host.clone(),
            quell_policy::Config::default(),
        )?;
        let options = Options { window: WINDOW, ..Options::default() };
        let mut checker = Checker::new(&scenario.meta(policy.name()), options);
        let mut threads = Threads::default();
        let mut begins = Begin { from: self.judged.0, domains: None, has_begun: false };
        let mut sink = |event: Event| {
            threads.event(&event);
            begins.pass_on(&event, &mut checker);
        };
        let result = run_traced(&scenario, policy.as_mut(), &mut sink);
        ensure!(result.broken.is_empty(), "{}: {:?}", self.name, result.broken);
        Ok(self.answer(&checker.finish(scenario.length), &threads))
    }

    fn answer(&self, report: &Report, threads: &Threads) -> Answer {
        let found = &report.violations;
        let is_right = |found: &&WastedWait| found.label == self.label;
        let never_woken: BTreeSet<i32> = threads.ran.difference(&threads.woken).copied().collect();
        let blamed = |found: &WastedWait| threads.blamed_on_wakeups(found);
        Answer {
            is_violated: report.verdict == Verdict::Violated,
            findings: found.len(),
            labelled_right: found.iter().filter(is_right).count(),
            never_woken: never_woken.len(),
            blamed: found.iter().flat_map(blamed).collect::<BTreeSet<i32>>().len(),
        }
    }
}

/// Hides the begin of a trace from the checker, but for the domains.
struct Begin {
    from: Nanos,
    domains: Option<Event>,
    has_begun: bool,
}

impl Begin {
    fn pass_on(&mut self, event: &Event, checker: &mut Checker) {
        if self.has_begun {
            return checker.event(event);
        }
        match event.what {
            What::Domains(_) => {
                // It has no number among the events of its core, the first of which are left out.
                self.domains = Some(Event { core: CoreId(u16::MAX), ..event.clone() });
            }
            What::Keyframe(_) if event.at >= self.from => {
                self.has_begun = true;
                if let Some(domains) = self.domains.take() {
                    checker.event(&Event { at: event.at, ..domains });
                }
                checker.event(event);
            }
            _ => {}
        }
    }
}

/// Which threads ran, and which were woken after a sleep, as the events of a trace say.
#[derive(Default)]
struct Threads {
    ran: BTreeSet<i32>,
    woken: BTreeSet<i32>,
}

impl Threads {
    fn event(&mut self, event: &Event) {
        match &event.what {
            What::Switch { next, .. } if next.thread > 0 => {
                self.ran.insert(next.thread);
            }
            What::Woken { thread, is_new: false, .. } => {
                self.woken.insert(thread.thread);
            }
            _ => {}
        }
    }

    /// Threads that were never woken, of which a finding says that a wake-up brought them there; all that waited, where its
    /// label says so and no thread of it was ever woken.
    fn blamed_on_wakeups(&self, found: &WastedWait) -> Vec<i32> {
        let never_woken = |thread: &i32| !self.woken.contains(thread);
        let waiters = || found.waiters.iter();
        let is_labelled = matches!(found.label, Label::WakeupOutsideLlc | Label::WakeupInsideLlc);
        let all: Vec<i32> = waiters().map(|waiter| waiter.thread).collect();
        if is_labelled && all.iter().all(never_woken) {
            return all;
        }
        let woken = waiters().filter(|waiter| waiter.came.is_wakeup());
        woken.map(|waiter| waiter.thread).filter(never_woken).collect()
    }
}

/// Whether a bug is chosen by the begin of its case.
pub(super) fn is_chosen(only: &str) -> bool {
    BUGS.iter().any(|bug| bug.case().starts_with(only))
}

/// Checks traces of each bug and of its fix with so many seeds, and adds the rows.
///
/// # Errors
/// When a scenario does not build, the simulator finds a fault of its own, or a stop was asked for.
pub(super) fn measure(
    report: &mut BenchReport,
    (seeds, threads, only): (u64, usize, &str),
    progress: &mut dyn Progress,
    stop: &Stop,
) -> Result<()> {
    let seeds: Vec<u64> = (1..=seeds).collect();
    for (at, bug) in BUGS.iter().enumerate().filter(|(_, bug)| bug.case().starts_with(only)) {
        for (system, fix) in [(WITHOUT_FIX, Fix::None), (WITH_FIX, Fix::Paper)] {
            progress.step(at, BUGS.len(), &format!("{}: {system}", bug.case()));
            let answers = parallel::for_each(&seeds, threads, |seed| {
                stop.check()?;
                bug.check(fix, *seed)
            })?;
            push_rows(report, &bug.case(), system, &answers);
        }
    }
    Ok(())
}

fn push_rows(report: &mut BenchReport, case: &str, system: &str, answers: &[Answer]) {
    let mut push = |metric: &str, value: &dyn Fn(&Answer) -> usize| {
        report.push(case, system, metric, answers.iter().map(|it| value(it) as f64).collect());
    };
    push(VIOLATED, &|answer| usize::from(answer.is_violated));
    push(FINDINGS, &|answer| answer.findings);
    push(LABELLED_RIGHT, &|answer| answer.labelled_right);
    push(NEVER_WOKEN, &|answer| answer.never_woken);
    push(BLAMED, &|answer| answer.blamed);
}

/// What the checker is to say of the bugs and of their fixes.
pub(super) const TARGETS: [Target; 4] = [
    Target {
        name: "checked traces of a bug that are violated (least share of five programs)",
        paper: "all",
        accepted: (1.0, 1.0),
        value: |report| least(|bug| share(report, bug, WITHOUT_FIX, VIOLATED)),
    },
    Target {
        name: "findings labelled with their bug (least share of five programs)",
        paper: "all",
        accepted: (0.95, 1.0),
        value: |report| {
            least(|bug| {
                let sum = |metric| sum(report, bug, WITHOUT_FIX, metric);
                Some(sum(LABELLED_RIGHT)? / sum(FINDINGS).filter(|sum| *sum > 0.0)?)
            })
        },
    },
    Target {
        name: "threads never woken that findings blame on wake-ups",
        paper: "none",
        accepted: (0.0, 0.0),
        value: |report| {
            let sums = BUGS.iter().flat_map(|bug| {
                [WITHOUT_FIX, WITH_FIX].map(|system| sum(report, bug, system, BLAMED))
            });
            sums.sum()
        },
    },
    Target {
        name: "checked traces of a fix that are violated (greatest share of five programs)",
        paper: "none",
        accepted: (0.0, 0.0),
        value: |report| {
            let clean = |bug: &Bug| Some(1.0 - share(report, bug, WITH_FIX, VIOLATED)?);
            Some(1.0 - least(clean)?)
        },
    },
];

/// The least figure of all bugs; `None` unless all have one.
fn least(figure: impl Fn(&Bug) -> Option<f64>) -> Option<f64> {
    let figures: Option<Vec<f64>> = BUGS.iter().map(figure).collect();
    figures?.into_iter().min_by(f64::total_cmp)
}

fn values<'r>(report: &'r BenchReport, bug: &Bug, system: &str, metric: &str) -> Option<&'r [f64]> {
    let case = bug.case();
    let is_it = |row: &&Row| row.case == case && row.system == system && row.metric == metric;
    report.rows.iter().find(is_it).map(|row| row.raw.as_slice())
}

fn sum(report: &BenchReport, bug: &Bug, system: &str, metric: &str) -> Option<f64> {
    Some(values(report, bug, system, metric)?.iter().sum())
}

fn share(report: &BenchReport, bug: &Bug, system: &str, metric: &str) -> Option<f64> {
    let count = values(report, bug, system, metric)?.len().max(1);
    Some(sum(report, bug, system, metric)? / count as f64)
}

#[cfg(test)]
mod tests {
    use quell_trace::perfetto::{Reader, Writer};
    use quell_trace::stream::{Sink as _, Source as _};

    use super::*;

    #[test]
    fn each_bug_is_found_and_named() {
        for bug in &BUGS {
            let answer = bug.check(Fix::None, 1).unwrap();
            assert!(answer.is_violated && answer.findings > 0, "{}: {answer:?}", bug.name);
            let is_right = answer.labelled_right as f64 >= 0.95 * answer.findings as f64;
            assert!(is_right && answer.blamed == 0, "{}: {answer:?}", bug.name);
            // Hogs wait in findings of the others alone.
            let has_hogs = !matches!(bug.name, "missing-domains" | "group-imbalance, make");
            assert!(answer.never_woken > 0 || !has_hogs, "{}: {answer:?}", bug.name);
        }
    }

    #[test]
    fn each_fix_is_clean() {
        for bug in &BUGS {
            let answer = bug.check(Fix::Paper, 1).unwrap();
            assert_eq!((answer.is_violated, answer.findings), (false, 0), "{}", bug.name);
        }
    }

    /// As `quell check FILE` has it: passes and domains are in the file.
    #[test]
    fn a_trace_file_gives_the_same_report() {
        for bug in [&BUGS[2], &BUGS[4]] {
            let mut scenario = bug.scenario(Fix::None, 1).unwrap();
            scenario.length = Nanos::from_millis(500);
            let meta = scenario.meta("linux-default");
            let mut policy =
                quell_policy::by_name("linux-default", scenario.host.clone(), Default::default())
                    .unwrap();
            let mut checker = Checker::new(&meta, Options::default());
            let mut bytes = Vec::new();
            let mut writer = Writer::new(&mut bytes);
            writer.meta(&meta).unwrap();
            let mut sink = |event: Event| {
                checker.event(&event);
                writer.event(&event).unwrap();
            };
            run_traced(&scenario, policy.as_mut(), &mut sink);
            writer.finish().unwrap();
            drop(writer);
            let reader = Reader::new(bytes.as_slice()).unwrap();
            let mut again = Checker::new(reader.meta(), Options::default());
            reader.for_each(|event| again.event(&event.unwrap()));
            let (whole, read) = (checker.finish(scenario.length), again.finish(scenario.length));
            assert!(whole.violations.iter().all(|found| found.label == bug.label), "{whole}");
            assert_eq!(whole.violations, read.violations, "{}", bug.name);
        }
    }

    #[test]
    fn targets_say_what_is_missed() {
        let mut report = BenchReport::new("test", "test");
        let right =
            Answer { is_violated: true, findings: 4, labelled_right: 4, never_woken: 1, blamed: 0 };
        let clean = Answer { is_violated: false, findings: 0, labelled_right: 0, ..right };
        for bug in &BUGS {
            let wrong = Answer { labelled_right: 2, blamed: 1, ..right };
            push_rows(&mut report, &bug.case(), WITHOUT_FIX, &[right, wrong]);
            push_rows(&mut report, &bug.case(), WITH_FIX, &[clean, clean, clean, right]);
        }
        let figures: Vec<f64> = TARGETS.iter().filter_map(|it| (it.value)(&report)).collect();
        assert_eq!(figures, [1.0, 0.75, 5.0, 0.25]);
    }
}
