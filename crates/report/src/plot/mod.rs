//! Plots as SVG, and the SVG as PNG: charts with published numbers.
//!
//! Colours are those of Okabe and Ito ("Color Universal Design", 2008), told apart by colour-blind
//! readers too.

pub mod canvas;
mod panels;

use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use resvg::tiny_skia;
use resvg::usvg;

pub use self::panels::{Line, Mark, Panel, Plot, panels};

use self::canvas::FONT;

const FONT_FILE: &str = "/usr/share/fonts/truetype/dejavu/DejaVuSans.ttf";

/// Renders SVG as PNG with the one font, so that the same SVG gives the same bytes everywhere.
///
/// # Errors
/// When the font is missing or the SVG does not parse.
pub fn to_png(svg: &str) -> Result<Vec<u8>> {
    let mut fonts = usvg::fontdb::Database::new();
    fonts.load_font_file(FONT_FILE).with_context(|| {
        format!("{FONT_FILE} is missing; install the package fonts-dejavu-core")
    })?;
    let options = usvg::Options {
        fontdb: Arc::new(fonts),
        font_family: FONT.to_owned(),
        ..Default::default()
    };
    let tree = usvg::Tree::from_str(svg, &options).context("parse the plot")?;
    let size = tree.size().to_int_size();
    let Some(mut pixels) = tiny_skia::Pixmap::new(size.width() * 2, size.height() * 2) else {
        bail!("the plot has no size");
    };
    let double = tiny_skia::Transform::from_scale(2.0, 2.0);
    resvg::render(&tree, double, &mut pixels.as_mut());
    pixels.encode_png().context("encode the plot")
}
