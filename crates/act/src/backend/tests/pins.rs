//! Kernel threads of a runtime, and what helps them.

use quell_model::{BeRung, CoreId};

use super::*;

/// An LC task (threads 10 to 12) owns cores 1 and 2 of four; core 3 is another's.
fn runtime() -> Pair {
    let mut host = FakeHost::new("0-3");
    let views = vec![view(10, 0), view(11, 0), view(12, 0)];
    views.iter().for_each(|view| host.thread(view.thread.tid.0, "0-3"));
    let mut back = elevation(BeRung::SchedIdle);
    back.admit(info(0, "runtime"));
    let mut plan = plan(3);
    give(&mut plan, LC, Rung::Lc, "1-2", "");
    Pair { host, back, views, plan }
}

impl Pair {
    fn pin(&mut self, at: usize, pin: Option<Pin>) -> bool {
        self.back.pin(&self.views[at].thread, pin)
    }

    fn cores(&self) -> [String; 3] {
        [10, 11, 12].map(|tid| self.host.cores_of(tid))
    }
}

#[test]
fn a_pinned_thread_keeps_to_its_core_and_costs_nothing_while_it_does() {
    let mut t = runtime();
    assert!(!t.pin(0, Some(Pin::Core(CoreId(2)))), "not seen yet");
    t.tick();
    assert_eq!(t.cores(), ["1-2", "1-2", "1-2"]);
    assert!(t.pin(0, Some(Pin::Core(CoreId(2)))));
    t.tick();
    assert_eq!(t.cores(), ["2", "1-2", "1-2"]);
    assert_eq!(t.host.sched_of(10), lc_attr());
    t.host.log.clear();
    for _ in 0..10 {
        t.pin(0, Some(Pin::Core(CoreId(2))));
        assert_eq!(t.tick(), ApplyReport::default());
    }
    assert!(t.host.log.is_empty());
    t.pin(0, Some(Pin::Member));
    t.tick();
    assert_eq!(t.cores(), ["1-2", "1-2", "1-2"]);
}

#[test]
fn a_pin_holds_while_the_core_goes_to_another_until_it_is_taken_off() {
    let mut t = runtime();
    t.tick();
    t.pin(0, Some(Pin::Core(CoreId(2))));
    t.tick();
    t.plan.cores[2].owner = None;
    t.tick();
    assert_eq!(t.cores(), ["2", "1", "1"], "it is to leave by itself");
    t.pin(0, Some(Pin::Member));
    t.tick();
    assert_eq!(t.cores(), ["1", "1", "1"]);
}

#[test]
fn a_pin_outside_of_what_the_thread_chose_itself_changes_nothing() {
    let mut t = runtime();
    t.host.thread(10, "0-1");
    t.tick();
    t.pin(0, Some(Pin::Core(CoreId(2))));
    t.tick();
    assert_eq!(t.cores()[0], "1");
}

#[test]
fn helpers_stay_off_the_cores_on_their_own_rung_and_kernel_threads_do_not() {
    let mut t = runtime();
    t.host.thread(12, "1-3");
    t.tick();
    t.pin(0, Some(Pin::Core(CoreId(1))));
    t.back.place_helpers(task(0), set("0"));
    t.tick();
    assert_eq!(t.cores(), ["1", "0", "1-2"], "the last may not use core 0 by itself");
    assert_eq!(t.host.sched_of(11), SchedAttr::OTHER);
    assert_eq!((t.host.sched_of(10), t.host.sched_of(12)), (lc_attr(), lc_attr()));
    t.pin(1, Some(Pin::Member));
    t.tick();
    assert_eq!((t.cores()[1].as_str(), t.host.sched_of(11)), ("1-2", lc_attr()));
    t.back.place_helpers(task(0), CoreSet::EMPTY);
    t.pin(1, None);
    t.tick();
    assert_eq!(t.cores(), ["1", "1-2", "1-2"]);
    t.back.release(task(0), &mut t.host);
    assert_eq!(t.host.given_back.len(), 3);
}
