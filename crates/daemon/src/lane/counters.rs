//! What a lane did, written by its scheduler thread and read by anybody.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};

use quell_control::protocol::{LaneStatus, MemberStatus};
use quell_model::Nanos;
use quell_policy::lanes::Member;

/// A look that came later than this after its time counts as late: a hand-over costs some 4 us on a virtual machine.
pub const LATE: Nanos = Nanos::from_micros(50);

/// Notes kept; of more, the first stay: they name the cause.
const NOTES_MAX: usize = 32;

/// A lane's counters. Each stands alone, so every access is relaxed.
#[derive(Debug)]
pub struct Counters {
    switches: AtomicU64,
    looks: AtomicU64,
    late: AtomicU64,
    latest: AtomicU64,
    hand_overs: AtomicU64,
    hand_over_min: AtomicU64,
    floor: AtomicU64,
    unguarded: AtomicU64,
    /// 1 + the member whose turn it is, or 0.
    running: AtomicU32,
    threads: AtomicU32,
    members: Vec<MemberCounters>,
    notes: Mutex<Vec<String>>,
}

#[derive(Debug, Default)]
struct MemberCounters {
    turns: AtomicU64,
    time: AtomicU64,
}

impl Counters {
    /// For a lane with so many members.
    pub fn new(members: usize) -> Counters {
        Counters {
            switches: AtomicU64::new(0),
            looks: AtomicU64::new(0),
            late: AtomicU64::new(0),
            latest: AtomicU64::new(0),
            hand_overs: AtomicU64::new(0),
            hand_over_min: AtomicU64::new(u64::MAX),
            floor: AtomicU64::new(u64::MAX),
            unguarded: AtomicU64::new(0),
            running: AtomicU32::new(0),
            threads: AtomicU32::new(0),
            members: (0..members).map(|_| MemberCounters::default()).collect(),
            notes: Mutex::new(Vec::new()),
        }
    }

    /// The policy was asked.
    pub fn looked(&self) {
        self.looks.fetch_add(1, Relaxed);
    }

    /// A look by time came so much later than it was asked for.
    pub fn came_late(&self, by: Nanos) {
        self.late.fetch_add((by > LATE).into(), Relaxed);
        self.latest.fetch_max(by.0, Relaxed);
    }

    /// The turn of a member, which lasted so long, has ended.
    pub fn ended(&self, member: Member, lasted: Nanos) {
        if let Some(of) = self.members.get(member.at()) {
            of.time.fetch_add(lasted.0, Relaxed);
        }
        self.running.store(0, Relaxed);
    }

    /// The turn of a member begins.
    pub fn began(&self, member: Member) {
        if let Some(of) = self.members.get(member.at()) {
            of.turns.fetch_add(1, Relaxed);
        }
        self.running.store(u32::from(member.0) + 1, Relaxed);
    }

    /// The core went from one member to another, which took so long; and that long since the slice's end.
    pub fn handed_over(&self, took: Nanos, since_due: Option<Nanos>) {
        self.switches.fetch_add(1, Relaxed);
        self.hand_overs.fetch_add(took.0, Relaxed);
        self.hand_over_min.fetch_min(took.0, Relaxed);
        if let Some(since) = since_due {
            self.floor.fetch_min(since.0, Relaxed);
        }
    }

    /// How often the core went from one member to another.
    pub fn switches(&self) -> u64 {
        self.switches.load(Relaxed)
    }

    /// A change was not made for want of a guardian.
    pub fn not_guarded(&self) {
        self.unguarded.fetch_add(1, Relaxed);
    }

    /// How many threads the lane has now.
    pub fn has_threads(&self, count: usize) {
        self.threads.store(count as u32, Relaxed);
    }

    /// Notes what happened. Rare: takes a lock and allocates.
    pub fn note(&self, what: String) {
        tracing::info!("{what}");
        let mut notes = self.notes.lock().unwrap_or_else(PoisonError::into_inner);
        if notes.len() < NOTES_MAX {
            notes.push(what);
        }
    }

    /// All of it, with the names that the operator gave.
    pub fn status(&self, names: &[String]) -> LaneStatus {
        let switches = self.switches();
        let known = |cell: &AtomicU64| Some(cell.load(Relaxed)).filter(|value| *value != u64::MAX);
        let running = (self.running.load(Relaxed) as usize).checked_sub(1);
        let members = self.members.iter().zip(names).map(|(of, name)| MemberStatus {
            name: name.clone(),
            slices: of.turns.load(Relaxed),
            slices_ns: of.time.load(Relaxed),
        });
        LaneStatus {
            running: running.and_then(|at| names.get(at).cloned()),
            switches,
            decisions: self.looks.load(Relaxed),
            late: self.late.load(Relaxed),
            latest_ns: self.latest.load(Relaxed),
            switch_min_ns: known(&self.hand_over_min),
            switch_mean_ns: self.hand_overs.load(Relaxed).checked_div(switches),
            floor_ns: known(&self.floor),
            writes_blocked: self.unguarded.load(Relaxed),
            threads: self.threads.load(Relaxed),
            members: members.collect(),
            notes: self.notes.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            ..LaneStatus::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_counted_is_shown_under_the_members_names() {
        let counters = Counters::new(2);
        counters.began(Member(0));
        counters.ended(Member(0), Nanos(70));
        counters.handed_over(Nanos(9), None);
        counters.began(Member(1));
        counters.came_late(Nanos(60_000));
        let status = counters.status(&["A".into(), "B".into()]);
        assert_eq!(status.running.as_deref(), Some("B"));
        assert_eq!((status.members[0].slices, status.members[0].slices_ns), (1, 70));
        assert_eq!((status.late, status.latest_ns, status.floor_ns), (1, 60_000, None));
        assert_eq!((status.switch_min_ns, status.switch_mean_ns), (Some(9), Some(9)));
    }
}
