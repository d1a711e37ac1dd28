//! The load generator against real servers.

mod antagonists;
mod common;
mod memcached;
mod services;
mod synthetic;
