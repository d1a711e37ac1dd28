//! `quell`: one subcommand a file, no logic.
fn main() {}
