//! What the commands and options were called in earlier releases.

use quell_terminal::renamed::Renamed;

/// Old and new names.
pub const RENAMED: Renamed = Renamed {
    commands: &[("", "drain", "remove"), ("", "release", "restore")],
    options: &[
        ("doctor", "--spin-ms", "--stall-test"),
        ("lane run", "--budget", "--quantum"),
        ("lane run", "--for", "--duration"),
        ("lane run", "--jobs", "--edf"),
        ("record", "--keep", "--last"),
        ("record", "--keep-size", "--last-size"),
        ("record", "--keyframe-every", "--keyframe-interval"),
        ("record", "--ring", "--buffer"),
        ("replay", "--first", "--limit"),
        ("run", "--record", "--record-decisions"),
        ("run", "--record-ring", "--record-decisions-max-size"),
        ("status", "--why", "--explain"),
        ("stop", "--keep", "--keep-programs"),
        ("view", "--classic", "--wasted-cores-layout"),
        ("why", "--bound-us", "--threshold"),
    ],
};

#[cfg(test)]
mod tests {
    use super::RENAMED;
    use clap::CommandFactory as _;
    use quell_terminal::renamed::sentence;

    fn words<'a>(path: &'a str, rest: &'a str) -> Vec<&'a str> {
        path.split_whitespace().chain(rest.split_whitespace()).collect()
    }

    #[test]
    fn each_old_name_is_refused_with_its_new_name() {
        let all = RENAMED.commands.iter().chain(RENAMED.options);
        for (path, old, new) in all {
            let refused = RENAMED.refusal(crate::Cli::command(), &words(path, old));
            assert_eq!(refused, Some(sentence(old, new)), "{path}");
        }
    }

    #[test]
    fn each_new_name_is_a_command_or_option() {
        let program = crate::Cli::command();
        let find = |path: &[&str]| {
            path.iter().try_fold(&program, |at, name| at.find_subcommand(name)).cloned()
        };
        for (path, _, new) in RENAMED.commands {
            assert!(find(&words(path, new)).is_some(), "{path} {new}");
        }
        for (path, _, new) in RENAMED.options {
            let option = new.split(' ').next().map(|option| option.trim_start_matches("--"));
            let command = find(&words(path, "")).expect("a command");
            assert!(command.get_arguments().any(|arg| arg.get_long() == option), "{path} {new}");
        }
    }
}
