//! A simulated host for closed-loop tests of policies
