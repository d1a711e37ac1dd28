use std::io::Write as _;
use std::os::unix::net::UnixListener;

use proptest::prelude::*;

use super::*;

const WEB: TaskId = TaskId { index: 0, generation: 2 };

fn updates() -> Vec<Update> {
    let (core, at_ns) = (CoreId(1), Nanos(81_234_567_891));
    let affinity = OriginalAffinity {
        process: 7,
        cores: "0-3".parse().unwrap(),
        threads: vec![7, 8],
        whole_process: true,
    };
    let reason = Reason::Congested(Nanos(12_000));
    let mode = CoreMode::Kernel;
    let decision = CoreDecision { core, from: None, to: Some(WEB), mode, reason };
    vec![
        Update::Task(TaskUpdate {
            at_ns,
            id: WEB,
            name: "web".to_owned(),
            class: Class::LatencyCritical,
            processes: vec![7],
            affinities: vec![affinity],
        }),
        Update::TaskLeft(TaskLeft { at_ns, id: WEB }),
        Update::Core(CoreUpdate { at_ns, core, owner: Some(WEB), mode, reason }),
        Update::Decision(DecisionUpdate { at_ns, decision }),
        Update::PlanAffinity(PlanAffinity {
            at_ns,
            task: WEB,
            cores: CoreSet::of(core),
            reason: TaskReason::DelaysLc(Nanos(9)),
        }),
        Update::Lost(Lost { at_ns, count: 3 }),
    ]
}

#[test]
fn updates_survive_the_wire() {
    for update in updates() {
        let line = serde_json::to_string(&update).unwrap();
        assert_eq!(Update::parse(&line), Ok(update), "{line}");
    }
}

#[test]
fn a_decision_is_one_flat_object() {
    let line = serde_json::to_string(&updates()[3]).unwrap();
    assert_eq!(
        line,
        r#"{"decision":{"at_ns":81234567891,"core":1,"from":null,"to":{"index":0,"generation":2},"mode":"kernel","reason":{"congested":12000}}}"#
    );
}

#[test]
fn fields_out_of_range_are_rejected_by_value() {
    let line = |at: usize| serde_json::to_string(&updates()[at]).unwrap();
    for (line, old, new, says) in [
        (line(0), "web", "w\\neb", "not a name"),
        (line(0), "[7]", "[0]", "0 is not the id"),
        (line(0), "[7,8]", "[7,-8]", "-8 is not the id"),
        (line(0), "0-3", "3-0", "3-0"),
        (line(0), "81234567891", "9223372036854775808", "out of range"),
        (line(3), "\"core\":1", "\"core\":1024", "core 1024"),
        (line(5), "lost", "found", "found"),
    ] {
        let rejected = Update::parse(&line.replace(old, new)).unwrap_err();
        assert!(rejected.contains(says), "{rejected}");
    }
    let many = format!("[7{}]", ",7".repeat(TaskInfo::PROCESSES_MAX));
    let rejected = Update::parse(&line(0).replace("[7]", &many)).unwrap_err();
    assert!(rejected.contains("at most 4096"), "{rejected}");
}

/// A daemon that answers and sends these bytes, then closes.
fn subscribed(bytes: &'static [u8]) -> (tempfile::TempDir, Subscription) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control.sock");
    let listener = UnixListener::bind(&path).unwrap();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let asked = protocol::read_line(&mut BufReader::new(stream.try_clone().unwrap())).unwrap();
        assert_eq!(protocol::parse_request(&asked.unwrap()).unwrap().call, Method::Subscribe);
        let answer = Response { v: PROTOCOL, id: 1, reply: Reply::Subscribed };
        protocol::send(&mut stream, &answer).unwrap();
        stream.write_all(bytes).unwrap();
    });
    let subscription = Subscription::open(&path, Duration::from_secs(60)).unwrap();
    (directory, subscription)
}

#[test]
fn a_rejected_line_is_named_with_a_remedy() {
    let (_directory, mut subscription) =
        subscribed(b"{\"lost\":{\"at_ns\":1,\"count\":2}}\n{\"lost\":3}\n\xff\n");
    let lost = subscription.next_update().unwrap();
    assert_eq!(lost, Some(Update::Lost(Lost { at_ns: Nanos(1), count: 2 })));
    for line in ["line 3 of", "line 4 of"] {
        let rejected = subscription.next_update().unwrap_err().to_string();
        assert!(rejected.contains(line) && rejected.contains("same release"), "{rejected}");
    }
    let ended = subscription.next_update().unwrap_err().to_string();
    assert!(ended.contains("closed the connection"), "{ended}");
}

proptest! {
    #[test]
    fn any_line_is_an_update_or_an_error(line in ".{0,200}") {
        let _ = Update::parse(&line);
    }

    #[test]
    fn a_changed_line_is_rejected_or_written_as_it_is_read(
        nth in 0..6usize,
        at in any::<prop::sample::Index>(),
        with in any::<u8>(),
    ) {
        let mut line = serde_json::to_vec(&updates()[nth]).unwrap();
        let at = at.index(line.len());
        line[at] = with;
        if let Ok(update) = Update::parse(&String::from_utf8_lossy(&line)) {
            let written = serde_json::to_string(&update).unwrap();
            prop_assert_eq!(Update::parse(&written), Ok(update));
        }
    }
}
