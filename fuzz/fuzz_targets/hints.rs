//! Pages of hints: a page that becomes another one, or shorter, between two reads.

#![no_main]

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use libfuzzer_sys::fuzz_target;
use quell_shm::Reader;
use quell_shm::layout::page_bytes;

fuzz_target!(|bytes: &[u8]| {
    // The first two bytes say where the page as it was ends, and the page as it is begins.
    let Some((cut, bytes)) = bytes.split_at_checked(2) else { return };
    let cut = usize::from(u16::from_le_bytes([cut[0], cut[1]])).min(bytes.len());
    let (was, is) = bytes.split_at(cut);
    // A reader asks for a regular file by its path; one for each process that fuzzes.
    let path = PathBuf::from(format!("/dev/shm/quell-fuzz-hints.{}", std::process::id()));
    fs::write(&path, was).expect("a tmpfs takes a few pages");
    if let Ok(mut reader) = Reader::open(&path, &[own_user()]) {
        assert!(was.len() >= page_bytes(reader.slots()));
        read(&mut reader);
        fs::write(&path, is).expect("a tmpfs takes a few pages");
        read(&mut reader);
    }
    let _ = fs::remove_file(&path);
});

fn read(reader: &mut Reader) {
    let _ = reader.read();
    let slots = reader.slots() as usize;
    assert!(reader.copied().count() <= slots && reader.hints().count() <= slots);
    for hint in reader.hints() {
        assert!(hint.thread > 0 && hint.request_start.is_none_or(|start| start.0 > 0));
    }
}

/// Who owns the file that was just written.
fn own_user() -> u32 {
    fs::metadata("/proc/self").map_or(0, |own| own.uid())
}
