//! The page: one file that opens everywhere without a network.

use std::io::{self, Write};

use base64::prelude::{BASE64_STANDARD, Engine as _};

use crate::palette;
use crate::picture::Picture;

const HTML: &str = include_str!("page/page.html");
const STYLE: &str = include_str!("page/page.css");
/// The program, in the order in which its parts need each other.
const SCRIPT: [&str; 14] = [
    include_str!("page/units.js"),
    include_str!("page/decode.js"),
    include_str!("page/source.js"),
    include_str!("page/colours.js"),
    include_str!("page/model.js"),
    include_str!("page/view.js"),
    include_str!("page/strips.js"),
    include_str!("page/heat.js"),
    include_str!("page/passes.js"),
    include_str!("page/overlays.js"),
    include_str!("page/threads.js"),
    include_str!("page/side.js"),
    include_str!("page/input.js"),
    include_str!("page/main.js"),
];

/// Writes the page with all that it shows.
///
/// # Errors
/// When `out` cannot be written or the picture's temporary file cannot be read.
pub fn write(picture: &Picture, out: &mut impl Write) -> io::Result<()> {
    let (before, after) = halves(picture);
    out.write_all(before.as_bytes())?;
    // The index, the coarsest grid and the names come first: with them the page paints while the rest is read.
    let first = picture.index.rows.blob + 1;
    for number in 0..first {
        write_blob(picture, number, out)?;
    }
    write_script(out)?;
    for number in first..picture.blobs.len() {
        write_blob(picture, number, out)?;
    }
    out.write_all(after.as_bytes())
}

/// Writes the page that asks its server for what it shows.
///
/// # Errors
/// When `out` cannot be written.
pub fn write_served(picture: &Picture, out: &mut impl Write) -> io::Result<()> {
    let (before, after) = halves(picture);
    out.write_all(before.as_bytes())?;
    write_script(out)?;
    out.write_all(after.as_bytes())
}

/// What stands before and after data and program.
fn halves(picture: &Picture) -> (String, &'static str) {
    let (before, after) = HTML.split_once("<!--data-->").unwrap_or((HTML, ""));
    let title = escape(&picture.index.meta.host);
    (before.replace("<!--title-->", &title).replace("/*style*/", STYLE), after)
}

fn write_script(out: &mut impl Write) -> io::Result<()> {
    out.write_all(b"<script>\n'use strict';\n(() => {\n")?;
    writeln!(out, "const PALETTES = {};", palette::JSON.trim())?;
    for part in SCRIPT {
        out.write_all(part.as_bytes())?;
    }
    out.write_all(b"})();\n</script>\n")
}

fn write_blob(picture: &Picture, number: usize, out: &mut impl Write) -> io::Result<()> {
    let packed = picture.blob(number)?.unwrap_or_default();
    let text = BASE64_STANDARD.encode(packed);
    writeln!(out, "<script type=\"text/plain\" id=\"blob-{number}\">{text}</script>")
}

impl Picture {
    /// A piece of the page by its number: raw deflate.
    ///
    /// # Errors
    /// When the temporary file cannot be read.
    pub fn blob(&self, number: usize) -> io::Result<Option<Vec<u8>>> {
        self.blobs.get(number).map_or(Ok(None), |at| self.store.read(*at))
    }
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use quell_model::{GroupKind, PassEntry, PassOutcome};

    /// The page numbers them as tiles do.
    #[test]
    fn names_of_passes_in_the_page_are_those_of_the_model() {
        let passes = include_str!("page/passes.js");
        let is_there = |constant: &str, names: Vec<&str>| {
            let list = names.iter().map(|name| format!("'{name}'")).collect::<Vec<_>>().join(", ");
            assert!(
                passes.contains(&format!("const {constant} = [{list}];")),
                "{constant}: {list}"
            );
        };
        is_there("PASS_ENTRIES", PassEntry::ALL.iter().map(|one| one.name()).collect());
        is_there("PASS_OUTCOMES", PassOutcome::ALL.iter().map(|one| one.name()).collect());
        is_there("GROUP_KINDS", GroupKind::ALL.iter().map(|one| one.name()).collect());
    }
}
