//! The colours of page and images: the Wasted Cores paper's, and a set that colour-blind readers tell apart.

use serde::Deserialize;

/// As the page reads them too.
pub(crate) const JSON: &str = include_str!("page/palettes.json");

/// A set of colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Palette {
    /// Blue for busy, orange and brown for queues: told apart by lightness alone, too.
    #[default]
    Safe,
    /// As in the figures of the paper.
    Paper,
}

/// What the colours stand on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Theme {
    /// White.
    #[default]
    Light,
    /// Nearly black.
    Dark,
}

/// Red, green and blue.
pub(crate) type Rgb = [u8; 3];

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Set {
    light: Shades,
    dark: Shades,
    load_edges: Vec<u64>,
}

#[derive(Deserialize)]
struct Shades {
    queue: Vec<String>,
    load: Vec<String>,
    wasted: String,
    considered: String,
    lost: String,
}

#[derive(Deserialize)]
struct Sets {
    safe: Set,
    paper: Set,
}

/// The colours of one palette and theme.
pub(crate) struct Colours {
    /// By size; the last is for all that are larger.
    pub queue: Vec<Rgb>,
    /// By the first edge that the load does not pass; the last is for all above.
    pub load: Vec<Rgb>,
    /// The largest load of each colour but the last.
    pub load_edges: Vec<u64>,
    /// Idle while overloaded.
    pub wasted: Rgb,
    /// What a search looked at.
    pub considered: Rgb,
    /// Nobody knows.
    pub lost: Rgb,
}

impl Colours {
    pub fn new(palette: Palette, theme: Theme) -> Result<Colours, serde_json::Error> {
        let sets: Sets = serde_json::from_str(JSON)?;
        let set = match palette {
            Palette::Safe => sets.safe,
            Palette::Paper => sets.paper,
        };
        let shades = match theme {
            Theme::Light => set.light,
            Theme::Dark => set.dark,
        };
        Ok(Colours {
            queue: shades.queue.iter().map(|one| rgb(one)).collect(),
            load: shades.load.iter().map(|one| rgb(one)).collect(),
            load_edges: set.load_edges,
            wasted: rgb(&shades.wasted),
            considered: rgb(&shades.considered),
            lost: rgb(&shades.lost),
        })
    }

    /// The colour of a size, which may be a mean: between those of its neighbours.
    pub fn size(&self, size: f32) -> Rgb {
        let last = self.queue.len() - 1;
        let below = (size as usize).min(last);
        let (from, to) = (self.queue[below], self.queue[(below + 1).min(last)]);
        let part = (size - below as f32).clamp(0.0, 1.0);
        std::array::from_fn(|at| {
            (f32::from(from[at]) * (1.0 - part) + f32::from(to[at]) * part) as u8
        })
    }

    /// The colour of a load.
    pub fn load(&self, load: f32) -> Rgb {
        let bin = self.load_edges.iter().position(|edge| load <= *edge as f32);
        self.load[bin.unwrap_or(self.load.len() - 1).min(self.load.len() - 1)]
    }
}

/// `#rrggbb`; black where it is not that.
fn rgb(text: &str) -> Rgb {
    let digits = u32::from_str_radix(text.trim_start_matches('#'), 16).unwrap_or_default();
    [(digits >> 16) as u8, (digits >> 8) as u8, digits as u8]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_paper_has_a_colour_for_each_size_and_load() {
        let colours = Colours::new(Palette::Paper, Theme::Light).unwrap();
        let sizes = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 40.0].map(|size| colours.size(size));
        assert_eq!(sizes[..3], [[255, 255, 255], [0, 255, 0], [255, 128, 0]]);
        assert_eq!(sizes[3..], [[255, 0, 0], [255, 0, 128], [255, 0, 255], [255, 0, 255]]);
        let loads = [0.0, 20.0, 21.0, 2000.0, 2001.0].map(|load| colours.load(load));
        assert_eq!(loads[0], [255, 255, 255]);
        assert_eq!(loads[1], [175, 255, 255]);
        assert_eq!(loads[2], [175, 215, 255]);
        assert_eq!(loads[3], [175, 0, 95]);
        assert_eq!(loads[4], [95, 0, 48]);
    }

    #[test]
    fn every_palette_is_whole() {
        for palette in [Palette::Safe, Palette::Paper] {
            for theme in [Theme::Light, Theme::Dark] {
                let colours = Colours::new(palette, theme).unwrap();
                assert_eq!(colours.queue.len(), 6);
                assert_eq!(colours.load.len(), colours.load_edges.len() + 1);
            }
        }
    }
}
