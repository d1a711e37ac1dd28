//! The pictures of docs/lab/sim-linux.md are made by the commands that stand there.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::Command;

use crate::common::QUELL;

const PAGE: &str = include_str!("../../../../docs/lab/sim-linux.md");
/// A page is loaded with all of its pictures.
const BYTES_MAX: u64 = 150_000;

/// The section with the pictures.
fn section() -> &'static str {
    let (_, rest) = PAGE.split_once("\n## The paper's figures\n").unwrap();
    rest.split("\n## ").next().unwrap()
}

fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// A word of a command for a short run in this directory. Pictures are noted.
fn short(word: &str, directory: &Path, pictures: &mut BTreeSet<String>) -> String {
    let inside = |name: &str| directory.join(name).to_str().unwrap().to_owned();
    match word {
        _ if word.starts_with("length_ms=") => "length_ms=60".to_owned(),
        "0.4-0.5" => "0.02-0.04".to_owned(),
        _ if word.ends_with(".pftrace") => inside(word),
        _ if word.ends_with(".png") => {
            pictures.insert(word.strip_prefix("docs/plots/").unwrap().to_owned());
            inside(word.rsplit('/').next().unwrap())
        }
        _ => word.to_owned(),
    }
}

#[test]
fn each_command_makes_its_picture_in_a_short_run() {
    let directory = tempfile::tempdir().unwrap();
    let mut pictures = BTreeSet::new();
    let commands: Vec<&str> =
        section().lines().filter_map(|line| line.strip_prefix("    quell ")).collect();
    for command in &commands {
        let words = command.split_whitespace();
        let words: Vec<String> =
            words.map(|word| short(word, directory.path(), &mut pictures)).collect();
        let out = Command::new(QUELL).args(&words).current_dir(root()).output().unwrap();
        // A simulation that wastes cores ends with 1.
        let is_made = out.status.success() || (words[0] == "sim" && out.status.code() == Some(1));
        assert!(is_made, "quell {command}: {}", String::from_utf8_lossy(&out.stderr));
    }
    assert_eq!(pictures.len(), 5, "{commands:?}");
    for picture in &pictures {
        let made = fs::read(directory.path().join(picture)).unwrap();
        assert!(made.starts_with(b"\x89PNG"), "{picture}");
    }
}

#[test]
fn the_pictures_of_the_page_are_there_and_small() {
    let named = section().lines().filter_map(|line| line.split_once("](../plots/"));
    let shown: BTreeSet<&str> = named.map(|(_, name)| name.strip_suffix(')').unwrap()).collect();
    assert_eq!(shown.len(), 5);
    for name in shown {
        let path = root().join("docs/plots").join(name);
        let bytes = fs::metadata(&path).unwrap_or_else(|err| panic!("{name}: {err}")).len();
        assert!(bytes < BYTES_MAX, "{name} has {bytes} bytes");
        let command = section().lines().find(|line| line.contains(&format!("plots/{name} ")));
        assert!(command.is_some_and(|line| line.starts_with("    quell view ")), "{name}");
    }
}
