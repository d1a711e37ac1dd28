//! Packets into frames.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quinn_udp::RecvMeta;

use super::link::Link;
use super::packet::{Greeting, HEAD_BYTES, Head, Purpose};
use crate::transport::Incoming;

/// Buffers of one system call: each takes what the kernel has put together of small packets.
const BUFFERS: usize = 4;
/// The most that it puts together.
const BUFFER_BYTES: usize = 65_535;

/// The receiving direction of a channel over UDP.
pub(super) struct UdpIncoming {
    link: Arc<Link>,
    /// This side's answer, should the peer not have it.
    answer: Option<Answer>,
    buffers: Vec<u8>,
    /// Frames in the buffers that were not handed on.
    left: VecDeque<Range<usize>>,
}

/// What the side that was asked for a channel has answered.
pub(super) struct Answer {
    pub packet: Vec<u8>,
    /// The token of the side that asked.
    pub token: u64,
    pub at: Instant,
}

/// A shorter request that comes so long after the answer was sent is not one that was on its way by then: the answer does not
/// arrive.
const ANSWER_TIME: Duration = Duration::from_millis(100);

/// What has to be known of an answer to judge a repeated request.
#[derive(Clone, Copy, Debug)]
struct Answered {
    token: u64,
    length: usize,
    /// See [`ANSWER_TIME`].
    is_old: bool,
}

impl Answer {
    fn judged(&self) -> Answered {
        let is_old = self.at.elapsed() > ANSWER_TIME;
        Answered { token: self.token, length: self.packet.len(), is_old }
    }
}

/// What the packets of one system call have said.
#[derive(Debug, Default, PartialEq, Eq)]
struct Heard {
    sent: u64,
    wanted: u64,
    granted: u64,
    has_any: bool,
    asks: bool,
    must_answer: bool,
    has_ended: bool,
}

impl UdpIncoming {
    pub fn new(link: Arc<Link>, answer: Option<Answer>) -> UdpIncoming {
        UdpIncoming { link, answer, buffers: Vec::new(), left: VecDeque::new() }
    }

    /// Receives packets. Whether there were any.
    fn receive(&mut self) -> io::Result<bool> {
        debug_assert!(self.left.is_empty(), "frames would be overwritten");
        self.buffers.resize(BUFFERS * BUFFER_BYTES, 0);
        let mut meta = [RecvMeta::default(); BUFFERS];
        let mut buffers = self.buffers.chunks_mut(BUFFER_BYTES);
        let mut slices: [IoSliceMut<'_>; BUFFERS] =
            std::array::from_fn(|_| IoSliceMut::new(buffers.next().unwrap_or_default()));
        let count = match self.link.receive(&mut slices, &mut meta) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
            // A packet was too long, and the peer asks again with a shorter one; or the channel ends when it sends.
            Err(error) if super::is_too_long(&error) => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
                // Its port is closed.
                self.link.lose();
                return Ok(false);
            }
            Err(error) => return Err(error),
        };
        let mut heard = Heard::default();
        for (index, meta) in meta[..count].iter().enumerate() {
            // Packets that came before the socket was the peer's alone are others'.
            if self.link.is_from_peer(meta.addr) {
                let start = index * BUFFER_BYTES;
                let of = start..start + meta.len.min(BUFFER_BYTES);
                self.take_apart(of, meta.stride, &mut heard);
            }
        }
        self.act(&heard)?;
        Ok(count > 0)
    }

    /// Datagrams of one size, but the last may be shorter.
    fn take_apart(&mut self, of: Range<usize>, stride: usize, heard: &mut Heard) {
        let mut start = of.start;
        while start < of.end {
            let end = of.end.min(start + stride.max(1));
            let datagram = &self.buffers[start..end];
            let answer = self.answer.as_ref().map(Answer::judged);
            if heard.note(datagram, (self.link.own_token, self.link.their_token), answer) {
                self.left.push_back(start + HEAD_BYTES..end);
            }
            start = end;
        }
    }

    fn act(&self, heard: &Heard) -> io::Result<()> {
        if let Some(answer) = self.answer.as_ref().filter(|_| heard.must_answer) {
            self.link.send(&answer.packet, answer.packet.len())?;
        }
        if heard.has_any {
            self.link.heard(heard.sent, heard.wanted, heard.granted, heard.asks);
        }
        if heard.has_ended {
            self.link.lose();
        }
        Ok(())
    }
}

impl Heard {
    /// Notes what a datagram says, which has to bear the token of this side, or as a refusal that of what was sent. Whether it
    /// holds frames.
    fn note(
        &mut self,
        datagram: &[u8],
        (own, theirs): (u64, u64),
        answer: Option<Answered>,
    ) -> bool {
        let Some((head, payload)) = Head::decode(datagram) else { return false };
        if head.purpose == Purpose::Unknown {
            self.has_ended |= head.token == theirs;
            return false;
        }
        if head.purpose == Purpose::Open {
            let greeting = Greeting::decode(payload);
            let own = answer.filter(|it| greeting.is_some_and(|asked| asked.token == it.token));
            if let Some(answer) = own {
                // Too long for the way back: once this socket is closed the port takes the shorter request.
                match datagram.len() < answer.length && answer.is_old {
                    true => self.has_ended = true,
                    false => self.must_answer = true,
                }
            }
            return false;
        }
        if head.token != own {
            return false;
        }
        self.has_any = true;
        self.sent = self.sent.max(head.sent);
        self.wanted = self.wanted.max(head.wanted);
        self.granted = self.granted.max(head.granted);
        let is_frames = head.purpose == Purpose::Frames;
        self.asks |= head.purpose == Purpose::Ask;
        self.has_ended |= head.purpose == Purpose::End;
        is_frames && !payload.is_empty()
    }
}

impl Incoming for UdpIncoming {
    fn dequeue(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        let mut filled = 0;
        let mut room = into.iter_mut().filter(|slice| !slice.is_empty());
        let Some(mut slice) = room.next().map(|slice| &mut slice[..]) else {
            return Err(io::ErrorKind::WouldBlock.into());
        };
        loop {
            let Some(frames) = self.left.front_mut() else {
                match self.link.is_ended() {
                    false => match self.receive() {
                        Ok(true) => continue,
                        Ok(false) => break,
                        Err(error) if filled == 0 => return Err(error),
                        Err(_) => break,
                    },
                    true => break,
                }
            };
            let part = frames.len().min(slice.len());
            slice[..part].copy_from_slice(&self.buffers[frames.start..frames.start + part]);
            frames.start += part;
            filled += part;
            slice = &mut slice[part..];
            if frames.start == frames.end {
                self.left.pop_front();
            }
            if slice.is_empty() {
                match room.next() {
                    Some(next) => slice = &mut next[..],
                    None => break,
                }
            }
        }
        match filled {
            0 if self.link.is_ended() => Ok(0),
            0 => Err(io::ErrorKind::WouldBlock.into()),
            filled => Ok(filled),
        }
    }

    fn is_asked_by_poll(&self) -> bool {
        true
    }
}

/// Takes datagrams of anybody apart, as a channel does; for fuzz targets. Returns how many held frames.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn take_anything(bytes: &[u8]) -> usize {
    let (token, rest) = bytes
        .split_first_chunk::<8>()
        .map_or((0, bytes), |(token, rest)| (u64::from_le_bytes(*token), rest));
    let answer = Answered { token, length: 200, is_old: token % 2 == 0 };
    let mut heard = Heard::default();
    let size = 1 + usize::from(rest.first().copied().unwrap_or_default());
    rest.chunks(size).filter(|datagram| heard.note(datagram, (token, token), Some(answer))).count()
}

#[cfg(test)]
mod tests {
    use quell_net_engine::wire::HELLO_BYTES;

    use super::*;

    const ANSWER: Answered = Answered { token: 3, length: 1_200, is_old: true };

    fn packet(purpose: Purpose, token: u64, (sent, wanted): (u64, u64), payload: &[u8]) -> Vec<u8> {
        let head = Head { purpose, token, sent, wanted, granted: 9 };
        [&head.encode()[..], payload].concat()
    }

    #[test]
    fn packets_with_another_token_say_nothing() {
        let mut heard = Heard::default();
        for purpose in [Purpose::Frames, Purpose::End, Purpose::Answer] {
            assert!(!heard.note(&packet(purpose, 8, (5, 6), b"frames"), (7, 6), Some(ANSWER)));
        }
        assert_eq!(heard, Heard::default());
        assert!(heard.note(&packet(Purpose::Frames, 7, (5, 6), b"frames"), (7, 6), None));
        assert!(!heard.note(&packet(Purpose::Ask, 7, (4, 8), b""), (7, 6), None));
        assert!(heard.has_any && heard.asks && !heard.has_ended);
        assert_eq!((heard.sent, heard.wanted, heard.granted), (5, 8, 9));
        heard.note(&packet(Purpose::End, 7, (5, 5), b""), (7, 6), None);
        assert!(heard.has_ended);
    }

    #[test]
    fn refusal_ends_the_channel_whose_packets_it_answers() {
        for (token, ends) in [(7, false), (6, true)] {
            let mut heard = Heard::default();
            heard.note(&packet(Purpose::Unknown, token, (0, 0), b""), (7, 6), None);
            assert_eq!((heard.has_ended, heard.has_any), (ends, false));
        }
    }

    #[test]
    fn request_that_was_answered_is_answered_again_and_no_other() {
        let greeting = Greeting { token: 3, hello: [0; HELLO_BYTES] };
        let head = Head { purpose: Purpose::Open, token: 0, sent: 0, wanted: 0, granted: 1 };
        let request = greeting.packet(&head, 1_200);
        let cases = [
            (None, (false, false)),
            (Some(Answered { token: 4, ..ANSWER }), (false, false)),
            (Some(ANSWER), (true, false)),
            // It was answered by a longer packet, just now or in vain.
            (Some(Answered { length: 1_201, is_old: false, ..ANSWER }), (true, false)),
            (Some(Answered { length: 1_201, ..ANSWER }), (false, true)),
        ];
        for (answer, expected) in cases {
            let mut heard = Heard::default();
            assert!(!heard.note(&request, (7, 6), answer));
            assert_eq!((heard.must_answer, heard.has_ended), expected, "{answer:?}");
        }
    }
}
