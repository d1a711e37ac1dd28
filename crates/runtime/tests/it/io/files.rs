//! Files and pipes.

use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::time::Duration;

use quell_runtime::{Runtime, fs, spawn};

pub fn files_are_what_std_would_have_written(runtime: Runtime) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    let contents: Vec<u8> = (0..3_000_000_u32).map(|at| ((at * 7) >> 3) as u8).collect();
    let (expected, at) = (contents.clone(), path.clone());
    runtime.run(move || {
        assert_eq!(fs::File::open(&at).unwrap_err().kind(), ErrorKind::NotFound);
        fs::write(&at, &contents).unwrap();
        assert_eq!(fs::read(&at).unwrap(), contents);
        let mut file = fs::File::options().read(true).write(true).open(&at).unwrap();
        file.write_at(b"there", 1_000_000).unwrap();
        assert_eq!(file.stream_position().unwrap(), 0);
        file.seek(SeekFrom::End(-3)).unwrap();
        file.write_all(b"beyond").unwrap();
        file.sync_all().unwrap();
        file.sync_data().unwrap();
        let mut found = [0; 5];
        assert_eq!(file.read_at(&mut found, 1_000_000).unwrap(), 5);
        assert_eq!(&found, b"there");
        assert_eq!(file.read(&mut found).unwrap(), 0);
        assert_eq!(file.metadata().unwrap().len(), contents.len() as u64 + 3);
        file.set_len(contents.len() as u64 + 1).unwrap();
        fs::File::options().append(true).open(&at).unwrap().write_all(b"!").unwrap();
        let twice = fs::File::options().write(true).create_new(true).open(&at);
        assert_eq!(twice.unwrap_err().kind(), ErrorKind::AlreadyExists);
        // What the page cache lost is read from the device.
        rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
        assert_eq!(fs::read(&at).unwrap().len(), contents.len() + 2);
    });
    let mut expected = expected;
    expected[1_000_000..1_000_005].copy_from_slice(b"there");
    let end = expected.len() - 3;
    expected.truncate(end);
    expected.extend_from_slice(b"beyo!");
    assert!(std::fs::read(&path).unwrap() == expected);
}

pub fn a_pipe_is_read_when_something_comes(runtime: Runtime) {
    runtime.run(|| {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        let (mut reader, mut writer) = (fs::File::from(reader), fs::File::from(writer));
        let reader = spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).unwrap();
            text
        });
        for _ in 0..10 {
            quell_runtime::sleep(Duration::from_micros(300));
            writer.write_all(b"drip ").unwrap();
        }
        drop(writer);
        assert_eq!(reader.join().unwrap(), "drip ".repeat(10));
    });
}
