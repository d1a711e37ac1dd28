//! What the echo servers share.

use std::io::Write as _;

use anyhow::Result;

/// Bytes that an echo server takes at once.
pub const BUFFER: usize = 4_096;

/// Tells the benchmark where the server listens.
///
/// # Errors
/// When nobody reads.
pub fn announce(port: u16) -> Result<()> {
    let mut out = std::io::stdout();
    writeln!(out, "{}", serde_json::json!({ "port": port }))?;
    Ok(out.flush()?)
}
