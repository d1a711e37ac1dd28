//! The control server: accepts connections, reads requests, passes them to the manager.
//!
//! One thread a connection, bounded in number; a slow or silent client holds up nobody but itself. The
//! scheduler thread is never touched from here.

use std::fs;
use std::io::{self, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use crossbeam_channel::{Sender, bounded};
use quell_control::protocol::{self, Call, PROTOCOL, Reply, Response};

/// Connections served at once; more are told so and closed.
pub const CONNECTIONS_MAX: usize = 64;
/// A client that does not read its answer for this long is dropped.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// A client that says nothing for this long is dropped.
const READ_TIMEOUT: Duration = Duration::from_secs(600);

/// A call on its way to the manager, with the way back.
pub struct Incoming {
    /// What is asked.
    pub call: Call,
    /// Where the reply goes.
    pub reply: Sender<Reply>,
}

/// Removes the socket when dropped.
pub struct Server {
    path: PathBuf,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// Binds the control socket and serves it until the program ends. The caller holds the daemon's lock,
/// so a socket file found there is left over.
///
/// # Errors
/// When the socket cannot be bound.
pub fn start(path: &Path, manager: Sender<Incoming>) -> io::Result<Server> {
    if let Err(err) = fs::remove_file(path)
        && err.kind() != io::ErrorKind::NotFound
    {
        return Err(err);
    }
    let listener = UnixListener::bind(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o600))?;
    let open = Arc::new(AtomicUsize::new(0));
    std::thread::Builder::new().name("quell-control".into()).spawn(move || {
        for stream in listener.incoming() {
            match stream {
                Ok(stream) => admit(stream, &manager, &open),
                // Out of file numbers or memory: those pass; a busy loop would not help.
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    })?;
    Ok(Server { path: path.to_owned() })
}

fn admit(mut stream: UnixStream, manager: &Sender<Incoming>, open: &Arc<AtomicUsize>) {
    let _ = stream.set_write_timeout(Some(WRITE_TIMEOUT));
    let _ = stream.set_read_timeout(Some(READ_TIMEOUT));
    // Relaxed: the count bounds threads, it orders nothing.
    if open.fetch_add(1, Ordering::Relaxed) >= CONNECTIONS_MAX {
        open.fetch_sub(1, Ordering::Relaxed);
        let full = Reply::Error(format!("{CONNECTIONS_MAX} clients are connected already"));
        let _ = protocol::send(&mut stream, &Response { v: PROTOCOL, id: 0, reply: full });
        return;
    }
    let manager = manager.clone();
    let held = Arc::clone(open);
    let spawned = std::thread::Builder::new().name("quell-client".into()).spawn(move || {
        // A client that is gone or sends no text ends its own connection only.
        let _ = converse(stream, &manager);
        held.fetch_sub(1, Ordering::Relaxed);
    });
    if spawned.is_err() {
        open.fetch_sub(1, Ordering::Relaxed);
    }
}

fn converse(mut stream: UnixStream, manager: &Sender<Incoming>) -> io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    while let Some(line) = protocol::read_line(&mut reader)? {
        let (id, reply) = match protocol::parse_request(&line) {
            Ok(request) => (request.id, ask(request.call, manager)),
            Err(why) => (0, Reply::Error(why)),
        };
        protocol::send(&mut stream, &Response { v: PROTOCOL, id, reply })?;
    }
    Ok(())
}

fn ask(call: Call, manager: &Sender<Incoming>) -> Reply {
    if matches!(call, Call::Schema) {
        return Reply::Schema(protocol::schema());
    }
    let (reply, answer) = bounded(1);
    let gone = || Reply::Error("the daemon is ending".to_owned());
    if manager.send(Incoming { call, reply }).is_err() {
        return gone();
    }
    answer.recv().unwrap_or_else(|_| gone())
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use quell_control::client::{Client, ClientError};

    use super::*;

    fn serve() -> (std::path::PathBuf, Server) {
        let dir = std::env::temp_dir().join(format!("quell-server-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let path = dir.join(format!("{:?}.sock", std::thread::current().id()));
        let (manager, calls) = bounded::<Incoming>(8);
        std::thread::spawn(move || {
            for incoming in calls {
                let said = Reply::Done(vec![format!("{:?}", incoming.call)]);
                let _ = incoming.reply.send(said);
            }
        });
        let server = start(&path, manager).unwrap();
        (path, server)
    }

    #[test]
    fn garbage_gets_an_error_and_the_connection_goes_on() {
        let (path, _server) = serve();
        let mut stream = UnixStream::connect(&path).unwrap();
        stream
            .write_all(b"garbage\n{\"v\":1,\"id\":3,\"call\":{\"drain\":{\"task\":\"web\"}}}\n")
            .unwrap();
        let mut reader = BufReader::new(stream);
        let first = protocol::read_line(&mut reader).unwrap().unwrap();
        assert!(first.contains("not a request"), "{first}");
        let second = protocol::read_line(&mut reader).unwrap().unwrap();
        assert!(second.contains("Drain") && second.contains("\"id\":3"), "{second}");
    }

    #[test]
    fn bytes_that_are_no_text_end_only_their_own_connection() {
        let (path, _server) = serve();
        let mut bad = UnixStream::connect(&path).unwrap();
        bad.write_all(&[0xff, 0xfe, b'\n']).unwrap();
        let reply = Client::connect(&path).unwrap().call(Call::Status).unwrap();
        assert_eq!(reply, Reply::Done(vec!["Status".into()]));
    }

    #[test]
    fn a_client_too_many_is_told_so() {
        let (path, _server) = serve();
        let held: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|_| {
                let mut client = Client::connect(&path).unwrap();
                client.call(Call::Status).unwrap();
                client
            })
            .collect();
        let refused = Client::connect(&path).unwrap().call(Call::Status);
        assert!(
            matches!(&refused, Err(ClientError::Refused(why)) if why.contains("connected already"))
                || matches!(&refused, Err(ClientError::Io(_))),
            "{refused:?}"
        );
        drop(held);
    }

    #[test]
    fn nobody_listening_is_said_with_a_remedy() {
        let err = Client::connect(Path::new("/nonexistent/control.sock")).unwrap_err();
        assert!(err.to_string().contains("quell run FILE.toml"), "{err}");
    }
}
