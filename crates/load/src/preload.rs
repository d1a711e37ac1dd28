//! Prepares a server's state before a run, closed-loop and checked.

use std::time::Duration;

use quell_model::Nanos;

use crate::carrier::Target;
use crate::connection::{Connection, Flushed};
use crate::error::LoadError;
use crate::protocol::{Protocol, Status};

/// Requests in flight. Enough to keep the server busy, too few to fill a socket's buffers.
const IN_FLIGHT: usize = 128;
/// How long the server may be silent.
const PATIENCE: Duration = Duration::from_secs(10);

/// Sends every preload request and checks each reply.
pub(crate) fn preload(target: &Target, protocol: &mut dyn Protocol) -> Result<(), LoadError> {
    let failed = |reason: String| LoadError::Preload { addr: target.addr, reason };
    let mut connection = Connection::open(target, protocol)?;
    let mut index = 0;
    let mut more = true;
    let mut refused = 0u64;
    while more || connection.pending() > 0 {
        while more && connection.pending() < IN_FLIGHT {
            more = encode_one(&mut connection, protocol, index);
            index += 1;
        }
        if connection.pending() == 0 {
            break;
        }
        let flushed = connection.flush().map_err(|lost| failed(lost.to_string()))?;
        if !connection.wait(flushed == Flushed::Blocked, PATIENCE)? {
            return Err(failed(format!("no reply within {PATIENCE:?}")));
        }
        connection
            .receive(protocol, |_, status, _| refused += u64::from(status != Status::Ok))
            .map_err(|lost| failed(lost.to_string()))?;
        if refused > 0 {
            return Err(failed(
                "the server refused a request; is it full, or does it want a password?".into(),
            ));
        }
    }
    Ok(())
}

/// Queues the `index`-th request; `false` after the last.
fn encode_one(connection: &mut Connection, protocol: &mut dyn Protocol, index: u64) -> bool {
    let mut request = Vec::new();
    let Some(token) = protocol.encode_preload(index, &mut request) else { return false };
    connection.queue(Nanos::ZERO, 0, |out| {
        out.extend_from_slice(&request);
        (token, false)
    })
}
