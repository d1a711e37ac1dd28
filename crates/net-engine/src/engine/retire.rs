//! Channels that are given up without loss.
//!
//! ```text
//! one side: retire ──► takes nothing new ──► Retire(nothing more follows) ─────────► the other does the same
//!                                            Retire(nothing more, yours has come) ◄──
//!           all that was sent has arrived    Retire(nothing more, yours has come) ──►  here too: both close
//! ```
//!
//! Each side sends this frame behind all others of the channel, once or, where both began, twice. A side that has heard that
//! its own has come knows that all before it has: it closes the channel, and nothing of it is sent again. A channel that
//! breaks before is lost as any other. A stream that was opened on the channel and is not answered sends nothing else
//! meanwhile: what follows its open frame must not overtake it.

use super::Engine;
use super::receive::FrameRefused;
use super::transmit::Frame;
use crate::ids::StreamId;
use crate::table::Key;
use crate::wire::Kind;

/// What a side says when it gives a channel up, in the order in which it can.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Word {
    /// Nothing more follows.
    Last,
    /// The same, and what the other side has sent has all arrived.
    Heard,
}

impl Word {
    fn code(self) -> u64 {
        self as u64
    }

    fn from_code(code: u64) -> Option<Word> {
        [Word::Last, Word::Heard].into_iter().find(|word| word.code() == code)
    }
}

/// How far two sides are in giving a channel up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Leaving {
    /// It takes nothing new.
    pub has_begun: bool,
    /// By this side.
    pub said: Option<Word>,
    /// Of the other.
    pub heard: Option<Word>,
}

impl Leaving {
    /// Whether this side sends nothing more but a last word.
    pub fn is_silent(self) -> bool {
        self.said.is_some()
    }

    /// Whether all that was sent has arrived, at both ends.
    pub fn is_over(self) -> bool {
        self.said == Some(Word::Heard) && self.heard == Some(Word::Heard)
    }
}

impl Engine {
    /// Gives a channel up: its streams go on over the others of its class, and nothing is lost. [`Engine::is_retired`] says when
    /// the driver may close it. False where it has to stay: it is the last of its class, or its transport loses frames.
    pub fn retire(&mut self, key: Key) -> bool {
        let Some(channel) = self.channels.get(key) else { return false };
        let stays = |other: &Key| {
            let other = self.channels.get(*other).filter(|_| *other != key);
            other.is_some_and(|it| it.class == channel.class && !it.leaving.has_begun)
        };
        let has_other =
            self.peers.get(channel.peer).is_some_and(|it| it.channels.iter().any(stays));
        if !has_other || channel.caps.is_lossy {
            return false;
        }
        self.begin_leaving(key);
        true
    }

    /// Whether a channel is being given up, by either side.
    pub fn is_leaving(&self, key: Key) -> bool {
        self.channels.get(key).is_some_and(|channel| channel.leaving.has_begun)
    }

    /// Whether all that was sent on a channel has arrived, at both ends. Once the driver has sent what it has of it, it says
    /// [`Engine::channel_down`] and closes it.
    pub fn is_retired(&self, key: Key) -> bool {
        self.channels.get(key).is_some_and(|channel| channel.leaving.is_over())
    }

    fn begin_leaving(&mut self, key: Key) {
        let Some(channel) = self.channels.get_mut(key) else { return };
        if std::mem::replace(&mut channel.leaving.has_begun, true) {
            return;
        }
        let peer = channel.peer;
        let waiting: Vec<Key> = channel.ready.drain().collect();
        for key in waiting {
            if let Some(stream) = self.streams.get_mut(key) {
                stream.route.queued_on = None;
            }
            self.route(key);
        }
        self.tell_control(peer);
        self.tell_channel(key);
    }

    /// A stream may use other channels now: it need not wait until the one that it was opened on is closed.
    pub(super) fn leave_silent_channel(&mut self, key: Key) {
        let queued_on = self.streams.get(key).and_then(|stream| stream.route.queued_on);
        if queued_on.is_some_and(|channel| self.is_leaving(channel)) {
            self.unroute(key);
            self.route(key);
        }
    }

    /// The other side sends nothing more on a channel.
    pub(super) fn heard(&mut self, key: Key, code: u64) -> Result<(), FrameRefused> {
        let channel = self.channels.get_mut(key).ok_or(FrameRefused::NoChannel)?;
        let word = Word::from_code(code).ok_or(FrameRefused::Retire)?;
        // It cannot have heard what was not said, and says nothing twice.
        let leaving = &mut channel.leaving;
        let has_answered = word == Word::Heard && leaving.said.is_none();
        if has_answered || leaving.heard >= Some(word) || channel.caps.is_lossy {
            return Err(FrameRefused::Retire);
        }
        leaving.heard = Some(word);
        self.begin_leaving(key);
        self.tell_channel(key);
        Ok(())
    }

    /// This side's word, behind all other frames.
    pub(super) fn retire_frame(&mut self, key: Key) -> Option<Frame> {
        let word = self.next_word(key)?;
        let channel = self.channels.get_mut(key)?;
        channel.leaving.said = Some(word);
        Some(Frame::control(Kind::Retire, StreamId::NONE, word.code()))
    }

    /// What this side has to say next.
    pub(super) fn next_word(&self, key: Key) -> Option<Word> {
        let leaving = self.channels.get(key)?.leaving;
        let word = if leaving.heard.is_some() { Word::Heard } else { Word::Last };
        if !leaving.has_begun || leaving.said >= Some(word) {
            return None;
        }
        Some(word)
    }
}
