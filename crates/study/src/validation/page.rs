//! `docs/results/validation.md`.

use super::{BENCH, FIGURES, Figure, TARGETS, Use, Verdict, misses, parameters, verdicts};
use quell_report::BenchReport;
use quell_report::table::{Table, number};

const HEAD: &str = "# Caladan's evaluation, simulated

<!-- Generated from bench/results/validation.json by `quell bench report`; do not edit. -->

What Caladan's authors published (OSDI'20, and the scripts of its artefact), beside what the simulator makes of the same experiments with \
the policies of `quell run`. The [simulator](../lab/sim.md) is a model: where both agree, it explains the published figure; where they do not, the table \
says so, and why as far as it is known.

- The targets, their bounds and their use were written down before any figure was run: *open* ones may be used to choose parameters, those \
*held out* never. *Added* ones were written after the first run, where that showed that a statement needs another experiment. No parameter \
was changed after the first run; the [last table](#parameters) says which were derived from which published figure.
- *Here* is the median over seeds, with the least and the greatest if there are several. Tails are 99.9th percentiles from arrival to \
answer. There is no network in the model: published latencies contain one. *As a client sees it*: with the time of a network and a client on top, \
whose [parameters](#parameters) come from another measurement of the same stack.
- The scenarios are in `examples/sim`; `quell sim FILE` runs each by itself.
";

/// The page as Markdown.
pub fn page(report: &BenchReport) -> String {
    let mut out = HEAD.to_owned();
    out += &format!(
        "\nMake it again: `{}`, then `quell bench report` (run at commit `{}`). One figure: `quell bench {BENCH} --figure {}`.\n\n{}",
        report.command,
        report.commit,
        FIGURES[1].name,
        summary(&verdicts(report)),
    );
    for figure in &FIGURES {
        out += &chapter(report, figure);
    }
    out += "\n## Parameters\n\nPublished, derived from published figures, estimated from other measurements, or assumed.\n\n";
    out + &parameters::table().markdown()
}

fn summary(verdicts: &[Verdict]) -> String {
    let count = |mark: Use| {
        let of: Vec<&Verdict> = verdicts.iter().filter(|it| it.target.mark == mark).collect();
        (of.iter().filter(|verdict| verdict.within).count(), of.len())
    };
    let [held, open, added] = [Use::HeldOut, Use::Fitted, Use::Added].map(count);
    let mut text = format!(
        "**{} of {} targets are met: {} of {} held out, {} of {} open to fitting, {} of {} added later.**",
        held.0 + open.0 + added.0,
        held.1 + open.1 + added.1,
        held.0,
        held.1,
        open.0,
        open.1,
        added.0,
        added.1,
    );
    let missed: Vec<String> = verdicts
        .iter()
        .filter(|verdict| !verdict.within)
        .map(|verdict| {
            format!(
                "`{}` in [{2}](#{1})",
                verdict.target.name, verdict.target.figure, verdict.target.figure
            )
        })
        .collect();
    if !missed.is_empty() {
        text += &format!(" Missed: {}.", missed.join(", "));
    }
    text + "\n"
}

fn chapter(report: &BenchReport, figure: &Figure) -> String {
    let mut out = format!("\n## {}\n\n{}: {}\n", figure.name, figure.title, figure.about);
    let plot = format!("{BENCH}-{}", figure.name);
    if report.plots.iter().any(|it| it.name == plot) {
        out += &format!("\n![{}](../plots/{plot}.svg)\n", figure.title);
    }
    out += &format!("\n{}", verdict_table(report, figure.name).markdown());
    for verdict in verdicts(report).iter().filter(|it| it.target.figure == figure.name) {
        if let Some(why) = misses::why(figure.name, verdict.target.name).filter(|_| !verdict.within)
        {
            out += &format!("\nWhy `{}` is missed: {why}\n", verdict.target.name);
        }
    }
    out
}

/// A figure's targets: paper, here, verdict.
pub(super) fn verdict_table(report: &BenchReport, figure: &str) -> Table {
    let mut table = Table::new(["target", "what", "paper", "bounds", "here", "verdict", "use"]);
    let verdicts = verdicts(report);
    for target in TARGETS.iter().filter(|target| target.figure == figure) {
        let Some(verdict) = verdicts.iter().find(|it| it.target == target) else { continue };
        table.row([
            format!("`{}`", target.name),
            target.what.to_owned(),
            target.paper.to_owned(),
            bounds(target.within),
            here(verdict.here),
            if verdict.within { "within" } else { "**miss**" }.to_owned(),
            match target.mark {
                Use::Fitted => "open",
                Use::HeldOut => "held out",
                Use::Added => "added",
            }
            .to_owned(),
        ]);
    }
    table
}

fn bounds((low, high): (f64, f64)) -> String {
    match (low, high) {
        (low, high) if high == f64::INFINITY => format!("≥ {}", number(low)),
        (low, high) => format!("{} to {}", number(low), number(high)),
    }
}

fn here((median, least, greatest): (f64, f64, f64)) -> String {
    match (number(median), number(least), number(greatest)) {
        (median, least, greatest) if least == greatest => median,
        (median, least, greatest) => format!("{median} ({least} to {greatest})"),
    }
}
