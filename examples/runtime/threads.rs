//! A key-value server: a thread for each connection.

use std::io::{self, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread;

use clap::Parser;

mod keyvalue;

use keyvalue::{Next, Options, Session, Store};

fn serve(mut stream: TcpStream, store: &Store) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut session = Session::default();
    let mut received = [0; 16 << 10];
    let mut output = Vec::new();
    loop {
        let bytes = stream.read(&mut received)?;
        if bytes == 0 {
            return Ok(());
        }
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

fn run(options: &Options) -> io::Result<()> {
    let listener = TcpListener::bind(options.listen)?;
    println!("listening on {}", listener.local_addr()?);
    let store = Arc::new(Store::new(options.memory_mib << 20, 1 << 20));
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let mut stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Of that connection, or for want of descriptors: others may do.
                eprintln!("cannot accept: {error}");
                thread::sleep(std::time::Duration::from_millis(1));
                continue;
            }
        };
        if open.fetch_add(1, Ordering::Relaxed) >= options.connections {
            open.fetch_sub(1, Ordering::Relaxed);
            let _ = stream.write_all(b"ERROR Too many open connections\r\n");
            continue;
        }
        let (store, open) = (Arc::clone(&store), Arc::clone(&open));
        thread::spawn(move || {
            // A connection that breaks concerns nobody else.
            let _ = serve(stream, &store);
            open.fetch_sub(1, Ordering::Relaxed);
        });
    }
}

fn main() -> io::Result<()> {
    run(&Options::parse())
}
