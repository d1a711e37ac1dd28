//! The program `quell-lab` as `quell` executes it.
#![allow(clippy::unwrap_used, reason = "tests may panic")]

use std::io::Write as _;
use std::process::{Command, Output, Stdio};

fn lab(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_quell-lab")).args(args).output().unwrap()
}

#[test]
fn help_names_commands_as_users_type_them() {
    for command in ["bench", "load", "sim"] {
        let out = lab(&[command, "--help"]);
        let text = String::from_utf8(out.stdout).unwrap();
        assert!(out.status.success());
        assert!(text.contains(&format!("Usage: quell {command}")), "{text}");
    }
}

#[test]
fn unknown_command_is_refused_with_status_2() {
    let out = lab(&["banana"]);
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8(out.stderr).unwrap().contains("banana"));
}

#[test]
fn render_turns_an_svg_into_a_png_of_twice_its_size() {
    let dir = tempfile::tempdir().unwrap();
    let png = dir.path().join("a.png");
    let mut child = Command::new(env!("CARGO_BIN_EXE_quell-lab"))
        .arg("render")
        .arg(&png)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    let svg = b"<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"3\" height=\"2\"/>";
    child.stdin.take().unwrap().write_all(svg).unwrap();
    assert!(child.wait().unwrap().success());
    let bytes = std::fs::read(&png).unwrap();
    assert!(bytes.starts_with(b"\x89PNG"));
    // The header of a PNG has width and height as its first two words.
    assert_eq!(bytes[16..24], [0, 0, 0, 6, 0, 0, 0, 4]);
}
