//! Frames into packets: each packet holds whole ones, so that a lost packet breaks none.

use std::io::{self, IoSlice};
use std::sync::Arc;

use quell_net_engine::wire::{HEADER_BYTES, Header, PAYLOAD_MAX};

use super::link::Link;
use super::packet::{HEAD_BYTES, PACKET_MAX, Purpose};
use crate::transport::Outgoing;

/// The sending direction of a channel over UDP.
pub(super) struct UdpOutgoing {
    link: Arc<Link>,
    packer: Packer,
}

impl UdpOutgoing {
    pub fn new(link: Arc<Link>) -> UdpOutgoing {
        let packer = Packer::new(link.packet_bytes);
        UdpOutgoing { link, packer }
    }

    /// Sends the packets that are full, those of one size together.
    fn send(&mut self) -> io::Result<()> {
        let most = self.link.batch().max(1);
        let mut at = 0;
        let mut sizes = &self.packer.sizes[..];
        while let Some(&size) = sizes.first() {
            let count = run(sizes, most);
            let bytes: usize = sizes[..count].iter().sum();
            for (index, packet) in self.packer.bytes[at..at + bytes].chunks_mut(size).enumerate() {
                let payload = sizes[index] - HEAD_BYTES;
                let head = self.link.head(Purpose::Frames, payload as u64);
                packet[..HEAD_BYTES].copy_from_slice(&head.encode());
            }
            self.link.send(&self.packer.bytes[at..at + bytes], size)?;
            at += bytes;
            sizes = &sizes[count..];
        }
        self.packer.clear();
        Ok(())
    }
}

/// How many packets the kernel takes at once: of one size, but the last may be shorter.
fn run(sizes: &[usize], most: usize) -> usize {
    let Some(&size) = sizes.first() else { return 0 };
    let (mut count, mut bytes) = (1, size);
    while let Some(&next) = sizes.get(count) {
        bytes += next;
        if count >= most || next > size || bytes > PACKET_MAX {
            break;
        }
        count += 1;
        if next < size {
            break;
        }
    }
    count
}

impl Outgoing for UdpOutgoing {
    fn enqueue(&mut self, bytes: &[IoSlice<'_>]) -> io::Result<usize> {
        if self.link.is_ended() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let offered: usize = bytes.iter().map(|slice| slice.len()).sum();
        let room = self.link.offer(offered as u64);
        let mut taken = 0;
        for slice in bytes {
            let room = room.saturating_sub(taken as u64);
            let part = self.packer.push(slice, room)?;
            taken += part;
            if part < slice.len() {
                break;
            }
        }
        if taken == 0 {
            self.link.ask()?;
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.link.take(taken as u64);
        if self.packer.is_whole() {
            self.packer.close();
        }
        self.send()?;
        Ok(taken)
    }
}

/// Packets that are being filled, with room for their heads.
#[derive(Debug)]
struct Packer {
    /// Of a packet, at most.
    packet_bytes: usize,
    bytes: Vec<u8>,
    /// Of the packets that are full, one behind the other.
    sizes: Vec<usize>,
    /// Where the packet begins that is not.
    start: usize,
    /// The frame that is being taken: its header, as far as it is known, and the bytes of its payload that are to come.
    head: [u8; HEADER_BYTES],
    known: usize,
    left: usize,
}

impl Packer {
    fn new(packet_bytes: usize) -> Packer {
        let (bytes, sizes) = (Vec::new(), Vec::new());
        let head = [0; HEADER_BYTES];
        Packer { packet_bytes, bytes, sizes, start: 0, head, known: 0, left: 0 }
    }

    /// Whether no frame is in the middle.
    fn is_whole(&self) -> bool {
        self.known == 0 && self.left == 0
    }

    /// Takes bytes of frames. A frame begins only while there is room; then it is taken to its end. Returns how many it took.
    fn push(&mut self, bytes: &[u8], room: u64) -> io::Result<usize> {
        let mut at = 0;
        while at < bytes.len() {
            if self.left > 0 {
                let part = self.left.min(bytes.len() - at);
                self.bytes.extend_from_slice(&bytes[at..at + part]);
                self.left -= part;
                at += part;
                continue;
            }
            if self.known == 0 && at as u64 >= room {
                break;
            }
            let part = (HEADER_BYTES - self.known).min(bytes.len() - at);
            self.head[self.known..self.known + part].copy_from_slice(&bytes[at..at + part]);
            self.known += part;
            at += part;
            if self.known == HEADER_BYTES {
                self.begin()?;
            }
        }
        Ok(at)
    }

    /// A frame begins, in this packet or the next.
    fn begin(&mut self) -> io::Result<()> {
        let header = Header::decode(&self.head, PAYLOAD_MAX).map_err(io::Error::other)?;
        let size = HEADER_BYTES + header.length as usize;
        debug_assert!(HEAD_BYTES + size <= self.packet_bytes, "a frame of {size} bytes");
        if self.bytes.len() + size > self.start + self.packet_bytes {
            self.close();
        }
        if self.bytes.len() == self.start {
            self.bytes.resize(self.start + HEAD_BYTES, 0);
        }
        self.bytes.extend_from_slice(&self.head);
        (self.known, self.left) = (0, header.length as usize);
        Ok(())
    }

    /// The packet is full.
    fn close(&mut self) {
        if self.bytes.len() > self.start {
            self.sizes.push(self.bytes.len() - self.start);
            self.start = self.bytes.len();
        }
    }

    /// The packets that were full are sent.
    fn clear(&mut self) {
        self.bytes.drain(..self.start);
        self.sizes.clear();
        self.start = 0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use quell_net_engine::StreamId;
    use quell_net_engine::wire::Kind;

    use super::*;

    const PACKET: usize = 1_200;

    fn frame(length: usize) -> Vec<u8> {
        let header = Header {
            kind: Kind::Data,
            flags: 0,
            length: length as u32,
            stream: StreamId(3),
            offset: 7,
        };
        [&header.encode()[..], &vec![length as u8; length]].concat()
    }

    proptest! {
        /// Frames that come in any pieces are in the packets, whole and in order.
        #[test]
        fn packets_hold_whole_frames(
            lengths in prop::collection::vec(0_usize..PACKET - HEAD_BYTES - HEADER_BYTES, 1..40),
            piece in 1_usize..3_000,
        ) {
            let frames: Vec<Vec<u8>> = lengths.into_iter().map(frame).collect();
            let all = frames.concat();
            let mut packer = Packer::new(PACKET);
            for piece in all.chunks(piece) {
                prop_assert_eq!(packer.push(piece, u64::MAX).unwrap(), piece.len());
            }
            prop_assert!(packer.is_whole());
            packer.close();
            prop_assert_eq!(packer.sizes.iter().sum::<usize>(), packer.bytes.len());
            let (mut at, mut next) = (0, frames.iter());
            for size in &packer.sizes {
                prop_assert!(*size <= PACKET);
                let mut payload = &packer.bytes[at + HEAD_BYTES..at + size];
                while !payload.is_empty() {
                    let frame = next.next().expect("a frame");
                    prop_assert_eq!(&payload[..frame.len()], &frame[..]);
                    payload = &payload[frame.len()..];
                }
                at += size;
            }
            prop_assert!(next.next().is_none());
        }
    }

    #[test]
    fn frame_that_has_begun_is_taken_to_its_end() {
        let mut packer = Packer::new(PACKET);
        let two = [frame(100), frame(100)].concat();
        assert_eq!(packer.push(&two, 1).unwrap(), HEADER_BYTES + 100);
        assert!(packer.is_whole());
        assert_eq!(packer.push(&two[..50], 0).unwrap(), 0, "none begins without room");
    }

    #[test]
    fn packets_of_one_size_and_a_shorter_one_leave_together() {
        assert_eq!(run(&[900, 900, 500, 900], 64), 3);
        assert_eq!(run(&[900, 900, 900], 2), 2);
        assert_eq!(run(&[500, 900], 64), 1);
        assert_eq!(run(&[60_000, 60_000], 64), 1, "no more than the largest datagram");
        assert_eq!(run(&[], 64), 0);
    }
}
