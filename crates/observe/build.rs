//! Compiles the BPF programs of `bpf/` into `OUT_DIR/NAME.bpf.o`.

use std::env;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use libbpf_cargo::SkeletonBuilder;

/// The programs, each in a file of its own.
/// `layout` is never loaded: a test reads the layout of shared structures from it.
const PROGRAMS: [&str; 5] = ["quell", "domains", "keyframe", "recorder", "layout"];
const HEADERS: [&str; 15] = [
    "kernel.h",
    "ring.h",
    "maps.h",
    "quell.h",
    "slots.h",
    "cores.h",
    "bursts.h",
    "locks.h",
    "wakers.h",
    "calls.h",
    "steal.h",
    "domains.h",
    "queues.h",
    "keyframe.h",
    "recorder.h",
];
/// In the order of preference; a plain `clang` may be too old or too new to have been tried.
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
    for header in HEADERS {
        println!("cargo::rerun-if-changed={}", sources.join(header).display());
    }
    let clang = compiler()?;
    for program in PROGRAMS {
        let source = sources.join(program).with_extension("bpf.c");
        println!("cargo::rerun-if-changed={}", source.display());
        SkeletonBuilder::new()
            .source(source)
            .obj(directory("OUT_DIR")?.join(program).with_extension("bpf.o"))
            .clang(&clang)
            // v3 has the 32-bit atomics and is what clang-16 knows at most.
            .clang_args(["-mcpu=v3", "-Wall", "-Wextra", "-Werror", "-Wno-unused-parameter"])
            .build()
            .map_err(|error| format!("compiling the BPF programs with {clang}: {error:#}"))?;
    }
    Ok(())
}

fn compiler() -> Result<String, String> {
    if let Ok(named) = env::var("CLANG") {
        return Ok(named);
    }
    let runs = |name: &str| {
        Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success())
    };
    COMPILERS.iter().find(|name| runs(name)).map(|&name| name.to_owned()).ok_or_else(|| {
        "no clang found to compile the BPF programs; install it (`apt-get install clang-16 libelf-dev \
         zlib1g-dev pkg-config`) or name one in the environment variable CLANG"
            .to_owned()
    })
}
