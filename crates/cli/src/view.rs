//! `quell view`: a trace as a page, an image, or served.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;
use quell_model::{CoreId, Nanos};
use quell_trace::stream::Source;
use quell_view::classic::{self, Samples};
use quell_view::image::{self, Panels, Style};
use quell_view::serve::Server;
use quell_view::{Builder, Marks, Palette, Picture, Range, Theme, page};

use crate::lab;
use crate::trace_file::TraceFile;

/// Show a trace: run queues and load of every core over time, what idled while others waited, each thread
///
/// Writes a page that needs no network and opens in any browser; with -o FILE.png or .svg, an image. Press ? in
/// the page for its keys. --serve answers the same page piece by piece from this machine, for traces that are
/// too large for one file, until Ctrl-C.
///
/// Exit status 1: the trace is damaged; what came before is shown.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    trace: TraceFile,
    /// Write this file: .html, .png or .svg [default: TRACE.html]
    #[arg(short, long, value_name = "FILE", conflicts_with = "serve")]
    output: Option<PathBuf>,
    /// Serve the page here until Ctrl-C [default: 127.0.0.1, any free port]
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "127.0.0.1:0")]
    serve: Option<SocketAddr>,
    /// Show only this part, in seconds from the first event, like `1.5-2.25`
    #[arg(long, value_name = "FROM-TO", value_parser = range)]
    range: Option<Range>,
    /// The width of an image; a PNG has twice as many pixels
    #[arg(long, value_name = "N", default_value_t = 1_200, value_parser = clap::value_parser!(u32).range(300..=8_000))]
    width: u32,
    /// The colours of an image; in a page they can be switched
    #[arg(long, value_enum, default_value_t = Colours::Safe)]
    colours: Colours,
    /// An image on a dark background
    #[arg(long)]
    dark: bool,
    /// What an image shows of each core: its run queue, its load, or both
    #[arg(long, value_enum, default_value_t = Panel::Both)]
    panel: Panel,
    /// What an image marks: `wasted` (idle while overloaded), `bad-wakeups` (a thread was woken onto a busy core beside an
    /// idle one), `considered:CORE` (the cores that its searches looked at), `none`
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = mark, default_value = "wasted")]
    marks: Vec<Mark>,
    /// A PNG in the layout of the Wasted Cores authors' tool: two pixels a core, 0.6 ms a pixel, the last state
    #[arg(long, requires = "output", conflicts_with_all = ["width", "colours", "dark", "panel", "marks"])]
    wasted_cores_layout: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum Colours {
    /// Told apart by colour-blind readers too
    Safe,
    /// Those of the Wasted Cores paper
    Paper,
}

#[derive(Clone, Copy, ValueEnum)]
enum Panel {
    Queue,
    Load,
    Both,
}

/// One of `--marks`.
#[derive(Clone, Copy, PartialEq)]
enum Mark {
    None,
    Wasted,
    BadWakeups,
    Considered(CoreId),
}

/// What `--marks` asks for.
fn marks(list: &[Mark]) -> Marks {
    let considered_by = list.iter().rev().find_map(|mark| match mark {
        Mark::Considered(core) => Some(*core),
        _ => None,
    });
    let has = |mark| list.contains(&mark);
    Marks { wasted: has(Mark::Wasted), bad_wakeups: has(Mark::BadWakeups), considered_by }
}

pub fn run(args: Args) -> Result<ExitCode> {
    let mut source = args.trace.open()?;
    let (status, written) = match (&args.serve, args.wasted_cores_layout) {
        (Some(at), _) => return serve(&args, source.as_mut(), *at),
        (None, true) => (ExitCode::SUCCESS, classic(&args, source.as_mut())?),
        (None, false) => write(&args, source.as_mut())?,
    };
    for remark in source.remarks() {
        eprintln!("{remark}");
    }
    println!("wrote {}", written.display());
    Ok(status)
}

/// Reads the trace; what follows on damage is left out, and said.
fn picture(args: &Args, source: &mut dyn Source) -> Result<(Picture, ExitCode)> {
    let builder = Builder::new(source.meta().clone(), args.range.unwrap_or(Range::ALL))?;
    let mut builder = builder.with_marks(marks(&args.marks));
    let mut status = ExitCode::SUCCESS;
    for event in source {
        match event {
            Ok(event) if builder.push(&event)? => {}
            Ok(_) => break,
            Err(err) => {
                eprintln!("{}: {err}; what came before is shown", args.trace.name());
                status = ExitCode::from(1);
                break;
            }
        }
    }
    Ok((builder.finish()?, status))
}

fn write(args: &Args, source: &mut dyn Source) -> Result<(ExitCode, PathBuf)> {
    let path = match &args.output {
        Some(path) => path.clone(),
        None => PathBuf::from(format!("{}.html", args.trace.name())),
    };
    let kind = path.extension().and_then(|kind| kind.to_str()).unwrap_or_default().to_owned();
    let style = Style {
        width: args.width,
        palette: match args.colours {
            Colours::Safe => Palette::Safe,
            Colours::Paper => Palette::Paper,
        },
        theme: if args.dark { Theme::Dark } else { Theme::Light },
        panels: match args.panel {
            Panel::Queue => Panels::Queue,
            Panel::Load => Panels::Load,
            Panel::Both => Panels::Both,
        },
    };
    if !matches!(kind.as_str(), "html" | "png" | "svg") {
        bail!("{}: a page or an image is .html, .png or .svg", path.display());
    }
    let (picture, status) = picture(args, source)?;
    let name = || path.display().to_string();
    match kind.as_str() {
        "html" => write_page(&picture, &path).with_context(name)?,
        "png" => write_png(&image::svg(&picture, &style)?, &path).with_context(name)?,
        _ => std::fs::write(&path, image::svg(&picture, &style)?).with_context(name)?,
    }
    Ok((status, path))
}

fn write_page(picture: &Picture, path: &Path) -> std::io::Result<()> {
    let mut out = BufWriter::new(File::create(path)?);
    page::write(picture, &mut out)?;
    out.flush()
}

/// Lets `quell-lab` render the image.
fn write_png(svg: &str, path: &Path) -> Result<()> {
    let program = lab::find().context("an image as .png needs quell-lab (an .svg does not)")?;
    let mut child = Command::new(&program)
        .arg("render")
        .arg(path)
        .stdin(Stdio::piped())
        .spawn()
        .with_context(|| format!("start {}", program.display()))?;
    // Closed at the end of the statement: the program reads up to there.
    let written = child.stdin.take().map_or(Ok(()), |mut input| input.write_all(svg.as_bytes()));
    let status = child.wait()?;
    ensure!(status.success(), "{} ended with {status}", program.display());
    written.context("pass the image on")
}

fn classic(args: &Args, source: &mut dyn Source) -> Result<PathBuf> {
    let Some(path) =
        args.output.clone().filter(|path| path.extension().is_some_and(|kind| kind == "png"))
    else {
        bail!("--wasted-cores-layout draws an image: name a .png with -o");
    };
    let meta = source.meta().clone();
    let events = source.map(|event| event.with_context(|| args.trace.name()));
    let range = args.range.unwrap_or(Range::ALL);
    let samples = Samples::of(&meta, events, range, classic::NS_PER_PIXEL)?;
    std::fs::write(&path, samples.to_png()?).with_context(|| path.display().to_string())?;
    Ok(path)
}

fn serve(args: &Args, source: &mut dyn Source, at: SocketAddr) -> Result<ExitCode> {
    let (picture, _) = picture(args, source)?;
    let server = Server::bind(at, picture).with_context(|| format!("serve at {at}"))?;
    println!("serving {} at http://{}/ until Ctrl-C", args.trace.name(), server.address()?);
    server.run()?;
    Ok(ExitCode::SUCCESS)
}

fn range(text: &str) -> Result<Range, String> {
    let seconds = |part: &str| {
        let seconds = part.trim().parse::<f64>().ok();
        let seconds = seconds.filter(|seconds| *seconds >= 0.0 && *seconds < 1e9);
        seconds.map(|seconds| Nanos((seconds * 1e9) as u64))
    };
    let parts = text.split_once('-').and_then(|(from, to)| Some((seconds(from)?, seconds(to)?)));
    match parts {
        Some((from, to)) if from < to => Ok(Range { from, to }),
        _ => Err(format!("`{text}` is no part of a trace; write it like `1.5-2.25`, in seconds")),
    }
}

fn mark(text: &str) -> Result<Mark, String> {
    let considered = |core: &str| core.parse().ok().map(|core| Mark::Considered(CoreId(core)));
    let mark = match text {
        "none" => Some(Mark::None),
        "wasted" => Some(Mark::Wasted),
        "bad-wakeups" => Some(Mark::BadWakeups),
        _ => text.strip_prefix("considered:").and_then(considered),
    };
    mark.ok_or_else(|| {
        format!(
            "`{text}` is no mark: wasted, bad-wakeups, considered:CORE, such as considered:0, none"
        )
    })
}
