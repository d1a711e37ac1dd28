//! Any event, for property tests.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use quell_model::{
    Activity, BalanceState, Certainty, Class, CoreDecision, CoreDomains, CoreId, CoreMode, CoreSet,
    CoreState, Domain, DomainGroup, DomainTrees, Event, GroupKind, Keyframe, Left, MoveCause,
    Nanos, Pass, PassEntry, PassGroup, PassOutcome, PlanReason, Planned, Rank, Reason, Runner,
    Search, Skipped, TaskId, TaskInfo, TaskReason, ThreadName, ThreadState, Violation, What,
};

/// Cores of the topology of the tests.
pub const CORES: u16 = 4;

fn any_core() -> impl Strategy<Value = CoreId> {
    (0..CORES).prop_map(CoreId)
}

fn any_cores() -> impl Strategy<Value = CoreSet> {
    vec((0..1024u16).prop_map(CoreId), 0..8).prop_map(CoreSet::from_iter)
}

fn any_rank() -> impl Strategy<Value = Rank> {
    prop_oneof![
        Just(Rank::DEADLINE),
        (1..=99u8).prop_map(Rank::realtime),
        Just(Rank::FAIR),
        Just(Rank::BENEATH),
        Just(Rank::NOBODY),
    ]
}

pub fn any_runner() -> impl Strategy<Value = Runner> {
    let name = vec(any::<u8>(), 0..20).prop_map(|bytes| ThreadName::new(&bytes));
    (any::<i32>(), option::of(any::<i32>()), any_rank(), name).prop_map(
        |(thread, process, rank, name)| Runner {
            thread,
            process: process.unwrap_or(thread),
            rank,
            name,
        },
    )
}

fn any_keyframe() -> impl Strategy<Value = Keyframe> {
    let core =
        (any_core(), any::<[u32; 2]>(), any::<[u64; 2]>(), any::<(i32, bool)>(), any_cores())
            .prop_map(
                |(core, [queued, runnable], [weight, average], (running, wake_pending), domain)| {
                    CoreState {
                        core,
                        running,
                        queued,
                        runnable,
                        weight,
                        average,
                        wake_pending,
                        domain,
                    }
                },
            );
    let state = prop_oneof![
        Just(Activity::Running),
        Just(Activity::Waiting),
        Just(Activity::Throttled),
        Just(Activity::Delayed),
        Just(Activity::Moving),
        Just(Activity::Sleeping),
    ];
    let thread = (any_runner(), any_core(), state, any_cores(), any::<bool>()).prop_map(
        |(thread, core, state, allowed, bound)| ThreadState { thread, core, state, allowed, bound },
    );
    (vec(core, 0..5), vec(thread, 0..8)).prop_map(|(cores, threads)| Keyframe { cores, threads })
}

fn any_cause() -> impl Strategy<Value = MoveCause> {
    prop::sample::select(MoveCause::ALL.to_vec())
}

fn any_search() -> impl Strategy<Value = Search> {
    prop_oneof![
        Just(Search::IdleSibling),
        Just(Search::Idlest),
        Just(Search::GroupStatistics),
        Just(Search::BusiestQueue),
    ]
}

fn any_left() -> impl Strategy<Value = Left> {
    prop_oneof![
        Just(Left::Preempted),
        Just(Left::Sleeping),
        Just(Left::Blocked),
        Just(Left::Stopped),
        Just(Left::Dead),
    ]
}

/// What tracepoints tell.
fn any_traced() -> impl Strategy<Value = What> {
    prop_oneof![
        4 => (any_runner(), any::<i32>(), any_left(), any::<u64>()).prop_map(
            |(next, left, how, stolen)| What::Switch { next, left, how, stolen: Nanos(stolen) }
        ),
        1 => (any_runner(), any::<i32>(), any_core())
            .prop_map(|(thread, by, target)| What::Waking { thread, by, target }),
        1 => (any_runner(), any_core(), any::<bool>())
            .prop_map(|(thread, on, is_new)| What::Woken { thread, on, is_new }),
        1 => (any::<i32>(), any_core(), any_core(), any_cause())
            .prop_map(|(thread, from, to, cause)| What::Migrate { thread, from, to, cause }),
        1 => (any::<i32>(), any_runner()).prop_map(|(parent, child)| What::Fork { parent, child }),
        1 => any_runner().prop_map(|thread| What::Exec { thread }),
        1 => any::<i32>().prop_map(|thread| What::Exit { thread }),
        1 => (any::<u8>(), any::<bool>())
            .prop_map(|(vector, begins)| What::Softirq { vector, begins }),
        1 => (0..=i32::MAX as u32, any::<bool>())
            .prop_map(|(irq, begins)| What::Interrupt { irq, begins }),
    ]
}

/// What they do not.
fn any_told() -> impl Strategy<Value = What> {
    let certainty = prop_oneof![Just(Certainty::Observed), Just(Certainty::Inferred)];
    prop_oneof![
        (any::<i32>(), any_cores())
            .prop_map(|(thread, cores)| What::Allowed { thread, cores: cores.into() }),
        (any_core(), any::<u32>(), any::<u32>()).prop_map(|(of, queued, runnable)| What::Queue {
            of,
            queued,
            runnable
        }),
        (any_core(), any::<u64>(), any::<u64>()).prop_map(|(of, weight, average)| What::Load {
            of,
            weight,
            average
        }),
        (any_core(), any_search(), any_cores(), certainty).prop_map(
            |(by, search, cores, certainty)| What::Considered {
                by,
                search,
                cores: cores.into(),
                certainty
            }
        ),
        (any_core(), any::<bool>()).prop_map(|(of, online)| What::Online { of, online }),
        any::<u64>().prop_map(|count| What::Lost { count }),
        any_keyframe().prop_map(|keyframe| What::Keyframe(Arc::new(keyframe))),
        ".{0,40}".prop_map(|text| What::Annotation(text.into())),
        any_task().prop_map(|task| What::Task(Arc::new(task))),
        any_pass().prop_map(|pass| What::Pass(Box::new(pass))),
        any_trees().prop_map(|trees| What::Domains(Arc::new(trees))),
        any_decision().prop_map(What::Decision),
        any_violation().prop_map(|violation| What::Violation(Arc::new(violation))),
        (any::<i32>(), any_cores(), any_cores(), any_plan_reason()).prop_map(
            |(process, original, cores, reason)| {
                What::Planned(Arc::new(Planned { process, original, cores, reason }))
            }
        ),
    ]
}

fn any_pass() -> impl Strategy<Value = Pass> {
    let kind = prop::sample::select(GroupKind::ALL.to_vec());
    let group = (any_cores(), any::<[u64; 3]>(), any::<(u32, u16)>(), kind).prop_map(
        |(cores, [sum, mean, minimum], (queued, idle), kind)| PassGroup {
            cores,
            sum,
            mean,
            minimum,
            queued,
            idle,
            kind,
        },
    );
    let groups = vec(group, 0..=Pass::GROUPS_MAX);
    let entry = prop::sample::select(PassEntry::ALL.to_vec());
    let outcome = prop::sample::select(PassOutcome::ALL.to_vec());
    (any_core(), any::<(u8, u32)>(), entry, groups, outcome, any::<[u32; 4]>()).prop_map(
        |(core, (level, moved), entry, groups, outcome, [running, pinned, warm, heavy])| Pass {
            core,
            level,
            entry,
            groups,
            outcome,
            moved,
            skipped: Skipped { running, pinned, warm, heavy },
        },
    )
}

fn any_trees() -> impl Strategy<Value = DomainTrees> {
    let group =
        (any_cores(), any_cores()).prop_map(|(cores, balance)| DomainGroup { cores, balance });
    let balance = any::<(u64, u32, u32)>().prop_map(|(last_jiffies, interval_ms, failed)| {
        BalanceState { last_jiffies, interval_ms, failed }
    });
    let domain =
        (".{0,8}", any_cores(), vec(group, 0..5), option::of(any::<u32>()), option::of(balance))
            .prop_map(|(name, span, groups, flags, balance)| Domain {
                name,
                span,
                groups,
                flags,
                balance,
            });
    let tree = (any_core(), option::of(any_cores()), vec(domain, 0..4))
        .prop_map(|(core, root, domains)| CoreDomains { core, root, domains });
    (vec(tree, 0..6), any_cores()).prop_map(|(mut cores, isolated)| {
        cores.sort_by_key(|tree| tree.core);
        cores.dedup_by_key(|tree| tree.core);
        DomainTrees::new(cores, isolated).unwrap()
    })
}

fn any_id() -> impl Strategy<Value = TaskId> {
    any::<(u32, u32)>().prop_map(|(index, generation)| TaskId { index, generation })
}

fn any_task() -> impl Strategy<Value = TaskInfo> {
    let class = prop_oneof![Just(Class::LatencyCritical), Just(Class::BestEffort)];
    let processes = vec(any::<i32>(), 0..6);
    (any_id(), ".{0,16}", class, processes).prop_map(|(id, name, class, processes)| TaskInfo {
        id,
        name,
        class,
        processes,
    })
}

/// Times that the file can hold.
fn any_time() -> impl Strategy<Value = Nanos> {
    (0..=i64::MAX as u64).prop_map(Nanos)
}

fn any_decision() -> impl Strategy<Value = CoreDecision> {
    let mode = prop::sample::select(vec![
        CoreMode::Kernel,
        CoreMode::Lane,
        CoreMode::Runtime,
        CoreMode::Idled,
        CoreMode::Unmanaged,
    ]);
    let plain = prop::sample::select(vec![
        Reason::Unmanaged,
        Reason::Offline,
        Reason::Guaranteed,
        Reason::Kept,
        Reason::HandedOver,
        Reason::Leftover,
        Reason::Unwanted,
        Reason::Capped,
    ]);
    let reason = prop_oneof![
        plain,
        any_time().prop_map(Reason::Congested),
        any_core().prop_map(Reason::BannedFor),
        any_core().prop_map(Reason::InsteadOf),
        any::<i32>().prop_map(Reason::Refused),
    ];
    (any_core(), option::of(any_id()), option::of(any_id()), mode, reason)
        .prop_map(|(core, from, to, mode, reason)| CoreDecision { core, from, to, mode, reason })
}

fn any_plan_reason() -> impl Strategy<Value = PlanReason> {
    let plain = prop::sample::select(vec![
        TaskReason::Configured,
        TaskReason::Owner,
        TaskReason::Guest,
        TaskReason::Capped,
        TaskReason::Banned,
        TaskReason::NoCore,
        TaskReason::Hyperthread,
    ]);
    let reason = prop_oneof![
        plain,
        any_time().prop_map(TaskReason::RanAway),
        any_time().prop_map(TaskReason::DelaysLc),
    ];
    prop_oneof![
        (any_id(), reason).prop_map(|(task, reason)| PlanReason::Task { task, reason }),
        ".{0,40}".prop_map(|text| PlanReason::Text(text.into())),
    ]
}

fn any_violation() -> impl Strategy<Value = Violation> {
    (any_core(), any::<[u64; 2]>(), vec(any::<i32>(), 0..4), any_cores(), ".{0,40}").prop_map(
        |(core, [from, until], waiters, idle, text)| Violation {
            core,
            from: Nanos(from),
            until: Nanos(until),
            waiters,
            idle,
            text: text.into(),
        },
    )
}

/// Events in the order of time; numbers of a core mostly follow each other.
pub fn any_events() -> impl Strategy<Value = Vec<Event>> {
    let step = prop_oneof![3 => 0..3u64, 1 => 0..400_000_000u64];
    let gap = prop_oneof![9 => Just(0u64), 1 => any::<u64>()];
    vec((step, any_core(), gap, prop_oneof![any_traced(), any_told()]), 0..80).prop_map(|events| {
        let (mut at, mut next) = (0, [0u64; CORES as usize]);
        let of_parts = |(step, core, gap, what): (u64, CoreId, u64, What)| {
            at += step;
            let sequence = next[core.index()].wrapping_add(gap);
            next[core.index()] = sequence.wrapping_add(1);
            Event { at: Nanos(at), core, sequence, what }
        };
        events.into_iter().map(of_parts).collect()
    })
}
