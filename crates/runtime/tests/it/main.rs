//! Uthreads, their locks, sockets and files, and the servers that are built of them.

mod io;
mod keyvalue;
mod sync;
mod uthreads;
mod virtual_sockets;
