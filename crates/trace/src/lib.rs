//! What was recorded of a host, and what follows from it. Pure: no I/O, no clock.

pub mod why;
