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
