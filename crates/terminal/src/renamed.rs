//! Commands and options of earlier releases: refused with the new name, never accepted.

use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error, Parser};

/// What a program renamed. A path is that of the command, below the program: `lane run`.
#[derive(Clone, Copy, Debug)]
pub struct Renamed {
    /// Commands: the path of their parent, the old name and the new one.
    pub commands: &'static [(&'static str, &'static str, &'static str)],
    /// Options: the path of their command, the old name and the new one.
    pub options: &'static [(&'static str, &'static str, &'static str)],
}

impl Renamed {
    /// Parses the command line. Ends the process where clap answers: help, version, misuse.
    ///
    /// # Errors
    /// The new name of what was renamed, as a sentence.
    pub fn parse<P: Parser>(&self) -> Result<P, String> {
        let args: Vec<OsString> = std::env::args_os().skip(1).collect();
        match P::try_parse() {
            Ok(parsed) => self.command(&words(&args)).map_or(Ok(parsed), Err),
            Err(err) => {
                Err(self.notice(&err, &P::command(), &words(&args)).unwrap_or_else(|| err.exit()))
            }
        }
    }

    /// Why `args` are refused, if that is because of a renamed command or option.
    pub fn refusal(&self, mut program: Command, args: &[&str]) -> Option<String> {
        let args: Vec<String> = args.iter().map(|arg| (*arg).to_owned()).collect();
        let name = program.get_name().to_owned();
        match program.try_get_matches_from_mut(std::iter::once(&name).chain(&args)) {
            Ok(_) => self.command(&args),
            Err(err) => self.notice(&err, &program, &args),
        }
    }

    fn notice(&self, err: &Error, program: &Command, args: &[String]) -> Option<String> {
        if let Some(notice) = self.command(args) {
            return Some(notice);
        }
        let text = |kind| match err.get(kind) {
            Some(ContextValue::String(text)) => Some(text.as_str()),
            _ => None,
        };
        let old = match err.kind() {
            ErrorKind::UnknownArgument => text(ContextKind::InvalidArg)?.to_owned(),
            ErrorKind::InvalidValue => {
                let option = text(ContextKind::InvalidArg)?.split_whitespace().next()?;
                format!("{option} {}", text(ContextKind::InvalidValue)?)
            }
            _ => return None,
        };
        let path = path(program, args);
        let (_, _, new) = self.options.iter().find(|(of, from, _)| *of == path && *from == old)?;
        Some(sentence(&old, new))
    }

    /// For a command alone: `quell sim` takes the old name of one of its commands for a file.
    fn command(&self, args: &[String]) -> Option<String> {
        let is_old = |path: &str, old: &str| {
            let mut typed = args.iter().map(String::as_str);
            path.split_whitespace().chain([old]).all(|word| typed.next() == Some(word))
        };
        let (_, old, new) = self.commands.iter().find(|(path, old, _)| is_old(path, old))?;
        Some(sentence(old, new))
    }
}

/// How a renamed command or option is refused.
pub fn sentence(old: &str, new: &str) -> String {
    format!("`{old}` was renamed to `{new}`")
}

fn words(args: &[OsString]) -> Vec<String> {
    args.iter().map(|arg| arg.to_string_lossy().into_owned()).collect()
}

/// The subcommands in `args`, joined by spaces.
fn path(program: &Command, args: &[String]) -> String {
    let mut command = program;
    let mut path = Vec::new();
    for arg in args {
        let Some(sub) = command.find_subcommand(arg) else { continue };
        path.push(sub.get_name());
        command = sub;
    }
    path.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    const RENAMED: Renamed =
        Renamed { commands: &[("", "old", "new")], options: &[("new", "--ring", "--buffer")] };

    fn refusal(args: &[&str]) -> Option<String> {
        let new = Command::new("new").arg(Arg::new("buffer").long("buffer"));
        let other = Command::new("other").arg(Arg::new("file"));
        RENAMED.refusal(Command::new("program").subcommands([new, other]), args)
    }

    #[test]
    fn old_names_are_refused_with_the_new_ones() {
        assert_eq!(refusal(&["old", "--x"]), Some(sentence("old", "new")));
        for args in [&["new", "--ring", "1"][..], &["new", "--ring=1"]] {
            assert_eq!(refusal(args), Some(sentence("--ring", "--buffer")));
        }
    }

    #[test]
    fn other_unknown_names_get_no_notice() {
        for args in [&["new", "--rings"][..], &["other", "--ring"], &["other", "old"], &["olds"]] {
            assert_eq!(refusal(args), None, "{args:?}");
        }
    }
}
