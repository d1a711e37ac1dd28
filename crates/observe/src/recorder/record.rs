//! The records of `bpf/recorder.h`.

use quell_model::{CoreId, Event, Left, MoveCause, Nanos, Rank, Runner, ThreadName, What};

use crate::fields::{MASK_WORDS, cores, half, wide, word};

/// The sizes of `struct record` and of those that begin with it.
const HEAD_BYTES: usize = 24;
const THREAD_BYTES: usize = 64;
const SHORT_BYTES: usize = 40;
const LOAD_BYTES: usize = 40;
const ALLOWED_BYTES: usize = HEAD_BYTES + 8 * MASK_WORDS;

/// `enum quell_record`.
const MIGRATE: u16 = 8;
const MIGRATE_EXEC: u16 = 9;
const UNSEEN: u16 = 14;

/// Whether it tells a switch that was missed.
pub(super) fn is_unseen(bytes: &[u8]) -> bool {
    bytes.len() == THREAD_BYTES && half(bytes, 18) == UNSEEN
}

/// One record, numbered as its core numbered it. `cause` names who is behind a stack of the stack map.
pub(super) fn parse(bytes: &[u8], cause: impl FnOnce(i32) -> MoveCause) -> Option<Event> {
    if bytes.len() < HEAD_BYTES {
        return None;
    }
    let subject = word(bytes, 20);
    let (number, place) = (subject as i32, CoreId(subject as u16));
    let what = match (half(bytes, 18), bytes.len()) {
        (1, THREAD_BYTES) => What::Switch {
            next: runner(bytes),
            left: number,
            how: left(word(bytes, 36)),
            stolen: Nanos(word(bytes, 40).into()),
        },
        (UNSEEN, THREAD_BYTES) => What::Switch {
            next: runner(bytes),
            left: number,
            how: Left::Sleeping,
            stolen: Nanos::ZERO,
        },
        (2, THREAD_BYTES) => What::Waking {
            thread: runner(bytes),
            by: number,
            target: CoreId(word(bytes, 44) as u16),
        },
        (kind @ (3 | 4), THREAD_BYTES) => {
            What::Woken { thread: runner(bytes), on: place, is_new: kind == 4 }
        }
        (5, THREAD_BYTES) => What::Fork { parent: number, child: runner(bytes) },
        (6, THREAD_BYTES) => What::Exec { thread: runner(bytes) },
        (7, SHORT_BYTES) => What::Exit { thread: number },
        (kind @ (MIGRATE | MIGRATE_EXEC), SHORT_BYTES) => What::Migrate {
            thread: number,
            from: CoreId(half(bytes, 24)),
            to: CoreId(half(bytes, 26)),
            cause: match cause(word(bytes, 28) as i32) {
                // At exec the stopper moves the thread, as it does for an affinity.
                MoveCause::Affinity if kind == MIGRATE_EXEC => MoveCause::Exec,
                cause => cause,
            },
        },
        (10, SHORT_BYTES) => {
            What::Queue { of: place, queued: word(bytes, 32), runnable: word(bytes, 36) }
        }
        (11, LOAD_BYTES) => {
            What::Load { of: place, weight: wide(bytes, 24), average: wide(bytes, 32) }
        }
        (kind @ (12 | 16), HEAD_BYTES) => {
            What::Softirq { vector: subject as u8, begins: kind == 12 }
        }
        (kind @ (17 | 18), HEAD_BYTES) => What::Interrupt { irq: subject, begins: kind == 17 },
        (13, ALLOWED_BYTES) => What::Allowed { thread: number, cores: cores(&bytes[HEAD_BYTES..]) },
        (15, SHORT_BYTES) => What::Online { of: place, online: half(bytes, 26) == 1 },
        _ => return None,
    };
    let (at, sequence, core) = (Nanos(wide(bytes, 0)), wide(bytes, 8), CoreId(half(bytes, 16)));
    Some(Event { at, core, sequence, what })
}

fn runner(bytes: &[u8]) -> Runner {
    let thread = word(bytes, 24) as i32;
    Runner {
        thread,
        process: word(bytes, 28) as i32,
        rank: rank(thread, half(bytes, 32), half(bytes, 34)),
        name: ThreadName::new(&bytes[48..]),
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
    use quell_model::CoreSet;

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
        assert_eq!(what, What::Allowed { thread: 5, cores });
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
