//! A simulation over time: who has the cores, what memory moves, how late services answer.

use std::path::{Path, PathBuf};

use anyhow::Result;
use plotters::prelude::*;
use quell_model::{Class, Nanos};
use quell_sim::{Report, Sample, Scenario, TaskSample};

use quell_report::plot::canvas::{
    self, Area, BOLD, COLOURS, Drawn, FONT, LEGEND_WIDTH, LIGHT, Look,
};

const WIDTH: u32 = 1_100;
/// Heights of the three charts, of two of them at least: they grow with their legends.
const CORES: u32 = 300;
const MEMORY: u32 = 200;
const LATENCY: u32 = 360;
/// Tasks that legends name; more would be no picture.
const NAMED: usize = 60;
/// Batch tasks, in shades that no service has.
const BATCH: [RGBColor; 4] = [
    RGBColor(150, 150, 150),
    RGBColor(90, 90, 90),
    RGBColor(195, 195, 195),
    RGBColor(160, 140, 115),
];
/// Room for the labels beneath a chart and beside it.
const LABELS: (u32, u32) = (40, 86);
/// Title and subtitle.
const HEAD: u32 = 64;

/// Draws the timeline of a simulation as SVG and PNG. The extension of `path` does not matter. Returns the two files.
///
/// # Errors
/// When the scenario kept no timeline, a file cannot be written, or the font is missing.
pub fn simulation(
    scenario: &Scenario,
    policy: &str,
    report: &Report,
    path: &Path,
) -> Result<[PathBuf; 2]> {
    let svg = draw(scenario, policy, report)?;
    let path = path.with_extension("svg");
    canvas::write(&svg, &path)?;
    Ok([path.with_extension("png"), path])
}

/// One line or band: its name, its colour, and its value in an interval.
struct Series<'a> {
    name: String,
    look: Look,
    value: Box<dyn Fn(&Sample) -> f64 + 'a>,
}

fn draw(scenario: &Scenario, policy: &str, report: &Report) -> Result<String> {
    anyhow::ensure!(!report.timeline.is_empty(), "the scenario keeps no timeline; set sample_us");
    let title = format!("{} under {policy}", scenario.name);
    let subtitle = format!(
        "simulated: {} of {} cores managed, seed {}, intervals of {}",
        scenario.host.managed.len(),
        scenario.host.topology.len(),
        scenario.seed,
        scenario.sample
    );
    let times = Times { samples: &report.timeline, step: scenario.sample };
    let named = (scenario.tasks.len().min(NAMED) as u32 + 3) * canvas::LEGEND_PITCH.0 + 32;
    let (cores_height, latency_height) = (CORES.max(named), LATENCY.max(named));
    let height = HEAD + cores_height + MEMORY + latency_height;
    canvas::svg((WIDTH, height), |root| {
        let area = canvas::titled(root, &title, &subtitle)?;
        let (cores, rest) = area.split_vertically(cores_height);
        let (memory, latency) = rest.split_vertically(MEMORY);
        owners(&cores, scenario, times)?;
        traffic(&memory, times)?;
        latencies(&latency, scenario, times)
    })
}

#[derive(Clone, Copy)]
struct Times<'a> {
    samples: &'a [Sample],
    step: Nanos,
}

impl Times<'_> {
    fn seconds(&self) -> f64 {
        self.samples.last().map_or(1.0, |last| last.at.0 as f64 / 1e9)
    }

    /// The middle of an interval.
    fn at(&self, sample: &Sample) -> f64 {
        (sample.at.0 as f64 - self.step.0 as f64 / 2.0) / 1e9
    }
}

/// By task. Services have the colours, darker the second time and lighter from then on.
fn looks(scenario: &Scenario) -> Vec<Look> {
    // The last one is a grey.
    let colours = &COLOURS[..COLOURS.len() - 1];
    let (mut services, mut batch) = (0, 0);
    let look = |colour| Look { colour, dashed: false, width: 2 };
    let tasks = scenario.tasks.iter().map(|task| match task.limits.class {
        Class::LatencyCritical => {
            let nth = services;
            services += 1;
            look(shaded(colours[nth % colours.len()], nth / colours.len()))
        }
        Class::BestEffort => {
            batch += 1;
            look(BATCH[(batch - 1) % BATCH.len()])
        }
    });
    tasks.collect()
}

fn shaded(RGBColor(r, g, b): RGBColor, round: usize) -> RGBColor {
    let shade = |part: u8| match round {
        0 => part,
        1 => (u16::from(part) * 11 / 20) as u8,
        _ => part / 2 + 110,
    };
    RGBColor(shade(r), shade(g), shade(b))
}

/// Entries for the tasks of a legend, and a last one for those that it has no room for.
fn named<'a>(tasks: impl Iterator<Item = (&'a str, Look)>, width: u32) -> Vec<(String, Look)> {
    let mut entries: Vec<(String, Look)> =
        tasks.map(|(name, look)| (name.to_owned(), Look { width, ..look })).collect();
    let more = entries.len().saturating_sub(NAMED);
    if more > 0 {
        entries.truncate(NAMED);
        let none = Look { colour: WHITE, dashed: false, width };
        entries.push((format!("and {more} more"), none));
    }
    entries
}

/// Cores by task, stacked.
fn owners(area: &Area, scenario: &Scenario, times: Times) -> Drawn {
    let (left, right) = area.split_horizontally(WIDTH - LEGEND_WIDTH);
    let most = scenario.host.topology.len() as f64;
    let mut chart = ChartBuilder::on(&left)
        .margin(10)
        .x_label_area_size(LABELS.0)
        .y_label_area_size(LABELS.1)
        .build_cartesian_2d(0.0..times.seconds(), 0.0..most)?;
    chart
        .configure_mesh()
        .x_max_light_lines(1)
        .y_max_light_lines(1)
        .y_labels(6)
        .y_desc("cores")
        .label_style((FONT, 14))
        .axis_desc_style((FONT, 15))
        .bold_line_style(BOLD)
        .light_line_style(LIGHT)
        .draw()?;
    let looks = looks(scenario);
    let mut floor = vec![0.0; times.samples.len()];
    for (task, look) in looks.iter().enumerate() {
        let below = floor.clone();
        for (level, sample) in floor.iter_mut().zip(times.samples) {
            *level += sample.tasks[task].ran.0 as f64 / times.step.0 as f64;
        }
        // A band without height has no outline.
        if floor == below {
            continue;
        }
        let upper =
            times.samples.iter().zip(&floor).map(|(sample, level)| (times.at(sample), *level));
        let lower =
            times.samples.iter().zip(&below).map(|(sample, level)| (times.at(sample), *level));
        let outline: Vec<(f64, f64)> = upper.chain(lower.rev()).collect();
        chart.draw_series([Polygon::new(outline, look.colour.mix(0.75).filled())])?;
    }
    let entries =
        named(scenario.tasks.iter().map(|task| task.name.as_str()).zip(looks.iter().copied()), 9);
    canvas::legend(&right, entries.iter().map(|(name, look)| (name.as_str(), *look)))
}

fn traffic(area: &Area, times: Times) -> Drawn {
    let look = Look { colour: COLOURS[6], dashed: false, width: 2 };
    let value = Box::new(|sample: &Sample| sample.traffic.0 as f64 / 1e9);
    let lines = [Series { name: "memory traffic".to_owned(), look, value }];
    let most = times.samples.iter().map(|sample| (lines[0].value)(sample)).fold(1.0, f64::max);
    let (left, right) = area.split_horizontally(WIDTH - LEGEND_WIDTH);
    let mut chart = ChartBuilder::on(&left)
        .margin(10)
        .x_label_area_size(LABELS.0)
        .y_label_area_size(LABELS.1)
        .build_cartesian_2d(0.0..times.seconds(), 0.0..most * 1.05)?;
    chart
        .configure_mesh()
        .x_max_light_lines(1)
        .y_max_light_lines(1)
        .y_labels(4)
        .y_desc("GB/s")
        .label_style((FONT, 14))
        .axis_desc_style((FONT, 15))
        .bold_line_style(BOLD)
        .light_line_style(LIGHT)
        .draw()?;
    draw_lines(&mut chart, &lines, times)?;
    canvas::legend(&right, lines.iter().map(|line| (line.name.as_str(), line.look)))
}

fn latencies(area: &Area, scenario: &Scenario, times: Times) -> Drawn {
    let services = scenario.tasks.iter().enumerate();
    let services = services.filter(|(_, task)| task.limits.class == Class::LatencyCritical);
    let looks = looks(scenario);
    let of = |task: usize, name: &str, tail: fn(&TaskSample) -> Nanos, dashed| Series {
        name: format!("{} {name}", scenario.tasks[task].name),
        look: Look { dashed, ..looks[task] },
        value: Box::new(move |sample| tail(&sample.tasks[task]).0 as f64 / 1e3),
    };
    let lines: Vec<Series> = services
        .clone()
        .flat_map(|(task, _)| {
            [of(task, "p50", |told| told.p50, true), of(task, "p99.9", |told| told.p999, false)]
        })
        .collect();
    let values =
        times.samples.iter().flat_map(|sample| lines.iter().map(|line| (line.value)(sample)));
    let Some((low, high)) = canvas::decades(values) else { return Ok(()) };
    let (left, right) = area.split_horizontally(WIDTH - LEGEND_WIDTH);
    let mut chart = ChartBuilder::on(&left)
        .margin(10)
        .x_label_area_size(LABELS.0)
        .y_label_area_size(LABELS.1)
        .build_cartesian_2d(0.0..times.seconds(), (low..high).log_scale())?;
    chart
        .configure_mesh()
        .x_max_light_lines(1)
        .y_label_formatter(&|us| canvas::micros(*us))
        .x_desc("seconds")
        .y_desc("latency")
        .label_style((FONT, 14))
        .axis_desc_style((FONT, 15))
        .bold_line_style(BOLD)
        .light_line_style(LIGHT)
        .draw()?;
    draw_lines(&mut chart, &lines, times)?;
    let kinds = [("p99.9", false), ("p50", true)]
        .map(|(name, dashed)| (name, Look { colour: BLACK, dashed, width: 2 }));
    let tasks = named(services.map(|(at, task)| (task.name.as_str(), looks[at])), 2);
    let tasks = tasks.iter().map(|(name, look)| (name.as_str(), *look));
    canvas::legend(&right, kinds.into_iter().chain(tasks))
}

fn draw_lines<X, Y>(chart: &mut canvas::Chart<X, Y>, lines: &[Series], times: Times) -> Drawn
where
    X: plotters::coord::ranged1d::Ranged<ValueType = f64>,
    Y: plotters::coord::ranged1d::Ranged<ValueType = f64>,
{
    for Series { look, value, .. } in lines {
        // Where nothing was answered there is no latency: the line ends and begins anew.
        for run in times.samples.split(|sample| value(sample) <= 0.0) {
            canvas::line(chart, run.iter().map(|sample| (times.at(sample), value(sample))), look)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_sim::file::Simulation;

    const FILE: &str = "version = 1\nlength_ms = 10\n[machine]\npreset = \"caladan\"\n[[task]]\nname = \"cache\"\n\
                        model = \"memcached\"\nrate = 200000\n[[task]]\nname = \"stream\"\nmodel = \"stream-dram\"\n";

    #[test]
    fn every_task_is_drawn_and_named_the_same_to_the_byte() {
        let parse =
            || Simulation::parse(FILE, "x.toml", "x", &|_| unreachable!("it names no file"));
        let Simulation { scenario, .. } = parse().unwrap();
        let mut policy =
            quell_policy::by_name("quell", scenario.host.clone(), Default::default()).unwrap();
        let report = quell_sim::run(&scenario, policy.as_mut());
        let svg = draw(&scenario, "quell", &report).unwrap();
        for text in ["x under quell", "cache", "stream", "memory traffic", "p99.9"] {
            assert!(svg.contains(&format!("\n{text}\n")), "{text}");
        }
        assert_eq!(svg, draw(&scenario, "quell", &report).unwrap());
        let none = Report { timeline: Vec::new(), ..report };
        assert!(draw(&scenario, "quell", &none).is_err());
    }

    #[test]
    fn batch_work_has_no_colour_of_a_service_and_a_long_legend_fits() {
        let task = |name: &str, rest: &str| format!("[[task]]\nname = \"{name}\"\n{rest}\n");
        let services: String = (0..14)
            .map(|at| task(&format!("s{at}"), "model = \"memcached\"\nrate = 1000"))
            .collect();
        let text = format!(
            "version = 1\nlength_ms = 1\n[machine]\npreset = \"caladan\"\n{services}{}{}",
            task("b0", "model = \"hog\""),
            task("b1", "model = \"hog\"")
        );
        let scenario =
            Simulation::parse(&text, "x.toml", "x", &|_| unreachable!()).unwrap().scenario;
        let looks = looks(&scenario);
        let colours: Vec<_> = looks.iter().map(|look| look.colour).collect();
        let distinct =
            |at: usize| colours.iter().filter(|other| **other == colours[at]).count() == 1;
        assert!((0..colours.len()).all(distinct), "{colours:?}");
        let mut policy =
            quell_policy::by_name("static", scenario.host.clone(), Default::default()).unwrap();
        let report = quell_sim::run(&scenario, policy.as_mut());
        let svg = draw(&scenario, "static", &report).unwrap();
        // Names in the legends, each on a line of its own at a place of its own.
        let mut places = Vec::new();
        let mut lines = svg.lines().peekable();
        while let Some(line) = lines.next() {
            let next = lines.peek().copied().unwrap_or_default();
            if line.starts_with("<text") && next.starts_with(['s', 'b']) && next.len() <= 3 {
                let at = |key: &str| {
                    line.split(&format!(" {key}=\"")).nth(1).and_then(|it| it.split('"').next())
                };
                places.push((at("x").map(str::to_owned), at("y").map(str::to_owned)));
            }
        }
        let count = places.len();
        places.sort();
        places.dedup();
        assert_eq!((count, places.len()), (30, 30), "16 beside the cores, 14 beside the latencies");
    }
}
