//! The control server: accepts connections, reads requests, passes them to the manager.
//!
//! One thread a connection, bounded in number; a slow or silent client holds up nobody but itself. The
//! scheduler thread is never touched from here, and what readers have the manager ask of it is spaced: no
//! number of them keeps it busy.

use std::fs;
use std::io::{self, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use quell_control::protocol::{
    self, LINE_BYTES_MAX, Method, PROTOCOL, Registered, Registration, Reply, Request, Response,
};
use quell_control::register;
use quell_os::Tid;
use quell_shm::runtime::VERSION;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::access::{ControlGroup, Peer, open_socket};
use crate::contract::{Contract, Passed};
use crate::feed::{self, Feed, Subscriber};

/// Connections of root served at once, and as many of readers, so that neither locks the other out. More
/// are told so and closed.
pub const CONNECTIONS_MAX: usize = 64;
/// The longest line of a reader, who has no configuration to send.
const READER_LINE_BYTES_MAX: u64 = 64 << 10;
/// Between two calls of readers, all of them together.
const READER_GAP: Duration = Duration::from_millis(10);
/// Subscribers of root served at once, and as many of readers: connections like all others, too.
pub const SUBSCRIBERS_MAX: usize = 16;
/// Interval at which a subscriber that receives no lines is checked to be there.
const SUBSCRIBER_LOOK: Duration = Duration::from_secs(1);
/// A client that does not read its answer for this long is dropped.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);
/// A client that says nothing for this long is dropped.
const READ_TIMEOUT: Duration = Duration::from_secs(600);
/// See [`Clients::settle`].
const SETTLE_MAX: Duration = Duration::from_millis(500);
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;

/// A call on its way to the manager, with the way back.
pub struct Incoming {
    /// Who asks; it has the right to.
    pub peer: Peer,
    /// The connection's number.
    pub connection: u64,
    /// What is asked.
    pub call: Method,
    /// Where the reply goes.
    pub reply: Sender<Reply>,
}

/// A runtime on its way to the manager, or gone again.
pub enum Visit {
    /// One that wants to register.
    Arrived {
        /// Who it is.
        peer: Peer,
        /// What it asks for; makes sense by itself.
        wanted: Box<Registration>,
        /// Its connection's number.
        connection: u64,
        /// The daemon's half of the contract.
        contract: Box<Contract>,
        /// Whether it may, and what it gets.
        reply: Sender<Result<Registered, String>>,
    },
    /// The connection of this number, by which a runtime registered or tasks were attached, is closed.
    Left(u64),
}

/// Removes the socket when dropped.
pub struct Server {
    path: PathBuf,
    shared: Arc<Shared>,
}

impl Server {
    /// Takes no more clients: the socket is free for the next daemon.
    pub fn close(self) -> Clients {
        Clients(Arc::clone(&self.shared))
    }
}

/// Clients of a server that takes no more.
pub struct Clients(Arc<Shared>);

impl Clients {
    /// Waits until they have what is on its way to them, once the manager and the scheduler thread have ended. One that does not
    /// read misses it after half a second. Returns whether all have it.
    pub fn settle(&self) -> bool {
        let until = Instant::now() + SETTLE_MAX;
        loop {
            // Acquire: pairs with the release in `Busy::drop`, so that what was written is.
            let is_settled = self.0.busy.load(Ordering::Acquire) == 0;
            if is_settled || Instant::now() >= until {
                return is_settled;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    }
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
/// When the socket cannot be bound or opened to the group.
pub fn start(
    path: &Path,
    group: Option<&ControlGroup>,
    manager: Sender<Incoming>,
    runtimes: Sender<Visit>,
    feed: Feed,
) -> io::Result<Server> {
    let listener = listen(path, group)?;
    let shared = Arc::new(Shared {
        manager,
        runtimes,
        connections: AtomicU64::new(0),
        feed,
        seats: Default::default(),
        next_reader: Mutex::new(Instant::now()),
        busy: AtomicUsize::new(0),
    });
    let served = Arc::clone(&shared);
    std::thread::Builder::new().name("quell-control".into()).spawn(move || {
        for stream in listener.incoming() {
            match stream {
                Ok(stream) => admit(stream, &served),
                // Out of file numbers or memory: those pass; a busy loop would not help.
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    })?;
    Ok(Server { path: path.to_owned(), shared })
}

/// Has its owner and mode before it listens, so that nobody gets in meanwhile.
fn listen(path: &Path, group: Option<&ControlGroup>) -> io::Result<UnixListener> {
    if let Err(err) = fs::remove_file(path)
        && err.kind() != io::ErrorKind::NotFound
    {
        return Err(err);
    }
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
    open_socket(path, group)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// What the connections share.
struct Shared {
    manager: Sender<Incoming>,
    runtimes: Sender<Visit>,
    /// Counts connections.
    connections: AtomicU64,
    feed: Feed,
    /// Connections of readers, and of those that may change things; then the subscribers among either.
    seats: [AtomicUsize; 4],
    /// When the next call of a reader may go to the manager.
    next_reader: Mutex<Instant>,
    /// Connections with an answer, or lines of a subscription, on the way.
    busy: AtomicUsize,
}

/// A connection has something on the way until this is dropped.
struct Busy<'a>(&'a AtomicUsize);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        // Release: see `Clients::settle`.
        self.0.fetch_sub(1, Ordering::Release);
    }
}

impl Shared {
    fn busy(&self) -> Busy<'_> {
        // Relaxed: the manager learns of the call later, by a channel.
        self.busy.fetch_add(1, Ordering::Relaxed);
        Busy(&self.busy)
    }

    /// A place for one more connection, if there is one.
    fn seat(self: &Arc<Shared>, peer: Peer, subscribes: bool) -> Option<Seat> {
        let kind = usize::from(peer.may_change()) + 2 * usize::from(subscribes);
        let most = if subscribes { SUBSCRIBERS_MAX } else { CONNECTIONS_MAX };
        let seat = Seat { shared: Arc::clone(self), kind };
        // Relaxed: the count bounds threads, it orders nothing.
        (self.seats[kind].fetch_add(1, Ordering::Relaxed) < most).then_some(seat)
    }

    /// Waits for this reader's turn.
    fn take_turn(&self) {
        let now = Instant::now();
        let turn = {
            // Nothing panics while it holds the lock.
            let mut next = self.next_reader.lock().unwrap_or_else(PoisonError::into_inner);
            let turn = (*next).max(now);
            *next = turn + READER_GAP;
            turn
        };
        std::thread::sleep(turn - now);
    }

    fn ask(&self, peer: Peer, connection: u64, call: Method) -> Reply {
        if let Err(why) = peer.check(&call) {
            return Reply::Error(why);
        }
        if matches!(call, Method::Schema) {
            return Reply::Schema(protocol::schema());
        }
        if !peer.may_change() {
            self.take_turn();
        }
        let (reply, answer) = bounded(1);
        let gone = || Reply::Error("the daemon is ending".to_owned());
        if self.manager.send(Incoming { peer, connection, call, reply }).is_err() {
            return gone();
        }
        answer.recv().unwrap_or_else(|_| gone())
    }
}

/// The place of one connection; free again when dropped.
struct Seat {
    shared: Arc<Shared>,
    kind: usize,
}

impl Drop for Seat {
    fn drop(&mut self) {
        let before = self.shared.seats[self.kind].fetch_sub(1, Ordering::Relaxed);
        debug_assert!(before > 0, "more connections ended than there were");
    }
}

fn admit(mut stream: UnixStream, shared: &Arc<Shared>) {
    let _ = stream.set_write_timeout(Some(WRITE_TIMEOUT));
    let _ = stream.set_read_timeout(Some(READ_TIMEOUT));
    // Who cannot be told from others is not served.
    let Ok(peer) = Peer::of(&stream) else { return };
    let Some(seat) = shared.seat(peer, false) else {
        let full = Reply::Error(format!("{CONNECTIONS_MAX} clients are connected already"));
        let _ = protocol::send(&mut stream, &Response { v: PROTOCOL, id: 0, reply: full });
        return;
    };
    // Without a thread for it the connection is closed, and its seat free again.
    let _ = std::thread::Builder::new().name("quell-client".into()).spawn(move || {
        // A client that is gone or sends no text ends its own connection only.
        let _ = converse(stream, peer, &seat.shared);
    });
}

fn converse(mut stream: UnixStream, peer: Peer, shared: &Arc<Shared>) -> io::Result<()> {
    let limit = if peer.may_change() { LINE_BYTES_MAX } else { READER_LINE_BYTES_MAX };
    let mut reader = BufReader::new(stream.try_clone()?);
    // Relaxed: numbers that differ are all that is needed.
    let connection = shared.connections.fetch_add(1, Ordering::Relaxed);
    let mut attached = Attached { shared, connection: None };
    while let Some(line) = protocol::read_line_within(&mut reader, limit)? {
        let busy = shared.busy();
        let (id, reply) = match protocol::parse_request(&line) {
            Ok(Request { id, call: Method::Register(wanted), .. }) => {
                // It stays as long as it lives.
                drop(busy);
                return keep_registered(
                    stream,
                    &mut reader,
                    (id, wanted),
                    peer,
                    connection,
                    shared,
                );
            }
            Ok(Request { id, call: Method::Subscribe, .. }) => {
                return send_updates(stream, id, peer, shared);
            }
            Ok(request) => {
                if matches!(request.call, Method::Attach { .. }) {
                    attached.connection = Some(connection);
                }
                (request.id, shared.ask(peer, connection, request.call))
            }
            Err(why) => (0, Reply::Error(why)),
        };
        protocol::send(&mut stream, &Response { v: PROTOCOL, id, reply })?;
        drop(busy);
    }
    Ok(())
}

/// Tells the manager that a connection is closed by which tasks were attached.
struct Attached<'a> {
    shared: &'a Shared,
    connection: Option<u64>,
}

impl Drop for Attached<'_> {
    fn drop(&mut self) {
        // A manager that ended gives everything back.
        let _ =
            self.connection.map(|connection| self.shared.runtimes.send(Visit::Left(connection)));
    }
}

/// Sends what is decided until the client closes its end. A write may wait for as long as the client does not read:
/// its queue fills meanwhile, and nothing else waits for this thread.
fn send_updates(
    mut stream: UnixStream,
    id: u64,
    peer: Peer,
    shared: &Arc<Shared>,
) -> io::Result<()> {
    if !peer.may_change() {
        shared.take_turn();
    }
    let subscribed = join_feed(peer, shared);
    let reply =
        subscribed.as_ref().map_or_else(|why| Reply::Error(why.clone()), |_| Reply::Subscribed);
    protocol::send(&mut stream, &Response { v: PROTOCOL, id, reply })?;
    let Ok((_seat, subscriber)) = subscribed else { return Ok(()) };
    stream.set_write_timeout(None)?;
    feed::go_first();
    loop {
        match subscriber.lines.recv_timeout(SUBSCRIBER_LOOK) {
            Ok(lines) => stream.write_all(lines.as_bytes())?,
            Err(RecvTimeoutError::Timeout) if !is_closed(&stream)? => {}
            Err(_) => return Ok(()),
        }
    }
}

fn join_feed(peer: Peer, shared: &Arc<Shared>) -> Result<(Seat, Subscriber), String> {
    peer.check(&Method::Subscribe)?;
    let full =
        || format!("{SUBSCRIBERS_MAX} clients are subscribed already; end one of them first");
    let seat = shared.seat(peer, true).ok_or_else(full)?;
    let subscriber = shared.feed.subscribe().ok_or("the daemon is ending")?;
    Ok((seat, subscriber))
}

/// Whether the client closed its end, or sends what it should not.
fn is_closed(stream: &UnixStream) -> io::Result<bool> {
    let mut fds = [PollFd::new(stream, PollFlags::IN)];
    Ok(poll(&mut fds, Some(&Timespec::default()))? > 0)
}

/// Has a runtime registered for as long as its connection is open.
fn keep_registered(
    mut stream: UnixStream,
    reader: &mut BufReader<UnixStream>,
    (id, wanted): (u64, Registration),
    peer: Peer,
    connection: u64,
    shared: &Shared,
) -> io::Result<()> {
    let answer = register_runtime(&stream, wanted, peer, connection, shared);
    let (registered, passed) = match answer {
        Ok(answer) => answer,
        Err(why) => {
            let reply = Reply::Error(why);
            return protocol::send(&mut stream, &Response { v: PROTOCOL, id, reply });
        }
    };
    let reply = Reply::Registered(registered);
    let mut kept =
        register::send_with(&mut stream, &Response { v: PROTOCOL, id, reply }, &passed.fds());
    drop(passed);
    if kept.is_ok() {
        kept = stream.set_read_timeout(None);
    }
    if kept.is_ok() {
        // Nothing else is said on this connection: whatever comes is its end.
        kept = io::Read::read(reader, &mut [0]).map(drop);
    }
    let _ = shared.runtimes.send(Visit::Left(connection));
    kept
}

fn register_runtime(
    stream: &UnixStream,
    wanted: Registration,
    peer: Peer,
    connection: u64,
    shared: &Shared,
) -> Result<(Registered, Passed), String> {
    wanted.check()?;
    if wanted.layout != VERSION {
        return Err(format!(
            "the runtime knows version {} of the shared memory, this daemon version {VERSION}: build it with the other's release",
            wanted.layout
        ));
    }
    if peer.pid <= 1 {
        return Err("its process has no number here: it is in another pid namespace".to_owned());
    }
    let offered = Contract::offer(wanted.max_cores, Tid(peer.pid), stream);
    let (mut contract, passed) = offered.map_err(|err| format!("no shared memory: {err}"))?;
    contract.signal = wanted.signal;
    contract.version = wanted.version.chars().filter(|it| !it.is_control()).take(32).collect();
    let (reply, answer) = bounded(1);
    let (wanted, contract) = (Box::new(wanted), Box::new(contract));
    let gone = || "the daemon is ending".to_owned();
    let visit = Visit::Arrived { peer, wanted, connection, contract, reply };
    shared.runtimes.send(visit).map_err(|_| gone())?;
    Ok((answer.recv().map_err(|_| gone())??, passed))
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
        let engine = crate::mailbox::pair().unwrap().0;
        let feed = Feed::start(crate::feed::pair().1, engine).unwrap();
        let server = start(&path, None, manager, bounded(1).0, feed).unwrap();
        (path, server)
    }

    #[test]
    fn garbage_gets_an_error_and_the_connection_goes_on() {
        let (path, _server) = serve();
        let mut stream = UnixStream::connect(&path).unwrap();
        stream
            .write_all(b"garbage\n{\"v\":2,\"id\":3,\"call\":{\"remove\":{\"task\":\"web\"}}}\n")
            .unwrap();
        let mut reader = BufReader::new(stream);
        let first = protocol::read_line(&mut reader).unwrap().unwrap();
        assert!(first.contains("not a request"), "{first}");
        let second = protocol::read_line(&mut reader).unwrap().unwrap();
        assert!(second.contains("Remove") && second.contains("\"id\":3"), "{second}");
    }

    #[test]
    fn bytes_that_are_no_text_end_only_their_own_connection() {
        let (path, _server) = serve();
        let mut bad = UnixStream::connect(&path).unwrap();
        bad.write_all(&[0xff, 0xfe, b'\n']).unwrap();
        let reply = Client::connect(&path).unwrap().call(Method::Status).unwrap();
        assert_eq!(reply, Reply::Done(vec!["Status".into()]));
    }

    #[test]
    fn a_client_too_many_is_told_so() {
        let (path, _server) = serve();
        let held: Vec<_> = (0..CONNECTIONS_MAX)
            .map(|_| {
                let mut client = Client::connect(&path).unwrap();
                client.call(Method::Status).unwrap();
                client
            })
            .collect();
        let refused = Client::connect(&path).unwrap().call(Method::Status);
        assert!(
            matches!(&refused, Err(ClientError::Refused(why)) if why.contains("connected already"))
                || matches!(&refused, Err(ClientError::Io(_))),
            "{refused:?}"
        );
        drop(held);
    }

    #[test]
    fn places_of_closed_connections_are_free_again() {
        let (path, _server) = serve();
        let served = |path: &Path| Client::connect(path).unwrap().call(Method::Status).is_ok();
        let flood: Vec<UnixStream> =
            (0..300).filter_map(|_| UnixStream::connect(&path).ok()).collect();
        assert!(!served(&path), "all places are taken");
        drop(flood);
        // The threads of closed connections end a moment later.
        let deadline = Instant::now() + Duration::from_secs(30);
        while !served(&path) {
            assert!(Instant::now() < deadline, "no place became free");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn nobody_listening_is_said_with_a_remedy() {
        let err = Client::connect(Path::new("/nonexistent/control.sock")).unwrap_err();
        assert!(err.to_string().contains("quell run FILE.toml"), "{err}");
    }
}
