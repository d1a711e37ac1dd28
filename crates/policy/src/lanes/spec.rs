//! A lane policy as an operator asks for it, checked.

use quell_model::Nanos;

use super::{
    Edf, Fair, Fifo, Job, LanePolicy, MEMBERS_MAX, Member, Preemptive, RoundRobin, Slot, Table,
};

/// The names of the policies.
pub const NAMES: [&str; 6] = ["round-robin", "table", "preemptive", "edf", "fair", "fifo"];

/// The shortest slice, quantum or runtime that is taken: below, handing the core over takes longer than using it.
pub const SLICE_MIN: Nanos = Nanos::from_micros(5);

/// The longest: a member that hangs for longer than this has the lane look dead.
const SLICE_MAX: Nanos = Nanos::from_secs(10);

/// The most slots of a table.
const SLOTS_MAX: usize = 4_096;

/// So many deadlines of jobs are looked at, one by one: what is exact has to end.
const DEADLINES_MAX: usize = 10_000;

/// The whole core, where shares of it are added up.
const WHOLE: u128 = 1 << 64;

/// A policy and its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Spec {
    /// [`RoundRobin`].
    RoundRobin {
        /// How long a turn is.
        slice: Nanos,
    },
    /// [`Table`].
    Table {
        /// Its slots.
        slots: Vec<Slot>,
    },
    /// [`Preemptive`].
    Preemptive {
        /// How long a turn is while others wait.
        budget: Nanos,
        /// The wait after which the preempted are resumed whoever else waits.
        resume_after: Nanos,
    },
    /// [`Edf`].
    Edf {
        /// A job for each member.
        jobs: Vec<Job>,
    },
    /// [`Fair`].
    Fair {
        /// How long a turn is.
        slice: Nanos,
        /// A weight for each member.
        weights: Vec<u32>,
    },
    /// [`Fifo`].
    Fifo,
}

/// Why a policy cannot be made.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// Too few or too many members.
    #[error("a lane has from 1 to {MEMBERS_MAX} members, not {0}")]
    Members(usize),
    /// A slice, quantum or runtime out of range.
    #[error("{what} of {time} is out of range: from {SLICE_MIN} to {SLICE_MAX}")]
    Length {
        /// Which.
        what: &'static str,
        /// What was asked for.
        time: Nanos,
    },
    /// A table without slots, or with too many.
    #[error("a table has from 1 to {SLOTS_MAX} slots, not {0}")]
    Slots(usize),
    /// A table that names somebody who is not there.
    #[error("the table names member {}, but there are only {members}", .named + 1)]
    NoSuchMember {
        /// Whom it names, from 0.
        named: u8,
        /// How many there are.
        members: usize,
    },
    /// A member that would never run.
    #[error("member {} has no slot in the table and would never run beside the others", .0 + 1)]
    NotInTable(u8),
    /// Not one entry for each member.
    #[error("there are {members} members and {given} {what}: give one for each")]
    Count {
        /// Of what.
        what: &'static str,
        /// How many there are.
        given: usize,
        /// How many there should be.
        members: usize,
    },
    /// A job whose numbers do not fit each other.
    #[error("member {}: runtime {} <= deadline {} <= period {} has to hold", .member + 1, .job.budget, .job.deadline, .job.period)]
    Job {
        /// Whose, from 0.
        member: usize,
        /// The job.
        job: Job,
    },
    /// Jobs that no order of turns can serve.
    #[error("the runtimes ask for {percent} % of the core: no order of turns meets every deadline")]
    Overload {
        /// The sum of the shares.
        percent: u128,
    },
    /// Jobs that fit into their periods, but not into their deadlines.
    #[error("member {}: where all periods begin at once, the runtimes due by its deadline at {by} are {over} too long: no order of turns meets every deadline", .member + 1)]
    Late {
        /// Whose deadline, from 0.
        member: usize,
        /// The deadline, from the begin of all periods.
        by: Nanos,
        /// What the budgets due by then ask for beyond that time.
        over: Nanos,
    },
    /// Jobs that may fit, but have too many deadlines before all comes again to know.
    #[error(
        "the runtimes are {percent} % of their deadlines, and with periods like these only up to 100 % can be checked: ask for longer deadlines"
    )]
    Dense {
        /// The sum of the shares of the deadlines.
        percent: u128,
    },
    /// A weight out of range.
    #[error("member {}: a weight is from 1 to 10000, not {weight}", .member + 1)]
    Weight {
        /// Whose, from 0.
        member: usize,
        /// What was asked for.
        weight: u32,
    },
}

impl Spec {
    /// The policy's name.
    pub const fn name(&self) -> &'static str {
        match self {
            Spec::RoundRobin { .. } => NAMES[0],
            Spec::Table { .. } => NAMES[1],
            Spec::Preemptive { .. } => NAMES[2],
            Spec::Edf { .. } => NAMES[3],
            Spec::Fair { .. } => NAMES[4],
            Spec::Fifo => NAMES[5],
        }
    }

    /// The shortest time for which it runs a member while another waits; `None` if it never takes a turn away.
    pub fn shortest(&self) -> Option<Nanos> {
        match self {
            Spec::RoundRobin { slice } | Spec::Fair { slice, .. } => Some(*slice),
            Spec::Table { slots } => slots.iter().map(|slot| slot.slice).min(),
            Spec::Preemptive { budget, .. } => Some(*budget),
            Spec::Edf { jobs } => jobs.iter().map(|job| job.budget).min(),
            Spec::Fifo => None,
        }
    }

    /// Checks the parameters for a lane with so many members.
    ///
    /// # Errors
    /// [`SpecError`] names what does not fit.
    pub fn check(&self, members: usize) -> Result<(), SpecError> {
        if !(1..=MEMBERS_MAX).contains(&members) {
            return Err(SpecError::Members(members));
        }
        match self {
            Spec::RoundRobin { slice } => length("a slice", *slice),
            Spec::Table { slots } => check_table(slots, members),
            Spec::Preemptive { budget, resume_after } => {
                length("a quantum", *budget)?;
                length("a wait", *resume_after)
            }
            Spec::Edf { jobs } => check_jobs(jobs, members),
            Spec::Fair { slice, weights } => {
                length("a slice", *slice)?;
                count("weights", weights.len(), members)?;
                let bad =
                    weights.iter().enumerate().find(|(_, weight)| !(1..=10_000).contains(*weight));
                match bad {
                    Some((member, weight)) => Err(SpecError::Weight { member, weight: *weight }),
                    None => Ok(()),
                }
            }
            Spec::Fifo => Ok(()),
        }
    }

    /// The policy, for a lane with so many members.
    ///
    /// # Errors
    /// As [`Spec::check`].
    pub fn build(&self, members: usize) -> Result<Box<dyn LanePolicy>, SpecError> {
        self.check(members)?;
        Ok(match self.clone() {
            Spec::RoundRobin { slice } => Box::new(RoundRobin::new(slice)),
            Spec::Table { slots } => Box::new(Table::new(slots)),
            Spec::Preemptive { budget, resume_after } => {
                Box::new(Preemptive::new(budget, resume_after))
            }
            Spec::Edf { jobs } => Box::new(Edf::new(jobs)),
            Spec::Fair { slice, weights } => Box::new(Fair::new(slice, weights)),
            Spec::Fifo => Box::new(Fifo::new()),
        })
    }
}

fn length(what: &'static str, time: Nanos) -> Result<(), SpecError> {
    match (SLICE_MIN..=SLICE_MAX).contains(&time) {
        true => Ok(()),
        false => Err(SpecError::Length { what, time }),
    }
}

fn count(what: &'static str, given: usize, members: usize) -> Result<(), SpecError> {
    if given == members { Ok(()) } else { Err(SpecError::Count { what, given, members }) }
}

fn check_table(slots: &[Slot], members: usize) -> Result<(), SpecError> {
    if !(1..=SLOTS_MAX).contains(&slots.len()) {
        return Err(SpecError::Slots(slots.len()));
    }
    for slot in slots {
        length("a slice", slot.slice)?;
        if slot.member.at() >= members {
            return Err(SpecError::NoSuchMember { named: slot.member.0, members });
        }
    }
    let has_slot = |member: Member| slots.iter().any(|slot| slot.member == member);
    match (0..members as u8).find(|member| !has_slot(Member(*member))) {
        Some(member) => Err(SpecError::NotInTable(member)),
        None => Ok(()),
    }
}

fn check_jobs(jobs: &[Job], members: usize) -> Result<(), SpecError> {
    count("jobs", jobs.len(), members)?;
    for (member, job) in jobs.iter().enumerate() {
        length("a runtime", job.budget)?;
        length("a period", job.period)?;
        if job.budget > job.deadline || job.deadline > job.period {
            return Err(SpecError::Job { member, job: *job });
        }
    }
    let shares = sum_of_shares(jobs, |job| job.period);
    match shares > WHOLE {
        true => Err(SpecError::Overload { percent: percent(shares) }),
        false => check_deadlines(jobs),
    }
}

/// The budgets' shares of these times, of `WHOLE`. Each is rounded down: a sum that only just fits passes. What passes
/// beyond that is less than a nanosecond in a year.
fn sum_of_shares(jobs: &[Job], of: impl Fn(&Job) -> Nanos) -> u128 {
    let share = |job: &Job| (u128::from(job.budget.0) << 64) / u128::from(of(job).0.max(1));
    jobs.iter().map(share).fold(0, u128::saturating_add)
}

fn percent(shares: u128) -> u128 {
    shares.saturating_mul(100).div_ceil(WHOLE)
}

/// For jobs whose budgets fit into their periods: whether they fit into their deadlines (Baruah, Rosier and Howell,
/// 1990). Nothing is worse than all periods beginning at once; from there on the budgets due by each deadline have to
/// fit into the time until it.
fn check_deadlines(jobs: &[Job]) -> Result<(), SpecError> {
    if jobs.iter().all(|job| job.deadline >= job.period) {
        return Ok(());
    }
    let last = last_deadline(jobs);
    let mut next: Vec<u128> = jobs.iter().map(|job| u128::from(job.deadline.0)).collect();
    let mut due = 0u128;
    for _ in 0..DEADLINES_MAX {
        let Some(by) = next.iter().copied().min().filter(|by| *by <= last) else { return Ok(()) };
        let mut whose = 0;
        for (member, (job, next)) in jobs.iter().zip(&mut next).enumerate() {
            if *next == by {
                whose = member;
                due += u128::from(job.budget.0);
                *next += u128::from(job.period.0);
            }
        }
        if due > by {
            let nanos = |time: u128| Nanos(u64::try_from(time).unwrap_or(u64::MAX));
            return Err(SpecError::Late { member: whose, by: nanos(by), over: nanos(due - by) });
        }
    }
    // Too many to look at. Shares of the deadlines that fit are enough, though they are not needed.
    let shares = sum_of_shares(jobs, |job| job.deadline);
    match shares > WHOLE {
        true => Err(SpecError::Dense { percent: percent(shares) }),
        false => Ok(()),
    }
}

/// If a deadline is missed, one up to this time is.
fn last_deadline(jobs: &[Job]) -> u128 {
    // After the hyperperiod all comes again.
    let common = |all: u128, job: &Job| least_common_multiple(all, u128::from(job.period.0.max(1)));
    let hyperperiod = jobs.iter().try_fold(1, common).unwrap_or(u128::MAX);
    // By a time t at most `taken * t + ahead` is due: less than t, once t is late enough. Rounded so that it is not too
    // early; where a number is too large for that, the hyperperiod alone counts.
    let share =
        |job: &Job| (u128::from(job.budget.0) << 64).div_ceil(u128::from(job.period.0.max(1)));
    let taken = jobs.iter().map(share).fold(0, u128::saturating_add);
    let ahead = jobs.iter().try_fold(0u128, |sum, job| {
        sum.checked_add(share(job).checked_mul(u128::from((job.period - job.deadline).0))?)
    });
    match (ahead, WHOLE.saturating_sub(taken)) {
        (None, _) | (_, 0) => hyperperiod,
        (Some(ahead), free) => hyperperiod.min(ahead.div_ceil(free)),
    }
}

/// Of two that are not 0; `None` if it is too large.
fn least_common_multiple(a: u128, b: u128) -> Option<u128> {
    let (mut divisor, mut rest) = (a, b);
    while rest != 0 {
        (divisor, rest) = (rest, divisor % rest);
    }
    (a / divisor).checked_mul(b)
}

#[cfg(test)]
mod tests {
    use super::*;

    const US: Nanos = Nanos::from_micros(50);

    fn slots(members: &[u8]) -> Spec {
        let slot = |member: &u8| Slot { member: Member(*member), slice: US };
        Spec::Table { slots: members.iter().map(slot).collect() }
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let says = |spec: &Spec, members| spec.check(members).unwrap_err().to_string();
        let short = Spec::RoundRobin { slice: Nanos(4_999) };
        assert!(says(&short, 2).contains("5.0 us"), "{}", says(&short, 2));
        assert!(says(&slots(&[0, 3]), 2).contains("member 4"));
        assert!(says(&slots(&[0, 2]), 3).contains("member 2 has no slot"));
        assert!(says(&slots(&[]), 1).contains("not 0"));
        assert!(says(&Spec::Fifo, 65).contains("not 65"));
        assert!(says(&Spec::Fair { slice: US, weights: vec![1] }, 2).contains("one for each"));
        assert!(says(&Spec::Fair { slice: US, weights: vec![0] }, 1).contains("from 1"));
        let job = Job { period: US, budget: US, deadline: US };
        let late = Job { deadline: Nanos::from_micros(60), ..job };
        assert!(says(&Spec::Edf { jobs: vec![late] }, 1).contains("has to hold"));
        assert!(says(&Spec::Edf { jobs: vec![job; 2] }, 2).contains("200 %"));
    }

    const fn job([period, budget, deadline]: [u64; 3]) -> Job {
        Job { period: Nanos(period), budget: Nanos(budget), deadline: Nanos(deadline) }
    }

    /// Whether jobs of so many nanoseconds are taken.
    fn edf(jobs: &[[u64; 3]]) -> Result<(), SpecError> {
        let spec = Spec::Edf { jobs: jobs.iter().copied().map(job).collect() };
        spec.check(jobs.len())
    }

    const MS: u64 = 1_000_000;

    #[test]
    fn budgets_have_to_fit_into_deadlines() {
        let half = [10 * MS, 5 * MS, 5 * MS];
        let said = edf(&[half, half]).unwrap_err().to_string();
        assert!(said.contains("member 2") && said.contains("at 5.0 ms are 5.0 ms too"), "{said}");
        assert_eq!(edf(&[half, [10 * MS, 5 * MS, 10 * MS]]), Ok(()));
        // The first deadline of each is met, and the second of the first one is not.
        let late = edf(&[[4 * MS, 2 * MS, 2 * MS], [6 * MS, 3 * MS, 5 * MS]]);
        let (by, over) = (Nanos(6 * MS), Nanos(MS));
        assert_eq!(late, Err(SpecError::Late { member: 0, by, over }));
    }

    #[test]
    fn budgets_that_take_the_whole_core_pass_and_a_trifle_more_does_not() {
        for members in 1..=MEMBERS_MAX as u64 {
            let period = members * MS;
            assert_eq!(edf(&vec![[period, MS, period]; members as usize]), Ok(()), "{members}");
        }
        let third = [3 * MS, MS, 3 * MS];
        assert_eq!(edf(&[third, [7 * MS, 4 * MS, 7 * MS], [21 * MS, 2 * MS, 21 * MS]]), Ok(()));
        let trifle = [10_000 * MS, 5_000, 10_000 * MS];
        assert_eq!(edf(&[[MS, MS, MS], trifle]), Err(SpecError::Overload { percent: 101 }));
    }

    #[test]
    fn jobs_with_too_many_deadlines_to_look_at_have_to_fit_into_them_by_their_shares() {
        // Periods without a common divisor, and hardly anything left of the core.
        let first = [9_999_999_967, 4_999_999_983, 9_999_999_967];
        let dense = [9_999_999_943, 4_999_999_971, 6_000_000_000];
        assert_eq!(edf(&[first, dense]), Err(SpecError::Dense { percent: 134 }));
        let said = edf(&[first, dense]).unwrap_err().to_string();
        assert!(said.contains("longer deadlines"), "{said}");
        // Half a million deadlines of the second one lie before the first's.
        let often = [10_000, 5_000, 10_000];
        assert_eq!(edf(&[[10_000 * MS, 2_500 * MS, 5_000 * MS], often]), Ok(()));
    }

    #[test]
    fn no_number_is_too_large_or_too_small_to_look_at() {
        let numbers = [0, 1, u64::MAX - 1, u64::MAX];
        let all = numbers.iter().flat_map(|a| numbers.iter().map(move |b| (*a, *b)));
        let all = all.flat_map(|(a, b)| numbers.iter().map(move |c| job([a, b, *c])));
        let beside = job([u64::MAX, u64::MAX, 1]);
        for one in all {
            // Whatever it answers, it answers.
            let _ = (check_deadlines(&[one, one]), check_deadlines(&[one, beside]));
        }
    }

    #[test]
    fn each_name_builds_the_policy_of_that_name() {
        let job =
            Job { period: Nanos::from_millis(1), budget: US, deadline: Nanos::from_millis(1) };
        let specs = [
            Spec::RoundRobin { slice: US },
            slots(&[0, 1]),
            Spec::Preemptive { budget: US, resume_after: Nanos::from_millis(1) },
            Spec::Edf { jobs: vec![job; 2] },
            Spec::Fair { slice: US, weights: vec![3, 1] },
            Spec::Fifo,
        ];
        for (spec, name) in specs.iter().zip(NAMES) {
            assert_eq!((spec.name(), spec.build(2).unwrap().name()), (name, name));
        }
    }
}
