//! Whole frames: as they look, and that nothing the daemon or the keyboard says breaks them.

use std::time::Duration;

use proptest::prelude::*;
use quell_control::protocol::{
    Advised, CoreStatus, Counters, Decision, Status, TaskCpuTime, TaskStatus, WakeupLatency,
};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::{Buffer, Cell};
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};
use ratatui::layout::Rect;
use ratatui::style::Color;

use crate::screen::as_text;
use crate::state::{Event, State, Why};
use crate::table::Subject;
use crate::view;

fn task(name: &str, class: &str) -> TaskStatus {
    TaskStatus {
        name: name.into(),
        class: class.into(),
        source: "adopted by name".into(),
        state: "running".into(),
        processes: vec![4711],
        threads: 4,
        running: 1,
        ..TaskStatus::default()
    }
}

/// Two cores, a service and batch work, as `ms` milliseconds after their start.
fn fixed(ms: u64) -> Status {
    let part = |share: f64| ms as f64 * share;
    let ran = |task: &str, share| TaskCpuTime { task: task.into(), cpu_ms: part(share) };
    let core = |core, ran, idle| CoreStatus {
        core,
        mode: "kernel".into(),
        owner: Some("web".into()),
        running: Some("batch".into()),
        reason: "guaranteed to its owner".into(),
        lc_busy_percent: Some(31.2),
        outcome: "done".into(),
        task_cpu: ran,
        idle_ms: Some(part(idle)),
        request_age_us: None,
    };
    Status {
        version: "0.1.0".into(),
        host: "testhost".into(),
        pid: 7,
        uptime_s: 3_725,
        at_us: 5_000_000 + ms * 1_000,
        memory: None,
        policy: "quell".into(),
        back_end: "elevation".into(),
        pattern: "shared".into(),
        observer: "bpf".into(),
        guardians: 2,
        managed: "1-2".into(),
        unmanaged: "0".into(),
        degraded: vec!["no PMU: bandwidth is not seen".into()],
        cores: vec![
            core(1, vec![ran("web", 0.3), ran("batch", 0.6)], 0.08),
            CoreStatus { outcome: "refused (errno 1)".into(), ..core(2, vec![], 1.0) },
        ],
        tasks: vec![
            TaskStatus {
                owned: "1-2".into(),
                rung: "lc".into(),
                reason: "owns a core".into(),
                cpu_ms: part(0.3),
                run_delay_ms: part(0.001),
                wakeup_latency: Some(WakeupLatency {
                    count: 900,
                    p50_us: 2.9,
                    p99_us: 11.5,
                    p999_us: 47.1,
                }),
                ..task("web", "LC")
            },
            TaskStatus {
                waiting: 3,
                queueing_delay_us: Some(8_400.0),
                shared_cores: "1-2".into(),
                rung: "sched-idle".into(),
                reason: "owns no core, shares those of others".into(),
                cpu_ms: part(0.6),
                run_delay_ms: part(2.4),
                lc_delay_caused_us: Some(14.0),
                problems: vec!["thread 9 changed its own affinity; it is left so".into()],
                ..task("batch", "BE")
            },
        ],
        counters: Counters {
            ticks: ms / 10,
            tick_mean_us: 6.25,
            daemon_cpu_ms: part(0.004),
            idle_while_lc_waits_us: Some(310.0),
            ..Counters::default()
        },
        events: vec!["task web joins as LC".into(), "task batch joins as BE".into()],
        decisions: vec![Decision {
            at_us: 4_000_000,
            core: 1,
            from: None,
            to: Some("web".into()),
            reason: "guaranteed to its owner".into(),
        }],
        advice: vec![
            Advised { task: "batch".into(), offer: "keep it off core 2".into(), declined: None },
            Advised {
                task: "web".into(),
                offer: "give it 0 cores at most".into(),
                declined: Some("its guarantee comes first".into()),
            },
        ],
    }
}

/// A display of two samples, as it starts on a terminal of this size.
fn ready(columns: u16, rows: u16, colours: bool) -> State {
    let mut state = State::new(Duration::from_millis(500), colours);
    state.update(Event::Resized(columns, rows));
    state.update(Event::Status(Box::new(fixed(1_000))));
    state.update(Event::Status(Box::new(fixed(1_500))));
    let said = Ok(vec!["batch is treated as BE on rung sched-idle: owns no core".to_owned()]);
    state.update(Event::Why(Why { subject: Subject::Task("batch".into()), said }));
    state
}

fn press(state: &mut State, code: KeyCode) {
    state.update(Event::Key(KeyEvent::new(code, KeyModifiers::NONE)));
}

fn type_keys(state: &mut State, keys: &str) {
    keys.chars().for_each(|c| press(state, KeyCode::Char(c)));
}

fn frame(state: &State, columns: u16, rows: u16) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(columns, rows)).unwrap();
    terminal.draw(|frame| view::draw(state, frame.area(), frame.buffer_mut())).unwrap();
    terminal.backend().buffer().clone()
}

/// Compares with the file; `QUELL_TOP_SNAPSHOTS=write` writes it, to be looked at and committed.
fn assert_looks(name: &str, state: &State, columns: u16, rows: u16) {
    let looks = as_text(&frame(state, columns, rows));
    let path = format!("{}/src/snapshots/{name}.txt", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("QUELL_TOP_SNAPSHOTS").is_some() {
        std::fs::write(&path, &looks).unwrap();
    }
    assert_eq!(looks, std::fs::read_to_string(&path).unwrap(), "{path}");
}

#[test]
fn a_small_terminal_shows_tasks_and_cores() {
    assert_looks("80x24", &ready(80, 24, true), 80, 24);
}

#[test]
fn a_small_terminal_shows_the_explanation_when_asked() {
    let mut state = ready(80, 24, true);
    type_keys(&mut state, "w");
    assert_looks("80x24-why", &state, 80, 24);
}

#[test]
fn a_large_terminal_shows_everything_at_once() {
    assert_looks("200x60", &ready(200, 60, true), 200, 60);
}

#[test]
fn the_help_fits_a_small_terminal() {
    let mut state = ready(80, 24, true);
    type_keys(&mut state, "?");
    assert_looks("80x24-help", &state, 80, 24);
}

#[test]
fn a_daemon_that_is_gone_is_said_and_the_last_sample_stays() {
    let mut state = ready(80, 24, true);
    state.update(Event::Gone("no Quell daemon listens on /run/quell/control.sock".into()));
    let looks = as_text(&frame(&state, 80, 24));
    assert!(looks.contains("NO DAEMON: no Quell daemon listens"), "{looks}");
    assert!(looks.contains("web") && looks.contains("not connected"), "{looks}");
}

#[test]
fn every_column_can_be_seen_on_a_small_terminal_by_sorting_by_it() {
    let mut state = ready(80, 24, true);
    for column in state.focus.columns() {
        let looks = as_text(&frame(&state, 80, 24));
        assert!(looks.contains(&format!("{}^", column.name)), "{}: {looks}", column.name);
        press(&mut state, KeyCode::Right);
    }
}

#[test]
fn without_colours_the_same_is_told_and_nothing_is_coloured() {
    let (mut plain, mut coloured) = (ready(80, 24, false), ready(80, 24, true));
    for state in [&mut plain, &mut coloured] {
        state.update(Event::Gone("gone".into()));
    }
    let (plain, coloured) = (frame(&plain, 80, 24), frame(&coloured, 80, 24));
    assert_eq!(as_text(&plain), as_text(&coloured));
    assert!(plain.content.iter().all(|cell| cell.fg == Color::Reset && cell.bg == Color::Reset));
    assert!(coloured.content.iter().any(|cell| cell.fg != Color::Reset));
}

#[test]
fn names_cannot_send_escapes_to_the_terminal() {
    let mut state = ready(80, 24, true);
    let hostile = Status { tasks: vec![task("\x1b[2Jx\r\n\u{202e}\u{9b}y", "LC")], ..fixed(2_000) };
    state.update(Event::Status(Box::new(hostile)));
    let shown = frame(&state, 80, 24);
    let symbols = || shown.content.iter().flat_map(|cell| cell.symbol().chars());
    assert!(symbols().all(|c| !c.is_control() && c != '\u{202e}'));
    assert!(as_text(&shown).contains("?[2Jx???y"));
}

fn any_text() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<String>(),
        Just(String::new()),
        "[日本語ｱ\u{0}-\u{1f}\u{300}\u{200d}\u{fe0f}👩🇩a ]{0,60}",
        "[a-z]{200,600}",
    ]
}

fn any_number() -> impl Strategy<Value = f64> {
    prop_oneof![any::<f64>(), Just(f64::MAX), Just(-1.0), 0.0..1e9]
}

prop_compose! {
    fn any_task()(
        words in prop::array::uniform8(any_text()),
        numbers in prop::array::uniform4(any_number()),
        counts in any::<[u32; 3]>(),
        frozen in any::<bool>(),
        known in any::<bool>(),
        problems in prop::collection::vec(any_text(), 0..3),
    ) -> TaskStatus {
        let [name, class, source, state, owned, shared_cores, rung, reason] = words;
        let [delay, cpu_ms, run_delay_ms, wake] = numbers;
        let wakeup_latency = WakeupLatency { count: u64::MAX, p50_us: wake, p99_us: wake, p999_us: delay };
        TaskStatus {
            name, class, source, state, owned, shared_cores, rung, reason, frozen, problems, cpu_ms, run_delay_ms,
            processes: vec![i32::MIN; counts[0] as usize % 20],
            threads: counts[0], running: counts[1], waiting: counts[2],
            queueing_delay_us: known.then_some(delay),
            wakeup_latency: known.then_some(wakeup_latency),
            lc_delay_caused_us: known.then_some(wake),
            ..TaskStatus::default()
        }
    }
}

prop_compose! {
    fn any_core()(
        core in any::<u32>(),
        words in prop::array::uniform5(any_text()),
        numbers in prop::array::uniform3(any_number()),
        known in any::<bool>(),
    ) -> CoreStatus {
        let [mode, owner, running, reason, outcome] = words;
        CoreStatus {
            core, mode, reason, outcome,
            task_cpu: vec![TaskCpuTime { task: owner.clone(), cpu_ms: numbers[0] }],
            owner: known.then_some(owner),
            running: known.then_some(running),
            lc_busy_percent: known.then_some(numbers[1]),
            idle_ms: known.then_some(numbers[2]),
            request_age_us: known.then_some(numbers[0]),
        }
    }
}

prop_compose! {
    fn any_status()(
        words in prop::array::uniform6(any_text()),
        numbers in any::<[u64; 4]>(),
        tick in any_number(),
        cpu in any_number(),
        tasks in prop::collection::vec(any_task(), 0..6),
        cores in prop::collection::vec(any_core(), 0..6),
        events in prop::collection::vec(any_text(), 0..4),
    ) -> Status {
        let [host, policy, back_end, pattern, observer, reason] = words;
        let made = Decision {
            at_us: numbers[1], core: numbers[2] as u32, from: Some(host.clone()), to: None,
            reason: reason.clone(),
        };
        let advised = Advised { task: host.clone(), offer: reason.clone(), declined: Some(reason) };
        Status {
            managed: policy.clone(), host, policy, back_end, pattern, observer, tasks, cores,
            degraded: events.clone(), events,
            pid: 1, at_us: numbers[0], uptime_s: numbers[1],
            decisions: vec![made], advice: vec![advised],
            counters: Counters {
                ticks: numbers[2], violations_malformed: numbers[3], violations_advice: numbers[3],
                tick_mean_us: tick, daemon_cpu_ms: cpu, idle_while_lc_waits_us: Some(tick),
                ..Counters::default()
            },
            ..Status::default()
        }
    }
}

fn any_key() -> impl Strategy<Value = Event> {
    let codes = [
        KeyCode::Up,
        KeyCode::Down,
        KeyCode::PageUp,
        KeyCode::PageDown,
        KeyCode::Home,
        KeyCode::End,
        KeyCode::Left,
        KeyCode::Right,
        KeyCode::Tab,
        KeyCode::BackTab,
        KeyCode::Enter,
        KeyCode::Esc,
        KeyCode::Backspace,
        KeyCode::F(1),
        KeyCode::Null,
    ];
    let code = prop_oneof![
        prop::sample::select(codes.to_vec()),
        "[12345kjgG<>r/ sw\\[\\]+?h-]".prop_map(|key| KeyCode::Char(key.chars().next().unwrap())),
        any::<char>().prop_map(KeyCode::Char),
    ];
    code.prop_map(|code| Event::Key(KeyEvent::new(code, KeyModifiers::NONE)))
}

fn any_event() -> impl Strategy<Value = Event> {
    let answer = prop_oneof![
        prop::collection::vec(any_text(), 0..4).prop_map(Ok),
        any_text().prop_map(Err),
    ];
    let subject =
        prop_oneof![any_text().prop_map(Subject::Task), any::<u32>().prop_map(Subject::Core)];
    prop_oneof![
        20 => any_key(),
        2 => any_status().prop_map(|status| Event::Status(Box::new(status))),
        1 => any_text().prop_map(Event::Gone),
        1 => any::<u64>().prop_map(|time| Event::Silent(Duration::from_nanos(time))),
        1 => (subject, answer).prop_map(|(subject, said)| Event::Why(Why { subject, said })),
        1 => (0u16..260, 0u16..80).prop_map(|(columns, rows)| Event::Resized(columns, rows)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn no_keys_and_no_status_panic_or_draw_outside_of_the_area(
        first in any_status(),
        events in prop::collection::vec(any_event(), 0..40),
        (columns, rows) in (0u16..260, 0u16..80),
    ) {
        let mut state = State::new(Duration::from_millis(500), true);
        state.update(Event::Status(Box::new(first)));
        let whole = Rect::new(0, 0, columns + 4, rows + 4);
        let area = Rect::new(2, 2, columns, rows);
        let untouched = Cell::new("#");
        for event in events {
            state.update(event);
            let mut buf = Buffer::filled(whole, untouched.clone());
            view::draw(&state, area, &mut buf);
            for at in whole.positions() {
                prop_assert!(area.contains(at) || buf[at] == untouched, "{at}");
                prop_assert!(buf[at].symbol().chars().all(|c| !c.is_control()), "{at}");
            }
        }
    }
}
