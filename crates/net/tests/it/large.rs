//! Much: bytes on one stream, and streams of one endpoint.

use std::io::Read;
use std::net::Shutdown;
use std::process::Command;
use std::thread;

use quell_net::{Class, SameHost};

use super::streams::{address, pair, pattern};

/// More than 32 bits of offset.
const BYTES: u64 = 5 << 30;
const BLOCK: usize = 1 << 20;
/// Each of these begins with its offset.
const PAGE: usize = 4_096;

/// Writes the offsets of a block's pages into it.
fn stamp(block: &mut [u8], offset: u64) {
    for (page, bytes) in block.chunks_mut(PAGE).enumerate() {
        bytes[..8].copy_from_slice(&(offset + (page * PAGE) as u64).to_le_bytes());
    }
}

#[test]
#[ignore = "test-all: takes a minute"]
fn five_gigabytes_arrive_on_one_stream() {
    let (_server, listener, client) = pair(SameHost::Tcp);
    let whole: Vec<u8> = (0..BLOCK).map(pattern).collect();
    let mut expected = whole.clone();
    let reader = thread::spawn(move || {
        let mut stream = listener.accept().expect("a stream");
        let mut block = vec![0; BLOCK];
        for offset in (0..BYTES).step_by(BLOCK) {
            stream.read_exact(&mut block).expect("it goes on");
            stamp(&mut expected, offset);
            assert!(block == expected, "other bytes in the block at {offset}");
        }
        assert_eq!(stream.read(&mut block).expect("it lives"), 0, "and nothing else");
    });
    let stream = client.connect(address(), Class::Throughput).expect("accepted");
    let mut block = whole;
    for offset in (0..BYTES).step_by(BLOCK) {
        stamp(&mut block, offset);
        stream.write_all(&block).expect("it is read");
    }
    stream.shutdown(Shutdown::Write).expect("it lives");
    reader.join().expect("all as it was sent");
}

#[test]
#[ignore = "test-all: opens ten thousand streams"]
fn ten_thousand_idle_sockets_take_a_kilobyte_each_and_wake_no_thread() {
    // In a process of its own, where nothing else takes memory.
    let helper = Command::new(std::env::current_exe().expect("this test"))
        .args(["--ignored", "--exact", "large::helper::idle", "--nocapture"])
        .output()
        .expect("this test starts");
    let said = String::from_utf8_lossy(&helper.stdout);
    let number = |name: &str| -> u64 {
        let mut lines =
            said.lines().filter_map(|line| line.split_once(name)?.1.trim().parse().ok());
        lines.next().unwrap_or_else(|| panic!("{name} is missing: {said}"))
    };
    assert!((1..=1_024).contains(&number("bytes-each")), "{said}");
    // A look now and then, and the thread that counts.
    assert!(number("sleeps") < 30, "{said}");
}

mod helper {
    use std::fs;
    use std::io::Read;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use quell_net::{Class, SameHost, Stream};
    use rustix::param::page_size;

    use crate::streams::{address, pair};

    const STREAMS: usize = 10_000;

    fn resident_bytes() -> usize {
        let text = fs::read_to_string("/proc/self/statm").expect("procfs");
        let pages = text.split(' ').nth(1).and_then(|it| it.parse::<usize>().ok());
        pages.expect("the second number") * page_size()
    }

    /// How often threads of this process have gone to sleep.
    fn sleeps() -> u64 {
        let tasks = fs::read_dir("/proc/self/task").expect("procfs");
        let of = |task: fs::DirEntry| -> u64 {
            let text = fs::read_to_string(task.path().join("status")).expect("it lives");
            let count = text.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            count.expect("a count").trim().parse().expect("a number")
        };
        tasks.map(|task| of(task.expect("a thread"))).sum()
    }

    /// Opens streams that have carried a byte each way, and prints what they take.
    #[test]
    #[ignore = "a program that tests start"]
    fn idle() {
        let (_server, listener, client) = pair(SameHost::Tcp);
        let (accepted, streams) = channel::<Stream>();
        thread::spawn(move || {
            while let Ok(stream) = listener.accept() {
                let _ = accepted.send(stream);
            }
        });
        let open = |count: usize| -> Vec<(Stream, Stream)> {
            let open = |_| {
                let mut ours = client.connect(address(), Class::Latency).expect("accepted");
                let mut theirs = streams.recv().expect("the acceptor lives");
                ours.write_all(&[1]).expect("it lives");
                theirs.read_exact(&mut [0]).expect("it lives");
                theirs.write_all(&[2]).expect("it lives");
                ours.read_exact(&mut [0]).expect("it lives");
                (ours, theirs)
            };
            (0..count).map(open).collect()
        };
        let first = open(100);
        let before = resident_bytes();
        let all = open(STREAMS);
        println!("bytes-each {}", resident_bytes().saturating_sub(before) / (2 * STREAMS));
        // Reports that may be late have gone.
        thread::sleep(Duration::from_millis(200));
        let start = sleeps();
        thread::sleep(Duration::from_secs(1));
        println!("sleeps {}", sleeps() - start);
        drop((first, all));
    }
}
