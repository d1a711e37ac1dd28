//! What the lab's commands were called in earlier releases.

use quell_terminal::renamed::Renamed;

/// Old and new names.
pub const RENAMED: Renamed = Renamed {
    commands: &[("sim", "hunt", "fuzz")],
    options: &[
        ("bench lanes", "--only turns", "--only accuracy"),
        ("load http", "--feed", "--report-to"),
        ("load http", "--why-bound-us", "--why-threshold"),
        ("load memcached", "--feed", "--report-to"),
        ("load memcached", "--why-bound-us", "--why-threshold"),
        ("load memcached-binary", "--feed", "--report-to"),
        ("load memcached-binary", "--why-bound-us", "--why-threshold"),
        ("load redis", "--feed", "--report-to"),
        ("load redis", "--why-bound-us", "--why-threshold"),
        ("load synthetic", "--feed", "--report-to"),
        ("load synthetic", "--why-bound-us", "--why-threshold"),
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
            let refused = RENAMED.refusal(crate::Lab::command(), &words(path, old));
            assert_eq!(refused, Some(sentence(old, new)), "{path}");
        }
    }

    #[test]
    fn each_new_name_is_a_command_or_option() {
        let program = crate::Lab::command();
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
