//! `quell generate` and `quell-lab generate`: man pages and shell completions, from what `--help` is made of. For packages.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Command, Subcommand};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

/// Write man pages or shell completions (for packages)
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Subcommand)]
enum What {
    /// Write a man page for each command
    Man {
        /// Where to; made if it is not there
        dir: PathBuf,
    },
    /// Write completions for bash, zsh and fish
    Completions {
        /// Where to; made if it is not there
        dir: PathBuf,
    },
}

/// Which program's pages and completions are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `quell`, with a page for each of its own commands. Those of `quell-lab` have their pages from there.
    Quell,
    /// `quell-lab`, whose commands users type as those of `quell`.
    Lab,
}

impl Program {
    /// The name under which completions are registered.
    fn name(self) -> &'static str {
        match self {
            Program::Quell => "quell",
            Program::Lab => "quell-lab",
        }
    }
}

/// Writes what was asked for. `command` is the command line as it is parsed.
///
/// # Errors
/// When a file cannot be written.
pub fn run(args: Args, command: &Command, program: Program) -> Result<ExitCode> {
    match args.what {
        What::Man { dir } => {
            made(&dir)?;
            // Users type the commands of quell-lab as those of quell.
            let mut quell = without_hidden(command, Program::Quell.name());
            quell.build();
            match program {
                Program::Quell => man_pages(&quell, None, &dir)?,
                Program::Lab => {
                    let mut pages = quell.get_subcommands();
                    pages.try_for_each(|page| man_pages(page, Some("quell"), &dir))?;
                }
            }
        }
        What::Completions { dir } => {
            made(&dir)?;
            let mut shown = without_hidden(command, program.name());
            for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
                let path = clap_complete::generate_to(shell, &mut shown, program.name(), &dir)
                    .with_context(|| dir.display().to_string())?;
                if program == Program::Lab && shell == Shell::Bash {
                    let script = bash_of_lab(&mut without_hidden(command, "quell_lab"));
                    fs::write(&path, script).with_context(|| path.display().to_string())?;
                }
                if program == Program::Quell {
                    let passed_on = File::options().append(true).open(&path);
                    passed_on
                        .and_then(|mut file| file.write_all(passed_on_to_lab(shell).as_bytes()))
                        .with_context(|| path.display().to_string())?;
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn made(dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())
}

/// Bash's completions of `quell-lab`. clap_complete takes the hyphen of the name for a subcommand's, so they are made for
/// another name and registered for this one.
fn bash_of_lab(lab: &mut Command) -> String {
    let mut script = Vec::new();
    clap_complete::generate(Shell::Bash, lab, "quell_lab", &mut script);
    String::from_utf8_lossy(&script).replace(" quell_lab\n", " quell-lab\n")
}

/// What a shell's completions of `quell` need besides, for the commands that `quell-lab` runs: its own completions answer.
fn passed_on_to_lab(shell: Shell) -> &'static str {
    match shell {
        Shell::Bash => {
            r#"
# quell-lab runs these commands; its completions know their arguments.
_quell_or_lab() {
    case "${COMP_WORDS[1]}" in
    bench | load | sim)
        if [ "$COMP_CWORD" -gt 1 ]; then
            declare -F _quell_lab >/dev/null || _completion_loader quell-lab 2>/dev/null || :
            if declare -F _quell_lab >/dev/null; then
                COMP_WORDS[0]=quell-lab
                _quell_lab quell-lab "$2" "$3"
                return
            fi
        fi
        ;;
    esac
    _quell "$@"
}
complete -F _quell_or_lab -o nosort -o bashdefault -o default quell
"#
        }
        Shell::Fish => {
            r#"
# quell-lab runs these commands; its completions know their arguments.
complete -c quell -n "__fish_seen_subcommand_from bench load sim" -f \
    -a "(complete -C (string replace -r '^\S+' quell-lab -- (commandline -cp)))"
"#
        }
        _ => {
            r#"
# quell-lab runs these commands; its completions know their arguments.
if (( $+functions[compdef] )); then
    _quell_or_lab() {
        if [[ $CURRENT -gt 2 && $words[2] == (bench|load|sim) ]] && autoload +X -Uz _quell-lab 2>/dev/null; then
            words[1]=quell-lab
            _quell-lab "$@"
        else
            _quell "$@"
        fi
    }
    compdef _quell_or_lab quell
fi
"#
        }
    }
}

/// Completions would offer what is hidden from `--help`.
fn without_hidden(quell: &Command, name: &'static str) -> Command {
    let shown = quell.get_subcommands().filter(|sub| !sub.is_hide_set()).cloned();
    let copy = Command::new(name)
        .version(env!("CARGO_PKG_VERSION"))
        .propagate_version(true)
        .disable_help_subcommand(true)
        .subcommands(shown);
    if let (Some(about), Some(long)) = (quell.get_about(), quell.get_long_about()) {
        return copy.about(about.clone()).long_about(long.clone());
    }
    copy
}

/// Writes the page of a command, and those of its subcommands. The command was built.
fn man_pages(command: &Command, parent: Option<&str>, dir: &Path) -> Result<()> {
    let name = command.get_display_name().unwrap_or(command.get_name());
    let man = Man::new(command.clone())
        // Empty, it would be left out, and what follows take its place.
        .date(" ")
        .source(format!("quell {}", env!("CARGO_PKG_VERSION")))
        .manual("Quell");
    let path = dir.join(man.get_filename());
    let mut file = File::create(&path).with_context(|| path.display().to_string())?;
    man.render_title(&mut file)?;
    man.render_name_section(&mut file)?;
    man.render_synopsis_section(&mut file)?;
    man.render_description_section(&mut file)?;
    man.render_options_section(&mut file)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut file)?;
    }
    beyond_help(command, name, parent).to_writer(&mut file)?;
    command
        .get_subcommands()
        .filter(|sub| !is_of_lab(sub))
        .try_for_each(|sub| man_pages(sub, Some(name), dir))
}

/// Whether `quell-lab` writes the page of a command of `quell`.
fn is_of_lab(command: &Command) -> bool {
    command.is_disable_help_flag_set()
}

/// The sections of a man page that `--help` does not have.
fn beyond_help(command: &Command, name: &str, parent: Option<&str>) -> Roff {
    let mut roff = Roff::new();
    section(&mut roff, "EXIT STATUS", &exit_status(name));
    let runs = command.get_arguments().any(|arg| arg.get_id() == "run_dir");
    let mut files = Vec::new();
    let mut environment = Vec::new();
    if runs || parent.is_none() {
        files.push(("/run/quell", "Control socket, lock and journal of the running daemon."));
        files.push(("/etc/quell/quell.toml", "The configuration that quell.service runs."));
        environment.push((
            "QUELL_RUN_DIR",
            "The run directory: another one than /run/quell. It has to be on a tmpfs.",
        ));
    }
    environment.push((
        "RUST_LOG",
        "What is logged to standard error: \"warn\" by default, \"quell::audit=info\" for each change of the host \
         with the value before and after, \"debug\" for more.",
    ));
    section(&mut roff, "FILES", &files);
    section(&mut roff, "ENVIRONMENT", &environment);
    see_also(&mut roff, command, parent);
    roff
}

fn exit_status(name: &str) -> Vec<(&'static str, &'static str)> {
    let no = match name {
        "quell-doctor" => Some("Something that Quell needs is absent."),
        "quell-load-memcached" | "quell-load-synthetic" => {
            Some("The generator was the limit: what it measured says little about the server.")
        }
        "quell-bench-report" => Some("With --check: something is out of date."),
        _ => None,
    };
    let mut statuses = vec![("0", "Done.")];
    statuses.extend(no.map(|no| ("1", no)));
    statuses.push(("2", "An error, told in one line on standard error."));
    statuses
}

fn section(roff: &mut Roff, title: &str, entries: &[(&str, &str)]) {
    if !entries.is_empty() {
        roff.control("SH", [title]);
    }
    for (term, meaning) in entries {
        roff.control("TP", []).text([bold(*term)]).text([roman(*meaning)]);
    }
}

fn see_also(roff: &mut Roff, command: &Command, parent: Option<&str>) {
    let mut pages: Vec<&str> = parent.into_iter().collect();
    if parent.is_some_and(|parent| parent != "quell") {
        pages.push("quell");
    }
    pages.extend(command.get_subcommands().filter_map(Command::get_display_name));
    roff.control("SH", ["SEE ALSO"]);
    let mut text = Vec::new();
    for page in pages {
        text.extend([bold(page), roman("(1), ")]);
    }
    text.push(roman("/usr/share/doc/quell/"));
    roff.text(text);
}
