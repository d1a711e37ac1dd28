//! `docs/results.md`, a page of each benchmark in `docs/results/`, and the figures in the README, made of
//! `bench/results/*.json` and nothing else.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::{bench, summary};
use quell_bench::services;
use quell_report::BenchReport;
use quell_report::table::{Table, number};
use quell_report::{plot, provenance};
use quell_study::validation;

/// Where reports lie, below the repository's root.
const RESULTS: &str = "bench/results";
/// Where plots go, below the repository's root.
const PLOTS: &str = "docs/plots";
/// The index of the generated pages.
const INDEX: &str = "docs/results.md";
/// The generated pages, one per benchmark.
const PAGES: &str = "docs/results";
/// Files whose marked figures are replaced.
const MARKED: [&str; 5] = [
    "README.md",
    "docs/lab/check-guests.md",
    "docs/tools/check.md",
    "docs/tools/record.md",
    "docs/lab/runtime-bench.md",
];
const OPEN: &str = "<!-- bench: ";
const CLOSE: &str = "<!-- /bench -->";

/// A report with the name of its file: its benchmark, or `BENCHMARK-PART` where a benchmark that takes hours was run in
/// parts, each one whole.
struct Filed {
    name: String,
    report: BenchReport,
}

/// Writes `docs/results.md`, the page of each benchmark, the plots, and the marked figures. Returns what it wrote.
///
/// # Errors
/// When a report does not read, a marker names a figure that does not exist, or a file cannot be written.
pub fn generate(root: &Path) -> Result<Vec<PathBuf>> {
    let reports = reports(root)?;
    refuse_distrusted(root, &reports)?;
    let mut written = Vec::new();
    for filed in &reports {
        let folder = root.join(PLOTS);
        for picture in &filed.report.plots {
            plot::panels(picture, &folder)?;
            written.push(folder.join(format!("{}.svg", picture.name)));
        }
    }
    let mut write = |path: PathBuf, text: String| -> Result<()> {
        if fs::read_to_string(&path).ok().as_deref() != Some(&text) {
            path.parent().map_or(Ok(()), fs::create_dir_all)?;
            fs::write(&path, text).with_context(|| format!("write {}", path.display()))?;
        }
        written.push(path);
        Ok(())
    };
    for (name, text) in pages(&reports) {
        write(root.join(name), text)?;
    }
    for name in MARKED {
        let path = root.join(name);
        if let Ok(text) = fs::read_to_string(&path) {
            let filled = fill(&text, &reports).with_context(|| path.display().to_string())?;
            write(path, filled)?;
        }
    }
    Ok(written)
}

/// What in the generated files differs from what the reports say now; empty when all is in step.
///
/// # Errors
/// As [`generate`].
pub fn stale(root: &Path) -> Result<Vec<PathBuf>> {
    let reports = reports(root)?;
    let mut stale = Vec::new();
    for (name, text) in pages(&reports) {
        let path = root.join(name);
        if fs::read_to_string(&path).unwrap_or_default() != text {
            stale.push(path);
        }
    }
    for name in MARKED {
        let path = root.join(name);
        if let Ok(text) = fs::read_to_string(&path)
            && fill(&text, &reports).with_context(|| path.display().to_string())? != text
        {
            stale.push(path);
        }
    }
    Ok(stale)
}

/// Stops at reports whose figures may not be quoted, and names each with the reason.
fn refuse_distrusted(root: &Path, reports: &[Filed]) -> Result<()> {
    let mut refused = Vec::new();
    for Filed { name, report } in reports {
        let path = format!("{RESULTS}/{name}.json");
        let text = fs::read_to_string(root.join(&path)).with_context(|| format!("read {path}"))?;
        let leads = |commit: &str| provenance::is_ancestor(root, commit);
        if let Err(distrust) = provenance::judge(&text, report, leads) {
            refused.push(format!("{path} ({}): {distrust}", report.commit));
        }
        let is_part =
            |whole: &str| name.strip_prefix(whole).is_some_and(|part| part.starts_with('-'));
        if *name != report.bench && !is_part(&report.bench) {
            refused.push(format!("{path}: holds a report of {}: name it after that", report.bench));
        }
        let mut others = reports.iter().filter(|other| other.report.bench == report.bench);
        if let Some(other) = others.find(|other| other.report.commit != report.commit) {
            let (own, other) = (&report.commit, &other.name);
            refused
                .push(format!("{path} ({own}): {other} is of another commit: measure one again"));
        }
    }
    if refused.is_empty() {
        return Ok(());
    }
    bail!("figures that may not be quoted:\n  {}", refused.join("\n  "))
}

/// All reports, by name.
fn reports(root: &Path) -> Result<Vec<Filed>> {
    let folder = root.join(RESULTS);
    let mut paths: Vec<PathBuf> = match fs::read_dir(&folder) {
        Ok(entries) => entries.flatten().map(|entry| entry.path()).collect(),
        Err(_) => Vec::new(),
    };
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    // A first look is not for quoting.
    paths.retain(|path| path.file_name().is_some_and(|name| name != "demo.json"));
    paths.sort_unstable();
    let filed = |path: &PathBuf| {
        let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Filed { name, report: BenchReport::read(path)? })
    };
    paths.iter().map(filed).collect()
}

/// The generated pages: the path of each below the repository's root, and its text.
fn pages(reports: &[Filed]) -> Vec<(String, String)> {
    let of_reports = reports.iter().map(|filed| {
        let text = match filed.report.bench == validation::BENCH {
            true => validation::page(&filed.report),
            false => page(filed),
        };
        (format!("{PAGES}/{}.md", filed.name), text)
    });
    std::iter::once((INDEX.to_owned(), index(reports))).chain(of_reports).collect()
}

/// The index as Markdown: a row for each benchmark.
fn index(reports: &[Filed]) -> String {
    let mut table = Table::new(["benchmark", "subject", "processor", "commit"]);
    let measured = reports.iter().map(|Filed { name, report }| {
        let link = format!("[{name}](results/{name}.md)");
        let commit = format!("`{}`", report.commit);
        (name.clone(), [link, subject(report), report.machine.cpu.clone(), commit])
    });
    let first = of_bench(reports, services::BENCH);
    let first = (!first.is_empty()).then(|| first_page(&first));
    let mut rows: Vec<(String, [String; 4])> = measured.collect();
    rows.sort_unstable();
    rows.into_iter().for_each(|(_, row)| table.row(row));
    format!(
        "# Measured results\n\n\
         <!-- Generated from bench/results/*.json by `quell bench report`; do not edit. -->\n\n\
         Every figure is the median over interleaved rounds in one run. Ratios are taken within each \
         round, and their intervals are seeded bootstrap 95 % intervals. The JSON files in `{RESULTS}` \
         keep the value of every round.\n\n{}{}",
        first.unwrap_or_default(),
        table.markdown()
    )
}

/// All reports of a benchmark: one, or its parts.
fn of_bench<'a>(reports: &'a [Filed], bench: &str) -> Vec<&'a Filed> {
    reports.iter().filter(|filed| filed.report.bench == bench).collect()
}

/// What the services come to, in one page.
fn first_page(parts: &[&Filed]) -> String {
    let pages = parts.iter().map(|Filed { name, report }| {
        let (cpu, commit) = (&report.machine.cpu, &report.commit);
        format!("[{name}](results/{name}.md), measured on {cpu} at `{commit}`")
    });
    format!(
        "## In one page\n\n\
         Real services with their defaults beside batch work on one core, at a part of their peak load in percent: tails as multiples of \
         the service alone on a core that is kept awake (95 % interval), without what stops of the hypervisor met and raw; and what \
         batch work gets of what it does alone. The best by hand is the setting of plain Linux with the lowest raw tail that leaves \
         batch work at least nine tenths of what Quell does. An interval that reaches beyond 25 % proves nothing. All systems and \
         services of each case: {}.\n\n{}\nWhat Quell loses:\n\n{}\n\
         ## All benchmarks\n\n",
        pages.collect::<Vec<_>>().join("; "),
        headline(parts),
        losses(parts)
    )
}

fn headline(parts: &[&Filed]) -> String {
    let reports: Vec<&BenchReport> = parts.iter().map(|part| &part.report).collect();
    services::headline(&reports).markdown()
}

fn losses(parts: &[&Filed]) -> String {
    let lost: Vec<String> = parts.iter().flat_map(|part| services::losses(&part.report)).collect();
    list(&lost)
}

/// The subject of a report: what its command says of itself, and the service.
fn subject(report: &BenchReport) -> String {
    let about = report.command.split_whitespace().nth(2).and_then(bench::about);
    let about = about.unwrap_or_else(|| format!("`{}`", report.command));
    match report.service() {
        Some(name) => format!("{about}; the service is {name}"),
        None => about,
    }
}

/// The page of a benchmark as Markdown.
fn page(Filed { name, report }: &Filed) -> String {
    let mut out = format!(
        "# Results of {name}\n\n\
         <!-- Generated from {RESULTS}/{name}.json by `quell bench report`; do not edit. -->\n\n\
         {}. Every figure is a median over interleaved rounds ([all results](../results.md)). \
         Make it again: `{}` (measured at commit `{}`).\n\n{}",
        subject(report),
        report.command,
        report.commit,
        machine(report).markdown()
    );
    for section in summary::sections(report) {
        out += &format!("\n## {}\n\n{}", section.title, section.table.markdown());
    }
    if !report.notes.is_empty() {
        out += &format!("\n## Notes of the run\n\n{}", notes(report));
    }
    out
}

fn notes(report: &BenchReport) -> String {
    list(&report.notes)
}

fn list(items: &[String]) -> String {
    match items {
        [] => "- nothing that these measurements show\n".to_owned(),
        _ => items.iter().map(|item| format!("- {item}\n")).collect(),
    }
}

fn machine(report: &BenchReport) -> Table {
    let machine = &report.machine;
    let mut table = Table::new(["machine", ""]);
    table.row(["processor".to_owned(), machine.cpu.clone()]);
    table.row([
        "cores".to_owned(),
        format!("{} (SMT {}), {} node(s)", machine.cores, machine.smt, machine.nodes),
    ]);
    table.row(["memory".to_owned(), format!("{} MiB", machine.memory_mib)]);
    table.row(["kernel".to_owned(), machine.kernel.clone()]);
    table.row(["preemption".to_owned(), machine.preemption.clone()]);
    table.row(["hypervisor".to_owned(), machine.hypervisor.clone()]);
    table.row(["governor, idle".to_owned(), format!("{}, {}", machine.governor, machine.idle)]);
    let lacking: Vec<String> = report
        .capabilities
        .iter()
        .filter(|(_, can)| *can != "yes")
        .map(|(name, why)| format!("{name} ({why})"))
        .collect();
    if !lacking.is_empty() {
        table.row(["lacks".to_owned(), lacking.join(", ")]);
    }
    table
}

/// Replaces what stands between `<!-- bench: WHAT -->` and `<!-- /bench -->`. WHAT is one of
///
/// * `ratio BENCH CASE SYSTEM METRIC`: the ratio with its interval,
/// * `value BENCH CASE SYSTEM METRIC`: the median,
/// * `percent BENCH CASE SYSTEM METRIC`: the median of a share, in percent,
/// * `table BENCH CASE`: the table of a case,
/// * `table BENCH`: the headline of `services`,
/// * `losses services`: what Quell loses,
/// * `notes BENCH`: the notes of the run.
///
/// A benchmark without a report is `not measured yet`; a report without the figure is an error.
fn fill(text: &str, reports: &[Filed]) -> Result<String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(OPEN) {
        let (before, marked) = rest.split_at(at);
        let Some((what, after)) = marked[OPEN.len()..].split_once("-->") else {
            bail!("a `{OPEN}` marker is not closed by `-->`");
        };
        let Some((_, after)) = after.split_once(CLOSE) else {
            bail!("the figure `{}` is not closed by `{CLOSE}`", what.trim());
        };
        out += before;
        out += &format!("{OPEN}{}-->{}{CLOSE}", what, figure(what.trim(), reports)?);
        rest = after;
    }
    Ok(out + rest)
}

fn figure(what: &str, reports: &[Filed]) -> Result<String> {
    let words: Vec<&str> = what.split_whitespace().collect();
    let missing = || format!("no report under {RESULTS} has the figure `{what}`");
    let report = |name: &str| {
        let filed = reports.iter().find(|filed| filed.name == name)?;
        Some(&filed.report)
    };
    let parts = of_bench(reports, services::BENCH);
    match words[..] {
        ["table", services::BENCH] if !parts.is_empty() => {
            return Ok(format!("\n{}", headline(&parts)));
        }
        ["losses", services::BENCH] if !parts.is_empty() => {
            return Ok(format!("\n\n{}\n", losses(&parts)));
        }
        _ => {}
    }
    if let [_, bench, ..] = words[..]
        && report(bench).is_none()
    {
        return Ok("not measured yet".to_owned());
    }
    match words[..] {
        ["ratio", bench, case, system, metric] => {
            let ratio = report(bench).and_then(|report| report.ratio(case, system, metric));
            let ratio = ratio.with_context(missing)?;
            let interval = format!("{} to {}", number(ratio.low), number(ratio.high));
            Ok(format!("{} ({interval})", number(ratio.median)))
        }
        ["value", bench, case, system, metric] => {
            let row = report(bench).and_then(|report| report.row(case, system, metric));
            Ok(number(row.with_context(missing)?.median))
        }
        ["percent", bench, case, system, metric] => {
            let row = report(bench).and_then(|report| report.row(case, system, metric));
            Ok(format!("{:.0} %", row.with_context(missing)?.median * 100.0))
        }
        ["table", bench, case] => {
            let report = report(bench).with_context(missing)?;
            let mut sections = summary::sections(report).into_iter();
            let section = sections.find(|section| section.title == case).with_context(missing)?;
            Ok(format!("\n{}", section.table.markdown()))
        }
        ["notes", bench] => Ok(format!("\n\n{}\n", notes(report(bench).with_context(missing)?))),
        _ => {
            bail!(
                "`{what}` is no figure: use ratio, value, percent, table or notes with their names"
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> BenchReport {
        let mut report = BenchReport::new("reaction", "quell bench reaction");
        report.push("stream", "quell", "lc_p999_us", vec![110.0, 90.0, 100.0]);
        report.push("stream", "quell", "be_share_of_leftover", vec![0.93]);
        report.compare("stream", ("quell", &[1.0]), ("alone-idle-poll", &[0.8]), "lc_p999_us");
        report
    }

    fn filed(report: BenchReport) -> Filed {
        Filed { name: report.bench.clone(), report }
    }

    #[test]
    fn figures_are_filled_in_and_stay_filled_in() {
        let text = "p99.9 is <!-- bench: ratio reaction stream quell lc_p999_us -->?<!-- /bench --> \
                    of alone, BE <!-- bench: percent reaction stream quell be_share_of_leftover --><!-- /bench -->.";
        let filled = fill(text, &[filed(sample())]).unwrap();
        assert!(filled.contains("-->1.25 (1.25 to 1.25)<!--"), "{filled}");
        assert!(filled.contains("-->93 %<!--"), "{filled}");
        assert_eq!(fill(&filled, &[filed(sample())]).unwrap(), filled);

        let noted =
            BenchReport { notes: vec!["seen".to_owned(), "not seen".to_owned()], ..sample() };
        let list = fill("<!-- bench: notes reaction --><!-- /bench -->", &[filed(noted)]).unwrap();
        assert!(list.contains("-->\n\n- seen\n- not seen\n\n<!--"), "{list}");
    }

    #[test]
    fn parts_of_a_benchmark_make_one_table() {
        let part = |service: &str| {
            let mut report = BenchReport::new(services::BENCH, "quell bench services");
            report.push(&format!("{service}-50-hog"), "quell", "tail_us_raw", vec![100.0]);
            Filed { name: format!("services-{service}"), report }
        };
        let parts = [part("go"), part("redis")];
        let table = fill("<!-- bench: table services --><!-- /bench -->", &parts).unwrap();
        assert!(table.contains("go-50-hog") && table.contains("redis-50-hog"), "{table}");
        let index = index(&parts);
        assert!(index.contains("(results/services-go.md)"), "{index}");
    }

    #[test]
    fn a_figure_that_was_not_measured_is_an_error() {
        for text in [
            "<!-- bench: value reaction stream nobody lc_p999_us --><!-- /bench -->",
            "<!-- bench: opinion --><!-- /bench -->",
            "<!-- bench: table reaction stream -->",
            "<!-- bench: table reaction stream",
        ] {
            assert!(fill(text, &[filed(sample())]).is_err(), "{text}");
        }
    }

    /// A repository of one commit.
    fn repository() -> (tempfile::TempDir, String) {
        let root = tempfile::tempdir().unwrap();
        let git = |words: &[&str]| {
            let mut git = std::process::Command::new("git");
            git.args(["-c", "user.name=test", "-c", "user.email=test@localhost", "-C"]);
            let out = git.arg(root.path()).args(words).output().unwrap();
            assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
            String::from_utf8(out.stdout).unwrap().trim().to_owned()
        };
        git(&["init", "-q"]);
        git(&["commit", "-q", "--allow-empty", "-m", "first"]);
        let commit = git(&["rev-parse", "--short=12", "HEAD"]);
        (root, commit)
    }

    #[test]
    fn reports_that_are_no_evidence_are_refused_by_name() {
        let (root, commit) = repository();
        let path = root.path().join(RESULTS).join("reaction.json");
        let refusal = |report: &BenchReport| {
            report.write(&path).unwrap();
            generate(root.path()).unwrap_err().to_string()
        };
        let dirty = refusal(&BenchReport { commit: format!("{commit}-dirty"), ..sample() });
        assert!(dirty.contains("reaction.json") && dirty.contains("no commit has"), "{dirty}");
        let renamed = root.path().join(RESULTS).join("reactions.json");
        fs::rename(&path, &renamed).unwrap();
        let named = generate(root.path()).unwrap_err().to_string();
        assert!(named.contains("name it after that"), "{named}");
        fs::rename(&renamed, &path).unwrap();
        let foreign = refusal(&BenchReport { commit: "0123456789ab".into(), ..sample() });
        assert!(foreign.contains("no ancestor"), "{foreign}");
        BenchReport { commit, ..sample() }.write(&path).unwrap();
        let spliced = fs::read_to_string(&path).unwrap().replace("110.0", "11.0");
        fs::write(&path, spliced).unwrap();
        let spliced = generate(root.path()).unwrap_err().to_string();
        assert!(spliced.contains("not as one run wrote it"), "{spliced}");
        assert!(!root.path().join(INDEX).exists());
    }

    #[test]
    fn pages_are_written_from_the_reports_and_then_in_step() {
        let (root, commit) = repository();
        let report = BenchReport { commit, ..sample() };
        report.write(&root.path().join(RESULTS).join("reaction.json")).unwrap();
        assert_eq!(stale(root.path()).unwrap().len(), 2);
        generate(root.path()).unwrap();
        assert!(stale(root.path()).unwrap().is_empty());
        let page = fs::read_to_string(root.path().join("docs/results/reaction.md")).unwrap();
        assert!(page.contains("# Results of reaction") && page.contains("`quell bench reaction`"));
        let index = fs::read_to_string(root.path().join(INDEX)).unwrap();
        assert!(index.contains("| [reaction](results/reaction.md) "), "{index}");
    }

    /// The committed page and README say what the committed reports say.
    #[test]
    fn the_documents_of_this_repository_are_in_step() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let stale = stale(&root).unwrap();
        assert!(stale.is_empty(), "run `quell bench report` and commit {stale:?}");
    }
}
