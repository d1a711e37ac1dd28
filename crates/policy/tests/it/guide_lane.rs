//! The lane policy of docs/reference/lanes.md, as it stands there.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

// guide: begin
use quell_model::Nanos;
use quell_policy::lanes::{LanePolicy, Look, Member, Members, Seen, Turn};

/// The first member runs whenever it can; the others share what it leaves, a slice each.
struct FirstFirst {
    slice: Nanos,
    /// Who of the others had the last turn.
    last: Member,
}

impl FirstFirst {
    /// Of these, the next one after the last, round and round.
    fn next(&self, among: Members) -> Option<Member> {
        let later = among.iter().find(|member| *member > self.last);
        later.or_else(|| among.iter().next())
    }
}

impl LanePolicy for FirstFirst {
    fn name(&self) -> &'static str {
        "first-first"
    }

    fn decide(&mut self, seen: &Seen) -> Turn {
        let first = Member(0);
        if seen.runnable.contains(first) {
            // Until it sleeps: nobody else's wake-up matters.
            return Turn::of(first, Look::OnChange);
        }
        let waiting = seen.waiting();
        match seen.current() {
            Some((member, _)) if waiting.is_empty() => Turn::of(member, Look::OnChange),
            Some((member, since)) if seen.now < since + self.slice => {
                // The first member must not wait for the slice's end.
                Turn::of(member, Look::AtOrOnWake(since + self.slice))
            }
            _ => match self.next(waiting) {
                Some(next) => {
                    self.last = next;
                    Turn::of(next, Look::AtOrOnWake(seen.now + self.slice))
                }
                None => Turn::IDLE,
            },
        }
    }
}
// guide: end

fn policy() -> FirstFirst {
    FirstFirst { slice: Nanos(100), last: Member(0) }
}

fn seen(now: u64, runnable: &[u8], turn: Option<(u8, u64)>) -> Seen {
    Seen {
        now: Nanos(now),
        runnable: runnable.iter().map(|member| Member(*member)).collect(),
        turn: turn.map(|(member, since)| (Member(member), Nanos(since))),
    }
}

#[test]
fn the_first_member_runs_whenever_it_can() {
    let mut policy = policy();
    assert_eq!(policy.name(), "first-first");
    assert_eq!(policy.decide(&seen(0, &[1, 2], None)).member, Some(Member(1)));
    let turn = policy.decide(&seen(50, &[0, 1, 2], Some((1, 0))));
    assert_eq!(turn, Turn::of(Member(0), Look::OnChange));
}

#[test]
fn the_others_take_turns_and_are_looked_at_when_somebody_wakes() {
    let mut policy = policy();
    let mut turn = None;
    let mut order = Vec::new();
    for step in 0..9 {
        let said = policy.decide(&seen(step * 100, &[1, 2, 3], turn));
        assert_eq!(said.look, Look::AtOrOnWake(Nanos(step * 100 + 100)));
        let member = said.member.unwrap();
        turn = Some((member.0, step * 100));
        order.push(member.0);
    }
    assert_eq!(order, [1, 2, 3, 1, 2, 3, 1, 2, 3]);
    assert_eq!(policy.decide(&seen(900, &[], turn)), Turn::IDLE);
}

#[test]
fn the_guide_shows_this_very_code() {
    let this = include_str!("guide_lane.rs");
    let code = this.split("// guide: begin\n").nth(1).unwrap();
    let code = code.split("// guide: end\n").next().unwrap();
    assert!(code.lines().count() <= 50, "{}", code.lines().count());
    let guide = include_str!("../../../../docs/reference/lanes.md");
    assert!(guide.contains(code.trim_end()), "docs/reference/lanes.md shows another policy");
}
