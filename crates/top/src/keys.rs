//! What each key does: one list, for the keyboard and for the help.

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// End.
    Quit,
    /// Show or hide the help.
    Help,
    /// To the next pane.
    NextPane,
    /// To the pane before.
    PreviousPane,
    /// To the pane of this number, from 0.
    Pane(usize),
    /// Select a row this far down, or up if negative.
    Move(isize),
    /// Select the first row.
    First,
    /// Select the last row.
    Last,
    /// Sort by the next column, or the one before if false.
    SortColumn(bool),
    /// Turn the order around.
    Reverse,
    /// Type a filter.
    Filter,
    /// Stop and go on taking new samples.
    Freeze,
    /// One more sample while frozen.
    Step,
    /// Show or hide why the selected task or core is as it is.
    Why,
    /// Scroll the explanation.
    ScrollWhy(isize),
    /// A longer interval, or a shorter one if false.
    Interval(bool),
    /// Close what is open, forget the filter.
    Escape,
}

/// Rows that Page Up and Page Down move.
const PAGE: isize = 10;

/// Keys and what they do, for the help.
pub const HELP: &[(&str, &str)] = &[
    ("Tab, Shift-Tab, 1-7", "next pane, pane before, pane by number"),
    ("Up Down k j", "select a row"),
    ("PgUp PgDn Home End g G", "select ten rows further, the first, the last"),
    ("< > Left Right", "sort by the column before, the next column"),
    ("r", "reverse the order"),
    ("/", "filter: rows that contain a text (Enter keeps it, Esc forgets it)"),
    ("Space", "freeze the display, and go on"),
    ("s", "one more sample while frozen"),
    ("Enter w", "why the selected task or core is as it is"),
    ("[ ]", "scroll the explanation"),
    ("+ -", "longer, shorter interval between samples"),
    ("? h F1", "this help"),
    ("Esc", "close help or explanation, forget the filter"),
    ("q Ctrl-C", "quit"),
];

/// What a key asks for while no text is typed.
pub fn action(key: &KeyEvent) -> Option<Action> {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return (key.code == KeyCode::Char('c')).then_some(Action::Quit);
    }
    Some(match key.code {
        KeyCode::Char('q') => Action::Quit,
        KeyCode::Char('?' | 'h') | KeyCode::F(1) => Action::Help,
        KeyCode::Tab => Action::NextPane,
        KeyCode::BackTab => Action::PreviousPane,
        KeyCode::Char(digit @ '1'..='7') => Action::Pane(digit as usize - '1' as usize),
        KeyCode::Up | KeyCode::Char('k') => Action::Move(-1),
        KeyCode::Down | KeyCode::Char('j') => Action::Move(1),
        KeyCode::PageUp => Action::Move(-PAGE),
        KeyCode::PageDown => Action::Move(PAGE),
        KeyCode::Home | KeyCode::Char('g') => Action::First,
        KeyCode::End | KeyCode::Char('G') => Action::Last,
        KeyCode::Char('<') | KeyCode::Left => Action::SortColumn(false),
        KeyCode::Char('>') | KeyCode::Right => Action::SortColumn(true),
        KeyCode::Char('r') => Action::Reverse,
        KeyCode::Char('/') => Action::Filter,
        KeyCode::Char(' ') => Action::Freeze,
        KeyCode::Char('s') => Action::Step,
        KeyCode::Enter | KeyCode::Char('w') => Action::Why,
        KeyCode::Char('[') => Action::ScrollWhy(-1),
        KeyCode::Char(']') => Action::ScrollWhy(1),
        KeyCode::Char('+') => Action::Interval(true),
        KeyCode::Char('-') => Action::Interval(false),
        KeyCode::Esc => Action::Escape,
        _ => return None,
    })
}
