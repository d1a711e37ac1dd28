//! Many simulations: sweeps, the randomised search, the oracle, figures that others published, a host's measurements
//! simulated, and how fast the simulator is.

pub mod plot;
pub mod replayed;
pub mod simhost;
pub mod simspeed;
pub mod simulate;
pub mod validation;
pub mod wasted_cores;
