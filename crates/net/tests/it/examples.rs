//! The examples run, and do what they say.

use quell_net::scheduler::{ChannelChoice as _, ChannelLoad, Demand};

#[path = "../../../../examples/net/policy.rs"]
mod policy;
#[path = "../../../../examples/net/transport.rs"]
pub mod transport;

#[test]
fn transport_over_pipes_carries_streams_of_both_classes() {
    transport::main().expect("it runs");
}

#[test]
fn policy_with_three_channels_carries_streams_of_every_size() {
    policy::main().expect("it runs");
}

#[test]
fn policy_leaves_a_channel_to_sockets_with_little_to_send() {
    let mut choice = policy::SmallApart::new(1_000);
    let load = |backlog_bytes| ChannelLoad {
        backlog_bytes,
        is_full: false,
        rtt: quell_model::Nanos::ZERO,
    };
    let channels = [load(500_000), load(10), load(900_000)];
    let demand = |remaining| Demand { stream: 1, remaining, last: Some(2), run_bytes: 0 };
    assert_eq!(choice.choose(&demand(1_000), &channels), 2);
    assert_eq!(choice.choose(&demand(1_001), &channels), 1);
    assert_eq!(choice.choose(&demand(1_001), &channels[..1]), 0);
}
