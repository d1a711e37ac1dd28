//! The state on a screen. Pure: nothing but the state decides what is drawn, and nothing is drawn outside
//! of the given area.

use ratatui::buffer::Buffer;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};

use crate::header;
use crate::keys::HELP;
use crate::panes::Pane;
use crate::state::State;
use crate::table::{self, Row, Table};
use crate::{explain, text};

/// Rows of the explanation where it shares a small screen.
const WHY_ROWS: u16 = 8;

/// Draws all of it.
pub fn draw(state: &State, area: Rect, buf: &mut Buffer) {
    let area = area.intersection(buf.area);
    let heading = header::lines(state, area.width.into());
    let heading_rows = (heading.len() as u16).min(area.height / 3);
    let [top, body, bottom] = Layout::vertical([
        Constraint::Length(heading_rows),
        Constraint::Fill(1),
        Constraint::Length(1.min(area.height)),
    ])
    .areas(area);
    let paint = Paint { state };
    for (line, y) in heading.iter().zip(top.top()..top.bottom()) {
        let style = if line.alarming { paint.alarm() } else { paint.heading(y == top.top()) };
        put(buf, top, top.left(), y, &line.text, style);
    }
    if state.help {
        paint.help(body, buf);
    } else if state.roomy {
        paint.everything(body, buf);
    } else {
        paint.focused(body, buf);
    }
    paint.footer(bottom, buf);
}

/// Writes within `area` alone.
fn put(buf: &mut Buffer, area: Rect, x: u16, y: u16, text: &str, style: Style) {
    if (area.top()..area.bottom()).contains(&y) && (area.left()..area.right()).contains(&x) {
        buf.set_stringn(x, y, text, (area.right() - x).into(), style);
    }
}

struct Paint<'a> {
    state: &'a State,
}

impl Paint<'_> {
    fn coloured(&self, style: Style, colour: Color) -> Style {
        if self.state.colours { style.fg(colour) } else { style }
    }

    fn heading(&self, first: bool) -> Style {
        if first { Style::new().add_modifier(Modifier::BOLD) } else { Style::new() }
    }

    fn alarm(&self) -> Style {
        self.coloured(Style::new().add_modifier(Modifier::BOLD), Color::Red)
    }

    /// A large screen: tasks, cores, and runtimes and demoted threads if there are any, over the whole width; below them why,
    /// advice, decisions, events.
    fn everything(&self, body: Rect, buf: &mut Buffer) {
        let third = body.height / 3;
        let [tasks, cores, runtimes, threads, rest] = Layout::vertical([
            Constraint::Length(self.wanted(Pane::Tasks).min(third)),
            Constraint::Length(self.wanted(Pane::Cores).min(third)),
            Constraint::Length(self.wanted(Pane::Runtimes).min(third / 2)),
            Constraint::Length(self.wanted(Pane::Threads).min(third / 2)),
            Constraint::Fill(1),
        ])
        .areas(body);
        let [left, right] =
            Layout::horizontal([Constraint::Fill(1), Constraint::Fill(1)]).spacing(2).areas(rest);
        let [why, advice] =
            Layout::vertical([Constraint::Fill(3), Constraint::Fill(2)]).areas(left);
        let [decisions, events] =
            Layout::vertical([Constraint::Fill(3), Constraint::Fill(2)]).areas(right);
        self.list(Pane::Tasks, tasks, buf);
        self.list(Pane::Cores, cores, buf);
        if runtimes.height > 0 {
            self.list(Pane::Runtimes, runtimes, buf);
        }
        if threads.height > 0 {
            self.list(Pane::Threads, threads, buf);
        }
        self.why(why, buf);
        self.list(Pane::Advice, advice, buf);
        self.list(Pane::Decisions, decisions, buf);
        self.list(Pane::Events, events, buf);
    }

    /// A small screen: tasks above cores, or the pane in focus alone; below it why, if asked for.
    fn focused(&self, body: Rect, buf: &mut Buffer) {
        let why_rows = if self.state.explaining { WHY_ROWS.min(body.height / 2) } else { 0 };
        let [lists, why] =
            Layout::vertical([Constraint::Fill(1), Constraint::Length(why_rows)]).areas(body);
        if self.state.explaining {
            self.why(why, buf);
        }
        if !matches!(self.state.focus, Pane::Tasks | Pane::Cores) {
            return self.list(self.state.focus, lists, buf);
        }
        let (tasks, cores) = (self.wanted(Pane::Tasks), self.wanted(Pane::Cores));
        // What does not fit is taken from the pane without the focus, down to a third.
        let least = lists.height / 3;
        let rows = match self.state.focus {
            Pane::Tasks => tasks.min(lists.height.saturating_sub(cores.min(least))),
            _ => lists.height.saturating_sub(cores).max(tasks.min(least)).min(tasks),
        };
        let [above, below] =
            Layout::vertical([Constraint::Length(rows), Constraint::Fill(1)]).areas(lists);
        self.list(Pane::Tasks, above, buf);
        self.list(Pane::Cores, below, buf);
    }

    /// The rows that a pane takes with all it has: title, headings, rows. None for runtimes and threads where there are none.
    fn wanted(&self, pane: Pane) -> u16 {
        let status = self.state.sample.as_ref().map(|sample| &sample.status);
        let rows = status.map_or(0, |status| match pane {
            Pane::Tasks => status.tasks.len(),
            Pane::Runtimes => status.tasks.iter().filter(|task| task.runtime.is_some()).count(),
            Pane::Threads => status.tasks.iter().map(|task| task.roles.len()).sum(),
            _ => status.cores.len(),
        });
        if matches!(pane, Pane::Runtimes | Pane::Threads) && rows == 0 {
            return 0;
        }
        u16::try_from(rows).unwrap_or(u16::MAX).saturating_add(3)
    }

    fn title(&self, area: Rect, title: &str, focused: bool, buf: &mut Buffer) {
        let room = usize::from(area.width);
        let title = if focused { format!("[{title}]") } else { format!(" {title} ") };
        let title = text::fit(&title, room);
        let rule = "─".repeat(room.saturating_sub(text::width(&title)));
        let style = Style::new().add_modifier(if focused { Modifier::BOLD } else { Modifier::DIM });
        put(buf, area, area.left(), area.top(), &format!("{title}{rule}"), style);
    }

    fn list(&self, pane: Pane, area: Rect, buf: &mut Buffer) {
        let focused = pane == self.state.focus;
        let number = pane as usize + 1;
        let Some(sample) = &self.state.sample else {
            return self.title(area, &format!("{number} {}", pane.title()), focused, buf);
        };
        let table = pane.table(sample);
        let sorting = &self.state.list(pane).sorting;
        let rows = table.view(sorting, &self.state.filter);
        let order = if sorting.descending { "descending" } else { "ascending" };
        let shown = match rows.len() == table.rows.len() {
            true => rows.len().to_string(),
            false => format!("{} of {}", rows.len(), table.rows.len()),
        };
        let by = table.columns[sorting.column].name;
        let title = format!("{number} {} ({shown}) by {by} {order}", pane.title());
        self.title(area, &title, focused, buf);
        let below =
            Rect { y: area.y.saturating_add(1), height: area.height.saturating_sub(1), ..area };
        self.rows(pane, &table, &rows, below.intersection(area), buf);
    }

    fn rows(&self, pane: Pane, table: &Table, rows: &[&Row], area: Rect, buf: &mut Buffer) {
        // Two columns for the mark of the selected row and of one with a problem.
        let room = usize::from(area.width).saturating_sub(2);
        let sorting = &self.state.list(pane).sorting;
        let layout = table.layout(rows, room, sorting.column);
        let mut x = area.left().saturating_add(2);
        let heads = Style::new().add_modifier(Modifier::UNDERLINED);
        for &(at, width) in &layout {
            let column = &table.columns[at];
            let mark = match (at == sorting.column, sorting.descending) {
                (false, _) => "",
                (true, true) => "v",
                (true, false) => "^",
            };
            let heading = format!("{}{mark}", column.name);
            let field = Field { x, width, right: column.right };
            field.put(buf, area, area.top(), &heading, heads);
            x = x.saturating_add((width + table::GAP) as u16);
        }
        let height = usize::from(area.height).saturating_sub(1);
        let selected = self.state.selected_at(pane, rows);
        let first = selected.saturating_sub(height / 2).min(rows.len().saturating_sub(height));
        for (at, row) in rows.iter().enumerate().skip(first).take(height) {
            let y = area.top() + 1 + (at - first) as u16;
            self.row(row, at == selected && pane == self.state.focus, &layout, table, area, y, buf);
        }
        if rows.is_empty() {
            let nothing =
                if table.rows.is_empty() { "none" } else { "none that contains the filter" };
            put(buf, area, area.left().saturating_add(2), area.top() + 1, nothing, Style::new());
        }
    }

    #[expect(clippy::too_many_arguments, reason = "one row: what, how, and where")]
    fn row(
        &self,
        row: &Row,
        selected: bool,
        layout: &[(usize, usize)],
        table: &Table,
        area: Rect,
        y: u16,
        buf: &mut Buffer,
    ) {
        let mut style = Style::new();
        if row.alarming {
            style = self.coloured(style, Color::Yellow);
        }
        if selected {
            style = style.add_modifier(Modifier::REVERSED);
            put(buf, area, area.left(), y, &" ".repeat(area.width.into()), style);
        }
        put(buf, area, area.left(), y, if selected { ">" } else { " " }, style);
        put(
            buf,
            area,
            area.left().saturating_add(1),
            y,
            if row.alarming { "!" } else { " " },
            style,
        );
        let mut x = area.left().saturating_add(2);
        for &(at, width) in layout {
            let field = Field { x, width, right: table.columns[at].right };
            field.put(buf, area, y, &row.cells[at].text, style);
            x = x.saturating_add((width + table::GAP) as u16);
        }
    }

    fn why(&self, area: Rect, buf: &mut Buffer) {
        let title = match self.state.subject() {
            Some(crate::table::Subject::Task(name)) => format!("Why: task {}", text::clean(&name)),
            Some(crate::table::Subject::Core(core)) => format!("Why: core {core}"),
            None => "Why".to_owned(),
        };
        self.title(area, &title, false, buf);
        let room = usize::from(area.width).saturating_sub(1);
        let wrapped =
            explain::lines(self.state).into_iter().flat_map(|line| text::wrap(&line, room));
        let wrapped: Vec<String> = wrapped.collect();
        let height = usize::from(area.height).saturating_sub(1);
        let first = self.state.scrolled.min(wrapped.len().saturating_sub(height));
        for (at, line) in wrapped.iter().skip(first).take(height).enumerate() {
            let y = area.top() + 1 + at as u16;
            put(buf, area, area.left().saturating_add(1), y, line, Style::new());
        }
    }

    fn help(&self, area: Rect, buf: &mut Buffer) {
        self.title(area, "Help", true, buf);
        let lines = HELP.iter().map(|(keys, what)| format!(" {keys:<26}{what}"));
        let legend = header::LEGEND.iter().map(|line| format!(" {line}"));
        for (at, line) in lines.chain(legend).enumerate() {
            let Ok(at) = u16::try_from(at) else { return };
            put(buf, area, area.left(), area.top().saturating_add(1 + at), &line, Style::new());
        }
    }

    fn footer(&self, area: Rect, buf: &mut Buffer) {
        let line = if self.state.typing {
            format!(
                "filter: {}_  (Enter keeps it, Esc forgets it)",
                text::clean(&self.state.filter)
            )
        } else {
            "? help  Tab pane  <> sort  r reverse  / filter  Space freeze  Enter why  q quit"
                .to_owned()
        };
        let style = Style::new().add_modifier(Modifier::DIM);
        put(buf, area, area.left(), area.top(), &line, style);
    }
}

/// A field of a row.
struct Field {
    x: u16,
    width: usize,
    right: bool,
}

impl Field {
    fn put(&self, buf: &mut Buffer, area: Rect, y: u16, text: &str, style: Style) {
        let text = text::fit(text, self.width);
        let pad = if self.right { self.width - text::width(&text) } else { 0 };
        put(buf, area, self.x.saturating_add(pad as u16), y, &text, style);
    }
}
