//! The books of a run: each request of the schedule ends in exactly one count.

use quell_model::Nanos;

use crate::arrivals::Phase;
use crate::connection::Pending;
use crate::latency::Recorder;
use crate::protocol::Status;
use crate::report::{Sample, Totals};
use crate::spec::LoadSpec;

/// A request written later than this after it was due is late.
const LATE: Nanos = Nanos::from_micros(5);

/// The requests of the warm-up or of one step.
pub(crate) struct Account {
    pub totals: Totals,
    /// Replies that came within its window, whichever request they belong to.
    pub replies_in_window: u64,
    pub latency: Recorder,
    /// Of all but the long ones, where the workload has such.
    pub short: Option<Recorder>,
    pub lateness: Recorder,
    /// Of those that the kernel stamped: until the stamp.
    pub received: Option<Recorder>,
    /// Its window.
    pub start: Nanos,
    pub end: Nanos,
}

impl Account {
    fn new(start: Nanos, end: Nanos, spec: &LoadSpec) -> Account {
        Account {
            totals: Totals::default(),
            replies_in_window: 0,
            latency: Recorder::new(),
            short: spec.protocol.has_long_ones().then(Recorder::new),
            lateness: Recorder::new(),
            received: spec.stamps.then(Recorder::new),
            start,
            end,
        }
    }
}

/// What happened since progress was last published.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub at: Nanos,
    pub scheduled: u64,
    pub replies: u64,
    pub late: u64,
    pub outstanding: usize,
    pub latency: Recorder,
}

impl Tally {
    /// Starts anew, in the memory it has.
    pub fn clear(&mut self) {
        self.latency.clear();
        (self.at, self.scheduled, self.replies) = (Nanos::ZERO, 0, 0);
        (self.late, self.outstanding) = (0, 0);
    }
}

pub(crate) struct Books {
    /// The warm-up's account, then each step's.
    pub accounts: Vec<Account>,
    /// The account whose window the present falls into.
    current: usize,
    /// Requests that wait for a reply.
    pub outstanding: usize,
    /// When requests without a reply are given up.
    pub deadline: Nanos,
    pub samples: Vec<Sample>,
    pub samples_missing: u64,
    pub tally: Tally,
}

impl Books {
    /// Empty books with room for `samples_max` samples, all their memory touched: the loop never faults
    /// a page in.
    pub fn open(spec: &LoadSpec, samples_max: usize, start: Nanos) -> Books {
        let mut end = start + spec.warmup;
        let mut accounts = vec![Account::new(start, end, spec)];
        for step in &spec.steps {
            let begin = end;
            end += step.duration;
            accounts.push(Account::new(begin, end, spec));
        }
        let unset = Sample { sent_ns: Nanos::MAX, latency_ns: Nanos::MAX };
        let mut samples = vec![unset; samples_max];
        samples.clear();
        Books {
            accounts,
            current: 0,
            outstanding: 0,
            deadline: end + spec.grace,
            samples,
            samples_missing: 0,
            tally: Tally::default(),
        }
    }

    /// Number of the account of a part of the run.
    pub fn number(phase: Phase) -> usize {
        match phase {
            Phase::WarmUp => 0,
            Phase::Step(step) => step + 1,
        }
    }

    /// Time has come to `at`.
    pub fn advance(&mut self, at: Nanos) {
        while self.accounts.get(self.current).is_some_and(|account| at >= account.end) {
            self.current += 1;
        }
    }

    /// A request is about to be written at `at`; whether the generator is late with it.
    pub fn sending(&mut self, number: usize, due: Nanos, at: Nanos) -> bool {
        self.scheduled(number);
        self.outstanding += 1;
        let lateness = at.since(due);
        let late = lateness > LATE;
        let account = &mut self.accounts[number];
        account.lateness.record(lateness);
        account.totals.late += u64::from(late);
        self.tally.late += u64::from(late);
        late
    }

    /// A request waits behind bytes that the server has not read.
    pub fn blocked(&mut self, number: usize) {
        self.scheduled(number);
        self.outstanding += 1;
        self.accounts[number].totals.blocked += 1;
    }

    /// A request found no room: too much waits for the server to read.
    pub fn refused(&mut self, number: usize, due: Nanos) {
        self.accounts[number].totals.blocked += 1;
        self.unsent(number, due);
    }

    /// The run ended before the generator came to a request that was due.
    pub fn missed(&mut self, number: usize, due: Nanos) {
        self.accounts[number].totals.late += 1;
        self.unsent(number, due);
    }

    /// A request was due when no connection was left.
    pub fn unsent(&mut self, number: usize, due: Nanos) {
        self.scheduled(number);
        self.accounts[number].totals.unsent += 1;
        // What was never drawn counts as short.
        self.record(number, due, self.deadline, false);
    }

    fn scheduled(&mut self, number: usize) {
        self.accounts[number].totals.scheduled += 1;
        self.tally.scheduled += 1;
    }

    /// A reply came at `at`.
    pub fn answered(&mut self, pending: Pending, at: Nanos, status: Status) {
        self.outstanding -= 1;
        self.tally.replies += 1;
        self.tally.latency.record(at.since(pending.due));
        if let Some(window) = self.accounts.get_mut(self.current) {
            window.replies_in_window += 1;
        }
        let number = pending.account as usize;
        let totals = &mut self.accounts[number].totals;
        totals.sent += 1;
        match status {
            Status::Ok => totals.answered += 1,
            Status::Miss => {
                totals.answered += 1;
                totals.misses += 1;
            }
            Status::Error => totals.errors += 1,
        }
        self.record(number, pending.due, at, pending.is_long);
    }

    /// The kernel received a reply at `at`.
    pub fn received(&mut self, pending: Pending, at: Nanos) {
        let account = &mut self.accounts[pending.account as usize];
        if let Some(received) = &mut account.received {
            received.record(at.since(pending.due));
        }
    }

    /// No reply will come, because the connection is `lost` or the run is over.
    pub fn abandoned(&mut self, pending: Pending, sent: bool, lost: bool) {
        self.outstanding -= 1;
        let number = pending.account as usize;
        let totals = &mut self.accounts[number].totals;
        totals.sent += u64::from(sent);
        match (sent, lost) {
            (false, _) => totals.unsent += 1,
            (true, true) => totals.errors += 1,
            (true, false) => totals.unanswered += 1,
        }
        self.record(number, pending.due, self.deadline, pending.is_long);
    }

    fn record(&mut self, number: usize, due: Nanos, end: Nanos, is_long: bool) {
        let latency = end.since(due);
        let account = &mut self.accounts[number];
        account.latency.record(latency);
        if let Some(short) = account.short.as_mut().filter(|_| !is_long) {
            short.record(latency);
        }
        if number == Books::number(Phase::WarmUp) {
            return;
        }
        if self.samples.len() < self.samples.capacity() {
            self.samples.push(Sample { sent_ns: due, latency_ns: latency });
        } else {
            self.samples_missing += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use quell_model::Nanos;

    use super::*;
    use crate::protocol::{ProtocolSpec, synthetic};

    /// No warm-up, one step of a second.
    fn books() -> Books {
        let service = synthetic::ServiceTime::Fixed { work_ns: 1 };
        let protocol = ProtocolSpec::Synthetic(synthetic::SyntheticSpec { service });
        let addr = "127.0.0.1:1".parse().unwrap();
        let mut spec = LoadSpec::new(addr, protocol, 1.0, Nanos::from_secs(1));
        (spec.warmup, spec.grace) = (Nanos::ZERO, Nanos::from_millis(100));
        Books::open(&spec, 10, Nanos::ZERO)
    }

    const STEP: usize = 1;

    #[test]
    fn a_send_5_us_after_it_was_due_is_late() {
        let mut books = books();
        let due = Nanos::from_millis(1);
        assert!(!books.sending(STEP, due, due + Nanos::from_micros(5)));
        assert!(books.sending(STEP, due, due + Nanos::from_micros(6)));
        let account = &books.accounts[STEP];
        assert_eq!((account.totals.scheduled, account.totals.late), (2, 1));
        assert!(account.lateness.summary().max_us > 5.0);
    }

    #[test]
    fn latency_lasts_from_when_a_request_was_due() {
        let mut books = books();
        // All are answered at once, after a server that stood still.
        let answered = Nanos::from_millis(400);
        for ms in [1, 2, 3] {
            let due = Nanos::from_millis(ms);
            books.sending(STEP, due, due);
            books.answered(Pending::due(due, STEP as u32), answered, Status::Ok);
        }
        let latencies: Vec<Nanos> = books.samples.iter().map(|sample| sample.latency_ns).collect();
        assert_eq!(latencies, [399, 398, 397].map(Nanos::from_millis));
        let latency = books.accounts[STEP].latency.summary();
        assert!(latency.max_us > 100_000.0 && latency.count == 3);
    }

    #[test]
    fn a_request_without_a_reply_lasts_until_the_deadline() {
        let mut books = books();
        let due = Nanos::from_millis(900);
        books.sending(STEP, due, due);
        books.abandoned(Pending::due(due, STEP as u32), true, false);
        assert_eq!(books.accounts[STEP].totals.unanswered, 1);
        assert_eq!(books.samples[0].latency_ns, Nanos::from_millis(200));
        assert_eq!(books.outstanding, 0);
    }
}
