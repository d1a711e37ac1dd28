//! Recipes of CPU hogs in virtual machines with Linux 6.12, on their own kernel and topology (`scripts/recordings/hogs.sh`).

use flate2::read::GzDecoder;
use quell_trace::import::Options;

use super::*;

/// Recipe and kernel.
const GUESTS: [&str; 6] = [
    "06-count-6.12",
    "19-mask-6.12",
    "24-mask-6.12",
    "26-count-6.12",
    "29-mask-6.12",
    "34-mask-6.12",
];

/// Why completion or wasted time is further away than a fifth.
const EXPLAINED: [(&str, &str); 4] = [
    ("19-mask-6.12", SPREAD),
    ("24-mask-6.12", SPREAD),
    ("26-count-6.12", SPREAD),
    (
        "29-mask-6.12",
        "hogs bound to cores 0, 4 and 6 stay on 4 and 6, so that core 7 idles beside them for 0.8 s",
    ),
];
const SPREAD: &str =
    "hogs that are set free spread within 50 ms, in the guest within 100 to 200 ms";

/// Bytes of a recording, compressed.
const SIZE_MAX: u64 = 100_000;

fn row_of(name: &str) -> Row {
    let path = format!("{}/tests/guests/{name}.perfetto.gz", env!("CARGO_MANIFEST_DIR"));
    let file = std::fs::File::open(&path).unwrap_or_else(|err| panic!("{path}: {err}"));
    assert!(file.metadata().unwrap().len() < SIZE_MAX, "{name}");
    let input = std::io::BufReader::new(GzDecoder::new(file));
    let mut source = quell_trace::open(input, Options::default()).unwrap();
    let topology = source.meta().topology.clone();
    let read = read(source.as_mut(), ALL).unwrap();
    let model = model_of(Path::new(name), &read, None).unwrap();
    compare(name, &read, &topology, model).unwrap()
}

#[test]
fn hogs_of_virtual_machines_replay_alike_or_it_is_explained() {
    let rows: Vec<Row> = GUESTS.iter().map(|name| row_of(name)).collect();
    let table = text(&rows);
    println!("{table}");
    for row in &rows {
        let (_, series) = row.name.rsplit_once('-').unwrap();
        assert_eq!(row.model, format!("linux-{series}"));
        let is_explained = EXPLAINED.iter().any(|(name, _)| *name == row.name);
        // One that has become alike needs no explanation any more.
        assert_eq!(row.is_alike(), !is_explained, "{}\n{table}", row.name);
    }
    // What is left is wasted time.
    assert!(rows.iter().filter(|row| row.completes_alike()).count() >= 5, "{table}");
}
