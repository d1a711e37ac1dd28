//! The terminal: set up, given back whatever happens, and the loop in between.

use std::io::{self, IsTerminal};
use std::thread;
use std::time::{Duration, Instant};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use quell_control::client::Client;
use ratatui::DefaultTerminal;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, KeyEventKind};
use ratatui::layout::Rect;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::feed::{self, Ask};
use crate::state::{Effect, Event, INTERVALS, State};
use crate::text;
use crate::view;
use crate::{Options, TopError};

/// A daemon that has not answered for this long is said to be silent.
const SILENT_AFTER: Duration = Duration::from_secs(2);
/// How often a display without news is looked at again, to tell of silence.
const LOOK: Duration = Duration::from_millis(500);

/// Shows the daemon until a key or a signal ends it. A daemon that goes away is waited for; one that is not
/// there at the start is an error.
///
/// # Errors
/// Without a terminal, or when the daemon cannot be asked at the start.
pub fn run(options: &Options) -> Result<(), TopError> {
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        return Err(TopError::NoTerminal);
    }
    // Said as an error rather than on a screen that waits for a daemon nobody started.
    drop(Client::connect(&options.socket)?);
    let (news, inbox) = unbounded();
    let (ask, asks) = bounded(4);
    let socket = options.socket.clone();
    let answers = news.clone();
    thread::Builder::new()
        .name("top-feed".into())
        .spawn(move || feed::run(socket, &asks, &answers))?;
    end_on_signals(news.clone())?;
    let terminal = ratatui::try_init()?;
    // Reads keys from here on: they are shown by nobody else.
    let keys = thread::Builder::new().name("top-keys".into()).spawn(move || read_keys(&news));
    let ended = keys.map_err(TopError::from).and_then(|_| {
        let state = State::new(within_bounds(options.interval), options.colours);
        Ok(Top { state, ask, asked: None }.show(terminal, &inbox)?)
    });
    ratatui::try_restore()?;
    ended
}

/// One frame as plain text, of two readings an interval apart, without trailing blanks.
///
/// # Errors
/// When the daemon cannot be asked.
pub fn once(options: &Options, columns: u16, rows: u16) -> Result<String, TopError> {
    let interval = within_bounds(options.interval);
    let mut state = State::new(interval, false);
    state.update(Event::Resized(columns, rows));
    let mut client = Client::connect(&options.socket)?;
    state.update(Event::Status(feed::status(&mut client)?));
    thread::sleep(interval);
    let mut client = Some(client);
    let second = feed::answer(&mut client, &options.socket, Ask::Status)?;
    if let Some(Effect::Ask(subject)) = state.update(second) {
        state.update(feed::answer(&mut client, &options.socket, Ask::Why(subject))?);
    }
    Ok(plain(&state, columns, rows))
}

fn plain(state: &State, columns: u16, rows: u16) -> String {
    let area = Rect::new(0, 0, columns, rows);
    let mut buf = Buffer::empty(area);
    view::draw(state, area, &mut buf);
    as_text(&buf)
}

/// What a buffer shows, without styles and trailing blanks.
pub(crate) fn as_text(buf: &Buffer) -> String {
    let area = buf.area;
    let mut out = String::new();
    for y in area.top()..area.bottom() {
        let mut line = String::new();
        let mut x = area.left();
        while x < area.right() {
            let symbol = buf[(x, y)].symbol();
            line.push_str(symbol);
            // A wide character covers the next cell too.
            x += (text::width(symbol) as u16).max(1);
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

fn within_bounds(interval: Duration) -> Duration {
    interval.clamp(*INTERVALS.start(), *INTERVALS.end())
}

fn end_on_signals(news: Sender<Event>) -> io::Result<()> {
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])?;
    thread::Builder::new().name("top-signals".into()).spawn(move || {
        for _ in &mut signals {
            if news.send(Event::End).is_err() {
                return;
            }
        }
    })?;
    Ok(())
}

fn read_keys(news: &Sender<Event>) {
    loop {
        let event = match event::read() {
            Ok(event::Event::Key(key)) if key.kind != KeyEventKind::Release => Event::Key(key),
            Ok(event::Event::Resize(columns, rows)) => Event::Resized(columns, rows),
            Ok(_) => continue,
            // The terminal is gone.
            Err(_) => Event::End,
        };
        let last = matches!(event, Event::End);
        if news.send(event).is_err() || last {
            return;
        }
    }
}

/// The loop between terminal and feed.
struct Top {
    state: State,
    ask: Sender<Ask>,
    /// Since when a status is awaited.
    asked: Option<Instant>,
}

impl Top {
    fn show(mut self, mut terminal: DefaultTerminal, inbox: &Receiver<Event>) -> io::Result<()> {
        let size = terminal.size()?;
        self.state.update(Event::Resized(size.width, size.height));
        let mut due = Instant::now();
        loop {
            let now = Instant::now();
            if now >= due {
                if !self.state.frozen {
                    self.sample();
                }
                due = now + self.state.interval;
            }
            let state = &self.state;
            terminal.draw(|frame| view::draw(state, frame.area(), frame.buffer_mut()))?;
            let left = due.saturating_duration_since(Instant::now());
            let Ok(first) = inbox.recv_timeout(left.min(LOOK)) else {
                self.notice_silence();
                continue;
            };
            // All that is there before the next frame: keys that repeat do not queue up.
            for event in std::iter::once(first).chain(inbox.try_iter()) {
                if self.take(event) {
                    return Ok(());
                }
            }
            // A shorter interval holds at once.
            due = due.min(Instant::now() + self.state.interval);
        }
    }

    /// Takes in what happened; true if that is the end.
    fn take(&mut self, event: Event) -> bool {
        if matches!(event, Event::Status(_) | Event::Gone(_)) {
            self.asked = None;
        }
        match self.state.update(event) {
            None => {}
            Some(Effect::Quit) => return true,
            Some(Effect::Sample) => self.sample(),
            // A feed that is busy has newer questions already.
            Some(Effect::Ask(subject)) => drop(self.ask.try_send(Ask::Why(subject))),
        }
        false
    }

    /// Asks for a status, unless one is awaited already.
    fn sample(&mut self) {
        if self.asked.is_none() && self.ask.try_send(Ask::Status).is_ok() {
            self.asked = Some(Instant::now());
        }
    }

    fn notice_silence(&mut self) {
        if let Some(time) = self.asked.map(|asked| asked.elapsed())
            && time >= SILENT_AFTER
        {
            self.state.update(Event::Silent(time));
        }
    }
}
