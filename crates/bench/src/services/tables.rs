//! The report of `quell bench services` as tables. Pure.

use quell_report::table::{Section, Table, number};
use quell_report::{BenchReport, LOAD_CASE, stats};

use super::plan::BATCH_PART;
use super::system::System;

/// The name of these reports.
pub const BENCH: &str = "services";
/// Above this share of the client's time lost to other programs its figures are not worth a verdict.
const CLIENT_LOST_MAX: f64 = 0.05;
/// Above this share of time in which a core was stopped there is no verdict either.
const STOPPED_MAX: f64 = 0.05;

/// A column of the table of a cell.
#[derive(Clone, Copy)]
enum Column {
    /// The median of a metric.
    Value(&'static str),
    /// The median of a share, in percent.
    Share(&'static str),
    /// The ratio of a metric to that of the service alone, with its interval.
    Ratio(&'static str),
}

/// Columns of the table of a cell with their headings: raw beside filtered.
const COLUMNS: [(&str, Column); 18] = [
    ("p50 µs", Column::Value("p50_us_raw")),
    ("tail µs", Column::Value("tail_us")),
    ("raw", Column::Value("tail_us_raw")),
    ("tail ÷ alone", Column::Ratio("tail_us")),
    ("raw ÷ alone", Column::Ratio("tail_us_raw")),
    ("second's tail", Column::Value("second_tail_us")),
    ("÷ alone", Column::Ratio("second_tail_us")),
    ("its raw ÷ alone", Column::Ratio("second_tail_us_raw")),
    ("wakeup p99.9 µs", Column::Value("wakeup_p999_us")),
    ("batch of alone", Column::Share("batch_of_alone")),
    ("service CPU", Column::Share("service_cpu")),
    ("served", Column::Share("served_share")),
    ("left out", Column::Share("excluded_share")),
    ("by client", Column::Share("client_excluded_share")),
    ("rests", Column::Share("rest_share")),
    ("stopped", Column::Share("stopped_share")),
    ("client lost", Column::Share("client_lost_share")),
    ("sent late", Column::Share("late_share")),
];

/// A table for each cell.
pub fn sections(report: &BenchReport) -> Vec<Section> {
    let cells = cells(report).into_iter();
    cells.map(|cell| Section { title: cell.to_owned(), table: table(report, cell) }).collect()
}

/// The cells of the report; searched peaks are none.
fn cells(report: &BenchReport) -> Vec<&str> {
    report.cases().into_iter().filter(|case| *case != LOAD_CASE).collect()
}

fn table(report: &BenchReport, cell: &str) -> Table {
    let systems = report.systems(cell);
    let is_there = |column: &Column| {
        systems.iter().any(|system| report.row(cell, system, column.metric()).is_some())
    };
    let columns: Vec<_> = COLUMNS.into_iter().filter(|(_, column)| is_there(column)).collect();
    let headings = columns.iter().map(|(heading, _)| *heading);
    let mut table = Table::new(["system"].into_iter().chain(headings));
    for system in &systems {
        let cells = columns.iter().map(|(_, column)| column.text(report, cell, system));
        table.row(std::iter::once((*system).to_owned()).chain(cells));
    }
    table
}

impl Column {
    fn metric(self) -> &'static str {
        match self {
            Column::Value(metric) | Column::Share(metric) | Column::Ratio(metric) => metric,
        }
    }

    fn text(self, report: &BenchReport, cell: &str, system: &str) -> String {
        let median = |metric| report.row(cell, system, metric).map(|row| row.median);
        match self {
            Column::Value(metric) => median(metric).map_or_else(dash, number),
            Column::Share(metric) => median(metric).map_or_else(dash, percent),
            Column::Ratio(metric) => ratio(report, cell, system, metric),
        }
    }
}

fn dash() -> String {
    "-".to_owned()
}

fn percent(share: f64) -> String {
    let digits = if share < 0.0995 { 1 } else { 0 };
    format!("{:.digits$} %", share * 100.0)
}

/// A ratio with its interval; `1` for the base, `overloaded` where too few requests were served.
fn ratio(report: &BenchReport, cell: &str, system: &str, metric: &str) -> String {
    match report.ratio(cell, system, metric) {
        Some(found) => {
            let interval = format!("{} to {}", number(found.low), number(found.high));
            format!("{} ({interval})", number(found.median))
        }
        None if system == System::AloneIdlePoll.name() => "1".to_owned(),
        None if is_overloaded(report, cell, system) => "overloaded".to_owned(),
        None => dash(),
    }
}

fn is_overloaded(report: &BenchReport, cell: &str, system: &str) -> bool {
    let served = report.row(cell, system, "served_share");
    served.is_some_and(|row| row.median < super::analysis::SERVED_MIN)
}

/// The rival with the lowest raw tail among those that leave batch work nearly what Quell does.
fn best_rival(report: &BenchReport, cell: &str) -> Option<System> {
    let quell = report.row(cell, System::Quell.name(), "batch_of_alone");
    lowest_tail(report, cell, quell.map_or(0.0, |row| row.median) * BATCH_PART)
}

/// The rival with the lowest raw tail among those that leave batch work at least this part of what it does alone.
fn lowest_tail(report: &BenchReport, cell: &str, least: f64) -> Option<System> {
    let value =
        |system: System, metric| report.row(cell, system.name(), metric).map(|row| row.median);
    let rivals = System::ALL.into_iter().filter(|system| {
        let leaves = value(*system, "batch_of_alone").unwrap_or_default();
        system.is_rival() && leaves >= least && !is_overloaded(report, cell, system.name())
    });
    let tails = rivals.filter_map(|system| Some((value(system, "tail_us_raw")?, system)));
    tails.min_by(|a, b| a.0.total_cmp(&b.0)).map(|(_, system)| system)
}

/// One line for each cell of the parts of a run: tails as multiples of the service alone, raw beside filtered, and what batch work got.
pub fn headline(parts: &[&BenchReport]) -> Table {
    let mut table = Table::new([
        "service, load, batch work",
        "alone, raw µs",
        "Linux",
        "raw",
        "best by hand",
        "tail",
        "raw",
        "batch",
        "Quell",
        "raw",
        "batch",
    ]);
    let cells =
        parts.iter().flat_map(|report| cells(report).into_iter().map(move |cell| (*report, cell)));
    for (report, cell) in cells {
        let of = |system: Option<System>, metric: &str| {
            system.map_or_else(dash, |system| ratio(report, cell, system.name(), metric))
        };
        let batch = |system: Option<System>| {
            let row = system.and_then(|one| report.row(cell, one.name(), "batch_of_alone"));
            row.map_or_else(dash, |row| percent(row.median))
        };
        let (linux, quell) = (Some(System::LinuxDefault), Some(System::Quell));
        let best = best_rival(report, cell);
        let alone = report.row(cell, System::AloneIdlePoll.name(), "tail_us_raw");
        table.row([
            cell.to_owned(),
            alone.map_or_else(dash, |row| number(row.median)),
            of(linux, "tail_us"),
            of(linux, "tail_us_raw"),
            best.map_or_else(|| "none leaves as much".to_owned(), |best| best.name().to_owned()),
            of(best, "tail_us"),
            of(best, "tail_us_raw"),
            batch(best),
            of(quell, "tail_us"),
            of(quell, "tail_us_raw"),
            batch(quell),
        ]);
    }
    table
}

/// Five lines for each cell: alone, plain Linux, the best setting by hand, Quell, what batch work got; or one that says
/// that the host is too busy for a verdict.
pub fn five_lines(report: &BenchReport) -> Vec<String> {
    let mut lines = Vec::new();
    for cell in cells(report) {
        match busy(report, cell) {
            Some(reason) => lines.push(format!("{cell}: too busy: {reason}")),
            None => lines.extend(verdict(report, cell)),
        }
    }
    lines
}

/// Why a cell has no verdict.
fn busy(report: &BenchReport, cell: &str) -> Option<String> {
    let worst = |metric: &str| {
        let rows = report.rows.iter().filter(|row| row.case == cell && row.metric == metric);
        rows.map(|row| row.median).fold(0.0, f64::max)
    };
    let (lost, stopped) = (worst("client_lost_share"), worst("stopped_share"));
    if lost > CLIENT_LOST_MAX {
        Some(format!("other programs took {} of the client's time", percent(lost)))
    } else if stopped > STOPPED_MAX {
        Some(format!("the hypervisor stopped a core for {} of the time", percent(stopped)))
    } else {
        None
    }
}

/// What Quell loses, cell by cell, as raw figures have it: against the service alone, and against the best setting by hand.
pub fn losses(report: &BenchReport) -> Vec<String> {
    let (quell, metric) = (System::Quell.name(), "tail_us_raw");
    let loss = |cell: &str| {
        let second = report.ratio(cell, quell, "second_tail_us_raw");
        let own = report.ratio(cell, quell, metric);
        let against_alone =
            [("", own), (" of the second service", second)].map(|(whose, ratio)| {
                let lost = ratio.filter(|ratio| ratio.low > 1.0)?;
                Some(format!("{} × the tail{whose} alone", number(lost.median)))
            });
        let against_best = best_rival(report, cell).and_then(|best| {
            let best_ratio = report.ratio(cell, best.name(), metric)?;
            let worse = own?.low > best_ratio.high;
            worse.then(|| {
                let times = own.map_or(0.0, |own| own.median) / best_ratio.median;
                format!("{} × that of {}", number(times), best.name())
            })
        });
        let batch = best_rival(report, cell).and_then(|best| batch_loss(report, cell, best));
        let overloaded = is_overloaded(report, cell, quell).then(|| "overloaded".to_owned());
        let all = against_alone.into_iter().chain([against_best, batch, overloaded]);
        let lost: Vec<String> = all.flatten().collect();
        (!lost.is_empty()).then(|| format!("{cell}: {}", lost.join(", ")))
    };
    cells(report).into_iter().filter_map(loss).collect()
}

/// How much less batch work does under Quell than under this rival, where pairs of rounds show it.
fn batch_loss(report: &BenchReport, cell: &str, rival: System) -> Option<String> {
    let rounds = |system: System| Some(&report.row(cell, system.name(), "batch_of_alone")?.raw);
    let pairs = stats::paired_ratios(rounds(System::Quell)?, rounds(rival)?);
    let times = stats::median_interval(&pairs).filter(|times| times.high < 1.0)?;
    Some(format!("batch work {} × what it does under {}", number(times.median), rival.name()))
}

fn verdict(report: &BenchReport, cell: &str) -> Vec<String> {
    let fair = best_rival(report, cell);
    // Where none is fair, the lowest tail shows what its price is.
    let best = fair.or_else(|| lowest_tail(report, cell, 0.0));
    let line = |title: &str, system: Option<System>| {
        let Some(system) = system else { return format!("  {title:<12} not measured") };
        let value = |metric| report.row(cell, system.name(), metric).map(|row| row.median);
        let tail = |metric| value(metric).map_or_else(dash, number);
        let name = match (title.starts_with("best"), fair.is_some()) {
            (false, _) => String::new(),
            (true, true) => format!(" ({})", system.name()),
            (true, false) => {
                format!(" ({}; none leaves batch work as much as Quell)", system.name())
            }
        };
        format!(
            "  {title:<12} tail {} us, raw {} us, {} of alone{name}",
            tail("tail_us"),
            tail("tail_us_raw"),
            ratio(report, cell, system.name(), "tail_us_raw")
        )
    };
    let batch = [Some(System::LinuxDefault), best, Some(System::Quell)].into_iter().flatten();
    let batch: Vec<String> = batch
        .filter_map(|system| {
            let row = report.row(cell, system.name(), "batch_of_alone")?;
            Some(format!("{} under {}", percent(row.median), system.name()))
        })
        .collect();
    vec![
        format!("{cell}:"),
        line("alone", Some(System::AloneIdlePoll)),
        line("plain Linux", Some(System::LinuxDefault)),
        line("best by hand", best),
        line("Quell", Some(System::Quell)),
        format!("  batch work   {} of what it does alone", batch.join(", ")),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    const CELL: &str = "memcached-50-hog";

    fn report(client_lost: f64) -> BenchReport {
        let mut report = BenchReport::new(BENCH, "quell bench services");
        report.push(LOAD_CASE, "memcached", "peak_rps", vec![100_000.0]);
        for (system, tail, batch) in [
            ("alone-idle-poll", 100.0, None),
            ("linux-default", 5_000.0, Some(0.5)),
            ("fifo", 110.0, Some(0.2)),
            ("rr", 130.0, Some(0.4)),
            ("nice", 900.0, Some(0.45)),
            ("quell", 120.0, Some(0.42)),
        ] {
            report.push(CELL, system, "tail_us", vec![tail]);
            report.push(CELL, system, "tail_us_raw", vec![tail * 2.0]);
            report.push(CELL, system, "served_share", vec![1.0]);
            report.push(CELL, system, "client_lost_share", vec![client_lost]);
            batch.into_iter().for_each(|share| {
                report.push(CELL, system, "batch_of_alone", vec![share]);
            });
            if system != "alone-idle-poll" {
                report.compare(
                    CELL,
                    (system, &[tail]),
                    ("alone-idle-poll", &[100.0]),
                    "tail_us_raw",
                );
            }
        }
        report
    }

    #[test]
    fn a_rival_that_starves_batch_work_is_not_the_best() {
        assert_eq!(best_rival(&report(0.0), CELL), Some(System::RoundRobin));
    }

    #[test]
    fn a_verdict_has_five_lines_with_raw_figures_beside_filtered_ones() {
        let lines = five_lines(&report(0.0));
        assert_eq!(lines.len(), 6, "a heading and five lines: {lines:?}");
        assert!(lines[3].contains("tail 130 us, raw 260 us") && lines[3].ends_with("(rr)"));
        assert!(lines[5].contains("40 % under rr, 42 % under quell"), "{}", lines[5]);
    }

    #[test]
    fn where_every_setting_starves_batch_work_the_lowest_tail_is_shown_with_its_price() {
        let mut report = report(0.0);
        let starved = |row: &&mut quell_report::Row| {
            row.metric == "batch_of_alone" && !["quell", "linux-default"].contains(&&*row.system)
        };
        report.rows.iter_mut().filter(starved).for_each(|row| row.median = 0.01);
        assert_eq!(best_rival(&report, CELL), None);
        let lines = five_lines(&report);
        assert!(lines[3].ends_with("(fifo; none leaves batch work as much as Quell)"), "{lines:?}");
        assert!(lines[5].contains("1.0 % under fifo"), "{}", lines[5]);
    }

    #[test]
    fn a_busy_host_gets_no_verdict() {
        let lines = five_lines(&report(0.2));
        assert_eq!(lines.len(), 1);
        assert!(lines[0].contains("too busy: other programs took 20 % of the client's time"));
    }

    #[test]
    fn the_headline_has_every_cell_with_raw_ratios() {
        let table = headline(&[&report(0.0)]).text();
        assert_eq!(table.lines().filter(|line| line.starts_with(CELL)).count(), 1, "{table}");
        assert!(table.contains("1.20 (1.20 to 1.20)") && table.contains("rr"), "{table}");
    }

    #[test]
    fn what_quell_loses_is_told_against_the_service_alone_and_the_best_by_hand() {
        let told = losses(&report(0.0));
        assert_eq!(told, ["memcached-50-hog: 1.20 × the tail alone"], "rr is slower");
        let mut report = report(0.0);
        let ratio = report.ratios.iter_mut().find(|ratio| ratio.system == "quell").unwrap();
        (ratio.median, ratio.low, ratio.high) = (2.6, 2.5, 2.7);
        let told = losses(&report);
        assert_eq!(told, ["memcached-50-hog: 2.60 × the tail alone, 2.00 × that of rr"]);
        let quell =
            |row: &&mut quell_report::Row| row.metric == "batch_of_alone" && row.system == "quell";
        report.rows.iter_mut().filter(quell).for_each(|row| row.raw = vec![0.3]);
        let told = losses(&report);
        assert!(
            told[0].ends_with("that of rr, batch work 0.75 × what it does under rr"),
            "{told:?}"
        );
    }

    #[test]
    fn a_system_that_does_not_serve_is_overloaded() {
        let mut report = report(0.0);
        report.ratios.retain(|ratio| ratio.system != "rr");
        report
            .rows
            .retain(|row| (row.system.as_str(), row.metric.as_str()) != ("rr", "served_share"));
        report.push(CELL, "rr", "served_share", vec![0.9]);
        assert!(sections(&report)[0].table.text().contains("overloaded"));
        assert_ne!(best_rival(&report, CELL), Some(System::RoundRobin));
    }
}
