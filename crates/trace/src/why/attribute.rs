//! Windows charged to causes.

use quell_model::{CoreId, Nanos, Rank};

use super::timeline::{Span, Stretch, Timeline, TimelineState as State};
use super::{Blame, Cause};

/// How far back a queue is followed. A service that has not slept for longer has more work than time, and
/// that is the cause.
const QUEUE_MAX: Nanos = Nanos::from_millis(100);

/// A time in which a thread that never sleeps, or a timer, saw that its core did not run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// The core.
    pub core: CoreId,
    /// Its begin.
    pub from: Nanos,
    /// Its end.
    pub to: Nanos,
    /// Another thread had the core; otherwise it was the hypervisor.
    pub switched: bool,
}

impl Gap {
    fn span(&self) -> Span {
        Span { from: self.from, to: self.to }
    }
}

/// A timeline with what else is known of the time.
#[derive(Debug)]
pub struct Inquiry {
    timeline: Timeline,
    /// By core; of each, in the order of time.
    standstills: Vec<Gap>,
    /// Of the load generator, in the order of time.
    client: Vec<Gap>,
}

impl Inquiry {
    /// `standstills`: when cores were seen not to run at all. `client`: gaps in the load generator's loop.
    pub fn new(timeline: Timeline, mut standstills: Vec<Gap>, mut client: Vec<Gap>) -> Inquiry {
        standstills.retain(|gap| !gap.switched);
        standstills.sort_by_key(|gap| gap.from);
        client.sort_by_key(|gap| gap.from);
        Inquiry { timeline, standstills, client }
    }

    /// The time that was recorded.
    pub fn recorded(&self) -> (Nanos, Nanos) {
        (self.timeline.span.from, self.timeline.span.to)
    }

    /// How many waits of a thread of the service there are.
    pub fn wait_count(&self) -> usize {
        self.all_waits().count()
    }

    /// Each wait of a thread of the service that took at least `bound`: its begin and end, the earliest first.
    pub fn waits(&self, bound: Nanos) -> Vec<(Nanos, Nanos, Blame)> {
        let long = self.all_waits().filter(|wait| wait.span.length() >= bound);
        let charged = long.map(|wait| {
            let mut blame = Blame::default();
            self.charge(wait, wait.span, &mut blame);
            (wait.span.from, wait.span.to, blame)
        });
        let mut found: Vec<_> = charged.collect();
        found.sort_by_key(|(from, ..)| *from);
        found
    }

    fn all_waits(&self) -> impl Iterator<Item = &Stretch> {
        let Span { from, to } = self.timeline.span;
        let is_inside = move |span: Span| span.to >= from && span.from <= to;
        let all = self.timeline.threads.values().flatten();
        all.filter(move |one| one.state == State::Waiting && is_inside(one.span))
    }

    /// Charges a request from its intended send time to its reply.
    pub fn request(&self, intended: Nanos, done: Nanos) -> Blame {
        let window = Span { from: intended, to: done };
        let Some(stretches) = self.server(window) else {
            return self.unseen(window);
        };
        let (mut inside, mut before) = (Blame::default(), Blame::default());
        let mut seen = window.from;
        let busy_since = busy_since(stretches, window.from);
        let queue = Span { from: busy_since, to: window.from };
        let first = stretches.partition_point(|stretch| stretch.span.to <= busy_since);
        for stretch in stretches[first..].iter().take_while(|one| one.span.from < window.to) {
            if let Some(part) = stretch.span.overlap(queue) {
                self.charge(stretch, part, &mut before);
            }
            if let Some(part) = stretch.span.overlap(window) {
                self.unseen_into(Span { from: seen, to: part.from }, &mut inside);
                self.charge(stretch, part, &mut inside);
                seen = part.to;
            }
        }
        self.unseen_into(Span { from: seen, to: window.to }, &mut inside);
        shift(&mut inside, &before);
        inside
    }

    /// The stretches of the thread that is taken to have served a request: that which ran last before the
    /// reply; if none ran, that which was kept from it longest.
    fn server(&self, window: Span) -> Option<&[Stretch]> {
        let last_ran = |stretches: &&Vec<Stretch>| {
            let end = stretches.partition_point(|stretch| stretch.span.from < window.to);
            let mut before = stretches[..end].iter().rev();
            let ran = before.find(|stretch| stretch.state == State::Running)?;
            let until = ran.span.to.min(window.to);
            (until > window.from).then_some((until, ran.span.from))
        };
        let threads = self.timeline.threads.values();
        let ran = threads.clone().filter_map(|one| Some((last_ran(&one)?, one)));
        if let Some((_, stretches)) = ran.max_by_key(|(when, _)| *when) {
            return Some(stretches);
        }
        let kept = |stretches: &&Vec<Stretch>| {
            let is_kept = |one: &&Stretch| !matches!(one.state, State::Sleeping | State::Unknown);
            let kept = stretches.iter().filter(is_kept);
            let parts = kept.filter_map(|one| one.span.overlap(window));
            parts.fold(Nanos::ZERO, |sum, part| sum + part.length())
        };
        threads.max_by_key(kept).map(Vec::as_slice)
    }

    /// Charges a part of a stretch. Where events were lost it is unknown: on a core those of that core, of a thread
    /// that is on none those of any.
    fn charge(&self, stretch: &Stretch, part: Span, blame: &mut Blame) {
        let lost = match stretch.state {
            State::Running | State::Waiting => {
                self.timeline.cores.get(&stretch.core).map_or(&[][..], |line| &line.unknown)
            }
            _ => &self.timeline.unknown,
        };
        known_parts(lost, part, blame, |known, blame| self.charge_known(stretch, known, blame));
    }

    fn charge_known(&self, stretch: &Stretch, part: Span, blame: &mut Blame) {
        match stretch.state {
            State::Stopped => blame.add(Cause::Stopped, part.length()),
            State::Unknown => blame.add(Cause::Unknown, part.length()),
            State::Sleeping => self.asleep(part, blame),
            State::Blocked => self.own(part, blame),
            State::Running => self.charge_core(stretch, part, blame, None),
            State::Waiting => self.charge_core(stretch, part, blame, Some(stretch.rank)),
        }
    }

    /// Charges time on a core: what interrupts and the hypervisor took, and the rest to who had it, for a
    /// thread that waits with this rank, or to the service itself.
    fn charge_core(&self, stretch: &Stretch, part: Span, blame: &mut Blame, waits: Option<Rank>) {
        let Some(line) = self.timeline.cores.get(&stretch.core) else {
            blame.add(Cause::Unexplained, part.length());
            return;
        };
        let mut told = Nanos::ZERO;
        let first = line.runs.partition_point(|run| run.span.to <= part.from);
        for run in line.runs[first..].iter().take_while(|run| run.span.from < part.to) {
            let Some(here) = run.span.overlap(part) else { continue };
            told += here.length();
            let softirq = sum(&line.softirqs, here);
            let interrupt = sum(&line.interrupts, here);
            let still = self.standstill(stretch.core, here).max(run.steal.min(here.length()));
            let mut rest = here.length();
            for (cause, time) in [
                (Cause::Hypervisor, still),
                (Cause::Softirq, softirq),
                (Cause::Interrupt, interrupt),
            ] {
                let time = time.min(rest);
                blame.add(cause, time);
                rest = rest.since(time);
            }
            // Softirqs and interrupts take time from whatever else has the core.
            let or_unknown = |cause| match self.timeline.explains_interrupts {
                true => cause,
                false => Cause::Unknown,
            };
            match waits {
                None if rest == here.length() => {
                    self.own_as(or_unknown(Cause::Service), here, blame)
                }
                None => blame.add(or_unknown(Cause::Service), rest),
                Some(_) if run.thread.thread == 0 => {
                    self.late(or_unknown(Cause::IdleCore), here, rest, blame);
                }
                Some(rank) if rank < run.thread.rank => {
                    let cause = or_unknown(Cause::KernelSection(run.thread.name));
                    self.late(cause, here, rest, blame);
                }
                Some(_) => blame.add(Cause::Behind(run.thread.name), rest),
            }
        }
        // A core whose first switch was not seen yet.
        blame.add(Cause::Unexplained, part.length().since(told));
    }

    /// The core does not take up the service although nothing holds it. Where the load generator's core stood
    /// still at the same time, the hypervisor had stopped the machine and not only that core.
    fn late(&self, cause: Cause, part: Span, rest: Nanos, blame: &mut Blame) {
        let [(hypervisor, still), _] = self.generator(part);
        let still = still.min(rest);
        blame.add(hypervisor, still);
        blame.add(cause, rest.since(still));
    }

    /// The service has its time; but if the load generator did not run meanwhile, that is what the request
    /// waited for.
    fn own(&self, part: Span, blame: &mut Blame) {
        self.own_as(Cause::Service, part, blame);
    }

    fn own_as(&self, own: Cause, part: Span, blame: &mut Blame) {
        let mut rest = part.length();
        for (cause, time) in self.generator(part) {
            let time = time.min(rest);
            blame.add(cause, time);
            rest = rest.since(time);
        }
        blame.add(own, rest);
    }

    fn unseen(&self, part: Span) -> Blame {
        let mut blame = Blame::default();
        self.unseen_into(part, &mut blame);
        blame
    }

    /// Nothing is known of the service.
    fn unseen_into(&self, part: Span, blame: &mut Blame) {
        let lost = &self.timeline.unknown;
        known_parts(lost, part, blame, |known, blame| self.asleep(known, blame));
    }

    /// The service sleeps, or was not seen.
    fn asleep(&self, part: Span, blame: &mut Blame) {
        let mut rest = part.length();
        let softirq = self.timeline.cores.values().map(|line| sum(&line.softirqs, part)).max();
        let softirq = [(Cause::Softirq, softirq.unwrap_or_default())];
        for (cause, time) in self.generator(part).into_iter().chain(softirq) {
            let time = time.min(rest);
            blame.add(cause, time);
            rest = rest.since(time);
        }
        blame.add(Cause::Unexplained, rest);
    }

    /// When the load generator did not run.
    fn generator(&self, part: Span) -> [(Cause, Nanos); 2] {
        let of = |switched| {
            let gaps = self.client.iter().filter(move |gap| gap.switched == switched);
            shared(gaps, part)
        };
        [(Cause::Hypervisor, of(false)), (Cause::Generator, of(true))]
    }

    fn standstill(&self, core: CoreId, part: Span) -> Nanos {
        shared(self.standstills.iter().filter(|gap| gap.core == core), part)
    }
}

/// Charges the parts of a span in which events were lost to [`Cause::Unknown`], and the others as `charge` does.
/// `lost` is in the order of time and without overlaps.
fn known_parts(lost: &[Span], part: Span, blame: &mut Blame, charge: impl Fn(Span, &mut Blame)) {
    let mut from = part.from;
    let first = lost.partition_point(|span| span.to <= part.from);
    for lost in lost[first..].iter().map_while(|span| span.overlap(part)) {
        if from < lost.from {
            charge(Span { from, to: lost.from }, blame);
        }
        blame.add(Cause::Unknown, lost.length());
        from = lost.to;
    }
    if from < part.to {
        charge(Span { from, to: part.to }, blame);
    }
}

fn shared<'g>(gaps: impl Iterator<Item = &'g Gap>, part: Span) -> Nanos {
    let parts = gaps.filter_map(|gap| gap.span().overlap(part));
    parts.fold(Nanos::ZERO, |sum, part| sum + part.length())
}

/// How much of a span others take; `spans` are in the order of time and do not overlap.
fn sum(spans: &[Span], part: Span) -> Nanos {
    let first = spans.partition_point(|span| span.to <= part.from);
    let within = spans[first..].iter().take_while(|span| span.from < part.to);
    within.filter_map(|span| span.overlap(part)).fold(Nanos::ZERO, |sum, part| sum + part.length())
}

/// Since when the thread has had work at a time: the end of its last sleep before, not longer than
/// [`QUEUE_MAX`] ago.
fn busy_since(stretches: &[Stretch], at: Nanos) -> Nanos {
    let earliest = at.since(QUEUE_MAX);
    let mut since = at;
    let end = stretches.partition_point(|stretch| stretch.span.from < at);
    for stretch in stretches[..end].iter().rev() {
        if stretch.state == State::Sleeping || since < earliest {
            break;
        }
        since = stretch.span.from;
    }
    Nanos(since.0.max(earliest.0))
}

/// Charges the service's time within a window to what kept it from its work before, as far as that goes.
fn shift(inside: &mut Blame, before: &Blame) {
    let taken = before.interference();
    let moved = taken.min(inside.of(Cause::Service));
    if moved == Nanos::ZERO {
        return;
    }
    let mut left = moved;
    for (cause, time) in before.causes().into_iter().filter(|(cause, _)| cause.is_interference()) {
        let share = u128::from(moved.0) * u128::from(time.0) / u128::from(taken.0);
        // No more than `moved`, which fits.
        let share = Nanos(share as u64);
        inside.add(cause, share);
        left = left.since(share);
    }
    inside.lessen(Cause::Service, moved.since(left));
}
