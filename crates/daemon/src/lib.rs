//! The daemon: the tick loop, tasks, control server and guardians.

mod events;
mod mailbox;
mod server;
