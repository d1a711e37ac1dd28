//! `quell lane run`: lanes until Ctrl-C.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, ensure};
use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use quell_control::lanes::{LaneConfig, LanePattern, LanesConfig, MemberConfig};
use quell_daemon::lanes;
use quell_model::Children;

use crate::client::read_config;
use quell_terminal::quantity::seconds;

/// Put threads on a lane until Ctrl-C, or until all of them have ended
///
/// Members are named A, B, C and so on, in this order: commands, then --pid, then --tid. Whoever sleeps is left out at
/// once. Whatever ends the lane, Ctrl-C or SIGKILL, every thread gets its policy, priority and affinity back.
/// Programs that it started are ended with it, but after SIGKILL they run on without a lane. Needs root.
///
/// Examples:
///
///   quell lane run --core 1 --slice 20us -- ./a ./b
///
///   quell lane run --core 1 --table A,B,A,C --slice 50us -- ./server ./batch "./report --all"
///
///   quell lane run --core 1 --edf A:10ms/2ms,B:50ms/20ms --pid 4711 --tid 4790
///
///   quell lane run --pattern dedicated lanes.toml
#[derive(clap::Args)]
#[command(verbatim_doc_comment)]
pub struct Args {
    /// Lanes from this file instead of flags (see docs/reference/lanes.md)
    file: Option<PathBuf>,
    /// The lane's core [default: the last one]
    #[arg(long, value_name = "N", conflicts_with = "file")]
    core: Option<u16>,
    /// Policy that picks the next member [default: implied by the other flags, else round-robin]
    #[arg(long, value_name = "POLICY", conflicts_with = "file",
          value_parser = clap::builder::PossibleValuesParser::new(lanes::POLICIES))]
    policy: Option<String>,
    /// Length of a slice, from 5us: round-robin, table, fair [default: 100us]
    #[arg(long, value_name = "TIME", conflicts_with = "file")]
    slice: Option<String>,
    /// Order of the slices, repeated: A,A,B,C, or with own lengths A:50us,B:20us
    #[arg(long, value_name = "SLOTS", conflicts_with = "file")]
    table: Option<String>,
    /// Time after which the running member must yield if others wait: preemptive [default: 50us]
    #[arg(long, value_name = "TIME", conflicts_with = "file")]
    quantum: Option<String>,
    /// When who was preempted is resumed at the latest: preemptive [default: 10ms]
    #[arg(long, value_name = "TIME", conflicts_with = "file")]
    resume_after: Option<String>,
    /// Period and runtime of each member, and a deadline if it is not the end of the period: A:10ms/2ms,B:5ms/1ms/3ms
    #[arg(long, value_name = "PARAMS", conflicts_with = "file")]
    edf: Option<String>,
    /// Shares of the core: A:3,B:1
    #[arg(long, value_name = "WEIGHTS", conflicts_with = "file")]
    weights: Option<String>,
    /// Put all threads of this process on the lane; may be repeated
    #[arg(long, value_name = "PID", conflicts_with = "file")]
    pid: Vec<i32>,
    /// Put this thread on the lane, alone; may be repeated
    #[arg(long, value_name = "TID", conflicts_with = "file")]
    tid: Vec<i32>,
    /// How the scheduler waits for the end of a turn [default: shared, or what the file says]
    #[arg(long)]
    pattern: Option<Pattern>,
    /// Where a dedicated scheduler spins [default: the first core without a lane]
    #[arg(long, value_name = "N")]
    scheduler_core: Option<u16>,
    /// What becomes of processes that members create [default: adopt, or what the file says]
    #[arg(long, value_parser = children())]
    children: Option<Children>,
    /// End by itself after this time, e.g. 10s
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    duration: Option<Duration>,
    /// Print what the lanes did as JSON at the end
    #[arg(long)]
    json: bool,
    /// Say nothing unless something is wrong
    #[arg(long, short)]
    quiet: bool,
    /// The run directory for journals and sockets [default: as for `quell run`]
    #[arg(long, value_name = "DIR")]
    run_dir: Option<PathBuf>,
    /// Programs to start on the lane, each one argument for a shell
    #[arg(last = true, value_name = "COMMAND", conflicts_with = "file")]
    commands: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Pattern {
    /// Asleep on the lane's own core, on a timer
    Shared,
    /// Spinning on a core without a lane, for all lanes
    Dedicated,
}

fn children() -> impl TypedValueParser<Value = Children> {
    PossibleValuesParser::new([
        PossibleValue::new("adopt").help("They take turns with the member that created them"),
        PossibleValue::new("leave").help("They run as if there were no lane"),
    ])
    .map(|typed| if typed == "leave" { Children::Leave } else { Children::Adopt })
}

pub fn run(args: Args) -> Result<ExitCode> {
    let mut lanes = match &args.file {
        Some(file) => LanesConfig::parse(&read_config(file)?, &file.display().to_string())?,
        None => typed(&args)?,
    };
    match args.pattern {
        Some(Pattern::Shared) => lanes.pattern = LanePattern::Shared,
        Some(Pattern::Dedicated) => lanes.pattern = LanePattern::Dedicated,
        None => {}
    }
    lanes.children = args.children.unwrap_or(lanes.children);
    lanes.scheduler_core = args.scheduler_core.or(lanes.scheduler_core);
    let status = lanes::run(lanes::Options {
        lanes,
        run_dir: args.run_dir.unwrap_or_else(quell_control::run_dir::default_run_dir),
        hold_for: args.duration,
        verbose: !args.quiet,
        companion: None,
    })?;
    match args.json {
        true => println!("{}", serde_json::to_string(&status)?),
        false if args.quiet => {}
        false => super::status::show(&serde_json::to_value(&status)?),
    }
    Ok(ExitCode::SUCCESS)
}

/// One lane from flags.
fn typed(args: &Args) -> Result<LanesConfig> {
    let commands = args
        .commands
        .iter()
        .map(|command| MemberConfig { command: Some(command.clone()), ..MemberConfig::default() });
    let pids = args.pid.iter().map(|pid| MemberConfig { pid: Some(*pid), ..Default::default() });
    let tids = args.tid.iter().map(|tid| MemberConfig { tid: Some(*tid), ..Default::default() });
    let member: Vec<MemberConfig> = commands.chain(pids).chain(tids).collect();
    ensure!(
        !member.is_empty(),
        "nobody is to run on the lane: name programs after `--`, or use --pid or --tid, or a file of lanes"
    );
    let last = || {
        let topology = quell_observe::topology::read()?;
        Ok::<_, anyhow::Error>(topology.cores().last().map_or(0, |core| core.id.0))
    };
    let lane = LaneConfig {
        core: args.core.map_or_else(last, Ok)?,
        policy: args.policy.clone(),
        slice: args.slice.clone(),
        table: args.table.clone(),
        quantum: args.quantum.clone(),
        resume_after: args.resume_after.clone(),
        edf: args.edf.clone(),
        weights: args.weights.clone(),
        member,
    };
    Ok(LanesConfig { lane: vec![lane], ..LanesConfig::default() })
}
