//! Lines of a subscription: an accepted one is within its bounds, and reads the same when it is written again.

#![no_main]

use libfuzzer_sys::fuzz_target;
use quell_control::subscribe::{THREADS_MAX, Update};

fuzz_target!(|bytes: &[u8]| {
    for line in String::from_utf8_lossy(bytes).lines() {
        let Ok(update) = Update::parse(line) else { continue };
        if let Update::Task(task) = &update {
            let threads = task.affinities.iter().map(|group| group.threads.len()).sum::<usize>();
            assert!(threads <= THREADS_MAX && task.processes.iter().all(|process| *process > 0));
        }
        let written = serde_json::to_string(&update).expect("it was just read");
        assert_eq!(Update::parse(&written), Ok(update));
    }
});
