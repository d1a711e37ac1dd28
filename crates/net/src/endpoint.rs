//! An endpoint: its peers, and how sockets come to be.

use std::net::{SocketAddr, TcpListener};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Waker;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quell_net_engine::wire::Open;
use quell_net_engine::{Class, Engine, Key};

use crate::config::{EndpointConfig, OtherHosts, SameHost};
use crate::copying::Copying;
use crate::core::{Core, Route};
use crate::error::Error;
use crate::handshake::Port;
use crate::helper::{self, Helper, Settings};
use crate::opening::open_channel;
use crate::placed;
use crate::placing::{Cores, Placing};
use crate::shared::Shared;
use crate::stream::Stream;
use crate::threads;
use crate::udp::{self, Grants};
use crate::uring::Driver;
use crate::waiter::Waiter;

/// Streams of a listener that were not accepted; further ones are refused.
const BACKLOG: usize = 1_024;

/// One process's end of all its channels. Clones are the same endpoint; it ends with the last of them and of its sockets.
#[derive(Clone)]
pub struct Endpoint(Arc<Inner>);

pub(crate) struct Inner {
    pub shared: Arc<Shared>,
    copying: Copying,
    waiter: Arc<Waiter>,
    settings: Arc<Settings>,
    ports: Sender<Port>,
    helper: Mutex<Option<JoinHandle<()>>>,
}

/// Another endpoint, to which there are channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer(pub(crate) Key);

impl Endpoint {
    /// Starts an endpoint, and the thread that works for it while the program does not.
    ///
    /// # Errors
    /// When the system has no descriptors or threads left, or the settings cannot work.
    pub fn new(config: EndpointConfig) -> Result<Endpoint, Error> {
        if config.throughput_channels == 0 {
            return Err(Error::Config("`throughput_channels` has to be at least 1".to_owned()));
        }
        let has_policy = config.placement.is_some() || config.copying.has_workers();
        let has_udp = config.same_host == SameHost::Udp || config.other_hosts == OtherHosts::Udp;
        if has_udp && !config.engine.has_recovery {
            let what =
                "`has_recovery` has to be set where channels go over UDP, which loses packets";
            return Err(Error::Config(what.to_owned()));
        }
        let has_uring =
            config.same_host == SameHost::TcpUring || config.other_hosts == OtherHosts::TcpUring;
        let uring = has_uring.then(Driver::start).transpose().map_err(Error::uring)?;
        let waiter = Waiter::new().map_err(|source| Error::io("create an eventfd", source))?;
        let waiter = Arc::new(waiter);
        let cores = Cores::of(has_policy, config.topology, config.cores)?;
        let copying = Copying::start(config.copying, &cores)?;
        let engine = Engine::new(config.engine, config.policies);
        let mut core = Core::new(engine, Waker::from(Arc::clone(&waiter)));
        core.placing = config.placement.map(|policy| Placing::new(policy, cores));
        let shared = Arc::new(Shared::new(core, config.latency_slice));
        let settings = Arc::new(Settings {
            congestion: config.congestion,
            same_host: config.same_host,
            other_hosts: config.other_hosts,
            grants: Arc::new(Grants::new(config.grants)),
            uring,
            throughput_channels: config.throughput_channels,
            channel_count: config.channel_count,
            paces: config.paces,
            is_insecure: config.insecure,
        });
        let (ports, new_ports) = channel();
        let helper = Helper::new(
            Arc::clone(&shared),
            Arc::clone(&waiter),
            Arc::clone(&settings),
            new_ports,
        )?;
        let thread = std::thread::Builder::new().name("quell-net".to_owned());
        let helper = thread
            .spawn(move || helper.run())
            .map_err(|source| Error::io("start the endpoint's thread", source))?;
        Ok(Endpoint(Arc::new(Inner {
            shared,
            copying,
            waiter,
            settings,
            ports,
            helper: Mutex::new(Some(helper)),
        })))
    }

    /// Takes channels of other endpoints on a TCP port, and beside it through shared memory, and by UDP if it is set up so. Returns its address, with the port that the system chose for port
    /// zero.
    ///
    /// # Errors
    /// When the port cannot be had, or the address leaves the host without `insecure`.
    pub fn take_channels(&self, address: SocketAddr) -> Result<SocketAddr, Error> {
        if !self.0.settings.is_insecure && crate::tcp::leaves_host(address.ip()) {
            return Err(Error::Insecure(address));
        }
        let at = |what| move |source| Error::Peer { address, what, source };
        let port = TcpListener::bind(address).map_err(at("listen on the channel port"))?;
        port.set_nonblocking(true).map_err(at("listen on the channel port"))?;
        let own = port.local_addr().map_err(at("read the channel port's address"))?;
        // The helper lives as long as the endpoint.
        self.0.ports.send(Port::Tcp(port)).map_err(|_| Error::Closed)?;
        if self.0.settings.has_udp() {
            let beside = udp::Port::bind(own).map_err(at("listen on the channel port by UDP"))?;
            self.0.ports.send(Port::Udp(beside)).map_err(|_| Error::Closed)?;
        }
        if self.0.settings.same_host == SameHost::SharedMemory {
            match crate::shm::listen(own) {
                Ok(beside) => {
                    let port = Port::SharedMemory(beside, own);
                    self.0.ports.send(port).map_err(|_| Error::Closed)?;
                }
                // Anybody can have taken the name.
                Err(error) => tracing::warn!("peers of this host will use TCP: {error}"),
            }
        }
        Waker::from(Arc::clone(&self.0.waiter)).wake();
        Ok(own)
    }

    /// Opens channels to the endpoint that takes them at an address.
    ///
    /// # Errors
    /// When it cannot be reached, or speaks something else.
    pub fn connect_peer(&self, rendezvous: SocketAddr) -> Result<Peer, Error> {
        let open = |class| open_channel(&self.0.shared, &self.0.settings, rendezvous, class);
        let peer = open(Class::Latency)?;
        for _ in 0..self.0.settings.throughput_channels {
            open(Class::Throughput)?;
        }
        Ok(Peer(peer))
    }

    /// Listens for streams to an address of this endpoint. That of all interfaces takes those to any address of the port.
    ///
    /// # Errors
    /// When another listener has the address.
    pub fn listen(&self, address: SocketAddr) -> Result<Listener, Error> {
        let key = self.0.shared.act(|core, _| {
            let key = core.engine.listen(address, BACKLOG)?;
            core.listeners.insert(key, Default::default());
            Ok::<Key, Error>(key)
        })?;
        Ok(Listener { endpoint: self.clone(), key, address })
    }

    /// Opens a stream to an address of a peer that is connected, or has connected to this endpoint, and waits until it is
    /// accepted.
    ///
    /// # Errors
    /// When no peer has the address, or it refuses the stream.
    pub fn connect(&self, address: SocketAddr, class: Class) -> Result<Stream, Error> {
        let (route, _) = self.0.shared.with(|core, _| core.route(address));
        let stream = self.open(route.ok_or(Error::NoRoute(address))?, address, class, false)?;
        stream.wait_connected()?;
        Ok(stream)
    }

    /// The same without waiting: the stream is opened together with what is written first, and is refused at the next call. As
    /// with TCP Fast Open, but nothing is delivered twice.
    ///
    /// # Errors
    /// When no peer has the address.
    pub fn connect_early(&self, address: SocketAddr, class: Class) -> Result<Stream, Error> {
        let (route, _) = self.0.shared.with(|core, _| core.route(address));
        self.open(route.ok_or(Error::NoRoute(address))?, address, class, true)
    }

    /// As [`Endpoint::connect`], to a certain peer: several on one host may have the same addresses.
    ///
    /// # Errors
    /// When the peer is gone, or refuses the stream.
    pub fn connect_via(
        &self,
        peer: Peer,
        address: SocketAddr,
        class: Class,
    ) -> Result<Stream, Error> {
        let (route, _) = self.0.shared.with(|core, _| {
            core.routes.values().flatten().find(|route| route.peer == peer.0).copied()
        });
        let stream = self.open(route.ok_or(Error::NoRoute(address))?, address, class, false)?;
        stream.wait_connected()?;
        Ok(stream)
    }

    fn open(
        &self,
        route: Route,
        destination: SocketAddr,
        class: Class,
        is_early: bool,
    ) -> Result<Stream, Error> {
        let shared = &self.0.shared;
        let (opened, has_frames) = shared.with(|core, now| {
            let source = SocketAddr::new(route.own, core.port());
            let open = Open { source, destination, class };
            let key = core.engine.open(route.peer, open, now)?;
            core.sockets.of(key);
            if is_early {
                core.engine.open_early(key);
                // It sends the open frame, should nothing be written soon.
                core.leave_to_helper(now);
            }
            Ok::<_, Error>((key, open))
        });
        let (key, open) = opened?;
        if has_frames && !is_early {
            shared.flush();
        }
        let (source, destination) = (open.source, open.destination);
        Ok(Stream::new(self.clone(), key, route.peer, class, source, destination))
    }

    pub(crate) fn is_insecure(&self) -> bool {
        self.0.settings.is_insecure
    }

    pub(crate) fn copying(&self) -> &Copying {
        &self.0.copying
    }

    pub(crate) fn shared(&self) -> &Shared {
        &self.0.shared
    }

    /// Ends all channels as if their connections had broken, after a change of the network, say. Streams go on over new
    /// ones: the side that opened the old ones opens them at once.
    pub fn reset_channels(&self) {
        self.0.shared.close_channels();
    }

    /// Streams that are open, those in backlogs included.
    pub fn stream_count(&self) -> usize {
        self.0.shared.with(|core, _| core.engine.stream_count()).0
    }
}

/// How long an endpoint that is dropped waits until what its closed sockets have written has arrived.
const LINGER: Duration = Duration::from_secs(1);
/// See [`LINGER`].
const LINGER_LOOK: Duration = Duration::from_micros(200);

impl Drop for Inner {
    fn drop(&mut self) {
        let helper = self.helper.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The endpoint's own threads may drop the last socket, with a task that they wake: they cannot wait for themselves.
        let is_own = |it: &JoinHandle<()>| {
            placed::is_own(&self.shared) || it.thread().id() == std::thread::current().id()
        };
        let helper = helper.filter(|it| !is_own(it));
        let until = Instant::now() + LINGER;
        while helper.is_some()
            && self.shared.act(|core, now| core.engine.has_unsettled(now))
            && Instant::now() < until
        {
            threads::pause(LINGER_LOOK);
        }
        self.shared.act(|core, _| core.engine.say_goodbye());
        helper::stop(&self.shared, &self.waiter);
        if let Some(helper) = helper {
            // A panic of the helper was reported by the panic hook already.
            let _ = helper.join();
        }
        self.shared.close_channels();
        if let Some(uring) = &self.settings.uring {
            uring.stop();
        }
    }
}

/// Takes streams that peers open to an address.
pub struct Listener {
    endpoint: Endpoint,
    key: Key,
    address: SocketAddr,
}

impl Listener {
    /// The address.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The next stream, once there is one.
    ///
    /// # Errors
    /// When the thread cannot wait.
    pub fn accept(&self) -> Result<Stream, Error> {
        self.accept_until(None)
    }

    /// The same, up to a time.
    ///
    /// # Errors
    /// [`Error::TimedOut`] if none has come.
    pub fn accept_until(&self, until: Option<Instant>) -> Result<Stream, Error> {
        let key = self.key;
        let shared = self.endpoint.shared();
        let (interests, _) = shared.with(|core, _| core.interests_of_acceptor());
        let found = shared.wait(
            &interests,
            until,
            |core, _| {
                let (key, open) = core.engine.accept(key)?;
                core.sockets.of(key);
                Some((key, open, core.engine.peer_of(key)?))
            },
            |core, waker, waits| {
                let Some(waiting) = core.listeners.get_mut(&key) else { return };
                match waits {
                    true => waiting.add(waker),
                    false => waiting.remove(waker),
                }
            },
        )?;
        let (key, open, peer) = found;
        Ok(Stream::new(self.endpoint.clone(), key, peer, open.class, open.destination, open.source))
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let key = self.key;
        self.endpoint.shared().act(|core, now| {
            core.engine.close_listener(key, now);
            core.listeners.remove(&key);
        });
    }
}
