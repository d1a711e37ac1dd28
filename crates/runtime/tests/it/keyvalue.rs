//! The key-value servers of `examples/runtime` answer as memcached does, hold what they are told to, and survive what a
//! client may send.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use quell_load::protocol::keyvalue::KeyValueSpec;
use quell_load::{LoadSpec, ProtocolSpec, Silent};
use quell_model::Nanos;

/// A server, ended when dropped.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Where cargo puts examples, seen from where it puts tests.
fn example(name: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let path = test.parent().unwrap().parent().unwrap().join("examples").join(name);
    assert!(path.exists(), "cargo build -p quell-runtime --examples comes first");
    path
}

impl Server {
    /// One of ours, which says where it listens.
    fn ours(name: &str, arguments: &[&str]) -> Server {
        let mut command = Command::new(example(name));
        command.args(["--listen", "127.0.0.1:0"]).args(arguments);
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on ").unwrap().parse().unwrap();
        Server { child, address }
    }

    fn threads(arguments: &[&str]) -> Server {
        Server::ours("keyvalue-threads", arguments)
    }

    fn uthreads(arguments: &[&str]) -> Server {
        let own = ["--daemon", "never", "--max-cores", "2"];
        Server::ours("keyvalue", &[&own, arguments].concat())
    }

    fn memcached() -> Server {
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut command = Command::new("memcached");
        command.args(["-u", "nobody", "-l", "127.0.0.1", "-t", "1", "-p"]);
        let child = command.arg(address.port().to_string()).spawn().unwrap();
        let server = Server { child, address };
        let until = Instant::now() + Duration::from_secs(10);
        while TcpStream::connect(address).is_err() {
            assert!(Instant::now() < until, "memcached does not listen");
            std::thread::sleep(Duration::from_millis(5));
        }
        server
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream
    }

    /// All that it answers to this, until it closes.
    fn ask(&self, request: &[u8]) -> Vec<u8> {
        let mut stream = self.connect();
        let mut reader = stream.try_clone().unwrap();
        let answer = std::thread::spawn(move || {
            let mut answer = Vec::new();
            // A server that closes on what it will not read resets the connection.
            let _ = reader.read_to_end(&mut answer);
            answer
        });
        let _ = stream.write_all(request);
        let _ = stream.shutdown(Shutdown::Write);
        answer.join().unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    bytes.escape_ascii().to_string().replace("\\r\\n", "\n")
}

/// The numbers of `gets` count what was stored since the server began: only whether two are equal matters.
fn uniques_as_ranks(answer: &[u8]) -> Vec<u8> {
    let mut seen = Vec::new();
    let lines = answer.split_inclusive(|&byte| byte == b'\n').map(|line| {
        let words: Vec<&[u8]> = line.split(|&byte| byte == b' ').collect();
        if words.len() != 5 || words[0] != b"VALUE" {
            return line.to_vec();
        }
        let unique = words[4].to_vec();
        let rank = seen.iter().position(|it| *it == unique).unwrap_or_else(|| {
            seen.push(unique);
            seen.len() - 1
        });
        [words[..4].join(&b' '), format!(" #{rank}\r\n").into_bytes()].concat()
    });
    lines.collect::<Vec<_>>().concat()
}

/// What a client may say, in the order in which it says it. Keys of one conversation are its own.
const CONVERSATIONS: &[&str] = &[
    "get a0\r\nset a0 5 0 3\r\nabc\r\nget a0\r\nget a0 nothing a0\r\ngets a0\r\n",
    "set b0 0 0 0\r\n\r\nget b0\r\nadd b0 1 0 1\r\nx\r\nadd b1 1 0 1\r\nx\r\nget b0 b1\r\n",
    "replace c0 0 0 1\r\nx\r\nset c0 0 0 1\r\ny\r\nreplace c0 4294967295 0 1\r\nz\r\nget c0\r\n",
    "set d0 0 0 2\r\n10\r\nincr d0 5\r\ndecr d0 6\r\nget d0\r\ndecr d0 100\r\nget d0\r\nincr d0 123456\r\nget d0\r\n",
    "set e0 0 0 20\r\n18446744073709551615\r\nincr e0 1\r\nget e0\r\nincr e1 1\r\nset e2 0 0 1\r\nx\r\nincr e2 1\r\n",
    "set f0 0 0 1\r\n1\r\nincr f0 x\r\nincr f0 -1\r\nincr f0\r\nincr f0 99999999999999999999999\r\nget f0\r\n",
    "set g0 0 0 1\r\n1\r\ndelete g0\r\ndelete g0\r\ndelete\r\ndelete g0 0\r\ndelete g0 5\r\ndelete g0 noreply\r\nget g0\r\n",
    "set h0 7 0 1 noreply\r\nx\r\nget h0\r\nadd h0 0 0 1 noreply\r\ny\r\nincr h0 1 noreply\r\ndelete h0 noreply\r\nget h0\r\n",
    "set i0 0 -1 1\r\nx\r\nget i0\r\nset i1 0 100 1\r\nx\r\nget i1\r\ntouch i1 -1\r\nget i1\r\ntouch i1 5\r\ntouch i1 x\r\n",
    "set j0 0 0 1\r\nx\r\ntouch j0 0\r\ntouch j0 1000 noreply\r\nget j0\r\ngat 100 j0 j1\r\ngats -1 j0\r\nget j0\r\n",
    "set k0 0 1000000000 1\r\nx\r\nget k0\r\nset k1 0 2000000000 1\r\nx\r\nget k1\r\n",
    "append l0 0 0 1\r\nx\r\nset l0 3 0 1\r\nb\r\nappend l0 9 0 1\r\nc\r\nprepend l0 9 0 1\r\na\r\nget l0\r\n",
    "set m0 0 0 3\r\nabcd\r\nget m0\r\nset m1 0 0 3\r\nab\r\nget m1\r\nversionx\r\n",
    "set n0 0 0 -1\r\nset n1 x 0 1\r\nset n2 0 x 1\r\nset n3 0 0 x\r\nset n4 0 0\r\nget n0\r\n",
    "ERROR\r\n\r\n   \r\nget\r\ngets\r\nset\r\nincr\r\ntouch\r\ntouch o0\r\nGET o0\r\n  get   o0  \r\n",
    "verbosity 0\r\nverbosity\r\nquit\r\nget p0\r\n",
    "set q0 0 0 5\r\na\r\nb \r\nget q0\nset q1 0 0 2\n\r\n\r\nget q1\r\n",
    "cas r0 0 0 1 5\r\nx\r\nset r0 0 0 1\r\nx\r\ncas r0 0 0 1 18446744073709551615\r\ny\r\nget r0\r\ncas r0 0 0 1\r\n",
    "set s0 0 0 1\r\nx\r\ngets s0\r\nset s0 0 0 1\r\nx\r\ngets s0\r\nget s0\r\ngets s0 s0\r\n",
    "set t0 0 0 2\r\n5 \r\nincr t0 1\r\nget t0\r\nset t1 0 0 2\r\n 5\r\nincr t1 1\r\nset t2 0 0 0\r\n\r\nincr t2 1\r\n",
    "flush_all x\r\nflush_all 0 noreply\r\nflush_all\r\nset u0 0 0 1\r\nx\r\nget u0\r\nflush_all\r\nget u0\r\n",
];

fn conversations() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = CONVERSATIONS.iter().map(|it| it.as_bytes().to_vec()).collect();
    let (longest, longer) = ("k".repeat(250), "k".repeat(251));
    all.push(format!("set {longest} 0 0 1\r\nx\r\nget {longest}\r\nget {longer}\r\ndelete {longer}\r\nincr {longer} 1\r\ntouch {longer} 1\r\n").into());
    all.push(format!("get v0 {longer} v1\r\nset {longer} 0 0 1\r\nget v0\r\n").into());
    let large = 2 << 20;
    let value = "x".repeat(large);
    all.push(format!("set w0 0 0 1\r\nx\r\nset w0 0 0 {large}\r\n{value}\r\nget w0\r\n").into());
    all.push(format!("add w1 0 0 {large} noreply\r\n{value}\r\nget w1\r\n").into());
    let value = "y".repeat(900_000);
    all.push(format!("set w2 0 0 900000\r\n{value}\r\nget w2\r\n").into());
    let many: String = (0..2_000).map(|at| format!(" x{at}")).collect();
    all.push(format!("set x7 0 0 1\r\nx\r\nget{many}\r\n").into());
    all.push(format!("set x8 0 0 1 {}\r\nx\r\n", "y".repeat(3_000)).into());
    all
}

fn answers_as_memcached_does(server: &Server) {
    let reference = Server::memcached();
    for conversation in conversations() {
        let expected = uniques_as_ranks(&reference.ask(&conversation));
        let answer = uniques_as_ranks(&server.ask(&conversation));
        let (asked, head) = (text(&conversation), conversation.len().min(200));
        assert!(
            answer == expected,
            "to\n{}\nours\n{}\nmemcached\n{}",
            &asked[..asked.len().min(head)],
            text(&answer[..answer.len().min(2_000)]),
            text(&expected[..expected.len().min(2_000)])
        );
    }
}

#[test]
fn a_uthread_a_connection_answers_as_memcached_does() {
    answers_as_memcached_does(&Server::uthreads(&["--io", "uring"]));
    answers_as_memcached_does(&Server::uthreads(&["--io", "epoll"]));
}

#[test]
fn a_thread_a_connection_answers_as_memcached_does() {
    answers_as_memcached_does(&Server::threads(&[]));
}

#[test]
fn a_request_may_come_byte_by_byte() {
    let server = Server::uthreads(&[]);
    let mut stream = server.connect();
    for byte in b"set slow 1 0 5\r\nab\r\nc\r\nget slow\r\nquit\r\n" {
        stream.write_all(&[*byte]).unwrap();
    }
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    assert_eq!(text(&answer), "STORED\nVALUE slow 1 5\nab\nc\nEND\n");
}

#[test]
fn version_and_stats_are_told() {
    let server = Server::uthreads(&[]);
    let answer =
        text(&server.ask(b"version\r\nset a 0 0 1\r\nx\r\nget a\r\nstats\r\nstats reset\r\n"));
    assert!(answer.starts_with("VERSION "), "{answer}");
    for line in [
        "STAT curr_items 1",
        "STAT cmd_get 1",
        "STAT cmd_set 1",
        "STAT evictions 0",
        "END",
        "RESET",
    ] {
        assert!(answer.lines().any(|it| it == line), "no {line} in {answer}");
    }
}

/// Load on a server is answered, whatever carries it: every key is there.
fn finds_every_key_that_it_stored(server: &Server, channels: Option<SocketAddr>) {
    let workload = KeyValueSpec { keys: 1_000, ..KeyValueSpec::default() };
    let protocol = ProtocolSpec::Memcached(workload);
    let mut spec = LoadSpec::new(server.address, protocol, 5_000.0, Nanos::from_millis(400));
    spec.channels = channels;
    spec.warmup = Nanos::from_millis(50);
    let report = quell_load::run(&spec, &mut Silent).unwrap();
    let totals = report.overall.totals;
    assert!(totals.scheduled > 1_500, "{totals:?}");
    assert_eq!((totals.answered, totals.misses, totals.errors), (totals.scheduled, 0, 0));
    assert_eq!(report.connections_lost, 0);
}

#[test]
fn the_load_generator_finds_every_key_that_it_stored() {
    finds_every_key_that_it_stored(&Server::uthreads(&[]), None);
}

#[test]
fn load_over_virtual_sockets_finds_every_key_that_it_stored() {
    // The port of virtual addresses is the program's own.
    let listen = ["--listen", "127.0.0.1:11211", "--daemon", "never", "--max-cores", "2"];
    let mut command = Command::new(example("keyvalue-virtual"));
    command.args(listen).args(["--channels", "127.0.0.1:0"]).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let channels = line.trim().strip_prefix("channels on ").unwrap().parse().unwrap();
    let server = Server { child, address: "127.0.0.1:11211".parse().unwrap() };
    finds_every_key_that_it_stored(&server, Some(channels));
}

#[test]
fn what_does_not_fit_makes_the_oldest_go() {
    // The least that a server holds: a value of the greatest size in each of its parts.
    let server = Server::uthreads(&["--memory-mib", "1"]);
    let value = "v".repeat(100_000);
    let mut stream = server.connect();
    for at in 0..1_500 {
        write!(stream, "set key{at} 0 0 100000 noreply\r\n{value}\r\n").unwrap();
    }
    let answer = text(&server.ask(b"stats\r\n"));
    let stat = |name: &str| -> u64 {
        let line = answer.lines().find_map(|line| line.strip_prefix(&format!("STAT {name} ")));
        line.unwrap().parse().unwrap()
    };
    assert!(stat("evictions") > 0, "{answer}");
    assert!(stat("bytes") <= stat("limit_maxbytes"), "{answer}");
    write!(stream, "get key1499\r\nget key0\r\nquit\r\n").unwrap();
    let mut found = Vec::new();
    stream.read_to_end(&mut found).unwrap();
    assert!(found.starts_with(b"VALUE key1499 "));
    assert!(found.ends_with(b"\r\nEND\r\nEND\r\n"));
}

#[test]
fn an_item_is_gone_when_its_time_is_over_and_after_a_flush_that_was_announced() {
    let server = Server::uthreads(&[]);
    assert_eq!(
        server.ask(b"set a 0 1 1\r\nx\r\nset b 0 0 1\r\nx\r\nflush_all 2\r\nget a b\r\n").len(),
        8 + 8 + 4 + 16 + 16 + 5
    );
    let until = Instant::now() + Duration::from_secs(20);
    let mut gone = Vec::new();
    while gone.len() < 2 {
        assert!(Instant::now() < until, "still there but for {gone:?}");
        let answer = text(&server.ask(b"get a b\r\n"));
        for key in ["a", "b"] {
            if !gone.contains(&key) && !answer.contains(&format!("VALUE {key} ")) {
                gone.push(key);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(gone, ["a", "b"]);
    assert_eq!(
        text(&server.ask(b"set b 0 0 1\r\ny\r\nget b\r\n")),
        "STORED\nVALUE b 0 1\ny\nEND\n"
    );
}

#[test]
fn more_connections_than_allowed_are_turned_away() {
    let server = Server::uthreads(&["--connections", "3"]);
    let mut kept: Vec<TcpStream> = (0..3).map(|_| server.connect()).collect();
    for stream in &mut kept {
        stream.write_all(b"get a\r\n").unwrap();
        let mut answer = [0; 5];
        stream.read_exact(&mut answer).unwrap();
    }
    let mut answer = String::new();
    server.connect().read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "ERROR Too many open connections\r\n");
    drop(kept);
    // Room again, once the server has noticed.
    let until = Instant::now() + Duration::from_secs(20);
    while server.ask(b"get a\r\n") != b"END\r\n" {
        assert!(Instant::now() < until);
    }
}

#[test]
fn hostile_bytes_end_at_most_their_own_connection() {
    let server = Server::uthreads(&["--io", "uring"]);
    let bystander = server.connect();
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(64));
    let word = prop_oneof![
        Just("get".to_owned()),
        Just("set".to_owned()),
        Just("cas".to_owned()),
        Just("incr".to_owned()),
        Just("noreply".to_owned()),
        Just("\r\n".to_owned()),
        Just("-9223372036854775808".to_owned()),
        Just("18446744073709551615".to_owned()),
        Just("9223372036854775807".to_owned()),
        any::<String>(),
    ];
    let said = proptest::collection::vec(word, 0..40);
    runner
        .run(&(said, proptest::collection::vec(any::<u8>(), 0..400)), |(words, bytes)| {
            server.ask(words.join(" ").as_bytes());
            server.ask(&bytes);
            Ok(())
        })
        .unwrap();
    // Endless lines, and values that never come.
    server.ask(&vec![b'a'; 1 << 20]);
    server.ask(&[b"get ".as_slice(), &vec![b'a'; 1 << 20]].concat());
    server.ask(b"set a 0 0 1000000\r\nabc");
    server.ask(b"set a 0 0 9223372036854775807\r\nabc");
    let mut bystander = bystander;
    bystander.write_all(b"get nothing\r\nquit\r\n").unwrap();
    let mut answer = String::new();
    bystander.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "END\r\n");
}

#[test]
fn the_guide_shows_the_difference_between_the_two_programs() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let diff = Command::new("diff")
        .args(["-U1", "--label", "threads.rs", "--label", "uthreads.rs"])
        .args(["examples/runtime/threads.rs", "examples/runtime/uthreads.rs"])
        .current_dir(&root)
        .output()
        .unwrap();
    let diff = String::from_utf8(diff.stdout).unwrap();
    assert!(diff.contains("+use quell_runtime::"), "{diff}");
    let guide = std::fs::read_to_string(root.join("docs/guide/port-a-server.md")).unwrap();
    assert!(
        guide.contains(&diff),
        "docs/guide/port-a-server.md shows another difference than\n{diff}"
    );
}
