//! A policy in one file: which channel carries a socket's next chunk.
//!
//!     cargo run -p quell-net --example policy
//!
//! Sockets that have little to send keep one channel to themselves, the others share the rest. A policy is pure: what it
//! knows is in its arguments, so that it is tested without a network.

use std::error::Error;
use std::net::{Shutdown, SocketAddr};
use std::thread;

use quell_net::scheduler::{ChannelChoice, ChannelLoad, Demand, LeastBacklog};
use quell_net::{Class, Endpoint, EndpointConfig, SameHost};

/// See the module.
pub struct SmallApart {
    /// Bytes up to which a socket has little to send.
    pub small_bytes: u64,
    rest: LeastBacklog,
}

impl SmallApart {
    /// Sockets with so many bytes left to send are kept apart.
    pub fn new(small_bytes: u64) -> SmallApart {
        SmallApart { small_bytes, rest: LeastBacklog::default() }
    }
}

impl ChannelChoice for SmallApart {
    fn choose(&mut self, demand: &Demand, channels: &[ChannelLoad]) -> usize {
        let apart = channels.len() - 1;
        if apart == 0 || demand.remaining <= self.small_bytes {
            return apart;
        }
        let last = demand.last.filter(|last| *last < apart);
        self.rest.choose(&Demand { last, ..*demand }, &channels[..apart])
    }
}

fn config() -> EndpointConfig {
    let mut config = EndpointConfig {
        same_host: SameHost::Tcp,
        throughput_channels: 3,
        ..EndpointConfig::default()
    };
    let [_, throughput] = &mut config.policies.choice;
    *throughput = Box::new(SmallApart::new(64 << 10));
    config
}

/// Sends streams of some sizes over three channels.
pub fn main() -> Result<(), Box<dyn Error>> {
    let server = Endpoint::new(config())?;
    let port = server.take_channels("127.0.0.1:0".parse()?)?;
    let address: SocketAddr = "127.0.0.1:80".parse()?;
    let listener = server.listen(address)?;
    let client = Endpoint::new(config())?;
    client.connect_peer(port)?;
    let sizes = [5_000_000, 1_000, 3_000_000, 40_000];
    let reader = thread::spawn(move || -> Result<Vec<usize>, quell_net::Error> {
        let mut totals = Vec::new();
        let mut bytes = vec![0; 256 << 10];
        for _ in sizes {
            let stream = listener.accept()?;
            let mut total = 0;
            while let length @ 1.. = stream.read(&mut bytes)? {
                total += length;
            }
            totals.push(total);
        }
        Ok(totals)
    });
    for size in sizes {
        let stream = client.connect(address, Class::Throughput)?;
        stream.write_all(&vec![1; size])?;
        stream.shutdown(Shutdown::Write)?;
    }
    let totals = reader.join().map_err(|_| "the reader panicked")??;
    assert_eq!(totals, sizes, "what was sent has arrived");
    println!("streams of {totals:?} bytes");
    print!("the client: {}", client.stats());
    Ok(())
}
