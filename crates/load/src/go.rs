//! The antagonist in Go: its source is part of this library, and is built where Go is found.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::LoadError;

const SOURCE: [(&str, &str); 2] =
    [("go.mod", include_str!("../go/gc/go.mod")), ("main.go", include_str!("../go/gc/main.go"))];

/// Builds `go-gc` into `directory` and returns the program's path. Go's own cache makes a second
/// build fast.
///
/// # Errors
/// Go is missing (the message says so) or the build failed (with its output), or the directory
/// cannot be written.
pub fn build_gc(directory: &Path) -> Result<PathBuf, LoadError> {
    let failed = |reason: String| LoadError::Program { program: "go", reason };
    let source = tempfile::tempdir().map_err(LoadError::system("make a temporary directory"))?;
    for (name, text) in SOURCE {
        fs::write(source.path().join(name), text).map_err(LoadError::system("write Go source"))?;
    }
    let directory = fs::canonicalize(directory)
        .map_err(|error| failed(format!("{}: {error}", directory.display())))?;
    let program = directory.join("go-gc");
    let output = Command::new("go")
        .args(["build", "-trimpath", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(source.path())
        // No network, whatever the user's settings: the module has no dependencies.
        .envs([("GOTOOLCHAIN", "local"), ("GOPROXY", "off"), ("GOFLAGS", "-mod=mod")])
        .output()
        .map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => failed(
                "not found; the Go antagonist needs Go 1.22 or later (https://go.dev/dl)".into(),
            ),
            _ => failed(error.to_string()),
        })?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(failed(format!("build of go-gc failed: {}", said.trim())));
    }
    Ok(program)
}
