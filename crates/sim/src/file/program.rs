//! Programs: `[[task.thread]]` with steps as text, `[[task.sync]]`, and those of the papers by name.

use quell_model::{CoreId, Nanos};
use serde::Deserialize;
use toml::Spanned;

use super::FileError;
use super::build::THREADS_MAX;
use super::raw::Place;
use crate::workload::{
    Program, ProgramStep, Service, Sync, SyncKind, ThreadKind, Waiting, papers, tpch,
};

/// Threads that do the same.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawThreads {
    name: Spanned<String>,
    /// Started at once; others are forked.
    count: Option<u32>,
    start_core: Option<u16>,
    session: Option<u32>,
    steps: Vec<Spanned<String>>,
}

/// Something that threads wait for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawSync {
    name: String,
    tokens: Option<u32>,
    parties: Option<u32>,
    waits: Option<Waiting>,
}

/// Longest programs.
const STEPS_MAX: usize = 10_000;

/// The program of a task of `model = "program"`.
pub(super) fn program(
    threads: &[Spanned<RawThreads>],
    syncs: &[Spanned<RawSync>],
    place: &Place,
) -> Result<Program, FileError> {
    let mut known = Vec::new();
    for typed in syncs {
        let raw = typed.get_ref();
        let kind = match (raw.tokens, raw.parties) {
            (Some(initial), None) => SyncKind::Tokens { initial },
            (None, Some(parties)) if parties > 0 => SyncKind::Barrier { parties },
            _ => {
                let what = format!("sync `{}` is neither tokens nor a barrier", raw.name);
                return Err(place.error(
                    typed,
                    what,
                    "give it `tokens`, or `parties` of 1 and more",
                ));
            }
        };
        known.push((raw.name.as_str(), Sync { kind, waits: raw.waits.unwrap_or(Waiting::Sleep) }));
    }
    let names: Vec<&str> = threads.iter().map(|of| of.get_ref().name.get_ref().as_str()).collect();
    let mut kinds = Vec::new();
    for typed in threads {
        let raw = typed.get_ref();
        let words = Words { syncs: &known, kinds: &names, place };
        kinds.push(ThreadKind {
            name: raw.name.get_ref().clone(),
            count: raw.count.unwrap_or(0),
            start_core: raw.start_core.map(CoreId),
            session: raw.session,
            steps: words.steps(&raw.steps)?,
        });
    }
    let sync_names = known.iter().map(|(name, _)| (*name).to_owned()).collect();
    let syncs = known.into_iter().map(|(_, sync)| sync).collect();
    let program = Program { kinds, syncs, sync_names };
    match (threads.first(), program.check()) {
        (Some(typed), Err(what)) => Err(place.error(typed, what, "")),
        (Some(typed), Ok(())) if program.threads() == 0 => {
            let what = "no thread is there from the start".to_owned();
            Err(place.error(typed, what, "give one kind a `count`"))
        }
        (Some(typed), Ok(())) if u64::from(program.threads()) > THREADS_MAX => {
            let what = format!("{} threads are there from the start", program.threads());
            Err(place.error(typed, what, &format!("give at most {THREADS_MAX}")))
        }
        _ => Ok(program),
    }
}

/// A program of the papers by the name of its model; how many threads it needs room for.
pub(super) fn of_paper(
    model: &str,
    threads: u32,
    core: Option<CoreId>,
    permille: u32,
) -> Option<(Program, u32)> {
    if let Some(nas) = model.strip_prefix("nas-").and_then(papers::nas_of) {
        return Some((nas.program(threads, core, permille), threads));
    }
    if let Some(query) = tpch::query_of(model) {
        // One thread more starts the others.
        return Some((query.program(threads, core, permille), threads + 1));
    }
    // One thread forks the jobs; those that have posted have not ended yet.
    (model == "make")
        .then(|| (papers::make(threads, (permille / 100).max(1), core), 2 * threads + 1))
}

/// The names that the steps of a task may use.
struct Words<'a> {
    syncs: &'a [(&'a str, Sync)],
    kinds: &'a [&'a str],
    place: &'a Place<'a>,
}

impl Words<'_> {
    fn steps(&self, typed: &[Spanned<String>]) -> Result<Vec<ProgramStep>, FileError> {
        let mut steps = Vec::new();
        // Open repetitions: where they begin, and how often they are done.
        let mut open: Vec<(u32, u32)> = Vec::new();
        for line in typed {
            let words: Vec<&str> = line.get_ref().split_whitespace().collect();
            let at = steps.len() as u32;
            match words.as_slice() {
                ["repeat", times] => {
                    let times = times.parse().ok().filter(|times| *times > 0);
                    let times =
                        times.ok_or_else(|| self.unknown(line, "a number follows `repeat`"))?;
                    open.push((at, times));
                }
                ["end"] => match open.pop() {
                    Some((from, _)) if from == at => {
                        return Err(
                            self.unknown(line, "there is a step between `repeat` and `end`")
                        );
                    }
                    Some((from, times)) => steps.push(ProgramStep::Repeat { from, times }),
                    None => return Err(self.unknown(line, "`repeat N` comes before `end`")),
                },
                words => steps.push(self.step(line, words)?),
            }
            if steps.len() > STEPS_MAX {
                let remedy = format!("write at most {STEPS_MAX}, and `repeat` them");
                return Err(self.place.error(line, "too many steps".to_owned(), &remedy));
            }
        }
        match (open.pop(), typed.last()) {
            (Some(_), Some(last)) => Err(self.unknown(last, "each `repeat` has its `end`")),
            _ => Ok(steps),
        }
    }

    fn step(&self, line: &Spanned<String>, words: &[&str]) -> Result<ProgramStep, FileError> {
        Ok(match *words {
            ["compute", time] => ProgramStep::Compute(Service::Fixed(self.time(line, time)?)),
            ["compute", time, spread] => ProgramStep::Compute(self.spread(line, time, spread)?),
            ["sleep", time] => ProgramStep::Sleep(Service::Fixed(self.time(line, time)?)),
            ["sleep", time, spread] => ProgramStep::Sleep(self.spread(line, time, spread)?),
            ["lock" | "take" | "wait", sync] => ProgramStep::Take(self.sync(line, sync)?),
            ["unlock" | "post", sync] => ProgramStep::Post(self.sync(line, sync)?),
            ["fork", kind] => {
                let found = self.kinds.iter().position(|known| *known == kind);
                let kind = found.ok_or_else(|| self.unknown(line, "name a `[[task.thread]]`"))?;
                ProgramStep::Fork(kind as u32)
            }
            ["exec"] => ProgramStep::Exec,
            ["yield"] => ProgramStep::Yield,
            _ => {
                let remedy = "write compute, sleep, take, post, lock, unlock, wait, fork, exec, yield, repeat or end";
                return Err(self.unknown(line, remedy));
            }
        })
    }

    fn unknown(&self, line: &Spanned<String>, remedy: &str) -> FileError {
        self.place.error(line, format!("step `{}`", line.get_ref()), remedy)
    }

    fn sync(&self, line: &Spanned<String>, name: &str) -> Result<u32, FileError> {
        let found = self.syncs.iter().position(|(known, _)| *known == name);
        found.map(|at| at as u32).ok_or_else(|| self.unknown(line, "name a `[[task.sync]]`"))
    }

    fn time(&self, line: &Spanned<String>, text: &str) -> Result<Nanos, FileError> {
        let time: Result<Nanos, _> = text.parse();
        let time =
            time.map_err(|err: quell_model::TimeError| self.unknown(line, &err.to_string()))?;
        match time > Nanos::ZERO && time <= Nanos::from_secs(3_600) {
            true => Ok(time),
            false => Err(self.unknown(line, "a time lies between 1 ns and an hour")),
        }
    }

    /// `~20%` about a mean.
    fn spread(
        &self,
        line: &Spanned<String>,
        time: &str,
        spread: &str,
    ) -> Result<Service, FileError> {
        let mean = self.time(line, time)?;
        let percent = spread.strip_prefix('~').and_then(|rest| rest.strip_suffix('%'));
        let percent: Option<u16> = percent.and_then(|percent| percent.parse().ok());
        match percent.filter(|percent| (1..=200).contains(percent)) {
            Some(percent) => Ok(Service::Lognormal { mean, sigma: percent * 10 }),
            None => Err(self.unknown(line, "write a spread like `~20%`, up to 200 %")),
        }
    }
}
