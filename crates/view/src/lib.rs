//! A recorded trace as a picture.
//!
//! [`Replay`] follows the events of a trace and says what they mean; [`Builder`] collects that into a [`Picture`]:
//! aggregates for when many events lie under a pixel, exact tiles for when few do. A picture becomes a page that
//! needs no network ([`page`]), is answered piece by piece by a small local server ([`serve`]), or is drawn as an
//! image ([`image`], and [`classic`] in the layout of the Wasted Cores authors).
//!
//! Role: reads events, judges nothing but what can be seen in them. It knows only the model.

pub mod classic;
mod findings;
pub mod grid;
pub mod image;
mod overlay;
pub mod page;
mod palette;
mod people;
mod picture;
mod raster;
mod replay;
pub mod serve;
mod store;
pub mod synthetic;
mod tile;

pub use findings::IdleEpisode;
pub use overlay::Marks;
pub use palette::{Palette, Theme};
pub use people::Person;
pub use picture::{Builder, Index, Level, Picture, Range, RowsIndex, TileIndex, Words};
pub use replay::{ALLOWED, LOST, NOBODY, Note, OFFLINE, Replay, ThreadIndex, WASTED, Wait, Watch};
