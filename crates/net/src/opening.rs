//! Channels that this side opens: the first ones to a peer, those that were lost, and further ones that are wanted.

use std::net::SocketAddr;
use std::sync::Weak;
use std::time::{Duration, Instant};

use quell_net_engine::wire::Hello;
use quell_net_engine::{Class, Key};

use crate::attach::greet;
use crate::config::SameHost;
use crate::core::Addresses;
use crate::error::Error;
use crate::helper::Settings;
use crate::shared::Shared;
use crate::shm;
use crate::stats::Origin;
use crate::tcp;
use crate::udp;

/// Pause before a channel is opened again, doubled up to [`RETRY_MAX`].
const RETRY_FIRST: Duration = Duration::from_millis(1);
/// Channels that have been up for so long are taken to stay.
const SETTLED: Duration = Duration::from_secs(1);
/// See [`RETRY_FIRST`].
const RETRY_MAX: Duration = Duration::from_millis(500);

/// Opens channels until there are as many as there should be, and have been for a while.
pub(crate) fn reopen(
    shared: &Weak<Shared>,
    settings: &Settings,
    mut peer: Key,
    address: SocketAddr,
) {
    let mut pause = RETRY_FIRST;
    let mut whole_since: Option<Instant> = None;
    loop {
        std::thread::sleep(pause);
        let Some(shared) = shared.upgrade() else { return };
        let (missing, _) = shared.with(|core, _| {
            let wanted = [(Class::Latency, 1), (Class::Throughput, settings.throughput_channels)];
            let is_known = !core.is_closed && core.engine.endpoint(peer).is_some();
            let missing =
                wanted.into_iter().find(|(class, count)| core.lacks_channel(peer, *class, *count));
            let is_settled = whole_since.is_some_and(|since| since.elapsed() >= SETTLED);
            if !is_known || (missing.is_none() && is_settled) {
                core.reopening.remove(&peer);
                return None;
            }
            Some(missing)
        });
        let Some(missing) = missing else { return };
        let Some((class, _)) = missing else {
            // It may be refused as soon as it is used: then the next try waits longer.
            whole_since.get_or_insert_with(Instant::now);
            pause = (pause * 2).min(RETRY_MAX);
            continue;
        };
        whole_since = None;
        match open_channel(&shared, settings, address, class) {
            Ok(found) if found == peer => pause = (pause / 2).max(RETRY_FIRST),
            Ok(found) => {
                // Another endpoint has its port: it has restarted, and knows nothing of its streams.
                shared.act(|core, now| {
                    core.engine.peer_gone(peer, now);
                    core.reopening.remove(&peer);
                    core.reopening.insert(found);
                });
                peer = found;
            }
            Err(error) => {
                tracing::debug!("a lost channel is not back yet: {error}");
                pause = (pause * 2).min(RETRY_MAX);
            }
        }
    }
}

/// Opens a channel to a peer's port. Returns the peer.
pub(crate) fn open_channel(
    shared: &Shared,
    settings: &Settings,
    address: SocketAddr,
    class: Class,
) -> Result<Key, Error> {
    if !settings.is_insecure && tcp::leaves_host(address.ip()) {
        return Err(Error::Insecure(address));
    }
    let (hello, _) = shared.with(|core, _| {
        let number = core.channel_number();
        core.engine.hello(number, class)
    });
    let shared_memory = match settings.same_host {
        SameHost::SharedMemory if !tcp::leaves_host(address.ip()) => shm::connect(address, &hello)?,
        _ => None,
    };
    let (transport, theirs, own) = match shared_memory {
        Some((transport, theirs)) => (transport, theirs, address.ip()),
        None if settings.has_udp_to(address.ip()) => {
            udp::connect(address, &hello, &settings.grants)?
        }
        None => {
            let connection = tcp::connect(address, &settings.congestion)?;
            let failed = |source| Error::io("set a new channel up", source);
            let own = connection.local_addr().map_err(failed)?.ip();
            let mut plain =
                tcp::transport(connection.try_clone().map_err(failed)?, false).map_err(failed)?;
            let theirs = greet(&mut plain, &hello, address)?;
            let transport = settings.tcp_transport(connection, address.ip(), class);
            (transport.map_err(failed)?, theirs, own)
        }
    };
    // The class and the number are what this side asked for, whatever the peer says.
    let theirs = Hello { class, channel: hello.channel, ..theirs };
    shared.act(|core, now| {
        let (rendezvous, origin) = (Some(address), Origin::Configured);
        let addresses = Addresses { peer: address, rendezvous, own, origin };
        core.add_channel(&theirs, true, transport, addresses, now)?;
        core.engine.peer(theirs.endpoint).ok_or(Error::Closed)
    })
}
