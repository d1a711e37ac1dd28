use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::Receiver;
use quell_control::protocol::{CongestionCause, CoreStatus, Counters, TaskStatus};

use super::table::{Kind, METRICS};
use super::*;

fn status() -> Status {
    Status {
        version: "1.2.3".into(),
        guardians: 2,
        tasks: vec![TaskStatus {
            name: "we\"b\\\n".into(),
            class: "LC".into(),
            waiting: 1,
            queueing_delay_us: Some(1_500.0),
            owned: "1,3-4".into(),
            unresolved_congestion: Some(CongestionCause::LcOwned),
            unresolved_congestion_s: [(CongestionCause::LcOwned, 2.5)].into(),
            ..TaskStatus::default()
        }],
        cores: vec![CoreStatus { core: 3, mode: "kernel".into(), ..CoreStatus::default() }],
        counters: Counters {
            ticks: 10,
            ticks_by_event: 4,
            daemon_cpu_ms: 2_000.0,
            ..Counters::default()
        },
        ..Status::default()
    }
}

/// A manager that answers with `status`, and how often it was asked.
fn manager() -> (Sender<Incoming>, Arc<AtomicUsize>) {
    let (manager, calls): (_, Receiver<Incoming>) = bounded(8);
    let asked = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&asked);
    std::thread::spawn(move || {
        for incoming in calls {
            count.fetch_add(1, Ordering::SeqCst);
            let _ = incoming.reply.send(Reply::Status(Box::new(status())));
        }
    });
    (manager, asked)
}

fn endpoint(manager: Sender<Incoming>) -> SocketAddr {
    let endpoint = Endpoint::bind((Ipv4Addr::LOCALHOST, 0).into()).unwrap();
    let address = endpoint.listener.local_addr().unwrap();
    endpoint.serve(manager).unwrap();
    address
}

/// What the endpoint says to these bytes.
fn say(to: SocketAddr, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(to).unwrap();
    stream.write_all(bytes).unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    said
}

fn get(to: SocketAddr, path: &str) -> String {
    say(to, format!("GET {path} HTTP/1.1\r\nHost: quell\r\n\r\n").as_bytes())
}

#[test]
fn names_tell_type_and_unit() {
    let mut names = BTreeSet::new();
    for metric in METRICS {
        let name = metric.name;
        assert!(names.insert(metric.family()), "{name} is there twice");
        assert!(name.starts_with("quell_"), "{name}");
        assert_eq!(name.ends_with("_total"), metric.kind == Kind::Counter, "{name}");
        assert_eq!(name.ends_with("_info"), metric.kind == Kind::Info, "{name}");
        assert!(metric.family().ends_with(metric.unit), "{name} is in {}", metric.unit);
        assert!(metric.help.ends_with('.') && !metric.help.contains(['"', '\\', '\n']), "{name}");
    }
}

#[test]
fn both_formats_describe_a_counter_by_their_own_rules() {
    let scrape = Scrape { status: status(), resident: Some(4_096) };
    let (plain, open) =
        (text::render(&scrape, Format::Prometheus), text::render(&scrape, Format::OpenMetrics));
    let samples = |text: &str| {
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(samples(&plain), samples(&open));
    for sample in [
        "quell_ticks_total{cause=\"time\"} 6",
        "quell_process_cpu_seconds_total 2",
        "quell_process_resident_bytes 4096",
        "quell_task_cores_owned{task=\"we\\\"b\\\\\\n\",class=\"lc\"} 3",
        "quell_task_queueing_delay_seconds{task=\"we\\\"b\\\\\\n\",class=\"lc\"} 0.0015",
        "quell_unresolved_congestion_seconds_total{task=\"we\\\"b\\\\\\n\",cause=\"lc_owned\"} 2.5",
        "quell_core_info{core=\"3\",mode=\"kernel\",owner=\"\"} 1",
    ] {
        assert!(samples(&plain).iter().any(|line| line == sample), "{sample} in {plain}");
    }
    assert!(!plain.contains("\nquell_idle_while_lc_waits_us_total "), "without BPF it is absent");
    assert!(plain.contains("# TYPE quell_ticks_total counter\n"));
    assert!(plain.contains("# TYPE quell_core_info gauge\n"));
    assert!(open.contains("# TYPE quell_ticks counter\n"));
    assert!(open.contains("# TYPE quell_core info\n"));
    assert!(open.contains("# UNIT quell_tick_seconds seconds\n"));
    assert!(open.ends_with("# EOF\n") && !plain.contains("# EOF"));
}

#[test]
fn the_client_chooses_the_format() {
    let prometheus = "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
    assert_eq!(Format::accepted(prometheus), Format::OpenMetrics);
    for plain in [
        "",
        "*/*",
        "text/plain",
        "text/plain;q=0.9, application/openmetrics-text;q=0.1",
        "application/openmetrics-text; q=0",
        "application/openmetrics-text;q=nan",
    ] {
        assert_eq!(Format::accepted(plain), Format::Prometheus, "{plain}");
    }
}

#[test]
fn each_path_is_served_and_everything_else_refused() {
    let to = endpoint(manager().0);
    let metrics = get(to, "/metrics");
    assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n"), "{metrics}");
    assert!(metrics.contains("quell_guardians 2\n") && metrics.contains("version=0.0.4"));
    let open = b"GET /metrics HTTP/1.1\r\nAccept: application/openmetrics-text\r\n\r\n";
    assert!(say(to, open).contains("application/openmetrics-text; version=1.0.0"));
    assert!(get(to, "/healthz").ends_with("\r\n\r\nok\n"));
    let schema = get(to, "/schema");
    let (_, body) = schema.split_once("\r\n\r\n").unwrap();
    let schema: serde_json::Value = serde_json::from_str(body).unwrap();
    let listed = schema["metrics"].as_array().unwrap();
    assert_eq!(listed.len(), METRICS.len());
    assert!(listed.iter().all(|metric| metric["help"].is_string() && metric["type"].is_string()));
    assert!(get(to, "/").starts_with("HTTP/1.1 404 "));
    assert!(say(to, b"DELETE /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
    assert!(say(to, b"nonsense\r\n\r\n").starts_with("HTTP/1.1 400 "));
    let endless = [b"GET /metrics HTTP/1.1\r\nA: ", &[b'a'; 20_000][..]].concat();
    assert!(say(to, &endless).starts_with("HTTP/1.1 431 "));
}

#[test]
fn without_the_daemon_it_says_so() {
    let (manager, calls) = bounded(1);
    drop(calls);
    let to = endpoint(manager);
    for path in ["/metrics", "/healthz"] {
        let said = get(to, path);
        assert!(said.starts_with("HTTP/1.1 503 ") && said.contains("is ending"), "{said}");
    }
}

#[test]
fn silent_clients_on_every_connection_go_and_the_next_is_served() {
    let to = endpoint(manager().0);
    let silent: Vec<_> = (0..2 * WORKERS).map(|_| TcpStream::connect(to).unwrap()).collect();
    assert!(get(to, "/healthz").starts_with("HTTP/1.1 200 "));
    drop(silent);
}

#[test]
fn a_storm_of_scrapes_asks_the_daemon_seldom() {
    let (manager, asked) = manager();
    let source = Source { manager, last: Mutex::default() };
    let began = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..1_000).for_each(|_| assert!(source.scrape().is_ok())));
        }
    });
    let spells = began.elapsed().as_millis() / FRESH.as_millis() + 1;
    assert!(asked.load(Ordering::SeqCst) as u128 <= spells);
}

#[test]
fn the_documentation_lists_every_metric() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/metrics.md");
    let page = std::fs::read_to_string(path).unwrap();
    let (begin, end) = ("<!-- begin: table -->\n", "<!-- end: table -->\n");
    let (before, rest) = page.split_once(begin).unwrap();
    let (_, after) = rest.split_once(end).unwrap();
    let mut table = "| metric | type | labels | meaning |\n| --- | --- | --- | --- |\n".to_owned();
    for metric in METRICS {
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let (name, kind) = (metric.name, metric.kind.in_openmetrics());
        table.push_str(&format!(
            "| `{name}` | {kind} | {} | {} |\n",
            labels.join(", "),
            metric.help
        ));
    }
    let wanted = format!("{before}{begin}{table}{end}{after}");
    if std::env::var_os("QUELL_WRITE_DOCS").is_some() {
        return std::fs::write(path, &wanted).unwrap();
    }
    assert!(
        page == wanted,
        "run this test with QUELL_WRITE_DOCS=1 to bring docs/reference/metrics.md in step"
    );
}
