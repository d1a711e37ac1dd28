//! The state, and what changes it: keys and news of the daemon. Pure: no terminal, no socket, no clock.

use std::time::Duration;

use quell_control::protocol::Status;
use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use crate::keys::{self, Action};
use crate::panes::{PANES, Pane};
use crate::sample::Sample;
use crate::table::{Row, Sorting, Subject};

/// The shortest and the longest interval between two samples.
pub const INTERVALS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(100)..=Duration::from_secs(60);
/// What `+` and `-` step through, in milliseconds.
const STEPS_MS: [u64; 9] = [100, 200, 500, 1_000, 2_000, 5_000, 10_000, 30_000, 60_000];
/// A terminal of this many columns and rows has room for all panes.
const ROOMY: (u16, u16) = (120, 36);
/// The longest filter.
const FILTER_MAX: usize = 64;

/// The connection to the daemon.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Link {
    /// No answer yet.
    #[default]
    Connecting,
    /// The last call was answered.
    Up,
    /// It was not; why.
    Down(String),
    /// No answer for this long.
    Silent(Duration),
}

/// How one list is looked at.
#[derive(Clone, Debug)]
pub struct List {
    /// Its order.
    pub sorting: Sorting,
    /// The selected row; `None`, or one that is gone: the first.
    pub selected: Option<String>,
}

/// Why something is as it is, in the daemon's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Why {
    /// What was asked about.
    pub subject: Subject,
    /// The answer, or why there is none.
    pub said: Result<Vec<String>, String>,
}

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Event {
    /// A key was pressed.
    Key(KeyEvent),
    /// The daemon told its status.
    Status(Box<Status>),
    /// The daemon explained something.
    Why(Why),
    /// The daemon does not answer; why.
    Gone(String),
    /// It has not answered for this long.
    Silent(Duration),
    /// The terminal has this many columns and rows.
    Resized(u16, u16),
    /// A signal or a lost terminal ends the program.
    End,
}

/// What has to be done outside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Ask for a status now.
    Sample,
    /// Ask why.
    Ask(Subject),
    /// End.
    Quit,
}

/// See the module's documentation.
#[derive(Clone, Debug)]
pub struct State {
    /// What is shown; `None` before the first answer.
    pub sample: Option<Sample>,
    /// The connection.
    pub link: Link,
    /// No new samples are taken.
    pub frozen: bool,
    /// A sample was asked for since the display is frozen.
    stepping: bool,
    /// An explanation was asked for since then.
    asking: bool,
    /// Between two samples.
    pub interval: Duration,
    /// The pane that keys act on.
    pub focus: Pane,
    /// How each pane is looked at.
    lists: [List; PANES.len()],
    /// Rows that do not contain it are not shown.
    pub filter: String,
    /// Keys go to the filter.
    pub typing: bool,
    /// The help is shown.
    pub help: bool,
    /// All panes have room at once, the explanation among them.
    pub roomy: bool,
    /// The explanation is shown where there is not that much room.
    pub explaining: bool,
    /// Lines of it that are scrolled away.
    pub scrolled: usize,
    /// The last explanation.
    pub why: Option<Why>,
    /// Whether colours may be used.
    pub colours: bool,
}

impl State {
    /// Before the first answer.
    pub fn new(interval: Duration, colours: bool) -> State {
        State {
            sample: None,
            link: Link::default(),
            frozen: false,
            stepping: false,
            asking: false,
            interval,
            focus: Pane::Tasks,
            lists: PANES.map(|pane| List { sorting: pane.sorting(), selected: None }),
            filter: String::new(),
            typing: false,
            help: false,
            roomy: false,
            explaining: false,
            scrolled: 0,
            why: None,
            colours,
        }
    }

    /// How a pane is looked at.
    pub fn list(&self, pane: Pane) -> &List {
        &self.lists[pane as usize]
    }

    fn focused(&mut self) -> &mut List {
        &mut self.lists[self.focus as usize]
    }

    /// Where the selected row is among those that are shown.
    pub fn selected_at(&self, pane: Pane, rows: &[&Row]) -> usize {
        let selected = self.list(pane).selected.as_deref();
        rows.iter().position(|row| Some(row.id.as_str()) == selected).unwrap_or(0)
    }

    /// What the selected row of the focused pane is about.
    pub fn subject(&self) -> Option<Subject> {
        let table = self.focus.table(self.sample.as_ref()?);
        let rows = table.view(&self.list(self.focus).sorting, &self.filter);
        rows.get(self.selected_at(self.focus, &rows))?.subject.clone()
    }

    fn ask_why(&mut self) -> Option<Effect> {
        let shown = self.roomy || self.explaining;
        let subject = self.subject().filter(|_| shown)?;
        self.asking = true;
        Some(Effect::Ask(subject))
    }

    /// Takes in what happened; returns what has to be done.
    pub fn update(&mut self, event: Event) -> Option<Effect> {
        match event {
            Event::Key(key) => {
                let before = self.subject();
                let effect = if self.typing { self.type_filter(&key) } else { self.press(&key) };
                let now = self.subject();
                if before != now {
                    self.scrolled = 0;
                }
                match effect {
                    None if before != now => self.ask_why(),
                    effect => effect,
                }
            }
            Event::Status(status) => {
                self.link = Link::Up;
                // Asked for before the display was frozen.
                if self.frozen && !std::mem::take(&mut self.stepping) {
                    return None;
                }
                self.sample = Some(Sample::new(*status, self.sample.as_ref()));
                self.ask_why()
            }
            Event::Why(why) => {
                if !self.frozen || self.asking {
                    self.why = Some(why);
                }
                None
            }
            Event::Gone(why) => {
                self.link = Link::Down(why);
                None
            }
            Event::Silent(time) => {
                self.link = Link::Silent(time);
                None
            }
            Event::Resized(columns, rows) => {
                self.roomy = columns >= ROOMY.0 && rows >= ROOMY.1;
                None
            }
            Event::End => Some(Effect::Quit),
        }
    }

    fn type_filter(&mut self, key: &KeyEvent) -> Option<Effect> {
        match key.code {
            KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                return Some(Effect::Quit);
            }
            KeyCode::Char('u') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                self.filter.clear();
            }
            KeyCode::Char(c) if self.filter.chars().count() < FILTER_MAX && !c.is_control() => {
                self.filter.push(c);
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Enter => self.typing = false,
            KeyCode::Esc => {
                self.typing = false;
                self.filter.clear();
            }
            _ => {}
        }
        None
    }

    fn press(&mut self, key: &KeyEvent) -> Option<Effect> {
        match keys::action(key)? {
            Action::Quit => return Some(Effect::Quit),
            Action::Help => self.help = !self.help,
            Action::NextPane => self.focus = pane_after(self.focus, 1),
            Action::PreviousPane => self.focus = pane_after(self.focus, PANES.len() - 1),
            Action::Pane(at) => self.focus = PANES[at],
            Action::Move(by) => self.move_by(by),
            Action::First => self.move_by(isize::MIN),
            Action::Last => self.move_by(isize::MAX),
            Action::SortColumn(next) => {
                let columns = self.focus.columns().len();
                let sorting = &mut self.focused().sorting;
                let by = if next { 1 } else { columns - 1 };
                sorting.column = (sorting.column + by) % columns;
            }
            Action::Reverse => {
                let sorting = &mut self.focused().sorting;
                sorting.descending = !sorting.descending;
            }
            Action::Filter => self.typing = true,
            Action::Freeze => {
                self.frozen = !self.frozen;
                (self.stepping, self.asking) = (false, false);
                return (!self.frozen).then_some(Effect::Sample);
            }
            Action::Step => {
                self.stepping = self.frozen;
                return self.frozen.then_some(Effect::Sample);
            }
            Action::Why => {
                self.explaining = !self.explaining;
                return self.ask_why();
            }
            Action::ScrollWhy(by) => {
                self.scrolled = self.scrolled.saturating_add_signed(by).min(1_000)
            }
            Action::Interval(longer) => self.interval = next_interval(self.interval, longer),
            Action::Escape => self.escape(),
        }
        None
    }

    /// Closes one thing, the topmost.
    fn escape(&mut self) {
        if self.help {
            self.help = false;
        } else if self.explaining {
            self.explaining = false;
        } else {
            self.filter.clear();
        }
    }

    fn move_by(&mut self, by: isize) {
        let Some(sample) = &self.sample else { return };
        let table = self.focus.table(sample);
        let rows = table.view(&self.list(self.focus).sorting, &self.filter);
        let at = self.selected_at(self.focus, &rows).saturating_add_signed(by);
        let chosen = rows.get(at.min(rows.len().saturating_sub(1))).map(|row| row.id.clone());
        self.focused().selected = chosen;
    }
}

fn pane_after(pane: Pane, by: usize) -> Pane {
    PANES[(pane as usize + by) % PANES.len()]
}

fn next_interval(now: Duration, longer: bool) -> Duration {
    let mut steps = STEPS_MS.map(Duration::from_millis);
    let found = if longer {
        steps.into_iter().find(|&step| step > now)
    } else {
        steps.reverse();
        steps.into_iter().find(|&step| step < now)
    };
    found.unwrap_or(now)
}

#[cfg(test)]
mod tests {
    use quell_control::protocol::TaskStatus;

    use super::*;

    fn key(code: KeyCode) -> Event {
        Event::Key(KeyEvent::new(code, KeyModifiers::NONE))
    }

    fn press(state: &mut State, keys: &str) -> Vec<Effect> {
        keys.chars().filter_map(|c| state.update(key(KeyCode::Char(c)))).collect()
    }

    fn status(names: &[&str]) -> Event {
        let tasks =
            names.iter().map(|&name| TaskStatus { name: name.into(), ..TaskStatus::default() });
        Event::Status(Box::new(Status { tasks: tasks.collect(), ..Status::default() }))
    }

    fn ready(names: &[&str]) -> State {
        let mut state = State::new(Duration::from_millis(500), true);
        state.update(status(names));
        state
    }

    fn task(name: &str) -> Option<Subject> {
        Some(Subject::Task(name.into()))
    }

    #[test]
    fn the_selection_stays_on_its_task_when_the_order_changes() {
        let mut state = ready(&["b", "a", "c"]);
        assert_eq!(state.subject(), task("a"));
        assert_eq!(press(&mut state, "j"), []);
        assert_eq!(press(&mut state, "w"), [Effect::Ask(Subject::Task("b".into()))]);
        press(&mut state, "r");
        assert_eq!(state.subject(), task("b"));
        // It leaves: the first one is selected.
        state.update(status(&["a", "c"]));
        assert_eq!(state.subject(), task("c"));
    }

    #[test]
    fn keys_are_text_while_a_filter_is_typed() {
        let mut state = ready(&["web", "quiet"]);
        assert!(!press(&mut state, "/q").contains(&Effect::Quit));
        assert_eq!((state.filter.as_str(), state.subject()), ("q", task("quiet")));
        state.update(key(KeyCode::Enter));
        assert!(!state.typing);
        state.update(key(KeyCode::Esc));
        assert_eq!(state.filter, "");
        assert_eq!(press(&mut state, "q"), [Effect::Quit]);
    }

    #[test]
    fn a_frozen_display_steps_and_goes_on() {
        let mut state = ready(&["web"]);
        assert_eq!(press(&mut state, "s"), []);
        assert_eq!(press(&mut state, " "), []);
        assert_eq!(press(&mut state, "s"), [Effect::Sample]);
        assert_eq!(press(&mut state, " "), [Effect::Sample]);
        assert!(!state.frozen);
    }

    #[test]
    fn answers_to_earlier_questions_do_not_change_a_frozen_display() {
        let mut state = ready(&["web"]);
        assert_eq!(press(&mut state, "w").len(), 1);
        press(&mut state, " ");
        state.update(status(&["web", "late"]));
        let why = || Event::Why(Why { subject: Subject::Core(0), said: Ok(Vec::new()) });
        state.update(why());
        assert_eq!((state.sample.as_ref().unwrap().status.tasks.len(), &state.why), (1, &None));
        // A step asks for both.
        press(&mut state, "s");
        assert!(state.update(status(&["web", "late"])).is_some());
        state.update(why());
        assert_eq!(state.sample.as_ref().unwrap().status.tasks.len(), 2);
        assert!(state.why.is_some());
    }

    #[test]
    fn the_interval_stays_within_its_bounds() {
        let mut state = ready(&[]);
        press(&mut state, "++++++++++++++++");
        assert_eq!(state.interval, *INTERVALS.end());
        press(&mut state, "-----------------");
        assert_eq!(state.interval, *INTERVALS.start());
        state.interval = Duration::from_millis(700);
        press(&mut state, "-");
        assert_eq!(state.interval, Duration::from_millis(500));
    }

    #[test]
    fn escape_closes_the_topmost_thing_first() {
        let mut state = ready(&["web"]);
        press(&mut state, "w?");
        assert!(state.explaining && state.help);
        state.update(key(KeyCode::Esc));
        assert!(state.explaining && !state.help);
        state.update(key(KeyCode::Esc));
        assert!(!state.explaining);
    }

    #[test]
    fn a_daemon_that_is_gone_leaves_the_last_sample_on_the_screen() {
        let mut state = ready(&["web"]);
        state.update(Event::Gone("nobody listens".into()));
        assert_eq!(state.link, Link::Down("nobody listens".into()));
        assert!(state.sample.is_some());
        state.update(status(&["web"]));
        assert_eq!(state.link, Link::Up);
    }

    #[test]
    fn each_pane_has_its_key_and_tab_goes_round() {
        let mut state = ready(&["web"]);
        for (at, pane) in PANES.into_iter().enumerate() {
            press(&mut state, &(at + 1).to_string());
            assert_eq!(state.focus, pane);
        }
        state.update(key(KeyCode::Tab));
        assert_eq!(state.focus, Pane::Tasks);
        state.update(key(KeyCode::BackTab));
        assert_eq!(state.focus, Pane::Threads);
    }
}
