//! `quell view`, and its page in a real browser.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may panic")]

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

use quell_bench::view::Browser;
use quell_model::{Event, What};
use quell_trace::perfetto::Writer;
use quell_trace::stream::Sink as _;
use quell_view::synthetic::Synthetic;
use serde_json::Value;

const QUELL: &str = env!("CARGO_BIN_EXE_quell");

/// A recording of 64 cores with planted violations, as `quell record` stores one.
fn recording(folder: &Path, events: u64) -> (PathBuf, Vec<Event>) {
    let trace = Synthetic::paper(events);
    let path = folder.join("trace.perfetto");
    let mut writer = Writer::new(BufWriter::new(File::create(&path).unwrap()));
    let events: Vec<Event> = trace.events().collect();
    writer.meta(&trace.meta().unwrap()).unwrap();
    events.iter().for_each(|event| writer.event(event).unwrap());
    writer.finish().unwrap();
    (path, events)
}

fn view(args: &[&str]) -> Output {
    Command::new(QUELL).arg("view").args(args).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn sample() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../trace/tests/data/ftrace.txt").to_owned()
}

/// Opens a page and waits until it shows everything.
fn opened(address: &str) -> Browser {
    let mut browser = Browser::start(1_600, 1_000).unwrap();
    browser.open(address).unwrap();
    let whole = "globalThis.quellView?.model.people.length > 0 && quellView.painted === true";
    browser.wait_for(whole).unwrap();
    browser
}

fn number(browser: &mut Browser, expression: &str) -> f64 {
    browser.evaluate(expression).unwrap().as_f64().unwrap_or_else(|| panic!("{expression}"))
}

/// Waits until nothing moves and all tiles in view have arrived.
fn settled(browser: &mut Browser) {
    let rests =
        "!quellView.view.glide && !quellView.scheduled && quellView.model.pending.size === 0";
    browser.wait_for(rests).unwrap();
}

/// Colours that the middle of a panel shows.
fn colours(browser: &mut Browser, panel: &str) -> usize {
    let script = format!(
        "(() => {{ const canvas = document.querySelector('#{panel} canvas');
         const at = [canvas.width / 4, 0, canvas.width / 2, canvas.height];
         const {{ data }} = canvas.getContext('2d').getImageData(...at);
         return new Set(new Uint32Array(data.buffer)).size; }})()"
    );
    number(browser, &script) as usize
}

#[test]
fn the_page_paints_moves_and_finds_a_violation() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, events) = recording(folder.path(), 150_000);
    let planted = events.iter().filter(|event| matches!(event.what, What::Violation(_))).count();
    let made = view(&[trace.to_str().unwrap()]);
    assert_eq!(made.status.code(), Some(0), "{}", text(&made.stderr));
    let page = folder.path().join("trace.perfetto.html");
    assert_eq!(text(&made.stdout), format!("wrote {}\n", page.display()));
    let mut browser = opened(&format!("file://{}", page.display()));
    for panel in ["host", "queue", "load", "threads"] {
        assert!(colours(&mut browser, panel) > 3, "{panel} is empty");
    }
    zooms_at_the_pointer_and_pans(&mut browser);
    finds_a_violation(&mut browser, planted);
    sets_markers(&mut browser);
    switches_overlays_and_colours(&mut browser);
    assert_eq!(browser.complaints(), [""; 0]);
}

fn zooms_at_the_pointer_and_pans(browser: &mut Browser) {
    let whole = number(browser, "quellView.view.length");
    let place = (700.0, 400.0);
    let under = "quellView.view.time(700)";
    let before = number(browser, under);
    for _ in 0..12 {
        browser.mouse("mouseWheel", place, -300.0).unwrap();
    }
    settled(browser);
    let length = number(browser, "quellView.view.length");
    assert!(length < whole / 20.0, "{length} of {whole}");
    let moved = (number(browser, under) - before).abs();
    assert!(moved < whole / 1e4, "the time under the pointer moved by {moved} ns");
    assert_eq!(browser.evaluate("quellView.frame.exact").unwrap(), Value::Bool(true));
    let from = number(browser, "quellView.view.from");
    browser.mouse("mousePressed", place, 0.0).unwrap();
    browser.mouse("mouseMoved", (600.0, 400.0), 0.0).unwrap();
    browser.mouse("mouseReleased", (600.0, 400.0), 0.0).unwrap();
    settled(browser);
    let by = (number(browser, "quellView.view.from") - from)
        / number(browser, "quellView.view.length / quellView.view.width");
    assert!((by - 100.0).abs() < 1.0, "dragged by 100 pixels, moved by {by}");
    browser.press("f").unwrap();
    settled(browser);
    assert_eq!(number(browser, "quellView.view.length"), whole);
}

fn finds_a_violation(browser: &mut Browser, planted: usize) {
    browser.press("/").unwrap();
    "violation".chars().for_each(|key| browser.press(&key.to_string()).unwrap());
    let hits = number(browser, "document.querySelectorAll('#hits li').length");
    assert!(planted > 0 && hits >= planted as f64, "{hits} hits for {planted} planted violations");
    browser.press("Enter").unwrap();
    settled(browser);
    let found = browser.evaluate("quellView.findings[quellView.finding]").unwrap();
    assert_eq!(found["kind"], "violation");
    let (from, to) = (number(browser, "quellView.view.from"), number(browser, "quellView.view.to"));
    let at = found["at_ns"].as_f64().unwrap();
    assert!(from <= at && at < to && to - from < number(browser, "quellView.model.span") / 4.0);
    let node = found["text"].as_str().unwrap();
    assert!(node.contains("node 1 idles"), "the first comes first: {node}");
    // What the page itself counts as wasted there lies on that node.
    let wasted = "(() => { const { frame, model } = quellView; const by = {};
        frame.wasted.forEach((share, at) => { const { node } = model.cores[Math.floor(at / frame.width)];
        by[node] = (by[node] ?? 0) + share; }); return Object.entries(by).sort((a, b) => b[1] - a[1])[0][0]; })()";
    assert_eq!(browser.evaluate(wasted).unwrap(), "1");
    browser.press("n").unwrap();
    settled(browser);
    assert!(number(browser, "quellView.findings[quellView.finding].from_ns") >= at);
}

fn sets_markers(browser: &mut Browser) {
    for x in [500.0, 800.0] {
        browser.mouse("mouseMoved", (x, 400.0), 0.0).unwrap();
        browser.press("m").unwrap();
    }
    let delta = number(browser, "Math.abs(quellView.markers[1] - quellView.markers[0])");
    let wanted = number(browser, "300 / quellView.view.width * quellView.view.length");
    assert!((delta - wanted).abs() < wanted / 100.0, "{delta} is not {wanted}");
    let told = browser.evaluate("document.getElementById('markers').innerText").unwrap();
    assert!(told.as_str().unwrap().contains("A to B"), "{told}");
}

fn switches_overlays_and_colours(browser: &mut Browser) {
    let picture = "document.querySelector('#queue canvas').toDataURL()";
    for key in ["i", "b", "o", "x", "c", "t"] {
        settled(browser);
        let before = browser.evaluate(picture).unwrap();
        browser.press(key).unwrap();
        settled(browser);
        assert!(browser.evaluate(picture).unwrap() != before, "`{key}` changed nothing");
    }
    browser.press("?").unwrap();
    browser.wait_for("document.getElementById('help').open").unwrap();
}

/// The size of each run queue at a time, as the events say.
fn sizes(events: &[Event], at: u64) -> Vec<u64> {
    let mut sizes = vec![0; 64];
    let origin = events[0].at.0;
    for event in events.iter().take_while(|event| event.at.0 - origin <= at) {
        if let What::Queue { of, runnable, .. } = event.what {
            sizes[of.index()] = u64::from(runnable);
        }
    }
    sizes
}

#[test]
fn what_the_page_says_of_an_instant_is_what_the_events_say() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, events) = recording(folder.path(), 120_000);
    let page = folder.path().join("page.html");
    let made = view(&[trace.to_str().unwrap(), "-o", page.to_str().unwrap()]);
    assert_eq!(made.status.code(), Some(0), "{}", text(&made.stderr));
    let mut browser = opened(&format!("file://{}", page.display()));
    let span = number(&mut browser, "quellView.model.span") as u64;
    for at in (1..10).map(|tenth| span / 10 * tenth) {
        let said = browser.evaluate(&format!(
            "(async () => {{ const {{ model }} = quellView; const [at] = model.tilesIn({at}, {at});
             await model.loadTile(at); return model.cores.map((_, core) => model.stateAt(core, {at}).size); }})()"
        ));
        let said: Vec<u64> = serde_json::from_value(said.unwrap()).unwrap();
        assert_eq!(said, sizes(&events, at), "at {at} ns");
    }
    // Zoomed out, the mean over pixels is the mean over time.
    let mean = number(
        &mut browser,
        "quellView.frame.sizeMean.reduce((sum, one) => sum + one, 0) / quellView.frame.width",
    );
    let samples = (0..400).map(|at| sizes(&events, span / 400 * at).iter().sum::<u64>());
    let wanted = samples.sum::<u64>() as f64 / 400.0;
    assert!((mean - wanted).abs() < wanted * 0.05, "{mean} is not {wanted}");
}

/// Ended on drop.
struct Serving(Child);

impl Drop for Serving {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_served_page_fetches_what_it_shows() {
    let folder = tempfile::tempdir().unwrap();
    let (trace, _) = recording(folder.path(), 100_000);
    let mut command = Command::new(QUELL);
    command.args(["view", trace.to_str().unwrap(), "--serve"]).stdout(Stdio::piped());
    let mut serving = Serving(command.spawn().unwrap());
    let mut line = String::new();
    BufReader::new(serving.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let address = line.split(' ').find(|word| word.starts_with("http://127.0.0.1:")).unwrap();
    let mut browser = opened(address);
    browser.evaluate("quellView.view.show(4e6, 5e6)").unwrap();
    browser.wait_for("quellView.frame.exact").unwrap();
    assert!(colours(&mut browser, "queue") > 3);
    assert_eq!(browser.complaints(), [""; 0]);
}

#[test]
fn images_are_written_and_nonsense_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    for (name, more, begins) in [
        ("a.svg", &["--dark", "--range", "0-1"][..], &b"<svg"[..]),
        ("a.png", &["--width", "400", "--colours", "paper"], b"\x89PNG"),
        ("b.png", &["--wasted-cores-layout"], b"\x89PNG"),
        ("b.svg", &["--panel", "load", "--marks", "none"], b"<svg"),
        ("c.svg", &["--marks", "wasted,bad-wakeups,considered:0"], b"<svg"),
    ] {
        let path = folder.path().join(name);
        let made = view(&[&[&sample(), "-o", path.to_str().unwrap()], more].concat());
        assert_eq!(made.status.code(), Some(0), "{}", text(&made.stderr));
        assert!(std::fs::read(&path).unwrap().starts_with(begins), "{name}");
    }
    for (args, wanted) in [
        (["-o", "a.gif"], "a.gif: a page or an image is .html, .png or .svg"),
        (["--range", "2-1"], "`2-1` is no part of a trace; write it like `1.5-2.25`"),
        (
            ["--marks", "wasted,considered"],
            "`considered` is no mark: wasted, bad-wakeups, considered:CORE",
        ),
    ] {
        let refused = view(&[&[sample().as_str()], &args[..]].concat());
        assert_eq!(refused.status.code(), Some(2));
        assert!(text(&refused.stderr).contains(wanted), "{}", text(&refused.stderr));
    }
}
