//! Tables that can be sorted and filtered: what every list pane shows.

use std::cmp::Ordering;

use crate::text;

/// A column.
#[derive(Clone, Copy, Debug)]
pub struct Column {
    /// Its heading, with the unit where it has one.
    pub name: &'static str,
    /// Numbers stand to the right.
    pub right: bool,
    /// A narrow terminal leaves out the columns with the highest numbers first.
    pub rank: u8,
    /// It is no wider, unless it is the last.
    pub most: usize,
}

impl Column {
    /// A column of text.
    pub const fn text(name: &'static str, rank: u8) -> Column {
        Column { name, right: false, rank, most: 24 }
    }

    /// A column of text of which more is worth its room.
    pub const fn long_text(name: &'static str, rank: u8) -> Column {
        Column { most: 40, ..Column::text(name, rank) }
    }

    /// A column of numbers.
    pub const fn number(name: &'static str, rank: u8) -> Column {
        Column { name, right: true, rank, most: 24 }
    }
}

/// One field of a row.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// As shown.
    pub text: String,
    /// What it sorts by, if not by its text.
    number: Option<f64>,
}

impl Cell {
    /// A text from the daemon.
    pub fn text(text: &str) -> Cell {
        let text = if text.is_empty() { "-".to_owned() } else { text::clean(text) };
        Cell { text, number: None }
    }

    /// A number, shown as `show` writes it; without one a dash, which sorts last.
    pub fn number(number: Option<f64>, show: impl FnOnce(f64) -> String) -> Cell {
        Cell { text: number.map_or("-".to_owned(), show), number }
    }

    /// A count.
    pub fn count(count: impl Into<u64>) -> Cell {
        Cell::number(Some(count.into() as f64), text::short)
    }
}

/// What a row is about, to ask the daemon why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A task, by its name as the daemon knows it.
    Task(String),
    /// A core, by its number.
    Core(u32),
}

/// One row.
#[derive(Clone, Debug)]
pub struct Row {
    /// Tells it from the others, from sample to sample.
    pub id: String,
    /// One for each column.
    pub cells: Vec<Cell>,
    /// What it is about.
    pub subject: Option<Subject>,
    /// Something is wrong with it; one of its cells says what.
    pub alarming: bool,
}

/// Columns and rows.
#[derive(Clone, Debug)]
pub struct Table {
    /// The last one takes the room that is left.
    pub columns: &'static [Column],
    /// In the daemon's order.
    pub rows: Vec<Row>,
}

/// How a table is looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sorting {
    /// The column that it is sorted by.
    pub column: usize,
    /// The largest first.
    pub descending: bool,
}

impl Table {
    /// The rows that contain `filter` in any cell, whatever its case, sorted.
    pub fn view(&self, sorting: &Sorting, filter: &str) -> Vec<&Row> {
        let wanted = filter.to_lowercase();
        let holds = |row: &&Row| {
            wanted.is_empty()
                || row.cells.iter().any(|cell| cell.text.to_lowercase().contains(&wanted))
        };
        let mut rows: Vec<&Row> = self.rows.iter().filter(holds).collect();
        rows.sort_by(|a, b| match (a.cells.get(sorting.column), b.cells.get(sorting.column)) {
            (Some(a), Some(b)) => order(a, b, sorting.descending),
            _ => Ordering::Equal,
        });
        rows
    }

    /// The columns that fit in `room` and their widths. The first column and the `kept` one always stay.
    pub fn layout(&self, rows: &[&Row], room: usize, kept: usize) -> Vec<(usize, usize)> {
        let natural = |at: usize| {
            let cells = rows.iter().filter_map(|row| row.cells.get(at));
            // One more for the mark of the sorted column.
            let heading = text::width(self.columns[at].name) + usize::from(at == kept);
            cells.map(|cell| text::width(&cell.text)).max().unwrap_or(0).max(heading)
        };
        let last = self.columns.len() - 1;
        let mut chosen: Vec<(usize, usize)> = (0..self.columns.len())
            .map(|at| {
                (at, if at == last { natural(at) } else { natural(at).min(self.columns[at].most) })
            })
            .collect();
        // The last column may be cut; the others are left out instead.
        let least =
            |&(at, width): &(usize, usize)| if at == last { width.min(LAST_MIN) } else { width };
        while chosen.iter().map(|column| least(column) + GAP).sum::<usize>() > room + GAP {
            let droppable =
                chosen.iter().enumerate().filter(|(_, (at, _))| *at != 0 && *at != kept);
            let Some((drop, _)) = droppable.max_by_key(|(_, (at, _))| self.columns[*at].rank)
            else {
                break;
            };
            chosen.remove(drop);
        }
        let taken: usize = chosen.iter().rev().skip(1).map(|(_, width)| width + GAP).sum();
        if let Some((_, width)) = chosen.last_mut() {
            *width = room.saturating_sub(taken);
        }
        chosen
    }
}

/// Between two columns.
pub const GAP: usize = 1;
/// The last column shows this much, or is left out.
const LAST_MIN: usize = 12;

/// What has no value comes last in either direction.
fn order(a: &Cell, b: &Cell, descending: bool) -> Ordering {
    let missing = |cell: &Cell| cell.text == "-" && cell.number.is_none();
    let by_value = match (a.number, b.number) {
        (Some(a), Some(b)) => a.total_cmp(&b),
        _ => a.text.cmp(&b.text),
    };
    let by_value = if descending { by_value.reverse() } else { by_value };
    missing(a).cmp(&missing(b)).then(by_value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(values: &[(&str, Option<f64>)]) -> Table {
        const COLUMNS: &[Column] =
            &[Column::text("NAME", 0), Column::number("N", 1), Column::text("WHY", 2)];
        let row = |&(name, number): &(&str, Option<f64>)| Row {
            id: name.to_owned(),
            cells: vec![
                Cell::text(name),
                Cell::number(number, text::short),
                Cell::text("because of what it did"),
            ],
            subject: None,
            alarming: false,
        };
        Table { columns: COLUMNS, rows: values.iter().map(row).collect() }
    }

    fn names(rows: &[&Row]) -> Vec<String> {
        rows.iter().map(|row| row.id.clone()).collect()
    }

    #[test]
    fn numbers_sort_as_numbers_and_missing_ones_last() {
        let table = table(&[("a", Some(9.0)), ("b", None), ("c", Some(10.0))]);
        let sorted = |descending| names(&table.view(&Sorting { column: 1, descending }, ""));
        assert_eq!(sorted(false), ["a", "c", "b"]);
        assert_eq!(sorted(true), ["c", "a", "b"]);
    }

    #[test]
    fn a_filter_finds_text_in_any_cell_and_any_case() {
        let table = table(&[("Web", Some(1.0)), ("batch", Some(22.0))]);
        let sorting = Sorting { column: 0, descending: false };
        assert_eq!(names(&table.view(&sorting, "web")), ["Web"]);
        assert_eq!(names(&table.view(&sorting, "22")), ["batch"]);
        assert!(table.view(&sorting, "nobody").is_empty());
    }

    #[test]
    fn a_narrow_table_keeps_its_name_and_the_sorted_column() {
        let table = table(&[("web", Some(1.0))]);
        let rows = table.view(&Sorting { column: 1, descending: false }, "");
        let columns = |room, kept| -> Vec<usize> {
            table.layout(&rows, room, kept).into_iter().map(|(at, _)| at).collect()
        };
        assert_eq!(columns(40, 1), [0, 1, 2]);
        assert_eq!(columns(12, 1), [0, 1]);
        assert_eq!(columns(5, 0), [0]);
    }
}
