//! Channels of the simulation: they are opened, break at both ends or at one first, and are given up.

use quell_model::Nanos;
use quell_net_engine::{ChannelCaps, ChannelId, Class, Key};

use super::{End, Link, World};

/// A channel as the simulation has it: the key at each end, and a link each way.
pub struct Wire {
    pub ends: [(usize, Key); 2],
    pub links: [Link; 2],
    pub class: Class,
    /// One end has lost it: the other, by its side, learns that then.
    pub dead: Option<(usize, Nanos)>,
    /// The end has closed it in order: the other reads what is on its way, and then its end.
    pub(super) closed: [bool; 2],
    /// The end has something to send, by its last notice.
    pub(super) sendable: [bool; 2],
    /// The end has paused it.
    pub(super) paused: [bool; 2],
}

impl World {
    /// Opens a channel between two hosts.
    pub fn connect(&mut self, from: usize, to: usize, class: Class) {
        let number = ChannelId(self.next_number);
        self.next_number += 1;
        let caps = ChannelCaps { is_lossy: self.spec.lossy.is_some(), max_frame: 4_096 };
        let hellos = [from, to].map(|host| self.hosts[host].engine.hello(number, class));
        let now = self.now;
        let first = self.hosts[from].engine.channel_up(&hellos[1], true, caps, now);
        let second = self.hosts[to].engine.channel_up(&hellos[0], false, caps, now);
        let (first, second) = (first.expect("taken"), second.expect("taken"));
        self.wires.push(Wire {
            ends: [(from, first), (to, second)],
            links: [Link::new(self.spec), Link::new(self.spec)],
            class,
            dead: None,
            closed: [false; 2],
            sendable: [false; 2],
            paused: [false; 2],
        });
    }

    /// Ends a channel with all that is on its way, for both ends at once.
    pub fn cut(&mut self, index: usize) {
        let wire = self.wires.swap_remove(index);
        let now = self.now;
        if !self.has_recovery {
            let hosts = wire.ends.map(|(host, _)| host);
            self.ends.iter_mut().filter(|end| end.is_between(hosts)).for_each(End::expect_failure);
        }
        for (side, (host, key)) in wire.ends.into_iter().enumerate() {
            let knows = wire.closed[side] || wire.dead.is_some_and(|(late, _)| late != side);
            if !knows {
                self.hosts[host].lose(key, now);
            }
        }
    }

    /// The same, but one end learns it later and goes on sending until then.
    pub fn cut_one_side(&mut self, index: usize, side: usize, delay: Nanos) {
        let wire = &mut self.wires[index];
        if wire.dead.is_some() {
            return;
        }
        if wire.closed != [false; 2] {
            return self.cut(index);
        }
        if !self.has_recovery {
            let hosts = wire.ends.map(|(host, _)| host);
            self.ends.iter_mut().filter(|end| end.is_between(hosts)).for_each(End::expect_failure);
        }
        wire.dead = Some((1 - side, Nanos(self.now.0 + delay.0)));
        wire.links.iter_mut().for_each(Link::lose_all);
        let (host, key) = wire.ends[side];
        let now = self.now;
        self.hosts[host].lose(key, now);
    }

    /// One end gives a channel up, if it may.
    pub fn retire(&mut self, index: usize, side: usize) {
        let wire = &self.wires[index];
        let (host, key) = wire.ends[side];
        if wire.dead.is_none() {
            self.hosts[host].engine.retire(key);
        }
    }

    /// Whether an end of a channel is giving it up.
    pub fn is_leaving(&self, wire: &Wire) -> bool {
        wire.ends.iter().any(|(host, key)| self.hosts[*host].engine.is_leaving(*key))
    }

    /// Ends of channels that were given up close them.
    pub(super) fn end_retired(&mut self) -> bool {
        let mut has_ended = false;
        for wire in &mut self.wires {
            for side in 0..2 {
                let (host, key) = wire.ends[side];
                let host = &mut self.hosts[host];
                let is_at_end = wire.closed[1 - side] && wire.links[1 - side].backlog() == 0;
                let is_over = is_at_end || host.engine.is_retired(key);
                if is_over && !wire.closed[side] && wire.dead.is_none() {
                    wire.closed[side] = true;
                    host.lose(key, self.now);
                    has_ended = true;
                }
            }
        }
        self.wires.retain(|wire| wire.closed != [true; 2]);
        has_ended
    }

    /// Ends learn of channels that the other has lost.
    pub(super) fn end_cuts(&mut self) {
        let now = self.now;
        let is_due = |wire: &Wire| wire.dead.is_some_and(|(_, at)| at <= now);
        while let Some(index) = self.wires.iter().position(is_due) {
            self.cut(index);
        }
    }
}
