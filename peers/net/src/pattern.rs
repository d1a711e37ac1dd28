//! What streams carry: another byte in each place, so that nothing can be lost, doubled or exchanged unseen.

use anyhow::{Result, ensure};

/// The pattern repeats after so many bytes: no power of two, so that exchanged chunks do not fit.
const PERIOD: usize = 65_521;
/// The longest piece that is taken at once.
const PIECE_MAX: usize = 1 << 20;

/// See the module.
pub struct Pattern(Vec<u8>);

impl Pattern {
    pub fn new() -> Pattern {
        Pattern::of_pieces(PIECE_MAX)
    }

    /// For pieces of so many bytes.
    pub fn of_pieces(bytes: usize) -> Pattern {
        let byte = |index: usize| ((index % PERIOD).wrapping_mul(0x9e37_79b1) >> 13) as u8;
        Pattern((0..PERIOD + bytes.max(PIECE_MAX)).map(byte).collect())
    }

    /// The bytes of a stream from an offset on, at most a piece.
    pub fn at(&self, offset: u64, bytes: usize) -> &[u8] {
        let start = (offset % PERIOD as u64) as usize;
        &self.0[start..start + bytes]
    }

    /// Compares what has arrived at an offset.
    ///
    /// # Errors
    /// When it is something else.
    pub fn check(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        ensure!(
            self.at(offset, bytes.len()) == bytes,
            "other bytes than were sent, from {offset} on"
        );
        Ok(())
    }
}
