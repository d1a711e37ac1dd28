//! A key-value server on virtual sockets: a uthread for each stream. As `uthreads.rs`, but for its sockets.

use std::io::{self, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use clap::Parser;
use quell_net::{Endpoint, EndpointConfig};
use quell_runtime::net::{VirtualListener, VirtualStream};
use quell_runtime::sync::{Mutex, MutexGuard};
use quell_runtime::{request, thread};

mod keyvalue;
mod settings;

use keyvalue::{Next, Options, Session, Store};
use settings::RuntimeOptions;

#[derive(clap::Parser)]
struct ServerOptions {
    #[command(flatten)]
    server: Options,
    /// Where channels of clients are taken; `--listen` is the address of their streams; port 0: any
    #[arg(long, default_value = "127.0.0.1:7117")]
    channels: SocketAddr,
    /// Takes channels from other hosts, which anybody on that network may read and change
    #[arg(long)]
    insecure: bool,
    #[command(flatten)]
    runtime: RuntimeOptions,
}

fn serve(mut stream: VirtualStream, store: &Store) -> io::Result<()> {
    let mut session = Session::default();
    let mut received = [0; 16 << 10];
    let mut output = Vec::new();
    loop {
        let bytes = stream.read(&mut received)?;
        if bytes == 0 {
            return Ok(());
        }
        let _request = request::begin();
        session.receive(&received[..bytes]);
        loop {
            let next = session.answer(store, &mut output);
            stream.write_all(&output)?;
            output.clear();
            match next {
                Next::Receive => break,
                Next::Send => {}
                Next::Close => return Ok(()),
            }
        }
    }
}

fn run(listener: &VirtualListener, options: &Options) -> io::Result<()> {
    let store = Arc::new(Store::new(options.memory_mib << 20, 1 << 20));
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let (mut stream, _) = listener.accept()?;
        if open.fetch_add(1, Ordering::Relaxed) >= options.connections {
            open.fetch_sub(1, Ordering::Relaxed);
            let _ = stream.write_all(b"ERROR Too many open connections\r\n");
            continue;
        }
        let (store, open) = (Arc::clone(&store), Arc::clone(&open));
        thread::spawn(move || {
            // A stream that breaks concerns no other.
            let _ = serve(stream, &store);
            open.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

fn main() -> anyhow::Result<()> {
    let options = ServerOptions::parse();
    let config = EndpointConfig { insecure: options.insecure, ..EndpointConfig::default() };
    let endpoint = Endpoint::new(config)?;
    // Before clients come.
    let listener = VirtualListener::bind(&endpoint, options.server.listen)?;
    println!("channels on {}", endpoint.take_channels(options.channels)?);
    let runtime = options.runtime.builder()?.build()?;
    runtime.run(move || run(&listener, &options.server))?;
    Ok(())
}
