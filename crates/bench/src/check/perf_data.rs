//! How many events a `perf.data` holds, and how many perf says it lost
//! (tools/perf/Documentation/perf.data-file-format.txt).

use std::io::{Read, Seek, SeekFrom};

use anyhow::{Context as _, Result, bail};

use super::tools::Tally;

/// `PERFILE2`.
const MAGIC: &[u8; 8] = b"PERFILE2";
/// Where the header says offset and size of the records.
const DATA_SECTION: u64 = 40;
/// Types of records.
const LOST: u32 = 2;
const SAMPLE: u32 = 9;
const LOST_SAMPLES: u32 = 13;
/// A record's type, flags and size.
const HEAD_BYTES: usize = 8;

/// Counts what a file says.
///
/// # Errors
/// When it does not read, or is none of perf.
pub fn count(mut file: impl Read + Seek) -> Result<Tally> {
    let mut header = [0; 8];
    file.read_exact(&mut header).context("read the header")?;
    if &header != MAGIC {
        bail!("no perf.data");
    }
    file.seek(SeekFrom::Start(DATA_SECTION))?;
    let (offset, size) = (number(&mut file)?, number(&mut file)?);
    file.seek(SeekFrom::Start(offset))?;
    let mut records = file.take(size);
    let (mut tally, mut body) = (Tally::default(), Vec::new());
    let mut head = [0; HEAD_BYTES];
    while records.read_exact(&mut head).is_ok() {
        let [a, b, c, d, _, _, low, high] = head;
        let (kind, length) = (u32::from_le_bytes([a, b, c, d]), u16::from_le_bytes([low, high]));
        let Some(rest) = usize::from(length).checked_sub(HEAD_BYTES) else {
            bail!("a record of {length} bytes");
        };
        body.resize(rest, 0);
        records.read_exact(&mut body).context("a record is cut off")?;
        match kind {
            SAMPLE => tally.events += 1,
            // Whose they were, and how many.
            LOST => tally.lost += number(body.get(8..).unwrap_or_default())?,
            LOST_SAMPLES => tally.lost += number(body.as_slice())?,
            _ => {}
        }
    }
    Ok(tally)
}

fn number(mut from: impl Read) -> Result<u64> {
    let mut bytes = [0; 8];
    from.read_exact(&mut bytes).context("a number is cut off")?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use proptest::prelude::*;

    use super::*;

    fn record(kind: u32, body: &[u64]) -> Vec<u8> {
        let mut bytes = kind.to_le_bytes().to_vec();
        bytes.extend(0u16.to_le_bytes());
        bytes.extend(((HEAD_BYTES + 8 * body.len()) as u16).to_le_bytes());
        body.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes
    }

    fn file(records: &[Vec<u8>]) -> Vec<u8> {
        let records = records.concat();
        let mut bytes = MAGIC.to_vec();
        bytes.resize(DATA_SECTION as usize, 0);
        bytes.extend(64u64.to_le_bytes());
        bytes.extend((records.len() as u64).to_le_bytes());
        bytes.resize(64, 0);
        bytes.extend(records);
        // Features follow the records.
        bytes.extend([9; 100]);
        bytes
    }

    #[test]
    fn samples_and_losses_are_counted() {
        let all = [
            record(SAMPLE, &[1, 2, 3]),
            record(4, &[7]),
            record(LOST, &[5, 40]),
            record(SAMPLE, &[]),
            record(LOST_SAMPLES, &[2]),
        ];
        let tally = count(Cursor::new(file(&all))).unwrap();
        assert_eq!(tally, Tally { events: 2, lost: 42 });
    }

    #[test]
    fn a_file_of_somebody_else_is_refused() {
        assert!(count(Cursor::new(b"#!/bin/sh")).is_err());
        assert!(count(Cursor::new(file(&[vec![0; 20]]))).is_err());
    }

    proptest! {
        #[test]
        fn any_records_are_read_without_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = count(Cursor::new(file(&[bytes])));
        }
    }
}
