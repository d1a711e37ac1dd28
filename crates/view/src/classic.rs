//! The image that the Wasted Cores authors' tool makes of run-queue sizes.
//!
//! Two pixels of height a core, a dark line between nodes, a thousand pixels of time a strip, one strip below the
//! other, and in each pixel the *last* size in it: what is shorter than a pixel may not show. The other images
//! and the page aggregate instead; this one is for comparing with figures that were made by that tool.

use quell_model::{Event, Meta, Nanos, Topology};

use crate::image::ImageError;
use crate::palette::{Colours, Palette, Theme};
use crate::picture::Range;
use crate::raster::Raster;
use crate::replay::{Replay, Watch};

/// Time a pixel in the authors' samples.
pub const NS_PER_PIXEL: Nanos = Nanos(600_000);
const STRIP: usize = 1_000;
const LEFT: usize = 40;
const ROW: usize = 2;
const BETWEEN_STRIPS: usize = 21;
/// Strips that an image may have: a minute and more at the authors' scale.
const STRIPS_MAX: usize = 200;
/// Larger sizes look alike.
const SIZE_MAX: u8 = 5;
const LINE: [u8; 3] = [64, 64, 64];

/// Sizes of run queues at the end of each pixel's time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Samples {
    /// The node of each core, in the order of the rows.
    nodes: Vec<u16>,
    /// One entry a core for each column; sizes of five and more are five.
    columns: Vec<Vec<u8>>,
}

struct Sampler {
    range: Range,
    ns_per_pixel: u64,
    now: Vec<u8>,
    columns: Vec<Vec<u8>>,
}

impl Sampler {
    fn reach(&mut self, at: u64) {
        let column = (self.range.shown(at) / self.ns_per_pixel) as usize;
        while self.columns.len() < column.min(STRIPS_MAX * STRIP + 1) {
            self.columns.push(self.now.clone());
        }
    }
}

impl Watch for Sampler {
    const FOLLOWS_THREADS: bool = false;

    fn size(&mut self, core: usize, at: u64, size: u32) {
        self.reach(at);
        self.now[core] = size.min(u32::from(SIZE_MAX)) as u8;
    }
}

impl Samples {
    /// Samples of a part of a recording, one each `ns_per_pixel`.
    ///
    /// # Errors
    /// When the recording is too long for one image, and the events' own.
    pub fn of<E: From<ImageError>>(
        meta: &Meta,
        events: impl Iterator<Item = Result<Event, E>>,
        range: Range,
        ns_per_pixel: Nanos,
    ) -> Result<Samples, E> {
        let nodes = order(&meta.topology);
        let mut replay = Replay::new(meta);
        let columns = Vec::new();
        let ns_per_pixel = ns_per_pixel.0.max(1);
        let mut sampler = Sampler { range, ns_per_pixel, now: vec![0; nodes.len()], columns };
        for event in events {
            replay.push(&event?, &mut sampler);
            if replay.now() > range.to.0 {
                break;
            }
        }
        sampler.reach(replay.now());
        sampler.columns.push(sampler.now.clone());
        if sampler.columns.len() > STRIPS_MAX * STRIP {
            return Err(ImageError::TooLong.into());
        }
        let rows = nodes.iter().map(|(at, _)| *at).collect::<Vec<_>>();
        let sort = |column: Vec<u8>| rows.iter().map(|at| column[*at]).collect();
        let columns = sampler.columns.into_iter().map(sort).collect();
        Ok(Samples { nodes: nodes.into_iter().map(|(_, node)| node).collect(), columns })
    }

    /// The image.
    ///
    /// # Errors
    /// When it cannot be encoded.
    pub fn to_png(&self) -> Result<Vec<u8>, ImageError> {
        let colours = Colours::new(Palette::Paper, Theme::Light)?;
        let pitch = self.height() + BETWEEN_STRIPS;
        let strips = self.columns.len().div_ceil(STRIP).max(1);
        let height = (strips * pitch - BETWEEN_STRIPS) as u32;
        let mut image = Raster::new((LEFT + STRIP) as u32, height)?;
        let width = image.width() as usize;
        let pixels = image.pixels_mut();
        for (at, column) in self.columns.iter().enumerate() {
            let (left, top) = (LEFT + at % STRIP, at / STRIP * pitch);
            for (row, size) in column.iter().enumerate() {
                let y = top + self.top(row);
                let colour = colours.queue[usize::from(*size)];
                (y..y + ROW).for_each(|y| pixels[y * width + left] = colour);
                if row > 0 && self.nodes[row] != self.nodes[row - 1] {
                    pixels[(y - 1) * width + left] = LINE;
                }
            }
        }
        image.to_png()
    }

    /// The samples in an image of cores on these nodes, in the order of its rows.
    ///
    /// # Errors
    /// When it is no PNG, has another layout, or shows a colour that stands for no size.
    pub fn from_png(png: &[u8], nodes: &[u16]) -> Result<Samples, ImageError> {
        let image = Raster::from_png(png)?;
        let colours = Colours::new(Palette::Paper, Theme::Light)?;
        let mut samples = Samples { nodes: nodes.to_vec(), columns: Vec::new() };
        let pitch = samples.height() + BETWEEN_STRIPS;
        let (width, height) = (image.width() as usize, image.height() as usize);
        if width != LEFT + STRIP || !(height + BETWEEN_STRIPS).is_multiple_of(pitch) {
            return Err(ImageError::NotClassic);
        }
        for at in 0..(height + BETWEEN_STRIPS) / pitch * STRIP {
            let (left, top) = (LEFT + at % STRIP, at / STRIP * pitch);
            let size = |row: usize| {
                let pixel = image.pixels()[(top + samples.top(row)) * width + left];
                colours.queue.iter().position(|one| *one == pixel).map(|size| size as u8)
            };
            let column: Option<Vec<u8>> = (0..nodes.len()).map(size).collect();
            samples.columns.push(column.ok_or(ImageError::NotClassic)?);
        }
        Ok(samples)
    }

    fn top(&self, row: usize) -> usize {
        let lines = (1..=row).filter(|at| self.nodes[*at] != self.nodes[*at - 1]).count();
        row * ROW + lines
    }

    fn height(&self) -> usize {
        self.top(self.nodes.len() - 1) + ROW
    }
}

/// Cores by node: position in the topology, and node.
fn order(topology: &Topology) -> Vec<(usize, u16)> {
    let cores = topology.cores().iter().enumerate();
    let mut order: Vec<(usize, u16)> = cores.map(|(at, core)| (at, core.node)).collect();
    order.sort_by_key(|(at, node)| (*node, *at));
    order
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::synthetic::Synthetic;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn an_image_decodes_to_what_it_was_made_of(
            seed in any::<u64>(), nodes in 1u16..5, cores in 1u16..9,
        ) {
            let spec = Synthetic { nodes, cores_per_node: cores, threads: 60, events: 20_000, seed };
            let samples = Samples::of(&spec.meta().unwrap(), spec.events().map(Ok::<_, ImageError>), Range::ALL, Nanos(70_000)).unwrap();
            let decoded = Samples::from_png(&samples.to_png().unwrap(), &samples.nodes).unwrap();
            let (same, rest) = decoded.columns.split_at(samples.columns.len());
            prop_assert!(same == samples.columns);
            prop_assert!(rest.iter().flatten().all(|size| *size == 0), "the strip ends white");
        }
    }

    #[test]
    fn a_core_takes_two_pixels_and_a_node_a_line() {
        let samples = Samples { nodes: vec![0, 0, 1], columns: vec![vec![0, 1, 2]] };
        let image = Raster::from_png(&samples.to_png().unwrap()).unwrap();
        assert_eq!((image.width(), image.height()), (1040, 7));
        let column: Vec<_> = (0..7).map(|y| image.pixels()[y * 1040 + 40]).collect();
        let (white, green, orange) = ([255; 3], [0, 255, 0], [255, 128, 0]);
        assert_eq!(column, [white, white, green, green, LINE, orange, orange]);
    }

    #[test]
    fn other_images_are_refused() {
        assert!(matches!(Samples::from_png(b"GIF89a", &[0]), Err(ImageError::NotClassic)));
    }
}
