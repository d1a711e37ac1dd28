//! A lane policy as an operator asks for it, checked.

use quell_model::Nanos;

use super::{
    Edf, Fair, Fifo, Job, LanePolicy, MEMBERS_MAX, Member, Preemptive, RoundRobin, Slot, Table,
};

/// The names of the policies.
pub const NAMES: [&str; 6] = ["round-robin", "table", "preemptive", "edf", "fair", "fifo"];

/// The shortest slice or budget that is taken: below, handing the core over takes longer than using it.
pub const SLICE_MIN: Nanos = Nanos::from_micros(5);

/// The longest: a member that hangs for longer than this has the lane look dead.
const SLICE_MAX: Nanos = Nanos::from_secs(10);

/// The most slots of a table.
const SLOTS_MAX: usize = 4_096;

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
    /// A slice or budget out of range.
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
    #[error("member {}: budget {} <= deadline {} <= period {} has to hold", .member + 1, .job.budget, .job.deadline, .job.period)]
    Job {
        /// Whose, from 0.
        member: usize,
        /// The job.
        job: Job,
    },
    /// Jobs that no order of turns can serve.
    #[error("the budgets ask for {percent} % of the core: no order of turns meets every deadline")]
    Overload {
        /// The sum of the shares.
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
                length("a budget", *budget)?;
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
        length("a budget", job.budget)?;
        length("a period", job.period)?;
        if job.budget > job.deadline || job.deadline > job.period {
            return Err(SpecError::Job { member, job: *job });
        }
    }
    // In millionths, rounded up: a sum that only just fits passes.
    let share = |job: &Job| u128::from(job.budget.0) * 1_000_000 / u128::from(job.period.0);
    let shares: u128 = jobs.iter().map(share).sum();
    match shares > 1_000_000 {
        true => Err(SpecError::Overload { percent: shares.div_ceil(10_000) }),
        false => Ok(()),
    }
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
