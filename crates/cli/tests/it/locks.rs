//! Batch work that holds a lock of the kernel goes first while a service waits for that lock.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::path::Path;

use crate::common::{Daemon, Ground, eventually};

/// One core for all: a service that writes to a file now and then, and batch work that owns the file's inode most of the
/// time. Both end by themselves, should the test fail.
fn config(file: &Path, relief: bool) -> String {
    let file = file.display();
    let service = format!("exec 3<>{file}; while sleep 0.002; do printf x >&3; done");
    let batch = format!(
        "while :; do dd if=/dev/zero of={file} bs=16M count=1 conv=notrunc status=none; done"
    );
    format!(
        "[host]\nmanaged = \"1\"\n[host.controllers]\nlock_relief = {relief}\n\
         [[task]]\nname = \"web\"\nclass = \"lc\"\nguaranteed = 1\n\
         command = [\"timeout\", \"100\", \"sh\", \"-c\", \"{service}\"]\n\
         [[task]]\nname = \"job\"\nclass = \"be\"\n\
         command = [\"timeout\", \"100\", \"sh\", \"-c\", \"{batch}\"]\n"
    )
}

fn reliefs(daemon: &Daemon) -> u64 {
    daemon.task("job")["reliefs"]["lock"].as_u64().unwrap()
}

/// A file in memory: batch work that writes to it never waits for a disk.
fn scene() -> (Ground, tempfile::NamedTempFile) {
    (Ground::new(), tempfile::NamedTempFile::new_in("/dev/shm").unwrap())
}

#[test]
fn owner_of_a_lock_that_a_service_waits_for_goes_first() {
    let (ground, file) = scene();
    let daemon = ground.run(&config(file.path(), true));
    eventually("batch work had relief, more than once", || reliefs(&daemon) > 3);
    let words = ground.quell(&["status", "--explain", "job"]).stdout;
    let words = String::from_utf8(words).unwrap();
    assert!(words.contains("went first for a moment"), "{words}");
    daemon.stop();
}

#[test]
fn nobody_goes_first_where_that_is_switched_off() {
    let (ground, file) = scene();
    let daemon = ground.run(&config(file.path(), false));
    let written = || file.as_file().metadata().unwrap().len();
    eventually("batch work wrote to the file", || written() > 0);
    eventually("and the service runs", || daemon.task("web")["cpu_ms"].as_f64().unwrap() > 500.0);
    assert_eq!(reliefs(&daemon), 0);
    daemon.stop();
}
