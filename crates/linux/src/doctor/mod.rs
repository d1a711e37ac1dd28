//! What this host can do, and how to enable the rest.
