//! Man pages and completions say what `--help` says, to the programs that read them.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const QUELL: &str = env!("CARGO_BIN_EXE_quell");

fn generate(what: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    // Both programs write into one directory, as their packages do. It is not there yet.
    for program in [Path::new(QUELL).to_owned(), Path::new(QUELL).with_file_name("quell-lab")] {
        let mut made = Command::new(program);
        made.args(["generate", what]).arg(dir.path().join("new"));
        assert!(made.status().unwrap().success());
    }
    dir
}

/// The names of all man pages that there have to be, from the lists of commands in `--help`.
fn commands(path: &[&str], found: &mut BTreeSet<String>) {
    found.insert(["quell"].iter().chain(path).copied().collect::<Vec<_>>().join("-"));
    let help = Command::new(QUELL).args(path).arg("--help").output().unwrap();
    let help = String::from_utf8(help.stdout).unwrap();
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    for line in listed.take_while(|line| !line.is_empty()) {
        let indent = line.len() - line.trim_start().len();
        let name = line.split_whitespace().next().unwrap();
        // Deeper are the second lines of what is said about one.
        if indent == 2 && name != "help" {
            commands(&[path, &[name]].concat(), found);
        }
    }
}

fn said(out: &Output) -> String {
    assert!(out.status.success(), "{out:?}");
    String::from_utf8(out.stdout.clone()).unwrap()
}

#[test]
fn every_command_of_help_has_a_page_and_nothing_else_has() {
    let dir = generate("man");
    let mut wanted = BTreeSet::new();
    commands(&[], &mut wanted);
    assert!(wanted.contains("quell-load-serve") && wanted.len() > 15, "{wanted:?}");
    let pages: BTreeSet<String> = fs::read_dir(dir.path().join("new"))
        .unwrap()
        .map(|page| page.unwrap().file_name().into_string().unwrap())
        .map(|page| page.strip_suffix(".1").unwrap().to_owned())
        .collect();
    assert_eq!(pages, wanted);
}

#[test]
fn man_shows_every_page_without_a_warning() {
    let dir = generate("man");
    for page in fs::read_dir(dir.path().join("new")).unwrap() {
        let page = page.unwrap().path();
        let out = Command::new("man")
            .args(["--warnings", "-l"])
            .arg(&page)
            .env("LC_ALL", "C.UTF-8")
            .env("MANWIDTH", "80")
            .output()
            .unwrap();
        assert!(out.stderr.is_empty(), "{}: {out:?}", page.display());
        let shown = said(&out);
        for wanted in ["NAME", "SYNOPSIS", "OPTIONS", "EXIT STATUS", "ENVIRONMENT", "SEE ALSO"] {
            assert!(shown.contains(&format!("\n{wanted}\n")), "{wanted} in {shown}");
        }
        assert!(shown.contains(concat!("quell ", env!("CARGO_PKG_VERSION"))), "{shown}");
    }
}

/// The candidates that a shell's script prints, one a line.
fn candidates(shell: &str, script: &str, completions: &Path) -> BTreeSet<String> {
    let out = Command::new(shell).args(["-c", script, "complete"]).arg(completions).output();
    said(&out.unwrap()).split_whitespace().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_flags_and_values() {
    let dir = generate("completions");
    let complete = |line: &str, word: usize| {
        let script = format!(
            "source \"$1\"; source \"${{1%/*}}/quell-lab.bash\"; COMP_WORDS=({line}); COMP_CWORD={word}; \
             _quell_or_lab quell \"${{COMP_WORDS[{word}]}}\" \
             \"${{COMP_WORDS[{word} - 1]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\""
        );
        candidates("bash", &script, &dir.path().join("new/quell.bash"))
    };
    let set = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
    assert_eq!(complete("quell st", 1), set(&["stats", "status", "stop"]));
    assert_eq!(complete("quell run --dr", 2), set(&["--dry-run"]));
    assert_eq!(complete("quell load se", 2), set(&["serve"]));
    assert_eq!(complete("quell load peak re", 3), set(&["redis"]));
    assert!(complete("quell gua", 1).is_empty(), "hidden commands are not for people");
}

#[test]
fn fish_and_zsh_complete_commands() {
    let dir = generate("completions");
    let fish = "source $argv[2]; complete --do-complete 'quell st'";
    let words = candidates("fish", fish, &dir.path().join("new/quell.fish"));
    assert!(words.contains("status") && words.contains("stop"), "{words:?}");
    let fish = "source $argv[2]; source (dirname $argv[2])/quell-lab.fish; complete --do-complete 'quell load se'";
    let words = candidates("fish", fish, &dir.path().join("new/quell.fish"));
    assert!(words.contains("serve"), "{words:?}");
    // zsh completes at a terminal only: what can be asked for is that it loads the function and registers it.
    let zsh = "fpath=($1:h $fpath); autoload -Uz compinit; compinit -D -u; autoload +X -Uz _quell; \
               print $_comps[quell] ${+functions[_quell]}";
    let words = candidates("zsh", zsh, &dir.path().join("new/_quell"));
    assert_eq!(words, ["1", "_quell"].map(str::to_owned).into());
}
