//! The C header and the Rust crate are two hands of one layout: what the one writes the other reads, in C and in
//! C++, and the guide's example runs as it stands there.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use quell_model::Nanos;
use quell_shm::{Page, Reader};
use tempfile::TempDir;

/// Obeys one word a line, and answers with one line.
const PROGRAM: &str = r#"
#include "quell_hints.h"
#include <stdio.h>
int main(int argc, char **argv)
{
	struct quell_hints hints;
	struct quell_hints_slot *slot = NULL, *seen;
	char line[64];
	(void)argc;
	if (quell_hints_open(&hints, argv[1], 5) < 0) {
		printf("refused %d\n", errno);
		return 0;
	}
	printf("%ld\n", (long)syscall(SYS_gettid));
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		line[strcspn(line, "\n")] = 0;
		if (!strcmp(line, "register"))
			slot = quell_hints_register(&hints);
		else if (!strcmp(line, "begin"))
			quell_hints_begin(slot);
		else if (!strcmp(line, "queue"))
			quell_hints_queue(slot, 6, 42);
		else if (!strcmp(line, "end"))
			quell_hints_end(slot);
		else if (!strcmp(line, "unregister"))
			quell_hints_unregister(slot);
		else if (!strcmp(line, "read")) {
			seen = &hints.slots[0];
			printf("%u %llu %d\n", seen->thread, (unsigned long long)seen->request_start,
			       seen->request_check == ~seen->request_start);
			fflush(stdout);
			continue;
		}
		printf("%llu\n", (unsigned long long)quell_hints_now());
		fflush(stdout);
	}
	quell_hints_close(&hints);
	return 0;
}
"#;

fn include() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("include")
}

/// The program, compiled with every warning an error.
fn compile(dir: &Path, compiler: &str, standard: &str, text: &str) -> PathBuf {
    let language = if compiler == "cc" { "c" } else { "c++" };
    let source = dir.join("program.c");
    fs::write(&source, text).unwrap();
    let program = dir.join(format!("program-{standard}"));
    let out = Command::new(compiler)
        .args(["-x", language, &format!("-std={standard}"), "-O2", "-pthread"])
        .args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I"])
        .arg(include())
        .arg("-o")
        .args([&program, &source])
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    program
}

struct Conversation {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Conversation {
    fn begin(program: &Path, page: &Path) -> Conversation {
        let mut child = Command::new(program)
            .arg(page)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Conversation { child, to, from: BufReader::new(from) }
    }

    fn hear(&mut self) -> String {
        let mut line = String::new();
        self.from.read_line(&mut line).unwrap();
        line.trim().to_owned()
    }

    fn ask(&mut self, what: &str) -> String {
        writeln!(self.to, "{what}").unwrap();
        self.hear()
    }
}

fn me() -> u32 {
    rustix::process::getuid().as_raw()
}

fn exchange(compiler: &str, standard: &str) {
    let dir = TempDir::new_in("/dev/shm").unwrap();
    let program = compile(dir.path(), compiler, standard, PROGRAM);

    // C makes the page and writes, Rust reads.
    let path = dir.path().join("of-c");
    let mut c = Conversation::begin(&program, &path);
    let tid: i32 = c.hear().parse().unwrap();
    let mut reader = Reader::open(&path, &[me()]).unwrap();
    assert_eq!(reader.slots(), 5);
    let before: u64 = c.ask("register").parse().unwrap();
    let after: u64 = c.ask("begin").parse().unwrap();
    c.ask("queue");
    reader.read().unwrap();
    let hint = reader.hints().next().unwrap();
    assert_eq!((hint.thread, hint.requests), (tid, 1));
    let start = hint.request_start.unwrap().0;
    assert!((before..=after).contains(&start), "{before} {start} {after}");
    assert_eq!((hint.queue_depth, hint.oldest_queued), (6, Some(Nanos(42))));
    c.ask("end");
    reader.read().unwrap();
    assert_eq!(reader.hints().next().unwrap().request_start, None);
    // Rust joins the page that C made.
    let page = Page::open(&path, 9).unwrap();
    let slot = page.register().unwrap();
    reader.read().unwrap();
    assert_eq!(reader.hints().count(), 2);
    c.ask("unregister");
    reader.read().unwrap();
    assert_eq!(reader.hints().count(), 1);
    drop((slot, c.to));
    assert!(c.child.wait().unwrap().success());

    // Rust makes the page and writes, C reads.
    let path = dir.path().join("of-rust");
    let page = Page::open(&path, 3).unwrap();
    let slot = page.register().unwrap();
    slot.begin_at(Nanos(123_456_789_012));
    let mut c = Conversation::begin(&program, &path);
    c.hear();
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    assert_eq!(c.ask("read"), format!("{tid} 123456789012 1"));
    slot.end();
    assert_eq!(c.ask("read"), format!("{tid} 0 1"));
    drop(c.to);
    assert!(c.child.wait().unwrap().success());

    // What is no page is left alone.
    fs::write(&path, [1; 500]).unwrap();
    let mut c = Conversation::begin(&program, &path);
    assert_eq!(c.hear(), "refused 22");
    drop(c.to);
    c.child.wait().unwrap();
}

#[test]
fn c_and_rust_read_what_the_other_writes() {
    exchange("cc", "c11");
}

#[test]
fn so_do_cpp_and_rust() {
    exchange("c++", "c++11");
}

#[test]
fn the_guides_example_serves_with_hints_and_without() {
    let guide = include_str!("../../../../docs/reference/hints.md");
    let example = guide.split("```c\n").nth(1).unwrap().split("\n```").next().unwrap();
    let dir = TempDir::new_in("/dev/shm").unwrap();
    let program = compile(dir.path(), "cc", "c11", &format!("{example}\n"));
    let page = dir.path().join("page");
    let run = |page: Option<&Path>| {
        let mut command = Command::new(&program);
        command.env_remove("QUELL_HINTS").envs(page.map(|page| ("QUELL_HINTS", page)));
        let out = command.output().unwrap();
        assert!(out.status.success());
        let mut served: Vec<_> = str::from_utf8(&out.stdout).unwrap().lines().collect();
        served.sort_unstable();
        assert_eq!(served, ["served 0", "served 1", "served 2", "served 3"]);
        String::from_utf8(out.stderr).unwrap()
    };
    assert!(run(None).starts_with("no hints: "));
    assert!(!page.exists());
    assert_eq!(run(Some(&page)), "");
    let mut reader = Reader::open(&page, &[me()]).unwrap();
    reader.read().unwrap();
    assert!(reader.copied().count() >= 1, "its threads had slots");
    assert_eq!(reader.hints().count(), 0, "and gave them back");
}

/// A program that ends with its test.
struct Ends(Child);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What comes of `attempt`, once something does.
fn eventually<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = attempt() {
            return found;
        }
        assert!(Instant::now() < deadline, "{what}: never");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn the_example_server_tells_what_it_serves_and_what_waits() {
    let dir = TempDir::new_in("/dev/shm").unwrap();
    let text = include_str!("../../../../examples/hints/server.c");
    let program = compile(dir.path(), "cc", "c11", text);
    let (page, socket) = (dir.path().join("page"), dir.path().join("socket"));
    let server = Command::new(program).arg(&socket).arg("1").env("QUELL_HINTS", &page).spawn();
    let _server = Ends(server.unwrap());
    let ask = |upto: u64| {
        let mut client = eventually("it listens", || UnixStream::connect(&socket).ok());
        writeln!(client, "{upto}").unwrap();
        client
    };
    // It would never end.
    let long = ask(u64::MAX);
    let mut reader = Reader::open(&page, &[me()]).unwrap();
    let mut look = || {
        reader.read().unwrap();
        let hints: Vec<_> = reader.hints().collect();
        let start = hints.iter().find_map(|hint| hint.request_start);
        let depth: u32 = hints.iter().map(|hint| hint.queue_depth).sum();
        (start, depth, hints.iter().find_map(|hint| hint.oldest_queued))
    };
    let start = eventually("the request is served", || look().0);
    let mut short = [ask(1_000), ask(1_000)];
    let (.., oldest) = eventually("both wait", || Some(look()).filter(|seen| seen.1 == 2));
    assert!(oldest.is_some_and(|oldest| oldest > start), "{start:?} {oldest:?}");
    assert_eq!(look().0, Some(start), "it is served all the while");
    drop(long);
    for client in &mut short {
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        assert_eq!(answer, "7.485471\n");
    }
    eventually("nothing waits or is served", || (look() == (None, 0, None)).then_some(()));
}
