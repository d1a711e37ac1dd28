//! The records of `bpf/recorder.h`.

use quell_model::{CoreId, CoreSet, Event, Left, MoveCause, Nanos, Rank, Runner, ThreadName, What};

use crate::layout::{MASK_WORDS, bpf_record};

bpf_record! {
    /// `struct record`: the beginning of each record, and all of one about a softirq or an interrupt.
    "record" pub(super) struct Head {
        at: u64,
        sequence: u64,
        core: u16,
        kind: u16,
        subject: u32,
    }
}

bpf_record! {
    /// Switch, wake-up, fork, exec.
    "record_thread" pub(super) struct ThreadRecord {
        head: Head,
        thread: i32,
        process: i32,
        priority: u16,
        policy: u16,
        state: u32,
        stolen: u32,
        target: u32,
        comm: [u8; 16],
    }
}

bpf_record! {
    /// Exit, migration, run queue size, hotplug.
    "record_short" pub(super) struct ShortRecord {
        head: Head,
        from: u16,
        to: u16,
        stack: i32,
        queued: u32,
        runnable: u32,
    }
}

bpf_record! {
    /// Load of a run queue.
    "record_load" pub(super) struct LoadRecord {
        head: Head,
        weight: u64,
        average: u64,
    }
}

bpf_record! {
    /// Cores that a thread may use.
    "record_allowed" pub(super) struct AllowedRecord {
        head: Head,
        mask: [u64; MASK_WORDS],
    }
}

bpf_record! {
    /// What a core counts of itself: the value of the map `cores`.
    "own" pub(super) struct OwnCounts {
        pub sequence: u64,
        steal: u64,
        running: i32,
        is_known: u32,
        reserved: [u64; 5],
    }
}

#[cfg(test)]
pub(crate) fn layouts() -> Vec<crate::layout::Layout> {
    vec![
        Head::LAYOUT,
        ThreadRecord::LAYOUT,
        ShortRecord::LAYOUT,
        LoadRecord::LAYOUT,
        AllowedRecord::LAYOUT,
        OwnCounts::LAYOUT,
    ]
}

const HEAD_BYTES: usize = size_of::<Head>();
const THREAD_BYTES: usize = size_of::<ThreadRecord>();
const SHORT_BYTES: usize = size_of::<ShortRecord>();
const LOAD_BYTES: usize = size_of::<LoadRecord>();
const ALLOWED_BYTES: usize = size_of::<AllowedRecord>();

/// `enum quell_record`.
const MIGRATE: u16 = 8;
const MIGRATE_EXEC: u16 = 9;
const LOAD: u16 = 11;
const ALLOWED: u16 = 13;
const UNSEEN: u16 = 14;

// Records of these two have one length, and differ by their kind.
const _: () = assert!(SHORT_BYTES == LOAD_BYTES);

/// Whether it tells a switch that was missed.
pub(super) fn is_unseen(bytes: &[u8]) -> bool {
    bytes.len() == THREAD_BYTES && Head::parse(bytes).is_some_and(|head| head.kind == UNSEEN)
}

/// One record, numbered as its core numbered it. `cause` names who is behind a stack of the stack map.
pub(super) fn parse(bytes: &[u8], cause: impl FnOnce(i32) -> MoveCause) -> Option<Event> {
    let head = Head::parse(bytes)?;
    let what = match bytes.len() {
        HEAD_BYTES => interrupt(&head)?,
        THREAD_BYTES => about_thread(&ThreadRecord::parse(bytes)?)?,
        // A load has the size of a short record.
        SHORT_BYTES if head.kind == LOAD => about_load(&LoadRecord::parse(bytes)?),
        SHORT_BYTES => short(&ShortRecord::parse(bytes)?, cause)?,
        ALLOWED_BYTES => allowed(&AllowedRecord::parse(bytes)?)?,
        _ => return None,
    };
    let (at, core) = (Nanos(head.at), CoreId(head.core));
    Some(Event { at, core, sequence: head.sequence, what })
}

fn interrupt(head: &Head) -> Option<What> {
    match head.kind {
        kind @ (12 | 16) => Some(What::Softirq { vector: head.subject as u8, begins: kind == 12 }),
        kind @ (17 | 18) => Some(What::Interrupt { irq: head.subject, begins: kind == 17 }),
        _ => None,
    }
}

fn about_thread(record: &ThreadRecord) -> Option<What> {
    let (thread, number) = (runner(record), record.head.subject as i32);
    Some(match record.head.kind {
        1 => What::Switch {
            next: thread,
            left: number,
            how: left(record.state),
            stolen: Nanos(record.stolen.into()),
        },
        UNSEEN => {
            What::Switch { next: thread, left: number, how: Left::Sleeping, stolen: Nanos::ZERO }
        }
        2 => What::Waking { thread, by: number, target: CoreId(record.target as u16) },
        kind @ (3 | 4) => {
            What::Woken { thread, on: CoreId(record.head.subject as u16), is_new: kind == 4 }
        }
        5 => What::Fork { parent: number, child: thread },
        6 => What::Exec { thread },
        _ => return None,
    })
}

fn short(record: &ShortRecord, cause: impl FnOnce(i32) -> MoveCause) -> Option<What> {
    let (thread, of) = (record.head.subject as i32, CoreId(record.head.subject as u16));
    Some(match record.head.kind {
        7 => What::Exit { thread },
        kind @ (MIGRATE | MIGRATE_EXEC) => What::Migrate {
            thread,
            from: CoreId(record.from),
            to: CoreId(record.to),
            cause: match cause(record.stack) {
                // At exec the stopper moves the thread, as it does for an affinity.
                MoveCause::Affinity if kind == MIGRATE_EXEC => MoveCause::Exec,
                cause => cause,
            },
        },
        10 => What::Queue { of, queued: record.queued, runnable: record.runnable },
        15 => What::Online { of, online: record.to == 1 },
        _ => return None,
    })
}

fn about_load(record: &LoadRecord) -> What {
    let of = CoreId(record.head.subject as u16);
    What::Load { of, weight: record.weight, average: record.average }
}

fn allowed(record: &AllowedRecord) -> Option<What> {
    let (thread, cores) = (record.head.subject as i32, CoreSet::from_words(&record.mask));
    (record.head.kind == ALLOWED).then(|| What::Allowed { thread, cores: cores.into() })
}

fn runner(record: &ThreadRecord) -> Runner {
    Runner {
        thread: record.thread,
        process: record.process,
        rank: rank(record.thread, record.priority, record.policy),
        name: ThreadName::new(&record.comm),
    }
}

/// From the kernel's priority (include/linux/sched/prio.h) and policy (include/uapi/linux/sched.h).
pub(crate) fn rank(thread: i32, priority: u16, policy: u16) -> Rank {
    match policy {
        _ if thread == 0 => Rank::NOBODY,
        1 | 2 => Rank::realtime(99u16.saturating_sub(priority) as u8),
        5 => Rank::BENEATH,
        6 => Rank::DEADLINE,
        _ => Rank::FAIR,
    }
}

/// From the state that `sched_switch` tells (include/linux/sched.h).
fn left(state: u32) -> Left {
    const BLOCKED: u32 = 0x2;
    const STOPPED: u32 = 0x4 | 0x8;
    const DEAD: u32 = 0x10 | 0x20 | 0x80;
    match state {
        0 => Left::Preempted,
        state if state & DEAD != 0 => Left::Dead,
        state if state & STOPPED != 0 => Left::Stopped,
        state if state & BLOCKED != 0 => Left::Blocked,
        _ => Left::Sleeping,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn record(kind: u16, subject: u32, body: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(7u64.to_ne_bytes());
        bytes.extend(3u64.to_ne_bytes());
        bytes.extend(1u16.to_ne_bytes());
        bytes.extend(kind.to_ne_bytes());
        bytes.extend(subject.to_ne_bytes());
        bytes.extend(body);
        bytes
    }

    fn parsed(bytes: &[u8]) -> Option<Event> {
        parse(bytes, |stack| {
            assert_eq!(stack, 77);
            MoveCause::Affinity
        })
    }

    #[test]
    fn a_switch_tells_who_left_and_how() {
        let mut body = Vec::new();
        body.extend(5i32.to_ne_bytes());
        body.extend(4i32.to_ne_bytes());
        body.extend(120u16.to_ne_bytes());
        body.extend(0u16.to_ne_bytes());
        body.extend(2u32.to_ne_bytes());
        body.extend(9u32.to_ne_bytes());
        body.extend(0u32.to_ne_bytes());
        body.extend(*b"worker\0rubbish!!");
        let event = parsed(&record(1, 8, &body)).unwrap();
        assert_eq!((event.at, event.sequence, event.core), (Nanos(7), 3, CoreId(1)));
        let What::Switch { next, left, how, stolen } = event.what else { panic!("{event:?}") };
        assert_eq!((next.thread, next.process, next.name.to_string()), (5, 4, "worker".into()));
        assert_eq!((left, how, stolen), (8, Left::Blocked, Nanos(9)));
    }

    #[test]
    fn a_move_by_the_stopper_is_one_of_exec_only_while_the_thread_becomes_another_program() {
        let mut body = Vec::new();
        body.extend(1u16.to_ne_bytes());
        body.extend(2u16.to_ne_bytes());
        body.extend(77i32.to_ne_bytes());
        body.extend([0; 8]);
        for (kind, because) in [(8, MoveCause::Affinity), (9, MoveCause::Exec)] {
            let what = parsed(&record(kind, 5, &body)).unwrap().what;
            let (from, to) = (CoreId(1), CoreId(2));
            assert_eq!(what, What::Migrate { thread: 5, from, to, cause: because });
        }
    }

    #[test]
    fn a_core_came_where_its_record_says_so() {
        for came in [0u16, 1] {
            let body: Vec<u8> =
                [0, came, 0, 0, 0, 0, 0, 0].iter().flat_map(|half| half.to_ne_bytes()).collect();
            let what = parsed(&record(15, 9, &body)).unwrap().what;
            assert_eq!(what, What::Online { of: CoreId(9), online: came == 1 });
        }
    }

    #[test]
    fn ranks_follow_policy_and_priority() {
        assert!(rank(5, 0, 1) < rank(5, 98, 2));
        assert_eq!(rank(5, 120, 0), Rank::FAIR);
        assert_eq!(rank(5, 120, 5), Rank::BENEATH);
        assert_eq!(rank(0, 120, 0), Rank::NOBODY);
    }

    #[test]
    fn softirq_and_interrupt_records_have_no_body() {
        for (kind, what) in [
            (12, What::Softirq { vector: 3, begins: true }),
            (16, What::Softirq { vector: 3, begins: false }),
            (17, What::Interrupt { irq: 3, begins: true }),
            (18, What::Interrupt { irq: 3, begins: false }),
        ] {
            assert_eq!(parsed(&record(kind, 3, &[])).unwrap().what, what);
        }
    }

    #[test]
    fn a_set_of_cores_keeps_its_places() {
        let mut body = [0; 128];
        body[0] = 0b101;
        body[127] = 0x80;
        let what = parsed(&record(13, 5, &body)).unwrap().what;
        let cores = CoreSet::from_iter([CoreId(0), CoreId(2), CoreId(1023)]);
        assert_eq!(what, What::Allowed { thread: 5, cores: cores.into() });
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(
            kind in 0u16..20,
            body in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            let _ = parse(&record(kind, 1, &body), |_| MoveCause::Unknown);
            let _ = parse(&body, |_| MoveCause::Unknown);
        }

        #[test]
        fn records_of_another_size_are_left_out(kind in 0u16..20, length in 0usize..300) {
            let sizes = [HEAD_BYTES, SHORT_BYTES, THREAD_BYTES, ALLOWED_BYTES];
            prop_assume!(!sizes.contains(&(HEAD_BYTES + length)));
            prop_assert_eq!(parsed(&record(kind, 1, &vec![0; length])), None);
        }
    }
}
