//! Pages as the daemon meets them: written by threads that come and go, cut short, replaced, somebody else's.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

use std::fs::{self, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::PathBuf;
use std::sync::mpsc::channel;

use proptest::prelude::*;
use quell_model::Nanos;
use quell_shm::layout::{LINE_BYTES, page_bytes};
use quell_shm::{Hint, HintsError, Identity, Malformed, Page, Reader};
use tempfile::TempDir;

struct Ground(TempDir);

impl Ground {
    fn new() -> Ground {
        Ground(tempfile::tempdir_in("/dev/shm").unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("hints")
    }
}

fn me() -> u32 {
    rustix::process::getuid().as_raw()
}

fn hints(reader: &mut Reader) -> Vec<Hint> {
    reader.read().unwrap();
    reader.hints().collect()
}

#[test]
fn what_a_thread_hints_is_read_until_it_ends_it() {
    let ground = Ground::new();
    let page = Page::open(&ground.path(), 4).unwrap();
    let mut reader = Reader::open(&ground.path(), &[me()]).unwrap();
    assert_eq!(hints(&mut reader), []);
    let slot = page.register().unwrap();
    slot.begin_at(Nanos(17));
    slot.queue(3, Some(Nanos(11)));
    let tid = rustix::thread::gettid().as_raw_nonzero().get();
    let hint = Hint {
        thread: tid,
        request_start: Some(Nanos(17)),
        queue_depth: 3,
        oldest_queued: Some(Nanos(11)),
        requests: 1,
    };
    assert_eq!(hints(&mut reader), [hint]);
    slot.end();
    slot.queue(0, None);
    let idle = Hint { request_start: None, queue_depth: 0, oldest_queued: None, ..hint };
    assert_eq!(hints(&mut reader), [idle]);
    slot.begin();
    let began = hints(&mut reader)[0];
    assert!(began.request_start.unwrap() > Nanos(17), "on CLOCK_MONOTONIC");
    assert_eq!(began.requests, 2);
    drop(slot);
    assert_eq!(hints(&mut reader), []);
}

#[test]
fn threads_get_slots_of_their_own_and_those_of_threads_that_are_gone() {
    let ground = Ground::new();
    let page = Page::open(&ground.path(), 2).unwrap();
    let mine = page.register().unwrap();
    let (tell, told) = channel();
    let other = page.clone();
    std::thread::spawn(move || {
        let slot = other.register().unwrap();
        let again = other.register().unwrap();
        // A thread has one slot, however often it asks.
        again.begin_at(Nanos(5));
        // It ends without giving the slot back.
        std::mem::forget((slot, again));
        tell.send(()).unwrap();
    })
    .join()
    .unwrap();
    told.recv().unwrap();
    let mut reader = Reader::open(&ground.path(), &[me()]).unwrap();
    assert_eq!(hints(&mut reader).len(), 2);
    let third = page.clone();
    std::thread::spawn(move || {
        // The kernel removes a thread a moment after its last user instruction.
        while third.register().map(std::mem::forget).is_none() {
            std::thread::yield_now();
        }
    })
    .join()
    .unwrap();
    assert_eq!(hints(&mut reader)[1].request_start, None, "blank for whoever has it next");
    drop(mine);
}

#[test]
fn a_second_process_of_a_service_opens_the_page_as_it_is() {
    let ground = Ground::new();
    let first = Page::open(&ground.path(), 8).unwrap();
    let slot = first.register().unwrap();
    slot.begin_at(Nanos(9));
    let _second = Page::open(&ground.path(), 100).unwrap();
    let mut reader = Reader::open(&ground.path(), &[me()]).unwrap();
    assert_eq!((reader.slots(), hints(&mut reader).len()), (8, 1));
    assert_eq!(fs::metadata(ground.path()).unwrap().len(), page_bytes(8) as u64);
}

#[test]
fn a_page_cut_short_while_it_is_read_is_an_error_and_no_more() {
    let ground = Ground::new();
    let page = Page::open(&ground.path(), 64).unwrap();
    let slot = page.register().unwrap();
    let mut reader = Reader::open(&ground.path(), &[me()]).unwrap();
    assert_eq!(hints(&mut reader).len(), 1);
    let file = OpenOptions::new().write(true).open(ground.path()).unwrap();
    for length in [LINE_BYTES as u64 + 8, 10, 0] {
        file.set_len(length).unwrap();
        let failed = reader.read().unwrap_err();
        assert!(matches!(failed, HintsError::Malformed(Malformed::Short)), "{failed}");
        assert_eq!(reader.hints().count(), 0, "nothing is left of the last read");
    }
    // The slot's memory is gone as well.
    std::mem::forget(slot);
}

#[test]
fn what_is_no_page_is_refused_with_the_reason() {
    let ground = Ground::new();
    let path = ground.path();
    let refused = |users: &[u32]| Reader::open(&path, users).unwrap_err();
    assert!(matches!(refused(&[]), HintsError::Io(_)));
    fs::write(&path, "short").unwrap();
    assert!(matches!(refused(&[me()]), HintsError::Malformed(Malformed::Short)));
    fs::write(&path, [7; 4096]).unwrap();
    assert!(matches!(refused(&[me()]), HintsError::Malformed(Malformed::Magic)));
    assert!(Page::open(&path, 4).is_err(), "nor is it written to");
    assert_eq!(fs::read(&path).unwrap(), [7; 4096]);
    fs::remove_file(&path).unwrap();

    Page::open(&path, 4).unwrap();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(128).unwrap();
    assert!(matches!(refused(&[me()]), HintsError::Malformed(Malformed::Short)));
    fs::remove_file(&path).unwrap();

    fs::create_dir(&path).unwrap();
    assert!(matches!(refused(&[me()]), HintsError::Kind));
    fs::remove_dir(&path).unwrap();
    let real = ground.0.path().join("real");
    Page::open(&real, 4).unwrap();
    symlink(&real, &path).unwrap();
    assert!(matches!(refused(&[me()]), HintsError::Io(_)), "a link may lead anywhere");
    fs::remove_file(&path).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR,
        0,
    )
    .unwrap();
    assert!(matches!(refused(&[me()]), HintsError::Kind), "and nobody waits for a pipe's writer");
}

#[test]
fn a_page_of_another_user_is_refused() {
    let ground = Ground::new();
    Page::open(&ground.path(), 4).unwrap();
    let owner = rustix::fs::Uid::from_raw(4_321);
    if rustix::fs::chown(ground.path(), Some(owner), None).is_err() {
        eprintln!("skipped: only root can give a file away");
        return;
    }
    fs::set_permissions(ground.path(), fs::Permissions::from_mode(0o644)).unwrap();
    let refused = Reader::open(&ground.path(), &[77]).unwrap_err();
    assert!(matches!(refused, HintsError::Owner(4_321)), "{refused}");
    Reader::open(&ground.path(), &[77, 4_321]).unwrap();
}

#[test]
fn a_page_made_anew_under_the_same_path_is_noticed() {
    let ground = Ground::new();
    Page::open(&ground.path(), 4).unwrap();
    let reader = Reader::open(&ground.path(), &[me()]).unwrap();
    assert_eq!(Identity::of(&ground.path()), Some(reader.identity()));
    fs::remove_file(ground.path()).unwrap();
    assert_eq!(Identity::of(&ground.path()), None);
    // The reader holds the old file, whose number is therefore not used again.
    Page::open(&ground.path(), 4).unwrap();
    assert_ne!(Identity::of(&ground.path()), Some(reader.identity()));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn whatever_is_scribbled_over_a_page_it_is_read_or_refused(
        writes in proptest::collection::vec((0usize..4_000, any::<u64>()), 0..40),
        length in 0u64..4_200,
    ) {
        let ground = Ground::new();
        Page::open(&ground.path(), 60).unwrap();
        let mut reader = Reader::open(&ground.path(), &[me()]).unwrap();
        let file = OpenOptions::new().write(true).open(ground.path()).unwrap();
        for (at, word) in writes {
            file.write_all_at(&word.to_ne_bytes(), at as u64).unwrap();
        }
        file.set_len(length).unwrap();
        if reader.read().is_ok() {
            prop_assert!(reader.hints().count() <= 60);
            prop_assert!(reader.hints().all(|hint| hint.thread > 0));
        } else {
            prop_assert_eq!(reader.hints().count(), 0);
        }
        let _ = Reader::open(&ground.path(), &[me()]);
    }
}
