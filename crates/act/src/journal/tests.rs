use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;
use quell_model::{CoreId, CoreSet};

use super::layout::{NAME_BYTES, VALUE_BYTES};
use super::slot::Kind;
use super::value::Cores;
use super::*;
use crate::{Policy, SchedAttr, Subject};

fn thread() -> ThreadRef {
    ThreadRef { tid: Tid(4711), tgid: Tid(4700), start_ticks: 123 }
}

fn identity(subject: Subject) -> Identity {
    Identity { subject, pidfd_inode: 9 }
}

fn cores(list: &str) -> Value {
    Value::Cores(Cores::exactly(list.parse().unwrap()))
}

fn text(text: &str) -> Value {
    Value::Text(text.into())
}

fn only(journal: &Journal) -> SlotView {
    let (mut slots, damaged) = journal.shared().slots();
    assert_eq!((slots.len(), damaged), (1, 0));
    slots.remove(0).1
}

#[test]
fn what_is_recorded_reads_back() {
    let mut journal = Journal::scratch().unwrap();
    let attr = SchedAttr { nice: -7, policy: Policy::Batch, ..SchedAttr::OTHER };
    let cases = [
        (Subject::Sched(thread()), Value::Sched(attr), Value::Sched(SchedAttr::fifo(30))),
        (
            Subject::Affinity(thread()),
            Value::Cores(Cores { set: "0-1023".parse().unwrap(), whole_cpuset: true }),
            cores("1"),
        ),
        (
            Subject::Setting("/proc/sys/kernel/sched_rt_runtime_us".into()),
            text("950000"),
            text("-1"),
        ),
        // In journals of older versions only: after an upgrade it is restored all the same.
        (
            Subject::Setting("/sys/kernel/debug/sched/fair_server/cpu1/runtime".into()),
            text("50000000"),
            text("0"),
        ),
        (Subject::Group("/sys/fs/cgroup/cpu/quell".into()), text("absent"), text("created")),
        (
            Subject::Member { process: thread(), hierarchy: "/sys/fs/cgroup/cpu".into() },
            text("/sys/fs/cgroup/cpu"),
            text("/sys/fs/cgroup/cpu/quell"),
        ),
    ];
    for (subject, original, wrote) in cases {
        let at = journal.insert(&identity(subject.clone()), &original, &wrote).unwrap();
        let view = only(&journal);
        assert_eq!(view.identity, identity(subject));
        assert_eq!((view.original, view.wrote), (original, [Some(wrote), None]));
        journal.release(at);
    }
    assert_eq!(journal.shared().slots(), (Vec::new(), 0));
}

#[test]
fn the_last_two_values_and_the_latest_original_count() {
    let mut journal = Journal::scratch().unwrap();
    let at =
        journal.insert(&identity(Subject::Affinity(thread())), &cores("0-1"), &cores("0")).unwrap();
    journal.record(at, 1, &cores("1")).unwrap();
    journal.record(at, 0, &cores("2")).unwrap();
    for original in ["3", "4", "5"] {
        journal.rebase(at, &cores(original)).unwrap();
        assert_eq!(only(&journal).original, cores(original));
    }
    assert_eq!(only(&journal).wrote, [Some(cores("2")), Some(cores("1"))]);
}

#[test]
fn every_value_written_to_a_thread_is_remembered() {
    let mut journal = Journal::scratch().unwrap();
    let subject = identity(Subject::Affinity(thread()));
    let at = journal.insert(&subject, &cores("0-9"), &cores("0")).unwrap();
    for core in 1..40 {
        journal.record(at, core % 2, &cores(&format!("{}", core % 20))).unwrap();
    }
    let palette = journal.shared().palette();
    assert_eq!(palette.len(), 20);
    assert!((0..20).all(|core| palette.contains(&cores(&core.to_string()))));
    assert!(journal.ever_wrote(|value| *value == cores("7")));
    assert!(!journal.ever_wrote(|value| *value == cores("0-9")));
    // It is bounded too: the oldest go.
    for core in 100..400 {
        journal.record(at, 0, &cores(&core.to_string())).unwrap();
    }
    let palette = journal.shared().palette();
    assert!(palette.contains(&cores("399")) && !palette.contains(&cores("7")));
}

#[test]
fn what_is_too_long_is_refused_and_nothing_recorded() {
    let mut journal = Journal::scratch().unwrap();
    let long_name = PathBuf::from(format!("/sys/{}", "n".repeat(NAME_BYTES)));
    let long_value = text(&"v".repeat(VALUE_BYTES + 1));
    let name = journal.insert(&identity(Subject::Setting(long_name)), &text("a"), &text("b"));
    let value =
        journal.insert(&identity(Subject::Setting("/sys/a".into())), &text("a"), &long_value);
    assert!(matches!(name, Err(JournalError::TooLong("name"))));
    assert!(matches!(value, Err(JournalError::TooLong("value"))));
    assert_eq!(journal.shared().slots(), (Vec::new(), 0));
}

#[test]
fn the_journal_is_bounded() {
    let mut journal = Journal::scratch().unwrap();
    let subject = identity(Subject::Affinity(thread()));
    for _ in 0..CAPACITY {
        journal.insert(&subject, &cores("0-1"), &cores("0")).unwrap();
    }
    let full = journal.insert(&subject, &cores("0-1"), &cores("0"));
    assert!(matches!(full, Err(JournalError::Full)));
    journal.release(7);
    assert_eq!(journal.insert(&subject, &cores("0-1"), &cores("0")).unwrap(), 7);
}

#[test]
fn one_daemon_at_a_time_and_none_over_a_stale_journal() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let first = Journal::create(dir.path()).unwrap();
    assert!(matches!(Journal::create(dir.path()), Err(JournalError::Busy { .. })));
    drop(first);
    assert!(matches!(Journal::create(dir.path()), Err(JournalError::Stale { .. })));
}

#[test]
fn another_file_is_not_taken_for_a_journal() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = JournalFile::path_in(dir.path());
    assert!(JournalFile::open(dir.path()).unwrap().is_none());
    for content in [vec![], vec![0; 64], vec![0xff; 8192], vec![0; 1 << 20]] {
        std::fs::write(&path, content).unwrap();
        let opened = JournalFile::open(dir.path());
        assert!(matches!(opened, Err(JournalError::Foreign { .. })));
    }
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &path).unwrap();
    assert!(JournalFile::open(dir.path()).is_err());
}

/// The words of a journal with a slot of each kind.
fn sample() -> (Journal, Vec<u32>) {
    let mut journal = Journal::scratch().unwrap();
    let slots = vec![
        journal
            .insert(
                &identity(Subject::Sched(thread())),
                &Value::Sched(SchedAttr::OTHER),
                &Value::Sched(SchedAttr::IDLE),
            )
            .unwrap(),
        journal.insert(&identity(Subject::Affinity(thread())), &cores("0-1"), &cores("0")).unwrap(),
        journal
            .insert(&identity(Subject::Setting("/proc/sys/a/b".into())), &text("1"), &text("2"))
            .unwrap(),
    ];
    (journal, slots)
}

proptest! {
    /// The claim of the module: cut an update off after any number of stores, and what the host may show is
    /// still named. Stores are cut off by putting the words of before back from the first one that was not done.
    #[test]
    fn an_update_cut_off_anywhere_loses_nothing_that_counts(
        first in 0u16..64, second in 0u16..64, third in 0u16..64, cut in 0usize..40,
    ) {
        let of = |core| Value::Cores(Cores::exactly(CoreSet::of(CoreId(core))));
        let mut journal = Journal::scratch().unwrap();
        let subject = identity(Subject::Affinity(thread()));
        let at = journal.insert(&subject, &of(0), &of(first)).unwrap();
        journal.record(at, 1, &of(second)).unwrap();
        // The host shows entry 1, so entry 0 is free. Replay the stores of the update in their order.
        let slot = journal.shared().slot(at);
        let before: Vec<u64> = slot.0.iter().map(|word| word.load(Relaxed)).collect();
        slot.record(0, &of(third)).unwrap();
        let after: Vec<u64> = slot.0.iter().map(|word| word.load(Relaxed)).collect();
        let entry = slot_words::ENTRIES + 2 * slot_words::ENTRY_WORDS;
        let mut stores: Vec<(usize, u64)> = vec![(entry, 0)];
        stores.extend((entry + 2..entry + slot_words::ENTRY_WORDS).map(|word| (word, after[word])));
        stores.push((entry + 1, after[entry + 1]));
        stores.push((entry, after[entry]));
        for (word, value) in before.iter().enumerate() {
            slot.0[word].store(*value, Relaxed);
        }
        for (word, value) in stores.iter().take(cut) {
            slot.0[*word].store(*value, Relaxed);
        }
        let view = only(&journal);
        prop_assert_eq!(view.original, of(0));
        prop_assert_eq!(view.wrote[1].clone(), Some(of(second)));
        let free = view.wrote[0].clone();
        prop_assert!([None, Some(of(first)), Some(of(third))].contains(&free), "{:?}", free);
    }

    /// A damaged journal is read without panic, and never yields a path outside of the kernel's trees.
    #[test]
    fn garbage_is_never_believed(
        writes in proptest::collection::vec((0usize..3 * slot_words::WORDS, any::<u64>()), 1..60),
    ) {
        let (journal, _) = sample();
        for (word, value) in writes {
            let slot = journal.shared().slot((word / slot_words::WORDS) as u32);
            slot.0[word % slot_words::WORDS].store(value, Relaxed);
        }
        let (slots, damaged) = journal.shared().slots();
        prop_assert!(slots.len() + damaged <= 3);
        for (_, view) in slots {
            prop_assert!(!matches!(
                view.identity.subject,
                Subject::Setting(path) if !crate::setting::is_kernel_path(&path)
            ));
        }
    }

    /// As above for whole files, through the front door.
    #[test]
    fn a_cut_off_or_forged_file_is_refused(
        writes in proptest::collection::vec((0usize..HEADER_WORDS, any::<u64>()), 0..6),
        length in 0usize..3 * HEADER_WORDS * 8,
    ) {
        let (journal, _) = sample();
        for (word, value) in writes {
            journal.shared().words[word].store(value, Relaxed);
        }
        let copy = tempfile::tempfile_in("/dev/shm").unwrap();
        let bytes: Vec<u8> = journal.shared().words[..HEADER_WORDS]
            .iter()
            .flat_map(|word| word.load(Relaxed).to_le_bytes())
            .collect();
        std::os::unix::fs::FileExt::write_all_at(&copy, &bytes, 0).unwrap();
        copy.set_len(length as u64).unwrap();
        let opened = JournalFile::map(copy, Path::new("fuzzed"));
        // It is shorter than any whole journal.
        prop_assert!(opened.is_err());
    }

    #[test]
    fn any_value_is_decoded_or_refused(
        words in proptest::collection::vec(any::<u64>(), 32), bytes in 0usize..400,
    ) {
        let words: [u64; 32] = words.try_into().unwrap();
        for kind in [Kind::Sched, Kind::Affinity, Kind::Setting] {
            if let Some(Value::Sched(attr)) = value::decode(kind, &words, bytes) {
                prop_assert!((-20..=19).contains(&attr.nice) && attr.priority <= 99);
            }
        }
    }
}
