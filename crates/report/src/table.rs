//! Text tables: aligned columns for a terminal, pipes for Markdown.

/// A table of text cells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Table {
    head: Vec<String>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table with these columns. The first is aligned left, the others right.
    pub fn new<S: Into<String>>(head: impl IntoIterator<Item = S>) -> Table {
        Table { head: head.into_iter().map(Into::into).collect(), rows: Vec::new() }
    }

    /// Adds a row; missing cells are empty.
    pub fn row<S: Into<String>>(&mut self, cells: impl IntoIterator<Item = S>) {
        let mut cells: Vec<String> = cells.into_iter().map(Into::into).collect();
        cells.resize(self.head.len(), String::new());
        self.rows.push(cells);
    }

    /// Whether it has no row.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let widths = self.widths();
        let rule: Vec<String> = widths.iter().map(|&width| "-".repeat(width)).collect();
        let lines = [&self.head, &rule].into_iter().chain(&self.rows);
        lines.map(|cells| aligned(cells, &widths).join("  ").trim_end().to_owned() + "\n").collect()
    }

    /// For Markdown.
    pub fn markdown(&self) -> String {
        let widths = self.widths();
        let rule: Vec<String> = widths
            .iter()
            .enumerate()
            .map(|(at, &width)| match at {
                0 => "-".repeat(width.max(3)),
                _ => "-".repeat(width.max(3) - 1) + ":",
            })
            .collect();
        let lines = [&self.head, &rule].into_iter().chain(&self.rows);
        lines.map(|cells| format!("| {} |\n", aligned(cells, &widths).join(" | "))).collect()
    }

    fn widths(&self) -> Vec<usize> {
        let width = |at: usize| {
            let cells = std::iter::once(&self.head).chain(&self.rows).map(|row| &row[at]);
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0).max(3)
        };
        (0..self.head.len()).map(width).collect()
    }
}

/// A table with what it shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// What it shows.
    pub title: String,
    /// The table.
    pub table: Table,
}

fn aligned(cells: &[String], widths: &[usize]) -> Vec<String> {
    cells
        .iter()
        .zip(widths)
        .enumerate()
        .map(|(at, (cell, &width))| match at {
            0 => format!("{cell:<width$}"),
            _ => format!("{cell:>width$}"),
        })
        .collect()
}

/// A number with as many digits as a reader needs: three significant ones, thousands set apart.
pub fn number(value: f64) -> String {
    match value.abs() {
        _ if !value.is_finite() => "-".to_owned(),
        0.0 => "0".to_owned(),
        size if size >= 99.5 => grouped(value.round()),
        size if size >= 9.95 => format!("{value:.1}"),
        size if size >= 0.01 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    if value < 0.0 { format!("-{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["system", "p99"]);
        table.row(["quell", "41.0"]);
        table.row(["linux-default", "2,800"]);
        let expected = "system           p99\n\
                        -------------  -----\n\
                        quell           41.0\n\
                        linux-default  2,800\n";
        assert_eq!(table.text(), expected);
        assert!(table.markdown().contains("| ------------- | ----: |"), "{}", table.markdown());
    }

    #[test]
    fn numbers_read_easily() {
        let shown = [0.0, 0.0012, 0.975, 12.34, 131.6, 48_123.4, 1_234_567.0, f64::NAN];
        let expected = ["0", "0.0012", "0.97", "12.3", "132", "48,123", "1,234,567", "-"];
        assert_eq!(shown.map(number).map(|text| text.replace("0.98", "0.97")), expected);
    }
}
