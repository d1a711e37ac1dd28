//! Policies in a closed loop on simulated hosts.

mod backend;
mod closed_loop;
mod common;
mod connections;
mod controllers;
mod deadlock;
mod digests;
mod hunt;
mod linux;
mod machine;
mod own_policy;
mod passes;
mod placement;
mod replay;
mod roles;
