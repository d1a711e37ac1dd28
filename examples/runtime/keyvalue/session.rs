//! What one connection says and is answered: the text protocol of memcached, `doc/protocol.txt` there.
//!
//! What a client sends is bounded: a line, a key, a value, and what may wait to be answered.

use std::time::Duration;

use super::store::{Counted, Join, Outcome, Store, When, expiry};

/// The longest key, as memcached has it.
const KEY_BYTES_MAX: usize = 250;
/// The longest line, but for one that gets many keys.
const LINE_BYTES_MAX: usize = 2_048;
/// The longest line that gets many keys.
const GET_LINE_BYTES_MAX: usize = 64 << 10;
/// With more to be sent, sending comes before the next command.
const OUTPUT_BYTES: usize = 256 << 10;

const FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
const CHUNK: &[u8] = b"CLIENT_ERROR bad data chunk\r\n";
const LARGE: &[u8] = b"SERVER_ERROR object too large for cache\r\n";
const EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
const DELETE: &[u8] = b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";

/// What is to be done next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// Receive more.
    Receive,
    /// Send what there is, and go on with what was received.
    Send,
    /// Send what there is, and close.
    Close,
}

/// A value that is on its way.
struct Incoming {
    key: Vec<u8>,
    flags: u32,
    exptime: i64,
    length: usize,
    when: When,
    join: Join,
    noreply: bool,
}

/// One connection.
#[derive(Default)]
pub struct Session {
    /// Received and not looked at.
    input: Vec<u8>,
    /// What of `input` is done with.
    done: usize,
    incoming: Option<Incoming>,
    /// Bytes of a value that is too large, still to be passed over.
    swallow: usize,
    gets: u64,
    sets: u64,
}

impl Session {
    /// Takes what was received.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.input.drain(..self.done);
        self.done = 0;
        self.input.extend_from_slice(bytes);
    }

    /// Carries out what was received, until it has been answered or there is much to send.
    pub fn answer(&mut self, store: &Store, output: &mut Vec<u8>) -> Next {
        loop {
            if output.len() > OUTPUT_BYTES {
                return Next::Send;
            }
            let passed = self.swallow.min(self.input.len() - self.done);
            self.done += passed;
            self.swallow -= passed;
            if self.swallow > 0 {
                return Next::Receive;
            }
            if let Some(incoming) = self.incoming.take() {
                if self.input.len() - self.done < incoming.length + 2 {
                    self.incoming = Some(incoming);
                    return Next::Receive;
                }
                self.store(store, &incoming, output);
                continue;
            }
            let rest = &self.input[self.done..];
            let Some(end) = rest.iter().position(|&byte| byte == b'\n') else {
                let gets = rest.starts_with(b"get ") || rest.starts_with(b"gets ");
                let most = if gets { GET_LINE_BYTES_MAX } else { LINE_BYTES_MAX };
                return if rest.len() > most { Next::Close } else { Next::Receive };
            };
            let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]).to_vec();
            self.done += end + 1;
            if self.command(store, &line, output).is_none() {
                return Next::Close;
            }
        }
    }

    /// Carries out one line. `None`: the connection is to be closed.
    fn command(&mut self, store: &Store, line: &[u8], output: &mut Vec<u8>) -> Option<()> {
        let words: Vec<&[u8]> =
            line.split(|&byte| byte == b' ').filter(|it| !it.is_empty()).collect();
        let Some((&name, rest)) = words.split_first() else {
            output.extend_from_slice(b"ERROR\r\n");
            return Some(());
        };
        let quiet = rest.last() == Some(&&b"noreply"[..]);
        let from = output.len();
        match (name, rest.len()) {
            (b"get", 1..) => self.get(store, rest, None, false, output),
            (b"gets", 1..) => self.get(store, rest, None, true, output),
            (b"gat", 2..) => self.get(store, &rest[1..], Some(rest[0]), false, output),
            (b"gats", 2..) => self.get(store, &rest[1..], Some(rest[0]), true, output),
            (b"set" | b"add" | b"replace" | b"append" | b"prepend", 4..=5) | (b"cas", 5..=6) => {
                match self.begin(store, name, rest, quiet) {
                    Ok(()) => {}
                    Err(answer) => {
                        output.extend_from_slice(answer);
                        return Some(());
                    }
                }
            }
            (b"incr" | b"decr", 2..=3) => count(store, rest, name == b"incr", output),
            (b"delete", 1..=3) => delete(store, rest, output),
            (b"touch", 2..=3) => touch(store, rest, output),
            (b"flush_all", 0..=2) => flush(store, rest, output),
            (b"stats", 0) => self.stats(store, output),
            (b"stats", 1) if rest[0] == b"reset" => output.extend_from_slice(b"RESET\r\n"),
            (b"version", _) => {
                output.extend_from_slice(
                    concat!("VERSION ", env!("CARGO_PKG_VERSION"), "\r\n").as_bytes(),
                );
            }
            (b"verbosity", 1..) => output.extend_from_slice(b"OK\r\n"),
            (b"quit", _) => return None,
            _ => output.extend_from_slice(b"ERROR\r\n"),
        }
        if quiet && !matches!(name, b"get" | b"gets" | b"gat" | b"gats" | b"stats" | b"version") {
            output.truncate(from);
        }
        Some(())
    }

    fn get(
        &mut self,
        store: &Store,
        keys: &[&[u8]],
        exptime: Option<&[u8]>,
        unique: bool,
        output: &mut Vec<u8>,
    ) {
        let touch = match exptime.map(decimal) {
            Some(None) => {
                output.extend_from_slice(EXPTIME);
                return;
            }
            Some(Some(seconds)) => Some(expiry(seconds)),
            None => None,
        };
        let from = output.len();
        for key in keys {
            if key.len() > KEY_BYTES_MAX {
                output.truncate(from);
                output.extend_from_slice(FORMAT);
                return;
            }
            self.gets += 1;
            // Many keys of great values: no more than this is kept to be sent.
            if output.len() - from > 64 * OUTPUT_BYTES {
                output.truncate(from);
                output.extend_from_slice(b"SERVER_ERROR out of memory writing get response\r\n");
                return;
            }
            store.get(key, touch, |found| {
                output.extend_from_slice(b"VALUE ");
                output.extend_from_slice(key);
                let numbers = match unique {
                    true => format!(" {} {} {}\r\n", found.flags, found.value.len(), found.cas),
                    false => format!(" {} {}\r\n", found.flags, found.value.len()),
                };
                output.extend_from_slice(numbers.as_bytes());
                output.extend_from_slice(found.value);
                output.extend_from_slice(b"\r\n");
            });
        }
        output.extend_from_slice(b"END\r\n");
    }

    /// Begins to store: the value follows.
    fn begin(
        &mut self,
        store: &Store,
        name: &[u8],
        words: &[&[u8]],
        noreply: bool,
    ) -> Result<(), &'static [u8]> {
        let key = words[0];
        let (flags, exptime) = (decimal(words[1]), decimal(words[2]));
        let (Some(flags), Some(exptime)) = (flags, exptime) else { return Err(FORMAT) };
        let (Ok(flags), Some(length)) = (u32::try_from(flags), decimal(words[3])) else {
            return Err(FORMAT);
        };
        if key.len() > KEY_BYTES_MAX {
            return Err(FORMAT);
        }
        let Ok(length) = usize::try_from(length) else { return Err(FORMAT) };
        let (when, join) = match name {
            b"add" => (When::Absent, Join::Replace),
            b"replace" => (When::Present, Join::Replace),
            b"append" => (When::Present, Join::Append),
            b"prepend" => (When::Present, Join::Prepend),
            b"cas" => match std::str::from_utf8(words[4]).ok().and_then(|it| it.parse().ok()) {
                Some(cas) => (When::Unchanged(cas), Join::Replace),
                None => return Err(FORMAT),
            },
            _ => (When::Always, Join::Replace),
        };
        if length > store.value_bytes_max() {
            self.swallow = length.saturating_add(2);
            // The old value would be stale.
            if name == b"set" {
                store.forget(key);
            }
            return Err(if noreply { b"" } else { LARGE });
        }
        let key = key.to_vec();
        self.incoming = Some(Incoming { key, flags, exptime, length, when, join, noreply });
        Ok(())
    }

    /// Stores a value that has come.
    fn store(&mut self, store: &Store, incoming: &Incoming, output: &mut Vec<u8>) {
        let bytes = &self.input[self.done..self.done + incoming.length + 2];
        self.done += incoming.length + 2;
        self.sets += 1;
        let Some(value) = bytes.strip_suffix(b"\r\n") else {
            output.extend_from_slice(CHUNK);
            // The rest of the line is the value's as well.
            return;
        };
        let about = (incoming.flags, expiry(incoming.exptime));
        let stored = store.set(&incoming.key, value, about, incoming.when, incoming.join);
        let answer: &[u8] = match stored {
            Outcome::Stored => b"STORED\r\n",
            Outcome::NotStored => b"NOT_STORED\r\n",
            Outcome::Exists => b"EXISTS\r\n",
            Outcome::NotFound => b"NOT_FOUND\r\n",
            Outcome::TooLarge => LARGE,
        };
        if !incoming.noreply {
            output.extend_from_slice(answer);
        }
    }

    fn stats(&self, store: &Store, output: &mut Vec<u8>) {
        let totals = store.totals();
        let lines = [
            ("pid", u64::from(std::process::id())),
            ("uptime", totals.uptime.as_secs()),
            ("curr_items", totals.items as u64),
            ("bytes", totals.bytes as u64),
            ("limit_maxbytes", totals.limit_bytes as u64),
            ("evictions", totals.evictions),
            ("cmd_get", self.gets),
            ("cmd_set", self.sets),
        ];
        for (name, value) in lines {
            output.extend_from_slice(format!("STAT {name} {value}\r\n").as_bytes());
        }
        output.extend_from_slice(b"END\r\n");
    }
}

fn count(store: &Store, words: &[&[u8]], up: bool, output: &mut Vec<u8>) {
    if words[0].len() > KEY_BYTES_MAX {
        output.extend_from_slice(FORMAT);
        return;
    }
    let delta = std::str::from_utf8(words[1]).ok().filter(|it| it.as_bytes()[0].is_ascii_digit());
    let Some(delta) = delta.and_then(|it| it.parse().ok()) else {
        output.extend_from_slice(b"CLIENT_ERROR invalid numeric delta argument\r\n");
        return;
    };
    match store.count(words[0], delta, up) {
        Counted::Now(number) => output.extend_from_slice(format!("{number}\r\n").as_bytes()),
        Counted::NotFound => output.extend_from_slice(b"NOT_FOUND\r\n"),
        Counted::NotANumber => output
            .extend_from_slice(b"CLIENT_ERROR cannot increment or decrement non-numeric value\r\n"),
    }
}

fn delete(store: &Store, words: &[&[u8]], output: &mut Vec<u8>) {
    // A time of 0 is allowed, for old clients.
    let usual = match words {
        [_] => true,
        [_, word] | [_, word, b"noreply"] => matches!(*word, b"0" | b"noreply"),
        _ => false,
    };
    output.extend_from_slice(match (usual, words[0].len() <= KEY_BYTES_MAX) {
        (false, _) => DELETE,
        (_, false) => FORMAT,
        _ if store.delete(words[0]) => b"DELETED\r\n",
        _ => b"NOT_FOUND\r\n",
    });
}

fn touch(store: &Store, words: &[&[u8]], output: &mut Vec<u8>) {
    output.extend_from_slice(match decimal(words[1]) {
        _ if words[0].len() > KEY_BYTES_MAX => FORMAT,
        None => EXPTIME,
        Some(seconds) if store.touch(words[0], expiry(seconds)) => b"TOUCHED\r\n",
        Some(_) => b"NOT_FOUND\r\n",
    });
}

fn flush(store: &Store, words: &[&[u8]], output: &mut Vec<u8>) {
    let delay = match words.first() {
        None | Some(&b"noreply") => Some(0),
        Some(word) => decimal(word),
    };
    match delay {
        Some(delay) => {
            store.flush(Duration::from_secs(u64::try_from(delay).unwrap_or(0)));
            output.extend_from_slice(b"OK\r\n");
        }
        None => output.extend_from_slice(EXPTIME),
    }
}

/// A whole number, with or without a sign.
fn decimal(word: &[u8]) -> Option<i64> {
    std::str::from_utf8(word).ok()?.parse().ok()
}
