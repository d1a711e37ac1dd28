//! Logging and signals of a program.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Warnings by default, to standard error; `RUST_LOG=quell=debug` or `RUST_LOG=quell::audit=info` for more.
pub fn start_logging() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .without_time()
        .try_init();
}

/// `quell status | head` ends like every other program, rather than with a panic on a closed pipe.
pub fn end_quietly_on_closed_pipes() {
    let always = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(true));
    // Without it a closed pipe is merely ugly.
    let _ = signal_hook::flag::register_conditional_default(signal_hook::consts::SIGPIPE, always);
}

/// Set by the first Ctrl-C, which ends the run in order; a second one kills.
///
/// # Errors
/// When the handlers cannot be installed.
pub fn interrupted() -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&stop))?;
        signal_hook::flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}
