//! What `quell` promises, called as users call it.

mod access;
mod bad_input;
mod check;
mod common;
mod congestion;
mod generate;
mod lane;
mod lane_bench;
mod latency;
mod lint;
mod load;
mod metrics;
mod record;
mod replay;
mod run;
mod runtime_bench;
mod runtimes;
mod signals;
mod sim;
mod stats;
mod top;
mod tutorial;
mod unit;
mod view;
mod why;
mod why_file;
