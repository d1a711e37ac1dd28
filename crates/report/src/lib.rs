//! The one result format of all benchmarks: values with their spread and machine, as JSON, tables, plots and PNG.

pub mod machine;
pub mod plot;
pub mod provenance;
mod result;
pub mod stats;
pub mod table;

pub use result::{BenchReport, LOAD_CASE, Ratio, Row, lines};
