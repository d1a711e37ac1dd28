//! `quell lane run`: a lane until Ctrl-C, beside a daemon or with one of its own.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use quell_control::client::{Client, ClientError};
use quell_control::config::{LaneConfig, LanePattern, Launch, MemberConfig};
use quell_control::protocol::{Method, Reply, Status};
use quell_daemon::Launched;
use quell_model::{Children, CoreId, CoreSet};
use quell_observe::{procs, topology};
use quell_terminal::interrupted;
use quell_terminal::quantity::seconds;
use serde::Serialize;

use super::status::{self, Lanes};
use crate::client::read_config;

/// Between two looks whether a thread is left.
const LOOK: Duration = Duration::from_millis(200);
/// How long a daemon of its own may take to start: the verifier may take seconds on a busy host.
const START: Duration = Duration::from_secs(30);
/// How long it may take to restore everything.
const END: Duration = Duration::from_secs(20);

/// Put threads on a lane until Ctrl-C, or until all of them have ended
///
/// Members are named A, B, C and so on, in this order: commands, then --pid, then --tid. Whoever
/// sleeps is left out at once. Where a daemon runs, the lane is a task of it for as long as this
/// command runs, on a core that it manages; else the command starts one, which ends with it.
/// Whatever ends the lane, Ctrl-C or SIGKILL, every thread gets its policy, priority and affinity
/// back. Programs that it started are ended with it, but after SIGKILL they run on without a lane.
/// Needs root.
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
    /// The tasks of this configuration instead of flags (see docs/reference/lanes.md)
    file: Option<PathBuf>,
    /// The lane's core [default: the last one]
    #[arg(long, value_name = "N", conflicts_with = "file")]
    core: Option<u16>,
    /// Its name among the tasks [default: lane-N, by its core]
    #[arg(long, value_name = "NAME", conflicts_with = "file")]
    name: Option<String>,
    /// Policy that picks the next member [default: implied by the other flags, else round-robin]
    #[arg(long, value_name = "POLICY", conflicts_with = "file",
          value_parser = clap::builder::PossibleValuesParser::new(quell_daemon::LANE_POLICIES))]
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
    /// How the scheduler waits for the end of a slice [default: shared]
    #[arg(long, conflicts_with = "file")]
    pattern: Option<Pattern>,
    /// Where a dedicated scheduler spins [default: the first unmanaged core]
    #[arg(long, value_name = "N", conflicts_with = "file")]
    scheduler_core: Option<u16>,
    /// What becomes of processes that members create [default: adopt]
    #[arg(long, conflicts_with = "file", value_parser = children())]
    children: Option<Children>,
    /// End by itself after this time, e.g. 10s
    #[arg(long, value_name = "TIME", value_parser = seconds)]
    duration: Option<Duration>,
    /// Print what the lane did as JSON at the end
    #[arg(long)]
    json: bool,
    /// Say nothing unless something is wrong
    #[arg(long, short)]
    quiet: bool,
    /// The run directory of the daemon [default: as for `quell run`]
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
    /// Spinning on an unmanaged core, for all lanes that name it
    Dedicated,
}

fn children() -> impl TypedValueParser<Value = Children> {
    PossibleValuesParser::new([
        PossibleValue::new("adopt").help("They share the slices of the member that created them"),
        PossibleValue::new("leave").help("They run as if there were no lane"),
    ])
    .map(|typed| if typed == "leave" { Children::Leave } else { Children::Adopt })
}

pub fn run(args: Args) -> Result<ExitCode> {
    ensure!(
        rustix::process::geteuid().is_root(),
        "this needs root: lanes change priorities and affinities and load BPF programs"
    );
    let stop = interrupted()?;
    let mut programs = Programs::default();
    let (file, wanted) = match &args.file {
        Some(file) => (file.display().to_string(), of_file(file)?),
        None => ("the command line".to_owned(), of_flags(&args, &mut programs)?),
    };
    let dir = args.run_dir.clone().unwrap_or_else(quell_control::run_dir::default_run_dir);
    let mut session = Session::open(&dir, &wanted.host)?;
    let (said, mut attached) =
        match session.client.call(Method::Attach { file, text: wanted.tasks }) {
            Ok(Reply::Done(said)) => (Ok(said), wanted.names),
            Ok(other) => (Err(anyhow!("the daemon answered out of turn: {other:?}")), Vec::new()),
            Err(err) => (Err(err.into()), Vec::new()),
        };
    let ended = said.and_then(|said| {
        said.iter().filter(|_| !args.quiet).for_each(|line| eprintln!("{line}; Ctrl-C ends it"));
        programs.release()?;
        session.watch(&attached, &stop, args.duration)
    });
    let last = session.close(std::mem::take(&mut attached));
    drop(programs);
    let lanes = ended?;
    last?;
    match args.json {
        true => println!("{}", serde_json::to_string(&lanes)?),
        false if args.quiet => {}
        false => status::show(&lanes),
    }
    Ok(ExitCode::SUCCESS)
}

/// What a daemon is asked for.
struct Wanted {
    /// For one of its own.
    host: String,
    /// The tasks to attach.
    tasks: String,
    /// Their names.
    names: Vec<String>,
}

#[derive(Serialize)]
struct Tasks<'a> {
    task: [Task<'a>; 1],
}

#[derive(Serialize)]
struct Task<'a> {
    name: &'a str,
    class: &'static str,
    cores: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    children: Option<Children>,
    lane: LaneConfig,
}

/// The tasks of a file; a daemon of its own takes the file's `[host]` table.
fn of_file(file: &Path) -> Result<Wanted> {
    let name = file.display().to_string();
    let tasks = read_config(file)?;
    let config = quell_control::config::Config::parse(&tasks, &name)?;
    let mut table: toml::Table = tasks.parse().with_context(|| name.clone())?;
    table.remove("task");
    let names = config.tasks.into_iter().map(|task| task.name).collect::<Vec<_>>();
    ensure!(!names.is_empty(), "{name}: no [[task]] is described");
    Ok(Wanted { host: table.to_string(), tasks, names })
}

/// One lane from flags, its programs started and stopped before their first instruction.
fn of_flags(args: &Args, programs: &mut Programs) -> Result<Wanted> {
    let count = args.commands.len() + args.pid.len() + args.tid.len();
    ensure!(
        count > 0,
        "nobody is to run on the lane: name programs after `--`, or use --pid or --tid, or a file of tasks"
    );
    let online = topology::online()?;
    let core = args.core.map(CoreId).or(online.iter().last()).unwrap_or(CoreId(0));
    ensure!(online.contains(core), "there is no core {core} online; there are {online}");
    let pattern = match args.pattern {
        Some(Pattern::Dedicated) => LanePattern::Dedicated,
        Some(Pattern::Shared) | None => LanePattern::Shared,
    };
    let host = host_table(&online, core, pattern, args.scheduler_core)?;
    let of = |pid: i32| MemberConfig { pid: Some(pid), ..MemberConfig::default() };
    let mut member = Vec::with_capacity(count);
    for command in &args.commands {
        member.push(of(programs.launch(command)?));
    }
    member.extend(args.pid.iter().map(|pid| of(*pid)));
    member.extend(
        args.tid.iter().map(|tid| MemberConfig { tid: Some(*tid), ..MemberConfig::default() }),
    );
    let name = args.name.clone().unwrap_or_else(|| format!("lane-{core}"));
    let lane = LaneConfig {
        pattern,
        scheduler_core: args.scheduler_core,
        policy: args.policy.clone(),
        slice: args.slice.clone(),
        table: args.table.clone(),
        quantum: args.quantum.clone(),
        resume_after: args.resume_after.clone(),
        edf: args.edf.clone(),
        weights: args.weights.clone(),
        member,
    };
    let (cores, children) = (core.to_string(), args.children);
    let tasks = Tasks { task: [Task { name: &name, class: "be", cores, children, lane }] };
    Ok(Wanted { host, tasks: toml::to_string(&tasks)?, names: vec![name] })
}

/// The `[host]` table of a daemon of its own: it manages all cores but one, so that lanes of later commands find theirs.
fn host_table(
    online: &CoreSet,
    core: CoreId,
    pattern: LanePattern,
    scheduler_core: Option<u16>,
) -> Result<String> {
    let free = online.difference(&CoreSet::of(core));
    let unmanaged = scheduler_core.map(CoreId).or(free.first());
    let Some(unmanaged) = unmanaged.filter(|core| free.contains(*core)) else {
        bail!(
            "the cores without the lane are {free}: one of them has to stay as it is, or nothing could end the lane"
        );
    };
    let managed = online.difference(&CoreSet::of(unmanaged));
    let mut table = format!("[host]\nmanaged = \"{managed}\"\n");
    if pattern == LanePattern::Dedicated {
        // The scheduler leaves nothing of the only unmanaged core; where the kernel has no fair server, throttling does.
        table += "rt_throttling = \"leave\"\n";
        eprintln!(
            "degraded: the scheduler spins on core {unmanaged}, the only unmanaged one: everything else there has what \
             the kernel's fair server or its throttling leaves of it"
        );
    }
    Ok(table)
}

/// Programs that this command started; ended when dropped.
#[derive(Default)]
struct Programs(Vec<Launched>);

impl Programs {
    fn launch(&mut self, command: &str) -> Result<i32> {
        let launch = Launch {
            command: vec!["sh".into(), "-c".into(), command.to_owned()],
            cwd: None,
            env: Vec::new(),
            output: None,
        };
        let launched = Launched::spawn_here(&launch);
        self.0.push(launched.with_context(|| format!("cannot start `{command}`"))?);
        Ok(self.0[self.0.len() - 1].pid())
    }

    /// All at once, when all members are on the lane.
    fn release(&self) -> Result<()> {
        self.0.iter().try_for_each(|it| it.release().context("a member does not start"))
    }
}

impl Drop for Programs {
    fn drop(&mut self) {
        for program in &mut self.0 {
            let pid = program.pid();
            program.end(&|| {
                procs::descendants(pid).into_iter().filter(|pid| procs::exists(*pid)).collect()
            });
        }
    }
}

/// A connection for the lane's lifetime, and the daemon if it is this command's own.
struct Session {
    client: Client,
    own: Option<Child>,
}

impl Session {
    fn open(dir: &Path, host: &str) -> Result<Session> {
        let socket = quell_daemon::socket_path(dir);
        match Client::connect(&socket) {
            Ok(client) => Ok(Session { client, own: None }),
            Err(ClientError::NotRunning(_)) => Session::start(dir, &socket, host),
            Err(err) => Err(err.into()),
        }
    }

    fn start(dir: &Path, socket: &Path, host: &str) -> Result<Session> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["run", "--quiet", "--while-attached", "--run-dir"]).arg(dir);
        // Its own group: Ctrl-C is for this command, which ends the lane in order.
        command.arg("/dev/stdin").stdin(Stdio::piped()).stdout(Stdio::null()).process_group(0);
        let mut child = command.spawn().context("start a daemon")?;
        let mut stdin = child.stdin.take().context("the daemon's standard input")?;
        stdin.write_all(host.as_bytes()).context("the daemon's configuration")?;
        drop(stdin);
        let until = Instant::now() + START;
        loop {
            if let Ok(client) = Client::connect(socket) {
                return Ok(Session { client, own: Some(child) });
            }
            if let Some(status) = child.try_wait()? {
                bail!("no daemon could be started for the lane ({status}); what it said is above");
            }
            if Instant::now() >= until {
                // Nothing was attached to it: it ends by itself.
                bail!("the daemon that was started for the lane does not answer");
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn status(&mut self) -> Result<Status> {
        match self.client.call(Method::Status)? {
            Reply::Status(status) => Ok(*status),
            other => bail!("the daemon answered out of turn: {other:?}"),
        }
    }

    /// Waits until it is over; what the lanes did until then.
    fn watch(
        &mut self,
        names: &[String],
        stop: &AtomicBool,
        duration: Option<Duration>,
    ) -> Result<Lanes> {
        let until = duration.map(|time| Instant::now() + time);
        let mut was_empty = false;
        loop {
            let status =
                self.status().context("the daemon is gone; its guardians gave everything back")?;
            let left: Vec<_> =
                status.tasks.iter().filter(|task| names.contains(&task.name)).collect();
            // Twice: threads that were attached a moment ago may not be counted yet.
            let empty = left.iter().all(|task| task.threads == 0);
            let over = left.is_empty() || (empty && was_empty);
            was_empty = empty;
            let asked =
                stop.load(Ordering::Relaxed) || until.is_some_and(|until| Instant::now() >= until);
            if over || asked {
                return Ok(Lanes::of(&status, |name| names.contains(name)));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Removes the tasks, and ends a daemon of its own to which no other command attached any.
    fn close(mut self, attached: Vec<String>) -> Result<()> {
        for task in attached {
            // One that was removed meanwhile is gone already.
            let _ = self.client.call(Method::Remove { task });
        }
        let Some(mut own) = self.own.take() else { return Ok(()) };
        if self.status().is_ok_and(|status| !status.tasks.is_empty()) {
            return Ok(());
        }
        // One that has ended by itself gave everything back, or its guardians did.
        let _ = self.client.call(Method::Stop { keep_programs: false });
        let until = Instant::now() + END;
        while own.try_wait()?.is_none() {
            ensure!(
                Instant::now() < until,
                "the daemon does not end; `quell restore` gives all back"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}
