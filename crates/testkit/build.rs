//! Compiles `bpf/burn.bpf.c` and `bpf/sockmap.bpf.c` into `OUT_DIR`.

use std::env;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use libbpf_cargo::SkeletonBuilder;

const PROGRAMS: [&str; 2] = ["burn", "sockmap"];

/// In the order of preference, as in the crate `observe`.
const COMPILERS: [&str; 3] = ["clang-16", "clang-19", "clang"];

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(what) => {
            eprintln!("error: {what}");
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), String> {
    println!("cargo::rerun-if-env-changed=CLANG");
    let directory = |name| env::var_os(name).map(PathBuf::from).ok_or(format!("{name} is not set"));
    let sources = directory("CARGO_MANIFEST_DIR")?.join("../../bpf");
    println!("cargo::rerun-if-changed={}", sources.join("kernel.h").display());
    let runs = |name: &str| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    let named = env::var("CLANG").ok();
    let found = || COMPILERS.iter().find(|name| runs(name)).map(|&name| name.to_owned());
    let clang = named.or_else(found).ok_or("no clang found to compile the BPF programs")?;
    for program in PROGRAMS {
        let source = sources.join(format!("{program}.bpf.c"));
        println!("cargo::rerun-if-changed={}", source.display());
        SkeletonBuilder::new()
            .source(source)
            .obj(directory("OUT_DIR")?.join(format!("{program}.bpf.o")))
            .clang(&clang)
            .clang_args(["-mcpu=v3", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"])
            .build()
            .map_err(|error| format!("compiling bpf/{program}.bpf.c with {clang}: {error:#}"))?;
    }
    Ok(())
}
