//! The configuration file and the control protocol: what people and other programs say to Quell.
//!
//! Everything here is input from outside until parsed: bounded, validated, never a panic.
//!
//! * [`config`]: the TOML file, read in two stages: as typed, then as checked against a host.
//! * [`client`]: one call, one reply.
//! * [`exposition`]: the text of metrics pages.
//! * [`protocol`]: JSON lines over a Unix socket, one request and one response a line.
//! * [`run_dir`]: where the daemon's files are.
//! * [`subscribe`]: decisions as they are taken, a JSON line each.
//! * [`register`]: how a runtime comes under the daemon, and the descriptors that it gets.

pub mod client;
pub mod config;
pub mod exposition;
mod latency;
pub mod protocol;
pub mod register;
pub mod run_dir;
pub mod subscribe;
