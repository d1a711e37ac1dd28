//! How an endpoint is set up.

use quell_model::{CoreSet, Nanos, Topology};
use quell_net_engine::scheduler::{CopyPolicy, GrantLimits, InlineCopy, Placement};
use quell_net_engine::{EndpointId, EngineConfig, Policies};

use crate::count::NewCount;

/// The settings of an [`Endpoint`](crate::Endpoint).
pub struct EndpointConfig {
    /// Constants of the engine: buffers, times, limits. Its id is drawn anew at each start.
    pub engine: EngineConfig,
    /// The replaceable decisions.
    pub policies: Policies,
    /// TCP's congestion control on all channels, whatever the host's default is.
    pub congestion: String,
    /// What carries channels to peers of this host.
    pub same_host: SameHost,
    /// What carries channels to peers of others.
    pub other_hosts: OtherHosts,
    /// How much peers may send over UDP.
    pub grants: GrantLimits,
    /// Channels of the throughput class that are opened to a peer.
    pub throughput_channels: usize,
    /// A policy that decides how many there are later, for each peer to which this side has opened channels. `None`: always as
    /// many.
    pub channel_count: Option<NewCount>,
    /// Has channels of the throughput class that leave this host send a little less than the slowest link carries, where they
    /// would fill its queue. Other TCP connections over that link may take more of it then.
    pub paces: bool,
    /// Has threads of the endpoint send and read its channels, each on the core that this policy chooses. `None`: the program's
    /// threads do, and the kernel places them. A thread that is handed every message costs those that are alone a wake-up.
    pub placement: Option<Box<dyn Placement>>,
    /// Divides large reads and writes between the thread that calls and threads that only copy. By default it copies all
    /// itself: that costs nothing where all cores have work.
    pub copying: Box<dyn CopyPolicy>,
    /// The cores of the host, which both policies are given. `None`: read from sysfs where one needs it.
    pub topology: Option<Topology>,
    /// Cores that both may use. `None`: those that the thread may use which makes the endpoint.
    pub cores: Option<CoreSet>,
    /// The slice that threads ask the kernel for which often wait for latency sockets: the shorter, the sooner they run once
    /// they are woken beside bulk data (Linux 6.12). Threads that they start inherit it. Zero: they keep theirs.
    pub latency_slice: Nanos,
    /// Lets channels leave this host, where any host on the network may read and change what is sent.
    pub insecure: bool,
}

/// What carries channels between two processes of one host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SameHost {
    /// Shared memory where the other side has it and is of the same user, else TCP.
    #[default]
    SharedMemory,
    /// TCP over loopback.
    Tcp,
    /// UDP over loopback: for tests.
    Udp,
    /// As [`OtherHosts::TcpUring`], over loopback: for tests.
    TcpUring,
}

/// What carries channels between hosts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OtherHosts {
    /// Kernel TCP.
    #[default]
    Tcp,
    /// UDP: virtual sockets repair what is lost, and the receiver says how much may be on its way. Both sides have to have it.
    /// For hosts a few switches apart.
    Udp,
    /// Kernel TCP, whose channels of the throughput class a thread of the endpoint drives by io_uring: the program's threads
    /// only move memory. The other side may have plain TCP. Takes Linux 6.1.
    TcpUring,
}

impl Default for EndpointConfig {
    fn default() -> EndpointConfig {
        EndpointConfig {
            engine: EngineConfig::new(EndpointId(rand::random())),
            policies: Policies::default(),
            congestion: "cubic".to_owned(),
            same_host: SameHost::default(),
            other_hosts: OtherHosts::default(),
            grants: GrantLimits::default(),
            throughput_channels: 1,
            channel_count: None,
            paces: true,
            placement: None,
            copying: Box::new(InlineCopy),
            topology: None,
            cores: None,
            // The kernel's least.
            latency_slice: Nanos::from_micros(100),
            insecure: false,
        }
    }
}
