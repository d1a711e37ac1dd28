//! Raster images and their PNG encoding.

use std::io::Cursor;

use crate::image::ImageError;
use crate::palette::Rgb;

/// Pixels that an image may have: the authors' largest layout has a quarter of it.
const PIXELS_MAX: usize = 1 << 28;

/// An image of opaque pixels, row by row.
pub(crate) struct Raster {
    width: u32,
    height: u32,
    pixels: Vec<Rgb>,
}

impl Raster {
    /// A white image.
    ///
    /// # Errors
    /// [`ImageError::Size`] for an image without pixels, or with too many.
    pub fn new(width: u32, height: u32) -> Result<Raster, ImageError> {
        let pixels = (width as usize).checked_mul(height as usize);
        let pixels = pixels.filter(|pixels| (1..=PIXELS_MAX).contains(pixels));
        let pixels = vec![[255; 3]; pixels.ok_or(ImageError::Size)?];
        Ok(Raster { width, height, pixels })
    }

    /// Its width in pixels.
    pub fn width(&self) -> u32 {
        self.width
    }

    /// Its height in pixels.
    pub fn height(&self) -> u32 {
        self.height
    }

    /// Its pixels, row by row.
    pub fn pixels(&self) -> &[Rgb] {
        &self.pixels
    }

    /// Its pixels, row by row.
    pub fn pixels_mut(&mut self) -> &mut [Rgb] {
        &mut self.pixels
    }

    /// The image as PNG.
    ///
    /// # Errors
    /// [`ImageError::Encode`].
    pub fn to_png(&self) -> Result<Vec<u8>, ImageError> {
        let mut png = Vec::new();
        let mut encoder = png::Encoder::new(&mut png, self.width, self.height);
        encoder.set_color(png::ColorType::Rgb);
        encoder.set_depth(png::BitDepth::Eight);
        let encode = |encoder: png::Encoder<'_, _>| {
            let mut writer = encoder.write_header()?;
            writer.write_image_data(self.pixels.as_flattened())?;
            writer.finish()
        };
        encode(encoder).map_err(|_| ImageError::Encode)?;
        Ok(png)
    }

    /// The image of a PNG that [`Raster::to_png`] made.
    ///
    /// # Errors
    /// [`ImageError::NotClassic`] for any other file.
    pub fn from_png(bytes: &[u8]) -> Result<Raster, ImageError> {
        let decode = || {
            let mut reader = png::Decoder::new(Cursor::new(bytes)).read_info().ok()?;
            let (width, height) = (reader.info().width, reader.info().height);
            let is_ours = reader.output_color_type() == (png::ColorType::Rgb, png::BitDepth::Eight);
            let mut image = Raster::new(width, height).ok().filter(|_| is_ours)?;
            reader.next_frame(image.pixels.as_flattened_mut()).ok()?;
            Some(image)
        };
        decode().ok_or(ImageError::NotClassic)
    }
}
