//! Plain text tables.

/// Renders rows under a header: columns as wide as their longest cell, two spaces apart, numbers (cells
/// that start with a digit in every row) to the right.
pub fn render(header: &[&str], rows: &[Vec<String>]) -> String {
    let columns = header.len();
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(|cell| cell.chars().count());
        cells.chain([header[at].chars().count()]).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let numeric = |at: usize| {
        let mut cells =
            rows.iter().filter_map(|row| row.get(at)).filter(|cell| *cell != "-").peekable();
        cells.peek().is_some() && cells.all(|cell| cell.starts_with(|c: char| c.is_ascii_digit()))
    };
    let right: Vec<bool> = (0..columns).map(numeric).collect();
    let mut out = String::new();
    let heading: Vec<String> = header.iter().map(|cell| (*cell).to_owned()).collect();
    for row in std::iter::once(&heading).chain(rows) {
        let mut line = String::new();
        for (at, cell) in row.iter().enumerate().take(columns) {
            let pad = " ".repeat(widths[at] - cell.chars().count());
            let separator = if at == 0 { "" } else { "  " };
            let (before, after) = if right[at] { (pad.as_str(), "") } else { ("", pad.as_str()) };
            line.push_str(&format!("{separator}{before}{cell}{after}"));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::render;

    #[test]
    fn numbers_stand_to_the_right_and_text_to_the_left() {
        let rows = [vec!["web".into(), "9".into()], vec!["x".into(), "10".into()]];
        assert_eq!(render(&["TASK", "N"], &rows), "TASK   N\nweb    9\nx     10\n");
    }
}
