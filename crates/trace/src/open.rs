//! Opens a trace of whatever format.

use std::io::BufRead;

use crate::import::{Importer, Options};
use crate::perfetto::{self, Reader};
use crate::stream::{ReadError, Source};

/// Reads a trace: a Perfetto file of ours, or a text of another program ([`crate::import`]), as its first bytes
/// say. `options` are for the texts.
///
/// # Errors
/// When the input cannot be read or begins as none of these.
pub fn open<R: BufRead + 'static>(
    mut input: R,
    options: Options,
) -> Result<Box<dyn Source>, ReadError> {
    let head = input.fill_buf().map_err(|source| ReadError::Io { offset: 0, source })?;
    if perfetto::is_perfetto(head) {
        return Ok(Box::new(Reader::new(input)?));
    }
    Ok(Box::new(Importer::new(input, options)?))
}

#[cfg(test)]
mod tests {
    use quell_model::{Meta, Source as Origin, Topology};

    use super::*;
    use crate::perfetto::Writer;
    use crate::stream::Sink;

    #[test]
    fn the_first_bytes_tell_the_format() {
        let origin = |bytes: &'static [u8]| open(bytes, Options::default()).unwrap().meta().source;
        assert_eq!(origin(b"\n5 nsecs RQ 0 1\n"), Origin::WastedCores);
        assert_eq!(
            origin(b"\n\na-1 [000] 1.0: sched_process_exit: comm=a pid=1 prio=120\n"),
            Origin::Ftrace
        );
        let mut writer = Writer::new(Vec::new());
        let meta = Meta {
            source: Origin::Simulator,
            topology: Topology::regular(1, 1, 1).unwrap(),
            kernel: String::new(),
            host: String::new(),
            hooks: vec![],
            absent: vec![],
            wall_offset_ns: 0,
        };
        writer.meta(&meta).unwrap();
        writer.finish().unwrap();
        let trace = std::io::Cursor::new(writer.into_inner());
        assert_eq!(open(trace, Options::default()).unwrap().meta().source, Origin::Simulator);
    }
}
