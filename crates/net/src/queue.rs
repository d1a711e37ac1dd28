//! Channels with something to send, for the threads that may send on them.

use std::collections::VecDeque;

use quell_net_engine::scheduler::LatencyShare;
use quell_net_engine::{Class, Key};

use crate::channel::Channel;
use crate::table::SideTable;

/// See the module.
pub(crate) struct SendQueue {
    keys: VecDeque<Key>,
    /// Which class goes first where both have something to send.
    share: LatencyShare,
}

impl SendQueue {
    pub fn new(latency_percent: u8) -> SendQueue {
        SendQueue { keys: VecDeque::new(), share: LatencyShare::new(latency_percent) }
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    pub fn push(&mut self, key: Key) {
        self.keys.push_back(key);
    }

    /// The next channel to send on, and whether bulk data is left for lack of a thread that may send it.
    pub fn next(
        &mut self,
        only_latency: bool,
        channels: &SideTable<Channel>,
    ) -> (Option<Key>, bool) {
        let is_bulk =
            |key: &Key| channels.get(*key).is_some_and(|it| it.class == Class::Throughput);
        let latency = self.keys.iter().position(|key| !is_bulk(key));
        let bulk = self.keys.iter().position(is_bulk);
        let next = match self.share.next(latency.is_some(), bulk.is_some()) {
            Some(Class::Throughput) if !only_latency => bulk,
            _ => latency,
        };
        let key = next.and_then(|index| self.keys.remove(index));
        (key, next.is_none() && bulk.is_some())
    }

    /// So many bytes of a class leave.
    pub fn sent(&mut self, class: Class, bytes: u64, channels: &SideTable<Channel>) {
        let is_other = |key: &Key| channels.get(*key).is_some_and(|other| other.class != class);
        self.share.sent(class, bytes, self.keys.iter().any(is_other));
    }
}
